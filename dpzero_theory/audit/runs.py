"""Runs of an audited loop with changed settings, made so that two runs can be compared.

An audit compares runs that differ in one thing. Three changes of settings make that possible:

- A *quiet* run has almost no noise: the smallest share of the claimed noise that the loop accepts, so that the loop
  still draws random numbers. Two quiet runs with equal seeds are equal. So the difference of quiet runs on neighbouring
  data is exactly the effect of one record, and the difference of a noisy and a quiet run is the noise.
- A *frozen* run has a step size of zero, or one so small that its weights stay where they are. Every step is then made
  at the same weights and can be compared with the same step of another run; otherwise only first steps can.
- Where quiet runs with equal seeds still differ, because batches are drawn from another source, `all_records` puts
  every record into every batch.
- Where they differ even then, because initial weights or directions come from the operating system, runs are
  *streamed*: a known stream of bytes, the same for equal seeds, stands in for the system's random bytes.

Each experiment is made when a check first asks for it, and its result is kept.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Loop, LoopFailed, LoopOutput, still
from dpzero_theory.check import Array

Changes = dict[str, Any]
"""New values of the loop's settings for an experiment, by the audit's names of the settings."""

SEED = 11  # The loop's seed in experiments that do not need several seeds
_QUIET_SHARES = (1e-20, 1e-9, 1e-7, 0.0)
"""A quiet run, one almost without noise, has the first of these shares of the claimed noise that the loop accepts."""
_RELATIVE_ROUNDING = 1e-5
"""Two arrays of releases count as equal if each entry differs by at most this share of the largest number, plus this
share of itself."""
_LARGER_STEP = 100.0
"""Whether weights stay under a tiny step size is tested by a run with a step size this many times larger."""

_STAYS = 0.1  # Weights count as staying where they are if releases then change by at most this many clips
NOT_REPEATABLE = (
    "runs with one seed and almost no noise cannot be compared: either they differ in something that is not made by the"
    " seed, or the noise does not follow the setting noise_multiplier (`names` gives the loop's word for it)"
)
"""What a check reports if it needs runs without noise that repeat with the seed, and the loop has none."""
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
        """Makes a run on these records (the loop's own if None); returns None where the loop raises an error.

        `settings` are those that replace the loop's, and its seed.
        """
        try:
            return self.loop.run(records, **settings)
        except LoopFailed:
            return None

    @cached_property
    def all_records(self) -> Changes:
        """The changes of the loop's settings that put every record into every batch.

        A batch of n records is enough, except where batches drawn as claimed cannot have all records, since groups take
        turns or a largest size is kept. There the setting `sampling` becomes "full" too.
        """
        others = {} if self.claim.drawn(1.0) else {"sampling": "full"}
        return {"batch": self.claim.n, **others}

    @property
    def unit_of_all(self) -> float:
        """What a contribution whose L2 norm is one clip adds to a release with all records in every batch."""
        return self.unit(self.all_records)

    def unit(self, changes: Changes) -> float:
        """What a contribution whose L2 norm is one clip adds to a release, under changes of the loop's settings."""
        return self.claim.unit(changes.get("batch"))

    @cached_property
    def quiet_multiplier(self) -> float:
        """The noise multiplier of quiet runs: the smallest of a few tiny ones that the loop accepts."""
        tried = [self.claim.noise_multiplier * share for share in _QUIET_SHARES]
        return next((m for m in tried if self.attempt(seed=SEED, noise_multiplier=m)), 0.0)

    @cached_property
    def frozen(self) -> Changes:
        """The changes of settings that keep the loop's weights where they are.

        They are empty where the loop has no step size or ignores it.
        """
        changes = still(self.loop, self.base)
        if not changes or self.base.releases is None or len(self.base.releases) == 1:
            return changes or {}
        plain, large = (
            self.attempt(seed=SEED, stream=self._stream(SEED), noise_multiplier=self.quiet_multiplier, **step)
            for step in (changes, {"step_size": _LARGER_STEP * (self.loop.step_size or 0.0)})
        )
        moves = plain is not None and large is not None and not same(_later_steps(plain), _later_steps(large))
        return changes if moves else {}

    @property
    def comparable_steps(self) -> slice:
        """The steps whose releases can be compared between runs.

        They are all steps where the loop's weights can be kept where they are, else the first step.
        """
        return slice(None) if self.frozen else slice(0, 1)

    def comparable(self, output: LoopOutput) -> Array:
        """Returns the releases of those steps of a run that can be compared between runs.

        Of a run whose only release has steps of its own inside, they are its first numbers (`leading`).
        """
        assert output.releases is not None
        return output.releases[self.comparable_steps, : self.leading]

    @cached_property
    def leading(self) -> int | None:
        """How many of the first numbers of a run's only release do not follow the noise of others; None where all are
        alike.

        A loop with correlated noise may return its whole run as one release, whose later numbers are sums at weights
        that earlier noise moved. Noise that does not follow the records is the same on all data sets, if it is drawn
        from one stream of bytes; later numbers also have the effect of the moved weights, which follows the records.
        """
        base, entropy = self.base.releases, self.loop.entropy
        if base is None or len(base) > 1 or base.shape[1] < 2 or entropy is None:
            return None
        records = self.loop.records
        like = datasets.random_like(records[0], np.random.default_rng(SEED), 1.0)
        noises = []
        for data in (records, datasets.filled(records, like), datasets.each_scaled(records, 10.0)):
            pair = [
                self.attempt(data, seed=SEED, stream=SEED, noise_multiplier=m, **self.frozen, **self.all_records)
                for m in (self.claim.noise_multiplier, self.quiet_multiplier)
            ]
            rows = [run.releases[0] for run in pair if run is not None and run.releases is not None]
            if len(rows) < 2 or any(row.shape != base[0].shape for row in rows):
                return None
            noises.append(rows[0] - rows[1])
        most = _RELATIVE_ROUNDING * float(np.abs(noises[0]).max())
        apart = np.flatnonzero(~(np.abs(np.array(noises) - noises[0]) <= most).all(axis=0))
        return int(apart[0]) if apart.size and apart[0] > 0 else None

    def _stream(self, seed: int) -> int | None:
        """Returns the number of the known stream of random bytes for a seed of the loop.

        It is None where no stream can stand in for the system's random bytes (`Loop.entropy` is None).
        """
        return None if self.loop.entropy is None else seed

    def _noise_shows(self, stream: int | None) -> bool:
        """Whether two quiet runs with all records in every batch are equal and a noisy run differs from them.

        All three runs read the known stream of the number `stream`, or the system's random bytes where it is None.
        """
        outputs = [
            self.attempt(seed=SEED, stream=stream, noise_multiplier=m, **self.all_records)
            for m in (self.quiet_multiplier, self.quiet_multiplier, self.claim.noise_multiplier)
        ]
        rows = [output.releases[:1] for output in outputs if output is not None and output.releases is not None]
        return len(rows) == 3 and same(rows[0], rows[1]) and not same(rows[0], rows[2])

    @cached_property
    def noise_follows(self) -> bool:
        """Whether the loop obeys the noise multiplier it is given, as runs with equal seeds show."""
        return self._noise_shows(None)

    def repeats(self, changes: Changes, *, streamed: bool = False) -> bool:
        """Whether two runs almost without noise, with the same seed and these changes of settings, are equal.

        streamed: whether both read the same known stream in place of the system's random bytes.
        """
        how = {"stream": self._stream(SEED) if streamed else None, "noise_multiplier": self.quiet_multiplier}
        pair = [self.attempt(seed=SEED, **how, **self.frozen, **changes) for _ in "ab"]
        return all(pair) and same(*(self.comparable(output) for output in pair if output))

    @cached_property
    def repeatable(self) -> Changes | None:
        """The changes of settings under which runs almost without noise repeat with the seed: {} if none are needed.

        They are `all_records` where that makes such runs equal, and None where nothing does. Where `streamed` is true
        runs repeat only if they are streamed.
        """
        return None if self._repeating is None else self._repeating[0]

    @cached_property
    def _repeating(self) -> tuple[Changes, bool] | None:
        """The changes of settings of `repeatable`, and whether runs must be streamed too; None where nothing helps.

        Runs whose noise follows the setting may repeat only if they are streamed, where a loop ends by the sign of what
        it released, which is that of noise that is almost none.
        """
        if self.base.releases is None:
            return None
        for streamed in (False, True):
            if streamed and self.loop.entropy is None:
                break
            if self._noise_shows(SEED) if streamed else self.noise_follows:
                for changes in ({}, self.all_records):
                    if self.repeats(changes, streamed=streamed):
                        return changes, streamed
        return None

    @property
    def streamed(self) -> bool:
        """Whether runs repeat with the seed only if a known stream stands in for the system's random bytes."""
        return self._repeating is not None and self._repeating[1]

    @cached_property
    def batches_repeat(self) -> bool | None:
        """Whether runs with batches as claimed repeat only if a known stream stands in for the system's random bytes.

        It is False where runs almost without noise repeat with the seed alone, and None where they do not repeat.
        """
        if self.repeatable == {}:
            return self.streamed
        able = self.repeatable is not None and self.loop.entropy is not None
        return True if able and self.repeats({}, streamed=True) else None

    @property
    def noise_obeyed(self) -> bool:
        """Whether the loop obeys the noise multiplier it is given.

        Runs show it, which read a known stream of random bytes if need be.
        """
        return self.noise_follows or self.streamed

    def paired(self, seed: int, stream: int | None = None) -> Changes:
        """Returns the settings `seed` and `stream` that a quiet run and the noisy run compared with it share.

        `stream` is the number of a known sequence of random bytes, which stands in for the operating system's in both
        runs. None means the sequence that belongs to the seed where runs repeat only with one (`streamed`), and the
        system's own random bytes elsewhere.
        """
        return {"seed": seed, "stream": self._stream(seed) if stream is None and self.streamed else stream}

    def with_batches(self, seed: int) -> Changes:
        """Returns the settings `seed` and `stream` of `paired` for runs that draw their batches as claimed.

        With them, runs with equal seeds have equal batches, if that is possible at all (`batches_repeat`).
        """
        return self.paired(seed, self._stream(seed) if self.batches_repeat else None)

    def quiet(
        self, records: Records | None = None, *, seed: int = SEED, stream: int | None = None, **changes: Any
    ) -> Array | None:
        """Returns the releases of a quiet run, one almost without noise, at the steps that can be compared.

        None is returned where the loop raises an error, and also where the weights, which should stay where they are,
        move a little and that changes releases on these records.

        Args:
            records: the data; the loop's own if None.
            seed: the loop's seed.
            stream: the number of a known stream, as for `paired`.
            changes: changes of the loop's settings; `world` among them is the seed of the global generators.
        """
        how = self.paired(seed, stream)
        rows = self._without_noise(records, how, changes)
        if rows is None or len(rows) == 1 or not (step := self.frozen.get("step_size")):
            return rows
        further = self._without_noise(records, how, {**changes, "step_size": step * _LARGER_STEP})
        if further is None or further.shape != rows.shape:
            return None
        return rows if np.allclose(rows, further, rtol=0, atol=_STAYS * self.unit(changes), equal_nan=True) else None

    def at_start(self, records: Records | None = None) -> Array | None:
        """Returns releases of a quiet run with all records in every batch; None where the loop raises an error.

        They are those of the steps at which the weights are the same for all data: the first step, unless weights are
        kept exactly where they are. `records` are the data; the loop's own if None.
        """
        rows = self._without_noise(records, self.paired(SEED), self.all_records)
        return rows if rows is None or not self.frozen.get("step_size") else rows[:1]

    def _without_noise(self, records: Records | None, how: Changes, changes: Changes) -> Array | None:
        settings = {"noise_multiplier": self.quiet_multiplier, **self.frozen, **changes}
        output = self.attempt(records, **how, **settings)
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
    """Returns the L2 norm of each row of an array; a row is its last axis."""
    return np.asarray(np.sqrt((rows**2).sum(axis=-1)))


def stacked(rows: Sequence[Array | None], unit: float) -> Array | None:
    """Returns all arrays of `rows` stacked into one, divided by `unit`.

    None is returned where one of them is None or has another shape than the first.
    """
    whole = [row for row in rows if row is not None and rows[0] is not None and row.shape == rows[0].shape]
    return np.array(whole) / unit if len(whole) == len(rows) else None


def same(a: Array, b: Array) -> bool:
    """Whether two arrays are equal up to rounding, and up to the tiny noise of runs that are almost without noise.

    They must have the same shape. An entry of `b` may differ from that of `a` by 1e-5 of the largest finite absolute
    value in `a`, plus 1e-5 of its own. NaN equals NaN.
    """
    if a.shape != b.shape:
        return False
    most = _RELATIVE_ROUNDING * float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=_RELATIVE_ROUNDING, atol=most, equal_nan=True))


def alike(first: LoopOutput | None, second: LoopOutput | None) -> bool:
    """Whether two runs release the same numbers, to the last bit; false where one is None or released nothing."""
    a, b = (None if output is None else output.releases for output in (first, second))
    return a is not None and b is not None and np.array_equal(a, b)


def _later_steps(output: LoopOutput) -> Array:
    return np.empty(0) if output.releases is None else output.releases[1:]


def significant_bits(values: Array) -> int:
    """The 90% quantile of how many significant bits the numbers in `values` have; 53 where there are none.

    Trailing zeros are not significant.
    """
    fractions, _ = np.frexp(values[values != 0])
    whole = [int(fraction * 2**53) for fraction in fractions]
    bits = [number.bit_length() - ((number & -number).bit_length() - 1) for number in whole]
    return int(np.quantile(bits, 0.9)) if bits else 53
