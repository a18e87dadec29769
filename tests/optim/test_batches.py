"""Tests of the laws of batches that a run draws."""

import random

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.sampling import FixedSize, FullBatch, Poisson, Sampling


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(1.0)])
def test_full_batches_hold_every_record(sampling: Sampling) -> None:
    assert sampling.drawer(random.SystemRandom(), bytes(32), 5)(0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("sampling", "n"), [(Poisson(0.3), 3), (FixedSize(0.4), 5)])
def test_batches_have_the_law_of_their_sampling(sampling: Sampling, n: int) -> None:
    """20,000 batches from a fixed seed pass a chi-squared test at 1e-6: Poisson ones of three records are eight sets,
    and pairs of five records are ten equally likely ones."""
    draw, counts = sampling.drawer(random.Random(1), bytes(32), n), np.zeros(2**n)
    for number in range(20_000):
        counts[sum(1 << int(record) for record in draw(number))] += 1
    sizes = np.array([s.bit_count() for s in range(2**n)])
    q = sampling.sample_rate
    law = q**sizes * (1 - q) ** (n - sizes) if sampling.word == "poisson" else (sizes == 2) / 10
    assert not counts[law == 0].any()
    assert stats.chisquare(counts[law > 0], 20_000 * law[law > 0]).pvalue > 1e-6
    assert len(set(law[law > 0])) == 1 or stats.chisquare(counts, 20_000 * np.roll(law, 1)).pvalue < 1e-6
