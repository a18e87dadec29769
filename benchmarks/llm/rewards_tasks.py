"""The 0-1 error as what is trained, beside cross-entropy: TREC and PubMedQA.  python -m benchmarks.llm.rewards_tasks

    python -m benchmarks.pretrained smollm2               # the model, once
    python -m benchmarks.llm.rewards_tasks --data DIR     # DIR holds trec_train.label and pubmedqa_l.json

The model, its 576 trained weights and the prompts (the better of two) are those of `benchmarks.llm.last_norm_tasks`;
`benchmarks.llm.rewards` has SST-2. Both losses are trained privately on the same records with as many steps and
directions, at epsilon = 2. A loss's clip and step size are the pair of three with the highest accuracy on dev records,
which are taken to be public, in one run with seed 0. With cross-entropy the clip is sqrt(K) times the median gradient
norm G of the dev records, and the step sizes are s K/G^2.
"""

import math
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
from benchmarks.llm import last_norm
from benchmarks.llm.last_norm import CHOSEN, DELTA, DIRECTIONS, MODEL, Prepared, evaluated
from benchmarks.llm.last_norm_tasks import Size, asked
from benchmarks.llm.records import Record, Selection, splits
from benchmarks.llm.tasks import task
from benchmarks.training.pretrained import cache, pretrained_folder
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.losses.starting import public_clip
from dpzero_theory.optim.losses.task_losses import losses_for
from dpzero_theory.optim.private import make_private_with_epsilon

SIZES = {"trec": Size(4096, 300, 500, 40), "pubmedqa": Size(500, 200, 300, 192)}
BATCHES = {"trec": 512.0, "pubmedqa": 125.0}
WAY, EPSILON, STEPS = "better", 2.0, 220
LOSSES = ("cross-entropy", "error")
SCALES = (0.03, 0.1, 0.3)
"""The step sizes of cross-entropy that are compared, s in units of K/G^2."""
PAIRS = ((5.0, 1.0), (10.0, 1.0), (10.0, 3.0))
"""The clips and step sizes of the error that are compared."""
SMOOTHINGS = {"cross-entropy": 1e-2, "error": 0.1}


def texts(name: str, data: Path | None) -> dict[str, list[Record]]:
    """Return the records of a task by split, of which no two in `train` and `dev` have the same texts."""
    size = SIZES[name]
    found = splits(task(name), Selection(total=2 * (size.train + size.dev), dev=0, test=size.test), 0, data)
    distinct = list({tuple(record.texts.values()): record for record in found.train}.values())
    train = min(size.train, len(distinct) - size.dev)
    return {"train": distinct[:train], "dev": distinct[train : train + size.dev], "test": list(found.test)}


def prepared(name: str, data: Path | None) -> Prepared:
    """Return the model and a task's records by split."""
    length = SIZES[name].length
    return last_norm.prepared(texts(name, data), cache() / "states", asked(name, WAY), length, dtype="bfloat16")


def trained(work: Prepared, batch: float, loss: str, setting: int, folder: Path) -> dict[str, Any]:
    """Train privately, and return what was reached; the model's weights are put back.

    batch: the expected number of records in a batch. loss: one of `LOSSES`. setting: the number of its settings.
    """
    train, smoothing = work.parts["train"], SMOOTHINGS[loss]
    if loss == "error":
        clip, step_size = PAIRS[setting]
        losses = losses_for(work.tail, "error", options=work.options)
    else:
        norm = public_clip(work.tail, work.losses, work.parts["dev"], train, smoothing=smoothing)
        clip, step_size = math.sqrt(DIRECTIONS) * norm, SCALES[setting] * DIRECTIONS / norm**2
        losses = work.losses
    weights = [p for p in work.tail.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    try:
        run = make_private_with_epsilon(
            work.tail, losses, train, target_epsilon=EPSILON, target_delta=DELTA, clip=clip, relation="add-remove",
            steps=STEPS, expected_batch=batch, smoothing=smoothing, sampling="poisson",
            direction="rademacher", step_size=lambda step: step_size * (1 - step / STEPS),
            directions_per_step=DIRECTIONS, difference="forward", folder=folder, micro_batch=len(train),
            points_at_once=DIRECTIONS + 1,
        )  # fmt: skip
        run.run()
        run.close()
        return {
            "n": len(train),
            "clip": clip,
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


def table(folder: Path = RESULTS / "llm_rewards_tasks") -> str:
    """Return a table of the test accuracy before and after training with each loss, by task."""
    rows = read_rows(folder).astype({"setting": str})
    lines = []
    for name in SIZES:
        before = 100 * having(rows, task=name, loss="none")["test_accuracy"].iloc[0]
        error, crossed = (having(rows, task=name, loss=loss, setting=CHOSEN) for loss in ("error", "cross-entropy"))
        gap = 100 * (error["test_accuracy"].mean() - crossed["test_accuracy"].mean())
        lines.append(
            [
                task(name).title, f"{int(error['n'].iloc[0]):,}", f"{before:.1f}", percent(error["test_accuracy"]),
                percent(crossed["test_accuracy"]), f"{gap:+.1f}",
            ]
        )  # fmt: skip
    return markdown(["task", "records", "before", "0-1 error", "cross-entropy", "difference"], lines)


def _check(parser: Parser, options: Namespace) -> None:
    one_thread(parser, options)
    with parser.refusals():
        pretrained_folder(MODEL)
    options.work = {}


def _cells(options: Namespace) -> Iterator[Cell]:
    for name in options.tasks:
        yield {"task": name, "loss": "none", "setting": CHOSEN, "seed": 0}
        for loss in LOSSES:
            common = {"task": name, "loss": loss}
            yield from ({**common, "setting": str(index), "seed": 0} for index in range(len(PAIRS)))
            yield from ({**common, "setting": CHOSEN, "seed": seed} for seed in range(1, options.seeds + 1))


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    name, loss, setting = at["task"], at["loss"], at["setting"]
    if name not in options.work:
        options.work = {name: prepared(name, options.data)}
    work = options.work[name]
    if loss == "none":
        found = {f"{part}_accuracy": evaluated(work, part)[0] for part in ("dev", "test")}
        return [{"n": len(work.parts["train"]), **found}]
    if setting == CHOSEN:
        tried = having(read_rows(options.out), task=name, loss=loss, seed=0)
        setting = tried.sort_values(["dev_accuracy", "setting"], ascending=[False, True])["setting"].iloc[0]
    with TemporaryDirectory() as folder:
        return [trained(work, BATCHES[name], loss, int(setting), Path(folder))]


EXPERIMENT = Experiment(
    name="llm.rewards_tasks",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--tasks", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="which tasks (default: all)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each loss that are reported"),
    ],
    folder="llm_rewards_tasks",
    key=("task", "loss", "setting", "seed"),
    fields=("n", "clip", "step_size", "dev_accuracy", "test_accuracy", "epsilon_upper", "noise_multiplier"),
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32, frozen layers in bfloat16",
    settings={
        "model": MODEL, "prompts": WAY, "batches": str(BATCHES), "steps": STEPS, "directions": DIRECTIONS,
        "epsilon": EPSILON, "delta": DELTA, "smoothings": str(SMOOTHINGS), "difference": "forward",
        "sampling": "poisson", "relation": "add-remove", "trained": "the last normalisation",
    },
    check=_check,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['task']}, {at['loss']}, setting {at['setting']}, seed {at['seed']}: "
        f"dev {100 * rows[0]['dev_accuracy']:.1f}, test {100 * rows[0]['test_accuracy']:.1f}"
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
