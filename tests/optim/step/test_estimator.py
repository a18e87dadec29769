"""Tests of the two-point difference and of clipping, and of Lemma lm:zero-grad by quadrature over directions."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpzero_theory.optim.step.algorithm import clip_scalars, clip_vectors
from tests.optim.reference import two_point_difference
from tests.quadrature import ball_rule, sphere_rule

exact = settings(deadline=None, derandomize=True, max_examples=60)
small = st.floats(-2, 2).map(lambda x: round(x, 3))
anything = st.floats(allow_nan=True, allow_infinity=True)


class Quartic:
    """The loss f(x) = sum_k c_k (b_k^T x + e_k)^k, k = 1..4, which quadrature of order 4 integrates exactly."""

    def __init__(self, coefficients, vectors, offsets):
        self.c, self.b, self.e = coefficients, vectors, offsets
        self.k = np.arange(1, 5)

    def __call__(self, points):
        return ((points @ self.b.T + self.e) ** self.k) @ self.c

    def gradient(self, points):
        return ((points @ self.b.T + self.e) ** (self.k - 1) * self.c * self.k) @ self.b


def estimator(f, x, smoothing, u):
    """Returns the two-point estimate g_lambda(x) of the gradient of f at x for each row of u, shape (m, d).

    lambda is `smoothing`.
    """
    difference = two_point_difference(f(x + smoothing * u), f(x - smoothing * u), smoothing)
    return difference[:, None] * u


@exact
@given(st.data(), st.integers(1, 4), st.floats(1e-3, 2))
def test_the_estimator_is_unbiased_for_the_smoothed_gradient(data, d, smoothing):
    """By Lemma lm:zero-grad (i) the estimator g_lambda is unbiased for the gradient of the smoothed loss f_lambda.

    E_u[g_lambda(x)] = grad f_lambda(x) = E_v[grad f(x + lambda v)], with v in the ball of radius sqrt(d).
    """
    f = Quartic(*(data.draw(arrays(float, shape, elements=small)) for shape in (4, (4, d), 4)))
    x = data.draw(arrays(float, d, elements=small))
    u, weights = sphere_rule(d)
    v, ball_weights = ball_rule(d)
    left = weights @ estimator(f, x, smoothing, u)
    right = ball_weights @ f.gradient(x + smoothing * v)
    scale = 1 + np.abs(f(x + smoothing * u)).max() / smoothing
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-11 * scale)


def test_a_smoothed_gradient_over_another_ball_is_refuted():
    """The identity of Lemma lm:zero-grad (i) needs the ball of radius sqrt(d): with the unit ball it fails."""
    f = Quartic(np.array([0, 0, 1.0, 0]), np.tile([1.0, 0, 0], (4, 1)), np.zeros(4))
    u, weights = sphere_rule(3)
    v, ball_weights = ball_rule(3)
    left = weights @ estimator(f, np.zeros(3), 0.5, u)
    np.testing.assert_allclose(left, ball_weights @ f.gradient(0.5 * v), atol=1e-14)
    assert abs(left - ball_weights @ f.gradient(0.5 * v / math.sqrt(3))).max() > 0.1


@exact
@given(st.data(), st.integers(1, 4), st.floats(1e-3, 20), st.floats(0.1, 3))
def test_bias_and_second_moment_bounds(data, d, smoothing, scale):
    """The bias and the second moment of the estimator meet the bounds of Lemma lm:zero-grad (ii).

    The loss is f(x) = a^T x + ell log cosh(b^T x) with ||b|| = 1, which is ell-smooth. Part (i) turns grad f_lambda
    into E[g_lambda]. The slack covers rounding and the quadrature rule of order 24.
    """
    a, b = (data.draw(arrays(float, d, elements=small)) for _ in range(2))
    x = data.draw(arrays(float, d, elements=small))
    assume(np.linalg.norm(b) > 0.1)
    b = b / np.linalg.norm(b)
    gradient = a + scale * math.tanh(b @ x) * b

    def f(points):
        t = np.abs(points @ b)
        return points @ a + scale * (t + np.log1p(np.exp(-2 * t)) - math.log(2))

    u, weights = sphere_rule(d, 24 if d < 4 else 10)
    g = estimator(f, x, smoothing, u)
    slack = 1e-9 * (1 + np.linalg.norm(gradient) + scale * smoothing)
    bias = np.linalg.norm(weights @ g - gradient)
    assert bias <= scale * smoothing * d**1.5 / 2 + slack
    second = weights @ (g**2).sum(axis=1)
    bound = 2 * d * gradient @ gradient + scale**2 * smoothing**2 * d**3 / 2
    assert second <= bound + slack * (1 + d * np.linalg.norm(gradient) + scale * smoothing)


def test_the_bias_bound_is_attained_in_one_dimension():
    """The bound on the bias is attained by f(x) = ell x|x|/2 at 0, where it is exactly ell lambda/2.

    So no smaller constant holds for all dimensions d.
    """
    ell, smoothing = 3.0, 0.25
    u, weights = sphere_rule(1)
    g = estimator(lambda points: ell * (points * np.abs(points))[:, 0] / 2, np.zeros(1), smoothing, u)
    assert np.linalg.norm(weights @ g) == pytest.approx(ell * smoothing / 2, rel=1e-15)


@exact
@given(arrays(float, 5, elements=anything), st.floats(1e-300, 1e300))
def test_scalar_clip(values, clip):
    clipped = clip_scalars(values, clip)
    assert (np.abs(clipped) <= clip).all()
    for before, after in zip(values, clipped, strict=True):
        if math.isnan(before):
            assert after == 0
        elif abs(before) <= clip:
            assert after == before
        else:
            assert after == math.copysign(clip, before)


@exact
@given(arrays(float, (4, 3), elements=anything), st.floats(1e-3, 1e3))
def test_vector_clip_of_any_rows(rows, clip):
    clipped = clip_vectors(rows, clip)
    for before, after in zip(rows, clipped, strict=True):
        if not np.isfinite(before).all():
            np.testing.assert_array_equal(after, 0)
            continue
        norm = math.hypot(*before)
        assert math.hypot(*after) <= min(clip, norm) * (1 + 1e-14)
        if norm < clip * (1 - 1e-14):
            np.testing.assert_allclose(after, before, rtol=1e-15, atol=0)
        elif 1e-290 < norm < 1e290:
            np.testing.assert_allclose(after, before * (clip / norm), rtol=1e-13, atol=1e-300)
