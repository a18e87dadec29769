"""Paying for the choice of clip and step size: a random number of runs, or each setting once, at equal epsilon.

    python -m benchmarks.private_search --task digits
    python -m benchmarks.private_search --task trec --data DIR [--seeds N] [--out DIR]

A setting is a pair of a clip and a step size. The whole search costs epsilon = 2 at delta = 1e-5 (relation add-remove).
There are four ways to spend it: the best of a geometric number of runs of random settings, 3 or 10 on average
(`privacy.selection`), every setting once (composed), or one run of a random setting. Public records score the runs and
so choose; accuracy is measured on others. Noise comes from seeds: each setting runs at each way's noise with each seed,
and SEARCHES searches are drawn from these rows.

digits: scikit-learn's digits, logistic model, full batches, 1,437 records. trec: questions embedded by a frozen
sentence encoder, six classes, 4,000 records, Poisson batches of 256. Both start from weights of zero.
"""

import itertools
import math
import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm.records import load
from benchmarks.llm.tasks import task
from benchmarks.training.embeddings import sentence_embeddings
from benchmarks.training.search_plans import Setting, plans_of_search
from dpzero_theory import datasets
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.privacy.selection import Runs

EPSILON, DELTA = 2.0, 1e-5
SEARCHES = 20_000
STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CLIPS = (0.3, 3.0)
SETTINGS: list[Setting] = [
    Setting(step_size=step_size, clip=clip) for step_size, clip in itertools.product(STEP_SIZES, CLIPS)
]
ONE = "one at random"
WAYS: dict[str, Runs | None] = {
    ONE: None,
    "best of 3 on average": Runs(3.0),
    "best of 10 on average": Runs(10.0),
    "each once": None,
}


class SearchRecords(NamedTuple):
    """The records of a task in three parts: private ones to train on, public ones that choose among runs, and others on
    which accuracy is measured. Each part has features and classes. batch is the expected batch size, steps the number
    of steps."""

    train: tuple[Tensor, Tensor]
    public: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch: int
    steps: int


def digits(_: Path | None) -> SearchRecords:
    images, labels = datasets.digits(0)
    x, y = torch.tensor(images, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
    parts = [(x[a:b], y[a:b]) for a, b in ((0, 1437), (1437, 1537), (1537, 1797))]
    return SearchRecords(parts[0], parts[1], parts[2], 1437, 400)


def trec_records(folder: Path | None, split: str = "train") -> tuple[list[str], Tensor]:
    """Return the questions of TREC and their classes, shape (questions,), from the split "train" or "test". folder:
    that of TREC's files, or None for Hugging Face."""
    records = load(task("trec"), split, folder)
    return [next(iter(record.texts.values())) for record in records], torch.tensor([r.label for r in records])


def trec(folder: Path | None) -> SearchRecords:
    """Return the records of the task trec: the questions' embeddings, scaled to length sqrt(width), 4,000 of the
    training split to train on, 400 to choose by and the rest of it to measure accuracy on, divided at random but always
    alike. folder: that of TREC's files, or None for Hugging Face. The encoder is public and not trained."""
    texts, y = trec_records(folder)
    x = sentence_embeddings(texts)
    x = x * math.sqrt(x.shape[1])
    drawn = np.random.default_rng(0).permutation(len(y))
    parts = [(x[drawn[a:b]], y[drawn[a:b]]) for a, b in ((0, 4000), (4000, 4400), (4400, len(y)))]
    return SearchRecords(parts[0], parts[1], parts[2], 256, 300)


TASKS: dict[str, Callable[[Path | None], SearchRecords]] = {"digits": digits, "trec": trec}


def losses(module: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def plans_of(way: str, work: SearchRecords) -> list[Plan]:
    """Return a plan for each pair of clip and step size, with the noise at which the whole search costs EPSILON if its
    choice is paid for in the given way, a key of WAYS. `work` has the records, the batch size and the number of
    steps."""
    n = len(work.train[0])
    target = Target(
        target_epsilon=EPSILON,
        target_delta=DELTA,
        steps=work.steps,
        expected_batch=work.batch,
        clip=1.0,
        step_size=1.0,
        smoothing=1e-3,
        relation="add-remove",
        sampling="full" if work.batch == n else "poisson",
    )
    if way == ONE:
        return [plans_of_search(n, [setting], None, target)[0][0] for setting in SETTINGS]
    return list(plans_of_search(n, SETTINGS, WAYS[way], target)[0])


def one_run(work: SearchRecords, plan: Plan, seed: int) -> dict[str, Any]:
    """Train by a plan with this seed. Returns the measured columns of the row: after the last step, the accuracy on the
    public records and on those that measure. `work` has the records."""
    torch.manual_seed(seed)
    module = nn.Linear(work.train[0].shape[1], int(work.train[1].max()) + 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    make_from_seed_not_private(
        module, losses, TensorDataset(*work.train), plan, seed=seed, micro_batch=len(work.train[0])
    ).run()

    def accuracy(part: tuple[Tensor, Tensor]) -> float:
        with torch.no_grad():
            return float((module(part[0]).argmax(dim=1) == part[1]).float().mean())

    return {
        "noise_multiplier": plan.noise_multiplier,
        "public": round(accuracy(work.public), 6),
        "accuracy": round(accuracy(work.test), 6),
    }


def searched(rows: pd.DataFrame, way: str) -> tuple[float, float]:
    """Return the mean and the standard deviation, over SEARCHES simulated searches that pay for their choice in the
    given `way`, a key of WAYS, of the accuracy in which a search ends.

    `rows` are the runs of that way. Each run of a search is one of them, of a random or a given setting and with a
    random seed. The search chooses its run that is best on the public records, and ends in the accuracy of that run on
    the records that neither train nor choose.
    """
    table = rows.pivot(index="setting", columns="seed", values=["public", "accuracy"])
    public, accuracy = (np.asarray(table[name], dtype=float) for name in ("public", "accuracy"))
    source, found = random.Random(0), []
    for _ in range(SEARCHES):
        runs = WAYS[way]
        if way == ONE:
            picks = [source.randrange(len(public))]
        elif runs is None:
            picks = list(range(len(public)))
        else:
            picks = [source.randrange(len(public)) for _ in range(runs.draw(source))]
        trained = [(pick, source.randrange(public.shape[1])) for pick in picks]
        found.append(float(accuracy[max(trained, key=lambda at: float(public[at]))]))
    return float(np.mean(found)), float(np.std(found))


def _check(parser: Parser, options: Namespace) -> None:
    if options.task == "trec" and options.data is None:
        parser.error("--data must be given for trec")
    one_thread(parser, options)


def _cells(options: Namespace) -> Iterator[Cell]:
    options.work = TASKS[options.task](options.data)
    options.plans = {way: plans_of(way, options.work) for way in WAYS}
    for way in WAYS:
        for number in range(len(options.plans[way])):
            yield from ({"way": way, "setting": number, "seed": seed} for seed in range(options.seeds))


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    plan = options.plans[at["way"]][at["setting"]]
    return dict(SETTINGS[at["setting"]]) | one_run(options.work, plan, at["seed"])


def _report(options: Namespace) -> None:
    rows = read_rows(options.out)
    alone = rows[rows["way"] == ONE].groupby("setting")["accuracy"].mean().max()
    for way in WAYS:
        mine = rows[rows["way"] == way]
        mean, spread = searched(mine, way)
        noise = float(mine["noise_multiplier"].iloc[0])
        print(f"{way:<24} accuracy {100 * mean:.1f} (a search varies by {100 * spread:.1f}), noise {noise:.2f}")
    print(f"{'the best setting, known':<24} accuracy {100 * alone:.1f} (chosen by the test records: not a way)")
    print(f"rows: {options.out}")


EXPERIMENT = Experiment(
    name="private_search",
    about=__doc__,
    flags=[
        flag("--task", choices=tuple(TASKS), required=True),
        flag("--data", type=input_folder("trec_train.label"), help="folder with trec_train.label (trec)"),
        flag("--seeds", type=integer(1, 100), default=3),
    ],
    folder=lambda options: RESULTS / f"private_search_{options.task}",
    key=("way", "setting", "seed"),
    fields=("step_size", "clip", "noise_multiplier", "public", "accuracy"),
    seeds=lambda options: range(options.seeds),
    dtype="float32",
    settings=lambda options: {"task": options.task, "epsilon": EPSILON, "delta": DELTA, "noise": "seeded"},
    check=_check,
    cells=_cells,
    measure=_measure,
    report=_report,
)
