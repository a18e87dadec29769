"""`Task`: a module, per-sample losses and samples whose curvature can be measured; and a small network on digits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dpzero_theory import datasets
from dpzero_theory.curvature.objective import Batch, Losses

_DIGITS_AT_ONCE = 2048


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model whose losses' curvature is measured.

    Attributes:
        module: the torch module, in eval mode.
        losses: a function (module, batch) that returns one loss for each sample, shape (batch,).
        batches: the samples, in batches that fit into memory.
        least_loss: a lower bound on every loss.
        known: "public" or "synthetic" where the data is known to be that; empty where the user has to declare it.
    """

    module: nn.Module
    losses: Losses
    batches: Sequence[Batch]
    least_loss: float = 0.0
    known: str = ""


def logits(module: nn.Module, inputs: Batch) -> torch.Tensor:
    """Returns the module's output for inputs that are one tensor, or a dictionary of keyword arguments."""
    scores: torch.Tensor = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    return scores


def cross_entropy(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Returns the cross-entropy of the module's logits, one number for each sample.

    `batch` is a pair (inputs, labels).
    """
    inputs, labels = batch
    return nn.functional.cross_entropy(logits(module, inputs), labels, reduction="none")


def mlp_digits(width: int, samples: int | None, seed: int) -> Task:
    """Returns a task, model, losses and samples: a tanh network of 64, `width` and 10 units on handwritten digits.

    It has d = 75 width + 10 weights. There are `samples` digits, in an order that `seed` draws (all 1,797 if None). The
    loss is cross-entropy, the initialisation is PyTorch's from `seed`, in float64. Raises PreconditionError without
    scikit-learn.
    """
    features, labels = (torch.as_tensor(part[:samples]) for part in datasets.digits(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10)).double().eval()
    return Task(
        module=module,
        losses=cross_entropy,
        batches=list(zip(torch.split(features, _DIGITS_AT_ONCE), torch.split(labels, _DIGITS_AT_ONCE), strict=True)),
        known="public",
    )
