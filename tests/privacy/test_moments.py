"""Tests of answers at a delta so small that no sharper method resolves it.

They exist and hold, and calibrated noise meets its target.
"""

import math

import pytest
from scipy.special import log_ndtr

from dpzero_theory.privacy import accountant
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history, excess
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.moments import moment_delta, moment_epsilon
from dpzero_theory.privacy.step import Release

UNRESOLVED = [
    (0.1, 2, {"sampling": "truncated-poisson:500000/1000000", "relation": "zero-out", "sample_rate": 0.999}),
    (224.0, 1000, {"sampling": "fixed-size", "relation": "zero-out", "sample_rate": 0.999}),
]


@pytest.mark.parametrize(("noise", "steps", "drawn"), UNRESOLVED, ids=lambda value: str(value)[:40])
def test_epsilon_at_next_to_no_delta(noise: float, steps: int, drawn: dict) -> None:
    found = epsilon_of_history([Release(noise, steps, **drawn)], 1e-300)
    assert 0 <= found.lower <= found.upper
    # Without amplification the releases are mu-GDP, with shifts of two clips at most
    mu = 2 * math.sqrt(steps) / noise
    assert found.upper <= mu * (mu / 2 + math.sqrt(2 * math.log(1e300))) * 1.001
    assert 0 < delta_of_history([Release(noise, steps, **drawn)], found.upper).upper < 1e-298


def test_moments_of_full_batches_are_above_the_gaussian() -> None:
    plain = Release(2.0, 9, sampling="full", relation="add-remove")
    mu, epsilon = 1.5, 40.0
    exact = math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    assert exact <= moment_delta(plain.composition, epsilon) <= 1e5 * exact
    found = moment_epsilon(plain.composition, exact)
    assert epsilon <= found <= 1.05 * epsilon


def test_moments_of_sampled_batches_are_above_what_is_certified() -> None:
    sampled = Release(1.0, 50, sampling="poisson", relation="replace-one", sample_rate=0.05)
    for delta in (1e-5, 1e-12):
        sharp = epsilon_of_history([sampled], delta).upper
        assert sharp <= moment_epsilon(sampled.composition, delta) <= 1.5 * sharp


def test_a_calibrated_noise_keeps_next_to_no_delta() -> None:
    drawn = {"sampling": "fixed-size", "relation": "add-remove", "sample_rate": 0.125}
    found = calibrate_noise_multiplier(target_epsilon=1e-6, target_delta=1e-50, steps=1, **drawn)
    assert 3e6 < found.lower <= found.value == found.upper < 1.001 * found.lower
    assert excess([Release(found.value, 1, **drawn)], 1e-6, 1e-50) <= 0


def test_what_no_epsilon_takes_away_is_named() -> None:
    step = {"sampling": "poisson", "relation": "add-remove", "sample_rate": 0.5, "mechanism": "discrete-gaussian:1"}
    coarse = [Release(0.3, 2, **step)]
    least = moment_delta(accountant._reductions(coarse, 0.0)[0].above, 1e6)
    with pytest.raises(ValueError, match=r"delta must be at least .*; got 1e-300"):
        epsilon_of_history(coarse, 1e-300)
    assert epsilon_of_history(coarse, 2 * least).upper < math.inf
