"""Check Lemma lm:sphere and its proof: moments of a direction u that is uniform on the sphere of radius sqrt(d) in
R^d, most of them in exact rational arithmetic."""

import itertools
import math
from fractions import Fraction

import numpy as np
import sympy as sp
from scipy import stats

from dpzero_theory import sphere
from paper_checks.checks.instances import on_sphere, outer_moment
from paper_checks.registry import Disagreement, Finding, agree, check

_DIMENSIONS = (1, 2, 3, 4, 7, 20)


def moment(powers: tuple[int, ...], d: int) -> Fraction:
    """Return E[prod u_i^{p_i}] exactly, for u uniform on the sphere of radius sqrt(d) and p_i = powers[i].

    A Gaussian vector z has E[prod z_i^{p_i}] = E|z|^{2k} E[prod (z_i/|z|)^{p_i}], where 2k is the sum of the powers
    and E|z|^{2k} = d (d + 2) ... (d + 2k - 2). So the moment is d^k prod (p_i - 1)!! / (d (d + 2) ... (d + 2k - 2)),
    and 0 if some p_i is odd.
    """
    if any(p % 2 for p in powers):
        return Fraction(0)
    k = sum(powers) // 2
    double = math.prod(math.prod(range(1, p, 2)) for p in powers)
    return Fraction(d**k * double, math.prod(range(d, d + 2 * k, 2)))


def _counts(indices: tuple[int, ...], d: int) -> tuple[int, ...]:
    return tuple(indices.count(i) for i in range(d))


def _projected(a: list[Fraction], rest: tuple[int, ...]) -> Fraction:
    """Return E[(u^T a)^2 prod_{j in rest} u_j] exactly, for u uniform on the sphere of radius sqrt(d)."""
    d = len(a)
    pairs = itertools.product(range(d), repeat=2)
    return sum((a[i] * a[j] * moment(_counts((i, j, *rest), d), d) for i, j in pairs), Fraction(0))


def _vector(d: int) -> list[Fraction]:
    return [Fraction(3 * i - 4, i + 2) for i in range(1, d + 1)]


def exact_tail(c: float, d: int) -> float:
    """Return P(|u_1| >= c) for u uniform on the sphere of radius sqrt(d): u_1^2/d has the law Beta(1/2, (d-1)/2)."""
    return float(stats.beta.sf(c * c / d, 0.5, (d - 1) / 2))


@check("sphere-i-mean")
def _(full: bool) -> Finding:
    rng, size, worst = np.random.default_rng(12), 40_000, 0.0
    for d in (1, 2, 5, 40):
        u = sphere.DIRECTIONS["sphere"].sample(rng, size, d)
        mirror = 1 - 2 * np.eye(d)[rng.integers(d)]
        for draws in (u, u * mirror):
            spread = np.sqrt(np.mean(draws**2, axis=0) / size)
            worst = max(worst, float(np.max(np.abs(draws.mean(axis=0)) / spread)))
    return Finding(worst < 5, numbers={"largest z-score": worst})


@check("sphere-i-covariance")
def _(full: bool) -> Finding:
    holds = all(moment(_counts((i, j), d), d) == (i == j) for d in _DIMENSIONS for i in range(d) for j in range(d))
    return Finding(holds)


@check("sphere-ii-moments")
def _(full: bool) -> Finding:
    vectors = [_vector(d) for d in _DIMENSIONS]
    means = [sum(x * moment(_counts((i,), len(a)), len(a)) for i, x in enumerate(a)) for a in vectors]
    return Finding(not any(means) and all(_projected(a, ()) == sum(x * x for x in a) for a in vectors))


@check("sphere-iii-mean")
def _(full: bool) -> Finding:
    return Finding(
        all(
            sum(x * moment(_counts((i, j), d), d) for j, x in enumerate(_vector(d))) == _vector(d)[i]
            for d in _DIMENSIONS
            for i in range(d)
        )
    )


@check("sphere-iii-norm")
def _(full: bool) -> Finding:
    holds = True
    for d in _DIMENSIONS:
        a = _vector(d)
        total = sum((_projected(a, (i, i)) for i in range(d)), Fraction(0))
        holds &= total == d * sum(x * x for x in a)
    return Finding(holds)


def _outer(a: list[Fraction]) -> list[list[Fraction]]:
    """Return the right-hand side of the last statement of Lemma lm:sphere (iii), E[(u^T a)^2 u u^T] = d/(d+2) (2 a
    a^T + |a|^2 I)."""
    d, square = len(a), sum(x * x for x in a)
    return [[Fraction(d, d + 2) * (2 * a[i] * a[j] + (i == j) * square) for j in range(d)] for i in range(d)]


@check("sphere-iii-outer")
def _(full: bool) -> Finding:
    holds = True
    for d in _DIMENSIONS[:-1]:
        a = _vector(d)
        exact = [[_projected(a, (i, j)) for j in range(d)] for i in range(d)]
        holds &= exact == _outer(a)
        agree("outer_moment", outer_moment(np.array([float(x) for x in a])), np.array(exact, dtype=float))
    return Finding(holds)


@check("sphere-iii-offdiagonal")
def _(full: bool) -> Finding:
    a = [Fraction(1), Fraction(2), Fraction(3)]
    entry = _projected(a, (0, 1))
    weight = moment((2, 2, 0), 3)
    printed = sum((a[i] * a[j] * weight for i in range(3) for j in range(3) if i != j), Fraction(0))
    both_orders = 2 * a[0] * a[1] * weight
    return Finding(
        stated=printed == entry,
        repaired=both_orders == entry,
        numbers={
            "entry": float(entry),
            "printed sum": float(printed),
            "2 a_i a_j E[u_i^2 u_j^2]": float(both_orders),
        },
    )


@check("sphere-diagonal")
def _(full: bool) -> Finding:
    holds = True
    for d in _DIMENSIONS:
        a = _vector(d)
        w1, w2 = moment((4,), d), moment((2, 2), d)
        for i in range(d):
            others = sum(x * x for j, x in enumerate(a) if j != i)
            holds &= _projected(a, (i, i)) == a[i] ** 2 * w1 + others * w2
    return Finding(holds)


@check("sphere-fourth-moments")
def _(full: bool) -> Finding:
    d = sp.symbols("d", positive=True)

    def raw(k: int) -> sp.Expr:
        return d**k * sp.rf(sp.Rational(1, 2), k) / sp.rf(d / 2, k)

    w1 = sp.simplify(sp.expand_func(raw(2)))
    w2 = sp.simplify((d - w1) / (d - 1))
    holds = sp.simplify(w1 - 3 * d / (d + 2)) == 0 and sp.simplify(w2 - d / (d + 2)) == 0
    return Finding(bool(holds))


@check("sphere-fourth-sum")
def _(full: bool) -> Finding:
    holds = all(moment((4,), d) + (d - 1) * moment((2, 2), d) == d for d in range(1, 200))
    return Finding(holds)


@check("sphere-beta")
def _(full: bool) -> Finding:
    d = sp.symbols("d", positive=True)
    a, b = sp.Rational(1, 2), (d - 1) / 2
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    holds = sp.simplify(mean - 1 / d) == 0 and sp.simplify(variance - 2 * (d - 1) / (d**2 * (d + 2))) == 0
    rng, size, largest = np.random.default_rng(11), 20_000, 0.0
    for dimension in (2, 5, 60):
        u = sphere.DIRECTIONS["sphere"].sample(rng, size, dimension)
        if not np.allclose(np.linalg.norm(u, axis=1), math.sqrt(dimension), rtol=1e-12):
            raise Disagreement("directions on the sphere: |u| is not sqrt(d)")
        law = stats.beta(0.5, (dimension - 1) / 2)
        largest = max(largest, float(stats.kstest(u[:, -1] ** 2 / dimension, law.cdf).statistic))
    holds &= largest * math.sqrt(size) < 2.69
    return Finding(bool(holds), numbers={"sqrt(n) x KS distance": largest * math.sqrt(size), "threshold": 2.69})


@check("sphere-iv-trace")
def _(full: bool) -> Finding:
    holds = True
    for d in _DIMENSIONS:
        h = [[Fraction(2 * i - 3 * j + 1, i + j + 1) for j in range(d)] for i in range(d)]
        total = sum((h[i][j] * moment(_counts((i, j), d), d) for i in range(d) for j in range(d)), Fraction(0))
        holds &= total == sum(h[i][i] for i in range(d))
    return Finding(holds)


@check("sphere-iv-quadratic")
def _(full: bool) -> Finding:
    holds = True
    for d in _DIMENSIONS[:-1]:
        a = _vector(d)
        h = [[Fraction(2 * i - 3 * j + 1, i + j + 1) for j in range(d)] for i in range(d)]
        entries = itertools.product(range(d), repeat=2)
        exact = sum((h[i][j] * _projected(a, (i, j)) for i, j in entries), Fraction(0))
        form = sum((a[i] * h[i][j] * a[j] for i in range(d) for j in range(d)), Fraction(0))
        stated = Fraction(d, d + 2) * (2 * form + sum(x * x for x in a) * sum(h[i][i] for i in range(d)))
        holds &= exact == stated
    return Finding(holds)


@check("sphere-normalised-gaussian")
def _(full: bool) -> Finding:
    rng, size, worst = np.random.default_rng(3), 200_000, 0.0
    for d in (2, 6, 30):
        u = on_sphere(rng.standard_normal((size, d)))
        for powers in ((4,), (2, 2), (6,), (1, 1), (3, 1), (2,)):
            x = np.prod([u[:, i] ** p for i, p in enumerate(powers)], axis=0)
            spread = max(float(np.std(x)), 1e-12) / math.sqrt(size)
            worst = max(worst, abs(float(np.mean(x)) - float(moment(powers, d))) / spread)
    return Finding(worst < 5, numbers={"largest z-score": worst})
