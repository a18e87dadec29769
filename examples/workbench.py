"""The workbench: a page with sliders for a problem and a budget; all it shows is computed by the library.

marimo run examples/workbench.py
"""

import marimo

app = marimo.App(width="medium", app_title="dpzero_theory workbench")


@app.cell
def library():
    import marimo as mo
    import matplotlib.pyplot as plt

    from dpzero_theory.check import PreconditionError
    from dpzero_theory.privacy import calibrate
    from dpzero_theory.privacy.gaussian import gdp_from_epsilon
    from dpzero_theory.theory.problem import Problem
    from dpzero_theory.theory.sharp.certificate import prescribe

    return PreconditionError, Problem, calibrate, gdp_from_epsilon, mo, plt, prescribe


@app.cell
def problem_and_budget(mo):
    def powers(low, high, value, label):
        """A slider over 1, 2, 5, 10, ... between two powers of ten."""
        steps = [digit * 10**power for power in range(low, high) for digit in (1, 2, 5)] + [10**high]
        return mo.ui.slider(steps=steps, value=value, label=label, show_value=True, debounce=True)

    n = powers(3, 7, 10_000, "n, records")
    d = powers(1, 9, 2_000, "d, dimension")
    r = powers(0, 4, 10, "r, effective rank")
    epsilon = mo.ui.slider(
        steps=[0.1, 0.2, 0.5, 1, 2, 4, 6, 8], value=2, label="epsilon", show_value=True, debounce=True
    )
    delta = mo.ui.slider(
        steps=[1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5], value=1e-6, label="delta", show_value=True, debounce=True
    )
    evaluations = powers(2, 6, 5_000, "evaluations of a record, K T")
    k = mo.ui.slider(
        steps=[1, 2, 4, 8, 16, 32, 64, 128, 256], value=1, label="K, directions a step", show_value=True, debounce=True
    )
    mo.vstack(
        [
            mo.md("# DPZero: what can be certified"),
            mo.hstack([mo.vstack([n, d, r]), mo.vstack([epsilon, delta]), mo.vstack([k, evaluations])], gap=2),
        ]
    )
    return d, delta, epsilon, evaluations, k, n, r


@app.cell
def prescription(PreconditionError, Problem, d, delta, epsilon, evaluations, gdp_from_epsilon, k, mo, n, prescribe, r):
    mo.stop(r.value > d.value, mo.md("The effective rank r must be at most d."))

    def certified(dimension=d.value, directions=k.value, cap=evaluations.value):
        """The prescription with the smallest certificate; None where the cap does not allow one step."""
        problem = Problem(
            n=n.value, d=dimension, r=min(r.value, dimension), lipschitz=1.0, smoothness=1.0, gap=1.0, loss_bound=1.0
        )
        gdp = float(gdp_from_epsilon(epsilon.value, delta.value))
        try:
            return prescribe(problem, gdp, max_evaluations=n.value * cap, directions_per_step=directions)
        except PreconditionError:
            return None

    found = certified()
    mo.stop(found is None, mo.md("K must be at most the evaluations of a record."))
    command = (
        f"python -m dpzero_theory.params --n {n.value} --epsilon {epsilon.value:g} --delta {delta.value:g} "
        f"--d {d.value} --r {r.value} --result theorem-3-sharp --directions-per-step {k.value} "
        f"--max-evaluations {n.value * evaluations.value}"
    )
    mo.vstack(
        [
            mo.hstack(
                [
                    mo.stat(
                        f"{found.bound:.4g}",
                        label="certified bound on E||grad F||^2",
                        caption="L = ell = gap = 1: at most 1",
                    ),
                    mo.stat(f"{found.steps:,}", label="steps T"),
                    mo.stat(f"{found.step_size:.4g}", label="step size"),
                    mo.stat(f"{found.smoothing:.3g}", label="smoothing lambda"),
                    mo.stat(f"{found.clip:.4g}", label="clip C"),
                    mo.stat(f"{found.noise_std:.4g}", label="noise std sigma"),
                ],
                wrap=True,
            ),
            mo.md(f"The same from the command line:\n\n```\n{command}\n```"),
        ]
    )
    return certified, command, found


@app.cell
def curves(certified, d, evaluations, found, k, plt, r):
    def drawn(axes, values, of, chosen, label):
        points = [(value, answer.bound) for value in values if (answer := of(value)) is not None]
        axes.loglog(*zip(*points, strict=True), "o-", color="#0072B2", markersize=4)
        axes.loglog([chosen], [found.bound], "*", color="#D55E00", markersize=13)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)

    figure, panels = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
    dimensions = [value for value in (10, 100, 1_000, 10_000, 10**6, 10**9) if value >= r.value]
    drawn(panels[0], dimensions, lambda value: certified(dimension=value), d.value, "d")
    drawn(panels[1], [4**power for power in range(5)], lambda value: certified(directions=value), k.value, "K")
    caps = [evaluations.value * factor for factor in (0.1, 0.3, 1, 3, 10)]
    drawn(
        panels[2],
        [round(cap) for cap in caps],
        lambda cap: certified(cap=cap),
        evaluations.value,
        "K T, evaluations of a record",
    )
    panels[0].set_ylabel("certified bound")
    figure.suptitle("star: the prescription above; lines: one slider moved, the others as they are", fontsize=9)
    figure
    return


@app.cell
def sampling(mo):
    share = mo.ui.slider(
        steps=[0.001, 0.01, 0.1, 0.5], value=0.01, label="batch, share of n", show_value=True, debounce=True
    )
    steps = mo.ui.slider(steps=[100, 1_000, 10_000], value=1_000, label="T, steps", show_value=True, debounce=True)
    mo.vstack(
        [mo.md("# The noise for a budget, by how batches are drawn"), mo.hstack([share, steps], justify="start", gap=2)]
    )
    return share, steps


@app.cell
def noise(calibrate, delta, plt, share, steps):
    def multiplier(kind, epsilon):
        return calibrate(
            target_epsilon=epsilon,
            target_delta=delta.value,
            steps=steps.value,
            sampling=kind,
            relation="replace-one",
            sample_rate=1.0 if kind == "full" else share.value,
        ).value

    budgets = [0.5, 1, 2, 4, 8]
    looks = {
        "full": ("#000000", "s-"),
        "fixed-order": ("#D55E00", "^--"),
        "poisson": ("#0072B2", "o-"),
        "fixed-size": ("#009E73", "v-."),
    }
    multipliers = {kind: [multiplier(kind, budget) for budget in budgets] for kind in looks}
    picture, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for kind, (color, line) in looks.items():
        axes.loglog(budgets, multipliers[kind], line, color=color, label=kind, markersize=4)
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axes.minorticks_off()
    axes.set_xlabel("epsilon")
    axes.set_ylabel("noise multiplier")
    axes.set_title(f"replace-one, delta = {delta.value:g}, T = {steps.value:,}", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    picture
    return (multipliers,)


if __name__ == "__main__":
    app.run()
