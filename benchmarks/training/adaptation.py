"""Small OPT and RoBERTa models, pretrained on reviews and news, adapted to questions privately.

    python -m benchmarks.pretrain --data DIR                      # makes the models
    python -m benchmarks.adaptation --data DIR                    # the table: every method, both families
    python -m benchmarks.adaptation --data DIR --preset widths    # DPZero (6) on OPT at four widths: only d varies
    python -m benchmarks.adaptation --summary                     # tables of the rows

All weights are trained on 4,452 TREC questions, cut at 32 tokens. Every combination of step size and clip is run once
(seed 0), and the perplexity on 500 other questions chooses one. The chosen one is run with further seeds, which alone
are reported, on 500 test questions. Every method makes 40 steps with batches of 64; zeroth-order methods use 4
random-sign directions a step (DPGD-0th, whose release is a vector, uses one). Runs are (epsilon, 1e-5)-DP with relation
add-remove and Poisson batches. The choice by the 500 questions costs no privacy here, because these questions are taken
to be public. The perplexity of a masked model is that of the masked 15% of a sentence.
"""

import itertools
import json
import math
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results, having, read_rows, write_atomically
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.models import LanguageModel
from benchmarks.llm.runs import run_folder, trained
from benchmarks.pretrain import text
from benchmarks.pretrain.models import FAMILIES, pretrained
from benchmarks.problems.encoder import train
from dpzero_theory.cli import Parser, input_folder, integer, output_folder

CELL = ("family", "width", "method", "epsilon", "step_size", "clip", "seed")
KEY = (*CELL, "step")
FIELDS = ("d", "steps", "directions", "batch", "noise_multiplier", "dev_perplexity", "test_perplexity", "seconds")
STEPS, BATCH, K, EVERY, LONGEST = 40, 64, 4, 5, 32
_ZEROTH: dict[str, Any] = {"directions_per_step": K, "direction": "rademacher", "smoothing": 1e-3}
_ALONE: dict[str, Any] = {"directions_per_step": 1, "direction": "rademacher", "smoothing": 1e-3}
GRIDS: dict[str, tuple[dict[str, Any], dict[str, list[float]]]] = {
    "dpzero": (_ZEROTH, {"step_size": [4e-3, 8e-3, 1.6e-2], "clip": [6.0]}),
    "mezo": (_ZEROTH, {"step_size": [4e-3, 8e-3, 1.6e-2]}),
    "dpgd-0th": (_ALONE, {"step_size": [1e-6, 1e-5], "clip": [100.0]}),
    "dp-adamw": ({}, {"step_size": [1e-3, 3e-3], "clip": [1.0]}),
    "adamw": ({}, {"step_size": [1e-3, 3e-3]}),
}
"""For each method the parameters that all its runs share, and the values of the other parameters, among which 500
questions choose."""
_FURTHER = {
    ("opt", 16, "dpzero"): [3.2e-2],
    ("opt", 32, "dpzero"): [2e-3],
    ("opt", 128, "dpzero"): [2e-3],
    ("opt", 32, "mezo"): [2e-3],
    ("opt", 32, "dpgd-0th"): [1e-4, 1e-3],
    ("roberta", 32, "dpzero"): [3.2e-2, 6.4e-2],
    ("roberta", 32, "mezo"): [3.2e-2, 6.4e-2],
    ("roberta", 32, "dpgd-0th"): [1e-4, 1e-3],
}
"""Further step sizes to compare, by family, width and method. They were added if the best of those in GRIDS was the
largest or the smallest."""
METHODS = (
    *(("dpzero", 2.0), ("dpzero", 6.0), ("mezo", 0.0), ("dp-adamw", 2.0), ("dp-adamw", 6.0), ("adamw", 0.0)),
    *(("dpgd-0th", 2.0), ("dpgd-0th", 6.0)),
)


@dataclass(frozen=True)
class Case:
    """A method that adapts a model of some family and width. epsilon is the target of a private method, and 0 if the
    method is not private."""

    family: str
    width: int
    method: str
    epsilon: float


PRESETS = {
    "smoke": (Case("opt", 16, "dpzero", 6.0),),
    "table": tuple(Case(family, 32, *method) for family in FAMILIES for method in METHODS),
    "widths": tuple(Case("opt", width, "dpzero", 6.0) for width in (16, 32, 64, 128)),
}


def grid(case: Case) -> Iterator[Configuration]:
    """Yield the configurations (step size, clip and all else) that are compared for a case."""
    common, compared = GRIDS[case.method]
    same: dict[str, Any] = {"model": f"{case.family}-{case.width}", "task": "trec", "method": case.method, "seed": 0}
    same |= {"steps": STEPS, "batch": BATCH, **common, **({"epsilon": case.epsilon} if case.epsilon else {})}
    compared = {
        **compared,
        "step_size": compared["step_size"] + _FURTHER.get((case.family, case.width, case.method), []),
    }
    for values in itertools.product(*compared.values()):
        yield Configuration(**(same | dict(zip(compared, values, strict=True))))


class Questions:
    """The questions as examples for one family of models ("opt" or "roberta"): those to train on (`train`), those that
    choose parameters (`dev`), and those to test on (`test`). They are read from the folder `data`, or downloaded if it
    is None. `model` has the tokenizer, and is what runs start from."""

    def __init__(self, data: Path | None, model: LanguageModel, family: str) -> None:
        self.model, self.family = model, family
        self.scorer = text.SentenceScorer(model.pad, 64)
        parts = (text.examples(part, model.tokenizer, family, LONGEST) for part in text.questions(data))
        self.train, self.dev, self.test = parts


def one_run(work: Questions, case: Case, c: Configuration, folder: Path) -> list[dict[str, Any]]:
    """Train a copy of the model of `work` with the configuration c and return the run's rows: the perplexity on the
    questions that choose parameters, at the start and every EVERY steps, and that on the test questions, at the start
    and at the end. `case` names the method, and `folder` is the parent of the runs' folders.

    The rows are also kept in a file beside the run's folder, for a run that is resumed. Those of DPGD-0th are not used
    again, because a resumed run of it goes back to a checkpoint.
    """
    module = deepcopy(work.model.module)
    d = train(module, "all")
    place = run_folder(folder, c)
    kept = place.with_suffix(".json")
    resumed = place.exists() and kept.exists() and case.method != "dpgd-0th"
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if resumed else {}
    before = max((row["seconds"] for row in found.values()), default=0.0)
    started = time.perf_counter()

    def after_step(step: int) -> None:
        if step % EVERY == 0 and str(step) not in found:
            row = found[str(step)] = {"dev_perplexity": text.perplexity(module, work.scorer, work.dev)}
            if step in (0, c.steps):
                row["test_perplexity"] = text.perplexity(module, work.scorer, work.test)
            row["seconds"] = round(before + time.perf_counter() - started, 2)
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, json.dumps(found).encode())

    after_step(0)
    privacy, _ = trained(module, work.scorer, work.train, c, folder, after_step)
    same = {**_key(case, c), "d": d, "steps": c.steps, "batch": c.batch}
    same |= {"directions": c.directions_per_step} if case.method in ("dpzero", "mezo", "dpgd-0th") else {}
    same |= {"noise_multiplier": privacy.noise_multiplier} if privacy else {}
    return [{**same, "step": int(step), **row} for step, row in found.items()]


def _key(case: Case, c: Configuration) -> dict[str, Any]:
    return {**vars(case), "step_size": c.step_size, **_clipped(c), "seed": c.seed}


def _clipped(c: Configuration) -> dict[str, float]:
    return {"clip": c.clip if c.private else 0.0}


def chosen(rows: pd.DataFrame, case: Case) -> Configuration:
    """Return the configuration of the case that is run with further seeds: in `rows`, the one with the smallest
    perplexity at the end of its run with seed 0, on the questions that choose parameters. Raises ValueError if one of
    the case's configurations has not been run."""
    settings = {(c.step_size, _clipped(c)["clip"]): c for c in grid(case)}
    part = having(rows, **vars(case))
    last = part[(part["seed"] == 0) & (part["step"] == part["steps"])]
    found = dict(zip(zip(last["step_size"], last["clip"], strict=True), last["dev_perplexity"], strict=True))
    if missing := [setting for setting in settings if setting not in found]:
        raise ValueError(f"rows must hold every setting of {case}; got none of (step size, clip) {missing[0]}")
    return settings[min(settings, key=found.__getitem__)]


def reported(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the runs that are reported: those of the chosen configuration with other seeds than 0, for the
    cases whose configurations have all been run."""
    shown = [rows[:0]]
    for values in set(zip(*(rows[name] for name in CELL[:4]), strict=True)):
        with suppress(ValueError):
            c = chosen(rows, case := Case(*values))
            shown.append(having(rows[rows["seed"] > 0], step_size=c.step_size, **_clipped(c), **vars(case)))
    return pd.concat(shown).sort_index()


def summary(rows: pd.DataFrame) -> str:
    """Return a text with a line for each model family, model width, method and epsilon: the test perplexity before
    training, and after it with its standard error over seeds."""
    lines = []
    shown = reported(rows)
    for values in sorted(set(zip(*(shown[name] for name in CELL[:4]), strict=True))):
        case = Case(*values)
        part = having(rows, **vars(case))
        before = part.loc[part["step"] == 0, "test_perplexity"].to_numpy(float)[0]
        last = having(shown[shown["step"] == shown["steps"]], **vars(case))
        after = last["test_perplexity"].to_numpy(float)
        error = after.std(ddof=1) / math.sqrt(len(after)) if len(after) > 1 else math.nan
        alpha, clip = last[["step_size", "clip"]].to_numpy(float)[0]
        name = f"{case.method} ({case.epsilon:g})" if case.epsilon else case.method
        lines.append(
            f"{case.family}-{case.width:<4} {name:<14} {before:8.1f} -> {after.mean():8.1f} +- {error:.1f} "
            f"({len(after)} seeds), step size {alpha:g}, clip {clip:g}"
        )
    return "\n".join(lines)


def _body(parser: Parser, options: Namespace) -> int:
    """Make the runs of the preset whose rows are not in the results yet, or print the tables with `--summary`. Returns
    the exit status."""
    if options.summary:
        with parser.refusals("--out"):
            print(summary(read_rows(options.out)))
        return 0
    torch.set_num_threads(1)
    results = Results(
        options.out,
        key=KEY,
        fields=FIELDS,
        seeds=range(options.seeds + 1),
        device="cpu",
        dtype="float32",
        cell=CELL,
        settings={"delta": 1e-5, "relation": "add-remove", "sampling": "poisson", "smoothing": 1e-3},
        figure="figures.adaptation",
    )
    cases = [
        case
        for case in PRESETS[options.preset]
        if all(getattr(options, name) in (None, getattr(case, name)) for name in ("family", "width", "method"))
    ]
    with parser.opened("--out", results):
        for case in cases:
            with parser.refusals():
                work = Questions(options.data, pretrained(options.models, case.family, case.width), case.family)
            for c in grid(case):
                _make(results, work, case, c, options.runs)
            best = chosen(read_rows(options.out), case)
            for seed in range(1, options.seeds + 1):
                _make(results, work, case, replace(best, seed=seed), options.runs)
    print(summary(read_rows(options.out)))
    return 0


def _make(results: Results, work: Questions, case: Case, c: Configuration, runs: Path) -> None:
    key = _key(case, c)
    if results.done(**key, step=c.steps):
        return
    rows = one_run(work, case, c, runs)
    results.add(rows)
    print(
        f"{case.family}-{case.width} {case.method} {case.epsilon:g} step size {c.step_size:g}, seed {c.seed}: "
        f"{rows[0]['dev_perplexity']:.1f} -> {rows[-1]['dev_perplexity']:.1f} ({rows[-1]['seconds']:.0f} s)",
        flush=True,
    )


EXPERIMENT = Command(
    "adaptation",
    __doc__,
    _body,
    [
        flag("--preset", choices=tuple(PRESETS), default="table"),
        flag("--family", choices=tuple(FAMILIES), help="only this one"),
        flag("--width", type=integer(16, 4096), help="only this one"),
        flag("--method", choices=tuple(GRIDS), help="only this one"),
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--models", type=input_folder(), default=Path("out/pretrained"), help="of benchmarks.pretrain"),
        flag("--seeds", type=integer(1, 1000), default=2, help="runs of the chosen setting"),
        flag("--runs", type=output_folder, default=Path("out/adaptation"), help="the runs' ledgers"),
        flag("--out", type=output_folder, default=RESULTS / "adaptation", help="rows and their manifest"),
        flag("--summary", action="store_true", help="print the rows' table and stop"),
    ],
)
