"""Check where Theorem 3 applies and says anything: its bound B on the loss, the trivial bound |grad F|^2 <= L^2, and
Remark rmk:bound."""

import math

import numpy as np

from paper_checks import formulas as f
from paper_checks.checks.instances import DIMENSIONS, random_instance, spectrum
from paper_checks.registry import Finding, check


@check("thm3-loss-bound")
def _(full: bool) -> Finding:
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


@check("thm3-informative")
def _(full: bool) -> Finding:
    counts, best = dict.fromkeys(("thm1", "thm2", "thm3"), 0), math.inf
    for mode in "abc":
        values = []
        for d in DIMENSIONS:
            point = {**f.SYNTHETIC, "d": d, "r": float(np.sum(spectrum(mode, d)))}
            for id in counts:
                counts[id] += f.value(f.STATEMENTS[id].bound, point) < 1
            values.append(f.value(f.STATEMENTS["thm3"].bound, point))
        best = min(best, *values)
    numbers = {f"cells below L^2 of 21, {k}": float(v) for k, v in counts.items()}
    numbers["smallest bound"] = best
    numbers["bound at mode c, d = 2000"] = f.value(f.STATEMENTS["thm3"].bound, f.SYNTHETIC)
    return Finding(counts == {"thm1": 3, "thm2": 4, "thm3": 3}, numbers=numbers)


@check("rmk-bound-steps")
def _(full: bool) -> Finding:
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
    rng, worst = np.random.default_rng(92), 0.0
    for _ in range(40):
        problem = random_instance(rng, 4, 3, wave=True)
        g = problem.gradient(3 * rng.standard_normal((500, 3)))
        worst = max(worst, float(np.max(np.sum(g**2, axis=1))) / problem.lipschitz**2)
    return Finding(worst <= 1, numbers={"largest |grad F|^2/L^2": worst})
