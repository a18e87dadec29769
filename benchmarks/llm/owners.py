"""Users as records, beside texts as records with noise for groups: SST-2.  python -m benchmarks llm.owners

    python -m benchmarks pretrained smollm2         # the model, once
    python -m benchmarks llm.owners --data DIR      # DIR holds sst2_train.tsv and sst2_test.tsv

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

import dpzero_theory as dz
from benchmarks.kit.experiment import Cell
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm.last_norm import DIRECTIONS, LARGE, SMOOTHING, prepared
from benchmarks.llm.top import NORM, TRAINED
from benchmarks.llm.tuned import CHOSEN, DELTA, Recipe, Study, first, studied, trained
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import step_of

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
    group = owned if method == "texts" else 1
    target: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "group": group, "relation": "add-remove"}
    return dz.calibrate(**target, steps=STEPS, sampling=dz.Poisson(RATE)).upper


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    if options.work is None:
        options.work = prepared(options.data)
    work, top, (clip, step_size) = options.work, options.work.top(TRAINED[NORM]), SETTINGS[number]
    owners = LARGE // at["owned"]
    phrases = first(work.states(0)["train"], owners * at["owned"])
    multiplier = noise(at["method"], at["owned"])
    of_a_record = step_of(multiplier, STEPS, sampling="poisson", relation="add-remove", sample_rate=RATE)
    data: Any = phrases
    if at["method"] == "users":
        dealt = np.random.default_rng(at["seed"]).permutation(len(phrases)) % owners
        data = by_user(phrases, dealt.tolist())
    how = Recipe(
        "dpzero", epsilon_of_history([of_a_record], DELTA).upper, steps=STEPS, batch=RATE * len(data), at_once=LARGE,
        step_size=step_size, clip=clip, directions=DIRECTIONS, smoothing=SMOOTHING,
    )  # fmt: skip
    cost = trained(how, top, work.losses, data)
    dev, test = (work.evaluated(top, part)[0] for part in ("dev", "test"))
    return {"owners": owners, "clip": clip, "step_size": step_size, "dev_accuracy": dev, "test_accuracy": test,
            "noise_multiplier": cost["noise_multiplier"]}  # fmt: skip


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


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    yield from (({"owned": owned, "method": method}, options.seeds) for owned, method in product(OWNED, METHODS))


EXPERIMENT = studied(
    "owners",
    __doc__,
    Study(_kinds, lambda at: len(SETTINGS), ("owned", "method"), _run),
    seeds=5,
    key=("owned", "method", "setting", "seed"),
    fields=FIELDS,
    settings={
        "task": "sst2", "phrases": LARGE, "epsilon": EPSILON, "rate": RATE, "steps": STEPS, "directions": DIRECTIONS,
        "smoothing": SMOOTHING, "trained": "the last normalisation",
    },
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
