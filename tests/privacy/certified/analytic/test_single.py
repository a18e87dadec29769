"""Tests of one release in closed form: evaluations to 60 digits lie inside the bracket, down to the smallest deltas."""

import math

import mpmath
import numpy as np
import pytest

from dpzero_theory.privacy.certified.analytic.single import single_delta
from dpzero_theory.privacy.certified.laws.pairs import Pair


def exact(kind: str, q: float, s: float, epsilon: float) -> mpmath.mpf:
    """Returns delta(epsilon) of one release by the half-line of Neyman and Pearson, whose end is found by bisection.

    `kind` is the kind of pair of laws, q the sampling rate and s the noise multiplier.
    """
    rate, noise, ratio = mpmath.mpf(q), mpmath.mpf(s), mpmath.exp(mpmath.mpf(epsilon))

    def above(c: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(c / (noise * mpmath.sqrt(2))) / 2

    def mixture(x: mpmath.mpf) -> mpmath.mpf:
        return 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * noise**2))

    def below(c: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(-c / (noise * mpmath.sqrt(2))) / 2

    if kind == "remove":
        c = mpmath.mpf(1) / 2 + noise**2 * mpmath.log((ratio - 1 + rate) / rate)
        return (1 - rate) * above(c) + rate * above(c - 1) - ratio * above(c)
    if kind == "add":
        c = mpmath.mpf(1) / 2 + noise**2 * mpmath.log((1 / ratio - 1 + rate) / rate)
        return below(c) - ratio * ((1 - rate) * below(c) + rate * below(c - 1))
    low, high = mpmath.mpf(-1), 1 + 2 * noise**2 * (mpmath.log(1 / rate) + epsilon + 2)
    for _ in range(250):
        c = (low + high) / 2
        low, high = (c, high) if mixture(c) < ratio * mixture(-c) else (low, c)
    return (1 - rate) * above(c) + rate * above(c - 1) - ratio * ((1 - rate) * above(c) + rate * above(c + 1))


@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
def test_sixty_digits_are_in_the_bracket(kind):
    rng = np.random.default_rng(5)
    resolved = 0
    with mpmath.workdps(60):
        for _ in range(60):
            q, s = float(10 ** rng.uniform(-7, 0)), float(10 ** rng.uniform(-1.2, 2))
            epsilon = float(10 ** rng.uniform(-3, math.log10(200)))
            if kind == "add":
                epsilon = -math.log1p(-q) * rng.uniform(0.01, 0.999)
            value = exact(kind, q, s, epsilon)
            if not value > 1e-40:
                continue
            found = single_delta(epsilon, Pair(kind, q, s))
            assert found.lower <= value <= found.upper
            assert found.upper / found.lower - 1 < 1e-3
            resolved += 1
    assert resolved >= 15


@pytest.mark.parametrize(
    ("kind", "q", "s", "epsilon"),
    [("replace", 0.3, 0.3, 100.0), ("replace", 0.3, 0.3, 200.0), ("remove", 0.01, 1.0, 30.0)],
)
def test_deltas_far_out(kind, q, s, epsilon):
    """Deltas far out are in the bracket; one of them is below every floating-point number."""
    with mpmath.workdps(800):
        value = exact(kind, q, s, epsilon)
        found = single_delta(epsilon, Pair(kind, q, s))
        assert found.lower <= value <= found.upper
        log_value = float(mpmath.log(value)) if value > 1e-320 else -math.inf
        assert found.log_value == pytest.approx(log_value, rel=1e-6)
    assert found.upper > 0


def test_wrong_masses_would_be_seen(monkeypatch):
    """Normal tails wrong by 1e-7 would move the value out of the bracket, so the tests here can fail."""
    from dpzero_theory.privacy.certified.analytic import single

    original = single.log_ndtr
    monkeypatch.setattr(single, "log_ndtr", lambda z: original(z) + 1e-7)
    found = single_delta(0.5, Pair("remove", 0.3, 2.0))
    with mpmath.workdps(60):
        assert not found.lower <= exact("remove", 0.3, 2.0, 0.5) <= found.upper
