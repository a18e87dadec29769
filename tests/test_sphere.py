"""Tests of the laws of directions, by sampling and scipy.stats."""

import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory import sphere

FORM = {"sphere": 8 / 10 * (2 * 54 + 15 * 14), "gaussian": 2 * 54 + 15 * 14, "rademacher": 2 * 54 + 15 * 14 - 2 * 54}
"""E[(u^T a)^2 u^T H u] for the a and H below: a^T H a = 54, |a|^2 = 15, tr(H) = 14, and H is diagonal."""


@pytest.mark.parametrize("direction", sphere.DIRECTIONS)
def test_moments_agree_with_sampling(direction):
    """The moments agree with 200,000 draws in dimension 8, within 5 standard errors.

    The moment of another law of directions is more than 10 standard errors off.
    """
    rng = np.random.default_rng(1)
    a, h = np.array([3.0, -2, 1, 1, 0, 0, 0, 0]), np.diag([4.0, 3, 2, 1, 1, 1, 1, 1])
    u = sphere.DIRECTIONS[direction].sample(rng, 200_000, 8)
    sample = (u @ a) ** 2 * np.einsum("mi,ij,mj->m", u, h, u)
    error = sample.std() / math.sqrt(len(sample))
    for other, moment in FORM.items():
        distance = abs(sample.mean() - moment) / error
        assert distance < 5 if other == direction else distance > 10
    outer_error = np.abs(u.T @ u / len(u) - np.eye(8)).max()
    assert outer_error < 5 * math.sqrt(2 / len(u))
    assert np.abs(u.mean(axis=0)).max() < 5 / math.sqrt(len(u))


@pytest.mark.parametrize("d", [2, 3, 4, 30])
def test_sphere_samples_have_the_beta_law_in_any_direction(d):
    """Along any direction, samples from the sphere have the law with u_1^2/d ~ Beta(1/2, (d-1)/2).

    It is tested by Kolmogorov-Smirnov on 20,000 draws, p > 1e-4; for d <= 4 the normal law is refused at p < 1e-6.
    """
    rng = np.random.default_rng(2)
    u = sphere.DIRECTIONS["sphere"].sample(rng, 20_000, d)
    np.testing.assert_allclose(np.linalg.norm(u, axis=1), math.sqrt(d), rtol=1e-14)
    a = rng.standard_normal(d)
    first = u @ a / np.linalg.norm(a)
    assert stats.kstest(first**2 / d, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > 1e-4
    if d <= 4:
        assert stats.kstest(first, stats.norm.cdf).pvalue < 1e-6


rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda d=d: sphere.DIRECTIONS["sphere"].sample(rng, 1, d) for d in (0, 2.5, math.nan, "1", True, 10**400)),
        lambda: sphere.DIRECTIONS["sphere"].sample(rng, 0, 1),
        *(lambda law=law: sphere.DIRECTIONS[law].sample(rng, 1, 0) for law in ("gaussian", "rademacher")),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ValueError, match="must"):
        call()


def test_the_factors_of_the_table_solve_their_equations() -> None:
    q = stats.norm.ppf((np.arange(65536) + 0.5) / 65536)
    values = sphere._LINEAR * q + sphere._CUBIC * q**3
    assert np.mean(values**2) == pytest.approx(1, abs=1e-13)
    assert np.mean(values**4) == pytest.approx(3, abs=1e-12)
