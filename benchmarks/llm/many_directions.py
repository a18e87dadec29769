"""All 134.5 million weights of a language model with tens of thousands of directions: SST-2 by the paper's prompt.

    python -m benchmarks pretrained smollm2                             # the model, once
    python -m benchmarks llm.many_directions --data DIR --device cuda   # resumable; DIR: sst2_train.tsv, sst2_test.tsv
    python -m benchmarks llm.many_directions --summary                  # the table

The prompt, the training phrases, the dev phrases and the test sentences are those of `benchmarks.llm.last_norm`, which
trains the gain of the last normalisation. A step of DPZero has K directions of rank 1: for a matrix u = a b^T, with
random signs a and b, and for a vector random signs. All K + 1 points of the forward rule share one product with each
matrix (`optim.weights.shifted`), because x (W + s a b^T) = x W + s (x a) b^T. DP-AdamW has the same records and
epsilon.

A setting is chosen by the accuracy on public dev phrases, in trial runs with seed 0. A trial of DPZero makes the first
TRIAL steps of a run, with the noise of the whole run. On a GPU products are computed in TF32: a loss then errs by about
1e-3, and the differences of losses are tens of times larger.
"""

import math
import os
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dpzero_theory as dz
from benchmarks.kit.experiment import Cell
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm import last_norm
from benchmarks.llm.top import TRAINED, WHOLE, Records, Top
from benchmarks.llm.tuned import CHOSEN, DELTA, LABELS, Recipe, Study, studied, timed
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

EPSILON, SMOOTHING = 2.0, 3e-3
K, BATCH, STEPS, TRIAL = 64, 64, 1000, 120
ADAMW_BATCH = 256
SHOWN = (125, 250, 500, 750, 1000)
"""The numbers of steps after which a reported run is evaluated."""
SETTINGS: dict[str, tuple[tuple[float, float], ...]] = {
    "dpzero": ((1.0, 0.1), (1.0, 0.3), (1.0, 1.0), (0.3, 0.3), (0.3, 1.0)),
    "dp-adamw": ((60, 1e-3), (60, 3e-3), (300, 3e-4), (300, 1e-3), (300, 3e-3)),
}
"""What is compared: for DPZero pairs (c, s) of the clip c G sqrt(K) and the step size s / (c G^2), where G is the
median gradient norm of dev records at the start; for DP-AdamW the number of steps and the step size."""
TOKENS = 60_000
"""The most tokens, over all points, in one pass."""


def differences(work: Records, weights: Weights, part: str, rows: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return the forward differences (L(w + lambda u) - L(w)) / lambda of records along the directions with these
    numbers, shape (records, K). Records of about equal length are evaluated together.

    Args:
        weights: the trained ones.
        rows: the numbers of the records in the split `part`.
    """
    ids, last, wanted = work.asked(work.states(_layers(weights))[part][rows])
    points = [(numbers[0], 0.0), *((number, SMOOTHING) for number in numbers)]
    order, found, start = last.argsort(), ids.new_zeros((len(rows), len(numbers)), dtype=torch.float32), 0
    lengths = last[order].tolist()
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * len(points) * (lengths[end] + 1) <= TOKENS:
            end += 1
        chosen = order[start:end]
        asked = ids[chosen, : lengths[end - 1] + 1], last[chosen], wanted[chosen]
        each = torch.stack(weights.evaluated(points, partial(losses, asked), len(points), len(chosen)))
        found[chosen] = ((each[1:] - each[0]) / SMOOTHING).T
        start = end
    return found


def _layers(weights: Weights) -> int:
    top: Any = weights.module
    return int(top.count)


def losses(asked: tuple[Tensor, Tensor, Tensor], top: nn.Module, copies: int = 1) -> Tensor:
    """Return the losses of copies of some records: their token ids, padded on the right; the position of each one's
    last token; and the number of its right answer among the options."""
    ids, last, wanted = asked
    logits = top(ids.repeat(copies, 1), last.repeat(copies))
    return cross_entropy(logits.float(), wanted.repeat(copies), reduction="none")


def gradient_norm(work: Records, weights: Weights) -> float:
    """Return the median over 256 dev records of the norm of a record's gradient, estimated from K directions."""
    rows = torch.arange(min(256, len(work.states(_layers(weights))["dev"])))
    found = differences(work, weights, "dev", rows, range(2**40, 2**40 + K))  # no step has these numbers
    return float(found.square().mean(1).sqrt().median())


def tuned(
    work: Records, top: Top, clip: float, scale: float, steps: int, shown: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Run DPZero and yield a row after each number of steps in `shown`.

    Args:
        work: the records.
        top: the model, which is trained in place.
        clip: c, for the clip c G sqrt(K).
        scale: s, for the step size s / (c G^2), which falls linearly to 0 over STEPS steps.
        steps: how many of the STEPS steps are made.
    """
    begun, n, device = time.perf_counter(), len(work.states(top.count)["train"]), work.device
    drawn = dz.Poisson(BATCH / n)
    noise = dz.calibrate(epsilon=EPSILON, delta=DELTA, steps=STEPS, sampling=drawn, relation="add-remove").upper
    secret = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(7), "little"))
    batches = np.random.default_rng(int.from_bytes(os.urandom(16), "little"))
    weights = Weights(top, Directions(os.urandom(16), "low-rank"))
    weights.guarded = False
    with torch.no_grad():
        size = gradient_norm(work, weights)
        bound, step_size = clip * size * math.sqrt(K), scale / (clip * size**2)
        for step in range(steps):
            rows = torch.from_numpy(np.flatnonzero(batches.random(n) < BATCH / n))
            numbers = range(step * K, (step + 1) * K)
            total = noise * bound * torch.randn(K, generator=secret, device=device)
            if len(rows):
                each = differences(work, weights, "train", rows, numbers)
                total += (each * (bound / each.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
            amounts = -step_size * (1 - step / STEPS) / K * total / BATCH
            weights.move_(list(zip(numbers, amounts.tolist(), strict=True)))
            if step + 1 in shown:
                yield {
                    "steps": step + 1, "clip": bound, "step_size": step_size, "noise_multiplier": noise,
                    "dev_accuracy": work.evaluated(top, "dev")[0], "test_accuracy": work.evaluated(top, "test")[0],
                    "seconds": round(time.perf_counter() - begun, 1),
                }  # fmt: skip


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    yield from (({"method": method, "epsilon": "2"}, options.seeds) for method in SETTINGS)


def _keys(options: Namespace, at: Cell) -> Iterator[Cell]:
    shown = (SHOWN if at["setting"] == CHOSEN else (TRIAL,)) if at["method"] == "dpzero" else (0,)
    yield from ({**at, "steps": steps} for steps in shown)


def _run(options: Namespace, at: Cell, number: int) -> Iterator[dict[str, Any]]:
    if options.work is None:
        options.work = last_norm.prepared(options.data, options.device)
    work, (first, second) = options.work, SETTINGS[at["method"]][number]
    top = work.top(TRAINED[WHOLE]._replace(layers=work.layers))
    data = work.states(top.count)["train"]
    common = {"d": sum(p.numel() for p in top.parameters()), "n": len(data)}
    if at["method"] == "dpzero":
        torch.set_float32_matmul_precision("high")
        steps, shown = (STEPS, SHOWN) if at["setting"] == CHOSEN else (TRIAL, (TRIAL,))
        yield from ({**common, "directions": K, **row} for row in tuned(work, top, first, second, steps, shown))
        return
    torch.set_float32_matmul_precision("highest")
    how = Recipe("dp-adamw", EPSILON, steps=int(first), batch=ADAMW_BATCH, step_size=second, clip=1.0, at_once=128)
    row = timed(work, top, how, data, "dev")[-1]
    found = {name: row[name] for name in ("noise_multiplier", "dev_accuracy", "test_accuracy", "seconds")}
    yield {**common, "steps": 0, "steps_made": int(first), "step_size": second, **found}


def table(folder: Path = RESULTS / "llm_many_directions") -> str:
    """Return a table of the methods: trial runs, and reported runs by the number of directions in all."""
    rows = read_rows(folder)
    lines = []
    for method in SETTINGS:
        mine = having(rows, method=method)
        groups = mine.groupby(["setting", "step_size" if method == "dp-adamw" else "steps"], sort=False)
        for (setting, _), runs in groups:
            row = runs.iloc[0]
            made = int(row["steps_made"] if method == "dp-adamw" else row["steps"])
            along = f"{made * K:,}" if method == "dpzero" else "-"
            lines.append(
                [LABELS[method], str(setting), str(made), along, f"{row['step_size']:.2g}",
                 percent(runs["dev_accuracy"]), percent(runs["test_accuracy"]), str(len(runs))]
            )  # fmt: skip
    return markdown(["method", "setting", "steps", "directions", "step size", "dev", "test", "runs"], lines)


STUDY = Study(_kinds, lambda at: len(SETTINGS[at["method"]]), ("method",), _run)
EXPERIMENT = studied(
    "many_directions",
    __doc__,
    STUDY,
    seeds=3,
    device=True,
    key=("method", "epsilon", "setting", "seed", "steps"),
    keys=_keys,
    fields=(
        "d", "n", "directions", "steps_made", "clip", "step_size", "noise_multiplier", "dev_accuracy", "test_accuracy",
        "seconds",
    ),
    dtype="float32, products of DPZero in TF32",
    settings={
        "epsilon": EPSILON, "smoothing": SMOOTHING, "directions": K, "batch": BATCH, "steps": STEPS, "trial": TRIAL,
        "settings": str(SETTINGS), "direction": "rank 1",
    },
    summary=table,
)  # fmt: skip
