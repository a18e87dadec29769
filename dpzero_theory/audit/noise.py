"""Measures a loop's noise, as the difference of a noisy run and a quiet run (almost without noise) of the same seed."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.influence import Influence
from dpzero_theory.audit.runs import SEED, Changes, LoopRuns
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_NOISE_SEED = 1000
"""The loop's seed in the first of the runs whose noise is sampled; each further run has the next seed."""
_WANTED_NUMBERS = 7500
"""How many numbers of noise a sample should have; a quarter as many on each data set of `NoiseSamples.worlds`."""

_FEWEST_RUNS, _MOST_RUNS = 24, 200  # The fewest and the most runs from which a sample of the noise is taken
_SCALES = {
    "records a millionth as large": 1e-6,
    "records a thousand times as large": 1e3,
    "records of nothing": 0.0,
}
"""Factors by which all records are scaled, by the names in the report; the noise must not change with them."""


class NoiseSample(NamedTuple):
    """A sample of a loop's noise.

    Args:
        world: on which data and with which settings it was measured, in words.
        values: the noise in units of the claimed standard deviation, of shape (runs, steps, numbers of a step).
    """

    world: str
    values: Array


class NoiseSamples:
    """Samples of one loop's noise on several data sets and under several settings.

    Args:
        runs: runs of the loop.
        influence: experiments on how much single records change the loop's releases.
        most_runs: about how many runs a sample may take.
        variations: further settings under which the claim must hold, each a name and the changes of settings.
    """

    def __init__(
        self, runs: LoopRuns, influence: Influence, most_runs: int, variations: tuple[tuple[str, Changes], ...]
    ) -> None:
        self._runs, self._influence, self._most_runs, self._variations = runs, influence, most_runs, variations

    @property
    def repeatable(self) -> Changes:
        """The changes of settings under which noise is measured.

        Under them, runs almost without noise repeat with the seed. Where no settings do that, the claimed ones are
        used.
        """
        return dict(self._runs.repeatable or {})

    @cached_property
    def sample(self) -> NoiseSample | None:
        """The noise on the audit's records with the claimed settings.

        It is None where it cannot be separated from what the records add.
        """
        found = self._sampled("as claimed", None, self.claimed)
        return (
            found
            if found is not None or self.claimed == self.repeatable
            else self._sampled("batch = n", None, self.repeatable)
        )

    @property
    def claimed(self) -> Changes:
        """The changes of settings under which noise is sampled: none where batches can be as claimed.

        They can be if the system's random bytes, which draw them, may be replaced by known ones.
        """
        return {} if self._runs.batches_repeat else self.repeatable

    def worlds(self) -> Iterator[tuple[str, Callable[[], NoiseSample | None]]]:
        """Yields other data sets and settings under which the noise must be as large as claimed.

        Each comes as its name for the report and a function that samples the noise, or returns None where it cannot.
        """
        few, changes, records = _WANTED_NUMBERS // 4, self.claimed, self._runs.loop.records
        all_records, add_remove = self._runs.all_records, self._runs.claim.relation == Relation.ADD_REMOVE

        def world(
            name: str, data: Records | None, how: Changes, said: str = ""
        ) -> tuple[str, Callable[[], NoiseSample | None]]:
            return name, lambda: self._sampled(said or name, data, how, few)

        for name, factor in _SCALES.items():
            yield world(name, datasets.each_scaled(records, factor), changes)
        for name, variation in self._variations:
            yield world(name, None, changes | variation)
        if self._influence.pair is not None:
            yield world("records all alike", datasets.filled(records, self._influence.pair.first), changes)
        if add_remove and not self.blind:
            part = records[: max(1, self._runs.claim.n // 4)]
            yield world("a quarter of the records", part, all_records, "a quarter")
        if changes != all_records and not self.blind:
            yield world("batch = n", None, all_records)
        if changes == all_records and self._runs.claim.sample_rate < 1:
            yield world("batches as claimed, records of nothing", datasets.each_scaled(records, 0.0), {})

    def aligned(self) -> NoiseSample | None:
        """Samples the noise on a data set of equal records with a large sum, where rounding loses noise first.

        Returns None where there is no such data set (`Influence.loudest`), or where the noise cannot be separated from
        the sums.
        """
        if self._influence.loudest is None:
            return None
        name = "all records alike and extreme"
        return self._sampled(name, self._influence.loudest, self._runs.all_records, _WANTED_NUMBERS // 4)

    def _sampled(
        self, world: str, records: Records | None, changes: Changes, wanted: int = _WANTED_NUMBERS
    ) -> NoiseSample | None:
        """Samples about `wanted` numbers of noise; returns None where the noise cannot be separated from the sums.

        `world` names the data and settings in the report. `records` are the data (the loop's own if None), and
        `changes` the changes of the loop's settings.
        """
        first = self.residual(records, changes, _NOISE_SEED)
        if first is None:
            return None
        count = min(max(_FEWEST_RUNS, -(-wanted // first.size)), _MOST_RUNS, max(_FEWEST_RUNS, self._most_runs))
        values = [first]
        for k in range(1, int(count)):
            one = self.residual(records, changes, _NOISE_SEED + k)
            if one is None or one.shape[1:] != first.shape[1:]:
                return None
            values.append(one)
        if any(len(one) != len(first) for one in values):
            # A loop that ends by what it released selects the noise of later steps, but not that of its first one
            values = [one[:1] for one in values]
        return NoiseSample(world, np.array(values) / self._runs.claim.noise_std(changes.get("batch")))

    @cached_property
    def blind(self) -> bool:
        """Whether the loop ignores the setting of its noise, but draws its noise anew in each run.

        The noise is then measured by the difference of two runs with the same seed of the loop and other states of the
        global random generators.
        """
        runs = self._runs
        if runs.base.releases is None or runs.noise_follows or runs.streamed:
            return False
        outputs = [runs.attempt(seed=SEED, world=world, **runs.frozen) for world in (SEED, SEED, SEED + 1)]
        rows = [runs.comparable(one) for one in outputs if one is not None and one.releases is not None]
        return len(rows) == 3 and not any(np.array_equal(rows[0], other) for other in rows[1:])

    def residual(
        self,
        records: Records | None,
        changes: Changes,
        seed: int,
        *,
        stream: int | None = None,
        world: int | None = None,
    ) -> Array | None:
        """Returns the noise of one run's releases; None where it cannot be separated from the sums.

        It is that of the first release alone where the noisy and the quiet run have different numbers of steps.

        Where the loop returns its sums before noise, these are subtracted, else the releases of a quiet run, which has
        almost no noise; where noise cannot be turned off (`blind`), the difference of two noisy runs is used.

        Args:
            records: the data; the loop's own if None.
            changes: changes of the loop's settings.
            seed: the loop's seed.
            stream: the number of the known stream of bytes that the noisy and the quiet run both read in place of the
                system's random bytes; None for that of `LoopRuns.paired`.
            world: the seed of the global generators; None for `seed`.
        """
        runs = self._runs
        if self.blind:
            return self._difference(records, changes, seed)
        paired = runs.with_batches(seed) if stream is None and not changes else runs.paired(seed, stream)
        how = {**paired, "world": world}
        noisy = runs.attempt(records, **how, **{**runs.frozen, **changes})
        if noisy is None or noisy.releases is None:
            return None
        if noisy.clean is not None and noisy.clean.shape == noisy.releases.shape:
            return noisy.releases - noisy.clean
        if runs.repeatable is None:
            return None
        quiet = runs.quiet(records, **how, **changes)
        rows = runs.comparable(noisy)
        if quiet is None or quiet.shape[1:] != rows.shape[1:]:
            return None
        return rows - quiet if len(rows) == len(quiet) else rows[:1] - quiet[:1]

    def _difference(self, records: Records | None, changes: dict[str, Any], seed: int) -> Array | None:
        """Returns the difference of two noisy runs over the root of 2: if noise is Gaussian, this has the noise's law.

        The runs have the same data (`records`, the loop's own if None), the same seed of the loop, and different states
        of the global random generators, which are seeded with `seed` and `seed` + 1. Their settings are those of the
        claim, changed so that the weights stay where they are (`frozen` of the runs), and then by `changes`. Where the
        weights cannot be kept, only the first step is compared: so both have the same sums, and the difference is of
        the noise alone. None is returned where a run fails, or where the releases have different shapes.
        """
        settings = {**self._runs.frozen, **changes}
        pair = [self._runs.attempt(records, seed=seed, world=world, **settings) for world in (seed, seed + 1)]
        rows = [self._runs.comparable(one) for one in pair if one is not None and one.releases is not None]
        return (rows[0] - rows[1]) / np.sqrt(2) if len(rows) == 2 and rows[0].shape == rows[1].shape else None
