"""What the theory prescribes for measured constants, beside a grid search at equal privacy.

    python -m dpzero_theory.curvature --model mlp-digits:16 --data digits --samples 500 --out problem.json
    python -m dpzero_theory.params --problem problem.json --n 1200 --epsilon 6 --delta 1e-5 --max-steps 400
    python -m benchmarks prescription --problem problem.json

The private optimizer (`dpzero_theory.optim`) runs each choice of step size and clip with the same number of evaluations
of records, on all records, and the same (epsilon, delta):

- theory: the sharpened theorem's step size and clip for the constants of the file (the upper ends of their intervals);
- theory-estimates: the same for the estimates inside the intervals, and with the smoothness of F instead of that of
single samples;
- theory-moment, theory-estimates-moment: the same two without a Lipschitz constant. In its place is the mean over
samples of the fourth power of gradient norms, the largest of the points, at most what the file's quantiles allow: a
share of the samples has norms between two quantiles, and is counted at the upper one;
- theory-best-k, theory-estimates-best-k, and so on: the same with K directions a step, K times fewer steps and the best
such K, if that is not 1;
- grid: every pair of a step size and a clip, the clip in units of the median gradient norm of the file.

All losses are float64, and the theory's choices run with the smoothing that it prescribes, so only the measured
constants stand between the certificate and the run. There is one row per choice and seed, with the loss, the accuracy
and the mean of ||grad F||^2 over the run, which the certificate bounds. The data are public, and noise and directions
come from seeds: no row is a private release, and the cost of the grid search itself is not counted. `--summary` prints
means and standard errors.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import rounded
from dpzero_theory import datasets
from dpzero_theory.cli import Parser, input_file, integer
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.objective import Batch, Objective
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.problem_file import ProblemFile
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp import certificate as sharp

EPSILON, DELTA = 6.0, 1e-5
STEPS = 400
"""The number of steps with one direction per step. With K directions a step there are K times fewer steps."""
STEP_SIZES, CLIPS = (3e-3, 1e-2, 3e-2, 0.1, 0.3), (0.3, 1.0, 3.0)
"""The grid: step sizes, and clips in units of the median gradient norm of a sample."""
RELATION = "replace-one"
SMOOTHING = 1e-6
"""The smoothing lambda of the grid's runs. At this value a finite difference of float64 losses has a rounding error
of about 1e-9."""
KEY = ("task", "choice", "step_size", "clip", "seed")
FIELDS = (
    *("n", "d", "steps", "directions_per_step", "expected_batch", "epsilon", "delta", "relation", "noise_multiplier"),
    *("smoothing", "bound", "loss_before", "loss", "accuracy_before", "accuracy"),
    *("gradient_squared", "seconds"),
)


@dataclass(frozen=True)
class Digits:
    """The digits that the constants of mlp-digits:16 are not measured on: 1,200 private records and 97 test records,
    each a pair of inputs and labels."""

    train: Batch
    test: Batch


@dataclass(frozen=True)
class Choice:
    """Parameters to run with: step size, clip, number of steps and number K of directions per step. `name` says where
    they come from. smoothing and bound are those of the sharpened theorem, and None for a choice from the grid."""

    name: str
    step_size: float
    clip: float
    steps: int
    smoothing: float | None = None
    bound: float | None = None
    directions_per_step: int = 1


def fourth_moment(file: ProblemFile) -> float:
    """Return an upper bound on the mean, over the samples of the file, of the fourth power of the norm of a sample's
    gradient, from the quantiles of the norms. It is the largest of those at the points at which the file has
    measurements; elsewhere it bounds nothing."""

    def at(quantiles: dict[str, float]) -> float:
        ends = sorted((float(share), norm) for share, norm in quantiles.items())
        below = [0.0, *(share for share, _ in ends)]
        return sum((share - before) * norm**4 for (share, norm), before in zip(ends, below, strict=False))

    return max(at(point["gradient_norms"]) for point in file.measurements["points"])


def problems(file: ProblemFile, n: int) -> dict[str, Problem]:
    """Return problems with n records by name: one with the constants that the file certifies (the upper ends of their
    intervals), one with its estimates and with ||Hess F|| as the smoothness, and both with a moment of gradients in
    place of a Lipschitz constant."""
    constants: dict[str, Any] = dict(file.constants)
    upper = Problem(n=n, **constants)
    points = file.measurements["points"]
    smoothness = max(point["norm"]["estimate"] for point in points)
    trace = max(point["absolute_trace"]["estimate"] for point in points)
    samples = max(point["sample_absolute_trace"]["estimate"] for point in points)
    r, sample_rank = (min(max(value / smoothness, 1.0), float(upper.d)) for value in (trace, samples))
    estimates = replace(upper, smoothness=smoothness, r=r, sample_rank=sample_rank)
    found = {"theory": upper, "theory-estimates": estimates}
    moment = 4.0, fourth_moment(file)
    for name, problem in list(found.items()):
        found[f"{name}-moment"] = replace(problem, lipschitz=math.inf, gradient_moment=moment)
    return found


def choices(file: ProblemFile, n: int) -> list[Choice]:
    """Return all choices of parameters to run for n records: the theory's prescriptions for the constants of the file,
    and every pair of the grid."""
    found = []
    for name, problem in problems(file, n).items():
        p, best = (_prescribe(problem, k) for k in (1, "best"))
        found.append(Choice(name, p.step_size, p.clip, p.steps, p.smoothing, p.bound))
        k, name = best.directions_per_step, f"{name}-best-k"
        if k > 1:
            found.append(Choice(name, best.step_size, best.clip, best.steps, best.smoothing, best.bound, k))
    median = file.measurements["points"][0]["gradient_norms"]["0.5"]
    return found + [Choice("grid", a, rounded(c * median), STEPS) for a in STEP_SIZES for c in CLIPS]


def _prescribe(problem: Problem, k: int | str) -> Prescription:
    """Return the sharpened theorem's prescription with k directions per step ("best" for the best number), for STEPS
    evaluations of each record. `problem` has the constants of the loss."""
    gdp = float(gdp_from_epsilon(EPSILON, DELTA))
    return sharp.prescribe(problem, gdp, max_evaluations=STEPS * problem.n, relation=RELATION, directions_per_step=k)


def digits() -> Digits:
    """Return the records. The constants are measured on the first 500 digits by `dpzero_theory.curvature`."""
    features, labels = (torch.as_tensor(part) for part in datasets.digits(0))
    return Digits((features[500:1700], labels[500:1700]), (features[1700:], labels[1700:]))


def network() -> nn.Module:
    """Return the network of the task mlp-digits:16 at its start."""
    return tasks.mlp_digits(16, 500, 0).module


def run(work: Digits, choice: Choice, seed: int, before: tuple[float, float]) -> dict[str, Any]:
    """Train on the records `work` with one choice and seed, and return the row. before: the loss and the accuracy
    before training, which are the same for all choices. ||grad F||^2 is measured at equally spaced iterates, about a
    25th as many as the grid's runs have steps (at all iterates, if there are fewer)."""
    started = time.perf_counter()
    records = TensorDataset(*work.train)
    n = len(records)
    plan = Plan.for_target(
        n=n,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        steps=choice.steps,
        expected_batch=float(n),
        clip=choice.clip,
        step_size=choice.step_size,
        smoothing=choice.smoothing or SMOOTHING,
        relation=RELATION,
        sampling="full",
        direction="sphere",
        directions_per_step=choice.directions_per_step,
    )
    module = network()
    optimizer = make_from_seed_not_private(module, tasks.cross_entropy, records, plan, seed=seed, micro_batch=n)
    squares: list[float] = []
    pause = max(25 * choice.steps // STEPS, 1)
    for t in range(choice.steps):
        if t % pause == 0:
            objective = Objective(module, tasks.cross_entropy, [work.train])
            squares.append(float(objective.gradient(objective.start).square().sum()))
        optimizer.step()
    after = evaluate(module, work)
    weights = sum(p.numel() for p in module.parameters())
    row: dict[str, Any] = {"task": "digits", "choice": choice.name, "step_size": choice.step_size, "clip": choice.clip}
    return row | {
        "seed": seed,
        "n": n,
        "d": weights,
        "steps": choice.steps,
        "directions_per_step": choice.directions_per_step,
        "expected_batch": float(n),
        "epsilon": EPSILON,
        "delta": DELTA,
        "relation": RELATION,
        "noise_multiplier": plan.noise_multiplier,
        "smoothing": choice.smoothing or SMOOTHING,
        "bound": choice.bound,
        "loss_before": before[0],
        "loss": after[0],
        "accuracy_before": before[1],
        "accuracy": after[1],
        "gradient_squared": float(np.mean(squares)),
        "seconds": round(time.perf_counter() - started, 2),
    }


def evaluate(module: nn.Module, work: Digits) -> tuple[float, float]:
    """Return the mean loss of the module on the private records and its accuracy on the test records. `work` has the
    records."""
    inputs, labels = work.test
    with torch.no_grad():
        loss = float(tasks.cross_entropy(module, work.train).mean())
        return loss, float((module(inputs).argmax(dim=1) == labels).double().mean())


def summary(folder: Path) -> str:
    """Return a text with means and standard errors over seeds of the loss, the accuracy and ||grad F||^2, for the
    theory's choices and for the grid, ordered by loss."""
    rows = read_rows(folder)
    table = rows.groupby(["choice", "step_size", "clip"])
    lines = [f"{'choice':>16} {'step size':>10} {'clip':>8} {'loss':>17} {'accuracy':>17} {'||grad||^2':>17}   bound"]
    means, errors = table.mean(numeric_only=True), table.sem(numeric_only=True)
    for key in means.sort_values("loss").index:
        shown = " ".join(
            f"{means.loc[key, name]:>8.4f} +- {errors.loc[key, name]:.4f}"
            for name in ("loss", "accuracy", "gradient_squared")
        )
        bound = means.loc[key, "bound"]
        lines.append(
            f"{key[0]:>16} {key[1]:>10.3g} {key[2]:>8.3g} {shown}" + ("" if bound != bound else f" {bound:>7.3g}")
        )
    first = rows.iloc[0]
    return "\n".join([*lines, f"before: loss {first['loss_before']:.4f}, accuracy {first['accuracy_before']:.4f}"])


def _again(row: Row) -> list[dict[str, Any]]:
    """Make a committed row again. The list is empty if the row's choice is none of `choices` any more."""
    work = digits()
    file = ProblemFile.read(RESULTS / "curvature_problems" / "mlp-digits-16.json")
    before = evaluate(network(), work)
    return [
        run(work, choice, row["seed"], before)
        for choice in choices(file, len(work.train[1]))
        if choice.name == row["choice"]
        and math.isclose(choice.step_size, row["step_size"])
        and math.isclose(choice.clip, row["clip"])
    ]


# noise is calibrated to about 1e-9, which a run enlarges
REMAKES = {"prescription_digits": Remake(KEY, _again, varies=("seconds",), tolerance=1e-5)}


def _check(parser: Parser, options: Namespace) -> None:
    torch.set_num_threads(1)
    with parser.refusals("--problem"):
        options.file = ProblemFile.read(options.problem)
    options.work = digits()
    options.before = cache(lambda: evaluate(network(), options.work))


def _cells(options: Namespace) -> Iterator[tuple[Choice, int]]:
    every = choices(options.file, len(options.work.train[1]))
    only = options.choices
    return ((choice, seed) for seed in range(options.seeds) for choice in every if not only or choice.name in only)


def _keys(options: Namespace, at: tuple[Choice, int]) -> list[Row]:
    return [dict(zip(KEY, ("digits", at[0].name, at[0].step_size, at[0].clip, at[1]), strict=True))]


def _told(at: tuple[Choice, int], rows: list[Row]) -> str:
    (choice, seed), row = at, rows[0]
    return (
        f"{choice.name} alpha={choice.step_size:.3g} C={choice.clip:.3g} seed={seed}: "
        f"loss {row['loss_before']:.4g} -> {row['loss']:.4g}, "
        f"accuracy {row['accuracy_before']:.3f} -> {row['accuracy']:.3f} ({row['seconds']} s)"
    )


EXPERIMENT = Experiment(
    name="prescription",
    about=__doc__,
    flags=[
        flag("--problem", type=input_file, required=True, help="written by python -m dpzero_theory.curvature"),
        flag("--seeds", type=integer(1, 1000), default=3),
        flag("--choices", nargs="+", metavar="NAME", help="only the choices of these names, such as theory-moment"),
    ],
    folder="prescription_digits",
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    settings=lambda options: {"problem": dict(options.file.constants), "noise": "seeded"},
    check=_check,
    cells=_cells,
    keys=_keys,
    measure=lambda options, at: run(options.work, at[0], at[1], options.before()),
    told=_told,
    summary=summary,
)
