"""DP-GD on further seeds, at the settings that were best on the first.  python -m benchmarks.dpgd_seeds

A setting is a combination of steps, step size and clip. The whole grid of settings takes DP-GD 58 processor minutes a
seed (`benchmarks.dpgd_products` says why). So for each spectrum and dimension of the paper's grid, seeds 1 to 4 are run
only at the settings that were best on seed 0 (rows synthetic_dpgd): those with the smallest gradient norm at the last
iterate, and those with the smallest at x_tau, the iterate at a random time; `--best` of each. `benchmarks.selection`
chooses among these on the other seeds and reports seeds 1 to 4, which had no part in choosing them.
"""

from argparse import Namespace
from dataclasses import replace
from typing import Any

import pandas as pd

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import FOUR_DIGITS, Remake, Row
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.sweeps.selection import SETTING
from benchmarks.sweeps.synthetic import (
    CELL_KEY,
    DELTA,
    EPSILON,
    FIELDS,
    KEY,
    PRESETS,
    Computation,
    Setting,
    SweepCell,
    keys,
    run_cells,
)
from dpzero_theory.cli import Parser, input_folder, integer

PAPER = PRESETS["paper"]
FIRST = RESULTS / "synthetic_dpgd"
CHOSEN_BY = ("gradient_train_last", "gradient_train_tau")


def best(rows: pd.DataFrame, count: int) -> tuple[Setting, ...]:
    """Return the settings (steps, step size, clip) with the smallest gradient norms on the training sample, among rows
    of one seed: the `count` best by the last iterate and the `count` best by x_tau, each setting once."""
    chosen = pd.concat([rows.nsmallest(count, column)[SETTING] for column in CHOSEN_BY]).drop_duplicates()
    return tuple((int(steps), step_size, clip) for steps, step_size, clip in chosen.to_numpy().tolist())


def _again(row: Row) -> list[dict[str, Any]]:
    """Make a committed row again, by a run of its setting alone. On a CPU, settings that DP-GD runs together
    influence each other only in the last digits of shared products."""
    one = replace(PAPER, settings=((row["steps"], row["step_size"], row["clip"]),))
    return run_cells([SweepCell(*(row[name] for name in CELL_KEY))], one, Computation())


REMAKES = {
    "synthetic_dpgd_seeds": Remake(
        KEY, _again, tolerance=FOUR_DIGITS, why="float32 products, beside other runs; 4 digits"
    )
}


def _check(parser: Parser, options: Namespace) -> None:
    one_thread(parser, options)
    with parser.refusals("--first"):
        first = read_rows(options.first)
    options.tables = list(first[first["seed"] == 0].groupby(list(CELL_KEY[:-1])))
    options.settings = {cell: replace(PAPER, settings=best(rows, options.best)) for cell, rows in options.tables}


def _keys(options: Namespace, at: dict[str, Any]) -> list[dict[str, Any]]:
    return list(keys(SweepCell(**at), options.settings[tuple(at.values())[:-1]]))


def _measure(options: Namespace, at: dict[str, Any]) -> list[dict[str, Any]]:
    cell = SweepCell(**at)
    return list(run_cells([cell], options.settings[tuple(at.values())[:-1]], Computation()))


EXPERIMENT = Experiment(
    name="dpgd_seeds",
    about=__doc__,
    flags=[
        flag("--seeds", type=integer(2, 1000), default=5, help="how many in all, the first one included"),
        flag("--best", type=integer(1, 880), default=1, help="settings for each of two measurements"),
        flag("--first", type=input_folder(), default=FIRST, help="the rows of the whole grid on seed 0"),
    ],
    folder="synthetic_dpgd_seeds",
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(1, options.seeds),
    settings={"n": PAPER.n, "epsilon": EPSILON, "delta": DELTA, "relation": "replace-one", "noise": "seeded"},
    cell=CELL_KEY,
    figure="figures.synthetic",
    check=_check,
    cells=lambda options: (
        dict(zip(CELL_KEY, (*cell, seed), strict=True))
        for seed in range(1, options.seeds)
        for cell, _ in options.tables
    ),
    keys=_keys,
    measure=_measure,
    told=lambda at, rows: f"mode {at['mode']}, d = {at['d']:,}, seed {at['seed']}: {len(rows)} settings",
)
