"""Difference rules at equal evaluations of a record's loss, beside central differences.

    python -m benchmarks.equal_evaluations --data DIR   # central differences, first, and --preset encoder
    python -m benchmarks.equal_points --data DIR        # forward differences, and exact ones of label vectors
    python -m benchmarks.equal_points --summary

A central difference evaluates a loss at two points, so the runs of `benchmarks.equal_evaluations` with K T differences
of a record evaluate it 2 K T times. Here T is the largest number with T (K + 1) <= 2 K T of theirs. Tasks, budget,
batches, seeds and the rules of choosing are those of that benchmark; the first grid of a cell has the nine pairs of
clip and step size about the pair that central differences chose there, and grows in the same way. K is 4, 16 or 64:
at K = 1 forward differences take as many evaluations as central ones, and K = 256 is below K = 1 in every row there.

Forward differences have smoothing 1e-3. A derivative counts as one evaluation though it takes the time of one to two;
those of the small encoder are not run.
"""

import itertools
import math
from argparse import Namespace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.training.equal_evaluations import (
    PRESETS,
    REPORTED,
    SMOOTHING,
    Variant,
    chosen,
    committed,
    make,
    plain,
    results_in,
)
from benchmarks.training.equal_tasks import TASKS
from dpzero_theory.cli import Parser, input_folder, output_folder

KS = (4, 16, 64)
CELL = ("task", "evaluations", "directions", "difference")
KEY = (*CELL, "step_size", "clip", "seed")
PLACES = {
    "heads": (PRESETS["directions"], ("forward", "exact"), RESULTS / "equal_points"),
    "encoder": (PRESETS["encoder"], ("forward",), RESULTS / "equal_points_encoder"),
}
"""What is trained, heads on frozen features or a small encoder too: the tasks of central differences, the rules that
are run here, and the folder of the rows."""


def about(central: pd.DataFrame, k: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the first grid, (clips, step sizes), with the clips in units of sqrt(K): of the values in `central`, the
    rows of central differences for a task with K = k, the chosen clip and step size and their neighbours on either
    side, as far as there are such."""
    alpha, clip, _ = chosen(central)

    def near(column: str, value: float) -> tuple[float, ...]:
        values = sorted(central[column].unique())
        at = values.index(value)
        return tuple(map(float, values[max(at - 1, 0) : at + 2]))

    return tuple(c / math.sqrt(k) for c in near("clip", clip)), near("step_size", alpha)


class Found(NamedTuple):
    """What is known of a difference rule ("central", "forward" or "exact") with a number of directions a step:
    `chosen_by`, the mean accuracy in [0, 1] by which rules and numbers are chosen, and `reported`, the accuracies of
    the reported runs in percent."""

    difference: str
    directions: int
    chosen_by: float
    reported: "np.ndarray[Any, np.dtype[np.float64]]"


def found(rows: pd.DataFrame) -> list[Found]:
    """Return every rule and number of directions in the rows of one task and number of evaluations."""
    cells = []
    for _, cell in rows.groupby(["difference", "directions"]):
        difference, k = cell[["difference", "directions"]].to_numpy()[0]
        alpha, clip, merit = chosen(cell)
        ran = cell[cell["seed"].isin(REPORTED) & (cell["step_size"] == alpha) & (cell["clip"] == clip)]
        cells.append(Found(str(difference), int(k), merit, 100 * ran["accuracy"].to_numpy(float)))
    return cells


def above(one: Found, other: Found) -> tuple[float, float]:
    """Return by how many points the mean of the reported runs of `one` is above that of `other`, and half the 95%
    interval of that difference (Welch's t); zeros if they are the same runs."""
    if one[:2] == other[:2]:
        return 0.0, 0.0
    errors = [x.reported.var(ddof=1) / len(x.reported) for x in (one, other)]
    freedom = sum(errors) ** 2 / sum(e * e / (len(x.reported) - 1) for e, x in zip(errors, (one, other), strict=True))
    half = student.ppf(0.975, freedom) * math.sqrt(sum(errors))
    return float(one.reported.mean() - other.reported.mean()), float(half)


def at_equal_k(cells: list[Found]) -> tuple[float, float]:
    """Return by how many percentage points forward differences are above central ones with as many directions a step,
    on average over K in KS, where nothing is chosen between the two, and half the width of the 95% interval of that
    mean. The cells must have both rules with every K in KS."""
    by = {cell[:2]: cell.reported for cell in cells}
    pairs = [(by["forward", k], by["central", k]) for k in KS]
    mean = float(np.mean([one.mean() - other.mean() for one, other in pairs]))
    variance = sum(x.var(ddof=1) / len(x) for pair in pairs for x in pair) / len(pairs) ** 2
    freedom = sum(len(x) - 1 for pair in pairs for x in pair)
    return mean, float(student.ppf(0.975, freedom) * math.sqrt(variance))


def both() -> pd.DataFrame:
    """Return the committed rows of all rules: those of central differences with the plain update, and those made
    here."""
    central = plain(committed()).assign(difference="central")
    return pd.concat([central, *(read_rows(folder) for *_, folder in PLACES.values() if folder.exists())])


def compared() -> dict[tuple[str, int], list[Found]]:
    """Return the committed cells by task and number of evaluations, of those for which forward differences were run
    with every K in KS."""
    cells = {
        (str(part["task"].iloc[0]), int(part["evaluations"].iloc[0])): found(part)
        for _, part in both().groupby(["task", "evaluations"])
    }
    return {at: those for at, those in cells.items() if {("forward", k) for k in KS} <= {one[:2] for one in those}}


def best(cells: list[Found], *rules: str) -> Found | None:
    """Return, of the cells of these rules, the one with the largest mean accuracy on the records and seeds that choose;
    None if there is no such cell."""
    return max((cell for cell in cells if cell.difference in rules), key=lambda cell: cell.chosen_by, default=None)


def summary() -> str:
    """Return a text with a line for each task and number of evaluations of a record's loss in a run. The line has the
    mean accuracy in percent of central differences with K = 1 direction a step; then for each difference rule (central,
    forward, exact) that was run the chosen K, its mean accuracy, and in brackets by how many points that is above the
    accuracy with K = 1, with half the 95% interval."""
    lines = []
    for (name, evaluations), cells in compared().items():
        (one,) = (cell for cell in cells if cell[:2] == ("central", 1))
        words = []
        for rule in SMOOTHING:
            if at := best(cells, rule):
                mean, half = above(at, one)
                words.append(f"{rule} K = {at.directions} {at.reported.mean():.1f} ({mean:+.1f} +- {half:.1f})")
        lines.append(f"{name}, {evaluations:,}: K = 1 {one.reported.mean():.1f}; {'; '.join(words)}")
    return "\n".join(lines)


def _body(parser: Parser, options: Namespace) -> int:
    """Make the rows that are not there yet. Returns the exit status."""
    if options.summary:
        print(summary())
        return 0
    preset, rules, folder = PLACES[options.place]
    results = results_in(options.out or folder, CELL, preset.batch, {rule: SMOOTHING[rule] for rule in rules})
    central = plain(read_rows(RESULTS / preset.folder))
    with parser.opened("--out", results):
        for name in preset.tasks:
            if options.task not in (None, name):
                continue
            work = TASKS[name](options.data)
            for rule, evaluations, k in itertools.product(rules, preset.tasks[name], KS):
                if options.difference in (None, rule):
                    at = {"task": name, "evaluations": evaluations, "directions": k}
                    grid = partial(about, having(central, **at))
                    variant = Variant(k, difference=rule)
                    make(results, work._replace(first_grid=grid), {**at, "difference": rule}, variant, preset.batch)
    return 0


EXPERIMENT = Command(
    "equal_points",
    __doc__,
    _body,
    [
        flag("--place", choices=tuple(PLACES), default="heads", help="default: heads"),
        flag("--task", choices=tuple(TASKS), help="only this one"),
        flag("--difference", choices=tuple(SMOOTHING), help="only this rule"),
        flag("--data", type=input_folder(), help="folder of the local files of the tasks but digits"),
        flag("--out", type=output_folder, help="default: in results"),
        flag("--summary", action="store_true", help="print the rows' table and stop"),
    ],
)
