"""What is trained, on which task, by which method: the runs of the experiments on a pretrained language model.

A run starts from the model's own weights, trains some of them (`benchmarks.llm.top`) on a task's records by a method,
and its step size falls linearly to 0. A setting, mostly a step size, is chosen by the accuracy on dev records, which
are taken to be public, in one run with seed 0; the runs that are reported have other seeds, and test records choose
nothing. `studied` makes the experiment of a `Study`.
"""

import math
import os
import random
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import dpzero_theory as dz
from benchmarks.kit.device import chosen_device, device_name, one_thread
from benchmarks.kit.experiment import Cell, Experiment, Flag, Rows, flag
from benchmarks.kit.rows import having, read_rows
from benchmarks.kit.tables import half_width, markdown
from benchmarks.llm.clipping import clipped_sum
from benchmarks.llm.states import States
from benchmarks.llm.top import MODEL, Records, Top
from benchmarks.pretrained import pretrained_folder
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.engines.texts import IGNORED
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.sampling import sampling_of_run
from dpzero_theory.privacy.schedule import SECRET_BYTES
from dpzero_theory.privacy.step import step_of

DELTA = 1e-5
NONE = "none"
"""The epsilon of a method that is not private."""
CHOSEN = "chosen"
"""The setting of the runs that are reported."""
UNTRAINED = ("zero-shot", "few-shot")
LABELS = {
    "zero-shot": "zero-shot", "few-shot": "examples in the prompt", "dpzero": "DPZero", "mezo": "MeZO",
    "adamw": "AdamW", "dp-adamw": "DP-AdamW", "dpgd-0th": "DPGD-0th",
    "dpzero-many": "DPZero, 16,000 directions",
}  # fmt: skip
ORDER = (("zero-shot", NONE), ("dpzero", "2"), ("dpzero", "6"), ("mezo", NONE), ("adamw", NONE))
"""The methods in the paper's order, each of which should be at most as accurate as the next."""


@dataclass(frozen=True)
class Recipe:
    """How a run trains. epsilon: at DELTA; None for a method that is not private. batch: the number of records in a
    batch, on average for private and zeroth-order methods, whose batches are Poisson. step_size: the first one. clip:
    for private methods. directions, smoothing: of zeroth-order methods. seed: for methods that are not private.
    at_once: records that are evaluated together; 0 for all. points_at_once: points that are evaluated together; if more
    than one, directions are of rank 1 (random signs, for the weights of normalisations). shape: the public shape of the
    directions, as `public_shape` returns it."""

    method: str
    epsilon: float | None
    _: KW_ONLY
    steps: int
    batch: float
    step_size: float
    clip: float = 0.0
    directions: int = 1
    smoothing: float = 1e-2
    seed: int = 0
    at_once: int = 0
    points_at_once: int = 1
    shape: str = ""


def started(recipe: Recipe, top: Top, losses: Losses, data: Any, folder: str | Path) -> Run:
    """Start the run of dpzero or mezo on the records `data`, and return it before its first step. Its files are in
    `folder`."""
    r = recipe
    settings: dict[str, Any] = {
        "steps": r.steps, "expected_batch": float(r.batch), "smoothing": r.smoothing, "sampling": "poisson",
        "step_size": lambda step: r.step_size * (1 - step / r.steps),
        "direction": "low-rank" if r.points_at_once > 1 else "rademacher",
        "directions_per_step": r.directions, "difference": "forward", "shape": r.shape,
    }  # fmt: skip
    execution: dict[str, Any] = {
        "folder": folder, "micro_batch": r.at_once or len(data), "points_at_once": r.points_at_once,
    }  # fmt: skip
    if r.method == "mezo":
        plan = Plan.without_privacy(n=len(data), **settings)
        return make_from_seed_not_private(top, losses, data, plan, seed=r.seed, **execution)
    assert r.epsilon is not None
    return make_private_with_epsilon(
        top, losses, data, target_epsilon=r.epsilon, target_delta=DELTA, clip=r.clip, relation="add-remove",
        **settings, **execution,
    )  # fmt: skip


def trained(
    recipe: Recipe, top: Top, losses: Losses, data: Any, after: Callable[[int], None] = lambda step: None
) -> dict[str, float]:
    """Train `top` on the records `data`. `after` is called with the number of steps made, with 0 first and then after
    each step. losses: gives each record's loss.

    Returns for a private method `epsilon_upper`, an upper bound on the epsilon that the run spent at DELTA, and its
    `noise_multiplier`; an empty dictionary for any other method.
    """
    after(0)
    if recipe.method in ("adamw", "dp-adamw", "dpgd-0th"):
        return _by_gradients(recipe, top, losses, data, after)
    with TemporaryDirectory() as folder:
        run = started(recipe, top, losses, data, folder)
        while run.releases_left:
            after(run.step().release + 1)
        run.close()
    if recipe.epsilon is None:
        return {}
    return {"epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier}


def _by_gradients(r: Recipe, top: Top, losses: Losses, data: States, after: Callable[[int], None]) -> dict[str, float]:
    """Train by AdamW, or by DP-AdamW: each record's gradient is scaled to norm at most the clip, Gaussian noise is
    added to their sum over a secret Poisson batch, and AdamW moves the weights by that sum over the expected batch
    size. The noise is in float32, by a generator that the operating system seeds. DPGD-0th, the paper's Algorithm 1,
    takes a record's difference along u times u for its gradient, and moves the weights by the noisy mean itself."""
    weights = [p for p in top.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(weights, lr=r.step_size, weight_decay=0.0)
    if r.method == "dpgd-0th":
        along = Weights(top, Directions(os.urandom(16), "rademacher"))
        weights = list(along.parameters)
        optimizer = torch.optim.SGD(weights, lr=r.step_size)
    n, rate = len(data), r.batch / len(data)
    law: dict[str, Any] = {"sampling": dz.Poisson(rate), "relation": "add-remove"}
    chosen, noise = np.random.default_rng(r.seed), 0.0
    if r.epsilon is not None:
        noise = dz.calibrate(epsilon=r.epsilon, delta=DELTA, steps=r.steps, **law).upper
        generator = torch.Generator(weights[0].device)
        generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
        batches = sampling_of_run("poisson", rate).drawer(random.SystemRandom(), os.urandom(SECRET_BYTES), n)
    for step in range(r.steps):
        optimizer.zero_grad()
        if r.epsilon is None:
            batch = data[torch.from_numpy(chosen.choice(n, int(r.batch), replace=False))]
            torch.as_tensor(losses(top, batch)).mean().backward()  # type: ignore[no-untyped-call]
        else:
            batch = data[torch.from_numpy(batches(step))]
            if r.method == "dpgd-0th":
                sums = clipped_along(along, losses, batch, step, r)
            else:
                sums = clipped(top, losses, batch, r.clip, r.at_once)
            for weight, total in zip(weights, sums, strict=True):
                added = torch.randn(weight.shape, generator=generator, device=weight.device)
                weight.grad = (total + noise * r.clip * added) / r.batch
        optimizer.param_groups[0]["lr"] = r.step_size * (1 - step / r.steps)
        optimizer.step()
        after(step + 1)
    if r.epsilon is None:
        return {}
    spent = epsilon_of_history([step_of(noise, r.steps, **law)], DELTA).upper
    return {"epsilon_upper": spent, "noise_multiplier": noise}


def clipped(
    top: Top, losses: Losses, batch: Mapping[str, torch.Tensor], clip: float, at_once: int = 0
) -> list[torch.Tensor]:
    """Return the sum over a batch of the records' gradients, each scaled to norm at most `clip`: a tensor for each
    trained weight. at_once: so many records are differentiated together, those of similar length; 0 for all."""
    lengths = (batch["labels"] != IGNORED).int().argmax(1)
    sums = [torch.zeros_like(p) for p in top.parameters() if p.requires_grad]
    for part in torch.split(lengths.argsort(), at_once or max(len(lengths), 1)) if len(lengths) else ():
        longest = int(lengths[part].max()) + 1
        records = {name: tensor[part, :longest] for name, tensor in batch.items()}
        for total, found in zip(sums, clipped_sum(top, losses, records, clip), strict=True):
            total += found
    return sums


def clipped_along(
    weights: Weights, losses: Losses, batch: Mapping[str, torch.Tensor], step: int, r: Recipe
) -> list[torch.Tensor]:
    """Return the sum over a batch of g u, each scaled to norm at most the clip, where g is a record's forward
    difference along the direction u of the step: a tensor for each trained weight."""
    if not len(batch["labels"]):
        return [torch.zeros_like(p) for p in weights.parameters]
    at = weights.evaluated([(step, 0.0), (step, r.smoothing)], lambda top: torch.as_tensor(losses(top, batch)))
    g = (at[1] - at[0]).double() / r.smoothing
    total = float((g * (r.clip / (g.abs() * math.sqrt(weights.d))).clamp(max=1.0)).nansum())
    each = enumerate(zip(weights.parameters, weights.sizes, strict=True))
    return [
        total * weights.directions.coordinates(step, i, 0, size).view(p.shape).to(p.device) for i, (p, size) in each
    ]


def first(states: States, count: int) -> States:
    """Return a data set of the first `count` records of `states`, with all their tensors."""
    values = dict(zip(states.names, (tensor[:count] for tensor in states.tensors), strict=True))
    return States(values.pop(states.names[0]), values)


def best(rows: pd.DataFrame, **cell: object) -> int:
    """Return the number of the setting with the highest accuracy on dev records, of the rows with seed 0 and the column
    values in `cell`; of equal ones the smaller number."""
    mine = having(rows, seed=0, **cell).sort_values(["dev_accuracy", "setting"], ascending=[False, True])
    return int(mine["setting"].iloc[0])


def tried(common: Cell, settings: int) -> Iterator[Cell]:
    """Yield the cells of the trial runs: the columns `common`, the number of a setting (0 to settings - 1) and the seed
    0."""
    yield from ({**common, "setting": str(number), "seed": 0} for number in range(settings))


def reported(common: Cell, seeds: int) -> Iterator[Cell]:
    """Yield the cells of the runs that are reported: the columns `common`, the word `CHOSEN` for the setting, and the
    seeds from 1 to `seeds`."""
    yield from ({**common, "setting": CHOSEN, "seed": seed} for seed in range(1, seeds + 1))


class Study(NamedTuple):
    """An experiment whose settings are chosen on dev records.

    kinds: from the options, the kinds of runs in their order: the columns that tell them apart, and how many runs are
    reported. settings: from these columns, the number of settings that are compared; 1 if there is no choice. by: the
    columns by which a setting is chosen, in the runs of the first kind that has them. last: further column values of
    the rows that choose it, of a run with several rows. run: from the options, a cell and
    the number of its setting, the rows of a run.
    """

    kinds: Callable[[Namespace], Iterator[tuple[Cell, int]]]
    settings: Callable[[Cell], int]
    by: Sequence[str]
    run: Callable[[Namespace, Cell, int], Rows]
    last: Callable[[], Mapping[str, object]] = dict

    def cells(self, options: Namespace) -> Iterator[Cell]:
        """Yield the cells of each kind: a trial run with seed 0 for each setting, unless the kind's setting is chosen
        already, then the runs that are reported."""
        chosen: set[tuple[object, ...]] = set()
        for common, runs in self.kinds(options):
            of, count = tuple(common[name] for name in self.by), self.settings(common)
            if count > 1 and of not in chosen:
                yield from tried(common, count)
            chosen.add(of)
            yield from reported(common, runs)

    def measure(self, options: Namespace, at: Cell) -> Rows:
        number = 0
        if at["setting"] != CHOSEN:
            number = int(at["setting"])
        elif self.settings(at) > 1:
            number = best(read_rows(options.out), **{name: at[name] for name in self.by}, **self.last())
        return self.run(options, at, number)


def studied(
    name: str,
    about: str | None,
    study: Study,
    *,
    seeds: int,
    flags: Sequence[Flag] = (),
    device: bool = False,
    **how: Any,
) -> Experiment:
    """Return the experiment of a study. seeds: the runs of each kind that are reported without the flag --seeds. flags:
    beside --data and --seeds. device: whether there is a flag --device, too. how: further attributes of `Experiment`;
    the settings, or the function that makes them, are added to what all have in common."""
    common = {
        "model": MODEL, "difference": "forward", "delta": DELTA, "sampling": "poisson", "relation": "add-remove",
    }  # fmt: skip
    of = how["settings"]
    return Experiment(
        reads_rows=True,
        name=f"llm.{name}",
        about=about,
        flags=[
            flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
            flag("--seeds", type=integer(1, 100), default=seeds, help="runs of each kind that are reported"),
            *([flag("--device", choices=("auto", "cpu", "cuda"), default="auto")] if device else []),
            *flags,
        ],
        **{
            "folder": f"llm_{name}",
            "seeds": lambda options: range(options.seeds + 1),
            "device": device_name if device else "cpu",
            "dtype": "float32",
            "check": ready,
            "cells": study.cells,
            "measure": study.measure,
            "told": told,
            **how,
            "settings": (lambda options: {**common, **of(options)}) if callable(of) else {**common, **of},
        },
    )


def ready(parser: Parser, options: Namespace) -> None:
    """The `check` of these experiments: choose the device, let torch use one thread, refuse the command line (the
    parser's error) where the folder of the pretrained model has not been made, and set `options.work`, in which records
    are kept, to None."""
    options.device = chosen_device(parser, vars(options).get("device", "cpu"))
    one_thread(parser, options)
    with parser.refusals():
        pretrained_folder(vars(options).get("model", MODEL))
    options.work = None


def told(at: Cell, rows: list[dict[str, Any]]) -> str:
    """Return a line that says what a cell's last row has found."""
    reached = (
        f"{part} {100 * rows[-1][f'{part}_accuracy']:.1f}" for part in ("dev", "test") if f"{part}_accuracy" in rows[-1]
    )
    return f"{', '.join(f'{name} {value}' for name, value in at.items())}: {', '.join(reached)}"


def timed(
    work: Records, top: Top, recipe: Recipe | None, data: Any, dev: str, shown: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Train `top`, and return the rows of the run: one for each evaluation, after the numbers of steps in `shown` and
    after the last step, with the accuracy and loss on dev and test records and the seconds of training until then. The
    last row also has what `trained` returns. recipe: None for a model that is not trained. dev: the split of dev
    records."""
    rows: list[dict[str, Any]] = []
    spent, begun, last = 0.0, time.perf_counter(), recipe.steps if recipe else 0

    def after(step: int) -> None:
        nonlocal spent, begun
        if step not in shown and step != last:
            return
        spent += time.perf_counter() - begun
        found = {"step": step, "seconds": round(spent, 2)}
        for name, part in (("dev", dev), ("test", "test")):
            found[f"{name}_accuracy"], found[f"{name}_loss"] = work.evaluated(top, part)
        rows.append(found)
        begun = time.perf_counter()

    if recipe is None:
        after(0)
    else:
        cost = trained(recipe, top, work.losses, data, after)
        rows[-1] |= cost
    return rows


class End(NamedTuple):
    """Of the reported runs of a kind: the mean test accuracy in percent, half the width of its 95% interval over runs
    (Student's t; 0 for a single run), and the number of runs."""

    mean: float
    half: float
    runs: int

    def text(self) -> str:
        return f"{self.mean:.1f}" + (f" +- {self.half:.1f}" if self.runs > 1 else "")


def ends(rows: pd.DataFrame, *by: str) -> dict[tuple[str, ...], End]:
    """Return the test accuracy of the reported runs in `rows`, by the values of the columns `by`, as text."""
    found = {}
    for at, part in rows[rows["setting"].astype(str) == CHOSEN].groupby(list(by), sort=False):
        values = 100 * part["test_accuracy"].to_numpy(dtype=float)
        half = half_width(values) if len(values) > 1 else 0.0
        found[tuple(map(str, at))] = End(float(values.mean()), half, len(values))
    return found


def label(method: str, epsilon: str) -> str:
    return LABELS[method] + ("" if epsilon == NONE else f" ({epsilon})")


def table(found: Mapping[tuple[str, ...], End], heads: Sequence[str], methods: Sequence[tuple[str, str]]) -> str:
    """Return a table with a line for each value of the columns `heads` and a column for each method, given with its
    epsilon. found: the ends of runs by the columns `heads`, the method and the epsilon."""
    lines = [
        [*at, *(found[*at, *method].text() if (*at, *method) in found else "-" for method in methods)]
        for at in dict.fromkeys(key[:-2] for key in found)
    ]
    return markdown([*heads, *(label(*method) for method in methods)], lines)


def order(found: Mapping[tuple[str, ...], End], heads: Sequence[str]) -> str:
    """Return a table, by the values of the columns `heads`, of the differences in test accuracy between neighbours in
    the paper's order of methods, in percentage points, with 95% intervals. A claim holds where its interval is above 0,
    fails where it is below 0, and is open otherwise. found: as in `table`."""
    lines = []
    for at in dict.fromkeys(key[:-2] for key in found):
        cells = []
        for lower, upper in pairwise(ORDER):
            one, other = found.get((*at, *lower)), found.get((*at, *upper))
            if one is None or other is None:
                cells.append("-")
                continue
            gap, half = other.mean - one.mean, math.hypot(one.half, other.half)
            verdict = "holds" if gap > half else "fails" if gap < -half else "open"
            cells.append(f"{gap:+.1f} +- {half:.1f}, {verdict}")
        lines.append([*at, *cells])
    return markdown([*heads, *(f"{label(*lower)} to {label(*upper)}" for lower, upper in pairwise(ORDER))], lines)
