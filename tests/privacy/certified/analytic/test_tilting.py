"""Tests of the cumulant of the privacy loss against closed forms.

The moments of the tilted law are compared with quadrature.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build
from dpzero_theory.privacy.certified.analytic.tilting import cumulant, glanced, tilt
from dpzero_theory.privacy.certified.laws.pairs import Pair


def exact(kind: str, q: float, s: float, order: int) -> float:
    """Returns log E_Q (P/Q)^(order + 1) at an integer order, to 25 digits; for the kind "remove" it is a binomial sum.

    `kind` is the kind of the pair of laws P and Q, q the sampling rate and s the noise multiplier.
    """
    with mpmath.workdps(25):
        q, s = mpmath.mpf(q), mpmath.mpf(s)
        if kind == "remove":
            return float(mpmath.log(mpmath.fsum(
                mpmath.binomial(order + 1, k) * (1 - q) ** (order + 1 - k) * q**k
                * mpmath.exp((k * k - k) / (2 * s * s))
                for k in range(order + 2)
            )))  # fmt: skip
        mixture = lambda x: 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))  # noqa: E731
        edges = mpmath.linspace(-14 * s, 14 * s + 2 * order + 2, 25)
        if kind == "add":
            return float(mpmath.log(mpmath.quad(lambda x: mpmath.npdf(x, 0, s) * mixture(x) ** -order, edges)))
        return float(
            mpmath.log(
                mpmath.quad(lambda x: mpmath.npdf(x, 0, s) * mixture(x) ** (order + 1) * mixture(-x) ** -order, edges)
            )
        )


@pytest.mark.parametrize("order", [1, 7])
@pytest.mark.parametrize(("q", "s"), [(0.01, 1.0), (0.9, 8.0)])
@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
def test_the_cumulant_and_its_error(kind: str, q: float, s: float, order: int) -> None:
    value, error = cumulant(Pair(kind, q, s), float(order))
    known = exact(kind, q, s, order)
    assert abs(value - known) <= error + 1e-15 * abs(known)
    assert error < 1e-9 * max(abs(known), 1e-3)


@pytest.mark.parametrize("tau", [0.3, 2.0, 11.0])
def test_a_whole_batch_is_gaussian(tau: float) -> None:
    """With full batches the cumulant is that of a Gaussian release, K(tau) = tau (tau + 1) mu^2/2.

    Here mu = 1/s, and 2/s for replace-one, with the noise multiplier s.
    """
    for kind, gdp in (("remove", 0.25), ("add", 0.25), ("replace", 0.5)):
        value, error = cumulant(Pair(kind, 1 - 1e-15, 4.0), tau)
        assert value == pytest.approx(tau * (tau + 1) * gdp**2 / 2, rel=1e-12)
        assert error < 1e-10


@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
def test_moments_of_the_tilted_law(kind: str) -> None:
    """The mean and variance of the loss L under P e^{tau L} are the derivatives K' and K'' of its cumulant.

    They are computed by a fine sum over the outputs.
    """
    q, s, tau = 0.1, 1.5, 2.5
    pair = Pair(kind, q, s)
    part = tilt(build(pair, Contour(tau), math.log(1e-16)), 1, tau)
    x = np.linspace(-25, 35, 600_001)
    laws = {m: norm.pdf(x, m, s) for m in (-1, 0, 1)}
    used, other = ((1 - q) * laws[0] + q * laws[m] for m in (1, -1))
    p, law = {"remove": (used, laws[0]), "add": (laws[0], used), "replace": (used, other)}[kind]
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(p > 1e-290, np.log(p / law), 0.0)
    weight = p * np.exp(tau * loss)
    mean = float(weight @ loss / weight.sum())
    assert part.mean == pytest.approx(mean, rel=1e-9)
    assert part.variance == pytest.approx(float(weight @ (loss - mean) ** 2 / weight.sum()), rel=1e-8)
    assert float(part.weights.sum()) == pytest.approx(1.0, abs=1e-14)
    slope = (cumulant(pair, tau + 1e-4)[0] - cumulant(pair, tau - 1e-4)[0]) / 2e-4
    assert slope == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("tau", [0.3, 20.0, 150.0])
@pytest.mark.parametrize(("q", "s"), [(1e-3, 0.3), (0.02, 1.4), (0.2, 5.0)])
@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_a_glance_is_near_what_refined_panels_say(kind: str, q: float, s: float, tau: float) -> None:
    pair = Pair(kind, q, s)
    ((near,),) = (whole.kinds for whole in glanced(((pair, 1),), tau))
    part = tilt(build(pair, Contour(tau), -35.0), 1, tau)
    assert near.cumulant == pytest.approx(part.cumulant, rel=1e-4, abs=1e-9)
    assert near.mean == pytest.approx(part.mean, abs=1e-3 * (abs(part.mean) + math.sqrt(part.variance)))
    assert near.variance == pytest.approx(part.variance, rel=0.02)
    assert len(near.law.loss) < len(part.law.loss)


@pytest.mark.parametrize(("q", "s", "tau"), [(4.26e-6, 8.0, 2.0**20), (4.26e-6, 8.0, 2.0**24), (1e-6, 1.0, 2.0**20)])
def test_large_tilts_of_tiny_losses_take_few_nodes(q, s, tau):
    """Large tilts of tiny losses need few nodes.

    The losses are those of the kind "add", which are bounded. The trapezoid rule is exact here up to rounding.
    """
    pair = Pair("add", q, s)
    x = np.linspace(-20 * s, 20 * s, 40_001)
    log_a = np.log1p(q * np.expm1((2 * x - 1) / (2 * s * s)))
    exact = np.log(np.sum(np.exp(-(x**2) / (2 * s * s) - tau * log_a)) * (x[1] - x[0]) / (s * np.sqrt(2 * np.pi)))
    value, error = cumulant(pair, tau)
    assert abs(value - exact) <= error + 1e-11 * abs(exact)
    assert error < 1e-12
    assert len(build(pair, Contour(tau), -30.0).log_mass) < 20_000


def test_more_nodes_than_allowed_are_refused_before_they_are_made():
    with pytest.raises(OverflowError, match="too many quadrature panels"):
        cumulant(Pair("add", 0.01, 1.0), 1e9)
