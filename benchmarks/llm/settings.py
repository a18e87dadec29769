"""What experiments share that choose a setting on dev records in runs with seed 0 and report runs with other seeds."""

from argparse import Namespace
from collections.abc import Iterator

import pandas as pd

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell
from benchmarks.kit.rows import having
from benchmarks.pretrained import pretrained_folder
from dpzero_theory.cli import Parser

MODEL = "smollm2"
CHOSEN = "chosen"
"""The setting of the runs that are reported."""


def tried(common: Cell, settings: int) -> Iterator[Cell]:
    """Yield the cells of the trial runs: the columns `common`, the number of a setting (0 to settings - 1) and the seed
    0."""
    yield from ({**common, "setting": str(number), "seed": 0} for number in range(settings))


def reported(common: Cell, seeds: int) -> Iterator[Cell]:
    """Yield the cells of the runs that are reported: the columns `common`, the word `CHOSEN` for the setting, and the
    seeds from 1 to `seeds`."""
    yield from ({**common, "setting": CHOSEN, "seed": seed} for seed in range(1, seeds + 1))


def best(rows: pd.DataFrame, by: str = "dev_accuracy", *, lowest: bool = False, **cell: object) -> int:
    """Return the number of the setting that is best on the dev records: of the rows with seed 0 and the column values
    in `cell`, the one with the highest value in the column `by`, or with the lowest if `lowest` holds. Of equal ones it
    is the one with the smaller number."""
    mine = having(rows, seed=0, **cell).sort_values([by, "setting"], ascending=[lowest, True])
    return int(mine["setting"].iloc[0])


def ready(parser: Parser, options: Namespace) -> None:
    """The `check` of these experiments: let torch use one thread, refuse the command line (the parser's error) where
    the folder of the pretrained model has not been made, and set `options.work`, in which records are kept, to None."""
    one_thread(parser, options)
    with parser.refusals():
        pretrained_folder(MODEL)
    options.work = None
