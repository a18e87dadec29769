"""Check what the paper says about how its bounds depend on the dimension d, the effective rank r and n: the
discussion of DPZero (sec:d-free), Table tab:compare, and the comparison with DP-GD. L-tilde is Theorem 3's L times
the root of a logarithm, and K = log(e + epsilon/delta)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import sympy as sp

from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp.certificate import prescribe
from paper_checks import formulas as f
from paper_checks.checks.instances import DIMENSIONS, spectrum
from paper_checks.registry import Finding, check
from paper_checks.tables import printed


@check("scalar-noise-gain")
def _(full: bool) -> Finding:
    scalar = (f.noise**2).subs(f.C, f.L * sp.sqrt(f.d)) * f.r * f.ell
    vector = (f.noise**2).subs(f.C, f.L * f.d) * f.r * f.ell
    gain = sp.simplify(scalar / vector)
    return Finding(sp.simplify(sp.sqrt(gain) - 1 / sp.sqrt(f.d)) == 0, numbers={"ratio of the noise terms": str(gain)})


@check("clip-threshold-gain")
def _(full: bool) -> Finding:
    ratio = f.L * sp.sqrt(f.d) / f.STATEMENTS["thm3"].C
    values = {d: f.value(ratio, {**f.SYNTHETIC, "d": d}) for d in (10**2, 10**4, 10**8, 10**12)}
    slope = math.log(values[10**12] / values[10**8]) / math.log(10**4)
    crossing = next(d for d in range(2, 10**5) if f.value(ratio, {**f.SYNTHETIC, "d": d}) > 1)
    numbers: dict[str, float | str] = {"power of d between 1e8 and 1e12": slope, "smaller from d =": crossing}
    return Finding(0.45 < slope < 0.5, numbers=numbers)


def _clips(scale: sp.Expr) -> list[float]:
    """Return Theorem 3's clip over `scale` on a grid of n and d from 100 to 1e12 and of r from 1 to d."""
    ratio = f.STATEMENTS["thm3"].C / scale
    return [
        f.value(ratio, {**f.SYNTHETIC, "n": 10.0**a, "d": 10.0**b, "r": 10.0 ** (b * c)})
        for a in range(2, 13, 2)
        for b in range(2, 13, 2)
        for c in (0, 0.5, 1)
    ]


@check("clip-order")
def _(full: bool) -> Finding:
    largest = max(_clips(f.L * sp.sqrt(sp.log(f.n * f.d)))) ** 2
    return Finding(largest < 60, numbers={"largest ratio": largest})


@check("clip-consistent-thm3")
def _(full: bool) -> Finding:
    values = _clips(f.L)
    return Finding(min(values) > 10 and max(values) < 100, numbers={"least C/L": min(values), "largest": max(values)})


@check("thm3-logarithmic")
def _(full: bool) -> Finding:
    sizes = [10.0**k for k in range(3, 16, 2)]
    settings = [{**f.SYNTHETIC, "d": d} for d in sizes]
    scale = sp.sqrt(f.r * f.K) / (f.n * f.eps)
    values = [f.value(f.STATEMENTS["thm3"].bound / scale, s) for s in settings]
    growth = (values[-1] - values[-2]) / (math.log(sizes[-1]) - math.log(sizes[-2]))
    return Finding(abs(growth / 64 - 1) < 1e-3, numbers={"growth per unit of log d, over L^2": growth})


@check("thm3-matches-dpgd")
def _(full: bool) -> Finding:
    ratio = (f.STATEMENTS["thm3"].bound / f.dpgd_bound()).subs(f.r, f.d)
    values = [f.value(ratio, {**f.SYNTHETIC, "d": 10.0**k}) for k in (2, 5, 8, 11)]
    steps = np.diff(values)
    logarithmic = bool(np.max(steps) / np.min(steps) < 1.2)
    return Finding(logarithmic, numbers={"ratio at d = 100": values[0], "ratio at d = 1e11": values[-1]})


@check("dpgd-match-exactly")
def _(full: bool) -> Finding:
    ratio = (f.STATEMENTS["thm3"].bound / f.dpgd_bound()).subs(f.r, f.d)
    near, far = (f.value(ratio, {**f.SYNTHETIC, "d": d, "n": n}) for d, n in ((20.0, 1e3), (1e12, 1e12)))
    return Finding(far / near < 1.5, repaired=far / near < 20, numbers={"ratio, small": near, "ratio, large": far})


@check("thm3-factor-d")
def _(full: bool) -> Finding:
    ratio = f.STATEMENTS["thm2"].bound / f.STATEMENTS["thm3"].bound
    at = f.value(ratio, f.SYNTHETIC)
    loss = f.value(f.d / ratio, f.SYNTHETIC)
    crossing = next(
        d
        for d in range(2, 5000)
        if f.value(ratio, {**f.SYNTHETIC, "d": d, "r": float(np.sum(1 / np.arange(1, d + 1)))}) > 1
    )
    large = [f.value(f.d / ratio, {**f.SYNTHETIC, "d": 10.0**k}) / math.log(10.0**k) for k in (6, 9, 12, 15)]
    numbers = {"Theorem 2/Theorem 3, d = 2000": at, "d over that": loss, "Theorem 3 is smaller from d =": crossing}
    return Finding(abs(at / 2000 - 1) < 0.1, repaired=max(large) / min(large) < 2, numbers=numbers)


@check("remark-thm3-noise")
def _(full: bool) -> Finding:
    statement = f.STATEMENTS["thm3"]
    noise = (f.noise**2).subs(f.C, statement.C).subs(f.T, statement.T) * f.r * f.ell
    values = [f.value(noise, {**f.SYNTHETIC, "d": 10.0**k}) for k in (3, 6, 9, 12)]
    steps = np.diff(values)
    return Finding(
        bool(np.ptp(steps) / np.mean(steps) < 0.02), numbers={"d = 1e12 over d = 1e3": values[-1] / values[0]}
    )


_CELLS: Mapping[str, tuple[str, sp.Expr, bool]] = {
    "dpgd0th-without": ("thm1", f.d * sp.sqrt(f.d), True),
    "dpgd0th-with": ("thm2", f.d * sp.sqrt(f.r), False),
    "dpzero-without": ("thm3", sp.log(f.d) * sp.sqrt(f.d), True),
    "dpzero-with": ("thm3", sp.log(f.d) * sp.sqrt(f.r), False),
    "dpgd-without": ("dpgd", sp.sqrt(f.d), True),
    "dpgd-with": ("dpgd", sp.sqrt(f.r), False),
}


def _cell(name: str) -> Finding:
    """Check the cell of Table tab:compare with this name: the bound divided by the order that the table prints varies
    by less than a factor of 4 over d from 1e3 to 1e24, with r = d (without low rank) or r = d^{1/3} (with it)."""
    id, order, full_rank = _CELLS[name]
    bound = f.dpgd_bound() if id == "dpgd" else f.STATEMENTS[id].bound
    points = [{**f.SYNTHETIC, "d": 10.0**k, "r": 10.0**k if full_rank else 10.0 ** (k / 3)} for k in range(3, 25, 3)]
    values = [f.value(bound / order, p) for p in points]
    spread = max(values) / min(values)
    return Finding(spread < 4, numbers={"spread of bound/order": spread})


for _name in _CELLS:
    check(f"table-compare-{_name}")(lambda full, _name=_name: _cell(_name))  # type: ignore[misc]


@check("table-compare-iterations")
def _(full: bool) -> Finding:
    product = sp.Symbol("p", positive=True)
    ratio = (product / f.STATEMENTS["thm3"].alpha) / (product * 2 * f.ell)
    return Finding(sp.simplify(ratio - 2 * (f.r + 2)) == 0, numbers={"ratio at r = 200": float(ratio.subs(f.r, 200))})


def _times_more(r: float) -> float:
    """Return how many times as many steps Theorem 3 makes as DP-GD with the step size 1/(2 ell), at effective rank r,
    if step size times number of steps is the same for both."""
    alpha = f.STATEMENTS["thm3"].alpha
    return f.value(1 / (2 * f.ell * alpha), {**f.SYNTHETIC, "r": r})


@check("iterations-o-r")
def _(full: bool) -> Finding:
    ratios = [_times_more(r) / r for r in (1.0, 2.0, 10.0, 200.0, 1e6)]
    cited = _times_more(printed("dimensions of RoBERTa")[0])
    observed = printed("iterations, DPZero")[0] / printed("iterations, first order")[0]
    holds = min(ratios) >= 2 and max(ratios) <= 6 and 1 < observed <= cited
    return Finding(holds, numbers={"theory at r = 200": cited, "observed": observed})


def _power(values: Sequence[float], sizes: Sequence[float]) -> float:
    """Return the power of the size with which the values grow, by the first and the last of them alone: log of the
    ratio of the values over log of the ratio of `sizes`."""
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def _sharp(d: int) -> Prescription:
    """Return the sharpened theorem's parameters and certified bound for DPGD-0th in dimension d, at r = 5, n = 1e8,
    mu = 0.2 of Gaussian differential privacy, and all other constants 1."""
    problem = Problem(n=10**8, d=d, r=5.0, lipschitz=1.0, smoothness=1.0, gap=1.0)
    return prescribe(problem, 0.2, algorithm="dpgd-0th")


@check("dpgd0th-persists")
def _(full: bool) -> Finding:
    sizes = [10.0**k for k in range(3, 10)]
    theorem = f.STATEMENTS["thm2"].bound
    low = [
        _power([f.value(theorem, {**f.SYNTHETIC, "d": d, "r": r}) for d in sizes], sizes) for r in (1.0, 10.0, 100.0)
    ]
    full_rank = _power([f.value(f.STATEMENTS["thm1"].bound, {**f.SYNTHETIC, "d": d}) for d in sizes], sizes)
    sharp = _power([_sharp(d).bound for d in (10**4, 10**6)], (1e4, 1e6))
    holds = max(abs(s - 1) for s in low) < 1e-9 and abs(full_rank - 1.5) < 1e-9 and sharp > 0.4
    numbers = {"power of d, Theorem 2": low[0], "Theorem 1": full_rank, "sharpened": sharp}
    return Finding(holds, numbers=numbers)


@check("onestep2-linear")
def _(full: bool) -> Finding:
    found = [_sharp(d) for d in (10**4, 10**6)]
    power, clip = (_power(values, (1e4, 1e6)) for values in ([p.bound for p in found], [p.clip for p in found]))
    numbers = {"power of d, certified bound": power, "power of d, its clip": clip}
    return Finding(power > 0.9, repaired=abs(power - 0.5) < 0.05 and abs(clip - 0.5) < 0.05, numbers=numbers)


@check("clip-high-probability")
def _(full: bool) -> Finding:
    s = f.STATEMENTS["thm3"]
    bound = f.tail_probability().subs({f.C0: s.C / sp.sqrt(2), f.T: s.T})
    closed = sp.sqrt(f.r * f.K) / (4 * f.n * f.eps * (f.d + 8 * f.ell * f.B * (f.r + 2) / f.L**2))
    same = all(abs(f.value(bound / closed, p) - 1) < 1e-9 for p in f.paper_points())
    largest = max(
        f.value(bound, {**f.SYNTHETIC, "d": d, "r": float(np.sum(spectrum(mode, d)))})
        for mode in "abc"
        for d in DIMENSIONS
    )
    return Finding(same and largest < 0.01, numbers={"largest P(any clipping)": largest})


@check("glm-match")
def _(full: bool) -> Finding:
    ratio = f.STATEMENTS["thm3"].bound / f.dpgd_bound()
    near, far = (f.value(ratio, {**f.SYNTHETIC, "r": 10, "d": d, "n": n}) for d, n in ((20.0, 1e3), (1e12, 1e12)))
    growth, logarithms = far / near, math.log(1e24) / math.log(2e4)
    numbers = {"ratio, small": near, "ratio, large": far, "ratio of log(n d)": logarithms}
    return Finding(growth < 1.5, repaired=0.5 < growth / logarithms < 1.5, numbers=numbers)
