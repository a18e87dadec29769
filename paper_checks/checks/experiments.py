"""Check what can be checked of the paper's experiments without repeating them: whether their settings meet the
theorems' assumptions, and small versions of them."""

import math

import numpy as np

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import step_of
from paper_checks.checks.divergence import largest_gdp, least_epsilon, lemma_gdp
from paper_checks.checks.instances import DIMENSIONS, Array, spectrum
from paper_checks.registry import Finding, check
from paper_checks.tables import fact, printed


@check("toy-assumptions")
def _(full: bool) -> Finding:
    data, matrix = np.random.default_rng(101).normal(1, 1, size=(100, 20)), spectrum("c", 20)
    norms = [float(np.max(np.linalg.norm((s * np.eye(20)[0] - data) * matrix, axis=1))) for s in (0, 1e3, 1e6)]
    numbers = {"|grad f| at |x| = 0": norms[0], "at 1e6": norms[2]}
    return Finding(abs(norms[2] / 1e6 - 1) < 0.01 and norms[0] < norms[1] < norms[2], numbers=numbers)


def _trace(mode: str, norm: float, low: float, high: float) -> Finding:
    """Check the order of tr(A) that the paper states for a mode of its synthetic experiment (app:toy): tr(A) over d
    (mode a), sqrt(d) (b) or log d (c) lies in [low, high] for d = 20 to 10^7. The largest
    eigenvalue of A must be `norm`."""
    sizes = [*DIMENSIONS, 10**5, 10**7]
    exponents = {"a": lambda d: d, "b": math.sqrt, "c": math.log}
    ratios = [float(np.sum(spectrum(mode, d))) / exponents[mode](d) for d in sizes]
    top = max(float(np.max(spectrum(mode, d))) for d in sizes)
    numbers = {"least tr(A)/order": min(ratios), "largest": max(ratios)}
    return Finding(low <= min(ratios) and max(ratios) <= high and top == norm, numbers=numbers)


for _mode, _low, _high in (("a", 1.0, 1.0), ("b", 1.6, 2.0), ("c", 1.0, 1.3)):
    check(f"toy-trace-{_mode}")(
        lambda full, _mode=_mode, _low=_low, _high=_high: _trace(_mode, 1.0, _low, _high)  # type: ignore[misc]
    )


@check("toy-smoothing")
def _(full: bool) -> Finding:
    rng, d, lam = np.random.default_rng(102), 2000, 1e-4
    a, data, x = spectrum("a", d), rng.normal(1, 1, size=(50, d)), np.zeros(d)
    u = rng.standard_normal(d)
    u *= math.sqrt(d) / np.linalg.norm(u)
    exact = (x - data) @ (a * u)

    def difference(kind: type[np.floating]) -> Array:
        points = [(x + s * lam * u).astype(kind) for s in (1, -1)]
        plus, minus = (0.5 * np.sum((p - data.astype(kind)) ** 2 * a.astype(kind), axis=1, dtype=kind) for p in points)
        return np.asarray(((plus - minus) / kind(2 * lam)), dtype=float)

    errors = [float(np.max(np.abs(difference(kind) - exact))) for kind in (np.float64, np.float32)]
    return Finding(errors[0] < 1e-5, numbers={"float64 error": errors[0], "float32 error": errors[1]})


@check("search-privacy")
def _(full: bool) -> Finding:
    searched = len(printed("clips, DPZero"))
    each, total = (least_epsilon(math.sqrt(runs) * largest_gdp(2, 1e-5), 1e-5) for runs in (1, searched))
    return Finding(total <= 2, repaired=abs(each - 2) < 1e-6 and total > 5, numbers={"epsilon of all releases": total})


@check("mini-batch-outside")
def _(full: bool) -> Finding:
    n = printed("samples per class")[0] * fact("classes of SST-2")[0]
    batch, steps, delta = printed("batch")[0], int(printed("iterations, DPZero")[0]), 1e-5
    gdp = lemma_gdp(2, delta) * n / batch
    bare = least_epsilon(gdp, delta)
    release = step_of(
        2 * math.sqrt(steps) / gdp, steps, sampling="poisson", sample_rate=batch / n, relation="replace-one"
    )
    sampled = epsilon_of_history([release], delta)
    numbers = {"epsilon, sampling unknown": bare, "epsilon, Poisson sampling": sampled.value}
    return Finding(bare > 10 and sampled.upper < 2, numbers=numbers)
