"""Experiments on a loop: the same run with one thing changed.

A run is `quiet` with almost no noise (the least share of the claim that the loop takes, so that numbers are still
drawn) and `frozen` with weights that stay where they are. With equal seeds two quiet runs are equal, so what differs
between runs on neighbouring data is what one record does, exactly, and what differs between a quiet and a noisy run is
the noise. Where equal seeds give no equal runs, since batches come from elsewhere, all records are used in every step
(batch = n).

Everything is computed when a check first asks for it, and once.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Loop, LoopFailed, Outcome, still
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_QUIET = (1e-20, 1e-9, 1e-7, 0.0)
"""Shares of the claimed noise that are tried for quiet runs, the first that the loop takes."""
_SAME = 1e-5
"""Of the largest number: what quiet noise and rounding leave."""
_SEED, _NOISE_SEED, _DIRECTIONS = 11, 1000, range(1100, 1132)
_NOTHING = "the loop returns neither releases nor weights, or has no step_size among its settings"
_WANTED, _FEWEST, _MOST = 7500, 24, 200
_PLACES = 256
_SIZES, _MOST_SIZES = 8, 60
"""Runs whose batch sizes are looked at."""
_WORLDS = {
    "records a millionth as large": 1e-6,
    "records a thousand times as large": 1e3,
    "records of nothing": 0.0,
}
_FURTHER, _UNMOVED = 100.0, 0.1
"""How much further weights that hardly move are moved, and what that may change of a step at most, in clips."""
_LOUD, _SEEN = 0.5, 0.05
"""Of a clip, what each of equal records adds to a step at least; of what the pair moves, what is seen."""
_COMPARED = 4
"""Numbers that must agree before two sizes of data are compared."""


class Noise(NamedTuple):
    """Noise seen: of shape (runs, steps, coordinates), in units of what is claimed; where, and with what settings."""

    world: str
    values: Array


class Pair(NamedTuple):
    """Two records for one place; size: how far apart they move every step at least, in clips."""

    first: Any
    second: Any
    size: float


class Scan(NamedTuple):
    """How far the pair in each place moved each step (seeds, steps, records); `whole`: with all records. In clips."""

    moved: Array
    size: float
    whole: Array

    @property
    def included(self) -> NDArray[np.bool_]:
        """Whether the batch had the record: batches may be of any size, so that a twentieth is enough."""
        return np.asarray(self.moved > self.size * _SEEN)


class Lab:
    """All experiments with one loop.

    runs: about how many runs statistics may take. variations: settings under which the claim must hold as well, each
    a name and changes.
    """

    def __init__(self, loop: Loop, runs: int = 200, variations: tuple[tuple[str, dict[str, Any]], ...] = ()) -> None:
        self.loop, self.claim, self.view, self.runs, self.variations = loop, loop.claim, loop.view, runs, variations
        self.base = loop.run(seed=_SEED)
        self.why_not = "" if self.base.releases is not None else _NOTHING
        """Why there are no releases to look at; empty where there are."""

    @cached_property
    def quiet_noise(self) -> float:
        """The multiplier of quiet runs: nearly nothing, so that all is drawn, or nothing where that is refused."""
        tried = [self.claim.noise_multiplier * share for share in _QUIET]
        return next((m for m in tried if self.attempt(seed=_SEED, noise_multiplier=m)), 0.0)

    @cached_property
    def frozen(self) -> dict[str, Any]:
        """Settings that keep the weights; none where the loop has no step size, or ignores it."""
        changes = still(self.loop, self.base)
        if not changes or self.base.releases is None or len(self.base.releases) == 1:
            return changes or {}
        plain, large = (
            self.attempt(seed=_SEED, noise_multiplier=self.quiet_noise, **with_step)
            for with_step in (changes, {"step_size": 100 * (self.loop.step_size or 0.0)})
        )
        moves = plain is not None and large is not None and not same(_tail(plain), _tail(large))
        return changes if moves else {}

    @property
    def rows(self) -> slice:
        """The steps whose releases can be compared between runs: all where weights are frozen, else the first."""
        return slice(None) if self.frozen else slice(0, 1)

    @cached_property
    def mode(self) -> dict[str, Any] | None:
        """Settings under which equal seeds give equal quiet runs; None where there are none."""
        if self.base.releases is None or not self.follows:
            return None
        return next((found for found in ({}, self.all_records) if self.repeats(found)), None)

    @property
    def all_records(self) -> dict[str, Any]:
        """Every record in every step."""
        return {"batch": self.claim.n}

    @cached_property
    def follows(self) -> bool:
        """Whether the noise follows its setting: quiet runs on all records are equal, and noisy ones differ."""
        found = [
            self.attempt(seed=_SEED, noise_multiplier=m, **self.all_records)
            for m in (self.quiet_noise, self.quiet_noise, self.claim.noise_multiplier)
        ]
        rows = [outcome.releases[:1] for outcome in found if outcome is not None and outcome.releases is not None]
        return len(rows) == 3 and same(rows[0], rows[1]) and not same(rows[0], rows[2])

    def repeats(self, changes: dict[str, Any]) -> bool:
        """Whether two quiet runs with these changes are the same."""
        found = [self.attempt(seed=_SEED, noise_multiplier=self.quiet_noise, **self.frozen, **changes) for _ in (0, 1)]
        return all(found) and same(*(self.seen(outcome) for outcome in found if outcome))

    def attempt(self, records: Records | None = None, **settings: Any) -> Outcome | None:
        """A run, None where the loop refuses it."""
        try:
            return self.loop.run(records, **settings)
        except LoopFailed:
            return None

    def seen(self, outcome: Outcome) -> Array:
        """Its releases, of the steps that can be compared."""
        assert outcome.releases is not None
        return outcome.releases[self.rows]

    def quiet(self, records: Records | None = None, *, seed: int = _SEED, **changes: Any) -> Array | None:
        """Releases without noise, of the steps that can be compared; None where the loop refuses.

        None as well where frozen weights move a little and these records let that be seen.
        """
        rows = self._without_noise(records, seed, changes)
        if rows is None or len(rows) == 1 or not (step := self.frozen.get("step_size")):
            return rows
        further = self._without_noise(records, seed, {**changes, "step_size": step * _FURTHER})
        most = _UNMOVED * self.unit(changes)
        unmoved = further is not None and further.shape == rows.shape
        return rows if unmoved and np.allclose(rows, further, rtol=0, atol=most, equal_nan=True) else None  # type: ignore[arg-type]

    def at_start(self, records: Records | None = None, **changes: Any) -> Array | None:
        """As `quiet`, of the steps at the same weights whatever the records: where frozen weights move, the first."""
        rows = self._without_noise(records, _SEED, changes)
        return rows if rows is None or not self.frozen.get("step_size") else rows[:1]

    def _without_noise(self, records: Records | None, seed: int, changes: dict[str, Any]) -> Array | None:
        found = self.attempt(records, seed=seed, **{"noise_multiplier": self.quiet_noise, **self.frozen, **changes})
        return None if found is None or found.releases is None else self.seen(found)

    def unit(self, changes: dict[str, Any]) -> float:
        """What one clip is in a release, with these settings."""
        return self.claim.unit(changes.get("batch"))

    @cached_property
    def seedless(self) -> bool:
        """Whether the seed makes nothing but batches and noise, so that steps can be compared with one another."""
        found = [self.quiet(seed=seed, **self.all_records) for seed in (_SEED, _SEED + 1)]
        return all(rows is not None for rows in found) and same(*(np.asarray(rows) for rows in found))

    @cached_property
    def with_one_less(self) -> float | None:
        """What a record adds where there is one record less, over what it adds else; None where that cannot be said.

        With one record less the seed may make other directions. It does not where exchanging the records of the pair
        does the same to all steps at both sizes, up to a factor, which is that of the denominators.
        """
        if self.pair is None or self.claim.n < 3:
            return None
        data = datasets.replaced(datasets.replaced(self.loop.records, 0, self.pair.first), 1, self.pair.second)
        other = datasets.replaced(data, 0, self.pair.second)
        worlds = (data, other, datasets.removed(data, 1), datasets.removed(data, 0))
        rows = [self.quiet(world, **self.all_records) for world in worlds]
        if any(row is None or not np.isfinite(row).all() for row in rows):
            return None
        large, small = (np.asarray(rows[k]) - np.asarray(rows[k + 1]) for k in (0, 2))
        if large.shape != small.shape or large.size < _COMPARED:
            return None
        product = norms(large.ravel()) * norms(small.ravel())
        if not product > 0 or float(large.ravel() @ small.ravel()) < (1 - _SAME) * product:
            return None
        return float(norms(small.ravel()) / norms(large.ravel()))

    @cached_property
    def pair(self) -> Pair | None:
        """The two records that, in one place, move every step the furthest apart, with all records in each.

        Of those that do the larger ones, which are clipped the surest.
        """
        found = sorted(self._extremes, key=lambda pair: max(map(abs, datasets.numbers(pair[0])), default=0.0))
        best: Pair | None = None
        for i, (first, here) in enumerate(found):
            for second, there in found[:i]:
                size = float(norms(here - there).min()) / self.unit(self.all_records)
                if size > (best.size * (1 - _SAME) if best else _SAME):
                    best = Pair(first, second, size)
        return best

    @cached_property
    def _extremes(self) -> list[tuple[Any, Array]]:
        """Each record that the loop takes, with the quiet releases when it is in the first, and in the last place."""
        found: list[tuple[Any, Array]] = []
        if self.mode is None:
            return found
        for record in datasets.extremes(self.loop.records):
            rows = [
                self.quiet(datasets.replaced(self.loop.records, place, record), **self.all_records) for place in (0, -1)
            ]
            if all(row is not None and np.isfinite(row).all() for row in rows):
                found.append((record, np.concatenate(rows)))  # type: ignore[arg-type]
        return [pair for pair in found if pair[1].shape == found[0][1].shape]

    @cached_property
    def loudest(self) -> Records | None:
        """The data of equal records whose sum is the largest, at least half a clip for each of them in every step."""
        best, found = _LOUD * self.claim.n, None
        for record, _ in self._extremes:
            data = datasets.filled(self.loop.records, record)
            rows = self.quiet(data, **self.all_records)
            size = 0.0 if rows is None else float(norms(rows).min()) / self.unit(self.all_records)
            if size > best and np.isfinite(size):
                best, found = size, data
        return found

    @cached_property
    def shares(self) -> Array | None:
        """Releases on equal records over those with all records in each: sizes over denominators, or all 1.

        The first are of the batches of `scan`. NaN where the seed's weights or directions leave little of the records.
        """
        data, count = self.loudest, min(max(self.runs // 2, _SIZES), _MOST_SIZES)
        if data is None:
            return None
        seeds = range(_SEED, _SEED + count)
        alike = [seeds[0]] * count if self.seedless else seeds
        full = [self.quiet(data, seed=seed, **self.all_records) for seed in dict.fromkeys(alike)]
        full *= count // len(full)
        part = [self.quiet(data, seed=seed) for seed in seeds]
        if any(rows is None or rows.shape != full[0].shape for rows in [*full, *part]):  # type: ignore[union-attr]
            return None
        whole = norms(np.array(full))
        loud = whole > _LOUD * self.claim.n * self.unit(self.all_records)
        return np.asarray(np.divide(norms(np.array(part)), whole, out=np.full(whole.shape, np.nan), where=loud))

    @cached_property
    def along(self) -> Array | None:
        """How far the pair moves each step with all records, in clips, over many seeds: along many directions."""
        rows = [self._moved(0, seed, **self.all_records) for seed in _DIRECTIONS] if self.pair is not None else [None]
        return _together(rows, self.unit(self.all_records))

    @cached_property
    def scan(self) -> Scan | None:
        """Each record exchanged in turn, on batches as claimed.

        None where batches do not come from the seed, or some directions are such that no record moves a step.
        """
        n = self.claim.n
        if self.mode != {} or self.pair is None or not self.frozen or len(self.loop.records) != n or n > _PLACES:
            return None
        if not self.seedless and (self.along is None or (self.along <= self.pair.size * _SEEN).any()):
            return None
        seeds = range(_SEED, _SEED + max(1, min(4, 2 * self.runs // n)))
        each = [_together([self._moved(place, seed) for place in range(n)], self.unit({})) for seed in seeds]
        whole = [self._moved(0, seed, **self.all_records) for seed in seeds]
        moved, same_seeds = _together(each, 1.0), _together(whole, self.unit(self.all_records))
        if moved is None or same_seeds is None:
            return None
        return Scan(moved.transpose(0, 2, 1), self.pair.size, same_seeds)

    def _moved(self, place: int, seed: int, **changes: Any) -> Array | None:
        """How far each step is apart with one and with the other record of the pair in this place."""
        assert self.pair is not None
        data = [datasets.replaced(self.loop.records, place, record) for record in self.pair[:2]]
        first, second = (self.quiet(world, seed=seed, **changes) for world in data)
        return None if first is None or second is None or first.shape != second.shape else norms(first - second)

    def noise(
        self, world: str, records: Records | None, changes: dict[str, Any], wanted: int = _WANTED
    ) -> Noise | None:
        """A sample of the noise on these records, in units of the claim; None where it cannot be told from the rest."""
        values: list[Array] = []
        first = self.residual(records, changes, _NOISE_SEED)
        if first is None:
            return None
        runs = int(min(max(_FEWEST, -(-wanted // first.size)), _MOST, max(_FEWEST, self.runs)))
        for k in range(runs):
            found = self.residual(records, changes, _NOISE_SEED + k)
            if found is None or found.shape != first.shape:
                return None
            values.append(found)
        return Noise(world, np.array(values) / self.claim.noise_std(changes.get("batch")))

    @cached_property
    def blind(self) -> bool:
        """Whether the noise cannot be turned off, and is new in each run: then two runs with one seed differ by it."""
        if self.base.releases is None or self.follows:
            return False
        rows = [self.attempt(seed=_SEED, world=world, **self.frozen) for world in (_SEED, _SEED, _SEED + 1)]
        first, again, other = (None if row is None or row.releases is None else self.seen(row) for row in rows)
        if first is None or again is None or other is None:
            return False
        return not np.array_equal(first, again) and not np.array_equal(first, other)

    def _difference(self, records: Records | None, changes: dict[str, Any], seed: int) -> Array | None:
        """Of two runs, over the root of two: as large as the noise of one, and with the same Gaussian law."""
        pair = [self.attempt(records, seed=seed, world=w, **{**self.frozen, **changes}) for w in (seed, seed + 1)]
        rows = [self.seen(row) for row in pair if row is not None and row.releases is not None]
        return (rows[0] - rows[1]) / np.sqrt(2) if len(rows) == 2 and rows[0].shape == rows[1].shape else None

    def residual(self, records: Records | None, changes: dict[str, Any], seed: int) -> Array | None:
        """The noise of a run; where it cannot be turned off, of the difference of two."""
        if self.blind:
            return self._difference(records, changes, seed)
        noisy = self.attempt(records, seed=seed, **{**self.frozen, **changes})
        if noisy is None or noisy.releases is None:
            return None
        if noisy.clean is not None and noisy.clean.shape == noisy.releases.shape:
            return noisy.releases - noisy.clean
        if self.mode is None:
            return None
        quiet = self.quiet(records, seed=seed, **changes)
        return None if quiet is None or quiet.shape != self.seen(noisy).shape else self.seen(noisy) - quiet

    @cached_property
    def sample(self) -> Noise | None:
        """The noise on the records given, with the settings claimed."""
        return self.noise("as claimed", None, dict(self.mode or {}))

    def worlds(self) -> Iterator[tuple[str, Callable[[], Noise | None]]]:
        """Other records and settings under which the noise must be what it is: by name, sampled when called."""
        few, mode, records = _WANTED // 4, dict(self.mode or {}), self.loop.records
        for name, factor in _WORLDS.items():
            data = datasets.each_scaled(records, factor)
            yield name, lambda name=name, data=data: self.noise(name, data, mode, few)  # type: ignore[misc]
        for name, changes in self.variations:
            yield name, lambda name=name, changes=changes: self.noise(name, None, mode | changes, few)  # type: ignore[misc]
        if self.pair is not None:
            alike = datasets.filled(records, self.pair.first)
            yield "records all alike", lambda: self.noise("records all alike", alike, mode, few)
        if self.claim.relation == Relation.ADD_REMOVE and not self.blind:
            part = records[: max(1, self.claim.n // 4)]
            yield "a quarter of the records", lambda: self.noise("a quarter", part, self.all_records, few)
        if mode != self.all_records and not self.blind:
            yield "batch = n", lambda: self.noise("batch = n", None, self.all_records, few)

    def aligned(self) -> Noise | None:
        """The noise where all records are the same extreme one, so that the sum is as large as it can be."""
        if self.loudest is None:
            return None
        return self.noise("all records alike and extreme", self.loudest, self.all_records, _WANTED // 4)


def norms(rows: Array) -> Array:
    """L2 norm of each row."""
    return np.asarray(np.sqrt((rows**2).sum(axis=-1)))


def _together(rows: Sequence[Array | None], unit: float) -> Array | None:
    """All in units; None where one is missing or of another shape."""
    whole = [row for row in rows if row is not None and rows[0] is not None and row.shape == rows[0].shape]
    return np.array(whole) / unit if len(whole) == len(rows) else None


def same(a: Array, b: Array) -> bool:
    """Whether two arrays are equal up to quiet noise and rounding."""
    if a.shape != b.shape:
        return False
    return bool(np.allclose(a, b, rtol=_SAME, atol=_SAME * float(np.abs(a).max(initial=0.0)), equal_nan=True))


def alike(first: Outcome | None, second: Outcome | None) -> bool:
    """Whether two runs release the same, to the last bit."""
    a, b = (None if outcome is None else outcome.releases for outcome in (first, second))
    return a is not None and b is not None and np.array_equal(a, b)


def _tail(outcome: Outcome) -> Array:
    return np.empty(0) if outcome.releases is None else outcome.releases[1:]
