"""Starting values beside the best of a grid, at equal privacy and evaluations.  python -m benchmarks.starting

    python -m benchmarks.equal_evaluations --data DIR     # the grid, first
    python -m benchmarks.starting --data DIR
    python -m benchmarks.starting --summary

Starting values are a clip, step size and smoothing computed from public records, without a search. For every task,
number of evaluations and number K of directions in the rows of `benchmarks.equal_evaluations` with the plain update,
`starting_values` is called with that K on the records that are held out for the choice, which are taken as public. The
runs with these values use the seeds on which the grid's best is reported.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.training.equal_evaluations import BATCH, DELTA, EPSILON, REPORTED, plain, reported
from benchmarks.training.equal_tasks import TASKS, HeadTask
from benchmarks.training.heads import Module, accuracy, train
from dpzero_theory.cli import Parser, input_folder
from dpzero_theory.optim.losses.starting import Start, starting_values
from dpzero_theory.optim.plan import Plan

KEY = ("task", "evaluations", "directions", "seed")
FIELDS = ("step_size", "clip", "smoothing", "accuracy", "grid_step_size", "grid_clip", "grid_accuracy")


def start(work: HeadTask, evaluations: int, k: int) -> Start:
    """Return the starting values (clip, step size, smoothing) for a task, a number of evaluations of a record and K = k
    directions per step, computed from the records that choose. A record whose features a private record has too is not
    taken as public. `work` is the task, with its records and its classifier."""
    private = {row.numpy().tobytes() for row in work.train.x}
    kept = torch.tensor([row.numpy().tobytes() not in private for row in work.chosen_by.x])

    def losses(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")

    return starting_values(
        Module(work.head),
        losses,
        TensorDataset(work.chosen_by.x[kept], work.chosen_by.y[kept]),
        declared="public",
        private_data=TensorDataset(*work.train),
        n=len(work.train.y),
        evaluations=evaluations,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        expected_batch=float(BATCH),
        relation="add-remove",
        sampling="poisson",
        directions_per_step=k,
    )


def _rows(work: HeadTask, cell: dict[str, Any], grid: pd.DataFrame) -> list[dict[str, Any]]:
    found = start(work, cell["evaluations"], cell["directions"])
    plan = Plan.for_target(n=len(work.train.y), **found.target)
    rows = []
    for seed in REPORTED:
        (mine,) = accuracy(work.head, train(work.head, work.train, [plan], seed), work.test)
        best = grid[grid["seed"] == seed].iloc[0]
        row = {**cell, "seed": seed, "step_size": plan.step_size(0), "clip": plan.clip, "smoothing": plan.smoothing}
        row |= {"grid_step_size": float(best["step_size"]), "grid_clip": float(best["clip"])}
        rows.append({**row, "accuracy": mine, "grid_accuracy": float(best["accuracy"])})
    return rows


def summary(rows: pd.DataFrame) -> str:
    """Return a text with a line for each task, number of evaluations and K: the accuracy with the starting values and
    with the grid's best choice, and the step sizes and clips of both."""
    lines = []
    for (name, evaluations, k), part in rows.groupby(["task", "evaluations", "directions"]):
        mine, best = (100 * part[column].to_numpy(float) for column in ("accuracy", "grid_accuracy"))
        root = math.sqrt(len(part))
        first = part[["step_size", "grid_step_size", "clip", "grid_clip"]].to_numpy(float)[0]
        lines.append(
            f"{name:<7} {evaluations:>6} K = {k:<4} {mine.mean():.1f} +- {mine.std(ddof=1) / root:.1f}, grid "
            f"{best.mean():.1f} +- {best.std(ddof=1) / root:.1f}; step size {first[0]:.3g} (grid {first[1]:.3g}), "
            f"clip {first[2]:.3g} (grid {first[3]:.3g})"
        )
    return "\n".join(lines)


def _check(parser: Parser, options: Namespace) -> None:
    one_thread(parser, options)
    with parser.refusals("--rows"):
        options.grid = reported(plain(read_rows(options.rows)))
    if options.data is None and any(options.grid["task"] != "digits"):
        parser.error("--data must be given for tasks other than digits")
    options.work = cache(lambda name: TASKS[name](options.data))


def _cells(options: Namespace) -> Iterator[Cell]:
    for name, of_task in options.grid.groupby("task"):
        for evaluations, k in of_task[["evaluations", "directions"]].drop_duplicates().to_numpy(int).tolist():
            yield {"task": str(name), "evaluations": evaluations, "directions": k}


EXPERIMENT = Experiment(
    name="starting",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of the local files of the tasks but digits"),
        flag(
            "--rows", type=input_folder(), default=RESULTS / "equal_evaluations", help="of benchmarks.equal_evaluations"
        ),
    ],
    key=KEY,
    fields=FIELDS,
    seeds=REPORTED,
    dtype="float32",
    settings={"epsilon": EPSILON, "delta": DELTA, "batch": BATCH, "noise": "seeded"},
    check=_check,
    cells=_cells,
    keys=lambda options, at: [at | {"seed": REPORTED[0]}],
    measure=lambda options, at: _rows(options.work(at["task"]), at, having(options.grid, **at)),
    summary=lambda folder: summary(read_rows(folder)),
)
