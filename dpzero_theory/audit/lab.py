"""`Lab` holds everything that a check may use of an audited loop: its claim, and experiments on it.

One of these is the noise, which is the difference of a noisy run and a quiet run (almost without noise) of the same
seed.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.influence import Influence
from dpzero_theory.audit.runs import Changes, LoopRuns
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_NOISE_SEED = 1000  # The loop's seed in the first of the runs whose noise is sampled; each further run adds 1
_WANTED = 7500  # How many numbers of noise a sample should have; a quarter as many on each of the other data sets
_FEWEST_RUNS, _MOST_RUNS = 24, 200  # The fewest and the most runs from which a sample of the noise is taken
_SCALES = {
    "records a millionth as large": 1e-6,
    "records a thousand times as large": 1e3,
    "records of nothing": 0.0,
}
"""Factors by which all records are scaled, by the names in the report; the noise must not change with them."""
Worlds = Iterator[tuple[str, Callable[[], Array | None]]]


class Residual(NamedTuple):
    """The noise of one run, and the sums to which it was added, both of shape (steps, numbers of a step)."""

    noise: Array
    sums: Array


class NoiseSamples:
    """Samples of one loop's noise on several data sets and under several settings.

    A sample has the noise in units of the claimed standard deviation, of shape (runs, steps, numbers of a step).

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
        self._records = runs.loop.records

    @property
    def repeatable(self) -> Changes:
        """The changes of settings under which quiet runs repeat with the seed."""
        return dict(self._runs.repeatable or {})

    @cached_property
    def claimed(self) -> Changes:
        """The changes of settings under which noise is sampled: none where batches can be as claimed."""
        return {} if self._runs.batches_repeat else self.repeatable

    @cached_property
    def sample(self) -> Array | None:
        """The noise on the audit's records with the claimed settings; None where it cannot be told from the sums."""
        found = self._sampled(None, self.claimed)
        if found is None and self.claimed != self.repeatable:
            return self._sampled(None, self.repeatable)
        return found

    def worlds(self) -> Worlds:
        """Yield other data sets and settings under which the noise must be as large as claimed.

        Each comes as its name for the report and a function that samples the noise, or returns None where it cannot.
        """
        few, changes, records, runs = _WANTED // 4, self.claimed, self._records, self._runs

        def world(name: str, data: Records | None, how: Changes) -> tuple[str, Callable[[], Array | None]]:
            return name, lambda: self._sampled(data, how, few)

        for name, factor in _SCALES.items():
            yield world(name, datasets.each_scaled(records, factor), changes)
        for name, variation in self._variations:
            yield world(name, None, changes | variation)
        if self._influence.pair is not None:
            yield world("records all alike", datasets.filled(records, self._influence.pair.first), changes)
        if self._influence.loudest is not None:  # here rounding to few digits loses noise first
            yield world("where the sum is largest", self._influence.loudest, runs.all_records)
        if runs.claim.relation == Relation.ADD_REMOVE:
            yield world("a quarter of the records", records[: max(1, runs.claim.n // 4)], runs.all_records)
        if changes != runs.all_records:
            yield world("batch = n", None, runs.all_records)
        if changes == runs.all_records and runs.claim.sample_rate < 1:
            yield world("batches as claimed, records of nothing", datasets.each_scaled(records, 0.0), {})

    def _sampled(self, records: Records | None, changes: Changes, wanted: int = _WANTED) -> Array | None:
        """Sample about `wanted` numbers of noise; None where the noise cannot be told from the sums."""
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
            # A loop that ends by what it released selects the noise of later steps, but not that of its first one
            values = [one[:1] for one in values]
        return np.array(values) / self._runs.claim.noise_std(changes.get("batch"))

    def residual(self, records: Records | None, changes: Changes, seed: int, **how: int | None) -> Array | None:
        """Return the noise of one run's releases; the arguments are those of `parts`."""
        found = self.parts(records, changes, seed, **how)
        return None if found is None else found.noise

    def parts(
        self,
        records: Records | None,
        changes: Changes,
        seed: int,
        *,
        stream: int | None = None,
        world: int | None = None,
    ) -> Residual | None:
        """Return the noise of one run and the rest of its releases; None where they cannot be told apart.

        They are those of the first step where the noisy and the quiet run have different numbers of steps. Where the
        loop returns its sums before noise, these are subtracted, else the releases of a quiet run.

        Args:
            records: the data; the loop's own if None.
            changes: changes of the loop's settings.
            seed: the loop's seed.
            stream: the number of the known stream that both runs read in place of the system's random bytes; None for
                that of `LoopRuns.paired`.
            world: the seed of the global generators; None for `seed`.
        """
        runs = self._runs
        same = runs.with_batches(seed) if stream is None and not changes else runs.paired(seed, stream)
        noisy = runs.attempt(records, **same, world=world, **{**runs.frozen, **changes})
        if noisy is None or noisy.releases is None:
            return None
        if noisy.clean is not None and noisy.clean.shape == noisy.releases.shape:
            return Residual(noisy.releases - noisy.clean, noisy.clean)
        quiet = None if runs.repeatable is None else runs.quiet(records, **same, world=world, **changes)
        rows = runs.comparable(noisy)
        if quiet is None or quiet.shape[1:] != rows.shape[1:]:
            return None
        rows, quiet = (rows, quiet) if len(rows) == len(quiet) else (rows[:1], quiet[:1])
        return Residual(rows - quiet, quiet)


class Lab:
    """Experiments on one training loop, each made when a check first asks for it.

    Args:
        runs: runs of the loop with changed settings.
        most_runs: about how many runs a check's statistic may use.
        variations: further settings under which the claim must hold: pairs of a name and the changed settings.

    Attributes:
        loop, claim, view: the loop, its claim, and what an attacker sees.
        influence: how much single records change the releases.
        noise: samples of the loop's noise.
    """

    def __init__(self, runs: LoopRuns, most_runs: int = 200, variations: tuple[tuple[str, Changes], ...] = ()) -> None:
        self.loop, self.claim, self.view = runs.loop, runs.claim, runs.loop.view
        self.runs, self.most_runs = runs, most_runs
        self.influence = Influence(runs, most_runs)
        self.noise = NoiseSamples(runs, self.influence, most_runs, variations)
