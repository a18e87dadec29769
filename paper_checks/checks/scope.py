"""Check where Theorem 3 applies and says anything: its bound B on the loss, the trivial bound |grad F|^2 <= L^2, and
Remark rmk:bound."""

import math

import numpy as np

from paper_checks import formulas as f
from paper_checks.checks.instances import DIMENSIONS, random_instance, spectrum
from paper_checks.registry import Finding, Plot, check


@check("thm3-loss-bound")
def _(full: bool) -> Finding:
    """Theorem 3 assumes |F(x_t)| <= B for all iterates of a run, which cannot hold with Gaussian noise unless F itself
    is bounded by B, because x_1 has a density on all of R^d.

    For an unbounded pseudo-Huber sum, P(|F(x_1)| > B) at B = 2, 4 and 8 times F(x_0) is positive over 200,000 draws
    of direction and noise (seed 89). For a bounded sum of sines it is 0 at its bound.
    """
    rng = np.random.default_rng(89)
    problem, x0 = random_instance(rng, 3, 3, wave=False), 2 * rng.standard_normal(3)
    z = rng.standard_normal((200_000, 4))
    u = math.sqrt(3) * z[:, :3] / np.linalg.norm(z[:, :3], axis=1, keepdims=True)
    x = x0 - (np.clip(problem.differences(x0, u, 0.1), -1, 1).mean(axis=1) + 10 * z[:, 3])[:, None] * u
    chances = [float(np.mean(problem.loss(x) > k * problem.loss(x0))) for k in (2, 4, 8)]
    wave = random_instance(rng, 3, 3, wave=True)
    bounded = float(np.max(np.abs(wave.loss(x)))) <= wave.bound
    numbers = {f"P(F(x_1) > {k} F(x_0))": p for k, p in zip((2, 4, 8), chances, strict=True)}
    return Finding(max(chances) == 0, repaired=min(chances) > 0 and bounded, numbers=numbers)


@check("thm3-shift")
def _(full: bool) -> Finding:
    """Theorem 3's bound changes when a constant c is added to the loss F, because B does: by 25% to 35% for c = 1e6.
    Algorithm 2 uses only differences of F, so nothing in it changes."""
    bound = f.STATEMENTS["thm3"].bound
    values = [f.value(bound, {**f.SYNTHETIC, "B": b}) for b in (1.0, 1e6)]
    rng = np.random.default_rng(90)
    problem, x, u = random_instance(rng, 3, 3, wave=True), rng.standard_normal((500, 3)), rng.standard_normal((500, 3))
    shifted = ((problem.losses(x + 0.1 * u) + 1e3) - (problem.losses(x - 0.1 * u) + 1e3)) / 0.2
    same = bool(np.max(np.abs(shifted - problem.differences(x, u, 0.1))) < 1e-10)
    return Finding(
        same and 1.25 < values[1] / values[0] < 1.35,
        numbers={"bound, B = 1e6 over B = 1": values[1] / values[0]},
    )


@check("thm3-informative")
def _(full: bool) -> Finding:
    """Theorem 3's bound is below the trivial L^2 in 3 of the 21 cells of the paper's synthetic experiment.

    The cells are three spectra in seven dimensions, at n = 10,000, (2, 1e-6) and L = ell = gap = B = 1. The bounds
    of Theorems 1 and 2 are below L^2 in 3 and 4 of them.
    """
    counts, best = dict.fromkeys(("thm1", "thm2", "thm3"), 0), math.inf
    series = {}
    for mode in "abc":
        values = []
        for d in DIMENSIONS:
            point = {**f.SYNTHETIC, "d": d, "r": float(np.sum(spectrum(mode, d)))}
            for id in counts:
                counts[id] += f.value(f.STATEMENTS[id].bound, point) < 1
            values.append(f.value(f.STATEMENTS["thm3"].bound, point))
        series[f"mode {mode}"] = (list(DIMENSIONS), values)
        best = min(best, *values)
    plot = Plot(
        "Theorem 3's bound at the synthetic settings",
        "d",
        "bound",
        series,
        {"trivial, L^2": 1.0},
        log_x=True,
        log_y=True,
    )
    numbers = {f"cells below L^2 of 21, {k}": float(v) for k, v in counts.items()}
    numbers["smallest bound"] = best
    numbers["bound at mode c, d = 2000"] = f.value(f.STATEMENTS["thm3"].bound, f.SYNTHETIC)
    return Finding(counts == {"thm1": 3, "thm2": 4, "thm3": 3}, numbers=numbers, plot=plot)


@check("rmk-bound-steps")
def _(full: bool) -> Finding:
    """The remark rmk:bound: where the number of steps T of Theorem 1, 2 or 3 is below 1, its bound is above the trivial
    L^2, so nothing is lost by using max{T, 1} and min{bound, L^2}.

    Where T < 1 the bounds are at least 32 d L^2 (Theorem 1), 32 (r + 2) L^2 (Theorem 2) and 2 L^2 (r + 2)/4 (Theorem
    3), the last of which is at least 1.5 L^2. Tried at random settings with T < 1, seed 91.
    """
    rng, least = np.random.default_rng(91), math.inf
    for id in ("thm1", "thm2", "thm3"):
        for _ in range(400):
            d = float(10 ** rng.uniform(0, 6))
            point = {**f.SYNTHETIC, "d": d, "r": float(d ** rng.uniform(0, 1)), "n": float(10 ** rng.uniform(0, 5))}
            point["gap"] = 1e-9
            point["eps"] = float(10 ** rng.uniform(-3, 1))
            argument = f.STATEMENTS[id].log_argument
            if f.value(f.STATEMENTS[id].T, point) < 1 and (argument is None or f.value(argument, point) > 1):
                least = min(least, f.value(f.STATEMENTS[id].bound, point))
    return Finding(least > 1, numbers={"smallest bound/L^2 where T < 1": least})


@check("rmk-bound-trivial")
def _(full: bool) -> Finding:
    """The remark rmk:bound: |grad F|^2 <= L^2 holds at every point (random points, seed 92), which is why DPGD-0th's
    error stops growing with d."""
    rng, worst = np.random.default_rng(92), 0.0
    for _ in range(40):
        problem = random_instance(rng, 4, 3, wave=True)
        g = problem.gradient(3 * rng.standard_normal((500, 3)))
        worst = max(worst, float(np.max(np.sum(g**2, axis=1))) / problem.lipschitz**2)
    return Finding(worst <= 1, numbers={"largest |grad F|^2/L^2": worst})


@check("thm3-min-entry")
def _(full: bool) -> Finding:
    """Theorem 3 bounds the smoothing lambda by the smaller of two entries. Wherever its bound is below the trivial
    L^2 the second entry is the smaller one (random settings, seed 93), so the first could be left out."""
    rng, first_smaller, cells = np.random.default_rng(93), 0, 0
    for _ in range(1500):
        d = float(10 ** rng.uniform(0, 6))
        point = {**f.SYNTHETIC, "d": d, "r": float(d ** rng.uniform(0, 1)), "n": float(10 ** rng.uniform(0, 9))}
        point["gap"] = float(10 ** rng.uniform(-6, 0))
        point["eps"] = float(10 ** rng.uniform(-3, 1))
        statement = f.STATEMENTS["thm3"]
        if f.value(statement.log_argument, point) > 1 and f.value(statement.bound, point) < 1:
            cells += 1
            first, second = (f.value(x, point) for x in statement.lam)
            first_smaller += first < second
    numbers = {"settings with bound < L^2": float(cells), "first entry smaller in": float(first_smaller)}
    return Finding(cells > 50 and first_smaller == 0, numbers=numbers)
