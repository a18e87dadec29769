"""DP-AdamW in the coordinates of a public shape, beside `llm.directions_total`.  python -m benchmarks llm.shaped_adamw

Trained is w = B^(-1/2) x, where x is the gain of the last normalisation and B the shape that DPZero's directions have
with --shaped: so gradients are clipped, and get noise, after B^(1/2). All else is as there.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.kit.experiment import Cell, flag
from benchmarks.llm import directions_total as whole
from benchmarks.llm.top import MODEL, NORM, TRAINED
from benchmarks.llm.tuned import NONE, Recipe, Study, first, studied, timed
from dpzero_theory.optim.losses.shaping import public_shape
from dpzero_theory.optim.shape import Shape


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for epsilon in options.epsilons:
        for name in options.tasks:
            if epsilon == options.epsilons[0]:
                yield {"task": name, "directions": 0, "method": "zero-shot", "epsilon": NONE}, 1
            yield {"task": name, "directions": 0, "method": "dp-adamw", "epsilon": epsilon}, options.seeds


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    if options.work is None or options.work[0] != at["task"]:
        options.work = at["task"], whole._prepared(at["task"], options)
    work, (_, steps, size) = options.work[1], whole._settings(MODEL, at)[number]
    top, data, how = work.top(TRAINED[NORM]), first(work.states(0)["train"], whole.N), None
    if steps:
        norm: Any = top.norm
        found = Shape(public_shape(top, work.losses, work.states(0)["dev"]), "rademacher")
        by = torch.from_numpy(found.scale * 2.0 ** found.exponents["norm.weight"][0]).float()
        with torch.no_grad():  # the logits are rows (by (gain/by) x), so the gradient of gain/by is by times the gain's
            norm.weight /= by
            top.rows *= by
        how = Recipe(
            "dp-adamw", float(at["epsilon"]), steps=steps, batch=len(data) // 4 if steps <= 250 else len(data) // 16,
            step_size=size, clip=work.gradient_norm(TRAINED[NORM], "dev", whole.SMOOTHING), seed=at["seed"],
        )  # fmt: skip
    row = timed(work, top, how, data, "dev")[-1]
    return {"n": len(data), "k": 0, "steps": steps, "scale": size, **{k: v for k, v in row.items() if k != "step"}}


STUDY = Study(_kinds, lambda at: len(whole._settings(MODEL, at)), ("task", "method", "epsilon", "directions"), _run)
EXPERIMENT = studied(
    "shaped_adamw", __doc__, STUDY, seeds=5,
    flags=[
        flag("--model", default=MODEL),
        flag("--tasks", nargs="+", choices=whole.TASKS, default=["sst2", "trec"]),
        flag("--epsilons", nargs="+", choices=whole.EPSILONS, default=["2", "0.5", "6"]),
    ],
    key=whole.EXPERIMENT.key, fields=whole.EXPERIMENT.fields, settings=whole.EXPERIMENT.settings,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
