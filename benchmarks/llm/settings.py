"""What experiments share that choose a setting on dev records in runs with seed 0 and report runs with other seeds."""

from argparse import Namespace
from collections.abc import Iterator

import pandas as pd

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell
from benchmarks.kit.rows import having
from benchmarks.training.pretrained import pretrained_folder
from dpzero_theory.cli import Parser

MODEL = "smollm2"
CHOSEN = "chosen"
"""The setting of the runs that are reported."""


def tried(common: Cell, settings: int) -> Iterator[Cell]:
    """The cells of the runs with seed 0, one for each of so many settings, which have the columns `common` too."""
    yield from ({**common, "setting": str(number), "seed": 0} for number in range(settings))


def reported(common: Cell, seeds: int) -> Iterator[Cell]:
    """The cells of so many runs in the chosen setting, with the seeds 1, 2, ..."""
    yield from ({**common, "setting": CHOSEN, "seed": seed} for seed in range(1, seeds + 1))


def best(rows: pd.DataFrame, by: str = "dev_accuracy", *, lowest: bool = False, **cell: object) -> int:
    """Return the number of the setting with the highest value in the column `by`, the first of equal ones.

    rows: the rows so far, of which those with seed 0 and the values of `cell` are compared. lowest: choose the lowest
    value instead.
    """
    mine = having(rows, seed=0, **cell).sort_values([by, "setting"], ascending=[lowest, True])
    return int(mine["setting"].iloc[0])


def ready(parser: Parser, options: Namespace) -> None:
    """Compute with one thread, refuse a command line where the model is not made, and begin without prepared data."""
    one_thread(parser, options)
    with parser.refusals():
        pretrained_folder(MODEL)
    options.work = None
