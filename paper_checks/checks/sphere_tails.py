"""Check the paper's bounds on the tail P(|u^T a| >= C) for a direction u that is uniform on the sphere of radius
sqrt(d) (Lemma lm:sphere (ii), eq:tail-unit, sec:d-free) against the exact Beta law."""

import math

import mpmath
import numpy as np
import sympy as sp

from paper_checks.checks.sphere import exact_tail
from paper_checks.registry import Finding, check

_PAPER_TAIL = 2 * math.sqrt(2 * math.pi)


def _tail_grid() -> list[tuple[float, int]]:
    return [(c, d) for d in (2, 3, 5, 10, 100, 2000) for c in np.linspace(0, min(math.sqrt(d), 30), 121)]


@check("main-text-tail")
@check("sphere-ii-tail")
def _(full: bool) -> Finding:
    worst = max(exact_tail(c, d) / (_PAPER_TAIL * math.exp(-c * c / 8)) for c, d in _tail_grid())
    return Finding(worst <= 1, numbers={"largest exact/bound": worst})


@check("sphere-arccos")
def _(full: bool) -> Finding:
    t = sp.symbols("t", nonnegative=True)
    slope = sp.diff(t**2 / 2 + sp.cos(t) - 1, t)
    smallest = float(min(slope.subs(t, sp.Rational(k, 100)) for k in range(315)))
    holds = sp.simplify(slope - (t - sp.sin(t))) == 0 and slope.subs(t, 0) == 0 and smallest >= 0
    return Finding(bool(holds), numbers={"smallest t - sin t": smallest})


@check("sphere-tail-unit")
def _(full: bool) -> Finding:
    worst = 0.0
    for d in (2, 3, 5, 10, 100, 2000):
        for gamma in np.linspace(0, math.pi / 2, 200):
            bound = _PAPER_TAIL * math.exp(-d * gamma**2 / 8)
            angle = exact_tail(math.sqrt(d) * math.sin(gamma), d)
            linear = exact_tail(math.sqrt(d) * min(gamma, 1.0), d) if gamma <= 1 else 0.0
            worst = max(worst, angle / bound, linear / bound)
    return Finding(worst <= 1, numbers={"largest exact/bound": worst})


@check("sphere-worst-case-rare")
def _(full: bool) -> Finding:
    with mpmath.workdps(60):
        logs = [
            float(mpmath.log(mpmath.betainc(mpmath.mpf("0.5"), (d - 1) / mpmath.mpf(2), 0.25, 1, regularized=True)))
            for d in (50, 100, 200, 400)
        ]
    slopes = [(logs[i] - logs[i + 1]) / step for i, step in enumerate((50, 100, 200))]
    beyond = max(exact_tail(math.sqrt(d) * (1 + 1e-9), d) for d in (2, 50, 400))
    return Finding(min(slopes) > 0.1 and beyond == 0, numbers={"-slope of log P in d": min(slopes)})
