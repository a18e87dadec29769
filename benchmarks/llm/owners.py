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
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm.last_norm import (
    DELTA,
    DIRECTIONS,
    LARGE,
    SMOOTHING,
    Prepared,
    first,
    prepared,
    private_run,
    texts,
)
from benchmarks.llm.settings import CHOSEN, MODEL, best, ready, reported, tried
from benchmarks.pretrained import cache
from dpzero_theory.cli import input_folder, integer
from dpzero_theory.optim.losses.users import by_user
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
FIELDS = ("owners", "clip", "step_size", "dev_accuracy", "test_accuracy", "noise_multiplier")


@lru_cache
def noise(method: str, owned: int) -> float:
    """Return the noise multiplier, which is the noise on a step's sum over the clip, of a run that protects all phrases
    of an owner of `owned` phrases at (EPSILON, DELTA); the private end of its bracket. method: "users" (an owner is a
    record) or "texts" (a phrase is one)."""
    return group_noise(
        target_epsilon=EPSILON, target_delta=DELTA, size=owned if method == "texts" else 1, steps=STEPS,
        sampling="poisson", sample_rate=RATE, relation="add-remove",
    ).upper  # fmt: skip


def trained(work: Prepared, at: Cell, clip: float, step_size: float) -> dict[str, Any]:
    """Train by the method of the cell `at` (`method`, as in `noise`; `owned`, the phrases of an owner; `seed`, by which
    they are dealt) with this clip and first step size, and return the measured columns of the row, among them the
    accuracy on dev and test phrases. Afterwards the model of `work` has the weights that it had before."""
    owners = LARGE // at["owned"]
    phrases = first(work.parts["train"], owners * at["owned"])
    multiplier = noise(at["method"], at["owned"])
    of_a_record = Release(multiplier, STEPS, sampling="poisson", relation="add-remove", sample_rate=RATE)
    data: Any = phrases
    if at["method"] == "users":
        dealt = np.random.default_rng(at["seed"]).permutation(len(phrases)) % owners
        data = by_user(phrases, dealt.tolist())
    row = private_run(
        work, data, step_size, epsilon=epsilon_of_history([of_a_record], DELTA).upper, clip=clip, steps=STEPS,
        expected_batch=RATE * len(data), smoothing=SMOOTHING, directions_per_step=DIRECTIONS, micro_batch=LARGE,
        points_at_once=DIRECTIONS + 1,
    )  # fmt: skip
    return {"owners": owners} | {name: row[name] for name in FIELDS[1:]}


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


def _cells(options: Namespace) -> Iterator[Cell]:
    for owned, method in product(OWNED, METHODS):
        common = {"owned": owned, "method": method}
        yield from tried(common, len(SETTINGS))
        yield from reported(common, options.seeds)


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    if options.work is None:
        options.work = prepared(texts(options.data), cache() / "states")
    setting = at["setting"]
    if setting == CHOSEN:
        setting = best(read_rows(options.out), owned=at["owned"], method=at["method"])
    return [trained(options.work, at, *SETTINGS[int(setting)])]


EXPERIMENT = Experiment(
    name="llm.owners",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each kind that are reported"),
    ],
    folder="llm_owners",
    key=("owned", "method", "setting", "seed"),
    fields=FIELDS,
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "task": "sst2", "phrases": LARGE, "epsilon": EPSILON, "delta": DELTA, "rate": RATE,
        "steps": STEPS, "directions": DIRECTIONS, "smoothing": SMOOTHING, "difference": "forward",
        "sampling": "poisson", "relation": "add-remove", "trained": "the last normalisation",
    },
    check=ready,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['owned']} an owner, {at['method']}, setting {at['setting']}, seed {at['seed']}: "
        f"dev {100 * rows[0]['dev_accuracy']:.1f}, test {100 * rows[0]['test_accuracy']:.1f}"
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
