"""Checks for outputs that are computed from the records with noise of their own, but are not accounted for."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import special, stats

from dpzero_theory.audit import datasets
from dpzero_theory.audit.checks.paths import beside_releases
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.tokens import Shown, Token, tokens, where
from dpzero_theory.check import Array

_FEWEST_PAIRS, _MOST_PAIRS = 40, 120
"""The fewest and the most runs that are made on each of two data sets to tell them apart by an output."""

_LINES = (0.125, 0.25, 0.5, 0.75, 0.875)
"""The thresholds above which an output's values are counted to compare it between two data sets.

The thresholds are these quantiles of its values on both. The eighths are for an output that is 1 in half of the runs on
one data set and 0 in all others, so 1 in a quarter of all runs: a quantile near the edge of such a group may fall on
either side of it.
"""
_MOST_POSITIONS = 5000  # Two data sets are compared at no more than this many positions in the outputs of a run
_LEFT_GDP = 0.1  # The noise is raised until all releases of all runs that are compared are together mu-GDP for this mu
_APART_SEED = 7000  # The loop's seed in the first of the runs on neighbouring data sets; each further run adds 1
_MEND_UNPAID = "account for it as a release of its own, or compute it from the releases alone"


def unaccounted(lab: Lab, level: float) -> Verdict:
    """Look for outputs that tell neighbouring data sets apart where the accounted noise is too large for releases to.

    Outputs that a record reaches by another way than through the releases are looked for as well (`paths`). `lab` makes
    experiments on the audited loop. A sound loop is reported as violated with probability at most `level`. Returns the
    verdict.
    """
    if not lab.runs.noise_obeyed:
        return untested("the noise ignores its setting")
    if (name := beside_releases(lab, level / 2)) is not None:
        says = f"{name}: a record moves it by more than through the releases, so that it is a release of its own"
        return violated(says, _MEND_UNPAID)
    games, least, tried = list(_games(lab)), 1.0, 0
    for data, changes in games:
        place = _apart(lab, data, changes)
        if place is None:
            continue
        tried, p = tried + 1, min(1.0, place[0] * len(games))
        least = min(least, p)
        if p < level / 2:
            says = f"{place[1]}: it tells neighbours apart where the accounted noise is so large that no release does"
            return violated(says, _MEND_UNPAID, p_value=p)
    if not tried:
        return untested("the loop fails on neighbours of its data, or with more noise")
    power = f"what is on two sides of a line in nearly all of {_pairs(lab)} runs on each of two data sets"
    return held("nothing shown tells neighbours apart but the releases that are accounted", power=power, p_value=least)


def _pairs(lab: Lab) -> int:
    """Returns how many runs are made on each of two data sets to tell them apart, from the runs that `lab` allows."""
    return min(max(lab.most_runs, _FEWEST_PAIRS), _MOST_PAIRS)


def _games(lab: Lab) -> Iterator[tuple[list[datasets.Records], dict[str, Any]]]:
    """Yields two neighbouring data sets and the settings, with much noise, under which to compare them.

    They differ in the first record: it is one or the other of the pair that changes steps the most, or the record given
    times 0 and times a million. Weights are kept where they are, so that all gradients are those at the start, or move
    as usual. `lab` makes experiments on the audited loop.
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
    """Returns the p-value and the name of the output that differs most between two data sets; None if the loop fails.

    Under the null hypothesis, how many of the values above a threshold are from the first data set is hypergeometric.
    The p-value is corrected for the number of positions and thresholds, and for the mu of `_LEFT_GDP` that the releases
    still have. Runs are made on the two data sets in turn, so that a clock or a counter does not differ. `lab` makes
    the runs, `data` are the two data sets, and `changes` the changes of the loop's settings.
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
    """Returns names of columns, and for each data set a table of numbers with one row for each run and these columns.

    `shown` has, for each data set, what each run showed. There is a column for each position of the outputs, and one
    for the mean of each output that has several numbers.
    """
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
    """Returns the tokens at one position of the outputs of several runs as numbers.

    Words and missing values (None) become ranks among the values seen.
    """
    if all(isinstance(token, float) for token in cells):
        return np.nan_to_num(np.array(cells, dtype=np.float64))
    order = {token: k for k, token in enumerate(sorted(set(cells), key=repr))}
    return np.array([order[token] for token in cells], dtype=np.float64)
