import copy
import pickle

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.optim.step.sampler import Batches, BatchesFromSeedNotPrivate
from dpzero_theory.privacy.sampling import FixedSize, FullBatch, Poisson


def test_full_batches_hold_every_record() -> None:
    assert Batches(FullBatch(), 5).draw().tolist() == [0, 1, 2, 3, 4]
    assert Batches(Poisson(1.0), 5).draw().tolist() == [0, 1, 2, 3, 4]


def test_poisson_batches_hold_each_record_independently_with_the_rate() -> None:
    """In 20,000 batches of three records from a fixed seed, the eight sets pass a chi-squared test at 1e-6."""
    q, batches = 0.3, BatchesFromSeedNotPrivate(Poisson(0.3), 3, seed=1)
    counts = np.zeros(8)
    for _ in range(20_000):
        counts[sum(1 << int(record) for record in batches.draw())] += 1
    expected = [20_000 * q ** bin(s).count("1") * (1 - q) ** (3 - bin(s).count("1")) for s in range(8)]
    assert stats.chisquare(counts, expected).pvalue > 1e-6
    assert stats.chisquare(counts, np.roll(expected, 1)).pvalue < 1e-6


def test_fixed_size_batches_are_uniform() -> None:
    """In 20,000 pairs of five records from a fixed seed, the ten pairs pass a chi-squared test at 1e-6."""
    batches = BatchesFromSeedNotPrivate(FixedSize(0.4), 5, seed=2)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(20_000):
        drawn = tuple(batches.draw().tolist())
        assert len(set(drawn)) == 2
        counts[drawn] = counts.get(drawn, 0) + 1
    assert len(counts) == 10
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


def test_secret_batches_differ_and_cannot_be_copied() -> None:
    first, second = (Batches(Poisson(0.5), 1000) for _ in range(2))
    assert first.private
    assert not np.array_equal(first.draw(), second.draw())
    for copied in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="batches cannot be"):
            copied(first)
