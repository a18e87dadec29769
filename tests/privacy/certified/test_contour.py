"""The contour engine: independent values inside the bracket, and each error bound against the error it bounds."""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.independent import independent_delta
from dpzero_theory.privacy.certified import contour
from dpzero_theory.privacy.certified.characteristic import log_far
from dpzero_theory.privacy.certified.contour import delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.pairs import Pair
from dpzero_theory.privacy.certified.quadrature import Contour, build, decay
from dpzero_theory.privacy.certified.tilting import tilt
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
    assert found.lower <= value <= found.upper
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
    """delta_2(epsilon) = E_P[delta_1(epsilon - L)], with the one-step closed form inside."""
    q, s, epsilon = 0.3, 1.5, 0.4
    pair = Pair("remove", q, s)
    # delta_1(e) = 1 - e^e where e is below every loss: a kink at the x with epsilon - L(x) = log(1 - q)
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
    # at q = 1 - 1e-12 the pair is within 1e-12 T of the Gaussian one in total variation
    nearly = delta_bracket(2.0, [(Pair("remove", 1 - 1e-12, 50.0), 100)], gdp=0.3)
    assert nearly.value == pytest.approx(float(delta_from_gdp(2.0, math.hypot(0.2, 0.3))), rel=1e-6)


@pytest.mark.parametrize("factor", [0.1, 0.6, 1.3])
def test_brackets_from_different_contours_agree(monkeypatch, factor):
    parts = [(Pair("remove", 0.02, 1.2), 3000)]
    reference = delta_bracket(1.5, parts)
    monkeypatch.setattr(contour, "saddle", lambda *_: reference.tau * factor)
    moved = delta_bracket(1.5, parts)
    assert moved.tau != reference.tau
    assert max(moved.lower, reference.lower) <= min(moved.upper, reference.upper)


def test_too_many_nodes_are_refused():
    with pytest.raises(OverflowError, match="nodes"):
        delta_bracket(30.0, [(Pair("remove", 0.1, 0.3), 10)], budget=2e5)


@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
@pytest.mark.parametrize(("q", "s", "tau", "t", "angle"), [(0.06, 3.0, 2.0, 20.0, 0.0), (0.01, 0.9, 3.0, 40.0, 1.0)])
def test_quadrature_error_bounds_the_error(kind, q, s, tau, t, angle):
    pair = Pair(kind, q, s)
    contour = Contour(tau, t, t, angle)
    with mpmath.workdps(30):
        mixture = lambda x: 1 - q + q * mpmath.exp((2 * x - 1) / (2 * mpmath.mpf(s) ** 2))  # noqa: E731
        z = mpmath.mpc(tau, t)
        a = {"remove": 1 + z, "add": -z, "replace": 1 + z}[kind]
        integrand = lambda x: mpmath.npdf(x, 0, s) * mixture(x) ** a * (mixture(-x) ** -z if kind == "replace" else 1)  # noqa: E731
        exact = complex(mpmath.quad(integrand, mpmath.linspace(-13 * s, 13 * s + 2 * tau + 2, 60)))
    for tolerance in (-8.0, -16.0, -30.0):
        law = build(pair, contour, tolerance)
        loss, log_mass, *_ = law.shifted()
        found = complex(np.sum(np.exp(log_mass + (tau + 1j * t) * loss)))
        assert abs(found - exact) <= math.exp(law.quadrature_error(contour)) + 1e-13
    assert math.exp(law.quadrature_error(contour)) < 1e-11


@pytest.mark.parametrize(
    ("kind", "q", "s", "tau"), [("remove", 0.06, 3.0, 2.0), ("add", 0.2, 0.8, 5.0), ("replace", 0.01, 0.5, 8.0)]
)
def test_variation_and_decay_bounds_hold(kind, q, s, tau):
    pair = Pair(kind, q, s)
    law = build(pair, Contour(tau), -40.0)
    (low, high) = law.panels[0]
    x = np.linspace(low[0], high[-1], 400_001)
    branch = pair.branches[0]
    log_a, log_b = pair.log_mixture(x), pair.log_mixture(-x)
    loss = branch.a_slope * log_a + branch.b_slope * log_b
    weight = -x * x / (2 * s * s) + (branch.a + branch.a_slope * tau) * log_a + branch.b_slope * tau * log_b
    density = np.exp(weight)[1:-1] / (s * math.sqrt(2 * math.pi)) / np.abs((loss[2:] - loss[:-2]) / (x[2:] - x[:-2]))
    variation = float(np.abs(np.diff(density)).sum() + density[0] + density[-1])
    log_variation = law.log_variation(tau)
    assert math.log(variation) <= log_variation <= math.log(variation) + 0.3
    angles = [0.2, 0.5, 1.0]
    for t in (1.0, 10.0, 100.0):
        fine = build(pair, Contour(tau, 0.0, t), -40.0)
        terms = np.exp(fine.log_mass + (tau + 1j * t) * fine.loss)
        size = math.log(max(abs(terms.sum()) - 1e-13 * np.abs(terms).sum(), 1e-300))
        assert size <= float(decay(pair, tau, angles, np.array([t])).min()) + 1e-9
        assert size <= log_variation - math.log(t) + 1e-9


def test_estimate_agrees_with_the_certified_value():
    parts = [(Pair("remove", 0.02, 1.2), 3000)]
    log_delta, _ = delta_estimate(1.5, parts)
    assert log_delta == pytest.approx(delta_bracket(1.5, parts).log_value, abs=1e-8)


def test_a_wrong_loss_would_be_seen(monkeypatch):
    """Teeth: an error of 1e-9 in the loss moves the value out of the bracket."""
    value, _ = independent_delta("remove", 0.02, 1.2, 3000, 1.5)
    original = Pair.log_mixture
    monkeypatch.setattr(Pair, "log_mixture", lambda self, x: original(self, x) * (1 + 1e-9))
    found = delta_bracket(1.5, [(Pair("remove", 0.02, 1.2), 3000)])
    assert not found.lower <= value <= found.upper


def test_both_ways_of_summing_a_far_block_agree_within_their_bounds():
    """chi by differences (many steps) and by itself (few), and both against the nodes of the real line."""
    tau, t = 2.0, np.linspace(20.0, 40.0, 50)
    law = build(Pair("remove", 1e-3, 1.5), Contour(tau, 0.0, 40.0), math.log(1e-18))
    few, many = (tilt(law, steps, tau) for steps in (10, 10**6))
    direct, direct_error = log_far(few, tau, t, math.log(1e-18))
    differences, difference_error = log_far(many, tau, t, math.log(1e-18))
    change = np.exp(1j * t[:, None] * many.centred) @ many.weights
    gap = np.abs(np.expm1(differences - direct))
    assert np.all(gap <= direct_error + difference_error)
    assert np.all(np.abs(np.exp(differences) / change - 1) < 1e-12)
    assert difference_error.max() < 0.1 * direct_error.max()
