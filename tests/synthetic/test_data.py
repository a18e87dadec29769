"""Tests of the data of the synthetic problems: their laws and layouts."""

import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.synthetic.data import gaussian_data, hashed_words


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


def test_hashed_words_count_words_and_append_a_constant():
    counts = hashed_words(["Good, GOOD film", "", "film"], 50)
    dense = counts.toarray()
    assert dense.shape == (3, 50)
    np.testing.assert_array_equal(dense[:, -1], 1)
    np.testing.assert_array_equal(dense[:, :-1].sum(axis=1), [3, 0, 1])
    film = int(dense[2, :-1].argmax())
    assert dense[0, film] == 1
    assert sorted(dense[0, :-1][dense[0, :-1] > 0]) == [1, 2]


def test_hashed_words_of_one_record_do_not_depend_on_the_others():
    """The hashed words of one record do not depend on the other records, as they would with a vocabulary."""
    alone = hashed_words(["a fine film"], 64).toarray()
    together = hashed_words(["other words entirely", "a fine film"], 64).toarray()
    np.testing.assert_array_equal(alone[0], together[1])


@pytest.mark.parametrize("d", [0, 1, 2.5, math.nan, "8", None])
def test_hashed_words_refuse_bad_dimensions(d):
    with pytest.raises(ValueError, match="d must be an integer"):
        hashed_words(["a"], d)
