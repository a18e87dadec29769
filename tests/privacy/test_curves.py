"""Tests that the curves of an answer hold the brackets of their points."""

import math

import numpy as np
import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.curves import delta_over_epsilon, epsilon_over_steps
from dpzero_theory.privacy.step import Release

RELEASE = Release(2.0, 7, sampling="poisson", relation="add-remove", sample_rate=0.05)


def test_a_curve_is_its_points():
    curve = epsilon_over_steps(RELEASE, [100, 10, 1000], 1e-5)
    for i, steps in enumerate((100, 10, 1000)):
        one = Release(2.0, steps, sampling="poisson", relation="add-remove", sample_rate=0.05)
        found = epsilon_of_history([one], 1e-5)
        assert (curve.x[i], curve.lower[i], curve.value[i], curve.upper[i]) == (
            steps,
            found.lower,
            found.value,
            found.upper,
        )
    levels = np.array([0.0, 0.5, 2.0])
    curve = delta_over_epsilon([RELEASE], levels)
    assert [tuple(row) for row in np.column_stack([curve.lower, curve.upper])] == [
        (found.lower, found.upper) for found in (delta_of_history([RELEASE], float(level)) for level in levels)
    ]
    assert np.all(np.diff(curve.value) < 0)
    assert curve.x.shape == curve.lower.shape == (3,)


def test_one_bad_point_is_named_before_anything_is_computed():
    for steps in ([10, 0], [2.5], [math.nan], ["ten"]):
        with pytest.raises(ValueError, match=r"^steps must be "):
            epsilon_over_steps(RELEASE, steps, 1e-5)
    with pytest.raises(ValueError, match=r"^delta must be "):
        epsilon_over_steps(RELEASE, [10], math.nan)
    with pytest.raises(ValueError, match=r"^epsilon must be "):
        delta_over_epsilon([RELEASE], [1.0, -1.0])
