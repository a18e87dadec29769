"""Tests of compositions on a grid, against closed forms, independent sums, and what a wrong constant would do."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from benchmarks.independent import independent_delta, lattice_delta
from dpzero_theory.privacy.grid import delta_bounds, epsilon_bounds
from dpzero_theory.privacy.laws import concentrated, epoch, integers, laplace, shifts, subset, zeroed
from dpzero_theory.privacy.laws.fourier import compose, spectrum
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import Span
from tests.privacy import oracle
from tests.privacy.oracle import closed_form, three

EXTENDED = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floats")


def delta(epsilon, *parts):
    return delta_bounds([parts], epsilon)


@pytest.mark.parametrize(
    ("kind", "q", "s", "epsilon"),
    [
        ("remove", 0.3, 2.0, 0.5),
        ("add", 0.3, 2.0, 0.2),
        ("replace", 0.3, 2.0, 0.5),
        ("fixed-size", 0.3, 2.0, 0.5),
        ("remove", 0.1, 0.3, 20.0),
        ("replace", 1e-3, 0.06, 150.0),
        ("remove", 1e-4, 0.5, 0.05),
        ("replace", 2e-5, 0.844, 0.01413),
    ],
)
def test_one_release_against_its_closed_form(kind, q, s, epsilon):
    # For epsilon >= 0 the law of fixed-size batches has the same deltas as "remove"
    exact = closed_form("remove" if kind == "fixed-size" else kind, q, s, epsilon)
    found = delta(epsilon, (Gaussian(kind, q, s), 1))
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 3e-3 * exact


@EXTENDED
@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [("remove", 1 / 16, 12.496428, 10_000, 2.0), ("add", 0.3, 2.0, 60, 1.0), ("replace", 0.05, 3.0, 300, 0.7)],
)
def test_composition_against_extended_precision(kind, q, s, steps, epsilon):
    value, error = independent_delta(kind, q, s, steps, epsilon)
    assert error < 1e-12
    parts = ((Gaussian(kind, q, s), steps),)
    found = delta(epsilon, *parts)
    assert found.lower <= value <= found.upper
    assert found.upper - found.lower < 2e-3 * value
    at = epsilon_bounds([parts], value)
    assert at.lower <= epsilon <= at.upper < (1 + 2e-4) * at.lower


@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [("remove", 1.150876e-5, 0.0587336, 28, 165.2811), ("replace", 5.564232e-5, 0.0538259, 3164, 180.722)],
)
def test_rare_events_against_a_tilted_lattice(kind, q, s, steps, epsilon):
    value, error = lattice_delta(kind, q, s, steps, epsilon)
    assert error < 1e-4
    found = delta(epsilon, (Gaussian(kind, q, s), steps))
    assert found.lower <= value * (1 + error)
    assert value * (1 - error) <= found.upper
    assert found.upper / found.lower - 1 < 3e-3


def two_removals(q, s, epsilon):
    """Returns delta_2(epsilon) of two releases as E_P delta_1(epsilon - L), with the closed form of delta_1 inside.

    L is the loss of the first release. The integral is over panels that end at the integrand's kink.
    """
    rate, noise, points = mpmath.mpf(q), mpmath.mpf(s), np.polynomial.legendre.leggauss(16)
    kink = float(0.5 + noise**2 * mpmath.log((mpmath.exp(epsilon) / (1 - rate) - 1 + rate) / rate))
    edges = np.sort(np.append(np.arange(-12 * s, 1 + 22 * s, s / 2), kink))
    total = mpmath.mpf(0)
    for low, high in itertools.pairwise(edges):
        for node, weight in zip(*points, strict=True):
            x = mpmath.mpf((low + high) / 2 + (high - low) / 2 * node)
            ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * noise**2))
            left = mpmath.mpf(epsilon) - mpmath.log(ratio)
            one = 1 - mpmath.exp(left) if mpmath.exp(left) <= 1 - rate else closed_form("remove", q, s, left)
            density = ratio * mpmath.exp(-(x**2) / (2 * noise**2)) / (noise * mpmath.sqrt(2 * mpmath.pi))
            total += (high - low) / 2 * weight * density * one
    return float(total)


@pytest.mark.parametrize(("q", "s", "epsilon"), [(3e-3, 2.5, 0.05), (1e-6, 0.8, 0.3)])
def test_two_releases_whose_delta_is_one_large_loss(q, s, epsilon):
    """Their deltas, 3e-16 and 1e-28, are far below what one tilt for small and large losses would resolve."""
    with mpmath.workdps(40):
        value = two_removals(q, s, epsilon)
    found = delta(epsilon, (Gaussian("remove", q, s), 2))
    assert found.lower <= value * (1 + 1e-9)
    assert value * (1 - 1e-9) <= found.upper < 1.01 * found.lower


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_ends_agree_across_grids_and_order(kind):
    """The same history as one kind twice as often, and as two kinds that are equal but for rounding."""
    one, other = Gaussian(kind, 0.05, 1.1), Gaussian(kind, 0.05, 1.1 * (1 + 1e-12))
    whole, halves = delta(0.8, (one, 80)), delta(0.8, (one, 40), (other, 40))
    assert max(whole.lower, halves.lower) <= min(whole.upper, halves.upper) * (1 + 1e-9)


@pytest.mark.parametrize(("kind", "q", "s"), [("remove", 0.06, 3.0), ("add", 0.2, 0.8), ("replace", 0.01, 0.5)])
def test_cells_keep_the_masses_of_both_laws(kind, q, s):
    tau, width = 1.7, 0.01
    found = Gaussian(kind, q, s).cells(Span(9.0, 9.0), tau, width, -100.0)
    losses = (found.first + np.arange(len(found.upper))) * width
    upper = found.upper * np.exp(found.log_scale - tau * losses)
    assert float(np.sum(upper)) == pytest.approx(1.0, abs=1e-12)
    assert float(upper @ np.exp(-losses)) == pytest.approx(1.0, abs=1e-9)
    assert float(np.sum(found.p * np.exp(found.log_scale - tau * losses))) == pytest.approx(1.0, abs=1e-12)
    assert float(np.sum(found.q * np.exp(found.log_scale - (1 + tau) * losses))) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_powers_of_laws_against_convolutions(count):
    rng = np.random.default_rng(count)
    one, other = (rng.dirichlet(np.ones(n)) for n in (9, 5))
    exact = np.array([1.0])
    for _ in range(count):
        exact = np.convolve(exact, one)
    exact = np.convolve(exact, other)
    law, wrong = compose([(spectrum(one, -3, 128), count), (spectrum(other, 2, 128), 1)], 2 - 3 * count)
    assert np.linalg.norm(law[: len(exact)] - exact) <= wrong < 1e-12
    assert law[len(exact) :].max() < wrong


def test_a_rare_jump_is_exact_to_rounding_of_the_jump():
    """The law of 10^9 variables that are 1 with probability 10^-9 is the Poisson law."""
    law, wrong = compose([(spectrum(np.array([1 - 1e-9, 1e-9]), 0, 64), 10**9)], 0)
    poisson = np.exp([-1 - math.lgamma(k + 1) for k in range(20)])
    assert np.abs(law[:20] - poisson).max() < 1e-8
    assert wrong < 1e-3


def _gaussian(monkeypatch, factor):
    original = Gaussian.losses

    def moved(self, branch, x):
        loss, log_a = original(self, branch, x)
        return loss, log_a + math.log(factor)

    monkeypatch.setattr(Gaussian, "losses", moved)
    found = delta(0.5, (Gaussian("remove", 0.3, 2.0), 1))
    return found.lower, closed_form("remove", 0.3, 2.0, 0.5), found.upper


def _listed(module, name, make, exact, epsilon):
    """Returns a check of a law whose helper `name` returns probabilities, which the check multiplies by a factor."""

    def checked(monkeypatch, factor):
        original = getattr(module, name)

        def moved(*given, **named):
            found = original(*given, **named)
            return (found[0] * factor, *found[1:]) if isinstance(found, tuple) else found * factor

        monkeypatch.setattr(module, name, moved)
        lower, _, upper = three(make(), epsilon)
        return lower, exact(epsilon), upper

    return checked


def _mixture(epsilon):
    x = np.linspace(-30, 40, 700_001)
    law = lambda m: np.exp(-(((x - m) / 2.0) ** 2) / 2) * (x[1] - x[0]) / (2.0 * math.sqrt(2 * math.pi))  # noqa: E731
    p = 0.81 * law(0) + 0.18 * law(1) + 0.01 * law(2)
    return float(np.maximum(p - math.exp(epsilon) * law(0), 0).sum())


def _zeroed(epsilon):
    x = np.linspace(-20, 22, 700_001)
    law = lambda m: np.exp(-(((x - m) / 1.5) ** 2) / 2) * (x[1] - x[0]) / (1.5 * math.sqrt(2 * math.pi))  # noqa: E731
    p, k = 0.8 * law(0) + 0.2 * law(2), 0.8 * law(0) + 0.2 * law(1)
    return float(np.maximum(p - math.exp(epsilon) * k, 0).sum())


def _epoch(epsilon):
    x = np.linspace(-9, 10, 4001)
    ratio = np.exp((2 * x - 1) / 2)
    base = np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    mean = (ratio[:, None] + ratio) / 2
    return float((np.outer(base, base) * np.maximum(mean - math.exp(epsilon), 0)).sum())


def _laplace(epsilon):
    return oracle.exact_delta(epsilon, [[oracle.laplace(4, 1.0, 0.3, "add-remove")[0]]])


def _integers(epsilon):
    return oracle.exact_delta(epsilon, [[oracle.discrete_gaussian(4, 4.0, 0.3, "add-remove")[0]]])


PLANTED = {
    "gaussian": _gaussian,
    "shifts": _listed(
        shifts,
        "normal_mass",
        lambda: shifts.mixture_pairs.__wrapped__(2.0, shifts.binomial_shifts(0.1, 2), replaced=False)[0],
        _mixture,
        0.2,
    ),
    "laplace": _listed(
        laplace, "_masses", lambda: laplace.laplace_pairs.__wrapped__(1.0, 0.3, 4, replaced=False)[0], _laplace, 0.2
    ),
    "zeroed": _listed(zeroed, "_beyond", lambda: zeroed.zeroed_pairs.__wrapped__(1.5, 0.2)[0], _zeroed, 0.1),
    "epoch": _listed(
        epoch,
        "normal_mass",
        lambda: epoch.epoch_pairs(1.0, 2, 2, replaced=False, reach=9.0, near=9.0, ratio=0.06)[0],
        _epoch,
        0.5,
    ),
}


@pytest.mark.parametrize("law", PLANTED)
def test_a_wrong_constant_in_a_law_is_seen(law, monkeypatch):
    """Masses wrong by a share of 0.02 move the bracket away from the truth, and right ones hold it."""
    lower, exact, upper = PLANTED[law](monkeypatch, 1.0)
    assert lower * (1 - 1e-4) <= exact <= upper * (1 + 1e-4)
    monkeypatch.undo()
    found = [PLANTED[law](monkeypatch, factor) for factor in (0.98, 1.02)]
    assert any(not lower * (1 - 1e-4) <= exact <= upper * (1 + 1e-4) for lower, exact, upper in found)


def test_a_wrong_parameter_of_the_other_laws_is_seen():
    """Noise wrong by 1% moves the bracket of a law away from the truth of the right noise."""
    right, wrong = (integers.discrete_pairs(s, 0.3, 4, replaced=False)[0] for s in (1.0, 1.01))
    exact = _integers(0.2)
    assert three(right, 0.2)[0] * (1 - 1e-9) <= exact <= three(right, 0.2)[2] * (1 + 1e-9)
    assert three(wrong, 0.2)[2] < exact
    # A zCDP step costs at least what Gaussian noise with this rho does, and one with a smaller rho less than that.
    gaussian = closed_form("remove", 1.0, 1.0, 1.0)
    assert three(concentrated.concentrated_pair(0.5, 0.0), 1.0)[2] >= gaussian
    assert three(concentrated.concentrated_pair(0.05, 0.0), 1.0)[2] < gaussian
    # Of two steps of an epoch the record is in one: k of t from below is at most the truth, and 5% less noise is more.
    known, less = (subset.subset_pairs(s, 3, 2, 3, replaced=False)[0] for s in (2.0, 1.7))
    assert three(known, 0.3)[0] < three(less, 0.3)[0]
