"""The 0-1 error as what is trained: a pretrained language model on SST-2.  python -m benchmarks llm.rewards

    python -m benchmarks pretrained smollm2               # the model, once
    python -m benchmarks llm.rewards --data DIR           # DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks llm.rewards_tasks --data DIR     # TREC and PubMedQA, with cross-entropy too

The model and its 576 trained weights are those of `benchmarks.llm.last_norm`, as are the prompt and the records of
SST-2; the other tasks have the better of the two prompts of `benchmarks.llm.last_norm_tasks`. A record's loss is 1
where the likeliest of the answers is a wrong one, else 0: it has no derivative. The expected error is the average of
that loss over answers that are drawn from the model, which is 1 minus the probability of the right answer. All losses
are trained privately on the same records with as many steps and directions. A setting is a pair of clip and step size;
with cross-entropy the clip is sqrt(K) times the median gradient norm G of the dev records, and the step sizes are
s K/G^2. The pairs on SST-2 come from four trial runs that were judged by dev accuracy too, and those of the expected
error from nine on TREC.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from benchmarks.kit.experiment import Cell, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm import last_norm, last_norm_tasks
from benchmarks.llm.last_norm import DIRECTIONS, LARGE
from benchmarks.llm.last_norm_tasks import Size
from benchmarks.llm.tasks import task
from benchmarks.llm.top import NORM, TRAINED, Records
from benchmarks.llm.tuned import CHOSEN, Recipe, Study, first, studied, trained


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


def losses(work: Records, loss: str) -> Callable[[nn.Module, Mapping[str, Tensor]], Tensor]:
    """Return the function (module, batch) that gives each record's loss, one of `LOSSES`."""

    def found(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        scores, wanted = work.scores(module, batch)
        if loss == "error":
            return (scores.argmax(1) != wanted).float()
        return 1 - scores.softmax(1).gather(1, wanted[:, None])[:, 0]

    return work.losses if loss == "cross-entropy" else found


def prepared(name: str, data: Path | None) -> Records:
    """Return the model and the records of the task with this name, a key of `TASKS`. data: a folder of local files, or
    None for Hugging Face."""
    size = TASKS[name].size
    return last_norm.prepared(data) if size is None else last_norm_tasks.prepared(name, WAY, data, size=size)


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    name, loss, weights = at.get("task", "sst2"), at.get("loss", "error"), TRAINED[NORM]
    if options.work is None or options.work[0] != name:
        options.work = name, prepared(name, options.data)
    work: Records = options.work[1]
    top, train, about = work.top(weights), first(work.states(0)["train"], LARGE), TASKS[name]
    found: dict[str, Any] = {"n": len(train)}
    if loss != "none":
        smoothing = SMOOTHINGS.get(loss, SMOOTHINGS["cross-entropy"])
        if loss == "cross-entropy":
            norm = work.gradient_norm(weights, "dev", smoothing)
            clip, step_size = math.sqrt(DIRECTIONS) * norm, SCALES[number] * DIRECTIONS / norm**2
        else:
            clip, step_size = (about.pairs if loss == "error" else EXPECTED)[number]
        how = Recipe(
            "dpzero", float(at.get("epsilon", EPSILONS[0])), steps=about.steps, batch=about.batch,
            step_size=step_size, clip=clip, directions=DIRECTIONS, smoothing=smoothing,
        )  # fmt: skip
        found |= {"clip": clip, "step_size": step_size, **trained(how, top, losses(work, loss), train)}
    found |= {f"{part}_accuracy": work.evaluated(top, part)[0] for part in ("dev", "test")}
    return {column: found[column] for column in (FIELDS if "task" in at else FIELDS[2:]) if column in found}


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
        mine = having(rows, task=name, setting=CHOSEN)
        if not len(mine):
            continue
        found = {loss: having(mine, loss=loss)["test_accuracy"] for loss in ("none", *LOSSES)}
        crossed = found["cross-entropy"]
        cells = [f"{percent(found[loss])} ({100 * (found[loss].mean() - crossed.mean()):+.1f})" for loss in LOSSES[1:]]
        n = int(mine["n"].iloc[0])
        lines.append([task(name).title, f"{n:,}", f"{100 * found['none'].iloc[0]:.1f}", percent(crossed), *cells])
    return markdown(["task", "records", "before", "cross-entropy", "0-1 error", "expected 0-1 error"], lines)


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    yield from (({"epsilon": epsilon}, options.seeds) for epsilon in EPSILONS)


def _kinds_of_tasks(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for name in options.tasks:
        yield from (
            ({"task": name, "loss": loss}, options.seeds if loss in LOSSES else 1) for loss in ("none", *LOSSES)
        )


FIELDS = ("n", "clip", "step_size", "dev_accuracy", "test_accuracy", "epsilon_upper", "noise_multiplier")
EXPERIMENT = studied(
    "rewards",
    __doc__,
    Study(_kinds, lambda at: len(TASKS["sst2"].pairs), (), _run),
    seeds=5,
    key=("epsilon", "setting", "seed"),
    fields=FIELDS[2:],
    settings={
        "task": "sst2", "n": LARGE, "batch": TASKS["sst2"].batch, "steps": TASKS["sst2"].steps,
        "directions": DIRECTIONS, "clip": TASKS["sst2"].pairs[0][0], "smoothing": SMOOTHINGS["error"],
        "trained": "the last normalisation", "loss": "error",
    },
)  # fmt: skip
OF_TASKS = studied(
    "rewards_tasks",
    __doc__,
    Study(_kinds_of_tasks, lambda at: 1 if at["loss"] == "none" else 3, ("task", "loss"), _run),
    seeds=5,
    flags=[flag("--tasks", nargs="+", choices=BESIDE, default=list(BESIDE), help="which tasks (default: all)")],
    key=("task", "loss", "setting", "seed"),
    fields=FIELDS,
    dtype="float32, frozen layers in bfloat16",
    settings={
        "prompts": WAY, "batches": str({name: TASKS[name].batch for name in BESIDE}), "steps": TASKS["trec"].steps,
        "directions": DIRECTIONS, "epsilon": float(EPSILONS[0]), "smoothings": str(SMOOTHINGS),
        "trained": "the last normalisation",
    },
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
