"""What records do to releases, by quiet runs on data sets that differ in one record or consist of equal ones."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.runs import SEED, LoopRuns, norms, stacked
from dpzero_theory.check import Array

_MANY_SEEDS = range(1100, 1132)  # Seeds that make different directions, along which the pair is compared
_MOST_RECORDS = 256  # The largest number of records that are exchanged one by one
_FEWEST_SEEDS, _MOST_SEEDS = 8, 60  # How many runs, at least and at most, show the sizes of batches
_LOUD = 0.5  # What each of equal records must add to a step, in clips, for the sum to show how many they are
_VISIBLE = 0.05
"""A record was in a batch where exchanging it moves the step by this share of what the pair moves every step."""
_ENOUGH_NUMBERS = 4  # Releases on data of two sizes are compared where they have this many numbers
_NEARLY_EQUAL = 1e-5  # Relative difference below which two lengths, or two directions, count as equal


class ExtremePair(NamedTuple):
    """Two records to exchange for one another; `size` is how far apart they move every step at least, in clips."""

    first: Any
    second: Any
    size: float


class Scan(NamedTuple):
    """What exchanging the pair did, in the place of each record in turn.

    moved: how far each step moved, in clips, of shape (seeds, steps, records), with batches drawn as claimed.
    size: `ExtremePair.size`.
    whole: the same with all records in every batch and the first record exchanged, of shape (seeds, steps).
    """

    moved: Array
    size: float
    whole: Array

    @property
    def included(self) -> NDArray[np.bool_]:
        """Whether each record was in each batch, of the shape of `moved`.

        The denominator of a step may be up to twenty times that of all records, so a twentieth of the move is enough.
        """
        return np.asarray(self.moved > self.size * _VISIBLE)


class Influence:
    """What records do to the releases of one loop.

    Each experiment is made when it is first asked for.
    """

    def __init__(self, runs: LoopRuns, most_runs: int) -> None:
        self._runs, self._most_runs = runs, most_runs
        self._loop, self._n, self._all = runs.loop, runs.claim.n, runs.all_records

    @cached_property
    def pair(self) -> ExtremePair | None:
        """The two records that, exchanged for one another, move every step the most; None where none moves them.

        All records are in every batch. Of pairs that move as much the one of larger numbers is taken, because it is the
        surest to be clipped.
        """
        tried = sorted(self._extremes, key=lambda one: max(map(abs, datasets.numbers(one[0])), default=0.0))
        best: ExtremePair | None = None
        for i, (first, here) in enumerate(tried):
            for second, there in tried[:i]:
                size = float(norms(here - there).min()) / self._runs.unit_of_all
                if size > (best.size * (1 - _NEARLY_EQUAL) if best else _NEARLY_EQUAL):
                    best = ExtremePair(first, second, size)
        return best

    @cached_property
    def _extremes(self) -> list[tuple[Any, Array]]:
        """Each record that the loop accepts, with the quiet releases where it is in the first and in the last place."""
        accepted: list[tuple[Any, Array]] = []
        if self._runs.repeatable is None:
            return accepted
        for record in datasets.extremes(self._loop.records):
            rows = [
                self._runs.quiet(datasets.replaced(self._loop.records, index, record), **self._all) for index in (0, -1)
            ]
            if all(row is not None and np.isfinite(row).all() for row in rows):
                accepted.append((record, np.concatenate(rows)))  # type: ignore[arg-type]
        return [one for one in accepted if one[1].shape == accepted[0][1].shape]

    @cached_property
    def with_one_less(self) -> float | None:
        """What a record adds to a release when the data has one record less, over what it adds otherwise.

        The ratio is 1 where the denominator is a constant and n/(n - 1) where it counts the records. It is None where
        it cannot be measured: with one record less the same seed may make other directions. The directions are the same
        where exchanging the records of the pair changes all steps alike, up to a factor, at both sizes of the data.
        """
        if self.pair is None or self._n < 3:
            return None
        data = datasets.replaced(datasets.replaced(self._loop.records, 0, self.pair.first), 1, self.pair.second)
        other = datasets.replaced(data, 0, self.pair.second)
        worlds = (data, other, datasets.removed(data, 1), datasets.removed(data, 0))
        rows = [self._runs.quiet(world, **self._all) for world in worlds]
        if any(row is None or not np.isfinite(row).all() for row in rows):
            return None
        large, small = (np.asarray(rows[k]) - np.asarray(rows[k + 1]) for k in (0, 2))
        if large.shape != small.shape or large.size < _ENOUGH_NUMBERS:
            return None
        product = norms(large.ravel()) * norms(small.ravel())
        if not product > 0 or float(large.ravel() @ small.ravel()) < (1 - _NEARLY_EQUAL) * product:
            return None
        return float(norms(small.ravel()) / norms(large.ravel()))

    @cached_property
    def loudest(self) -> Records | None:
        """The data set of equal records with the largest sum in every step.

        It is None where each of the records adds less than half a clip, whatever the record is.
        """
        best, data = _LOUD * self._n, None
        for record, _ in self._extremes:
            alike = datasets.filled(self._loop.records, record)
            rows = self._runs.quiet(alike, **self._all)
            size = 0.0 if rows is None else float(norms(rows).min()) / self._runs.unit_of_all
            if size > best and np.isfinite(size):
                best, data = size, alike
        return data

    @cached_property
    def shares(self) -> Array | None:
        """The length of each release on the loudest data over its length with all records in the batch.

        Shape (seeds, steps); None where it cannot be measured. Where a release is a sum over a constant its share is
        the size of the batch over that constant, which is the expected batch for averages and n for plain sums. Where a
        release is an average over its own batch the share is 1. A share is NaN where the seed's directions leave little
        of the records. The first seeds are those of `scan`.
        """
        data, count = self.loudest, min(max(self._most_runs // 2, _FEWEST_SEEDS), _MOST_SEEDS)
        if data is None:
            return None
        seeds = range(SEED, SEED + count)
        of_whole = [seeds[0]] * count if self._runs.same_for_all_seeds else seeds
        full = [self._runs.quiet(data, seed=seed, **self._all) for seed in dict.fromkeys(of_whole)]
        full *= count // len(full)
        part = [self._runs.quiet(data, seed=seed) for seed in seeds]
        if any(rows is None or rows.shape != full[0].shape for rows in [*full, *part]):  # type: ignore[union-attr]
            return None
        whole = norms(np.array(full))
        loud = whole > _LOUD * self._n * self._runs.unit_of_all
        return np.asarray(np.divide(norms(np.array(part)), whole, out=np.full(whole.shape, np.nan), where=loud))

    @cached_property
    def scan(self) -> Scan | None:
        """What exchanging each record in turn does, with batches as claimed; None where that says nothing.

        It says nothing where batches do not come from the seed, where there are more than 256 records, and where along
        some directions no record moves a step.
        """
        runs, n = self._runs, self._n
        if runs.repeatable != {} or self.pair is None or not runs.frozen:
            return None
        if len(self._loop.records) != n or n > _MOST_RECORDS:
            return None
        if not runs.same_for_all_seeds:
            along = stacked([self._moved(0, seed, **self._all) for seed in _MANY_SEEDS], runs.unit_of_all)
            if along is None or (along <= self.pair.size * _VISIBLE).any():
                return None
        seeds = range(SEED, SEED + max(1, min(4, 2 * self._most_runs // n)))
        each = [stacked([self._moved(index, seed) for index in range(n)], runs.unit({})) for seed in seeds]
        whole = [self._moved(0, seed, **self._all) for seed in seeds]
        moved, same_seeds = stacked(each, 1.0), stacked(whole, runs.unit_of_all)
        if moved is None or same_seeds is None:
            return None
        return Scan(moved.transpose(0, 2, 1), self.pair.size, same_seeds)

    def _moved(self, index: int, seed: int, **changes: Any) -> Array | None:
        """How far each step moves when the pair's records are exchanged at this index, not yet in clips."""
        assert self.pair is not None
        data = [datasets.replaced(self._loop.records, index, record) for record in self.pair[:2]]
        first, second = (self._runs.quiet(world, seed=seed, **changes) for world in data)
        return None if first is None or second is None or first.shape != second.shape else norms(first - second)
