"""Tests of the finite law that replaces the law of a privacy loss: each error bound against the error it bounds."""

import math

import mpmath
import numpy as np
import pytest

from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build, decay
from dpzero_theory.privacy.certified.laws.pairs import Pair
from tests.privacy.certified.analytic.test_variation import log_variation


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
        # The trapezoid rule's error for functions that are analytic near the line falls as e^{-c/step}, here below
        # 1e-28
        step = mpmath.mpf(s) / 16
        points = range(-13 * 16, math.ceil((13 * s + 2 * tau + 2) / float(step)))
        exact = complex(step * mpmath.fsum(integrand(k * step) for k in points))
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
    log_size = log_variation(law, tau)
    assert math.log(variation) <= log_size <= math.log(variation) + 0.3
    angles = [0.2, 0.5, 1.0]
    for t in (1.0, 10.0, 100.0):
        fine = build(pair, Contour(tau, 0.0, t), -40.0)
        terms = np.exp(fine.log_mass + (tau + 1j * t) * fine.loss)
        size = math.log(max(abs(terms.sum()) - 1e-13 * np.abs(terms).sum(), 1e-300))
        assert size <= float(decay(pair, tau, angles, np.array([t])).min()) + 1e-9
        assert size <= log_size - math.log(t) + 1e-9
