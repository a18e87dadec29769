"""Runs of an audited loop with changed settings, made so that two runs can be compared.

An audit compares runs that differ in one thing. Three changes of settings make that possible:

- A *quiet* run has almost no noise: the smallest share of the claimed noise that the loop accepts, so that the loop
  still draws random numbers. Two quiet runs with equal seeds are equal. So the difference of quiet runs on neighbouring
  data is exactly the effect of one record, and the difference of a noisy and a quiet run is the noise.
- A *frozen* run has a step size of zero, or one so small that its weights stay where they are. Every step is then made
  at the same weights and can be compared with the same step of another run; otherwise only first steps can.
- Where quiet runs with equal seeds still differ, because batches are drawn from another source, `all_records` puts
  every record into every batch.

Each experiment is made when a check first asks for it, and its result is kept.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Loop, LoopFailed, LoopOutput, still
from dpzero_theory.check import Array

Changes = dict[str, Any]
"""New values of the loop's settings for an experiment, by the audit's names of the settings."""

SEED = 11  # The loop's seed in experiments that do not need several seeds
_QUIET_SHARES = (1e-20, 1e-9, 1e-7, 0.0)
"""Quiet runs have the first of these shares of the claimed noise multiplier that the loop accepts."""
_RELATIVE_ROUNDING = 1e-5
"""Two arrays count as equal if they differ by at most this share of their largest number."""
_LARGER_STEP = 100.0  # Whether frozen weights really stay is tested by a run with a step size this many times larger
_STAYS = 0.1  # Frozen weights count as staying if releases then change by at most this many clips
NOT_REPEATABLE = "quiet runs with equal seeds differ, or the noise ignores its setting"
"""What a check reports if it needs `LoopRuns.repeatable` and that is None."""
_NO_RELEASES = "the loop returns neither releases nor weights, or has no step_size among its settings"


class LoopRuns:
    """Runs of one loop, and the settings under which they can be compared.

    Attributes:
        loop, claim: the loop and its claim.
        base: a run with the claimed settings.
        why_no_releases: why `base` has no releases to look at; empty where it has some.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop, self.claim = loop, loop.claim
        self.base = loop.run(seed=SEED)
        self.why_no_releases = "" if self.base.releases is not None else _NO_RELEASES

    def attempt(self, records: Records | None = None, **settings: Any) -> LoopOutput | None:
        """Makes a run on these records (the loop's own if None); returns None where the loop raises an error."""
        try:
            return self.loop.run(records, **settings)
        except LoopFailed:
            return None

    @property
    def all_records(self) -> Changes:
        """The settings that put every record into every batch."""
        return {"batch": self.claim.n}

    @property
    def unit_of_all(self) -> float:
        """What a contribution of one clip adds to a release with all records in every batch."""
        return self.unit(self.all_records)

    def unit(self, changes: Changes) -> float:
        """What a contribution of L2 norm one clip adds to a release under these changes of settings, in its unit."""
        return self.claim.unit(changes.get("batch"))

    @cached_property
    def quiet_multiplier(self) -> float:
        """The noise multiplier of quiet runs, see `_QUIET_SHARES`."""
        tried = [self.claim.noise_multiplier * share for share in _QUIET_SHARES]
        return next((m for m in tried if self.attempt(seed=SEED, noise_multiplier=m)), 0.0)

    @cached_property
    def frozen(self) -> Changes:
        """The settings that keep the weights where they are; empty where the loop has no step size or ignores it."""
        changes = still(self.loop, self.base)
        if not changes or self.base.releases is None or len(self.base.releases) == 1:
            return changes or {}
        plain, large = (
            self.attempt(seed=SEED, noise_multiplier=self.quiet_multiplier, **step)
            for step in (changes, {"step_size": 100 * (self.loop.step_size or 0.0)})
        )
        moves = plain is not None and large is not None and not same(_later_steps(plain), _later_steps(large))
        return changes if moves else {}

    @property
    def comparable_steps(self) -> slice:
        """The steps whose releases can be compared between runs: all of them in frozen runs, else the first."""
        return slice(None) if self.frozen else slice(0, 1)

    def comparable(self, output: LoopOutput) -> Array:
        """The releases of the steps that can be compared between runs."""
        assert output.releases is not None
        return output.releases[self.comparable_steps]

    @cached_property
    def noise_follows(self) -> bool:
        """Whether the loop obeys the noise multiplier it is given.

        It does if two quiet runs with all records in every batch are equal and a noisy run differs from them.
        """
        outputs = [
            self.attempt(seed=SEED, noise_multiplier=m, **self.all_records)
            for m in (self.quiet_multiplier, self.quiet_multiplier, self.claim.noise_multiplier)
        ]
        rows = [output.releases[:1] for output in outputs if output is not None and output.releases is not None]
        return len(rows) == 3 and same(rows[0], rows[1]) and not same(rows[0], rows[2])

    def repeats(self, changes: Changes) -> bool:
        """Whether two runs almost without noise, with the same seed and these changes of settings, are equal."""
        pair = [self.attempt(seed=SEED, noise_multiplier=self.quiet_multiplier, **self.frozen, **changes) for _ in "ab"]
        return all(pair) and same(*(self.comparable(output) for output in pair if output))

    @cached_property
    def repeatable(self) -> Changes | None:
        """The changes of settings under which runs almost without noise repeat with the seed: {} if none are needed.

        They are `all_records` where that makes such runs equal, and None where nothing does.
        """
        if self.base.releases is None or not self.noise_follows:
            return None
        return next((changes for changes in ({}, self.all_records) if self.repeats(changes)), None)

    def quiet(self, records: Records | None = None, *, seed: int = SEED, **changes: Any) -> Array | None:
        """Returns the comparable releases of a run almost without noise; None where the loop raises an error.

        None is also returned where the frozen weights move a little and that changes releases on these records.
        """
        rows = self._without_noise(records, seed, changes)
        if rows is None or len(rows) == 1 or not (step := self.frozen.get("step_size")):
            return rows
        further = self._without_noise(records, seed, {**changes, "step_size": step * _LARGER_STEP})
        if further is None or further.shape != rows.shape:
            return None
        return rows if np.allclose(rows, further, rtol=0, atol=_STAYS * self.unit(changes), equal_nan=True) else None

    def at_start(self, records: Records | None = None) -> Array | None:
        """Returns releases of a quiet run with all records in every batch; None where the loop raises an error.

        They are those of the steps at which the weights are the same for all data: the first step, unless weights are
        frozen exactly.
        """
        rows = self._without_noise(records, SEED, self.all_records)
        return rows if rows is None or not self.frozen.get("step_size") else rows[:1]

    def _without_noise(self, records: Records | None, seed: int, changes: Changes) -> Array | None:
        settings = {"noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        output = self.attempt(records, seed=seed, **settings)
        return None if output is None or output.releases is None else self.comparable(output)

    @cached_property
    def same_for_all_seeds(self) -> bool:
        """Whether runs almost without noise, with all records in every batch, are equal for different seeds too.

        They are if the seed draws only batches and noise, and then one step can be compared with another. They are not
        where the seed makes directions or initial weights.
        """
        pair = [self.quiet(seed=seed, **self.all_records) for seed in (SEED, SEED + 1)]
        return all(rows is not None for rows in pair) and same(*(np.asarray(rows) for rows in pair))


def norms(rows: Array) -> Array:
    """The L2 norm of each row."""
    return np.asarray(np.sqrt((rows**2).sum(axis=-1)))


def stacked(rows: Sequence[Array | None], unit: float) -> Array | None:
    """All rows in one array, divided by `unit`; None where a row is missing or has another shape."""
    whole = [row for row in rows if row is not None and rows[0] is not None and row.shape == rows[0].shape]
    return np.array(whole) / unit if len(whole) == len(rows) else None


def same(a: Array, b: Array) -> bool:
    """Whether two arrays are equal up to rounding and the tiny noise that quiet runs (see the module) still have."""
    if a.shape != b.shape:
        return False
    most = _RELATIVE_ROUNDING * float(np.abs(a).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=_RELATIVE_ROUNDING, atol=most, equal_nan=True))


def alike(first: LoopOutput | None, second: LoopOutput | None) -> bool:
    """Whether two runs release the same numbers, to the last bit."""
    a, b = (None if output is None else output.releases for output in (first, second))
    return a is not None and b is not None and np.array_equal(a, b)


def _later_steps(output: LoopOutput) -> Array:
    return np.empty(0) if output.releases is None else output.releases[1:]
