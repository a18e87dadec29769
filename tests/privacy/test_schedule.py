"""Batches that depend on one another: their laws are enumerated, and the same secret gives the same ones again."""

import hashlib
import itertools
import random
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.sampling import CyclicPoisson
from dpzero_theory.privacy.schedule import _below, _Bits, _subsets, allocation

SECRET = bytes(range(32))


class Words(_Bits):
    """A stream of the given 64-bit words, and no more."""

    def __init__(self, *words):
        self.given = list(words)

    def words(self, count):
        found, self.given = self.given[:count], self.given[count:]
        assert len(found) == count
        return np.array(found, "<u8")


def test_bits_are_those_of_the_hash_however_they_are_asked_for():
    whole = b"".join(
        hashlib.shake_256(SECRET + b"dpzero_theory epoch 3 " + number.to_bytes(8, "little")).digest(2**16)
        for number in range(2)
    )
    assert _Bits(SECRET, "epoch 3").words(2**14).tobytes() == whole
    pieces = _Bits(SECRET, "epoch 3")
    assert b"".join(pieces.words(n).tobytes() for n in (1, 9_000, 0, 7, 2**14 - 9_008)) == whole
    assert _Bits(SECRET, "epoch 4").words(8).tobytes() != whole[:64]
    assert _Bits(bytes(32), "epoch 3").words(8).tobytes() != whole[:64]


def test_what_is_beyond_the_last_multiple_is_drawn_again():
    """2^64 = 1 mod 3, so one word is too many; 2^64 = 0 mod 4, so none is."""
    assert _below(Words(5, 2**64 - 1, 2**64 - 2, 7), 3, 3).tolist() == [2, 1, 2]
    assert _below(Words(2**64 - 1, 6), 4, 2).tolist() == [3, 2]
    assert _below(Words(), 3, 0).tolist() == []


@pytest.mark.parametrize(("size", "taken"), [(5, 2), (5, 4), (4, 1), (3, 3)])
def test_sets_are_uniform(size, taken):
    """20,000 sets pass a chi-squared test at 1e-6; a law with one set more likely by a quarter fails it."""
    found = Counter(tuple(sorted(row)) for row in _subsets(_Bits(SECRET, "sets"), 20_000, size, taken).tolist())
    assert set(found) == set(itertools.combinations(range(size), taken))
    if len(found) > 1:
        counts = np.array(list(found.values()), dtype=float)
        assert stats.chisquare(counts).pvalue > 1e-6
        counts[0] *= 1.25
        assert stats.chisquare(counts).pvalue < 1e-6


def test_a_table_larger_than_is_filled_at_once_holds_sets():
    found = np.sort(_subsets(_Bits(SECRET, "sets"), 40, 2**20, 3), axis=1)
    assert (found[:, :-1] < found[:, 1:]).all()
    assert found.min() >= 0
    assert found.max() < 2**20
    assert len(np.unique(found)) > 110


def test_every_record_is_in_so_many_batches_of_every_epoch_and_independent_of_the_others():
    """For 24,000 records in two of four steps, the 36 pairs of sets of neighbouring records, and of epochs, pass a
    chi-squared test at 1e-6."""
    n = 24_000
    batches = allocation(SECRET, n, 4, 2)
    held = np.zeros((2, n, 4), dtype=np.int64)
    for release in range(8):
        held[release // 4, batches(release), release % 4] += 1
    assert held.max() == 1
    assert (held.sum(axis=2) == 2).all()
    one, two = held @ (1 << np.arange(4))
    for pairs in ((one[::2], one[1::2]), (one, two)):
        _, counts = np.unique(pairs, axis=1, return_counts=True)
        assert len(counts) == 36
        assert stats.chisquare(counts).pvalue > 1e-6


def test_the_secret_says_every_batch_in_any_order():
    whole = allocation(SECRET, 50, 7, 3)
    batches = [whole(release) for release in range(21)]
    for release in (20, 3, 3, 8, 0):
        assert np.array_equal(allocation(SECRET, 50, 7, 3)(release), batches[release])
        assert np.array_equal(whole(release), batches[release])
        assert (np.diff(batches[release]) > 0).all()
    other = allocation(bytes(32), 50, 7, 3)
    assert not all(np.array_equal(other(release), batches[release]) for release in range(7))


def test_groups_take_turns_and_are_independent_and_uniform():
    """For 18,000 records in three groups each is in one, and the nine pairs of neighbouring records' groups pass a
    chi-squared test at 1e-6."""
    n = 18_000
    turns = CyclicPoisson(1 / 3, 3).drawer(random.Random(5), SECRET, n)
    group = np.full(n, -1)
    for release in (3, 1, 2):
        assert (group[turns(release)] == -1).all()
        group[turns(release)] = release % 3
        assert np.array_equal(turns(release), turns(release + 300))
    _, counts = np.unique(group.reshape(-1, 2), axis=0, return_counts=True)
    assert len(counts) == 9
    assert stats.chisquare(counts).pvalue > 1e-6


def test_cyclic_batches_are_poisson_batches_of_the_group_whose_turn_it_is():
    """At rate 0.2 in three groups, 0.6 of a group's members are in its turn; 4,000 turns of each are within six
    standard deviations."""
    draw = CyclicPoisson(0.2, 3).drawer(random.Random(5), SECRET, 12)
    whole = CyclicPoisson(1 / 3, 3).drawer(random.Random(5), SECRET, 12)
    members = [set(whole(turn).tolist()) for turn in range(3)]
    assert set.union(*members) == set(range(12))
    assert sum(map(len, members)) == 12
    counts = np.zeros(12)
    for release in range(12_000):
        batch = draw(release)
        assert set(batch.tolist()) <= members[release % 3]
        counts[batch] += 1
    assert (np.abs(counts - 4000 * 0.6) < 6 * np.sqrt(4000 * 0.24)).all()
    assert CyclicPoisson(0.001, 1000).drawer(random.Random(5), SECRET, 2)(7).shape == (0,)
