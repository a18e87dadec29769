"""Tests whether a loop's noise is a linear function of what its runs show, or sum, without noise.

Noise must be independent of everything else that a run draws. Where it is, for example, the direction of a later step,
a run that is almost without noise but draws the same numbers shows it: in its outputs, in how its weights move, or in
its sums, which are linear in the directions.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.tokens import contents
from dpzero_theory.check import Array

_SEED = 3000  # The loop's seed in the first of the runs; each further run has the next seed
_FEWEST_RUNS, _MOST_RUNS, _WANTED_STEPS = 8, 32, 96
"""The fewest and the most runs, and how many steps they should have together."""
_LOUDER = 1e3
"""A number is taken to be without noise if it stays the same when the noise of a quiet run is this many times larger.

That noise is still almost none; but where a number is nothing but noise it grows with it.
"""
_SAME = 1e-6  # Two numbers count as the same up to this relative difference
_MOST_COLUMNS = 64  # At most this many numbers of a step are looked at in each output
_MOST_NUMBERS = 16  # The noise of at most this many numbers of a step is looked at
_MORE_TESTS = 4
"""What would have been seen is stated for so many times as many tests, since outputs with noise in them add some."""


class Linear(NamedTuple):
    """The result of the tests.

    Args:
        p: the smallest p-value, times the number of tests.
        where: in words, which output, and how many steps from the noise.
        steps: how many steps of noise the tests saw.
        tests: how many tests were made.
    """

    p: float
    where: str
    steps: int
    tests: int

    def seen(self, level: float) -> float:
        """The correlation of the noise with one column of an output that is found with a probability of 95%.

        `level` is the p-value that counts as found.
        """
        chance = level / (self.tests * _MORE_TESTS)
        square = float(stats.beta.isf(chance, 0.5 * _STATED_COLUMNS, (self.steps - _STATED_COLUMNS) / 2))
        return min(1.0, math.sqrt(square) + float(stats.norm.ppf(0.95)) / math.sqrt(self.steps))


_STATED_COLUMNS = 8  # What would have been seen is stated for outputs of up to this many numbers a step


def linear_part(lab: Lab) -> Linear | None:
    """Tests the noise of each step against what runs show without noise in this step and in others.

    Returns None where the noise cannot be told from the sums. For each output and each distance between steps, each
    number of the noise is regressed on the output's numbers. Noise that does not depend on them is Gaussian with
    independent entries, whatever they are, so that the share of its squares that the regression explains has a beta
    distribution. `lab` makes experiments on the audited loop.
    """
    base = lab.runs.base.releases
    if base is None or lab.runs.repeatable is None:
        return None
    each: list[tuple[Array, dict[str, Array]]] = []
    for seed in range(_SEED, _SEED + min(max(_FEWEST_RUNS, -(-_WANTED_STEPS // len(base))), _MOST_RUNS)):
        one = _noise_and_columns(lab, seed)
        if one is None:
            return None
        each.append(one)
    steps = len(each[0][0])
    if any(noise.shape != each[0][0].shape for noise, _ in each):
        return None
    worst, where, tests = 1.0, "", 0
    for name in set.intersection(*(set(columns) for _, columns in each)):
        tables = [columns[name] for _, columns in each]
        if any(table.shape != tables[0].shape for table in tables):
            continue
        for lag in range(1 - steps, len(tables[0])):
            rows = [t for t in range(steps) if 0 <= t + lag < len(tables[0])]
            x = np.concatenate([table[np.array(rows) + lag] for table in tables])
            y = np.concatenate([noise[rows, :_MOST_NUMBERS] for noise, _ in each])
            for p in _explained(x, y):
                tests += 1
                if p < worst:
                    worst, where = p, f"{name}, {_distance(lag)}"
    return Linear(min(1.0, worst * tests), where, len(each) * steps, tests) if tests else None


def _distance(lag: int) -> str:
    if not lag:
        return "in the same step"
    return f"{abs(lag)} step{'s' if abs(lag) > 1 else ''} {'later' if lag > 0 else 'earlier'}"


def _noise_and_columns(lab: Lab, seed: int) -> tuple[Array, dict[str, Array]] | None:
    """Returns the noise of a run, and by output what a run almost without noise shows that draws the same numbers.

    A table of an output has a row for each step. None is returned where a run fails.
    """
    runs, stream = lab.runs, None if lab.loop.entropy is None else seed
    changes = lab.noise.repeatable
    noise = lab.noise.residual(None, changes, seed, stream=stream)
    how = runs.paired(seed, stream)
    pair = [
        runs.attempt(**how, **changes, noise_multiplier=runs.quiet_multiplier * louder) for louder in (1.0, _LOUDER)
    ]
    if noise is None or any(run is None or run.releases is None for run in pair):
        return None
    quiet, louder = ({name: table for run in (one,) if run for name, table in _tables(run)} for one in pair)
    columns = {}
    for name, table in quiet.items():
        other = louder.get(name)
        if other is not None and other.shape == table.shape:
            with np.errstate(all="ignore"):
                same = np.abs(table - other) <= _SAME * np.abs(table)
            columns[name] = np.where(same & np.isfinite(table), table, 0.0)
    return noise, columns


def _tables(run: LoopOutput) -> Iterator[tuple[str, Array]]:
    """Yields the name and the numbers of each output of a run that has equally many for each step, a row for each step.

    Of an output with one row more, such as the path of the weights, the differences of rows are yielded; they are
    divided by the releases where these have one number a step.
    """
    assert run.releases is not None
    steps, releases = len(run.releases), run.releases
    yield "the sums", releases
    for output, value in run.shown.items():
        for name, content in contents(output, value) if output != "releases" else ():
            table = _numeric(content)
            if table is None:
                continue
            if table.size % steps == 0:
                yield name, table.reshape(steps, -1)
            if table.size % (steps + 1) == 0:
                moved = np.diff(table.reshape(steps + 1, -1), axis=0)
                with np.errstate(all="ignore"):
                    yield f"how {name} changes", moved / releases if releases.shape[1] == 1 else moved


def _numeric(content: list[Any]) -> Array | None:
    numbers = [token for token in content if isinstance(token, float)]
    return np.array(numbers) if numbers else None


def _explained(x: Array, y: Array) -> Iterator[float]:
    """Yields, for each column of `y`, the p-value of how well the columns of `x` explain it together.

    Where there are too many columns, each is looked at alone.
    """
    x = x[:, :_MOST_COLUMNS]
    x = x[:, np.abs(x).max(axis=0) > 0]
    squares = (y**2).sum(axis=0)
    if not x.size or not (squares > 0).all():
        return
    x = x / np.abs(x).max(axis=0)
    parts = [x] if len(x) >= 4 * x.shape[1] else [x[:, [k]] for k in range(x.shape[1])]
    for part in parts:
        basis, values, _ = np.linalg.svd(part, full_matrices=False)
        basis = basis[:, values > 1e-10 * values[0]]
        rank = basis.shape[1]
        if len(y) - rank < 2:
            continue
        shares = ((basis.T @ y) ** 2).sum(axis=0) / squares
        yield from (float(stats.beta.sf(min(share, 1.0), rank / 2, (len(y) - rank) / 2)) for share in shares)
