"""The workbench: a page on which a problem and a budget are set; all it shows is computed by the library.

marimo run examples/workbench.py
"""

import marimo

app = marimo.App(width="medium", app_title="dpzero_theory workbench")


@app.cell
def library():
    import math
    from pathlib import Path

    import marimo as mo

    from dpzero_theory.check import PreconditionError
    from dpzero_theory.difference import DIFFERENCES
    from dpzero_theory.document import BLUE, GREEN, GREY, ORANGE, picture
    from dpzero_theory.privacy import calibrate
    from dpzero_theory.privacy.accountant import epsilon_of_history
    from dpzero_theory.privacy.gaussian import gdp_from_epsilon
    from dpzero_theory.privacy.risk import advantage, calibrate_risk
    from dpzero_theory.privacy.sampling import FullBatch
    from dpzero_theory.privacy.step import Step
    from dpzero_theory.theory.problem import Problem
    from dpzero_theory.theory.sharp.certificate import prescribe

    CHECKOUT = Path(__file__).resolve().parents[1]

    def drawn(draw, label):
        """Return the picture that `draw` makes, as wide as its column and at most 18.5 rem."""
        svg = picture(draw, label=label, height=3.4).replace("<svg ", '<svg style="width:100%;height:auto" ', 1)
        return mo.Html(f'<div style="width:18.5rem;max-width:100%">{svg}</div>')

    def plain(axes):
        """Show the numbers at the ticks of both axes as they are, not as powers of ten, which take half of the time of
        a picture."""
        axes.minorticks_off()
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)

    def row(*parts):
        """Return the parts side by side; where the screen is narrow, they stand below one another."""
        return mo.hstack(parts, justify="start", align="start", wrap=True, gap=1.5)

    return (
        BLUE,
        CHECKOUT,
        DIFFERENCES,
        FullBatch,
        GREEN,
        GREY,
        ORANGE,
        PreconditionError,
        Problem,
        Step,
        advantage,
        calibrate,
        calibrate_risk,
        drawn,
        epsilon_of_history,
        gdp_from_epsilon,
        math,
        mo,
        plain,
        prescribe,
        row,
    )


@app.cell
def problem_and_budget(DIFFERENCES, mo, row):
    def slider(steps, value, label):
        return mo.ui.slider(steps=steps, value=value, label=label, show_value=True, debounce=True)

    def powers(low, high, value, label):
        """Return a slider over 1, 2, 5, 10, ... times 10^low up to 10^high, which begins at `value`."""
        steps = [digit * 10.0**power for power in range(low, high) for digit in (1, 2, 5)] + [10.0**high]
        return slider([int(step) if low >= 0 else float(f"{step:g}") for step in steps], value, label)

    n = powers(3, 7, 10_000, "n, records")
    d = powers(1, 9, 2_000, "d, dimension")
    r = powers(0, 4, 10, "r, effective rank")
    bounded = mo.ui.dropdown(["every gradient", "root mean square"], "every gradient", label="L bounds")
    lipschitz = powers(-2, 2, 1.0, "L, gradients")
    smoothness = powers(-2, 2, 1.0, "ell, smoothness")
    gap = powers(-2, 2, 1.0, "F(x0) - F*, gap")
    budget = mo.ui.dropdown(["epsilon", "risk"], "epsilon", label="the budget is")
    epsilon = slider([0.1, 0.2, 0.5, 1, 2, 4, 6, 8], 2, "epsilon")
    risk = slider([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5], 0.1, "attack's advantage")
    delta = slider([1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5], 1e-6, "delta")
    rule = mo.ui.dropdown(list(DIFFERENCES), "central", label="difference rule")
    k = slider([1, 2, 4, 8, 16, 32, 64, 128, 256], 1, "K, directions a step")
    points = powers(2, 6, 10_000, "evaluations of a record")
    mo.vstack(
        [
            mo.md("# DPZero: what can be certified"),
            row(
                mo.vstack([mo.md("**Problem**"), n, d, r, bounded, lipschitz, smoothness, gap]),
                mo.vstack([mo.md("**Budget**"), budget, epsilon, risk, delta]),
                mo.vstack([mo.md("**Step**"), rule, k, points]),
            ),
        ]
    )
    return (
        bounded,
        budget,
        d,
        delta,
        epsilon,
        gap,
        k,
        lipschitz,
        n,
        points,
        r,
        risk,
        rule,
        smoothness,
    )


@app.cell
def spent(
    FullBatch,
    Step,
    advantage,
    budget,
    calibrate,
    calibrate_risk,
    delta,
    epsilon,
    epsilon_of_history,
    gdp_from_epsilon,
    math,
    risk,
):
    def once(multiplier):
        """Return a history of one release with a full batch and this noise multiplier. A run of T full batches costs
        what one such release costs whose noise multiplier is smaller by sqrt(T)."""
        return Step(multiplier, FullBatch(), "replace-one") * 1

    def of_risk(target):
        """Return the epsilon, at the chosen delta, of the noise with which no attack has a larger advantage than
        `target`, rounded down to four decimals."""
        noise_multiplier = calibrate_risk(advantage, target, once).value
        return math.floor(1e4 * epsilon_of_history(list(once(noise_multiplier)), delta.value).lower) / 1e4

    spends = epsilon.value if budget.value == "epsilon" else of_risk(risk.value)
    gdp = float(gdp_from_epsilon(spends, delta.value))
    same = calibrate(target_epsilon=spends, target_delta=delta.value, steps=1, sampling="full", relation="replace-one")
    attack = advantage(once(same.value)).upper
    return attack, gdp, spends


@app.cell
def prescription(
    PreconditionError,
    Problem,
    attack,
    bounded,
    d,
    delta,
    gap,
    gdp,
    k,
    lipschitz,
    mo,
    n,
    points,
    prescribe,
    r,
    row,
    rule,
    smoothness,
    spends,
):
    mo.stop(r.value > d.value, mo.md("The effective rank r must be at most d."))
    square = lipschitz.value**2
    gradients = (
        {"lipschitz": lipschitz.value} if bounded.value == "every gradient" else {"gradient_moment": (2, square)}
    )

    def certified(dimension=d.value, directions=k.value, cap=points.value):
        """Return the prescription with the smallest certificate in this dimension, with so many directions a step, or
        None where `cap`, the most evaluations of a record's loss, does not allow one step. What is not given has the
        value of its slider."""
        problem = Problem(
            n=n.value,
            d=dimension,
            r=min(r.value, dimension),
            smoothness=smoothness.value,
            gap=gap.value,
            **gradients,
        )
        try:
            return prescribe(
                problem, gdp, max_points=n.value * cap, directions_per_step=directions, difference=rule.value
            )
        except PreconditionError:
            return None

    found = certified()
    mo.stop(found is None, mo.md("K needs more evaluations of a record than there are."))
    flag, argument = (
        (f"--lipschitz {lipschitz.value:g}", f"lipschitz={lipschitz.value:g}")
        if "lipschitz" in gradients
        else (f"--gradient-moment 2={square:g}", f"gradient_moment=(2, {square:g})")
    )
    command = " \\\n    ".join(
        [
            f"python -m dpzero_theory.params --n {n.value} --epsilon {spends:g} --delta {delta.value:g}",
            f"--d {d.value} --r {r.value} {flag} --smoothness {smoothness.value:g}",
            f"--gap {gap.value:g} --directions-per-step {k.value} --difference {rule.value}",
            f"--max-points {n.value * points.value} --result theorem-3-sharp",
        ]
    )
    code = f"""\
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe

problem = Problem(
    n={n.value}, d={d.value}, r={r.value}, {argument},
    smoothness={smoothness.value:g}, gap={gap.value:g},
)
plan = prescribe(
    problem, float(gdp_from_epsilon({spends:g}, {delta.value:g})),
    max_points={n.value * points.value}, directions_per_step={k.value},
    difference="{rule.value}",
)
print(plan.bound, plan.steps, plan.step_size, plan.clip, plan.noise_std)"""
    mo.vstack(
        [
            row(
                mo.stat(
                    f"{found.bound:.4g}",
                    label="certified bound on E||grad F||^2",
                    caption=f"without any theorem: {square:.4g}",
                ),
                mo.stat(f"{spends:g}", label="epsilon", caption=f"attack's advantage: at most {attack:.3f}"),
                mo.stat(f"{found.steps:,}", label="steps T"),
                mo.stat(f"{found.step_size:.4g}", label="step size"),
                mo.stat(f"{found.smoothing:.3g}", label="smoothing lambda"),
                mo.stat(f"{found.clip:.4g}", label="clip C"),
                mo.stat(f"{found.noise_std:.4g}", label="noise std sigma"),
            ),
            mo.accordion(
                {
                    "Copy this command": mo.md(f"```bash\n{command}\n```"),
                    "Copy this code": mo.md(f"```python\n{code}\n```"),
                },
                multiple=True,
            ),
        ]
    )
    return certified, code, command, found


@app.cell
def curves(BLUE, ORANGE, certified, d, drawn, found, k, mo, plain, points, r, row):
    def curve(values, of, chosen, label):
        def draw(axes):
            line = [(value, answer.bound) for value in values if (answer := of(value)) is not None]
            axes.semilogx(*zip(*line, strict=True), "o-", color=BLUE, markersize=4)
            axes.semilogx([chosen], [found.bound], "*", color=ORANGE, markersize=14)
            axes.set(xlabel=label, ylabel="certified bound", ylim=(0, None))
            plain(axes)

        return drawn(draw, f"the certified bound against {label}")

    dimensions = [value for value in (10, 100, 1_000, 10_000, 10**6, 10**9) if value >= r.value]
    caps = [round(points.value * factor) for factor in (0.1, 0.3, 1, 3, 10)]
    mo.vstack(
        [
            mo.md(
                "The star is the prescription above. Along a line one setting moves, and the others are as they are."
            ),
            row(
                curve(dimensions, lambda value: certified(dimension=value), d.value, "d, dimension"),
                curve([4**i for i in range(5)], lambda value: certified(directions=value), k.value, "K, directions"),
                curve(caps, lambda value: certified(cap=value), points.value, "evaluations of a record"),
            ),
        ]
    )
    return


@app.cell
def sampling(mo, row):
    share = mo.ui.slider(
        steps=[0.001, 0.01, 0.1, 0.5], value=0.01, label="batch, share of n", show_value=True, debounce=True
    )
    steps = mo.ui.slider(steps=[100, 1_000, 10_000], value=1_000, label="T, steps", show_value=True, debounce=True)
    mo.vstack([mo.md("# The noise for a budget, by how batches are drawn"), row(share, steps)])
    return share, steps


@app.cell
def noise(BLUE, GREEN, GREY, ORANGE, calibrate, delta, drawn, mo, plain, share, steps):
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
        "full": (GREY, "s-"),
        "fixed-order": (ORANGE, "^--"),
        "poisson": (BLUE, "o-"),
        "fixed-size": (GREEN, "v-."),
    }
    multipliers = {kind: [multiplier(kind, budget) for budget in budgets] for kind in looks}

    def _draw(axes):
        for kind, (color, line) in looks.items():
            axes.loglog(budgets, multipliers[kind], line, color=color, label=kind, markersize=4)
        axes.set_xticks(budgets)
        axes.set(xlabel="epsilon", ylabel="noise multiplier")
        plain(axes)
        axes.legend(fontsize=8)

    mo.vstack(
        [
            mo.md(f"replace-one, delta = {delta.value:g}, T = {steps.value:,}"),
            drawn(_draw, "the noise multiplier against epsilon, by sampling"),
        ]
    )
    return (multipliers,)


@app.cell
def same_noise(delta, mo, n, share, steps):
    noise_command = (
        f"python -m dpzero_theory.privacy --epsilon 2 --delta {delta.value:g} --steps {steps.value} \\\n"
        f"    --n {n.value} --batch {round(share.value * n.value)} --sampling poisson --relation replace-one"
    )
    mo.accordion({"Copy this command": mo.md(f"```bash\n{noise_command}\n```")})
    return (noise_command,)


@app.cell
def real_model(CHECKOUT, mo):
    seen = CHECKOUT / "figures" / "language_model.png"
    mo.stop(not seen.exists(), mo.md("The curve of a real model is in a checkout alone."))
    mo.vstack(
        [
            mo.md(
                "# A real model\n\nWhat a private run reaches: SmolLM2-135M on SST-2, five runs a line, 95% intervals,"
                " drawn from the committed rows. No slider moves it."
            ),
            mo.image(
                str(seen), alt="accuracy of SmolLM2-135M against steps, private and not", style={"max-width": "40rem"}
            ),
            mo.accordion({"Copy this command": mo.md("```bash\npython -m benchmarks llm.demo --data DIR\n```")}),
        ]
    )
    return


if __name__ == "__main__":
    app.run()
