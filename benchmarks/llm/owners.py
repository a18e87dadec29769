"""Users as records, beside texts as records with noise for groups: SST-2.  python -m benchmarks.llm.owners

    python -m benchmarks.pretrained smollm2         # the model, once
    python -m benchmarks.llm.owners --data DIR      # DIR holds sst2_train.tsv and sst2_test.tsv

The model, its 576 trained weights, the prompt and the records are those of `benchmarks.llm.last_norm`. Each training
phrase has one owner: every owner has as many, and they are dealt at random, so that an owner's phrases have nothing in
common. Both methods protect all phrases of an owner, at the same epsilon and delta, and evaluate as many phrases a step
on average: "users" by one clipped number an owner and direction (`dpzero_theory.optim.losses.users`), "texts" by one a
phrase and by noise for groups of that size (`dpzero_theory.privacy.group`). Clip and step size are the pair with the
highest accuracy on dev phrases, which are taken to be public, in one run with seed 0.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm.last_norm import (
    CHOSEN,
    DELTA,
    DIRECTIONS,
    LARGE,
    MODEL,
    SMOOTHING,
    Prepared,
    evaluated,
    first,
    prepared,
    texts,
)
from benchmarks.training.pretrained import cache, pretrained_folder
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.group import group_noise
from dpzero_theory.privacy.step import Release

EPSILON, STEPS, RATE = 8.0, 300, 0.125
"""The guarantee for an owner, the number of steps, and the rate of the Poisson batches."""
OWNED = (10, 50)
"""The numbers of phrases an owner has."""
CLIPS, STEP_SIZES = (1.0, 4.0), (0.75, 1.5, 3.0)
SETTINGS = tuple(product(CLIPS, STEP_SIZES))
METHODS = ("users", "texts")


@lru_cache
def noise(method: str, owned: int) -> float:
    """Return the noise multiplier, in clips on a step's sum, of a run that protects owners of `owned` phrases each.
    method: "users" or "texts"."""
    return group_noise(
        target_epsilon=EPSILON, target_delta=DELTA, size=owned if method == "texts" else 1, steps=STEPS,
        sampling="poisson", sample_rate=RATE, relation="add-remove",
    ).upper  # fmt: skip


def trained(work: Prepared, at: Cell, clip: float, step_size: float, folder: Path) -> dict[str, Any]:
    """Train by the cell's method and return the measured columns of the row, among them the accuracy on dev and test
    phrases. Afterwards the model has the weights that it had before. folder: for the files of the private run."""
    owners = LARGE // at["owned"]
    phrases = first(work.parts["train"], owners * at["owned"])
    multiplier = noise(at["method"], at["owned"])
    of_a_record = Release(multiplier, STEPS, sampling="poisson", relation="add-remove", sample_rate=RATE)
    data: Any = phrases
    if at["method"] == "users":
        dealt = np.random.default_rng(at["seed"]).permutation(len(phrases)) % owners
        data = by_user(phrases, dealt.tolist())
    weights = [p for p in work.tail.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    try:
        run = make_private_with_epsilon(
            work.tail, work.losses, data, target_epsilon=epsilon_of_history([of_a_record], DELTA).upper,
            target_delta=DELTA, clip=clip, relation="add-remove", steps=STEPS, expected_batch=RATE * len(data),
            smoothing=SMOOTHING, sampling="poisson", direction="rademacher", difference="forward",
            step_size=lambda step: step_size * (1 - step / STEPS), directions_per_step=DIRECTIONS,
            folder=folder, micro_batch=LARGE, points_at_once=DIRECTIONS + 1,
        )  # fmt: skip
        run.run()
        run.close()
        return {
            "owners": owners,
            "clip": clip,
            "step_size": step_size,
            "dev_accuracy": evaluated(work, "dev")[0],
            "test_accuracy": evaluated(work, "test")[0],
            "noise_multiplier": run.plan.noise_multiplier,
        }
    finally:
        with torch.no_grad():
            for parameter, value in zip(weights, before, strict=True):
                parameter.copy_(value)


def table(folder: Path = RESULTS / "llm_owners") -> str:
    """Return a table of the noise and the test accuracy of both methods by the number of phrases of an owner."""
    rows = read_rows(folder).astype({"setting": str})
    names = {"users": "owners as records", "texts": "phrases as records, noise for groups"}
    shown = [
        [f"{owned}", f"{part['owners'].iloc[0]}", names[str(method)], f"{part['noise_multiplier'].iloc[0]:.2f}",
         f"{part['clip'].iloc[0]:g}", percent(part["test_accuracy"]), f"{len(part)}"]
        for (owned, method), part in having(rows, setting=CHOSEN).groupby(["owned", "method"], sort=False)
    ]  # fmt: skip
    header = ["phrases an owner", "owners", "method", "noise multiplier", "clip", "test accuracy (%)", "runs"]
    return markdown(header, shown)


def _check(parser: Parser, options: Namespace) -> None:
    one_thread(parser, options)
    with parser.refusals():
        pretrained_folder(MODEL)
    options.work = None


def _cells(options: Namespace) -> Iterator[Cell]:
    for owned, method in product(OWNED, METHODS):
        common = {"owned": owned, "method": method}
        yield from ({**common, "setting": str(number), "seed": 0} for number in range(len(SETTINGS)))
        yield from ({**common, "setting": CHOSEN, "seed": seed} for seed in range(1, options.seeds + 1))


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    if options.work is None:
        options.work = prepared(texts(options.data), cache() / "states")
    setting = at["setting"]
    if setting == CHOSEN:
        tried = having(read_rows(options.out), owned=at["owned"], method=at["method"], seed=0)
        setting = tried.sort_values(["dev_accuracy", "setting"], ascending=[False, True])["setting"].iloc[0]
    with TemporaryDirectory() as folder:
        return [trained(options.work, at, *SETTINGS[int(setting)], Path(folder))]


EXPERIMENT = Experiment(
    name="llm.owners",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each kind that are reported"),
    ],
    folder="llm_owners",
    key=("owned", "method", "setting", "seed"),
    fields=("owners", "clip", "step_size", "dev_accuracy", "test_accuracy", "noise_multiplier"),
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "task": "sst2", "phrases": LARGE, "epsilon": EPSILON, "delta": DELTA, "rate": RATE,
        "steps": STEPS, "directions": DIRECTIONS, "smoothing": SMOOTHING, "difference": "forward",
        "sampling": "poisson", "relation": "add-remove", "trained": "the last normalisation",
    },
    check=_check,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['owned']} an owner, {at['method']}, setting {at['setting']}, seed {at['seed']}: "
        f"dev {100 * rows[0]['dev_accuracy']:.1f}, test {100 * rows[0]['test_accuracy']:.1f}"
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
