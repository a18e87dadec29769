"""`Lab` holds all that a check may use of an audited training loop: its claim, and experiments on it.

One kind of experiment measures how much single records change releases. The other takes samples of the noise: the
difference between the releases of a run and those of a quiet run, which has almost no noise and the same seed.
`audit.runs` explains these words. A contribution is what one record adds to the sum of a step. Lengths are measured in
clips, that is, in multiples of the largest length that the claim allows a contribution.
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

_NOISE_SEED = 1000  # The loop's seeds in the runs whose noise is sampled are 1000, 1001, ...
_WANTED = 7500  # About how many numbers of noise `_NoiseSamples.sample` has; each sample of `others` has a quarter
_FEWEST_RUNS, _MOST_RUNS = 24, 200  # The fewest and the most runs from which a sample of the noise is taken
_SCALES = {
    "records a millionth as large": 1e-6,
    "records a thousand times as large": 1e3,
    "records of nothing": 0.0,
}
"""Factors by which all records are scaled, by names for the report. The noise must not change with them."""
_MOST_RECORDS = 256  # Records are not exchanged one by one in data sets with more records than this
_LOUD = 0.5  # The data set `loudest` has equal records that each add more than this share of the clip to a step
_VISIBLE = 0.05  # A record counts as in a batch if its exchange moves a step by over this share of `_ExtremePair.size`
_FACTORS = np.geomspace(1e-4, 1e4, 33)  # The factors that are tried to make the first record nearly clipped
_HALVINGS = 12  # How often the interval between two neighbours among `_FACTORS` is halved to find the best factor
_NEARLY = 0.97  # A record counts as nearly clipped if it adds this many clips (multiples of the clip) to a sum
_PARALLEL = 1e-5  # Two vectors count as parallel, and two lengths as equal, below this relative difference
_ENOUGH_NUMBERS = 4  # Whether vectors are parallel is told only from this many released numbers or more


class _ExtremePair(NamedTuple):
    # Two records that differ much, so that exchanging one for the other shows how far one record moves a release.
    # `size` is the smallest L2 norm of a step's change, over all steps, in clips (multiples of the claimed clip)
    first: Any
    second: Any
    size: float


class _Scan(NamedTuple):
    # `moved` is the L2 norm by which each step's release changes if one record is exchanged for another, for each
    # record in turn, with batches drawn as claimed, in clips (multiples of the clip), shape (seeds, steps, records)
    moved: Array
    included: NDArray[np.bool_]  # Whether each record was in each batch, as its exchange shows; of the same shape
    seeds: tuple[int, ...]  # The loop's seeds in these runs


# Experiments on how much single records change what a loop releases. A property runs the loop with changed settings, up
# to about `most_runs` times, when it is first read.
class _Influence:
    def __init__(self, runs: LoopRuns, most_runs: int) -> None:
        self._runs, self._most_runs = runs, most_runs
        self._records, self._n, self._all = runs.loop.records, runs.claim.n, runs.all_records

    @cached_property
    def pair(self) -> _ExtremePair | None:
        # Returns the two of the ten records of `datasets.extremes` whose exchange for each other changes the releases
        # the most, with full batches; the step that changes least counts. None if no exchange changes all steps. Pairs
        # are tried from small numbers to large ones, and the last of equal changes is taken, because large records are
        # surely clipped
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
        # Returns for each extreme record that the loop accepts a pair: the record, and the releases of two runs with
        # almost no noise, shape (2 * steps, numbers), where it replaces the first and then the last record of the data
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
        # Returns whether runs on n - 1 and on n records with one seed draw the same random numbers, so that they can be
        # compared: exchanging the last record must change both releases by parallel vectors, up to rounding. They are
        # not parallel if the loop draws other directions for n - 1 records. False also if this cannot be seen: no
        # exchange changes all steps, a run fails, n < 3, or a vector has fewer than 4 numbers.
        if self.pair is None or self._n < 3 or self._draws_shift():
            return False
        # In an adaptive loop later steps may follow from what was released, so only first steps are compared
        steps = slice(0, 1 if self._runs.loop.view.adaptive else None)
        # Ordinary records are exchanged too: beside extreme ones, the effect of small random numbers, such as
        # augmentations, is lost to rounding
        for pair in (self.pair[:2], (self._records[0], self._records[self._n // 2])):
            # The last record is exchanged and the first removed: a removal may change the random numbers of the records
            # after it alone
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
        # Returns whether removing a record changes the random numbers of other records. The removed record has numbers
        # of 0 and adds nothing to the sum, so with the same random numbers the release stays the same, or grows by
        # n/(n - 1) if it is divided by the number of records. False also if such a record adds something, or if a run
        # fails, since nothing can be said then
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
        # Returns the releases of a run on each data set, with one seed and full batches, shape (data sets, steps,
        # numbers). None if a run fails, or releases are not finite or differ in shape
        rows = [self._runs.quiet(data, **self._all) for data in data_sets]
        if any(row is None or rows[0] is None or row.shape != rows[0].shape for row in rows):
            return None
        found = np.array(rows, dtype=np.float64)
        return found if np.isfinite(found).all() else None

    @cached_property
    def nearly_clipped(self) -> Any:
        # Returns the first record, scaled so that it adds about 0.97 times the clip to a sum; None if no scale does
        # that. Near the clip, an effect of one record on others' contributions shows most. The smallest factor that
        # nearly reaches the clip is taken, since a wrong clip may shrink larger records below the clip
        reached = next((k for k in range(1, _FACTORS.size) if self._clips(_FACTORS[k]) >= _NEARLY), _FACTORS.size - 1)
        low, high = (math.log(_FACTORS[k]) for k in (reached - 1, reached))
        scale = math.exp(halved(lambda log: self._clips(math.exp(log)) < _NEARLY, low, high, _HALVINGS)[0])
        return datasets.scaled(self._records[0], scale) if self._clips(scale) > _NEARLY**3 else None

    def _clips(self, scale: float) -> float:
        # Returns what the first record, times `scale`, adds to the sum of the first step, in multiples of the clip,
        # measured on a data set of n such records
        record = datasets.scaled(self._records[0], scale)
        rows = self._runs.at_start(datasets.filled(self._records, record))
        if rows is None or not np.isfinite(rows).all():
            return 0.0
        return float(norms(rows[:1])[0]) / self._runs.unit_of_all / self._n

    @cached_property
    def loudest(self) -> Records | None:
        # Returns n copies of the extreme record whose copies make the largest releases, compared by the smallest one of
        # a run. None if no record adds more than half of the clip to every step
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
        # Returns how exchanging each record changes releases: the record is one and then the other of `pair`, in two
        # runs with the claimed batches, for at most four seeds. A seed is skipped if, with full batches, exchanging the
        # first record leaves a step nearly unchanged. None if runs with equal seeds have different batches, weights
        # cannot be kept where they are, n > 256, `pair` is None, runs fail, or all seeds are skipped
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
        # Returns the norm of the change of each step's release, shape (steps,), between two runs with almost no noise,
        # where one and then the other record of `pair` replaces the record at index `place`. None if the runs cannot be
        # compared
        assert self.pair is not None
        data = [datasets.replaced(self._records, place, record) for record in self.pair[:2]]
        how = {**self._runs.with_batches(seed), **changes}
        first, second = (self._runs.quiet(one, **how) for one in data)
        return None if first is None or second is None or first.shape != second.shape else norms(first - second)


class _Residual(NamedTuple):
    # The releases of one run, split into the noise and the sums to which it was added, each of shape (steps, numbers)
    noise: Array
    sums: Array


# Samples of the noise that one loop adds, on several data sets and with several settings. A sample is an array of noise
# in units of the claimed standard deviation, shape (runs, steps, numbers of a step), from about `most_runs` runs; None
# if the noise cannot be separated from the sums. `variations` has further settings with which the claim must hold, by
# names for the report.
class _NoiseSamples:
    def __init__(
        self, runs: LoopRuns, influence: _Influence, most_runs: int, variations: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._runs, self._influence, self._most_runs, self._variations = runs, influence, most_runs, variations
        self._records = runs.loop.records

    @property
    def repeat_changes(self) -> dict[str, Any]:
        # Returns the changes of settings with which runs with almost no noise repeat with the seed: {} or full batches.
        # {} also if such runs never repeat: then the noise is known only if the loop returns `clean`, the releases
        # before noise.
        return dict(self._runs.repeatable or {})

    @cached_property
    def sample_changes(self) -> dict[str, Any]:
        # Returns no changes if runs with the claimed batches repeat with the seed (perhaps with known bytes in place of
        # the operating system's random bytes), else `repeat_changes`
        return {} if self._runs.batches_need_stream else self.repeat_changes

    @cached_property
    def sample(self) -> Array | None:
        found = self._sampled(None, self.sample_changes)
        if found is None and self.sample_changes != self.repeat_changes:
            return self._sampled(None, self.repeat_changes)
        return found

    def others(self) -> Iterator[tuple[str, Callable[[], Array | None]]]:
        # Yields pairs (name of a data set or of settings, function that makes the runs and returns their noise)
        few, changes, records, runs = _WANTED // 4, self.sample_changes, self._records, self._runs

        def other(name: str, data: Records | None, how: dict[str, Any]) -> tuple[str, Callable[[], Array | None]]:
            return name, lambda: self._sampled(data, how, few)

        for name, factor in _SCALES.items():
            yield other(name, datasets.scaled(records, factor), changes)
        for name, variation in self._variations.items():
            yield other(name, None, {**changes, **variation})
        if self._influence.pair is not None:
            yield other("records all alike", datasets.filled(records, self._influence.pair.first), changes)
        if self._influence.loudest is not None:  # The rounding of releases is coarsest at the largest sums
            yield other("where the sum is largest", self._influence.loudest, runs.all_records)
        if runs.claim.relation == Relation.ADD_REMOVE:
            yield other("a quarter of the records", records[: max(1, runs.claim.n // 4)], runs.all_records)
        if changes != runs.all_records:
            yield other("batch = n", None, runs.all_records)
        if changes == runs.all_records and runs.claim.sample_rate < 1:
            yield other("batches as claimed, records of nothing", datasets.scaled(records, 0.0), {})

    def _sampled(self, records: Records | None, changes: dict[str, Any], wanted: int = _WANTED) -> Array | None:
        # Returns a sample of about `wanted` numbers of noise, from at least 24 runs; None if the noise is unknown, or
        # if a step has more numbers in one run than in another
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
            # If a loop may end early, only some values of the noise lead to a later step, whose noise is thus biased
            values = [one[:1] for one in values]
        return np.array(values) / self._runs.claim.noise_std(changes.get("batch"))

    def residual(self, records: Records | None, changes: dict[str, Any], seed: int, **how: int | None) -> Array | None:
        # Returns the noise of one run, in the unit of releases, shape (steps, numbers), or None if it is unknown. The
        # arguments are those of `parts`; `how` may hold its `stream` and `global_seed`.
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
        # Makes one run, and returns its noise and its sums without noise, in the unit of releases; None if they cannot
        # be separated. The sums are the output `clean` of the loop or, without it, the releases of a run with the same
        # seed and almost no noise; if that run has another number of steps, only the first step is returned. `changes`
        # replaces settings, by the audit's names. The integer `stream` determines the bytes that replace the operating
        # system's random bytes. If it is None, `seed` does or, if runs repeat so, the system's bytes are read.
        # `global_seed` (None: `seed`) seeds the generators of Python, NumPy and torch.
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
    """Experiments on one training loop, each of which is made when a check first asks for it.

    Args:
        runs: a `LoopRuns`, which runs the loop with changed settings.
        most_runs: about how many runs of the loop a statistical test may use.
        variations: further settings with which the noise must be as claimed, by names for the report.

    Attributes:
        loop, claim, view: the `Loop`, its `Claim`, and the `View` of what an attacker sees.
        runs, most_runs: the arguments.
        influence: experiments on how much single records change releases.
        noise: samples of the loop's noise.
    """

    def __init__(
        self, runs: LoopRuns, most_runs: int = 200, variations: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.loop, self.claim, self.view = runs.loop, runs.claim, runs.loop.view
        self.runs, self.most_runs = runs, most_runs
        self.influence = _Influence(runs, most_runs)
        self.noise = _NoiseSamples(runs, self.influence, most_runs, variations or {})
