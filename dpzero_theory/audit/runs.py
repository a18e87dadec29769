"""Runs of an audited training loop with changed settings, made so that two runs can be compared.

An audit compares runs that differ in one thing. Four changes make that possible:

- A *quiet* run has almost no noise: the smallest positive share of the claimed noise that the loop accepts, else none,
  so that the loop still draws random numbers. Two quiet runs with equal seeds are equal. So the difference of quiet
  runs on neighbouring data is exactly the effect of one record, and that of a noisy and a quiet run is the noise.
- A *frozen* run has a step size of zero, or one so small that its weights stay where they are. Every step is then made
  at the same weights and can be compared with the same step of another run; otherwise only first steps can.
- `all_records` puts every record into every batch.
- A *streamed* run reads a known stream of bytes, the same for equal seeds, in place of the operating system's random
  bytes. *Coupled* runs are streamed runs with noise of full size on different data.

Making a `LoopRuns` runs the loop once; its properties run it when they are first read, and keep the result. While a run
lasts, clocks and generators of the process are replaced or seeded as `Loop.run` says. No file is written here.
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
"""A quiet run has the first of these shares of the claimed noise that the loop accepts."""
_ROUNDING = 1e-5
"""Two arrays of releases count as equal if each entry differs by at most this share of the largest number, plus this
share of itself."""
_LARGER_STEP = 100.0  # Whether weights stay under a tiny step size is tested with a step size this many times larger
_STAYS = 0.1  # Weights count as staying if `_LARGER_STEP` times the step size moves releases by at most this many clips
_LARGEST_STILL, _SMALLEST_STILL = 1e-4, 1e-30
"""If releases are computed from weights, frozen runs have a step size between these shares of the loop's step size."""
_ROUNDED_WEIGHTS = 1e-9
"""If releases are computed from weights, the step size of frozen runs is chosen so that rounding the weights changes a
release by about this share of the noise, which no check sees."""
_BARELY = 1e-9  # Coupled runs use this share of the loop's step size, so that weights hardly move
NOT_REPEATABLE = (
    "runs with one seed and almost no noise cannot be compared: either they differ in something that is not made by the"
    " seed, or the noise does not follow the setting noise_multiplier (`names` gives the loop's word for it)"
)
"""What a check reports if it needs runs without noise that repeat with the seed, and the loop has none."""


class LoopRuns:
    """Runs of one loop, and the settings under which they can be compared.

    Args:
        loop: the loop, with its data, its claim and its settings.

    Attributes:
        loop, claim: the loop and its claim.
        base: what a run with the claimed settings returned and showed.

    Raises:
        LoopFailed: that run, which is made at once, fails.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop, self.claim = loop, loop.claim
        self.base = loop.run(seed=SEED)

    def attempt(self, records: Records | None = None, **settings: Any) -> LoopOutput | None:
        """Return the output of one run, or None if it fails: the loop raises an error or SystemExit, or its releases or
        weights are not numbers with a row for each step.

        Args:
            records: the data; the loop's own if None.
            settings: settings to replace, by the audit's names for them, such as noise_multiplier; and the arguments
                seed, global_seed and stream of `Loop.run`.
        """
        try:
            return self.loop.run(records, **settings)
        except LoopFailed:
            return None

    @cached_property
    def all_records(self) -> dict[str, Any]:
        """Changes of the loop's settings, by the audit's names for them, that put every record into every batch."""
        # Cyclic and truncated sampling draw no batch of all records, whatever its size, so they are set to "full"
        return {"batch": self.claim.n, **({} if self.claim.drawn(1.0) else {"sampling": "full"})}

    @property
    def unit_of_all(self) -> float:
        """The L2 norm of what a contribution of norm `clip` adds to a release if all records are in every batch."""
        return self.claim.unit(self.claim.n)

    @cached_property
    def quiet_multiplier(self) -> float:
        """The noise multiplier of runs almost without noise: the smallest of those tried with which the loop runs.

        They are 1e-20, 1e-9 and 1e-7 times the claimed multiplier, in this order; 0 if the loop runs with none of them.
        """
        tried = [self.claim.noise_multiplier * share for share in _QUIET_SHARES]
        return next((m for m in tried if self.attempt(seed=SEED, noise_multiplier=m)), 0.0)

    @cached_property
    def frozen(self) -> dict[str, Any]:
        """Changes of settings that keep the loop's weights where they are: a step size of 0, or a tiny one.

        A tiny one is for loops whose releases are computed from weights, which must differ by more than their rounding.
        The dictionary is empty if no change keeps the weights: the loop has no step size or ignores it, a run that
        tests this fails, or the weights from which releases are computed have no more than float32 precision.
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
        # Whether the loop obeys the step size is tested by the caller
        if not self.loop.step_size:
            return {}
        if not self.loop.from_weights:
            return {"step_size": 0.0}
        # Here releases are differences of weights, which are 0 if the steps are smaller than the weights' rounding
        path = self.base.trajectory
        if path is None or path.dtype != np.float64 or np.array_equal(path, path.astype(np.float32)):
            return {}
        least = float(np.abs(path[0]).max()) * 2.0**-53 / (_ROUNDED_WEIGHTS * self.claim.noise_std())
        size = self.loop.step_size
        return {"step_size": min(max(least, size * _SMALLEST_STILL), size * _LARGEST_STILL)}

    def comparable(self, output: LoopOutput) -> Array:
        """Return the releases of a run, which must have some, at the steps that can be compared between runs.

        The steps are all steps if settings can keep the weights where they are (`frozen` is not empty), else the first.
        The result has shape (steps, numbers).
        """
        assert output.releases is not None
        return output.releases if self.frozen else output.releases[:1]

    def _repeats(self, changes: dict[str, Any], stream: int | None) -> bool:
        how = {"seed": SEED, "stream": stream, "noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        pair = [self.attempt(**how) for _ in "ab"]
        return all(pair) and same(*(self.comparable(output) for output in pair if output))

    def _noise_shows(self, stream: int | None) -> bool:
        # Whether the first release is the same in two runs almost without noise, and another one in a run with the
        # claimed noise and the same seed and random bytes
        outputs = [
            self.attempt(seed=SEED, stream=stream, noise_multiplier=m, **self.all_records)
            for m in (self.quiet_multiplier, self.quiet_multiplier, self.claim.noise_multiplier)
        ]
        rows = [output.releases[:1] for output in outputs if output is not None and output.releases is not None]
        return len(rows) == 3 and same(rows[0], rows[1]) and not same(rows[0], rows[2])

    @cached_property
    def _repeating(self) -> tuple[dict[str, Any], bool] | None:
        # The properties `repeatable` and `streamed`, which one series of runs decides; None if `repeatable` is None
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
        """Changes of settings under which two runs almost without noise, of the same seed, release the same numbers.

        They are none (an empty dictionary) or, if such runs repeat only with full batches, `all_records`. None if the
        runs never repeat, or if the noise is not seen to obey its multiplier. If `streamed` is true, they repeat only
        if they also read the same known bytes in place of the operating system's random bytes.
        """
        return None if self._repeating is None else self._repeating[0]

    @property
    def streamed(self) -> bool:
        """Whether runs almost without noise, of the same seed, release the same numbers only if they read known bytes.

        These are bytes in place of the operating system's random bytes. False also if such runs never repeat.
        """
        return self._repeating is not None and self._repeating[1]

    @cached_property
    def batches_need_stream(self) -> bool | None:
        """Whether runs with batches as claimed, of one seed and almost without noise, repeat only with known bytes.

        These are bytes in place of the operating system's random bytes. None if the runs never repeat.
        """
        if self.repeatable == {}:
            return self.streamed
        return True if self.repeatable is not None and self._repeats({}, SEED) else None

    @cached_property
    def _noise_obeyed_by_seed(self) -> bool:
        return self._noise_shows(None)

    @property
    def noise_obeyed(self) -> bool:
        """Whether the loop is seen to obey its noise multiplier, since with the claimed one its first release differs.

        It is compared with those of two runs almost without noise, of the same seed and, if need be, the same known
        random bytes. False also if these two runs differ, fail or release nothing, as nothing can be seen then.
        """
        return self._noise_obeyed_by_seed or self.streamed

    def paired(self, seed: int, stream: int | None = None) -> dict[str, Any]:
        """Return the arguments `seed` and `stream` of `Loop.run` for runs that are to draw the same random numbers.

        They do under the settings `repeatable`, if that is not None. So a run with noise and one almost without noise
        then differ in the noise alone.

        Args:
            seed: the loop's seed.
            stream: an integer from which bytes follow that the loop reads in place of the operating system's random
                bytes. If None, it is `seed` if runs need known bytes to repeat, and else the system's are read.
        """
        return {"seed": seed, "stream": seed if stream is None and self.streamed else stream}

    def with_batches(self, seed: int) -> dict[str, Any]:
        """Return the arguments `seed` and `stream` of `Loop.run` with which all runs of one seed draw the same batches.

        Known bytes stand in for the operating system's random bytes if need be. If `batches_need_stream` is None, the
        batches may differ nevertheless.
        """
        return self.paired(seed, seed if self.batches_need_stream else None)

    def quiet(
        self, records: Records | None = None, *, seed: int = SEED, stream: int | None = None, **changes: Any
    ) -> Array | None:
        """Return the releases of a quiet run, almost without noise, at the steps that can be compared between runs.

        They are all steps if settings can keep the loop's weights where they are, as they then do, else the first step.

        Args:
            records: the data; the loop's own if None.
            seed: the loop's seed.
            stream: an integer from which bytes follow that the loop reads in place of the operating system's random
                bytes; if None, it is `seed` if runs need known bytes to repeat, and else the system's are read.
            changes: settings to replace, by the audit's names for them; `global_seed`, the seed of the process's global
                generators, may be among them.

        Returns:
            The releases, of shape (steps, numbers). None if the loop raises an error, or if the weights move although
            they should stay, so far that releases change.
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
        """Return releases of a run almost without noise, with full batches; None if the loop raises an error.

        Only the steps at which the weights are the same for all data are returned, shape (steps, numbers): all steps if
        the weights stay exactly where they are, else the first one. The data is the loop's own if `records` is None.
        """
        rows = self._quiet(records, self.paired(SEED), self.all_records)
        return rows if rows is None or not self.frozen.get("step_size") else rows[:1]

    def _quiet(self, records: Records | None, how: dict[str, Any], changes: dict[str, Any]) -> Array | None:
        # Whether the weights stay where they are is not tested here; `how` has the run's seed and stream
        settings = {"noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        output = self.attempt(records, **how, **settings)
        return None if output is None or output.releases is None else self.comparable(output)

    @cached_property
    def same_for_all_seeds(self) -> bool:
        """Whether runs of two seeds of the loop release the same numbers, so that no direction or weight comes from it.

        The runs have almost no noise, and all records in every batch. False also if one of them fails.
        """
        first, second = (self.quiet(seed=seed, **self.all_records) for seed in (SEED, SEED + 1))
        return first is not None and second is not None and same(first, second)

    def coupled(
        self, data_sets: Sequence[Records], numbers: Sequence[int], **changes: Any
    ) -> Iterator[list[LoopOutput | None]]:
        """Yield, for each of several draws of the noise, one run on each data set, all with this same noise.

        Runs of one draw have the same seed and known bytes in place of the operating system's random bytes; in them
        clocks show one time that never advances. All records are in every batch, and weights hardly move if the loop
        has a step size. For each draw the run on the first data set is made twice; if one of the two fails, or they do
        not release the same numbers, the iteration ends without a list for this draw.

        Args:
            data_sets: the data sets.
            numbers: integers, one for each draw of the noise; equal integers give equal noise.
            changes: further settings to replace, by the audit's names for them.

        Yields:
            The runs' outputs, in the order of `data_sets`; None for a run on a later data set that failed.
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
    """Return the L2 norms of an array along its last axis."""
    return np.asarray(np.sqrt((rows**2).sum(axis=-1)))


def same(a: Array, b: Array) -> bool:
    """Return whether two arrays of releases have one shape and are equal up to rounding; NaN equals NaN.

    An entry of `a` may differ from that of `b` by 1e-5 times the largest finite absolute value in `a`, plus 1e-5 times
    the absolute entry of `b`: by more than the noise of runs with as little noise as the loop accepts.
    """
    if a.shape != b.shape:
        return False
    most = _ROUNDING * float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=_ROUNDING, atol=most, equal_nan=True))


def alike(first: LoopOutput | None, second: LoopOutput | None) -> bool:
    """Return whether two runs release the same numbers, to the last bit; False if a run is None or released nothing."""
    a, b = (None if output is None else output.releases for output in (first, second))
    return a is not None and b is not None and np.array_equal(a, b)
