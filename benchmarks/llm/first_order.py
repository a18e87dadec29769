"""AdamW, and its private version.

In a private step the library's secret sampler draws the batch and its calibration gives the noise multiplier; one
backward pass for each record gives its gradient, which is clipped and added to the others'. Dropout is off, as in all
other methods.
"""

import os
import random
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.llm.configuration import Configuration
from benchmarks.llm.prompts import Example
from benchmarks.llm.scoring import Scorer
from dpzero_theory.privacy.sampling import drawn
from dpzero_theory.privacy.schedule import SECRET_BYTES


def train_first_order(
    module: nn.Module,
    scorer: Scorer,
    train: Sequence[Example],
    configuration: Configuration,
    after_step: Callable[[int], None],
) -> None:
    """Train by AdamW on the sum of a batch's losses over the expected batch size. `after_step` is called after each
    step with the number of steps made.

    module: whose trainable weights are trained. scorer: gives each record's loss. train: the training records.
    configuration: its steps, step size, batch, sampling and seed are used; the seed draws the batches.
    """
    c = configuration
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=c.step_size)
    seed = c.seed.to_bytes(SECRET_BYTES, "little")
    batches = drawn(c.sampling, c.batch / len(train)).drawer(random.Random(c.seed), seed, len(train))
    for step in range(c.steps):
        _set_step_size(optimizer, c, step)
        batch = [train[i] for i in batches(step).tolist()]
        optimizer.zero_grad()
        for chunk in _chunks(batch, scorer.rows):
            (scorer.losses(module, chunk).sum() / c.batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after_step(step + 1)


def train_private_first_order(
    module: nn.Module,
    scorer: Scorer,
    train: Sequence[Example],
    configuration: Configuration,
    noise_multiplier: float,
    after_step: Callable[[int], None],
) -> None:
    """Train by DP-AdamW. noise_multiplier: the noise on the sum of a batch's clipped gradients over the clip; it is in
    float32, by a generator that the operating system seeds. The others are those of `train_first_order`."""
    c = configuration
    parameters = [p for p in module.parameters() if p.requires_grad]
    generator = torch.Generator(parameters[0].device)
    generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
    optimizer = torch.optim.AdamW(parameters, lr=c.step_size)
    sampling, secret = drawn(c.sampling, c.batch / len(train)), os.urandom(SECRET_BYTES)
    batches = sampling.drawer(random.SystemRandom(), secret, len(train))
    for step in range(c.steps):
        _set_step_size(optimizer, c, step)
        totals = [torch.zeros_like(p) for p in parameters]
        for index in batches(step).tolist():
            gradients = torch.autograd.grad(scorer.losses(module, [train[index]])[0], parameters)
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient * (c.clip / norm).clamp(max=1.0)
        for parameter, total in zip(parameters, totals, strict=True):
            noise = torch.randn(total.shape, generator=generator, device=total.device)
            parameter.grad = (total + noise_multiplier * c.clip * noise) / c.batch
        optimizer.step()
        after_step(step + 1)


def _set_step_size(optimizer: torch.optim.Optimizer, c: Configuration, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = c.step_size * (1 - step / c.steps if c.schedule == "linear" else 1.0)


def _chunks(batch: Sequence[Example], rows: int) -> list[Sequence[Example]]:
    """Return the batch in parts of `rows` records, the last one perhaps shorter, sorted by length so that the records
    of a part have similar lengths."""
    ordered = sorted(batch, key=lambda example: len(example.ids))
    return [ordered[start : start + rows] for start in range(0, len(ordered), rows)]
