"""Directions of another shape on TREC: what a metric from public questions gains.

    python -m benchmarks.shaped --data DIR       # DIR holds TREC's files
    python -m benchmarks.shaped --summary

Label vectors are trained on frozen embeddings x of questions, as in `benchmarks.equal_evaluations`: (2, 1e-5)-DP,
add-remove, Poisson batches of 256 of 4,000 records, K = 16 random-sign directions and central differences. Directions
are B^(1/2) u. The curvature of a linear classifier's loss is that of the embeddings' second moments S = E[x x'], so B
is S^power for every label vector, with S estimated from `public` questions without their labels; 1% of the mean
eigenvalue is added to all. They are the first of those that also choose clip and step size, and are taken to be public.
Power 0 is the plain mechanism.

A run in the coordinates w of x = B^(1/2) w is a run of the plain mechanism on the embeddings B^(1/2) x with the start
B^(-1/2) x_0, so that is what is run. B is scaled so that the mean of ||B^(1/2) x||^2 over the public questions is that
of ||x||^2. Clip and step size are chosen as in `benchmarks.equal_evaluations`, and the reported runs have other seeds.
"""

import itertools
from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.training.equal_evaluations import (
    BATCH,
    CHOOSING,
    FIELDS,
    REPORTED,
    SMOOTHING,
    Variant,
    chosen,
    make,
    manifest_settings,
)
from benchmarks.training.equal_tasks import TASKS, HeadTask
from benchmarks.training.heads import Linear
from dpzero_theory.cli import Parser, input_folder, output_folder

FOLDER = RESULTS / "shaped"
DIRECTIONS = 16
EVALUATIONS = (1024, 4096)
POWERS = (-1.0, -0.5, 0.0, 0.5, 1.0)
PUBLIC = (500, 50)
CELL = ("power", "public", "evaluations")
KEY = (*CELL, "step_size", "clip", "seed")
ADDED = 0.01
"""The share of the mean eigenvalue that is added to all eigenvalues of an estimated matrix, before it is raised to a
power."""


def root(public: Tensor, power: float) -> Tensor:
    """Return B^(1/2), shape (width, width), for B = c (S + a I)^power. S is the mean of x x' over the rows x of
    `public`, shape (records, width), a is ADDED times S's mean eigenvalue, and c > 0 is such that the mean of ||B^(1/2)
    x||^2 over these rows is that of ||x||^2."""
    moments = public.T.double() @ public.double() / len(public)
    values, vectors = torch.linalg.eigh(moments)
    whole = values.clamp(min=0) + ADDED * values.mean()
    found = (vectors * whole ** (power / 2)) @ vectors.T
    scale = values.sum() / torch.trace(found @ moments @ found)
    by: Tensor = (scale.sqrt() * found).to(public.dtype)
    return by


def shaped(work: HeadTask, power: float, public: int) -> HeadTask:
    """Return the task in the coordinates in which directions of the shape B are plain ones: embeddings x become B^(1/2)
    x, and label vectors B^(-1/2) times what they were. B is that of `root` for the first `public` records that choose.
    Raises TypeError for a task whose classifier is not linear."""
    head = work.head
    if not isinstance(head, Linear):
        raise TypeError(f"a task with a linear classifier is needed, got {type(head).__name__}")
    by = root(work.chosen_by.x[:public], power)
    train, chosen_by, test = (part._replace(x=part.x @ by) for part in (work.train, work.chosen_by, work.test))
    start = torch.linalg.solve(by, head.weights.T).T
    return HeadTask(head._replace(weights=start), train, chosen_by, test)


def reported(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each number of `evaluations`, `power` to which the second moments are raised, and number of
    `public` questions, which are its first columns. The others are `accuracy`, the mean in percent over the runs with
    the seeds REPORTED and the chosen step size and clip; `error`, the standard error of this mean; and the chosen
    `step_size` and `clip`."""
    lines = []
    for (evaluations, power, public), cell in rows.groupby(["evaluations", "power", "public"]):
        alpha, clip, _ = chosen(cell)
        ran = cell[cell["seed"].isin(REPORTED) & (cell["step_size"] == alpha) & (cell["clip"] == clip)]
        values = 100 * ran["accuracy"].to_numpy(float)
        lines.append(
            (evaluations, power, public, values.mean(), values.std(ddof=1) / np.sqrt(len(values)), alpha, clip)
        )
    columns = ["evaluations", "power", "public", "accuracy", "error", "step_size", "clip"]
    return pd.DataFrame(lines, columns=columns)


def _body(parser: Parser, options: Namespace) -> int:
    """Make the rows that are not there yet and print the table. Returns the exit status."""
    folder: Path = options.out or FOLDER
    if not options.summary:
        if options.data is None:
            parser.error("--data must be given: the folder of TREC's files")
        torch.set_num_threads(1)
        results = Results(
            folder,
            key=KEY,
            fields=FIELDS,
            seeds=[*CHOOSING, *REPORTED],
            device="cpu",
            dtype="float32",
            cell=CELL,
            settings=manifest_settings(BATCH, SMOOTHING["central"]),
        )
        with parser.opened("--out", results):
            work = TASKS["trec"](options.data)
            for evaluations, power, public in itertools.product(EVALUATIONS, POWERS, PUBLIC):
                if power or public == PUBLIC[0]:
                    cell = {"power": power, "public": public, "evaluations": evaluations}
                    make(results, shaped(work, power, public), cell, Variant(DIRECTIONS), BATCH)
    print(reported(read_rows(folder)).to_string(index=False, float_format="{:.3g}".format))
    return 0


EXPERIMENT = Command(
    "shaped",
    __doc__,
    _body,
    [
        flag("--data", type=input_folder(), help="folder with TREC's files"),
        flag("--out", type=output_folder, help="default: in results"),
        flag("--summary", action="store_true", help="print the rows' table and stop"),
    ],
)
