"""What can be measured: a module, its per-sample losses and its samples; and a small network on digits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dpzero_theory import datasets
from dpzero_theory.curvature.objective import Batch, Losses

_DIGITS_AT_ONCE = 2048


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model to measure.

    Attributes:
        module: in eval mode.
        losses: losses(module, batch) -> one loss per sample, shape (batch,).
        batches: the samples.
        least_loss: a lower bound on every loss.
        known: whether the data is known to be `public` or `synthetic` whatever the user says; empty where it is not.
    """

    module: nn.Module
    losses: Losses
    batches: Sequence[Batch]
    least_loss: float = 0.0
    known: str = ""


def logits(module: nn.Module, inputs: Batch) -> torch.Tensor:
    """The module's output for inputs that are a tensor, or a dictionary of what the module takes by name."""
    found: torch.Tensor = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    return found


def cross_entropy(module: nn.Module, batch: Batch) -> torch.Tensor:
    """The cross-entropy of the module's logits, one per sample; batch: (inputs, labels)."""
    inputs, labels = batch
    return nn.functional.cross_entropy(logits(module, inputs), labels, reduction="none")


def mlp_digits(width: int, samples: int | None, seed: int) -> Task:
    """A network of 64 - WIDTH - 10 neurons with tanh on `samples` random digits (all by default), so d = 75 WIDTH + 10.

    The loss is cross-entropy, the initialisation is PyTorch's from `seed`, in float64. Raises PreconditionError without
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
