"""Random signs: what clipping removes from them, beside the bounds by Cauchy-Schwarz that these replace."""

import math

import numpy as np
import pytest

from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.constants import constants
from dpzero_theory.theory.sharp.projection import Projection
from dpzero_theory.theory.sharp.signs import removed

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


@pytest.mark.parametrize("k", [1, 2, 7, 64, 1024, 65536])
def test_never_above_the_bounds_that_they_replace(k: int) -> None:
    """Those are tau by the cubic bound on a grid of h, omega by Cauchy-Schwarz, and the product for the cross term.

    The grid of h is another one now, so that the bias may be larger by 0.3% where it is tau.
    """
    c = np.unique(np.concatenate([np.geomspace(0.02, 15, 60), 1 + np.linspace(-3, 14, 60) / math.sqrt(k)]))
    c = c[c > 0.02]
    law, r = Projection(k, math.inf), 8.178
    h = np.minimum(np.geomspace(0.02, 3.0, 24)[:, None] / math.sqrt(k), c)
    tau = np.sqrt(np.minimum((4 / 27 * law.excess(c - h, (3, 0))[0] / h).min(axis=0), 1))
    omega = (law.excess(c, (4, 0))[0] * (r * (r + 2) / k + (1 - 1 / k) * r)) ** 0.25
    found = constants(c, 2000, r, "rademacher", directions_per_step=k)
    assert np.all(found.bias <= 1.003 * tau)
    assert np.all(found.excess <= omega * (1 + 1e-12))
    assert np.all(found.cross <= found.spread * omega * (1 + 1e-12))
    beyond = c > 1 + 1 / math.sqrt(k)
    assert np.all(found.bias[beyond & (tau > 1e-140)] < 0.8 * tau[beyond & (tau > 1e-140)])
    assert np.all(found.excess[beyond & (omega > 1e-70)] < 0.75 * omega[beyond & (omega > 1e-70)])


@pytest.mark.parametrize("k", [1, 3, 32, 4096])
def test_finite_falling_and_above_the_gaussian_moments(k: int) -> None:
    """A Gaussian direction is the limit of signs along spread-out vectors, so no bound can be below its moments."""
    c = np.unique(np.concatenate([np.geomspace(1e-3, 30, 400), 1 + np.linspace(-3, 14, 400) / math.sqrt(k)]))
    c = c[c > 0]
    lost, law = removed(c, k), Projection(k, math.inf)
    inner, second, along = law.excess(c, (1, 1), (2, 0), (2, 2))
    for bound, exact, most in (
        (lost.inner, inner, 1.7),
        (lost.second, second, 1.5),
        (lost.along, along, 1.5),
        (lost.across, second / k, math.inf),
    ):
        assert np.all(np.isfinite(bound))
        assert np.all(bound >= 0)
        assert np.all(np.diff(bound)[c[:-1] > 0.1] <= 0)
        assert np.all(np.diff(bound) <= 0.002 * bound[:-1])  # few h and theta are tried
        assert np.all(bound >= exact * (1 - 1e-9))
        counted = (exact > 1e-250) & (c > 1)
        assert np.all(bound[counted] <= most * exact[counted])
