"""`Lab` holds everything that a check may use of an audited training loop: its claim, and experiments on it.

There are experiments on the influence of single records on releases, and samples of the noise: the noise of a run is
the difference of its releases and the releases of a quiet run, which has almost no noise and the same seed. The module
`audit.runs` says what quiet runs and other words for runs mean. A contribution is what one record adds to the sum of a
step; lengths are measured in clips, the largest length that the claim allows to a contribution.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.runs import SEED, LoopRuns, norms, same
from dpzero_theory.bisection import halved
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_NOISE_SEED = 1000  # The loop's seed in the first of the runs whose noise is sampled; each further run adds 1
_WANTED = 7500  # How many numbers of noise `sample` should have; each sample of `others` should have a quarter as many
_FEWEST_RUNS, _MOST_RUNS = 24, 200  # The fewest and the most runs from which a sample of the noise is taken
_SCALES = {
    "records a millionth as large": 1e-6,
    "records a thousand times as large": 1e3,
    "records of nothing": 0.0,
}
"""Factors by which all records are scaled, by the names in the report; the noise must not change with them."""
_MOST_RECORDS = 256  # Records are not exchanged one by one in data sets with more records than this
_LOUD = 0.5  # The data set `loudest` has equal records that each add more than this many clips to a step
_VISIBLE = 0.05  # A record is in a batch if its exchange moves the step by more than this share of a full batch's move
_FACTORS = np.geomspace(1e-4, 1e4, 33)  # The factors that are tried to make the first record nearly clipped
_HALVINGS = 12  # How often the interval between two neighbours among `_FACTORS` is halved to find the best factor
_NEARLY = 0.97  # A record counts as nearly clipped if it adds this many clips (multiples of the clip) to a sum
_PARALLEL = 1e-5  # Two vectors count as parallel, and two lengths as equal, below this relative difference
_ENOUGH_NUMBERS = 4  # Whether vectors are parallel is told only from this many released numbers or more


class _ExtremePair(NamedTuple):
    # Two records that differ much, so that exchanging one for the other shows how far one record moves a release. Of
    # the lengths of the changes of all steps' releases `size` is the least, in clips (multiples of the claimed clip)
    first: Any
    second: Any
    size: float


class _Scan(NamedTuple):
    # How much each step's release changes if one record is exchanged for another, for each record in turn, in runs with
    # the claimed sampling: the L2 norm in clips (multiples of the claimed clip), shape (seeds, steps, records)
    moved: Array
    included: NDArray[np.bool_]  # Whether each record was in each batch, as its exchange shows; of the same shape
    seeds: tuple[int, ...]  # The loop's seeds in these runs


# Experiments on how much single records change what a loop releases. Each runs the loop with changed settings, about
# `most_runs` times or fewer, when its property is first read.
class _Influence:
    def __init__(self, runs: LoopRuns, most_runs: int) -> None:
        self._runs, self._most_runs = runs, most_runs
        self._records, self._n, self._all = runs.loop.records, runs.claim.n, runs.all_records

    @cached_property
    def pair(self) -> _ExtremePair | None:
        # The two of the ten records of `datasets.extremes` whose exchange for each other, with all records in every
        # batch, changes the releases the most; the step that changes the least counts. None if no exchange changes all
        # steps.
        # Pairs are tried from small numbers to large ones, and of equal changes the last is taken, as large records are
        # the surest to be clipped
        tried = sorted(self._extremes, key=lambda one: max(map(abs, datasets.numbers(one[0])), default=0.0))
        best: _ExtremePair | None = None
        for i, (first, here) in enumerate(tried):
            for second, there in tried[:i]:
                size = float(norms(here - there).min()) / self._runs.unit_of_all
                if size > (best.size * (1 - _PARALLEL) if best else _PARALLEL):
                    best = _ExtremePair(first, second, size)
        return best

    @cached_property
    def _extremes(self) -> list[tuple[Any, Array]]:
        # Has each extreme record that the loop accepts, and the releases of two runs almost without noise, one after
        # the other, shape (2 * steps, numbers): with this record in the first place of the audit's data, and in the
        # last
        accepted: list[tuple[Any, Array]] = []
        for record in datasets.extremes(self._records) if self._runs.repeatable is not None else ():
            first, last = (
                self._runs.quiet(datasets.replaced(self._records, place, record), **self._all) for place in (0, -1)
            )
            if first is not None and last is not None and first.shape == last.shape:
                rows = np.concatenate([first, last])
                if np.isfinite(rows).all() and (not accepted or rows.shape == accepted[0][1].shape):
                    accepted.append((record, rows))
        return accepted

    @cached_property
    def takes_one_less(self) -> bool:
        # Whether runs on n - 1 and on n records with one seed draw the same random numbers, and so can be compared: an
        # exchange of the last record changes the releases of both by parallel vectors, up to rounding. If the seed
        # makes other directions for n - 1 records they are not parallel. False, too, where nothing can be seen: no
        # exchange changes all steps, a run fails, n < 3, or a vector has fewer than 4 numbers.
        if self.pair is None or self._n < 3 or self._draws_shift():
            return False
        # In an adaptive loop later steps may follow from what was released, so only first steps are compared
        steps = slice(0, 1 if self._runs.loop.view.adaptive else None)
        # Beside extreme records the effect of small random numbers, such as augmentations, is lost to rounding, so
        # ordinary records are exchanged too
        for pair in (self.pair[:2], (self._records[0], self._records[self._n // 2])):
            # The last record is exchanged and the first removed, since a removal may give other random numbers only to
            # the records after it
            data_sets = [datasets.replaced(self._records, self._n - 1, record) for record in pair]
            smaller = [datasets.removed(data, 0) for data in data_sets]
            before, after = self._quiet_releases(data_sets), self._quiet_releases(smaller)
            if before is None or after is None or before.shape != after.shape:
                return False
            large, small = ((rows[0] - rows[1])[steps].ravel() for rows in (before, after))
            if large.size < _ENOUGH_NUMBERS or large.any() != small.any():
                return False
            if float(large @ small) < (1 - _PARALLEL) * float(norms(large) * norms(small)):
                return False
        return True

    def _draws_shift(self) -> bool:
        # Returns whether removing a record gives other records other random numbers. The record that is removed has
        # numbers of 0 and adds nothing to the sum. So if no random numbers differ, the release stays the same, or grows
        # by the factor n/(n - 1) if it is divided by the number of records. False also if such a record adds something,
        # or if a run fails, since nothing can be said then
        nothing = datasets.scaled(self._records[0], 0.0)
        silent = self._runs.at_start(datasets.filled(self._records, nothing))
        data = datasets.replaced(self._records, self._n - 1, nothing)
        rows = [self._runs.at_start(one) for one in (data, datasets.removed(data, self._n - 1))]
        if silent is None or np.abs(silent).max() > _PARALLEL * self._runs.unit_of_all:
            return False
        if any(row is None for row in rows):
            return False
        whole, less = (np.asarray(row) for row in rows)
        return not any(same(whole * factor, less) for factor in (1.0, self._n / (self._n - 1)))

    def _quiet_releases(self, data_sets: list[Records]) -> Array | None:
        # All runs have one seed, and full batches; the releases have shape (data sets, steps, numbers)
        rows = [self._runs.quiet(data, **self._all) for data in data_sets]
        if any(row is None or rows[0] is None or row.shape != rows[0].shape for row in rows):
            return None
        found = np.array(rows, dtype=np.float64)
        return found if np.isfinite(found).all() else None

    @cached_property
    def nearly_clipped(self) -> Any:
        # The result is the first record, scaled so that it adds about 0.97 times the clip to a sum; None if no scale
        # does that.
        # Near the clip an effect of one record on others' contributions shows the most. The smallest factor that nearly
        # reaches the clip is taken, since a wrong clip may shrink larger records below the clip
        reached = next((k for k in range(1, _FACTORS.size) if self._clips(_FACTORS[k]) >= _NEARLY), _FACTORS.size - 1)
        low, high = (math.log(_FACTORS[k]) for k in (reached - 1, reached))
        scale = math.exp(halved(lambda log: self._clips(math.exp(log)) < _NEARLY, low, high, _HALVINGS)[0])
        return datasets.scaled(self._records[0], scale) if self._clips(scale) > _NEARLY**3 else None

    def _clips(self, scale: float) -> float:
        # Returns how many clips the first record, times `scale`, adds to the first step: the sum over n such records,
        # over n
        record = datasets.scaled(self._records[0], scale)
        rows = self._runs.at_start(datasets.filled(self._records, record))
        if rows is None or not np.isfinite(rows).all():
            return 0.0
        return float(norms(rows[:1])[0]) / self._runs.unit_of_all / self._n

    @cached_property
    def loudest(self) -> Records | None:
        # The data set is n copies of the extreme record that adds the most to the step whose sum is least, if a copy
        # adds more than half of the clip, the largest length that the claim allows to it.
        best, data = _LOUD * self._n, None
        for record, _ in self._extremes:
            alike = datasets.filled(self._records, record)
            rows = self._runs.quiet(alike, **self._all)
            size = 0.0 if rows is None else float(norms(rows).min()) / self._runs.unit_of_all
            if size > best and np.isfinite(size):
                best, data = size, alike
        return data

    @cached_property
    def scan(self) -> _Scan | None:
        # For each record in turn, and at most four seeds, a pair of runs has one and then the other record of `pair` in
        # its place, with batches drawn as the loop claims. None if runs with equal seeds have different batches, no
        # setting (such as a step size of 0) keeps the weights where they are, there are more than 256 records, no
        # exchange changes all steps, or for every seed that was tried an exchange of the first record does not change
        # all steps though all records are in every batch.
        runs, n, pair = self._runs, self._n, self.pair
        if runs.batches_need_stream is None or pair is None or not runs.frozen or n > _MOST_RECORDS:
            return None
        found: dict[int, Array] = {}
        for seed in range(SEED, SEED + 16):
            whole = self._moved(0, seed, self._all)
            if whole is None or len(found) >= max(1, min(4, 2 * self._most_runs // n)):
                break
            if (whole > pair.size * _VISIBLE * runs.unit_of_all).all():
                each = [self._moved(place, seed, {}) for place in range(n)]
                if any(one is None or one.shape != whole.shape for one in each):
                    return None
                found[seed] = np.array(each).T / runs.claim.unit()
        if not found:
            return None
        moved = np.array(list(found.values()))
        return _Scan(moved, moved > pair.size * _VISIBLE, tuple(found))

    def _moved(self, place: int, seed: int, changes: dict[str, Any]) -> Array | None:
        # Returns the norm of the change of each step's release, shape (steps,), if the record at index `place` is one
        # and then the other of the extreme pair, in runs almost without noise; None if the two runs cannot be compared
        assert self.pair is not None
        data = [datasets.replaced(self._records, place, record) for record in self.pair[:2]]
        how = {**self._runs.with_batches(seed), **changes}
        first, second = (self._runs.quiet(one, **how) for one in data)
        return None if first is None or second is None or first.shape != second.shape else norms(first - second)


class _Residual(NamedTuple):
    # The releases of one run, split into the noise and what it was added to, each of shape (steps, numbers of a step)
    noise: Array
    sums: Array


# Samples of the noise that one loop adds, on several data sets and with several settings of the loop. A sample is an
# array of noise in units of the claimed standard deviation, shape (runs, steps, numbers of a step), or None if the
# noise cannot be told from the releases. It takes about `most_runs` runs. `variations` has further settings with which
# the claim must hold, by the names that the report gives them.
class _NoiseSamples:
    def __init__(
        self, runs: LoopRuns, influence: _Influence, most_runs: int, variations: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._runs, self._influence, self._most_runs, self._variations = runs, influence, most_runs, variations
        self._records = runs.loop.records

    @property
    def repeat_changes(self) -> dict[str, Any]:
        # With these changes of settings (none, or all records in every batch) runs almost without noise repeat with the
        # seed. If such runs never repeat there are none, and only a loop that returns `clean`, the releases before
        # noise, tells its noise.
        return dict(self._runs.repeatable or {})

    @cached_property
    def sample_changes(self) -> dict[str, Any]:
        # No change if runs with the claimed batches repeat with the seed, perhaps only by reading known bytes in place
        # of the operating system's random bytes
        return {} if self._runs.batches_need_stream else self.repeat_changes

    @cached_property
    def sample(self) -> Array | None:
        found = self._sampled(None, self.sample_changes)
        if found is None and self.sample_changes != self.repeat_changes:
            return self._sampled(None, self.repeat_changes)
        return found

    def others(self) -> Iterator[tuple[str, Callable[[], Array | None]]]:
        # With each name goes a function that makes the runs on that data set and returns a sample of their noise
        few, changes, records, runs = _WANTED // 4, self.sample_changes, self._records, self._runs

        def other(name: str, data: Records | None, how: dict[str, Any]) -> tuple[str, Callable[[], Array | None]]:
            return name, lambda: self._sampled(data, how, few)

        for name, factor in _SCALES.items():
            yield other(name, datasets.scaled(records, factor), changes)
        for name, variation in self._variations.items():
            yield other(name, None, {**changes, **variation})
        if self._influence.pair is not None:
            yield other("records all alike", datasets.filled(records, self._influence.pair.first), changes)
        if self._influence.loudest is not None:  # Rounding of a release to few digits is coarsest at the largest sums
            yield other("where the sum is largest", self._influence.loudest, runs.all_records)
        if runs.claim.relation == Relation.ADD_REMOVE:
            yield other("a quarter of the records", records[: max(1, runs.claim.n // 4)], runs.all_records)
        if changes != runs.all_records:
            yield other("batch = n", None, runs.all_records)
        if changes == runs.all_records and runs.claim.sample_rate < 1:
            yield other("batches as claimed, records of nothing", datasets.scaled(records, 0.0), {})

    def _sampled(self, records: Records | None, changes: dict[str, Any], wanted: int = _WANTED) -> Array | None:
        # Returns a sample of about `wanted` numbers, from 24 runs at least; None if the noise is unknown, or if a step
        # has more numbers in one run than in another
        first = self.residual(records, changes, _NOISE_SEED)
        if first is None:
            return None
        count = min(max(_FEWEST_RUNS, -(-wanted // first.size)), _MOST_RUNS, max(_FEWEST_RUNS, self._most_runs))
        values = [first]
        for k in range(1, count):
            one = self.residual(records, changes, _NOISE_SEED + k)
            if one is None or one.shape[1:] != first.shape[1:]:
                return None
            values.append(one)
        if any(len(one) != len(first) for one in values):
            # Whether an early-ending loop has a later step may depend on noise, so only the first step's is unbiased
            values = [one[:1] for one in values]
        return np.array(values) / self._runs.claim.noise_std(changes.get("batch"))

    def residual(self, records: Records | None, changes: dict[str, Any], seed: int, **how: int | None) -> Array | None:
        # The noise of one run, in the unit of releases, shape (steps, numbers); None if the releases do not tell.
        # The arguments, `stream` and `global_seed` among them, are those of `parts`.
        found = self.parts(records, changes, seed, **how)
        return None if found is None else found.noise

    def parts(
        self,
        records: Records | None,
        changes: dict[str, Any],
        seed: int,
        *,
        stream: int | None = None,
        global_seed: int | None = None,
    ) -> _Residual | None:
        # Makes one run, and returns its noise and its releases without noise, in the unit of the releases; None if they
        # cannot be told apart. The latter are what the loop returns as `clean`, or else the releases of a run with the
        # same seed almost without noise. Only the first step is returned if these two runs have different numbers of
        # steps. `changes` replaces settings, by the audit's names for them. `stream` is an integer that determines the
        # bytes which the loop reads in place of the operating system's random bytes; if it is None, `seed` determines
        # them if runs repeat only so. `global_seed` is that of the generators of Python, NumPy and torch.
        runs = self._runs
        same = runs.with_batches(seed) if stream is None and not changes else runs.paired(seed, stream)
        noisy = runs.attempt(records, **same, global_seed=global_seed, **{**runs.frozen, **changes})
        if noisy is None or noisy.releases is None:
            return None
        if noisy.clean is not None and noisy.clean.shape == noisy.releases.shape:
            return _Residual(noisy.releases - noisy.clean, noisy.clean)
        quiet = None if runs.repeatable is None else runs.quiet(records, **same, global_seed=global_seed, **changes)
        rows = runs.comparable(noisy)
        if quiet is None or quiet.shape[1:] != rows.shape[1:]:
            return None
        rows, quiet = (rows, quiet) if len(rows) == len(quiet) else (rows[:1], quiet[:1])
        return _Residual(rows - quiet, quiet)


class Lab:
    """Experiments on one training loop, each made when a check first asks for it.

    Args:
        runs: a `LoopRuns`, which runs the loop with changed settings.
        most_runs: about how many runs a check's statistic may use.
        variations: further settings under which the noise must be as claimed, by a name for the report.

    Attributes:
        loop, claim, view: the `Loop`, its `Claim`, and the `View` of what an attacker sees.
        runs, most_runs: the arguments.
        influence: experiments on how much single records change the releases.
        noise: samples of the loop's noise.
    """

    def __init__(
        self, runs: LoopRuns, most_runs: int = 200, variations: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.loop, self.claim, self.view = runs.loop, runs.claim, runs.loop.view
        self.runs, self.most_runs = runs, most_runs
        self.influence = _Influence(runs, most_runs)
        self.noise = _NoiseSamples(runs, self.influence, most_runs, variations or {})
