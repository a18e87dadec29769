"""All 134.5 million weights of a language model, tuned: SST-2 by the paper's prompt.

    python -m benchmarks.pretrained smollm2                              # the model, once
    python -m benchmarks.llm.all_weights --data DIR --device cuda        # DIR: sst2_train.tsv, sst2_test.tsv
    python -m benchmarks.llm.all_weights --summary                       # the table

The prompt, the training phrases, the dev phrases and the test sentences are those of `benchmarks.llm.last_norm`, which
trains the gain of the last normalisation. Here AdamW, DP-AdamW and DPZero train all weights. A setting is chosen by the
accuracy on dev phrases, which are taken to be public, in one run with seed 0; the runs that are reported have other
seeds. Step sizes fall linearly to 0.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.kit.device import chosen_device, device_name
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm.clipping import clipped_sum
from benchmarks.llm.last_layer import LABELS
from benchmarks.llm.last_norm import DELTA, LENGTH, NONE, TASK, padded, texts
from benchmarks.llm.models import load
from benchmarks.llm.only_d import Top
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.settings import CHOSEN, MODEL, best, ready, reported, tried
from benchmarks.llm.tasks import task
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.losses.frozen import STATES, States
from dpzero_theory.optim.losses.starting import public_clip
from dpzero_theory.optim.losses.task_losses import IGNORED
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.step.sampler import Batches
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.sampling import drawn as sampling_drawn
from dpzero_theory.privacy.step import Release

SMOOTHING = 3e-3
AT_ONCE, GRADIENTS_AT_ONCE = 256, 32
"""The most records in one forward pass without gradients, and in one pass that sums clipped gradients."""
STEPS = {"adamw": 300, "dp-adamw": 60, "dpzero": 300}
BATCHES = {"adamw": 64, "dp-adamw": 256, "dpzero": 256}
CLIP = 1.0
"""The clip of DP-AdamW; that of DPZero is G, the median gradient norm of dev records at the start."""
STEP_SIZES = {"adamw": (1e-5, 3e-5), "dp-adamw": (1e-4, 3e-4, 1e-3), "dpzero": (0.03, 0.1)}
"""The step sizes that are compared, by method; those of DPZero in units of 1/G^2."""
RUNS = (("adamw", NONE), ("dpzero", "2"), ("dp-adamw", "2"))
"""The kinds of run, each with its method and its epsilon at DELTA."""


class Work:
    """The whole model and its records on a device, by split ("train", "dev", "test"): data sets of token ids, labels
    and masks, in which the token ids have the name of hidden states."""

    def __init__(self, data: Path | None, device: str) -> None:
        model = load(MODEL)
        prompter = Prompter(task(TASK), model.kind, model.tokenizer, LENGTH)
        self.options = tuple(ids[0] for ids in prompter.classes())
        self._model, self._device = model.module, device
        self.parts = {}
        for part, records in texts(data).items():
            rows = padded(prompter, self.options, records, model.pad, LENGTH)
            values = {name: torch.stack([row[name] for row in rows]).to(device) for name in ("input_ids", "labels")}
            self.parts[part] = States(values["input_ids"], values)

    def top(self) -> Top:
        """Return a new copy of the model on the device, with the weights at their start, all of which are trained."""
        body: Any = self._model.model
        return Top(self._model, len(body.layers), self.options).requires_grad_(True).to(self._device).eval()

    def asked(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the token ids of a batch, shape (records, tokens), and for each record the position of the last token
        of its prompt and the number of its right answer among the options."""
        labels, records = batch["labels"], torch.arange(len(batch["labels"]), device=self._device)
        place = (labels != IGNORED).int().argmax(1)
        options = torch.tensor(self.options, device=self._device)
        return batch[STATES], place - 1, (labels[records, place][:, None] == options).int().argmax(1)

    def losses(self, module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the cross-entropy of each record's right answer over the task's answers, shape (records,)."""
        ids, last, wanted = self.asked(batch)
        return cross_entropy(module(ids, last), wanted, reduction="none")

    def accuracy(self, top: Top, part: str) -> float:
        """Return the share, in [0, 1], of the records of a split that the model answers rightly."""
        states, right = self.parts[part], 0
        with torch.no_grad():
            for rows in torch.split(torch.arange(len(states)), AT_ONCE):
                ids, last, wanted = self.asked(states[rows])
                right += int((top(ids, last).argmax(1) == wanted).sum())
        return right / len(states)


def trained(work: Work, top: Top, at: Cell, step_size: float, steps: int = 0) -> dict[str, float]:
    """Train all weights of `top` by the method of the cell `at` (its `method`, `epsilon` and `seed`). step_size: the
    first one. steps: how many; STEPS of the method if 0. Returns for a private method `epsilon_upper`, what the run has
    spent at DELTA, and its `noise_multiplier`; otherwise an empty dictionary."""
    method, data = at["method"], work.parts["train"]
    steps, batch, n = steps or STEPS[method], BATCHES[method], len(work.parts["train"])
    if method == "dpzero":
        clip = public_clip(top, work.losses, work.parts["dev"], data, smoothing=SMOOTHING)
        step_size /= clip**2
        with TemporaryDirectory() as folder:
            run = make_private_with_epsilon(
                top, work.losses, data, target_epsilon=float(at["epsilon"]), target_delta=DELTA, steps=steps,
                expected_batch=float(batch), clip=clip, smoothing=SMOOTHING, relation="add-remove",
                step_size=lambda step: step_size * (1 - step / steps), sampling="poisson", direction="rademacher",
                difference="forward", folder=folder, micro_batch=AT_ONCE,
            )  # fmt: skip
            run.run()
            run.close()
        return {"epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier}
    optimizer = torch.optim.AdamW([p for p in top.parameters() if p.requires_grad], lr=step_size, weight_decay=0.0)

    def step_by(step: int, gradients: Callable[[], None]) -> None:
        optimizer.zero_grad()
        gradients()
        optimizer.param_groups[0]["lr"] = step_size * (1 - step / steps)
        optimizer.step()

    if method == "adamw":
        drawn = np.random.default_rng(at["seed"])
        for step in range(steps):
            records = data[torch.from_numpy(drawn.choice(n, batch, replace=False))]
            step_by(step, lambda records=records: work.losses(top, records).mean().backward())  # type: ignore[misc, no-untyped-call]
        return {}
    law: dict[str, Any] = {"sampling": "poisson", "relation": "add-remove", "sample_rate": batch / n}
    noise = calibrate_noise_multiplier(
        target_epsilon=float(at["epsilon"]), target_delta=DELTA, steps=steps, **law
    ).upper
    batches, generator = (
        Batches(sampling_drawn("poisson", batch / n), n),
        torch.Generator(work.parts["dev"][0][STATES].device),
    )
    generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
    for step in range(steps):
        drawn_now = torch.from_numpy(batches.draw())
        step_by(step, lambda rows=drawn_now: _noised(work, top, rows, CLIP, noise, generator))  # type: ignore[misc]
    spent = epsilon_of_history([Release(noise, steps, **law)], DELTA).upper
    return {"epsilon_upper": spent, "noise_multiplier": noise}


def _noised(work: Work, top: Top, rows: Tensor, clip: float, noise: float, generator: torch.Generator) -> None:
    """Set the gradients of DP-SGD: the records' gradients, each scaled to norm at most `clip`, are added, then Gaussian
    noise of standard deviation noise * clip, and the sum is divided by the expected batch size. rows: the numbers of
    the batch's records. The noise is in float32."""
    weights = [p for p in top.parameters() if p.requires_grad]
    sums = [noise * clip * torch.randn(p.shape, generator=generator, device=p.device) for p in weights]
    batch = work.parts["train"][rows]
    lengths = (batch["labels"] != IGNORED).int().argmax(1)
    for part in torch.split(lengths.argsort(), GRADIENTS_AT_ONCE):  # records of about equal length need little padding
        records = {name: tensor[part, : int(lengths[part].max()) + 1] for name, tensor in batch.items()}
        for total, found in zip(sums, clipped_sum(top, work.losses, records, clip), strict=True):
            total += found
    for weight, total in zip(weights, sums, strict=True):
        weight.grad = total / BATCHES["dp-adamw"]


def _cells(options: Namespace) -> Iterator[Cell]:
    yield {"method": "zero-shot", "epsilon": NONE, "setting": CHOSEN, "seed": 1}
    for method, epsilon in RUNS:
        if method in options.methods:
            common = {"method": method, "epsilon": epsilon}
            yield from tried(common, len(STEP_SIZES[method]))
            yield from reported(common, options.seeds)


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    if options.work is None:
        options.work = Work(options.data, options.device)
    work, begun = options.work, time.perf_counter()
    top, step_size, cost = work.top(), 0.0, {}
    if at["method"] != "zero-shot":
        chosen = at["setting"] == CHOSEN
        number = best(read_rows(options.out), method=at["method"]) if chosen else int(at["setting"])
        step_size = STEP_SIZES[at["method"]][number]
        cost = trained(work, top, at, step_size)
    return {
        "d": sum(p.numel() for p in top.parameters()), "n": len(work.parts["train"]), "step_size": step_size,
        "dev_accuracy": work.accuracy(top, "dev"), "test_accuracy": work.accuracy(top, "test"), **cost,
        "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    dev, test = (100 * rows[0][f"{part}_accuracy"] for part in ("dev", "test"))
    return (
        f"{at['method']}, epsilon {at['epsilon']}, setting {at['setting']}, seed {at['seed']}: dev {dev:.1f}, test"
        f" {test:.1f}, {rows[0]['seconds']:.0f} s"
    )


def table(folder: Path = RESULTS / "llm_all_weights") -> str:
    """Return a table of accuracies by method and step size: of the run that chooses, and of the reported runs."""
    rows, lines = read_rows(folder), []
    for method, epsilon in (("zero-shot", NONE), *RUNS):
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


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)
    ready(parser, options)


EXPERIMENT = Experiment(
    name="llm.all_weights",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=3, help="runs of each method that are reported"),
        flag("--methods", nargs="+", choices=tuple(STEPS), default=tuple(STEPS), help="some of them"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
    ],
    folder="llm_all_weights",
    key=("method", "epsilon", "setting", "seed"),
    fields=("d", "n", "step_size", "dev_accuracy", "test_accuracy", "epsilon_upper", "noise_multiplier", "seconds"),
    seeds=lambda options: range(options.seeds + 1),
    device=device_name,
    dtype="float32",
    settings={
        "model": MODEL, "prompt": task(TASK).prompts["causal"].template, "steps": str(STEPS), "batches": str(BATCHES),
        "clip": CLIP, "smoothing": SMOOTHING, "directions": 1, "difference": "forward", "delta": DELTA,
        "sampling": "poisson", "relation": "add-remove", "trained": "all weights",
    },
    check=_check,
    cells=_cells,
    measure=_measure,
    told=_told,
    summary=table,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
