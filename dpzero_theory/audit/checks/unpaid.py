"""Checks for releases that are noised but not accounted: shown beside the releases, with noise of their own."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import special, stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.runs import same
from dpzero_theory.audit.tokens import Shown, Token, contents, tokens, where
from dpzero_theory.check import Array

_FEWEST_PAIRS, _MOST_PAIRS = 40, 120  # how many runs are made on each data set, at least and at most
_LINES = (0.125, 0.25, 0.5, 0.75, 0.875)
"""Quantiles of both samples together at which a line is drawn. Something that is in half of the runs on one data set
and in none on the other is in a quarter of all runs; at the quantile of a quarter it may be on either side of the line
by chance, at an eighth it is beyond it."""
_MOST_POSITIONS = 5000  # Two data sets are compared at this many positions of what is shown, at most
_LEFT_GDP = 0.1  # mu of all runs together that the accounted noise leaves where it is raised
_APART_SEED = 7000  # The loop's seed in the first run on neighbouring data sets
_SECOND_SEED = 1000  # The loop's seed in the first pair of a noisy and a quiet run
_RELATED = {32: 0.8, 256: 0.3}
"""Correlations, by the number of pairs of runs, below which two noises are not one. What is linear in a release has
correlation 1; with noise of its own on top it has less, and is no second release."""
_MEND_UNPAID = "account for it as a release of its own, or compute it from the releases alone"


def unaccounted(lab: Lab, level: float) -> Verdict:
    """Look for what tells neighbours apart where the accounted noise hides all releases, and for second releases."""
    if not lab.runs.noise_follows:
        return untested("the noise ignores its setting")
    if (name := _second(lab)) is not None:
        says = f"{name}: the sums of the releases again, with noise of their own, so that averages have less"
        return violated(says, _MEND_UNPAID)
    games, least, tried = list(_games(lab)), 1.0, 0
    for data, changes in games:
        place = _apart(lab, data, changes)
        if place is None:
            continue
        tried, p = tried + 1, min(1.0, place[0] * len(games))
        least = min(least, p)
        if p < level:
            says = f"{place[1]}: it tells neighbours apart where the accounted noise is so large that no release does"
            return violated(says, _MEND_UNPAID, p_value=p)
    if not tried:
        return untested("the loop fails on neighbours of its data, or with more noise")
    power = f"what is on two sides of a line in nearly all of {_pairs(lab)} runs on each of two data sets"
    return held("nothing shown tells neighbours apart but the releases that are accounted", power=power, p_value=least)


def _pairs(lab: Lab) -> int:
    """How many runs are made on each of two data sets."""
    return min(max(lab.most_runs, _FEWEST_PAIRS), _MOST_PAIRS)


def _games(lab: Lab) -> Iterator[tuple[list[datasets.Records], dict[str, Any]]]:
    """Neighbouring data sets and the settings to compare them with.

    The data sets have the records that move a step the most, or a record of nothing and one a million times as large.
    They are compared with weights that stay, where gradients are those of the start, and with weights that move as they
    do.
    """
    records, steps = lab.loop.records, 1 if lab.runs.base.releases is None else len(lab.runs.base.releases)
    noise = max(2 * math.sqrt(_pairs(lab) * steps) / _LEFT_GDP, 2 * lab.claim.noise_multiplier)
    loud = {"noise_multiplier": noise, **lab.runs.all_records}
    extreme = [datasets.replaced(records, 0, datasets.scaled(records[0], factor)) for factor in (0.0, 1e6)]
    if lab.influence.pair is not None:
        yield [datasets.replaced(records, 0, record) for record in lab.influence.pair[:2]], loud | lab.runs.frozen
    yield extreme, loud | lab.runs.frozen
    if lab.loop.step_size:
        yield extreme, loud | {"step_size": lab.loop.step_size * lab.claim.noise_multiplier / noise}


def _apart(lab: Lab, data: list[datasets.Records], changes: dict[str, Any]) -> tuple[float, str] | None:
    """The p-value of the position that differs the most, corrected for their number and for what releases still say.

    The numbers above a quantile of both samples together have a hypergeometric law. Runs are made in turn, so that a
    clock or a counter that is shown says nothing.
    """
    count = _pairs(lab)
    runs = [lab.runs.attempt(world, seed=_APART_SEED + k, **changes) for k in range(count) for world in data]
    shown = [tokens(run) for run in runs if run is not None]
    if len(shown) < len(runs):
        return None
    names, tables = _tables([shown[::2], shown[1::2]])
    chances = []
    for share in _LINES:
        line = np.quantile(np.concatenate(tables), share, axis=0) if names else np.empty(0)
        first, second = ((table > line).sum(axis=0) for table in tables)
        more = np.maximum(first, second)
        chances.append(2 * stats.hypergeom.sf(more - 1, 2 * count, first + second, count))
    best = np.min(chances, axis=0) * len(names) * len(_LINES)
    if not best.size:
        return 1.0, ""
    at = int(np.argmin(best))
    return float(special.ndtr(special.ndtri(min(1.0, float(best[at]))) + _LEFT_GDP)), names[at]


def _tables(shown: list[list[Shown]]) -> tuple[list[str], list[Array]]:
    """What is shown as numbers, of shape (runs, positions) on each data set, and the mean of each output's numbers."""
    places = sorted({place for world in shown for run in world for place in run})[:_MOST_POSITIONS]
    each = [_column([run.get(place) for world in shown for run in world]) for place in places]
    names, columns = [where(place) for place in places], list(each)
    for output in sorted({name for name, _ in places}):
        mine = [column for (name, k), column in zip(places, each, strict=True) if name == output and k >= 0]
        if len(mine) > 1:
            names.append(f"{output}, on average")
            columns.append(np.mean(mine, axis=0))
    table = np.stack(columns, axis=1) if columns else np.empty((sum(map(len, shown)), 0))
    return names, [table[: len(shown[0])], table[len(shown[0]) :]]


def _column(cells: list[Token | None]) -> Array:
    """Numbers as they are; where there are words or nothing, the rank of each among those seen."""
    if all(isinstance(token, float) for token in cells):
        return np.nan_to_num(np.array(cells, dtype=np.float64))
    order = {token: k for k, token in enumerate(sorted(set(cells), key=repr))}
    return np.array([order[token] for token in cells], dtype=np.float64)


def _second(lab: Lab) -> str | None:
    """An output that is a multiple of the releases without noise, and whose noise has nothing to do with theirs."""
    if lab.runs.repeatable is None or lab.runs.base.releases is None:
        return None
    names = list(lab.runs.base.shown)
    for pairs, related in _RELATED.items():
        names = _seconds(lab, names, pairs, related) if names else []
    return names[0] if names else None


def _seconds(lab: Lab, names: list[str], pairs: int, related: float) -> list[str]:
    """The names among `names` that pass that test with so many pairs of a noisy and a quiet run."""
    assert lab.runs.repeatable is not None
    assert lab.runs.base.releases is not None
    seeds, shape = range(_SECOND_SEED, _SECOND_SEED + pairs), lab.runs.base.releases.shape
    noisy, quiet = (
        [lab.runs.attempt(seed=seed, **lab.runs.frozen, **lab.runs.repeatable, **how) for seed in seeds]
        for how in ({}, {"noise_multiplier": lab.runs.quiet_multiplier})
    )
    loud, sums = (_together([None if run is None else run.releases for run in runs], shape) for runs in (noisy, quiet))
    if loud is None or sums is None:
        return []
    seconds = []
    for name in names:
        own, clean = (
            _together([None if run is None else _values(run, name) for run in runs], shape) for runs in (noisy, quiet)
        )
        if own is not None and clean is not None and _is_second(own - clean, clean, loud - sums, sums, related):
            seconds.append(name)
    return seconds


def _is_second(extra: Array, clean: Array, noise: Array, sums: Array, related: float) -> bool:
    """Whether an output is a second release; all arrays have the shape (runs, steps, numbers).

    What is computed from releases alone begins with a function of one of them.
    """
    scale = float((clean * sums).sum()) / max(float((sums**2).sum()), 1e-300)
    if scale == 0 or not same(clean, scale * sums) or not extra.any():
        return False
    first, steps = extra[:, 0].ravel(), [noise[:, t].ravel() for t in range(noise.shape[1])]
    norm = np.linalg.norm
    return all(abs(float(first @ step)) < related * float(norm(first) * norm(step)) for step in steps if step.any())


def _together(rows: list[Array | None], shape: tuple[int, ...]) -> Array | None:
    """All rows in one array, each of this shape; None where one is missing or has another size."""
    whole = [row.reshape(shape) for row in rows if row is not None and row.size == math.prod(shape)]
    return np.array(whole) if len(whole) == len(rows) else None


def _values(outcome: LoopOutput, name: str) -> Array | None:
    """The numbers of an output; None where it has anything else."""
    for _, content in contents(name, outcome.shown.get(name, "")):
        numbers = [token for token in content if isinstance(token, float)]
        return np.array(numbers) if len(numbers) == len(content) else None
    return None
