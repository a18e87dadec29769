"""Measures how much single records change a loop's releases, by quiet runs: runs that have almost no noise."""

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.randomness import generators_kept
from dpzero_theory.audit.runs import SEED, LoopRuns, norms, same, stacked
from dpzero_theory.audit.sources import noted_generators
from dpzero_theory.bisection import halved
from dpzero_theory.check import Array

_MANY_SEEDS = range(1100, 1132)
"""Seeds of the loop under which the audit looks whether exchanging the extreme pair of records changes every step.

Where the loop trains along random directions, they make different directions.
"""
_MOST_RECORDS = 256  # The audit does not exchange record by record in data sets with more records than this
_FEWEST_SEEDS, _MOST_SEEDS = 8, 60
"""The fewest and the most runs of the loop by which the sizes of its batches are measured."""

_LOUD = 0.5
"""Sizes of batches are measured on a data set of equal records that each add at least this many clips to a step."""

_VISIBLE = 0.05
"""A record counts as in a batch if exchanging it changes the step by more than this share of `ExtremePair.size`."""
_ENOUGH_NUMBERS = 4
"""The method `with_one_less` needs at least this many released numbers to tell whether directions are the same."""

_SCALE_RANGE = (1e-4, 1e4)
"""The factor that makes the first record nearly clipped is searched between these two numbers."""

_MOST_SCALES = 33  # How many factors in `_SCALE_RANGE`, in equal ratios, are tried first
_HALVINGS = 12  # How often the range between two neighbours of the `_MOST_SCALES` factors is halved
_NEARLY = 0.97  # A record counts as nearly clipped where it adds this many clips to the sum over a batch
_NEARLY_EQUAL = 1e-5  # Two lengths count as equal, and two directions as parallel, below this relative difference


class ExtremePair(NamedTuple):
    """Two records that an audit exchanges for each other in the data, because they differ so much.

    Args:
        first, second: the records.
        size: exchanging one for the other changes every step's release by at least this much, in clips.
    """

    first: Any
    second: Any
    size: float


class Scan(NamedTuple):
    """How much the releases changed when an extreme pair of records was put in the place of each record in turn.

    The change is that from the first record of the pair to the second.

    Args:
        moved: how much each step's release changed, in clips, of shape (seeds, steps, records), with batches drawn as
            claimed.
        size: `ExtremePair.size` of the pair.
        whole: the changes with all records in every batch and the pair in the first record's place, of shape (seeds,
            steps).
        seeds: the loop's seeds, one for each row of `moved` and `whole`.
    """

    moved: Array
    size: float
    whole: Array
    seeds: tuple[int, ...]

    @property
    def included(self) -> NDArray[np.bool_]:
        """Whether each record was in each batch, an array of the shape of `moved`.

        A twentieth of the change that the pair makes with all records is enough, since a loop with a faulty denominator
        may divide some batches by a larger number.
        """
        return np.asarray(self.moved > self.size * _VISIBLE)


class Influence:
    """Experiments on how much records change the releases of one loop; each is made when it is first asked for.

    `runs` makes runs of the loop, and `most_runs` is about how many of them one measurement may take.
    """

    def __init__(self, runs: LoopRuns, most_runs: int) -> None:
        self._runs, self._most_runs = runs, most_runs
        self._loop, self._n, self._all = runs.loop, runs.claim.n, runs.all_records

    @cached_property
    def pair(self) -> ExtremePair | None:
        """The two records whose exchange makes the largest change of a release that every step shows.

        It is None where no two records do. All records are in every batch. Of pairs that change as much, the one with
        the larger numbers is taken, because it is the surest to be clipped.
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
        """Each extreme record that the loop accepts, with what the loop releases on it.

        The record is put in the first and then in the last place of the data. The releases are those of quiet runs,
        which have almost no noise.
        """
        accepted: list[tuple[Any, Array]] = []
        if self._runs.repeatable is None:
            return accepted
        for record in datasets.extremes(self._loop.records):
            rows = [
                self._runs.quiet(datasets.replaced(self._loop.records, index, record), **self._all) for index in (0, -1)
            ]
            if all(row is not None and np.isfinite(row).all() and row.shape == rows[0].shape for row in rows):  # type: ignore[union-attr]
                accepted.append((record, np.concatenate(rows)))  # type: ignore[arg-type]
        return [one for one in accepted if one[1].shape == accepted[0][1].shape]

    @cached_property
    def with_one_less(self) -> float | None:
        """The ratio of what a record adds to a release of n - 1 records to what it adds to a release of n records.

        It is 1 where the denominator of a release is a constant and n/(n - 1) where it counts the records. It is None
        where it cannot be measured, because with one record less the same seed may make other directions. The
        directions are taken to be the same where exchanging the extreme pair changes the releases by parallel vectors
        for n and n - 1 records.
        """
        if self.pair is None or self._n < 3:
            return None
        data = datasets.replaced(datasets.replaced(self._loop.records, 0, self.pair.first), 1, self.pair.second)
        other = datasets.replaced(data, 0, self.pair.second)
        worlds = (data, other, datasets.removed(data, 1), datasets.removed(data, 0))
        rows = [self._runs.quiet(world, **self._all) for world in worlds]
        if any(row is None or not np.isfinite(row).all() for row in rows):
            return None
        whole = [np.asarray(row) for row in rows]
        if any(row.shape != whole[0].shape for row in whole):
            return None
        large, small = whole[0] - whole[1], whole[2] - whole[3]
        if large.size < _ENOUGH_NUMBERS:
            return None
        product = norms(large.ravel()) * norms(small.ravel())
        if not product > 0 or float(large.ravel() @ small.ravel()) < (1 - _NEARLY_EQUAL) * product:
            return None
        return float(norms(small.ravel()) / norms(large.ravel()))

    @cached_property
    def draws_shift(self) -> bool:
        """Whether a run with one record less draws other random numbers, on which what is released depends.

        Runs with equal seeds then do not show what removing a record changes: all others may contribute something else
        too. It is the case where a random generator ends in another state with one record less, and releases change if
        it begins in another state.
        """
        loop, runs, base = self._loop, self._runs, None
        train = loop.train
        with generators_kept(), noted_generators() as drawn:
            loop.train = drawn.around(train)
            try:
                states = []
                for data in (None, None, datasets.removed(loop.records, 0)):
                    rows = runs.quiet(data, **self._all)
                    states.append(drawn.states)
                    base = rows if base is None else base
                first, again, less = states
                if len(first) != len(less) or len(first) != len(again):
                    return not runs.same_for_all_seeds
                moved = [k for k, state in enumerate(first) if state == again[k] != less[k]]
                for drawn.other in moved:
                    rows = runs.quiet(None, **self._all, world=SEED + 1)
                    if base is None or rows is None or not same(base, rows):
                        return True
            finally:
                loop.train = train
        return False

    @cached_property
    def nearly_clipped(self) -> Any:
        """The first record scaled so that the loop nearly clips it; None where no scale does that.

        Where contributions are nearly as large as the clip, an effect of one record on those of others shows the most.
        """
        first, (low, high) = self._loop.records[0], map(math.log, _SCALE_RANGE)
        tried = np.linspace(low, high, _MOST_SCALES).tolist()
        # The smallest of the factors that nearly reaches the clip: with larger ones a wrong clip may fall short of it
        reached = next(
            (k for k in range(1, _MOST_SCALES) if self._share(math.exp(tried[k])) >= _NEARLY), _MOST_SCALES - 1
        )
        low, high = tried[reached - 1], tried[reached]
        scale = math.exp(halved(lambda log: self._share(math.exp(log)) < _NEARLY, low, high, _HALVINGS)[0])
        return datasets.scaled(first, scale) if self._share(scale) > _NEARLY**3 else None

    def _share(self, scale: float) -> float:
        """Returns what the first record times `scale` adds to the first step, in clips; 0 if that is NaN.

        It is measured by a run on data in which all records are that one.
        """
        record = datasets.scaled(self._loop.records[0], scale)
        rows = self._runs.at_start(datasets.filled(self._loop.records, record))
        if rows is None or not np.isfinite(rows).all():
            return 0.0
        return float(norms(rows[:1])[0]) / self._runs.unit_of_all / self._n

    @cached_property
    def loudest(self) -> Records | None:
        """The data set of n equal records with the largest sum, measured in the step in which that sum is smallest.

        It is None where each of the equal records adds less than half a clip, whichever record is tried.
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
        """How large each release is on the data set `loudest`, as a share of its length with all records in the batch.

        It is an array of shape (seeds, steps), or None where it cannot be measured. Where a release is a sum over a
        constant its share is the size of the batch over that constant, which is the expected batch for averages and n
        for plain sums. Where a release is an average over its own batch the share is 1. A share is NaN where the seed's
        directions leave little of the records. The first seeds are those of `scan`.
        """
        data, count = self.loudest, min(max(self._most_runs // 2, _FEWEST_SEEDS), _MOST_SEEDS)
        if data is None:
            return None
        first = () if self.scan is None else self.scan.seeds
        seeds = [*first, *(seed for seed in range(SEED, SEED + count) if seed not in first)][:count]
        of_whole = [seeds[0]] * count if self._runs.same_for_all_seeds else seeds
        full = [self._runs.quiet(data, seed=seed, **self._all) for seed in dict.fromkeys(of_whole)]
        full *= count // len(full)
        part = [self._runs.quiet(data, **self._runs.with_batches(seed)) for seed in seeds]
        if any(rows is None or rows.shape != full[0].shape for rows in [*full, *part]):  # type: ignore[union-attr]
            return None
        whole = norms(np.array(full))
        loud = whole > _LOUD * self._n * self._runs.unit_of_all
        return np.asarray(np.divide(norms(np.array(part)), whole, out=np.full(whole.shape, np.nan), where=loud))

    @cached_property
    def scan(self) -> Scan | None:
        """How much exchanging each record in turn changes each step, with batches as claimed; None if not measurable.

        It cannot be measured where batches come neither from the loop's seed nor from the random bytes of the operating
        system, or where there are more than 256 records. Along some random directions exchanging the extreme pair may
        change a step too little to be seen. Where there are such directions, the scan keeps to seeds without one; where
        no record changes a step all the same, because a seed may make other directions when batches are drawn, it is
        None.
        """
        runs, n = self._runs, self._n
        if runs.batches_repeat is None or self.pair is None or not runs.frozen:
            return None
        if len(self._loop.records) != n or n > _MOST_RECORDS:
            return None
        seeds = tuple(range(SEED, SEED + max(1, min(4, 2 * self._most_runs // n))))
        hidden = False
        if not runs.same_for_all_seeds:
            along = stacked([self._moved(0, seed, **self._all) for seed in _MANY_SEEDS], runs.unit_of_all)
            if along is None:
                return None
            shows = (along > self.pair.size * _VISIBLE).all(axis=1)
            if hidden := not shows.all():
                seeds = tuple(np.array(_MANY_SEEDS)[shows][: len(seeds)].tolist())
        each = [stacked([self._moved(index, seed) for index in range(n)], runs.unit({})) for seed in seeds]
        moved = stacked(each, 1.0)
        whole = stacked([self._moved(0, seed, **self._all) for seed in seeds], runs.unit_of_all)
        if moved is None or whole is None:
            return None
        scan = Scan(moved.transpose(0, 2, 1), self.pair.size, whole, seeds)
        return None if hidden and not scan.included.any(axis=2).all() else scan

    def _moved(self, index: int, seed: int, **changes: Any) -> Array | None:
        """Returns how much each step changes when the pair's first record at position `index` becomes its second.

        The change is the L2 norm of the difference of the releases, with the loop's seed and settings `changes`; None
        where a run fails.
        """
        assert self.pair is not None
        data = [datasets.replaced(self._loop.records, index, record) for record in self.pair[:2]]
        how = {**self._runs.with_batches(seed), **changes}
        first, second = (self._runs.quiet(world, **how) for world in data)
        return None if first is None or second is None or first.shape != second.shape else norms(first - second)
