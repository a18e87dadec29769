"""K directions a step, and other updates, at equal epsilon, relation, sampling and number of evaluations.

    python -m benchmarks.equal_evaluations --data DIR    # K in {1, 4, 16, 64, 256}; DIR holds the tasks' files
    python -m benchmarks.equal_evaluations --preset encoder --data DIR  # a small encoder's own weights, and LoRA
    python -m benchmarks.equal_evaluations --preset updates --data DIR  # momentum, Adam, decay, schedules at K = 16
    python -m benchmarks.equal_evaluations --summary

Tasks. Label vectors are trained on frozen embeddings of sentences (TREC, SST-2, SST-5), starting at the embeddings of
the label sentences; `trec, norm` also trains gain and bias of the encoder's last normalisation. A logistic head is
trained on pixels (digits), starting at zero. Of a small encoder (`benchmarks.training.distilled`) the one layer below
the label vectors is trained too, all of it or adapters (`trec, body` and `trec, lora`).

Runs. epsilon = 2, delta = 1e-5, relation add-remove, Poisson batches of 256 (of 64 for the small encoder), random-sign
directions, smoothing 1e-2. K T is the number of evaluations of a record in a batch, where T is the number of steps.

Choice. Clips c sqrt(K) and step sizes come from one grid for every K (for the small encoder nine pairs, with larger
step sizes for larger K), and the grid is extended if the best pair is on its edge. Each pair runs with 2 seeds, and is
chosen by accuracy on records that are held out for this. The chosen pair runs with 5 further seeds, whose accuracy on
other records is reported. The best K is chosen by the same two seeds and records. The cost of choosing in privacy is
not counted, and noise comes from seeds.
"""

import itertools
import math
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results, having, read_rows
from benchmarks.training.equal_tasks import CLIPS, STEP_SIZES, TASKS, HeadTask
from dpzero_theory.cli import Parser, input_folder, integer, output_folder
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.step_sizes import step_sizes

EPSILON, DELTA, BATCH = 2.0, 1e-5, 256
SMOOTHING = {"central": 1e-2, "forward": 1e-3, "exact": 0.0}
"""The smoothing lambda by difference rule. A forward difference errs by order lambda, a central one by its square."""
KS = (1, 4, 16, 64, 256)
BETWEEN = (4, 16, 64)
CHOOSING, REPORTED = (0, 1), (2, 3, 4, 5, 6)
CELL = ("task", "evaluations", "directions", "update", "weight_decay", "schedule")
KEY = (*CELL, "step_size", "clip", "seed")
FIELDS = ("steps", "noise_multiplier", "chosen_by", "accuracy", "seconds")


class Variant(NamedTuple):
    """What is compared: the number K of directions per step, the rule by which released values change the weights
    ("plain", momentum or Adam), the weight decay, the schedule of the step size, and the difference rule."""

    directions: int
    update: str = "plain"
    weight_decay: float = 0.0
    schedule: str = "constant"
    difference: str = "central"


class Comparison(NamedTuple):
    """A preset of this benchmark: its tasks with their numbers K T of evaluations of a record, the variants that are
    compared, the expected batch size, and the folder of the rows."""

    tasks: dict[str, tuple[int, ...]]
    variants: tuple[Variant, ...]
    batch: int = BATCH
    folder: str = "equal_evaluations"


PRESETS = {
    "smoke": Comparison({"digits": (64,)}, (Variant(1), Variant(4))),
    "directions": Comparison(
        {
            "trec": (1024, 4096, 16384),
            "digits": (1024, 4096),
            "sst2": (4096,),
            "sst5": (4096,),
            "trec, norm": (1024, 4096),
        },
        tuple(map(Variant, KS)),
    ),
    "encoder": Comparison(
        {"trec, lora": (512,), "trec, body": (512,)}, tuple(map(Variant, KS)), 64, "equal_evaluations_encoder"
    ),
    "updates": Comparison(
        {"trec": (1024, 4096), "digits": (1024, 4096)},
        (
            *(Variant(16, update) for update in ("plain", "momentum:0.9", "adam:0.9,0.999")),
            *(Variant(16, weight_decay=decay) for decay in (1e-2, 1e-1)),
            *(Variant(16, schedule=schedule) for schedule in ("linear", "cosine", "linear:25")),
        ),
    ),
}


def grid(
    variant: Variant,
    evaluations: int,
    n: int,
    clips: Sequence[float] = CLIPS,
    alphas: Sequence[float] = STEP_SIZES,
    batch: int = BATCH,
) -> list[Plan]:
    """Return a plan for every pair of a clip and a step size. A record's loss is evaluated at twice as many points as
    `evaluations` says, which counts central differences. `clips` are in units of sqrt(K), `alphas` are the step sizes,
    n is the number of records trained on, and batch the expected batch size. `variant` has the number K of directions
    per step, the update, the weight decay, the schedule and the difference rule."""
    points = DIFFERENCES[variant.difference].points(variant.directions)
    steps, root = 2 * evaluations // points, math.sqrt(variant.directions)
    common: dict[str, Any] = {
        "n": n, "target_epsilon": EPSILON, "target_delta": DELTA, "steps": steps, "expected_batch": float(batch),
        "smoothing": SMOOTHING[variant.difference], "relation": "add-remove", "sampling": "poisson", "clip": 1.0,
        "step_size": 1.0, "directions_per_step": variant.directions, "difference": variant.difference,
        "update": variant.update, "weight_decay": variant.weight_decay,
    }  # fmt: skip
    plan = Plan.for_target(**common)
    return [
        replace(plan, clip=c * root, step_sizes=step_sizes(alpha, steps, variant.schedule))
        for c, alpha in itertools.product(clips, alphas)
    ]


def _cell(name: str, evaluations: int, variant: Variant) -> dict[str, Any]:
    values = {"task": name, "evaluations": evaluations, **variant._asdict()}
    return {column: values[column] for column in CELL}


def _rows(work: HeadTask, cell: dict[str, Any], plans: Sequence[Plan], seed: int) -> list[dict[str, Any]]:
    started = time.perf_counter()
    found = work.accuracies(plans, seed)
    seconds = (time.perf_counter() - started) / len(plans)
    return [
        {**cell, "step_size": alpha_of(plan), "clip": plan.clip, "seed": seed, "steps": plan.steps,
         "noise_multiplier": plan.noise_multiplier, "chosen_by": one, "accuracy": other, "seconds": round(seconds, 3)}
        for plan, (one, other) in zip(plans, found, strict=True)
    ]  # fmt: skip


def alpha_of(plan: Plan) -> float:
    """Return the plan's step size, or, if the plan has a schedule of step sizes, the largest one of it."""
    return max(plan.step_sizes)


def chosen(rows: pd.DataFrame) -> tuple[float, float, float]:
    """Return the step size and the clip with the largest mean accuracy on the records held out for this choice, over
    the choosing seeds in the rows of one task and variant; then that mean.

    Of pairs with equal accuracy, one inside the grid is preferred to one on its edge.
    """
    table = rows[rows["seed"].isin(CHOOSING)].groupby(["step_size", "clip"])["chosen_by"].mean()
    ends = [{min(values), max(values)} for values in zip(*table.index, strict=True)]

    def merit(at: tuple[float, float]) -> tuple[float, int]:
        return float(table[at]), -sum(value in end for value, end in zip(at, ends, strict=True))

    alpha, clip = max(table.index, key=merit)
    return float(alpha), float(clip), float(table[alpha, clip])


def reported(rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each task and variant the rows of its chosen step size and clip, with the seeds that took no part in
    the choice."""
    shown = [rows[:0]]
    for _, cell in rows.groupby(list(CELL), sort=False):
        alpha, clip, _ = chosen(cell)
        shown.append(cell[cell["seed"].isin(REPORTED) & (cell["step_size"] == alpha) & (cell["clip"] == clip)])
    return pd.concat(shown)


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that compare the number K of directions per step alone: those without momentum, Adam, weight
    decay or schedule."""
    return rows[(rows["update"] == "plain") & (rows["weight_decay"] == 0) & (rows["schedule"] == "constant")]


class Gain(NamedTuple):
    """Gains in accuracy over one direction per step, in percentage points: `chosen` is that of the chosen number K,
    which is `directions`, and `between` the mean gain of all K in BETWEEN, which involves no choice. Both are pairs of
    a value and its standard error."""

    directions: int
    chosen: tuple[float, float]
    between: tuple[float, float]


def gains(rows: pd.DataFrame) -> dict[tuple[str, int], Gain]:
    """Return, from the rows of the plain update, the gains in accuracy over one direction per step, by task and number
    of evaluations. The chosen K is the one whose best step size and clip are best on the records held out for
    choosing."""
    found = {}
    for _, cell in plain(rows).groupby(["task", "evaluations"]):
        by = {k: cell[cell["directions"] == k] for k in sorted(map(int, cell["directions"].unique()))}
        if 1 not in by:
            continue
        k = max(by, key=lambda k, by=by: chosen(by[k])[2])  # type: ignore[misc]
        name, evaluations = cell[["task", "evaluations"]].to_numpy()[0]
        values = {k: 100 * reported(part)["accuracy"].to_numpy(float) for k, part in by.items()}
        between = [values[k] for k in BETWEEN if k in values]
        found[str(name), int(evaluations)] = Gain(k, _above([values[k]], values[1]), _above(between, values[1]))
    return found


def _above(those: Sequence[NDArray[np.float64]], one: NDArray[np.float64]) -> tuple[float, float]:
    """Return how far the mean of the samples' means in `those`, in which each sample has the same weight, is above the
    mean of the sample `one`, and the standard error of that difference. Both are 0 if `those` is empty or begins with
    the same array."""
    if not those or those[0] is one:
        return 0.0, 0.0
    variance = sum(float(x.var(ddof=1)) / len(x) for x in those) / len(those) ** 2 + float(one.var(ddof=1)) / len(one)
    return float(np.mean([x.mean() for x in those]) - one.mean()), math.sqrt(variance)


def summary(rows: pd.DataFrame) -> str:
    """Return a text with a line for each task and variant: the accuracy of the reported seeds in percent, its standard
    error, and the step size and clip. The lines after these have the chosen number K of directions per step for each
    task and number of evaluations."""
    lines = []
    for cell, found in reported(rows).groupby(list(CELL), sort=True):
        values = 100 * found["accuracy"].to_numpy(float)
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        alpha, clip = found[["step_size", "clip"]].to_numpy(float)[0]
        root = math.sqrt(int(found["directions"].iloc[0]))
        words = "  ".join(map(str, cell))
        setting = f"step size {alpha:.3g}, clip {clip / root:g} sqrt(K)"
        lines.append(f"{words:<60} {values.mean():.1f} +- {error:.1f}  {setting}")
    for (name, evaluations), gain in gains(rows).items():
        (mean, error), (others, their_error) = gain.chosen, gain.between
        lines.append(
            f"{name}, {evaluations:,} evaluations, over K = 1: K = {gain.directions}, which was chosen, {mean:+.1f} +- "
            f"{error:.1f}; K = 4, 16 and 64 on average {others:+.1f} +- {their_error:.1f}"
        )
    return "\n".join(lines)


def committed() -> pd.DataFrame:
    """Return the committed rows (under benchmarks/results) of all presets in one table."""
    folders = dict.fromkeys(preset.folder for preset in PRESETS.values())
    return pd.concat([read_rows(RESULTS / folder) for folder in folders], ignore_index=True)


def _body(parser: Parser, options: Namespace) -> int:
    """Make the runs of the preset whose rows are not in the results yet, and extend every grid whose best pair is on an
    edge. Returns the exit status."""
    preset = PRESETS[options.preset]
    folder = options.out or (Path("out") if options.preset == "smoke" else RESULTS) / preset.folder
    if options.summary:
        with parser.refusals("--out"):
            print(summary(read_rows(folder)))
        return 0
    tasks = [name for name in preset.tasks if options.task in (None, name)]
    if set(tasks) - {"digits"} and options.data is None:
        parser.error("--data must be given for tasks other than digits")
    smoothing = SMOOTHING["central"]
    results = results_in(folder, CELL, preset.batch, smoothing, figure="figures.equal_evaluations")
    with parser.opened("--out", results):
        for name in tasks:
            work = TASKS[name](options.data)
            for evaluations, variant in itertools.product(preset.tasks[name], preset.variants):
                if options.evaluations in (None, evaluations):
                    make(results, work, _cell(name, evaluations, variant), variant, preset.batch)
    print(summary(read_rows(folder)))
    return 0


def results_in(
    folder: Path, cell: Sequence[str], batch: int, smoothing: float | dict[str, float], figure: str = ""
) -> Results:
    """Return the rows of a folder to which `make` adds, and compute with one thread from here on.

    cell: the columns of a cell; those of a row's key are these, step size, clip and seed. batch, smoothing: the
    expected batch size and the smoothing lambda, of all rules or by rule, for the manifest. figure: the module of the
    figure that is drawn from the rows, if there is one.
    """
    torch.set_num_threads(1)
    return Results(
        folder,
        key=(*cell, "step_size", "clip", "seed"),
        fields=FIELDS,
        seeds=[*CHOOSING, *REPORTED],
        device="cpu",
        dtype="float32",
        cell=cell,
        settings={"epsilon": EPSILON, "delta": DELTA, "batch": batch, "smoothing": smoothing, "noise": "seeded"},
        figure=figure,
    )


def make(results: Results, work: HeadTask, cell: dict[str, Any], variant: Variant, batch: int) -> None:
    """Make the rows of a cell that are not in `results` yet and save them: those of the grid with the choosing seeds,
    where the grid is extended as long as its best pair is on an edge, and those of the chosen pair with the reported
    seeds.

    work: the task. cell: the values of the cell's columns. variant: what is compared. batch: the expected batch size.
    """
    clips, alphas = work.first_grid(variant.directions)
    root = math.sqrt(variant.directions)
    while True:
        plans = grid(variant, cell["evaluations"], work.n, clips, alphas, batch)
        for seed in CHOOSING:
            left = [p for p in plans if not results.done(**cell, step_size=alpha_of(p), clip=p.clip, seed=seed)]
            if left:
                results.add(_rows(work, cell, left, seed))
        rows = read_rows(results.folder)
        alpha, clip, _ = chosen(having(rows, **cell))
        wider = grown(clips, clip / root), grown(alphas, alpha)
        if wider == (clips, alphas):
            break
        clips, alphas = wider
    plan = next(p for p in plans if math.isclose(alpha_of(p), alpha) and math.isclose(p.clip, clip))
    for seed in REPORTED:
        if not results.done(**cell, step_size=alpha_of(plan), clip=plan.clip, seed=seed):
            results.add(_rows(work, cell, [plan], seed))
    print(f"{'  '.join(map(str, cell.values()))}: done", file=sys.stderr, flush=True)


def grown(values: tuple[float, ...], best: float) -> tuple[float, ...]:
    """Return the ascending values of a grid, extended by one value if `best` lies on or beyond one of its ends. The new
    value continues the ratio of the last two values at that end, rounded to two digits. If `best` lies inside, or if
    there is only one value, the values are returned unchanged."""
    if len(values) == 1:
        return values
    if best > values[-1] or math.isclose(best, values[-1]):
        return (*values, float(f"{values[-1] ** 2 / values[-2]:.2g}"))
    if best < values[0] or math.isclose(best, values[0]):
        return (float(f"{values[0] ** 2 / values[1]:.2g}"), *values)
    return values


EXPERIMENT = Command(
    "equal_evaluations",
    __doc__,
    _body,
    [
        flag("--preset", choices=tuple(PRESETS), default="directions"),
        flag("--task", choices=tuple(TASKS), help="only this one"),
        flag("--evaluations", type=integer(1, 10**9), help="only this number"),
        flag("--data", type=input_folder(), help="folder of the local files of the tasks but digits"),
        flag("--out", type=output_folder, help="default: in results, smoke: in out"),
        flag("--summary", action="store_true", help="print the rows' table and stop"),
    ],
)
