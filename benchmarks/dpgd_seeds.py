"""DP-GD on further seeds, at the settings that were best on the first.  python -m benchmarks.dpgd_seeds

A seed of the whole grid took DP-GD 58 processor minutes (`benchmarks.dpgd_products` says why). So seeds 1 to 4 are run,
in every cell of the paper's grid, at the settings whose last gradient or x_tau was smallest on seed 0 (rows
synthetic_dpgd): the `--best` of each. `benchmarks.selection` chooses among these on the other seeds and reports seeds 1
to 4, which had no say in what is among them.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from benchmarks.kit.remake import FOUR_DIGITS, Remake, Row
from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.selection import SETTING
from benchmarks.synthetic import (
    CELL_KEY,
    DELTA,
    EPSILON,
    FIELDS,
    KEY,
    PRESETS,
    Cell,
    Place,
    Setting,
    keys,
    run_cells,
)
from dpzero_theory.cli import Parser, input_folder, integer, output_folder

__all__ = ["best", "main"]

PAPER = PRESETS["paper"]
FIRST = RESULTS / "synthetic_dpgd"
CHOSEN_BY = ("gradient_train_last", "gradient_train_tau")


def best(rows: pd.DataFrame, count: int) -> tuple[Setting, ...]:
    """The settings of the smallest values in rows of one cell and seed, `count` for each measurement."""
    chosen = pd.concat([rows.nsmallest(count, column)[SETTING] for column in CHOSEN_BY]).drop_duplicates()
    return tuple((int(steps), step_size, clip) for steps, step_size, clip in chosen.to_numpy().tolist())


def _again(row: Row) -> list[dict[str, Any]]:
    """The row's run by itself: on a CPU DP-GD's lanes do not depend on each other but for the products' last digits."""
    one = replace(PAPER, settings=((row["steps"], row["step_size"], row["clip"]),))
    return run_cells([Cell(*(row[name] for name in CELL_KEY))], one, Place())


REMAKES = {
    "synthetic_dpgd_seeds": Remake(
        KEY, _again, tolerance=FOUR_DIGITS, why="float32 products, beside other runs; 4 digits"
    )
}


def _parser() -> Parser:
    parser = Parser("benchmarks.dpgd_seeds", __doc__ or "")
    parser.add_argument("--seeds", type=integer(2, 1000), default=5, help="how many in all, the first one included")
    parser.add_argument("--best", type=integer(1, 880), default=1, help="settings for each of two measurements")
    parser.add_argument("--first", type=input_folder(), default=FIRST, help="the rows of the whole grid on seed 0")
    parser.add_argument("--out", type=output_folder, default=RESULTS / "synthetic_dpgd_seeds")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cells that are not in the results yet, seed by seed."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals("--first"):
        first = read_rows(options.first)
    torch.set_num_threads(1)
    results = Results(
        options.out,
        key=KEY,
        fields=FIELDS,
        seeds=range(1, options.seeds),
        device="cpu",
        dtype="float64",
        settings={"n": PAPER.n, "epsilon": EPSILON, "delta": DELTA, "relation": "replace-one", "noise": "seeded"},
        cell=CELL_KEY,
        figure="figures.synthetic",
    )
    tables: list[tuple[Any, pd.DataFrame]] = list(first[first["seed"] == 0].groupby(list(CELL_KEY[:-1])))
    cells = [
        (Cell(*(*cell, seed)), replace(PAPER, settings=best(rows, options.best)))
        for seed in range(1, options.seeds)
        for cell, rows in tables
    ]
    with parser.opened("--out", results):
        for count, (cell, preset) in enumerate(cells, start=1):
            todo = [tuple(key[name] for name in SETTING) for key in keys(cell, preset) if not results.done(**key)]
            if todo:
                started = time.process_time()
                results.add(run_cells([cell], replace(preset, settings=tuple(todo)), Place()))
                told = f"mode {cell.mode}, d = {cell.d:,}, seed {cell.seed}: {len(todo)} settings"
                print(f"{count}/{len(cells)} {told}, {time.process_time() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
