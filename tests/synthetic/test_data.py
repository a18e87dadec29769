"""Tests of the data of the synthetic problems: their laws and layouts."""

import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.synthetic.data import gaussian_data


def test_gaussian_data_is_normal_with_mean_and_variance_one():
    """The synthetic data is normal with mean and variance 1.

    It is tested by Kolmogorov-Smirnov on 20,000 values, p > 1e-4; mean 0 is refused.
    """
    data = gaussian_data(np.random.default_rng(0), 200, 100)
    assert data.shape == (200, 100)
    assert stats.kstest(data.ravel(), stats.norm(1, 1).cdf).pvalue > 1e-4
    assert stats.kstest(data.ravel(), stats.norm(0, 1).cdf).pvalue < 1e-6


@pytest.mark.parametrize(("n", "d"), [(0, 1), (1, 0), (math.nan, 1), (1, "2")])
def test_gaussian_data_refuses_bad_sizes(n, d):
    with pytest.raises(ValueError, match="must be an integer"):
        gaussian_data(np.random.default_rng(0), n, d)


def test_gaussian_data_refuses_other_generators():
    with pytest.raises(ValueError, match="rng must"):
        gaussian_data(np.random, 1, 1)
