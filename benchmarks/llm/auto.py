"""`settings="auto"` beside a grid of 30 settings, on six tasks.  python -m benchmarks llm.auto --data DIR

    python -m benchmarks pretrained smollm2          # the model, once
    python -m benchmarks llm.auto --data DIR         # resumable; --tasks sst2: some of the tasks; --summary: the table

Five tasks are asked by the paper's prompts, and the gain of the model's last normalisation is trained; the sixth is
ten-class digits by a linear layer. Both ways have the same private records, epsilon and public dev records. The grid
has K = 16 directions, the clip sqrt(K) G and the step size s/G^2, falling to 0, for three lengths and ten s; G is the
median gradient norm of the dev records. Its setting is the one with the highest dev accuracy in one run. `auto` sees
dev records as `public_data`, at most 256 of them, chooses anew for each run, and gets no second try.
"""

import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from torch.nn import functional

from benchmarks.kit.experiment import Cell, flag
from benchmarks.kit.rows import read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm import last_norm, last_norm_tasks, tuned
from benchmarks.llm.states import STATES, States
from benchmarks.llm.tasks import task
from benchmarks.llm.top import NORM, TRAINED
from benchmarks.llm.tuned import Recipe, Study, first, studied, trained
from dpzero_theory.datasets import digits
from dpzero_theory.optim.private import make_private_with_epsilon

N, K, SMOOTHING = 1024, 16, 1e-2
DIGITS = "digits"
TASKS = (last_norm.TASK, *last_norm_tasks.SIZES, DIGITS)
GRID = tuple(product(((62, 4), (250, 4), (1000, 16)), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)))
"""The settings that are compared: ((T, n over the expected batch), s)."""


class _Digits:
    """The digits and a linear layer, as `Records` of a language model are used."""

    def __init__(self) -> None:
        x, y = (torch.tensor(part) for part in digits(seed=0))
        places = {"train": slice(0, N), "dev": slice(N, N + 300), "test": slice(N + 300, None)}
        self._parts = {part: States(x[rows].float(), {"labels": y[rows].long()}) for part, rows in places.items()}

    def states(self, layers: int) -> dict[str, States]:
        return self._parts

    def top(self, trained: Any) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(64, 10)

    def losses(self, module: torch.nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(module(batch[STATES]), batch["labels"], reduction="none")

    def evaluated(self, module: torch.nn.Module, part: str) -> tuple[float, float]:
        rows = self._parts[part][:]
        with torch.no_grad():
            right = (module(rows[STATES]).argmax(1) == rows["labels"]).float().mean()
            return float(right), float(self.losses(module, rows).mean())

    def gradient_norm(self, trained: Any, part: str, smoothing: float) -> float:
        rows = self._parts[part][:]
        with torch.no_grad():
            wrong = self.top(None)(rows[STATES]).softmax(1) - functional.one_hot(rows["labels"], 10)
            return float((wrong.norm(dim=1) * (rows[STATES].square().sum(1) + 1).sqrt()).median())


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for name in options.tasks:
        for method in ("grid", "auto"):
            yield {"task": name, "method": method}, options.seeds


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    name = at["task"]
    if options.work is None or options.work[0] != name:
        asked = last_norm.prepared if name == last_norm.TASK else partial(last_norm_tasks.prepared, name, "paper")
        options.work = name, _Digits() if name == DIGITS else asked(options.data)
    work: Any = options.work[1]
    top, states, start = work.top(TRAINED[NORM]), work.states(0), time.perf_counter()
    data, choosing = first(states["train"], N), 0.0
    if at["method"] == "grid":
        ((steps, part), scale), norm = GRID[number], work.gradient_norm(TRAINED[NORM], "dev", SMOOTHING)
        how = Recipe(
            "dpzero", 2.0, steps=steps, batch=len(data) / part, step_size=scale / norm**2, clip=math.sqrt(K) * norm,
            directions=K, smoothing=SMOOTHING, points_at_once=K + 1,
        )  # fmt: skip
        trained(how, top, work.losses, data)
        size = how.step_size
    else:
        with TemporaryDirectory() as folder, redirect_stderr(StringIO()):
            run = make_private_with_epsilon(
                top, work.losses, data, settings="auto", public_data=states["dev"], target_epsilon=2.0,
                target_delta=tuned.DELTA, folder=folder,
            )  # fmt: skip
            choosing = time.perf_counter() - start
            run.run()
            run.close()
        steps, size = run.plan.steps, run.plan.step_size(0)
    seconds = time.perf_counter() - start
    found = {f"{part}_{what}": value for part in ("dev", "test")
             for what, value in zip(("accuracy", "loss"), work.evaluated(top, part), strict=True)}  # fmt: skip
    return {"n": len(data), "steps": steps, "step_size": size, **found, "choosing": choosing, "seconds": seconds}


def table(rows: pd.DataFrame) -> str:
    """Return a table of the mean test accuracy of the reported runs by task: the grid's best setting, and `auto`."""
    found, lines = tuned.ends(rows, "task", "method"), []
    for name in dict.fromkeys(at for at, _ in found):
        one, other = found[name, "grid"], found.get((name, "auto"))
        if other is not None:
            title = name if name == DIGITS else task(name).title
            lines.append([title, one.text(), other.text(), f"{other.mean - one.mean:+.1f}"])
    return markdown(["task", "best of the grid", "auto", "difference"], lines)


EXPERIMENT = studied(
    "auto",
    __doc__,
    Study(_kinds, lambda at: len(GRID) if at["method"] == "grid" else 1, ("task", "method"), _run),
    seeds=3,
    flags=[flag("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="which tasks (default: all)")],
    key=("task", "method", "setting", "seed"),
    fields=("n", "steps", "step_size", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "choosing", "seconds"),
    settings={"epsilon": 2, "directions": K, "smoothing": SMOOTHING, "grid": str(GRID), "n": N},
    summary=lambda out: table(read_rows(out)),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
