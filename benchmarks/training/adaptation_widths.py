"""Steps to a target against d and r, on language models of which only the width varies.

    python -m benchmarks.adaptation --preset widths --data DIR     # the runs
    python -m benchmarks.adaptation_widths --data DIR              # r of each model, then the table
    python -m benchmarks.adaptation_widths --summary

`dpzero_theory.curvature` measures the effective rank r = tr|H|/||H|| of the Hessian H of the mean loss of 48 questions
(18 tokens each) at the pretrained weights. For each reported run of DPZero with epsilon = 6, a row has the steps until
the loss on the 500 questions that choose parameters has fallen by DROP nats, interpolated between evaluations. A slope
is that of log steps against log d (or log r) by least squares over the widths, for each seed; its interval is Student's
t over seeds.
"""

import math
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS, Results, discard, having, read_manifest, read_rows
from benchmarks.pretrain import text
from benchmarks.pretrain.models import folder_of, pretrained
from benchmarks.sweeps.slopes import interval, slope
from benchmarks.training.adaptation import PRESETS, reported
from dpzero_theory.cli import Parser, input_folder, output_folder
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum

DROP = 0.2
RANKS, STEPS = "adaptation_widths", "adaptation_steps"
SAMPLES, TOKENS = 48, 18
EFFORT, LEVEL = Effort(search=20, probes=8, steps=8), 0.95
ENDS = ("low", "estimate", "high")
KEY = ("family", "width")
FIELDS = ("d", "loss", *(f"{name}_{end}" for name in ("rank", "norm", "absolute_trace") for end in ENDS), "seconds")


def losses(module: nn.Module, ids: Tensor) -> Tensor:
    """Return each question's mean cross-entropy over its tokens but the first, shape (questions,). ids: token ids
    without padding, shape (questions, tokens)."""
    logits = module(input_ids=ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def measured(models: Path, family: str, width: int, questions: Sequence[str]) -> dict[str, Any]:
    """Measure the effective rank of the pretrained model of this family and width, on the first 48 of the questions
    with 18 tokens. Returns the row. `models` is the folder of the models."""
    started = time.perf_counter()
    model = pretrained(models, family, width)
    given = [example.ids for example in text.examples(questions, model.tokenizer, family)]
    ids = torch.tensor([row for row in given if len(row) == TOKENS][:SAMPLES])
    place = folder_of(models, family, width)
    module: Any = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager")
    module.config.use_cache = False
    objective = Objective(module.eval(), losses, [ids])
    found = measure_spectrum(objective.hessian(objective.start), torch.Generator().manual_seed(0), EFFORT, LEVEL)
    row = {"family": family, "width": width, "d": objective.d, "loss": objective.value(objective.start)}
    for name in ("rank", "norm", "absolute_trace"):
        row |= {f"{name}_{end}": getattr(getattr(found, name), end) for end in ENDS}
    return {**row, "seconds": round(time.perf_counter() - started, 1)}


def steps_to_target(steps: Sequence[float], losses: Sequence[float], drop: float = DROP) -> float:
    """Return the number of steps after which the loss has first fallen by `drop` from its first value, linearly
    interpolated between the two entries around that moment, or NaN if it never has. `losses` are those after the
    numbers of steps in `steps`."""
    target = losses[0] - drop
    for index in range(1, len(losses)):
        if losses[index] <= target:
            before, after = losses[index - 1], losses[index]
            return steps[index - 1] + (steps[index] - steps[index - 1]) * (before - target) / (before - after)
    return math.nan


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the steps to the target of every reported run of the preset `widths`, in the columns width,
    d, seed and steps. `rows` are those of `benchmarks.adaptation`."""
    found = []
    shown = reported(rows)
    for case in PRESETS["widths"]:
        for seed, run in having(shown, **vars(case)).groupby("seed"):
            run = run.sort_values("step")
            steps = steps_to_target(run["step"].tolist(), np.log(run["dev_perplexity"]).tolist())
            found.append({"width": case.width, "d": int(run["d"].iloc[0]), "seed": seed, "steps": steps})
    return pd.DataFrame(found)


def cells(runs: pd.DataFrame, ranks: pd.DataFrame) -> list[list[str]]:
    """Return for each width the texts of a table's line: the width, d, the effective rank r with its interval, and the
    steps to the target with their interval over seeds. `runs` is the table of steps, `ranks` the rows of measured
    ranks."""
    found, by_width = [], ranks.set_index("width")
    for width, part in runs.groupby("width"):
        r = by_width.loc[width]
        mean, low, high = interval(part["steps"].tolist())
        steps = f"{mean:.0f}" if low is None else f"{mean:.0f} ({low:.0f} to {high:.0f})"
        rank = f"{r['rank_estimate']:.1f} ({r['rank_low']:.1f} to {r['rank_high']:.1f})"
        found.append([f"{width}", f"{part['d'].iloc[0]:,}", rank, steps])
    return found


def slopes(runs: pd.DataFrame, ranks: pd.DataFrame) -> list[str]:
    """Return as texts the slopes over widths of log steps against log d and against log r, and of log r against log d.
    d is the number of weights and r the effective rank. `runs` is the table of steps, `ranks` the rows of measured
    ranks."""
    by_width, lines = ranks.set_index("width"), []
    runs = runs.assign(r=[by_width.loc[width, "rank_estimate"] for width in runs["width"]])
    for name in ("d", "r"):
        mean, low, high = interval([slope(part[name], part["steps"]) for _, part in runs.groupby("seed")])
        ends = "" if low is None else f" ({low:.2f} to {high:.2f})"
        lines.append(f"slope of log steps against log {name}: {mean:.2f}{ends}")
    return [*lines, f"slope of log r against log d: {slope(ranks['d'], ranks['rank_estimate']):.2f}"]


def summary(runs: pd.DataFrame, ranks: pd.DataFrame) -> str:
    """Return a text with a line for each width, and the slopes below. `runs` is the table of steps, `ranks` the rows of
    measured ranks."""
    rows = [["width", "d", "r", "steps"], *cells(runs, ranks)]
    shown = [f"{width:>5} {d:>9} {rank:>23} {steps:>16}" for width, d, rank, steps in rows]
    return "\n".join([*shown, *slopes(runs, ranks)])


def _body(parser: Parser, options: Namespace) -> int:
    """Measure the effective rank of the pretrained models that runs started from, unless a row has it already, and
    print the table. Returns the exit status."""
    with parser.refusals("--rows"):
        runs, source = table(read_rows(options.rows)), read_manifest(options.rows)["sha256"]
    if not options.summary:
        _measure(parser, options, set(runs["width"]))
        _keep(runs, source, options.out / STEPS)
    with parser.refusals("--out"):
        print(summary(runs, read_rows(options.out / RANKS)))
    return 0


def _measure(parser: Parser, options: Any, widths: set[int]) -> None:
    """Measure the effective rank of the pretrained models of these widths that runs started from."""
    torch.set_num_threads(1)
    results = Results(
        options.out / RANKS,
        key=KEY,
        fields=FIELDS,
        seeds=[0],
        device="cpu",
        dtype="float32",
        settings={"questions": SAMPLES, "tokens": TOKENS, **vars(EFFORT)},
        figure="figures.adaptation",
    )
    with parser.opened("--out", results), parser.refusals():
        questions = text.questions(options.data)[0]
        for case in PRESETS["widths"]:
            if case.width in widths and not results.done(family=case.family, width=case.width):
                results.add([measured(options.models, case.family, case.width, questions)])


def _keep(runs: pd.DataFrame, source: str, folder: Path) -> None:
    """Save the steps to the target of each run as rows in `folder`, in place of earlier ones. `source` is the SHA-256
    of the rows that the runs come from."""
    discard(folder)
    seeds = sorted(map(int, set(runs["seed"])))
    settings = {"drop": DROP, "rows": source}
    with Results(
        folder, key=("width", "seed"), fields=("d", "steps"), seeds=seeds, device="cpu", dtype="float64",
        settings=settings, figure="figures.adaptation",
    ) as results:  # fmt: skip
        results.add(_steps(runs))


def _steps(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the table of steps to the target as rows, one for each run. A run that has not reached the target has no
    value in the column steps."""
    rows = runs.to_dict("records")
    return [{str(name): value for name, value in row.items() if not math.isnan(value)} for row in rows]


REMAKES = {STEPS: Remake(("width", "seed"), lambda row: _steps(table(read_rows(RESULTS / "adaptation"))))}


EXPERIMENT = Command(
    "adaptation_widths",
    __doc__,
    _body,
    [
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--models", type=input_folder(), default=Path("out/pretrained"), help="of benchmarks.pretrain"),
        flag("--rows", type=input_folder(), default=RESULTS / "adaptation", help="of benchmarks.adaptation"),
        flag("--out", type=output_folder, default=RESULTS, help="parent of the rows' two folders"),
        flag("--summary", action="store_true", help="print the table and stop"),
    ],
)
