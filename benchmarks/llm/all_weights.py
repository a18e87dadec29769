"""All 134.5 million weights of a language model, tuned: SST-2 by the paper's prompt.

    python -m benchmarks pretrained smollm2                              # the model, once
    python -m benchmarks llm.all_weights --data DIR --device cuda        # DIR: sst2_train.tsv, sst2_test.tsv
    python -m benchmarks llm.all_weights --summary                       # the table

The prompt, the training phrases, the dev phrases and the test sentences are those of `benchmarks.llm.last_norm`, which
trains the gain of the last normalisation. Here AdamW, DP-AdamW and DPZero train all weights. The clip of DPZero is G,
the median gradient norm of dev phrases at the start, and its step size s/G^2.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kit.experiment import Cell, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm import last_norm
from benchmarks.llm.tasks import task
from benchmarks.llm.top import AT_ONCE, TRAINED, WHOLE
from benchmarks.llm.tuned import CHOSEN, LABELS, NONE, UNTRAINED, Recipe, Study, studied, timed

SMOOTHING = 3e-3
GRADIENTS_AT_ONCE = 32
"""The most records in one pass that sums clipped gradients."""
STEPS = {"adamw": 300, "dp-adamw": 60, "dpzero": 300}
BATCHES = {"adamw": 64, "dp-adamw": 256, "dpzero": 256}
CLIP = 1.0
"""The clip of DP-AdamW."""
STEP_SIZES = {"adamw": (1e-5, 3e-5), "dp-adamw": (1e-4, 3e-4, 1e-3), "dpzero": (0.03, 0.1)}
"""The step sizes that are compared, by method; those of DPZero in units of 1/G^2."""
RUNS = (("zero-shot", NONE), ("adamw", NONE), ("dpzero", "2"), ("dp-adamw", "2"))
"""The kinds of run, each with its method and its epsilon."""


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for method, epsilon in RUNS:
        if method in UNTRAINED or method in options.methods:
            yield {"method": method, "epsilon": epsilon}, 1 if method in UNTRAINED else options.seeds


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    if options.work is None:
        options.work = last_norm.prepared(options.data, options.device)
    work, method = options.work, at["method"]
    weights = TRAINED[WHOLE]._replace(layers=work.layers)
    top, data, how, step_size = work.top(weights), work.states(weights.layers)["train"], None, 0.0
    if method not in UNTRAINED:
        step_size, clip = STEP_SIZES[method][number], CLIP
        if method == "dpzero":
            clip = work.gradient_norm(weights, "dev", SMOOTHING)
        how = Recipe(
            method, None if at["epsilon"] == NONE else float(at["epsilon"]), steps=STEPS[method],
            batch=BATCHES[method], step_size=step_size / clip**2 if method == "dpzero" else step_size, clip=clip,
            smoothing=SMOOTHING, seed=at["seed"], at_once=AT_ONCE if method == "dpzero" else GRADIENTS_AT_ONCE,
        )  # fmt: skip
    row = timed(work, top, how, data, "dev")[-1]
    return {"d": sum(p.numel() for p in top.parameters()), "n": len(data), "step_size": step_size,
            **{name: row[name] for name in FIELDS[3:] if name in row}}  # fmt: skip


def table(folder: Path = RESULTS / "llm_all_weights") -> str:
    """Return a table of accuracies by method and step size: of the run that chooses, and of the reported runs."""
    rows, lines = read_rows(folder), []
    for method, epsilon in RUNS:
        mine = having(rows, method=method).astype({"setting": str})
        shown = mine[mine["setting"] == CHOSEN]
        for size in dict.fromkeys(mine["step_size"]):
            trial, runs = (part[part["step_size"] == size] for part in (mine[mine["setting"] != CHOSEN], shown))
            one = [
                f"{100 * trial[name].iloc[0]:.1f}" if len(trial) else "-" for name in ("dev_accuracy", "test_accuracy")
            ]
            told = percent(runs["test_accuracy"]) if len(runs) else "-"
            lines.append([LABELS[method], epsilon, f"{size:g}" if size else "-", *one, told, str(len(runs))])
    heads = ["method", "epsilon", "step size", "dev, one run", "test, one run", "test, reported runs", "reported runs"]
    return markdown(heads, lines)


FIELDS = ("d", "n", "step_size", "dev_accuracy", "test_accuracy", "epsilon_upper", "noise_multiplier", "seconds")
STUDY = Study(_kinds, lambda at: len(STEP_SIZES.get(at["method"], (0.0,))), ("method",), _run)
EXPERIMENT = studied(
    "all_weights",
    __doc__,
    STUDY,
    seeds=3,
    device=True,
    flags=[flag("--methods", nargs="+", choices=tuple(STEPS), default=tuple(STEPS), help="some of them")],
    key=("method", "epsilon", "setting", "seed"),
    fields=FIELDS,
    settings={
        "prompt": task(last_norm.TASK).prompts["causal"].template, "steps": str(STEPS), "batches": str(BATCHES),
        "clip": CLIP, "smoothing": SMOOTHING, "directions": 1, "trained": "all weights",
    },
    summary=table,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
