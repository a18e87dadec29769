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
        loop: the loop.

    Attributes:
        loop, claim: the loop and its claim.
        base: what a run with the claimed settings returned and showed.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop, self.claim = loop, loop.claim
        self.base = loop.run(seed=SEED)

    def attempt(self, records: Records | None = None, **settings: Any) -> LoopOutput | None:
        """Return the output of one run, or None if the loop raises an error; the arguments are those of `Loop.run`."""
        try:
            return self.loop.run(records, **settings)
        except LoopFailed:
            return None

    @cached_property
    def all_records(self) -> dict[str, Any]:
        """The changes of settings that put every record into every batch."""
        # Cyclic and truncated sampling draw no batch of all records, whatever its size, so they are set to "full"
        return {"batch": self.claim.n, **({} if self.claim.drawn(1.0) else {"sampling": "full"})}

    @property
    def unit_of_all(self) -> float:
        """The L2 norm of what a contribution of norm `clip` adds to a release if all records are in every batch."""
        return self.claim.unit(self.claim.n)

    @cached_property
    def quiet_multiplier(self) -> float:
        """The noise multiplier of quiet runs: the first of 1e-20, 1e-9 and 1e-7 of the claimed one that runs, or 0."""
        tried = [self.claim.noise_multiplier * share for share in _QUIET_SHARES]
        return next((m for m in tried if self.attempt(seed=SEED, noise_multiplier=m)), 0.0)

    @cached_property
    def frozen(self) -> dict[str, Any]:
        """The changes of settings that keep the loop's weights where they are: those of `_still`, or none (empty).

        There are none if `_still` has none, or if two runs show that the loop ignores its step size, or one fails.
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
        """Return the changes of settings under which weights stay if the loop obeys its step size: 0, or tiny.

        A tiny one serves loops whose releases are computed from weights. The result is empty if the loop has no step
        size, or if such weights have no more than float32 precision.
        """
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
        """Return the releases of the steps that can be compared between runs, shape (steps, numbers).

        They are all steps if the weights stay where they are (`frozen`), else only the first.
        """
        assert output.releases is not None
        return output.releases if self.frozen else output.releases[:1]

    def _repeats(self, changes: dict[str, Any], stream: int | None) -> bool:
        """Return whether two runs almost without noise, with equal seed, stream and changes of settings, are equal."""
        how = {"seed": SEED, "stream": stream, "noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        pair = [self.attempt(**how) for _ in "ab"]
        return all(pair) and same(*(self.comparable(output) for output in pair if output))

    def _noise_shows(self, stream: int | None) -> bool:
        """Return whether the first step is equal in two quiet runs and different in a run with the claimed noise.

        All three have full batches, one seed, and the known random bytes `stream` (the system's if None). False if a
        run fails or releases nothing.
        """
        outputs = [
            self.attempt(seed=SEED, stream=stream, noise_multiplier=m, **self.all_records)
            for m in (self.quiet_multiplier, self.quiet_multiplier, self.claim.noise_multiplier)
        ]
        rows = [output.releases[:1] for output in outputs if output is not None and output.releases is not None]
        return len(rows) == 3 and same(rows[0], rows[1]) and not same(rows[0], rows[2])

    @cached_property
    def _repeating(self) -> tuple[dict[str, Any], bool] | None:
        """The values of `repeatable` and `streamed` as a pair; None if `repeatable` is None."""
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
        """The changes of settings under which quiet runs (almost without noise) repeat with the seed.

        Either no changes (empty) or `all_records`; None if the runs never repeat, or if the noise is not seen to obey
        its multiplier. If `streamed` is true, they repeat only if they read known random bytes.
        """
        return None if self._repeating is None else self._repeating[0]

    @property
    def streamed(self) -> bool:
        """Whether runs almost without noise repeat with the seed only if they read known random bytes."""
        return self._repeating is not None and self._repeating[1]

    @cached_property
    def batches_need_stream(self) -> bool | None:
        """Whether runs with batches as claimed must read known random bytes to repeat; None if they never repeat."""
        if self.repeatable == {}:
            return self.streamed
        return True if self.repeatable is not None and self._repeats({}, SEED) else None

    @cached_property
    def _noise_obeyed_by_seed(self) -> bool:
        return self._noise_shows(None)

    @property
    def noise_obeyed(self) -> bool:
        """Whether the loop is seen to obey its noise multiplier: its first release changes with the noise alone.

        It is False if this cannot be seen, because two runs almost without noise, of equal seeds and if need be equal
        known random bytes, differ, fail or release nothing.
        """
        return self._noise_obeyed_by_seed or self.streamed

    def paired(self, seed: int, stream: int | None = None) -> dict[str, Any]:
        """Return arguments `seed` and `stream` for `Loop.run`; runs with them draw the same random numbers.

        So a run with noise and one almost without differ in the noise alone. A given `stream`, which selects known
        random bytes, is returned as it is. In place of None, `stream` is `seed` if runs repeat with known bytes only
        (`streamed`), and else None, so that the run reads the system's bytes.
        """
        return {"seed": seed, "stream": seed if stream is None and self.streamed else stream}

    def with_batches(self, seed: int) -> dict[str, Any]:
        """Return arguments `seed` and `stream` for `Loop.run`; runs of one seed then have equal batches, if any do."""
        return self.paired(seed, seed if self.batches_need_stream else None)

    def quiet(
        self, records: Records | None = None, *, seed: int = SEED, stream: int | None = None, **changes: Any
    ) -> Array | None:
        """Return the releases of a quiet run (almost without noise) at the steps that can be compared.

        Args:
            records: the data; the loop's own if None.
            seed, stream: as for `paired`.
            changes: changes of the loop's settings, and `global_seed` of `Loop.run`.

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
        """Return what `quiet` does, without testing that the weights stay; `how` are the run's seed and stream."""
        settings = {"noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        output = self.attempt(records, **how, **settings)
        return None if output is None or output.releases is None else self.comparable(output)

    @cached_property
    def same_for_all_seeds(self) -> bool:
        """Whether quiet runs with full batches are equal for two seeds, which then make no directions or weights."""
        first, second = (self.quiet(seed=seed, **self.all_records) for seed in (SEED, SEED + 1))
        return first is not None and second is not None and same(first, second)

    def coupled(
        self, data_sets: Sequence[Records], numbers: Sequence[int], **changes: Any
    ) -> Iterator[list[LoopOutput | None]]:
        """Yield coupled runs: for each number, a list with one run on each data set, all with the same random numbers.

        All records are in every batch, clocks stand still, and weights hardly move if the loop has a step size. A run
        that fails is None. The iteration ends early if two such runs on the first data set differ or fail.

        Args:
            data_sets: the data sets.
            numbers: each selects a different stream of random bytes, and so different noise.
            changes: further changes of the loop's settings.
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
    """Return the L2 norm of each row of an array; a row is its last axis."""
    return np.asarray(np.sqrt((rows**2).sum(axis=-1)))


def same(a: Array, b: Array) -> bool:
    """Return whether two arrays have one shape and are equal up to rounding and the tiny noise of quiet runs.

    NaN equals NaN.
    """
    if a.shape != b.shape:
        return False
    most = _ROUNDING * float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=_ROUNDING, atol=most, equal_nan=True))


def alike(first: LoopOutput | None, second: LoopOutput | None) -> bool:
    """Return whether two runs release the same numbers, to the last bit; False if a run is None or released nothing."""
    a, b = (None if output is None else output.releases for output in (first, second))
    return a is not None and b is not None and np.array_equal(a, b)
