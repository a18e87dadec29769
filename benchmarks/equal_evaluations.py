"""K directions a step, and updates, at equal epsilon, relation, sampling and evaluations.

    python -m benchmarks.equal_evaluations --data DIR    # K in {1, 4, 16, 64, 256}; DIR holds trec_train.label
    python -m benchmarks.equal_evaluations --preset updates --data DIR  # momentum, Adam, decay, schedules at K = 16
    python -m benchmarks.equal_evaluations --summary

Label vectors are trained on frozen embeddings of questions (TREC; at the start the embeddings of the label sentences),
and a logistic head on pixels (digits, from zero). epsilon = 2, delta = 1e-5, add-remove, Poisson batches of 256, random
signs, lambda 1e-2; K T is the number of evaluations of a record in a batch. Clips c sqrt(K) and step sizes of one grid
for every K: each setting runs with 2 seeds, accuracy on records held out for it chooses, and the chosen runs with 5
further seeds, whose accuracy on other records is reported. The choice is not paid for. Noise comes from seeds.
"""

import hashlib
import io
import itertools
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks.heads import Head, Part, accuracy, train
from benchmarks.kit.rows import RESULTS, Results, read_rows, write_atomically
from benchmarks.llm.tasks import task
from benchmarks.private_search import sentence_embeddings, trec_records
from dpzero_theory import datasets
from dpzero_theory.cli import Parser, input_folder, integer, output_folder
from dpzero_theory.curvature.encoder import TEMPERATURE
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.schedule import step_sizes

__all__ = ["PRESETS", "Variant", "Work", "grid", "main", "summary"]

EPSILON, DELTA, BATCH, SMOOTHING = 2.0, 1e-5, 256, 1e-2
KS = (1, 4, 16, 64, 256)
CLIPS = (0.5, 1.0, 2.0, 4.0)
STEP_SIZES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
CACHE = Path("out") / "embeddings"
CHOOSING, REPORTED = (0, 1), (2, 3, 4, 5, 6)
CELL = ("task", "evaluations", "directions", "update", "weight_decay", "schedule")
KEY = (*CELL, "step_size", "clip", "seed")
FIELDS = ("steps", "noise_multiplier", "chosen_by", "accuracy", "seconds")


class Variant(NamedTuple):
    """What is compared: K, and how releases move the weights."""

    directions: int
    update: str = "plain"
    weight_decay: float = 0.0
    schedule: str = "constant"


class Work(NamedTuple):
    """A head and three parts of the records: trained on, chosen by, and reported."""

    head: Head
    train: Part
    chosen_by: Part
    test: Part


class Preset(NamedTuple):
    """Tasks with their numbers of evaluations K T, and what is compared."""

    tasks: dict[str, tuple[int, ...]]
    variants: tuple[Variant, ...]


PRESETS = {
    "smoke": Preset({"digits": (64,)}, (Variant(1), Variant(4))),
    "directions": Preset({"trec": (1024, 4096, 16384), "digits": (1024, 4096)}, tuple(map(Variant, KS))),
    "updates": Preset(
        {"trec": (1024, 4096), "digits": (1024, 4096)},
        (
            *(Variant(16, update) for update in ("plain", "momentum:0.9", "adam:0.9,0.999")),
            *(Variant(16, weight_decay=decay) for decay in (1e-2, 1e-1)),
            *(Variant(16, schedule=schedule) for schedule in ("linear", "cosine", "linear:25")),
        ),
    ),
}


def digits(_: Path | None) -> Work:
    """1,197 records to train on, 200 to choose by, 400 to report; pixels and a constant."""
    pixels, labels = datasets.digits(0)
    x = torch.tensor(np.hstack([pixels, np.ones((len(pixels), 1))]), dtype=torch.float32)
    return _parts(Head(torch.zeros(10, x.shape[1]), 1.0), x, torch.tensor(labels), range(len(x)), 1197, 200)


def trec(folder: Path | None) -> Work:
    """4,000 records to train on, 952 to choose by, 500 to report: those that every task holds out."""
    parts = [trec_records(folder, split) for split in ("train", "test")]
    texts, labels = [text for part, _ in parts for text in part], torch.cat([found for _, found in parts])
    drawn = np.random.default_rng(0).permutation(len(parts[0][0]))
    order = [*drawn.tolist(), *range(len(drawn), len(texts))]
    head = Head(sentence_embeddings(list(task("trec").prompt("encoder").options)), TEMPERATURE)
    return _parts(head, _embedded(texts), labels, order, 4000, len(drawn) - 4000)


def _embedded(texts: list[str]) -> torch.Tensor:
    """`sentence_embeddings`, kept in out/ between commands."""
    place = CACHE / f"{hashlib.sha256(chr(0).join(texts).encode()).hexdigest()[:16]}.pt"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(sentence_embeddings(texts), buffer)
        write_atomically(place, buffer.getvalue())
    found: torch.Tensor = torch.load(place, weights_only=True)
    return found


TASKS = {"trec": trec, "digits": digits}


def _parts(head: Head, x: torch.Tensor, y: torch.Tensor, order: Sequence[int], n: int, held: int) -> Work:
    drawn = torch.tensor(order)
    parts = [drawn[:n], drawn[n : n + held], drawn[n + held :]]
    return Work(head, *(Part(x[part], y[part]) for part in parts))


def grid(variant: Variant, evaluations: int, n: int) -> list[Plan]:
    """Every clip c sqrt(K) with every step size."""
    steps, root = evaluations // variant.directions, math.sqrt(variant.directions)
    common: dict[str, Any] = {
        "n": n, "target_epsilon": EPSILON, "target_delta": DELTA, "steps": steps, "expected_batch": float(BATCH),
        "smoothing": SMOOTHING, "relation": "add-remove", "sampling": "poisson", "clip": 1.0, "step_size": 1.0,
        "directions_per_step": variant.directions, "update": variant.update, "weight_decay": variant.weight_decay,
    }  # fmt: skip
    plan = Plan.for_target(**common)
    return [
        replace(plan, clip=c * root, step_sizes=step_sizes(alpha, steps, variant.schedule))
        for c, alpha in itertools.product(CLIPS, STEP_SIZES)
    ]


def _cell(name: str, evaluations: int, variant: Variant) -> dict[str, Any]:
    return {"task": name, "evaluations": evaluations, **variant._asdict()}


def _rows(work: Work, cell: dict[str, Any], plans: Sequence[Plan], seed: int) -> list[dict[str, Any]]:
    started = time.perf_counter()
    weights = train(work.head, work.train, plans, seed)
    seconds = (time.perf_counter() - started) / len(plans)
    chosen_by, test = (accuracy(work.head, weights, part) for part in (work.chosen_by, work.test))
    return [
        {**cell, "step_size": alpha_of(plan), "clip": plan.clip, "seed": seed, "steps": plan.steps,
         "noise_multiplier": plan.noise_multiplier, "chosen_by": one, "accuracy": other, "seconds": round(seconds, 3)}
        for plan, one, other in zip(plans, chosen_by, test, strict=True)
    ]  # fmt: skip


def alpha_of(plan: Plan) -> float:
    """The step size that a schedule is given: its largest, and without one its only."""
    return max(plan.step_sizes)


def best(rows: pd.DataFrame, cell: dict[str, Any], plans: Sequence[Plan]) -> Plan:
    """The plan with the largest mean accuracy on the records held out for the choice, over its seeds."""
    part = rows[np.logical_and.reduce([rows[name] == value for name, value in cell.items()])]
    table = part[part["seed"].isin(CHOOSING)].groupby(["step_size", "clip"])["chosen_by"].mean()
    alpha, clip = max(table.index, key=lambda at: float(table[at]))
    return next(plan for plan in plans if math.isclose(alpha_of(plan), alpha) and math.isclose(plan.clip, clip))


def summary(rows: pd.DataFrame) -> str:
    """A line for each cell: accuracy of the reported seeds in percent, its standard error, and the setting."""
    lines = []
    part = rows[rows["seed"].isin(REPORTED)]
    for cell, found in part.groupby(list(CELL), sort=True):
        values = 100 * found["accuracy"].to_numpy(float)
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        alpha, clip = found[["step_size", "clip"]].to_numpy(float)[0]
        root = math.sqrt(int(found["directions"].iloc[0]))
        words = "  ".join(map(str, cell))
        setting = f"step size {alpha:.3g}, clip {clip / root:g} sqrt(K)"
        lines.append(f"{words:<60} {values.mean():.1f} +- {error:.1f}  {setting}")
    return "\n".join(lines)


def _parser() -> Parser:
    parser = Parser("benchmarks.equal_evaluations", __doc__)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="directions")
    parser.add_argument("--task", choices=tuple(TASKS), help="only this one")
    parser.add_argument("--evaluations", type=integer(1, 10**9), help="only this number")
    parser.add_argument("--data", type=input_folder("trec_train.label"), help="folder with trec_train.label (trec)")
    parser.add_argument("--out", type=output_folder, help="default: results/equal_evaluations, smoke: out")
    parser.add_argument("--summary", action="store_true", help="print the rows' table and stop")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Make the rows that are not there yet."""
    parser = _parser()
    options = parser.parse_args(argv)
    folder = options.out or (Path("out") if options.preset == "smoke" else RESULTS) / "equal_evaluations"
    if options.summary:
        with parser.refusals("--out"):
            print(summary(read_rows(folder)))
        return 0
    preset = PRESETS[options.preset]
    tasks = [name for name in preset.tasks if options.task in (None, name)]
    if "trec" in tasks and options.data is None:
        parser.error("--data must be given for trec")
    torch.set_num_threads(1)
    results = Results(
        folder,
        key=KEY,
        fields=FIELDS,
        seeds=[*CHOOSING, *REPORTED],
        device="cpu",
        dtype="float32",
        cell=CELL,
        settings={"epsilon": EPSILON, "delta": DELTA, "batch": BATCH, "smoothing": SMOOTHING, "noise": "seeded"},
        figure="figures.equal_evaluations",
    )
    with parser.opened("--out", results):
        for name in tasks:
            work = TASKS[name](options.data)
            for evaluations, variant in itertools.product(preset.tasks[name], preset.variants):
                if options.evaluations in (None, evaluations):
                    _make(results, work, _cell(name, evaluations, variant), variant)
    print(summary(read_rows(folder)))
    return 0


def _make(results: Results, work: Work, cell: dict[str, Any], variant: Variant) -> None:
    plans = grid(variant, cell["evaluations"], len(work.train.y))
    for seed in CHOOSING:
        left = [plan for plan in plans if not results.done(**cell, step_size=alpha_of(plan), clip=plan.clip, seed=seed)]
        if left:
            results.add(_rows(work, cell, left, seed))
    plan = best(read_rows(results.folder), cell, plans)
    for seed in REPORTED:
        if not results.done(**cell, step_size=alpha_of(plan), clip=plan.clip, seed=seed):
            results.add(_rows(work, cell, [plan], seed))
    print(f"{'  '.join(map(str, cell.values()))}: done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
