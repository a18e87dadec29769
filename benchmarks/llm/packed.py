"""A language model whose matrices are packed to 4 bits, tuned privately in its whole weights and by adapters.

    python -m benchmarks pretrained smollm2        # the model, once
    pip install bitsandbytes
    python -m benchmarks llm.packed --data DIR     # DIR: sst2_train.tsv, sst2_test.tsv

All 210 matrices of SmolLM2's layers are packed (bitsandbytes, nf4, 106 million weights); embedding and normalisations
are frozen. DPZero trains the whole weights of the packed matrices, without unpacking them (`optim.weights.packed`), or
adapters of rank 8 beside all matrices of the last layer, or of all layers, with the same points. The clip is sqrt(K) G,
G being the median gradient norm of public phrases, and the step size K/(10 G^2). Nothing is chosen.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.kit.experiment import Cell, flag
from benchmarks.kit.peaks import in_new_process, peak, reset_peak
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm.last_layer import prepared
from benchmarks.llm.last_norm import TASK
from benchmarks.llm.tasks import task
from benchmarks.llm.top import TRAINED, WHOLE, Adapted, Records, Top
from benchmarks.llm.tuned import NONE, Recipe, Study, studied, timed
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.losses.evaluation import Evaluation
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.packed import train_packed

PACKED, LAST, ALL = "whole packed weights", "adapters, last layer", "adapters, all layers"
STEPS, DIRECTIONS, BATCH, SMOOTHING, SHARE, RANK = 60, 4, 32, 1e-2, 0.1, 8
EPSILON = "2"


class Once(nn.Module):
    """Frozen layers, which run once for the points of a step, as these differ in later layers alone."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), (torch.zeros(0), torch.zeros(0))

    def forward(self, states: Tensor, position_embeddings: Any) -> Tensor:
        if not torch.equal(states, self.last[0]):
            found = states
            for layer in self.layers:
                found = layer(found, position_embeddings=position_embeddings)
            self.last = states.clone(), found
        return self.last[1]


def packed(work: Records, trained: str = "") -> Top:
    """Return the whole model with packed matrices, of which the weights that `trained` names have requires_grad."""
    bnb = import_module("bitsandbytes")

    top = work.top(TRAINED[WHOLE]._replace(layers=work.layers)).requires_grad_(requires_grad=False)
    for name, part in list(top.layers.named_modules()):
        if isinstance(part, nn.Linear):
            layer = bnb.nn.Linear4bit(part.in_features, part.out_features, bias=False, quant_type="nf4")
            layer.weight = bnb.nn.Params4bit(part.weight.data, requires_grad=False, quant_type="nf4").to("cpu")
            beside = trained == ALL or (trained == LAST and name.startswith(f"{work.layers - 1}."))
            top.layers.set_submodule(name, Adapted(layer, RANK, usual=False) if beside else layer)
    work.answers(top.eval(), "first")  # on a processor a layer packs itself once more when it first runs
    if trained == PACKED:
        train_packed(top)
    if trained == LAST:
        top.layers = nn.ModuleList([Once(top.layers[:-1]), top.layers[-1]])
    return top


def gradient_norm(work: Records, top: Top) -> float:
    """Return the median over 64 public phrases of the norm of a phrase's gradient, from differences along 8
    directions."""
    rule, evaluation = DIFFERENCES["forward"], Evaluation(work.losses, work.states(work.layers)["public"])
    weights, points = Weights(top, Directions(bytes(16), "low-rank")), rule.at(range(8), SMOOTHING)
    phrases = np.arange(min(64, len(work.states(work.layers)["public"])))
    found = rule.combine(evaluation.at(weights, points, evaluation.batch(phrases)), SMOOTHING)
    return float(np.median(np.sqrt(np.mean(found**2, axis=1))))


def memory(data: Any) -> dict[str, float]:
    """Return in MiB what the packed model holds, what inference on a batch takes beyond that, and what a point of a run
    takes after as many moves as a run has (with the signs of the moves)."""
    torch.set_num_threads(1)
    work = opened(data)
    top = packed(work)
    del work.model
    batch = work.states(work.layers)["train"][torch.arange(BATCH)]
    held = sum(p.numel() * p.element_size() for p in (*top.parameters(), *top.buffers()))
    before = reset_peak("cpu")
    with torch.no_grad():
        work.losses(top, batch)
    inference = peak("cpu") - before
    train_packed(top)
    weights = Weights(top, Directions(bytes(16), "low-rank"))
    weights.guarded = False
    weights.move_([(number, 1e-6) for number in range(STEPS * DIRECTIONS)])
    reset_peak("cpu")
    weights.evaluated([(STEPS * DIRECTIONS, SMOOTHING)], lambda module: work.losses(module, batch))
    return {"held_mb": held / 2**20, "inference_mb": inference, "point_mb": peak("cpu") - before}


def opened(data: Any) -> Records:
    """Return the model with SST-2's phrases of fewer than 16 tokens; the split `first` has one record."""
    work = prepared(data, TASK)
    work._rows["first"] = work._rows["train"][:1]
    return work


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    yield {"trained": "nothing", "epsilon": NONE}, 1
    for trained in options.trained:
        yield {"trained": trained, "epsilon": EPSILON}, options.seeds


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    if options.work is None:
        options.work = opened(options.data)
    work, trained = options.work, at["trained"]
    top, how, found = packed(work, trained), None, {}
    if at["epsilon"] != NONE:
        norm = gradient_norm(work, top)
        how = Recipe(
            "dpzero", float(EPSILON), steps=STEPS, batch=BATCH, step_size=SHARE * DIRECTIONS / norm**2,
            clip=math.sqrt(DIRECTIONS) * norm, directions=DIRECTIONS, smoothing=SMOOTHING, at_once=BATCH,
            direction="low-rank",
        )  # fmt: skip
        sizes = (math.prod(shape) for shape in Weights(top, Directions(bytes(16), "low-rank")).shapes)
        found = {"d": sum(sizes), "gradient_norm": norm}
        if trained == PACKED:
            found |= in_new_process(memory, options.data)
    data = work.states(work.layers)["train"]
    row = timed(work, top, how, data, "public")[-1]
    return {"n": len(data), "d": 0, **found, **{name: value for name, value in row.items() if name in FIELDS}}


def table(folder: Path = RESULTS / "llm_packed") -> str:
    """Return a table of what was trained, its size and its accuracy, and a sentence on memory."""
    rows, lines = read_rows(folder), []
    for trained, runs in rows.groupby("trained", sort=False):
        accuracy = [percent(runs[f"{part}_accuracy"]) for part in ("dev", "test")]
        lines.append([str(trained), str(runs["epsilon"].iloc[0]), f"{runs['d'].iloc[0]:,}", *accuracy])
    of = having(rows, trained=PACKED).iloc[0]
    return markdown(["trained", "epsilon", "weights", "public phrases", "test"], lines) + (
        f"\n\nThe packed model holds {of['held_mb']:.0f} MiB. Inference on a batch of {BATCH} phrases takes"
        f" {of['inference_mb']:.0f} MiB beyond that, and a point after {STEPS * DIRECTIONS} moves {of['point_mb']:.0f}."
    )


FIELDS = (
    "n", "d", "gradient_norm", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper",
    "noise_multiplier", "seconds", "held_mb", "inference_mb", "point_mb",
)  # fmt: skip
EXPERIMENT = studied(
    "packed",
    __doc__,
    Study(_kinds, lambda at: 1, ("trained",), _run),
    seeds=1,
    flags=[flag("--trained", nargs="+", choices=(PACKED, LAST, ALL), default=(PACKED, LAST), help="some of them")],
    key=("trained", "epsilon", "setting", "seed"),
    fields=FIELDS,
    settings={
        "prompt": task(TASK).prompts["causal"].template, "steps": STEPS, "directions": DIRECTIONS, "batch": BATCH,
        "smoothing": SMOOTHING, "step size": f"{SHARE} K/G^2", "packed": "bitsandbytes Linear4bit, nf4", "rank": RANK,
    },
    summary=table,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
