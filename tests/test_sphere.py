"""Tests of Lemma lm:sphere and of the tails of random directions.

The oracles are quadrature, enumeration, mpmath, scipy.stats and sampling.
"""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from dpzero_theory import sphere
from tests.quadrature import gaussian_rule, sign_rule, sphere_rule

RULES = {"sphere": sphere_rule, "gaussian": gaussian_rule, "rademacher": sign_rule}
exact = settings(deadline=None, derandomize=True, max_examples=60)
entries = st.floats(-10, 10).map(lambda x: round(x, 3))
dimensions = st.one_of(st.integers(1, 60), st.integers(1, 10**12))


@exact
@given(st.data(), st.integers(1, 5), st.sampled_from(list(sphere.DIRECTIONS)))
def test_moments_agree_with_quadrature(data, d, direction):
    a = data.draw(arrays(float, d, elements=entries))
    h = data.draw(arrays(float, (d, d), elements=entries))
    u, w = RULES[direction](d)
    dot, quadratic = u @ a, np.einsum("mi,ij,mj->m", u, h, u)

    def close(value, expected):
        scale = 1 + (a @ a) * (1 + np.abs(h).sum()) * d
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12 * scale)

    outer = sphere.projection_outer(a, direction)
    close(outer, np.einsum("m,mi,mj->ij", w * dot**2, u, u))
    close(np.trace(outer), w @ (dot**2 * (u**2).sum(1)))
    close(np.sum(outer * h), w @ (dot**2 * quadratic))
    w1, w2 = sphere.fourth_moments(d, direction)
    close(w1, w @ u[:, 0] ** 4)
    if d > 1:
        close(w2, w @ (u[:, 0] * u[:, 1]) ** 2)


@pytest.mark.parametrize("direction", sphere.DIRECTIONS)
def test_moments_agree_with_sampling(direction):
    """The moments agree with 200,000 draws in dimension 8, within 5 standard errors.

    The formula of another law of directions is more than 10 standard errors off.
    """
    rng = np.random.default_rng(1)
    a, h = np.array([3.0, -2, 1, 1, 0, 0, 0, 0]), np.diag([4.0, 3, 2, 1, 1, 1, 1, 1])
    u = sphere.DIRECTIONS[direction].sample(rng, 200_000, 8)
    sample = (u @ a) ** 2 * np.einsum("mi,ij,mj->m", u, h, u)
    error = sample.std() / math.sqrt(len(sample))
    for other in sphere.DIRECTIONS:
        distance = abs(sample.mean() - np.sum(sphere.projection_outer(a, other) * h)) / error
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
    u = sphere.sample_sphere(rng, 20_000, d)
    np.testing.assert_allclose(np.linalg.norm(u, axis=1), math.sqrt(d), rtol=1e-14)
    a = rng.standard_normal(d)
    first = u @ a / np.linalg.norm(a)
    assert stats.kstest(first**2 / d, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > 1e-4
    if d <= 4:
        assert stats.kstest(first, stats.norm.cdf).pvalue < 1e-6


def test_tail_formulas():
    assert sphere.paper_tail(3.0, 0.5) == pytest.approx(2 * math.sqrt(2 * math.pi) * math.exp(-4.5), rel=1e-15)
    assert sphere.subgaussian_tail(3.0, 0.5) == pytest.approx(2 * math.exp(-18), rel=1e-15)
    assert sphere.subgaussian_tail(1e300, 1e-300) == 0
    assert sphere.sphere_tail(1e300, 1e-300, 7) == 0
    assert sphere.sphere_tail(1.0, 1.0, 1) == 1
    assert sphere.sphere_tail(1.0 + 1e-12, 1.0, 1) == 0
    # In two dimensions a coordinate has the arcsine law.
    assert sphere.sphere_tail(1.0, 1.0, 2) == pytest.approx(0.5, rel=1e-14)
    # In three dimensions a coordinate has a uniform law.
    assert sphere.sphere_tail(1.0, 1.0, 3) == pytest.approx(1 - 1 / math.sqrt(3), rel=1e-14)


def tail(c: float, d: int) -> mp.mpf:
    """Returns P(|u_1| >= c) on the sphere in R^d in high precision.

    For small d it is the incomplete beta function, else quadrature in u_1.
    """
    with mp.workdps(400 if d < 400 else 40):
        x, n = mp.mpf(c), mp.mpf(d)
        b = (n - 1) / 2
        if d < 400:
            return mp.betainc(b, 0.5, 0, 1 - x * x / n) / mp.beta(0.5, b)
        power, at_c = (n - 3) / 2, 1 - x * x / n
        nodes = mp.linspace(x, min(mp.sqrt(n), x + (110 / x if x > 8 else 14)), 16)
        integral = mp.quad(lambda u: (abs(1 - u * u / n) / at_c) ** power, nodes)
        return 2 * integral * at_c**power / (mp.sqrt(n) * mp.beta(0.5, b))


@pytest.mark.parametrize("d", [2, 3, 4, 5, 10, 50, 199, 200, 1000, 3000, 10**6, 10**12])
def test_tail_to_twelve_digits(d):
    fractions = (0.9, 1 - 1e-6, 1 - 1e-12)
    cs = [0.0, 1e-3, 0.7, 1.5, 3.0, 8.0, 20.0, 36.5, *(f * math.sqrt(d) for f in fractions)]
    checked = 0
    for c in cs:
        if c * c >= d or c > 60:
            continue
        value, expected = sphere.sphere_tail(c, 1.0, d), tail(c, d)
        if expected < mp.mpf(10) ** -300:
            assert value < 1e-299
        else:
            assert abs(mp.mpf(value) / expected - 1) < 1e-12, c
            checked += 1
    assert checked >= 4


def test_arrays_agree_with_numbers():
    c = np.array([[0.0, 0.5, 1.0], [2.0, 5.0, 50.0]])
    for d in (1, 2, 7, 2000):
        tails = sphere.sphere_tail(c, 2.0, d)
        assert tails.shape == c.shape
        for i, x in np.ndenumerate(c):
            assert tails[i] == pytest.approx(sphere.sphere_tail(float(x), 2.0, d), rel=1e-14)
            assert isinstance(sphere.sphere_tail(float(x), 2.0, d), float)
    assert sphere.paper_tail(c, 2.0).shape == sphere.subgaussian_tail(c, 2.0).shape == c.shape


rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda d=d: sphere.sample_sphere(rng, 1, d) for d in (0, 2.5, math.nan, "1", True, 10**400)),
        lambda: sphere.sample_sphere(rng, 0, 1),
        lambda: sphere.sample_gaussian(rng, 1, 0),
        lambda: sphere.sample_rademacher(rng, 1, 0),
        lambda: sphere.fourth_moments(0),
        lambda: sphere.sphere_tail(1.0, 1.0, 0),
        *(lambda x=x: sphere.sphere_tail(x, 1.0, 5) for x in (math.nan, math.inf, -1.0, "1", None)),
        lambda: sphere.sphere_tail(1.0, math.nan, 5),
        lambda: sphere.sphere_tail(1.0, 0.0, 5),
        lambda: sphere.paper_tail(-1.0, 1.0),
        lambda: sphere.subgaussian_tail(1.0, -1.0),
        lambda: sphere.sample_sphere(np.random, 1, 5),
        lambda: sphere.fourth_moments(5, "cauchy"),
        *(lambda a=a: sphere.projection_outer(a) for a in ([1.0, math.nan], [[1.0]], [], ["a", "b"])),
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
