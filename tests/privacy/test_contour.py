"""The integral in the complex plane: each of its bounds, and its answers, against independent sums and the grid."""

import math

import numpy as np
import pytest

from benchmarks.independent import independent_delta
from dpzero_theory.privacy import contour
from dpzero_theory.privacy.accountant import _cost_delta, _cost_epsilon
from dpzero_theory.privacy.grid import delta_bounds
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import Cost

EXTENDED = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floats")


def bracket(parts, epsilon):
    found = contour.answers(parts, epsilon)
    return found.lower(epsilon), found.upper(epsilon)


@EXTENDED
@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [
        ("remove", 1 / 16, 12.496428, 10_000, 2.0),
        ("add", 1 / 16, 12.496428, 10_000, 2.0),
        ("replace", 1 / 16, 24.99, 10_000, 2.0),
        ("remove", 0.008, 1.095375, 20_000, 6.0),
        ("add", 0.008, 1.095375, 20_000, 6.0),
        ("replace", 0.008, 1.742, 20_000, 6.0),
        ("add", 0.3, 2.0, 60, 1.0),
        ("replace", 0.05, 3.0, 300, 0.7),
        ("remove", 0.5, 40.0, 100_000, 5.0),
    ],
)
def test_delta_against_extended_precision(kind, q, s, steps, epsilon):
    value, error = independent_delta(kind, q, s, steps, epsilon)
    lower, upper = bracket(((Gaussian(kind, q, s), steps),), epsilon)
    assert error < 1e-10
    assert lower <= value * (1 + error)
    assert value * (1 - error) <= upper
    assert upper - lower <= 1e-4 * value


@pytest.mark.parametrize(
    ("q", "s", "steps", "epsilon", "value"),
    [(1e-3, 1.35787, 10_000, 0.5, 9.99553448526e-11), (7.2e-4, 0.649, 2_867, 0.358, 5.849630240e-4)],
)
def test_delta_where_the_saddle_lies_at_a_wall(q, s, steps, epsilon, value):
    # The values are those of `independent_delta` with its period 8/2.2 times as long, and certain to the last digit.
    lower, upper = bracket(((Gaussian("remove", q, s), steps),), epsilon)
    assert lower <= value <= upper <= lower * (1 + 1e-4)


def random_histories():
    drawn = np.random.default_rng(5)
    while True:
        steps, q = int(10 ** drawn.uniform(1, 6)), 10 ** drawn.uniform(-4, -0.05)
        mu = 10 ** drawn.uniform(-1.3, 0.8)
        s = drawn.uniform(0.8, 1.25) / math.sqrt(math.log1p(mu * mu / (q * q * steps)))
        parts = ((Gaussian(str(drawn.choice(["remove", "add", "replace"])), q, s), steps),)
        if drawn.random() < 0.3:
            parts += ((Gaussian(parts[0][0].kind, min(2 * q, 0.9), 1.5 * s), steps // 3 + 1),)
        epsilon = mu * mu / 2 + mu * drawn.uniform(0.5, 5)
        if contour.answers(parts, epsilon) is not None:
            yield parts, epsilon


def test_random_histories_agree_with_the_grid():
    """Both brackets hold the truth, so that they overlap, also where one integral serves epsilons around its own."""
    made = random_histories()
    asked = [next(made) for _ in range(15)]
    found = [contour.answers(*one) for one in asked]
    for (parts, epsilon), one in zip(asked, found, strict=True):
        for other in (epsilon, 0.95 * epsilon):
            grid = delta_bounds([parts], other)
            assert one.lower(other) <= grid.upper
            assert grid.lower <= one.upper(other)


def test_epsilon_and_delta_are_inverse():
    cost = Cost.of(Gaussian("remove", 0.02, 2.0), count=5_000) + Cost.of(Gaussian("remove", 0.05, 3.0), count=700)
    found = _cost_delta(cost, 1.3)
    assert contour.answers(cost.above[0], 1.3).upper(1.3) == found.upper
    at = _cost_epsilon(cost, found.upper)
    assert at.lower <= 1.3 * (1 + 1e-9)
    assert at.upper == pytest.approx(1.3, rel=1e-6)


def moments(law, tau, t):
    """Returns E_P e^{(tau + i t) L} for each t, as a sum over many outputs in extended precision."""
    s, q = np.longdouble(law.noise), np.longdouble(law.rate)
    x = np.arange(-14 * s - 12, 14 * s + 30, s / 100)

    def log_ratio(x):
        return np.log(1 - q + q * np.exp((2 * x - 1) / (2 * s * s)))

    log = log_ratio(x)
    loss = {"remove": log, "add": -log, "replace": log - log_ratio(-x)}[law.kind]
    log_p = -((x / s) ** 2) / 2 - np.log(2 * np.arccos(np.longdouble(-1))) / 2 - np.log(np.longdouble(100))
    mass = np.exp(log_p + (0 if law.kind == "add" else log) + tau * loss)
    return np.array([(mass * np.exp(1j * at * loss)).sum() for at in t])


@EXTENDED
@pytest.mark.parametrize(("kind", "q", "s"), [("remove", 0.05, 1.3), ("add", 0.3, 3.0), ("replace", 0.1, 2.0)])
def test_moments_and_their_decay_against_many_outputs(kind, q, s):
    """|M(tau + i t) - its sum| is within the errors that are claimed, and |M| within the bound for all later t."""
    tau, law, t = 6.0, Gaussian(kind, q, s), np.array([0.0, 3.0, 11.0, 25.0, 40.0, 70.0])
    one = contour._Moments(law, 1_000, 2 * tau, 80.0)
    (terms,), (log_m,) = one.log_terms(np.array([tau]))
    weights = np.exp(terms - log_m)
    claimed = sum(one.error(tau, weights)) + one.aliases(tau, t) + t * float(weights @ one.loss_error)
    exact = moments(law, tau, t) / np.exp(np.longdouble(log_m))
    found = np.array([(weights * np.exp(1j * np.longdouble(at) * one.loss)).sum() for at in t])
    assert np.all(np.abs(found - exact) <= claimed)
    assert np.all(claimed < 1e-10)
    decay = np.exp(one.decay(tau, float(log_m), t[1:]))
    for k in range(len(decay)):
        assert np.all(np.abs(exact[1 + k :]) <= decay[k])
    assert 0.2 * np.abs(np.log(np.abs(exact[2]))) < -np.log(decay[1])


def test_what_takes_too_many_nodes_is_left_to_the_grid():
    for law, steps in [(Gaussian("remove", 1.0, 20.0), 100), (Gaussian("fixed-size", 0.1, 2.0), 1000)]:
        assert contour.answers(((law, steps),), 1.0) is None
    assert contour.answers(((Gaussian("remove", 1e-6, 0.3), 2),), 1.0) is None
    assert contour.answers((), 1.0) is None


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_a_wrong_constant_is_seen(factor, monkeypatch):
    parts, epsilon = ((Gaussian("remove", 0.05, 3.0), 300),), 0.7
    right = bracket(parts, epsilon)
    original = Gaussian.losses
    contour.answers.cache_clear()
    monkeypatch.setattr(Gaussian, "losses", lambda *given: tuple(factor * each for each in original(*given)))
    wrong = bracket(parts, epsilon)
    contour.answers.cache_clear()
    assert wrong[1] < right[0] or right[1] < wrong[0]
