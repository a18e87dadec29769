"""Tests of the contour engine: independent values lie in its bracket, and its error bounds hold.

Each error bound is compared with the error that it bounds.
"""

import math

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.independent import independent_delta
from dpzero_theory.privacy.certified.analytic import contour
from dpzero_theory.privacy.certified.analytic.contour import delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.gaussian import delta_from_gdp
from tests.privacy.oracle import closed_form

pytestmark = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the oracle needs 80-bit floats")

CASES = [
    ("remove", 1 / 16, 12.496428, 10_000, 2.0),
    ("add", 1 / 16, 12.496428, 10_000, 2.0),
    ("replace", 1 / 16, 24.92, 10_000, 2.0),
    ("remove", 0.001, 2.0, 10_000_000, 2.0),
    ("remove", 0.3, 2.0, 30, 1.0),
    ("add", 0.3, 2.0, 60, 1.0),
    ("remove", 0.01, 100.0, 1_000, 0.01),
    ("replace", 0.643, 1512.0, 7_330_952, 13.1),
]


@pytest.mark.parametrize(("kind", "q", "s", "steps", "epsilon"), CASES)
def test_bracket_holds_the_independent_value_and_is_narrow(kind, q, s, steps, epsilon):
    value, error = independent_delta(kind, q, s, steps, epsilon)
    assert error < 1e-14
    found = delta_bracket(epsilon, [(Pair(kind, q, s), steps)])
    room = 2 * error + 1e-15
    assert found.lower <= value * (1 + room)
    assert value * (1 - room) <= found.upper
    assert found.upper - found.lower < 1e-7 * value
    assert math.exp(found.log_value) == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize(
    ("kind", "q", "s", "epsilon", "width"),
    [
        ("remove", 0.3, 2.0, 0.5, 1e-8),
        ("add", 0.3, 2.0, 0.2, 1e-8),
        ("remove", 0.01, 1.0, 1.0, 1e-3),
        ("remove", 0.1, 0.3, 20.0, 1e-3),
    ],
)
def test_one_release_against_its_closed_form(kind, q, s, epsilon, width):
    exact = closed_form(kind, q, s, epsilon)
    found = delta_bracket(epsilon, [(Pair(kind, q, s), 1)])
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < width * exact


def test_two_releases_against_quadrature_over_the_first():
    """The delta of two releases agrees with quadrature over the loss L of the first one.

    It is delta_2(epsilon) = E_P[delta_1(epsilon - L)], with the closed form for one step inside.
    """
    q, s, epsilon = 0.3, 1.5, 0.4
    pair = Pair("remove", q, s)
    # The function delta_1(e) = 1 - e^e where e is below every loss, so there is a kink at the x with epsilon - L(x) =
    # log(1 - q)
    kink = 0.5 + s * s * math.log((math.exp(epsilon) / (1 - q) - 1 + q) / q)
    nodes, unit = np.polynomial.legendre.leggauss(200)
    x = np.concatenate([(kink - 14) / 2 + (kink + 14) / 2 * nodes, (kink + 18) / 2 + (18 - kink) / 2 * nodes])
    weights = np.concatenate([(kink + 14) / 2 * unit, (18 - kink) / 2 * unit])
    loss = pair.log_mixture(x)
    certain = math.log1p(-q)
    inner = [1 - math.exp(e) if e <= certain else closed_form("remove", q, s, e) for e in epsilon - loss]
    exact = float(np.sum(weights * norm.pdf(x, 0, s) * np.exp(loss) * np.array(inner)))
    found = delta_bracket(epsilon, [(pair, 2)])
    assert found.lower - 1e-12 <= exact <= found.upper + 1e-12
    assert found.upper - found.lower < 1e-4 * exact


def test_groups_compose_and_nearly_full_batches_are_gaussian():
    first, second = (Pair("remove", 0.05, 4.0), 700), (Pair("remove", 0.05, 4.0), 300)
    whole = delta_bracket(1.0, [(Pair("remove", 0.05, 4.0), 1000)])
    split = delta_bracket(1.0, [first, second])
    assert max(whole.lower, split.lower) <= min(whole.upper, split.upper)
    mixed = delta_bracket(1.0, [(Pair("remove", 0.05, 4.0), 1000)], gdp=0.4)
    assert mixed.lower > whole.upper
    # At q = 1 - 1e-12 the pair of laws is within 1e-12 T of the Gaussian one in total variation
    nearly = delta_bracket(2.0, [(Pair("remove", 1 - 1e-12, 50.0), 100)], gdp=0.3)
    assert nearly.value == pytest.approx(float(delta_from_gdp(2.0, math.hypot(0.2, 0.3))), rel=1e-6)


@pytest.mark.parametrize("factor", [0.1, 0.6, 1.3])
def test_brackets_from_different_contours_agree(monkeypatch, factor):
    parts = [(Pair("remove", 0.02, 1.2), 3000)]
    monkeypatch.setattr(contour, "_planned", contour._planned.__wrapped__)
    reference, saddle = delta_bracket(1.5, parts), contour.saddle
    monkeypatch.setattr(contour, "saddle", lambda *args: saddle(*args) * factor)
    moved = delta_bracket(1.5, parts)
    assert moved != reference
    assert max(moved.lower, reference.lower) <= min(moved.upper, reference.upper)


def test_too_many_nodes_are_refused():
    with pytest.raises(OverflowError, match="nodes"):
        delta_bracket(30.0, [(Pair("remove", 0.1, 0.3), 10)], budget=2e5)


def test_estimate_agrees_with_the_certified_value():
    parts = [(Pair("remove", 0.02, 1.2), 3000)]
    log_delta, _ = delta_estimate(1.5, parts)
    assert log_delta == pytest.approx(delta_bracket(1.5, parts).log_value, abs=1e-8)


def test_a_wrong_loss_would_be_seen(monkeypatch):
    """An error of 1e-9 in the privacy loss would move the value out of the bracket, so the tests here can fail."""
    value, _ = independent_delta("remove", 0.02, 1.2, 3000, 1.5)
    original = Pair.log_mixture
    monkeypatch.setattr(Pair, "log_mixture", lambda self, x: original(self, x) * (1 + 1e-9))
    found = delta_bracket(1.5, [(Pair("remove", 0.02, 1.2), 3000)])
    assert not found.lower <= value <= found.upper
