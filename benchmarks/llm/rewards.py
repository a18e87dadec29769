"""The 0-1 error as what is trained: a pretrained language model on SST-2.  python -m benchmarks.llm.rewards

    python -m benchmarks.pretrained smollm2         # the model, once
    python -m benchmarks.llm.rewards --data DIR     # DIR holds sst2_train.tsv and sst2_test.tsv

The model, its 576 trained weights, the prompt and the records are those of `benchmarks.llm.last_norm`. A record's loss
is 1 where the likelier of the two answers is the wrong one, else 0: it has no derivative. The step size is the one of
three with the highest accuracy on dev phrases, which are taken to be public, in one run with seed 0; clip and smoothing
come from four trial runs that were judged by dev accuracy too.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
    Prepared,
    evaluated,
    first,
    prepared,
    texts,
)
from benchmarks.training.pretrained import cache, pretrained_folder
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.losses.task_losses import losses_for
from dpzero_theory.optim.private import make_private_with_epsilon

STEPS, BATCH, CLIP, SMOOTHING = 600, 512.0, 10.0, 0.1
STEP_SIZES = (0.5, 1.0, 2.0)
EPSILONS = ("2", "6")


def trained(work: Prepared, epsilon: float, step_size: float, folder: Path) -> dict[str, Any]:
    """Train on the 0-1 error with DPZero and return the measured columns of the row: accuracy on dev and test phrases,
    the epsilon spent and the noise. Afterwards the model has the weights that it had before. folder: for the files of
    the private run."""
    weights = [p for p in work.tail.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    try:
        run = make_private_with_epsilon(
            work.tail, losses_for(work.tail, "error", options=work.options), first(work.parts["train"], LARGE),
            target_epsilon=epsilon, target_delta=DELTA, clip=CLIP, relation="add-remove", steps=STEPS,
            expected_batch=BATCH, smoothing=SMOOTHING, sampling="poisson", direction="rademacher",
            step_size=lambda step: step_size * (1 - step / STEPS), directions_per_step=DIRECTIONS,
            difference="forward", folder=folder, micro_batch=LARGE,
        )  # fmt: skip
        run.run()
        run.close()
        return {
            "step_size": step_size,
            "dev_accuracy": evaluated(work, "dev")[0],
            "test_accuracy": evaluated(work, "test")[0],
            "epsilon_upper": run.get_epsilon(DELTA),
            "noise_multiplier": run.plan.noise_multiplier,
        }
    finally:
        with torch.no_grad():
            for parameter, value in zip(weights, before, strict=True):
                parameter.copy_(value)


def table(folder: Path = RESULTS / "llm_rewards", beside: Path = RESULTS / "llm_last_norm") -> str:
    """Return a table of the test accuracy reached with the 0-1 error and with cross-entropy as losses, by epsilon.

    folder: the rows of this experiment. beside: those of `benchmarks.llm.last_norm`.
    """
    own, other = (read_rows(path).astype({"setting": str, "epsilon": str}) for path in (folder, beside))
    lines = []
    for epsilon in EPSILONS:
        errors = having(own, setting=CHOSEN, epsilon=epsilon)["test_accuracy"]
        runs = having(other, setting=CHOSEN, epsilon=epsilon, method="dpzero", n=LARGE)
        crossed = runs[runs["step"] == runs["step"].max()]["test_accuracy"]
        lines.append([epsilon, percent(errors), percent(crossed), f"{100 * (errors.mean() - crossed.mean()):+.1f}"])
    return markdown(["epsilon", "0-1 error", "cross-entropy", "difference"], lines)


def _check(parser: Parser, options: Namespace) -> None:
    one_thread(parser, options)
    with parser.refusals():
        pretrained_folder(MODEL)
    options.work = None


def _cells(options: Namespace) -> Iterator[Cell]:
    yield from ({"epsilon": EPSILONS[0], "setting": str(index), "seed": 0} for index in range(len(STEP_SIZES)))
    for epsilon in EPSILONS:
        yield from ({"epsilon": epsilon, "setting": CHOSEN, "seed": seed} for seed in range(1, options.seeds + 1))


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    if options.work is None:
        options.work = prepared(texts(options.data), cache() / "states")
    if at["setting"] == CHOSEN:
        rows = read_rows(options.out)
        tried = rows[rows["seed"] == 0].sort_values(["dev_accuracy", "setting"], ascending=[False, True])
        step_size = STEP_SIZES[int(tried["setting"].iloc[0])]
    else:
        step_size = STEP_SIZES[int(at["setting"])]
    with TemporaryDirectory() as folder:
        return [trained(options.work, float(at["epsilon"]), step_size, Path(folder))]


EXPERIMENT = Experiment(
    name="llm.rewards",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each epsilon that are reported"),
    ],
    folder="llm_rewards",
    key=("epsilon", "setting", "seed"),
    fields=("step_size", "dev_accuracy", "test_accuracy", "epsilon_upper", "noise_multiplier"),
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "task": "sst2", "n": LARGE, "batch": BATCH, "steps": STEPS, "directions": DIRECTIONS,
        "clip": CLIP, "smoothing": SMOOTHING, "difference": "forward", "delta": DELTA, "sampling": "poisson",
        "relation": "add-remove", "trained": "the last normalisation", "loss": "error",
    },
    check=_check,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"epsilon {at['epsilon']}, setting {at['setting']}, seed {at['seed']}: "
        f"dev {100 * rows[0]['dev_accuracy']:.1f}, test {100 * rows[0]['test_accuracy']:.1f}"
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
