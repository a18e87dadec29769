"""The 0-1 error as what is trained: a pretrained language model on SST-2.  python -m benchmarks.llm.rewards

    python -m benchmarks.pretrained smollm2               # the model, once
    python -m benchmarks.llm.rewards --data DIR           # DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks.llm.rewards_tasks --data DIR     # the tasks that are trained with cross-entropy too

For the last command DIR holds the data sets' files trec_train.label and pubmedqa_l.json.

The model and its 576 trained weights are those of `benchmarks.llm.last_norm`, as are the prompt and the records of
SST-2; the other tasks have the better of the two prompts of `benchmarks.llm.last_norm_tasks`. A record's loss is 1
where the likeliest of the answers is a wrong one, else 0: it has no derivative. The expected error is the average of
that loss over answers that are drawn from the model, which is 1 minus the probability of the right answer. All losses
are trained privately on the same records with as many steps and directions. A loss's clip and step size are the pair of
three with the highest accuracy on dev records, which are taken to be public, in one run with seed 0 at epsilon = 2; the
pairs on SST-2 come from four trial runs that were judged by dev accuracy too, and those of the expected error from nine
on TREC. With cross-entropy the clip is sqrt(K) times the median gradient norm G of the dev records, and the step sizes
are s K/G^2.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm import last_norm, last_norm_tasks
from benchmarks.llm.last_norm import DELTA, DIRECTIONS, LARGE, Prepared, evaluated, first, private_run
from benchmarks.llm.last_norm_tasks import Size
from benchmarks.llm.settings import CHOSEN, MODEL, best, ready, reported, tried
from benchmarks.llm.tasks import task
from benchmarks.pretrained import cache
from dpzero_theory.cli import input_folder, integer
from dpzero_theory.optim.losses.starting import public_clip
from dpzero_theory.optim.losses.task_losses import losses_for


class Tried(NamedTuple):
    """A task that is trained: the number of steps, the expected number of records in a batch, and the clips and step
    sizes of the error that are compared. size: how many records it has; None for those of `last_norm`."""

    steps: int
    batch: float
    pairs: tuple[tuple[float, float], ...]
    size: Size | None = None


_PAIRS = ((5.0, 1.0), (10.0, 1.0), (10.0, 3.0))
EXPECTED = ((1.0, 10.0), (1.0, 30.0), (2.0, 30.0))
"""The clips and step sizes of the expected error that are compared."""
TASKS = {
    "sst2": Tried(600, 512.0, ((10.0, 0.5), (10.0, 1.0), (10.0, 2.0))),
    "trec": Tried(220, 512.0, _PAIRS, Size(4096, 300, 500, 40)),
    "pubmedqa": Tried(220, 125.0, _PAIRS, Size(500, 200, 300, 192)),
}
BESIDE = ("trec", "pubmedqa")
"""The tasks that are trained with cross-entropy too."""
WAY, EPSILONS = "better", ("2", "6")
LOSSES = ("cross-entropy", "error", "expected-error")
SCALES = (0.03, 0.1, 0.3)
"""The step sizes of cross-entropy that are compared, s in units of K/G^2."""
SMOOTHINGS = {"cross-entropy": 1e-2, "error": 0.1}
"""The smoothing of each loss; the expected error has that of cross-entropy, since it too moves with every weight."""


def prepared(name: str, data: Path | None) -> Prepared:
    """Return the model and the records by split of the task with this name, a key of `TASKS`. data: a folder of local
    files, or None for Hugging Face."""
    size = TASKS[name].size
    if size is None:
        return last_norm.prepared(last_norm.texts(data), cache() / "states")
    records, asked = last_norm_tasks.texts(name, data, size), last_norm_tasks.asked(name, WAY)
    return last_norm.prepared(records, cache() / "states", asked, size.length, dtype="bfloat16")


def trained(work: Prepared, name: str, loss: str, epsilon: float, setting: int) -> dict[str, Any]:
    """Train privately for the target `epsilon`, and return the columns of the row, among them the accuracy on dev and
    test records; the model's weights are put back.

    name: of the task. loss: one of `LOSSES`. setting: the index (0, 1, ...) of the loss's pair of clip and step size.
    """
    at, train, losses = TASKS[name], first(work.parts["train"], LARGE), work.losses
    smoothing = SMOOTHINGS.get(loss, SMOOTHINGS["cross-entropy"])
    if loss != "cross-entropy":
        clip, step_size = (at.pairs if loss == "error" else EXPECTED)[setting]
        losses = losses_for(work.tail, loss, options=work.options)
    else:
        norm = public_clip(work.tail, work.losses, work.parts["dev"], train, smoothing=smoothing)
        clip, step_size = math.sqrt(DIRECTIONS) * norm, SCALES[setting] * DIRECTIONS / norm**2
    row = private_run(
        work, train, step_size, losses, epsilon=epsilon, clip=clip, steps=at.steps, expected_batch=at.batch,
        smoothing=smoothing, directions_per_step=DIRECTIONS, micro_batch=len(train), points_at_once=DIRECTIONS + 1,
    )  # fmt: skip
    return {"n": len(train), **row}


def table(folder: Path = RESULTS / "llm_rewards", beside: Path = RESULTS / "llm_last_norm") -> str:
    """Return a table of the test accuracy on SST-2 reached with the 0-1 error and with cross-entropy, by epsilon.

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


def table_of_tasks(folder: Path = RESULTS / "llm_rewards_tasks") -> str:
    """Return a table of the test accuracy before and after training with each loss, by task."""
    rows = read_rows(folder).astype({"setting": str})
    lines = []
    for name in BESIDE:
        if not len(having(rows, task=name, loss="error", setting=CHOSEN)):
            continue
        before = 100 * having(rows, task=name, loss="none")["test_accuracy"].iloc[0]
        found = {loss: having(rows, task=name, loss=loss, setting=CHOSEN)["test_accuracy"] for loss in LOSSES}
        crossed = found[LOSSES[0]]
        cells = [
            f"{percent(found[loss])} ({100 * (found[loss].mean() - crossed.mean()):+.1f})" if len(found[loss]) else "-"
            for loss in LOSSES[1:]
        ]
        n = int(having(rows, task=name)["n"].iloc[0])
        lines.append([task(name).title, f"{n:,}", f"{before:.1f}", percent(crossed), *cells])
    return markdown(["task", "records", "before", "cross-entropy", "0-1 error", "expected 0-1 error"], lines)


def _cells(options: Namespace) -> Iterator[Cell]:
    yield from tried({"epsilon": EPSILONS[0]}, len(TASKS["sst2"].pairs))
    for epsilon in EPSILONS:
        yield from reported({"epsilon": epsilon}, options.seeds)


def _cells_of_tasks(options: Namespace) -> Iterator[Cell]:
    for name in options.tasks:
        yield {"task": name, "loss": "none", "setting": CHOSEN, "seed": 0}
        for loss in LOSSES:
            yield from tried({"task": name, "loss": loss}, len(TASKS[name].pairs))
            yield from reported({"task": name, "loss": loss}, options.seeds)


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    name, loss, setting = at.get("task", "sst2"), at.get("loss", "error"), at["setting"]
    if options.work is None or name not in options.work:
        options.work = {name: prepared(name, options.data)}
    work = options.work[name]
    if loss == "none":
        found = {f"{part}_accuracy": evaluated(work, part)[0] for part in ("dev", "test")}
        return {"n": len(work.parts["train"]), **found}
    if setting == CHOSEN:
        setting = best(read_rows(options.out), **{key: at[key] for key in ("task", "loss") if key in at})
    row = trained(work, name, loss, float(at.get("epsilon", EPSILONS[0])), int(setting))
    return {column: row[column] for column in (FIELDS if "task" in at else FIELDS[2:])}


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    what = f"{at['task']}, {at['loss']}" if "task" in at else f"epsilon {at['epsilon']}"
    reached = f"dev {100 * rows[0]['dev_accuracy']:.1f}, test {100 * rows[0]['test_accuracy']:.1f}"
    return f"{what}, setting {at['setting']}, seed {at['seed']}: {reached}"


FIELDS = ("n", "clip", "step_size", "dev_accuracy", "test_accuracy", "epsilon_upper", "noise_multiplier")
_COMMON: dict[str, Any] = {
    "about": __doc__, "seeds": lambda options: range(options.seeds + 1), "check": ready, "measure": _measure,
    "told": _told,
}  # fmt: skip
_DATA = flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)")
_LAW = {
    "difference": "forward", "delta": DELTA, "sampling": "poisson", "relation": "add-remove",
    "trained": "the last normalisation",
}  # fmt: skip
EXPERIMENT = Experiment(
    name="llm.rewards",
    flags=[_DATA, flag("--seeds", type=integer(1, 100), default=5, help="runs of each epsilon that are reported")],
    folder="llm_rewards",
    key=("epsilon", "setting", "seed"),
    fields=FIELDS[2:],
    dtype="float32",
    settings={
        "model": MODEL, "task": "sst2", "n": LARGE, "batch": TASKS["sst2"].batch, "steps": TASKS["sst2"].steps,
        "directions": DIRECTIONS, "clip": TASKS["sst2"].pairs[0][0], "smoothing": SMOOTHINGS["error"], **_LAW,
        "loss": "error",
    },
    cells=_cells,
    **_COMMON,
)  # fmt: skip
OF_TASKS = Experiment(
    name="llm.rewards_tasks",
    flags=[
        _DATA,
        flag("--tasks", nargs="+", choices=BESIDE, default=list(BESIDE), help="which tasks (default: all)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each loss that are reported"),
    ],
    folder="llm_rewards_tasks",
    key=("task", "loss", "setting", "seed"),
    fields=FIELDS,
    dtype="float32, frozen layers in bfloat16",
    settings={
        "model": MODEL, "prompts": WAY, "batches": str({name: TASKS[name].batch for name in BESIDE}),
        "steps": TASKS["trec"].steps, "directions": DIRECTIONS, "epsilon": float(EPSILONS[0]),
        "smoothings": str(SMOOTHINGS), **_LAW,
    },
    cells=_cells_of_tasks,
    **_COMMON,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
