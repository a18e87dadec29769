"""Runs of an audited training loop with changed settings, made so that two runs can be compared.

Two compared runs differ in one thing only. These words are used for runs:

- A *quiet* run has almost no noise: a tiny share of the claimed noise, or none if the loop accepts no tiny share. With
  equal random numbers, the difference of quiet runs on neighbouring data is the effect of one record, and the
  difference of a noisy and a quiet run is the noise.
- A *frozen* run has a step size of zero, or one so small that the weights stay where they are, so that each of its
  steps can be compared with the same step of another run. Otherwise only first steps can be compared.
- A *streamed* run reads known bytes, which an integer determines, in place of the operating system's random bytes.
- *Coupled* runs are streamed runs on different data with the same noise.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Loop, LoopFailed, LoopOutput
from dpzero_theory.check import Array

SEED = 11  # The loop's seed in experiments that do not need several seeds
_QUIET_SHARES = (1e-20, 1e-9, 1e-7, 0.0)
"""The shares of the claimed noise multiplier that are tried, in this order, for runs with almost no noise."""
_ROUNDING = 1e-5
"""Two arrays of releases are equal up to rounding if each entry differs by at most this share of the largest number,
plus this share of the entry."""
_LARGER_STEP = 100.0  # Runs with a tiny step size and one this many times larger show whether weights stay in place
_STAYS = 0.1  # Weights stay in place if the larger step size changes releases by at most this share of a record's clip
_LARGEST_STILL, _SMALLEST_STILL = 1e-4, 1e-30
"""If releases are computed from weights, the step size of runs that keep the weights in place (`frozen`) is between
these multiples of the loop's step size."""
_ROUNDED_WEIGHTS = 1e-9
"""If releases are computed from weights, runs that keep the weights in place take the step size at which rounding of
the weights changes a release by about this share of the noise's standard deviation, or the nearest allowed one."""
_BARELY = 1e-9  # The share of the loop's step size in runs with equal noise (`coupled`), so that weights hardly move
NOT_REPEATABLE = (
    "runs with one seed and almost no noise cannot be compared: either they differ in something that is not made by the"
    " seed, or the noise does not follow the setting noise_multiplier (`names` gives the loop's word for it)"
)
"""The reason that a check gives if the loop has no runs with almost no noise that repeat with the seed."""


class LoopRuns:
    """Runs one training loop with changed settings, so that its runs can be compared. A release is what a step of the
    loop publishes, the noised average or sum over its batch.

    Args:
        loop: the loop, with its data, claim and settings.

    Attributes:
        loop: the loop.
        claim: what its author claims.
        base: the output of a run with the claimed settings, which is made at once.

    Raises:
        LoopFailed: that run fails.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop, self.claim = loop, loop.claim
        self.base = loop.run(seed=SEED)

    def attempt(self, records: Records | None = None, **settings: Any) -> LoopOutput | None:
        """Return the output of one run, or None if the run fails, that is, if `Loop.run` raises LoopFailed.

        Args:
            records: the data; the loop's own if None.
            settings: settings to replace, such as step_size, by the audit's names, which `View.names` maps to the
                loop's; and arguments of `Loop.run`: seed, the loop's seed; global_seed, that of the global generators;
                stream, an integer that determines bytes in place of the operating system's random bytes.
        """
        try:
            return self.loop.run(records, **settings)
        except LoopFailed:
            return None

    @cached_property
    def all_records(self) -> dict[str, Any]:
        """Changes of settings, as keyword arguments of `attempt`, with which every batch holds all records."""
        # Cyclic and truncated sampling never draw all records, so they are changed to "full"
        return {"batch": self.claim.n, **({} if self.claim.drawn(1.0) else {"sampling": "full"})}

    @property
    def unit_of_all(self) -> float:
        """By how much, in L2 norm, a record that adds `clip` to the sum of a step moves a release, if every batch holds
        all records."""
        return self.claim.unit(self.claim.n)

    @cached_property
    def quiet_multiplier(self) -> float:
        """The noise multiplier of quiet runs, which have almost no noise.

        It is the first of 1e-20, 1e-9 and 1e-7 times the claimed multiplier with which the loop runs without an error,
        else 0.
        """
        tried = [self.claim.noise_multiplier * share for share in _QUIET_SHARES]
        return next((m for m in tried if self.attempt(seed=SEED, noise_multiplier=m)), 0.0)

    @cached_property
    def frozen(self) -> dict[str, Any]:
        """Changes of settings, as keyword arguments of `attempt`, that keep the loop's weights where they are.

        They set the step size to 0, or to a tiny number if releases are computed from weights. The dictionary is empty
        if no change keeps the weights: the loop has no step size or ignores it, a run that tests this fails, or the
        weights from which releases are computed have no more than float32 precision.
        """
        changes = self._still()
        if not changes or self.base.releases is None or len(self.base.releases) == 1:
            return changes
        plain_run, large = (
            self.attempt(seed=SEED, stream=SEED, noise_multiplier=self.quiet_multiplier, **step)
            for step in (changes, {"step_size": _LARGER_STEP * (self.loop.step_size or 0.0)})
        )
        if plain_run is None or large is None or plain_run.releases is None or large.releases is None:
            return {}
        return changes if not same(plain_run.releases[1:], large.releases[1:]) else {}

    def _still(self) -> dict[str, Any]:
        # Returns the changes of settings that should keep the weights where they are; `frozen` tests if the loop obeys
        if not self.loop.step_size:
            return {}
        if not self.loop.from_weights:
            return {"step_size": 0.0}
        # If releases are differences of weights, steps below the rounding of the weights would make them 0
        path = self.base.trajectory
        if path is None or path.dtype != np.float64 or np.array_equal(path, path.astype(np.float32)):
            return {}
        least = float(np.abs(path[0]).max()) * 2.0**-53 / (_ROUNDED_WEIGHTS * self.claim.noise_std())
        size = self.loop.step_size
        return {"step_size": min(max(least, size * _SMALLEST_STILL), size * _LARGEST_STILL)}

    def comparable(self, output: LoopOutput) -> Array:
        """Return the releases of a run at the steps that can be compared with other runs, shape (steps, numbers).

        These are all steps if the weights can be kept where they are (`frozen` is not empty), else the first step. The
        run's `output` must have releases.
        """
        assert output.releases is not None
        return output.releases if self.frozen else output.releases[:1]

    def _repeats(self, changes: dict[str, Any], stream: int | None) -> bool:
        how = {"seed": SEED, "stream": stream, "noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        pair = [self.attempt(**how) for _ in "ab"]
        return all(pair) and same(*(self.comparable(output) for output in pair if output))

    def _noise_shows(self, stream: int | None) -> bool:
        # Returns whether the first release is equal in two runs with almost no noise, and different in a run with the
        # claimed noise, of the same seed and random bytes
        outputs = [
            self.attempt(seed=SEED, stream=stream, noise_multiplier=m, **self.all_records)
            for m in (self.quiet_multiplier, self.quiet_multiplier, self.claim.noise_multiplier)
        ]
        rows = [output.releases[:1] for output in outputs if output is not None and output.releases is not None]
        return len(rows) == 3 and same(rows[0], rows[1]) and not same(rows[0], rows[2])

    @cached_property
    def _repeating(self) -> tuple[dict[str, Any], bool] | None:
        # Returns (changes of settings, whether known bytes must replace the system's random bytes) with which two runs
        # of one seed and almost no noise release the same numbers; None if they never do
        if self.base.releases is None:
            return None
        for stream in (None, SEED):
            if self._noise_obeyed_by_seed if stream is None else self._noise_shows(stream):
                for changes in ({}, self.all_records):
                    if self._repeats(changes, stream):
                        return changes, stream is not None
        return None

    @property
    def repeatable(self) -> dict[str, Any] | None:
        """Changes of settings, by name, with which runs of one seed and almost no noise release the same numbers.

        It is empty if no change is needed, and `all_records` if such runs repeat only with full batches. None if they
        never repeat, or if releases do not change with the noise multiplier. If `streamed` is True, the runs must also
        have the same argument `stream` of `Loop.run`, which replaces the operating system's random bytes.
        """
        return None if self._repeating is None else self._repeating[0]

    @property
    def streamed(self) -> bool:
        """Whether runs of one seed and almost no noise release the same numbers only if known bytes replace the
        operating system's random bytes. False also if such runs never repeat."""
        return self._repeating is not None and self._repeating[1]

    @cached_property
    def batches_need_stream(self) -> bool | None:
        """Whether runs of one seed, with the claimed batches and almost no noise, release the same numbers only if
        known bytes replace the operating system's random bytes. None if such runs never repeat."""
        if self.repeatable == {}:
            return self.streamed
        return True if self.repeatable is not None and self._repeats({}, SEED) else None

    @cached_property
    def _noise_obeyed_by_seed(self) -> bool:
        return self._noise_shows(None)

    @property
    def noise_obeyed(self) -> bool:
        """Whether the loop's first release changes with the noise multiplier, while the seed (and, if needed, the known
        bytes in place of the operating system's random bytes) stays the same.

        False also if two runs with almost no noise differ, fail or release nothing, since nothing can be seen then.
        """
        return self._noise_obeyed_by_seed or self.streamed

    def paired(self, seed: int, stream: int | None = None) -> dict[str, Any]:
        """Return the arguments `seed` and `stream` of `Loop.run` with which two runs draw the same random numbers.

        The changes of settings in `repeatable` are also needed; if it is None, the numbers may differ nevertheless.

        Args:
            seed: the loop's seed.
            stream: an integer that determines bytes in place of the operating system's random bytes. If None, the
                system's bytes are read, or `seed` is used if runs repeat only with known bytes (`streamed`).
        """
        return {"seed": seed, "stream": seed if stream is None and self.streamed else stream}

    def with_batches(self, seed: int) -> dict[str, Any]:
        """Return the arguments `seed` and `stream` of `Loop.run` with which two runs draw the same batches.

        `seed` is the loop's seed. `stream` is None, or `seed` if only known bytes in place of the operating system's
        random bytes make runs repeat. If runs with the claimed batches never repeat, the batches may differ.
        """
        return self.paired(seed, seed if self.batches_need_stream else None)

    def quiet(
        self, records: Records | None = None, *, seed: int = SEED, stream: int | None = None, **changes: Any
    ) -> Array | None:
        """Return the releases of a run with almost no noise, at the steps that can be compared with other runs.

        These are all steps if the weights can be kept where they are, as they are in this run, else the first step.

        Args:
            records: the data; the loop's own if None.
            seed: the loop's seed.
            stream: an integer that determines bytes in place of the operating system's random bytes. If None, the
                system's bytes are read, or `seed` is used if runs repeat only with known bytes (`streamed`).
            changes: settings to replace, by the audit's names for them (`View.names`), and the argument global_seed of
                `Loop.run`.

        Returns:
            The averages or sums that the steps publish, shape (steps, numbers). None if the run fails, or if the
            weights that should stay where they are move so far that releases change.
        """
        how = self.paired(seed, stream)
        rows = self._quiet(records, how, changes)
        if rows is None or len(rows) == 1 or not (step := self.frozen.get("step_size")):
            return rows
        further = self._quiet(records, how, {**changes, "step_size": step * _LARGER_STEP})
        if further is None or further.shape != rows.shape:
            return None
        most = _STAYS * self.claim.unit(changes.get("batch"))
        return rows if np.allclose(rows, further, rtol=0, atol=most, equal_nan=True) else None

    def at_start(self, records: Records | None = None) -> Array | None:
        """Return releases of a run with almost no noise and full batches, at the steps with the initial weights.

        These are all steps if a step size of 0 keeps the weights where they are, else the first step. `records` is the
        data, the loop's own if None. The result has shape (steps, numbers); it is None if the run fails.
        """
        rows = self._quiet(records, self.paired(SEED), self.all_records)
        return rows if rows is None or not self.frozen.get("step_size") else rows[:1]

    def _quiet(self, records: Records | None, how: dict[str, Any], changes: dict[str, Any]) -> Array | None:
        # Returns the releases of a run with almost no noise, or None if it fails; `quiet` also tests that the weights
        # stay where they are. `how` has the run's seed and stream
        settings = {"noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        output = self.attempt(records, **how, **settings)
        return None if output is None or output.releases is None else self.comparable(output)

    @cached_property
    def same_for_all_seeds(self) -> bool:
        """Whether two runs with different seeds of the loop release the same numbers, so that directions and weights do
        not depend on the seed. The runs have almost no noise and full batches. False also if one of them fails."""
        first, second = (self.quiet(seed=seed, **self.all_records) for seed in (SEED, SEED + 1))
        return first is not None and second is not None and same(first, second)

    def coupled(
        self, data_sets: Sequence[Records], numbers: Sequence[int], **changes: Any
    ) -> Iterator[list[LoopOutput | None]]:
        """Yield, for each draw of the noise, the outputs of one run on each data set, all with the same noise.

        The runs of a draw have the same seed and the same known bytes in place of the operating system's random bytes,
        and clocks that stand still. Batches hold all records, and a tiny step size keeps the weights nearly where they
        are if the loop has a step size. The run on the first data set is made twice. If one of the two fails, or they
        release different numbers, the iteration ends.

        Args:
            data_sets: the data sets.
            numbers: an integer for each draw of the noise; equal integers give equal noise.
            changes: further settings to replace, by the audit's names for them (`View.names`).

        Yields:
            The outputs in the order of `data_sets`, with None for a run on a later data set that failed.
        """
        step = self.frozen.get("step_size") if self.loop.from_weights else (self.loop.step_size or 0.0) * _BARELY
        how = {**({"step_size": step} if step else {}), **self.all_records, **changes}
        for number in numbers:
            with self.loop.clocks(0.0):
                same_seed = {"seed": SEED + number, "stream": number, **how}
                first, again = (self.attempt(data_sets[0], **same_seed) for _ in "ab")
                if not alike(first, again):
                    return
                found = [first, *(self.attempt(data, **same_seed) for data in data_sets[1:])]
            yield found


def norms(rows: Array) -> Array:
    """Return the L2 norms of the rows of an array, that is, along its last axis."""
    return np.asarray(np.sqrt((rows**2).sum(axis=-1)))


def same(a: Array, b: Array) -> bool:
    """Return whether two arrays of releases have one shape and are equal up to rounding; NaN equals NaN.

    An entry of `a` may differ from that of `b` by 1e-5 times the absolute value of the latter, plus 1e-5 times the
    largest finite absolute value in `a`.
    """
    if a.shape != b.shape:
        return False
    most = _ROUNDING * float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=_ROUNDING, atol=most, equal_nan=True))


def alike(first: LoopOutput | None, second: LoopOutput | None) -> bool:
    """Return whether two runs release exactly the same numbers. False if a run is None or has no releases."""
    a, b = (None if output is None else output.releases for output in (first, second))
    return a is not None and b is not None and np.array_equal(a, b)
