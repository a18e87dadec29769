"""Looks for outputs that records reach by another way than through the releases, whatever noise they have.

What is computed from releases alone is moved by a record only as far as the record moves the releases: if a small
change of the noise changes an output x by b times what it changes the releases, then a record that changes the releases
by v must change x by b v. A sum that is released twice, parts of a sum that have noise of their own, and weights that
something moves without noise break this rule.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.runs import SEED, alike
from dpzero_theory.audit.tokens import Position, Shown, tokens, where
from dpzero_theory.check import Array

_NOISE = 0.1
"""The noise multiplier in these runs, at most: so small that smooth functions of releases are nearly linear."""
_SHARES = (0.4, 0.9)
"""The first record is one that is nearly clipped times one or the other of these factors."""
_MOST_PATHS = 96  # A run should release at most this many numbers, since what they all do to an output is estimated
_MORE_RUNS = 48  # There are this many more runs than numbers of a run
_WORLD = 1000  # The seed of the global generators in the first of these runs; each further run has the next
_MOST_PLACES = 2000  # At most this many numbers of the outputs are looked at
_SHARE = 0.25
"""An output is reported if at least this share of what a record does to it does not come through the releases."""
_SMALL_SHARE = 0.05  # Of an output without noise of its own, so large a share is enough
_NEARBY = 1e-3
"""What is found is looked at again with noise and a change of the record that are this many times as large.

An output that follows the releases by cases, such as weights under a step size that is halved where a release is larger
than the one before, is linear in them there.
"""
_OWN_NOISE = 0.1
"""An output has noise of its own if what releases do not explain of it nearby, beside what the record does, is at least
this share of what it was before."""
_CLEAN = 0.01  # It has none if that is below this share of what the record does to it
_STEPS_OF_ROUNDING = 4  # What a record does to an output must be at least so many steps to which the output is rounded
_STEPS_OF_DIFFERENCE = 2  # A difference of two effects on it can come from rounding up to so many of these steps
_DRAWS = 6  # Whether a record's effect adds to that of the noise is looked at under this many draws of the noise
_SAME_EFFECT = 0.05  # It does if its effect is the same in all draws up to this share
_REPEATS = 1e-6  # Two runs almost without noise agree up to this share of the largest number


_MOST_FURTHER = 800  # At most so many further runs are made where an output may have noise of its own
_CERTAIN = 9.0  # They are as many as bring what is seen to this many standard errors
Columns = NDArray[np.intp]
"""The indices of columns in a table of runs and positions."""


class _Runs(NamedTuple):
    """What a number of runs released and showed.

    Args:
        releases: the numbers of all releases, of shape (runs, numbers).
        shown: numbers in the outputs, of shape (runs, positions); NaN where a run has none.
        steps: the steps of numbers that are rounded, of shape (positions,): the smallest difference of two values.
    """

    releases: Array
    shown: Array
    steps: Array


def beside_releases(lab: Lab, level: float) -> str | None:
    """Returns the name of a position in the outputs that a record reaches by another way than through the releases.

    None is returned where there is none, or where it cannot be seen. `lab` makes experiments on the audited loop. Where
    all outputs are computed from the releases, None is returned with probability 1 - `level` or more.
    """
    base, runs = lab.runs.base.releases, lab.runs
    if runs.repeatable is None or base is None or not runs.noise_obeyed or not _positions(lab, tokens(runs.base)):
        return None
    near = lab.influence.nearly_clipped
    record = lab.loop.records[0] if near is None else near
    worlds = _worlds(lab, record, _SHARES)
    steps = max(1, min(len(base), _MOST_PATHS // base.shape[1]))
    changes = {**runs.repeatable, **({} if steps == len(base) else {"steps": steps})}
    how = _varying(lab)
    first = runs.attempt(worlds[0], **changes, **(how(0) if how else {}))
    if how is None or first is None or first.releases is None:
        return None
    places = _positions(lab, tokens(first))
    noise = min(lab.claim.noise_multiplier, _NOISE)
    quiet = _read(
        [
            runs.attempt(data, noise_multiplier=runs.quiet_multiplier, **changes, **how(0))
            for data in (*worlds, worlds[0])
        ],
        places,
    )
    if quiet is None:
        return None
    moved, shown = (part[1] - part[0] for part in quiet[:2])
    # The first and the third quiet run have the same data and almost no noise. A number by which they differ more than
    # by rounding (`most`, a share of its largest value) has noise of its own, and is left to other tests.
    most = _REPEATS * np.abs(np.nan_to_num(quiet.shown)).max(axis=0)
    shown = np.where(np.abs(quiet.shown[2] - quiet.shown[0]) <= most, shown, np.nan)
    count, made = min(first.releases.size, _MOST_PATHS) + _MORE_RUNS, list[LoopOutput | None]()
    for further in (False, True):
        made += [runs.attempt(worlds[0], noise_multiplier=noise, **changes, **how(k)) for k in range(len(made), count)]
        noisy = _read(made, places)
        if noisy is None or noisy.releases.shape[1] != moved.size:
            return None
        table, effects, names = _with_sums(noisy, shown, places)
        suspects, perhaps = _unlike(table, moved, effects, level / 2)
        sure = _additive(lab, worlds, {**changes, "noise_multiplier": noise}, places, shown, suspects)
        if sure.size:
            nearby = _worlds(lab, record, (_SHARES[1], _SHARES[1] * (1 + _NEARBY)))
            loud = [{"noise_multiplier": noise * _NEARBY, **changes, **how(k)} for k in range(len(made))]
            still = {"noise_multiplier": runs.quiet_multiplier, **changes, **how(0)}
            close = _effects(
                places,
                [runs.attempt(data, **still) for data in nearby],
                [runs.attempt(nearby[0], **one) for one in loud],
            )
            if close is not None and (found := _confirmed(_compared(table, moved, effects), close, sure)) is not None:
                return names[found]
        if further or not perhaps or moved.size > _MOST_PATHS:
            break
        count += int(min(_MOST_FURTHER, (count - moved.size) * perhaps))
    return None


def _worlds(lab: Lab, record: Any, factors: Sequence[float]) -> list[datasets.Records]:
    """Returns the records of `lab` with the first one replaced by `record` times each of the factors in turn."""
    return [datasets.replaced(lab.loop.records, 0, datasets.scaled(record, factor)) for factor in factors]


class _Compared(NamedTuple):
    """What a record does to columns of outputs, and what of it comes through the releases, each of shape (columns,).

    Args:
        shown: what it does in all.
        through: what it does through the releases.
        left: the root mean square of what the releases do not explain in runs with other noise.
        steps: the steps of numbers that are rounded, as in `_Runs`.
    """

    shown: Array
    through: Array
    left: Array
    steps: Array


def _effects(
    places: list[Position], quiet: list[LoopOutput | None], noisy: list[LoopOutput | None]
) -> _Compared | None:
    """Returns what the second of two quiet runs differs by from the first; None where a run failed.

    `noisy` are runs on the first one's data with other noise, and `places` the positions of the numbers.
    """
    two, many = _read(quiet, places), _read(noisy, places)
    if two is None or many is None or two.releases.shape[1] != many.releases.shape[1]:
        return None
    moved, shown = (part[1] - part[0] for part in two[:2])
    table, effects, _ = _with_sums(many, shown, places)
    return _compared(table, moved, effects)


def _compared(noisy: _Runs, moved: Array, shown: Array) -> _Compared:
    """Returns what of a record's effect comes through the releases; the arguments are those of `_unlike`."""
    releases = noisy.releases - noisy.releases.mean(axis=0)
    if releases.shape[1] > _MOST_PATHS:
        releases, moved = releases @ moved[:, None] / max(float(moved @ moved), 1e-300), np.ones(1)
    values = np.nan_to_num(noisy.shown - noisy.shown.mean(axis=0))
    gains = np.linalg.lstsq(releases, values, rcond=None)[0]
    left = np.sqrt(((values - releases @ gains) ** 2).mean(axis=0))
    return _Compared(shown, moved @ gains, left, noisy.steps)


def _confirmed(before: _Compared, nearby: _Compared, suspects: Columns) -> int | None:
    """Returns the first of some columns that a record still moves by more than through the releases nearby, or None.

    Where a column has noise of its own there too, what was seen before counts. A column that is too coarsely rounded
    to show what the record does there is left out.
    """
    rest, size, was = np.abs(nearby.shown - nearby.through), np.abs(nearby.shown), np.abs(before.shown)
    own = (nearby.left * was > _OWN_NOISE * before.left * size) & (before.left > _CLEAN * was)
    was_large = np.abs(before.shown - before.through) > _SHARE * was
    clean = nearby.left < _CLEAN * size
    told = size > _STEPS_OF_DIFFERENCE / _SMALL_SHARE * nearby.steps
    sure = told & ((was_large & own) | (clean & (rest > _SMALL_SHARE * size)))
    found = suspects[sure[suspects]]
    return int(found[0]) if found.size else None


def _with_sums(noisy: _Runs, shown: Array, places: list[Position]) -> tuple[_Runs, Array, list[str]]:
    """Returns the runs, what a record does, and names, with one column more for each output.

    The further column is the sum of the output's numbers, each times what the record does to it, so that what it does
    shows the most beside independent noise. Its step is what the steps of all rounded numbers in it can add up to.

    Args:
        noisy: the runs.
        shown: what the record does to each number that is shown.
        places: the positions of the numbers.
    """
    outputs = sorted({name for name, _ in places})
    each = np.where(np.isfinite(shown) & np.isfinite(noisy.shown).all(axis=0), shown, 0.0)
    of = np.array([[each[k] if name == output else 0.0 for k, (name, _) in enumerate(places)] for output in outputs])
    values = np.nan_to_num(noisy.shown)
    steps = np.append(noisy.steps, np.abs(of) @ np.where(np.isfinite(noisy.steps), noisy.steps, 0.0))
    table = _Runs(noisy.releases, np.hstack([noisy.shown, values @ of.T]), steps)
    return table, np.append(shown, of @ each), [*map(where, places), *outputs]


def _positions(lab: Lab, shown: Shown) -> list[Position]:
    """Returns the positions of numbers in the outputs of a run that are not its releases; `shown` are its outputs."""
    from_weights = {"trajectory", "weights"} if lab.loop.from_weights else set()
    left_out = {"releases", *from_weights}
    every = sorted(at for at, token in shown.items() if isinstance(token, float) and at[1] >= 0)
    return [at for at in every if at[0] not in left_out][:_MOST_PLACES]


def _varying(lab: Lab) -> Any:
    """Returns a function from a number to settings of a run in which the noise alone depends on that number, or None.

    The number gives the seed of the global random generators, if the noise comes from these. Else it gives the loop's
    seed, and with it the bytes that are streamed to the loop in place of the operating system's random bytes where runs
    repeat only with such bytes. What is seeded so may make nothing but the noise: runs with two numbers must have equal
    releases where the noise is almost turned off, and different ones with noise. None is returned where this holds for
    neither. `lab` makes the runs.
    """
    runs = lab.runs

    def of_world(number: int) -> dict[str, Any]:
        return {"seed": SEED, "world": _WORLD + number}

    def of_seed(number: int) -> dict[str, Any]:
        return runs.paired(_WORLD + number)

    for how in (of_world, of_seed):
        pair = [
            runs.attempt(noise_multiplier=runs.quiet_multiplier, **(runs.repeatable or {}), **how(k)) for k in (0, 1)
        ]
        noisy = [runs.attempt(**(runs.repeatable or {}), **how(k)) for k in (0, 1)]
        rows = [run.releases for run in pair if run is not None and run.releases is not None]
        if len(rows) == 2 and rows[0].shape == rows[1].shape and not alike(*noisy):
            most = _REPEATS * float(np.abs(rows[0]).max())
            if np.allclose(rows[0], rows[1], rtol=0, atol=most):
                return how
    return None


def _read(outputs: list[LoopOutput | None], places: list[Position]) -> _Runs | None:
    """Returns what runs released and showed at some positions; None where one failed or released another shape."""
    rows = [run.releases for run in outputs if run is not None and run.releases is not None]
    if len(rows) < len(outputs) or any(row.shape != rows[0].shape or not np.isfinite(row).all() for row in rows):
        return None
    shown = [tokens(run) for run in outputs if run is not None]
    cells = [[token if isinstance(token := one.get(at), float) else np.nan for at in places] for one in shown]
    values = np.array(cells, dtype=np.float64).reshape(len(cells), len(places))
    steps = np.array([np.diff(np.unique(column)).min(initial=np.inf) for column in np.nan_to_num(values).T])
    return _Runs(np.array([row.ravel() for row in rows]), values, steps)


def _unlike(noisy: _Runs, moved: Array, shown: Array, level: float) -> tuple[Columns, float]:
    """Returns the columns of outputs that a record changes by another amount than through the releases.

    A number comes with them: by how many times there should be more runs for others to be seen, or 0.

    Args:
        noisy: runs with other noise.
        moved: how much the record changes the releases, of shape (numbers,).
        shown: how much it changes the outputs, of shape (positions,).
        level: the probability with which a column is returned although outputs are linear in the releases, with
            Gaussian noise of their own or without.
    """
    releases = noisy.releases - noisy.releases.mean(axis=0)
    if releases.shape[1] > _MOST_PATHS:
        releases, moved = releases @ moved[:, None] / max(float(moved @ moved), 1e-300), np.ones(1)
    told = np.isfinite(noisy.shown).all(axis=0) & np.isfinite(shown) & (np.abs(np.nan_to_num(shown)) > 0)
    columns = np.flatnonzero(told)
    if not columns.size:
        return columns, 0.0
    values = noisy.shown[:, columns] - noisy.shown[:, columns].mean(axis=0)
    gains, _, rank, _ = np.linalg.lstsq(releases, values, rcond=None)
    through, left = moved @ gains, ((values - releases @ gains) ** 2).sum(axis=0)
    freedom = len(values) - int(rank) - 1
    spread = float(moved @ np.linalg.pinv(releases.T @ releases) @ moved)
    rest, errors = np.abs(shown[columns] - through), np.sqrt(left / freedom * spread)
    steps = noisy.steps[columns]
    large = (rest > _SMALL_SHARE * np.abs(shown[columns])) & (np.abs(shown[columns]) > np.abs(through) / 2)
    varied = np.isfinite(steps) & (np.abs(shown[columns]) > _STEPS_OF_ROUNDING * steps)
    chances = 2 * stats.t.sf(rest / np.maximum(errors, 1e-300), freedom) * columns.size
    found = large & varied & (chances < level)
    unsure = large & varied & ~found & (rest > errors)
    wanted = _CERTAIN * errors[unsure] / rest[unsure]
    perhaps = float(wanted.min() ** 2) if unsure.any() else 0.0
    return columns[found], perhaps


def _additive(
    lab: Lab,
    worlds: list[datasets.Records],
    changes: dict[str, Any],
    places: list[Position],
    shown: Array,
    suspects: Columns,
) -> Columns:
    """Returns those of some columns on which a record has the same effect whatever the noise.

    So a sign or a rounded number, which one record moves under some draws of the noise alone, is left out. Runs on the
    two data sets have the same noise, since they read the same stream of bytes.

    Args:
        lab: makes the runs.
        worlds: two data sets that differ in a record.
        changes: changes of the loop's settings.
        places: the positions of the columns.
        shown: what the record does to each of them without noise.
        suspects: the columns, among them those that `_with_sums` adds.
    """
    if not suspects.size:
        return suspects
    effects = []
    for number in range(1, _DRAWS + 1):
        same = {"seed": SEED, "stream": number, "world": _WORLD + number}
        pair = _read([lab.runs.attempt(data, **same, **changes) for data in worlds], places)
        if pair is None:
            return suspects[:0]
        effects.append(_with_sums(pair, shown, places)[0].shown)
    each = np.array([two[1] - two[0] for two in effects])[:, suspects]
    middle = np.abs(np.median(each, axis=0))
    apart = np.abs(each - np.median(each, axis=0)).max(axis=0)
    return np.asarray(suspects[(middle > 0) & (apart <= _SAME_EFFECT * middle)])
