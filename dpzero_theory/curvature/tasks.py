"""What is measured: a module, its per-sample losses and its samples. And a small network on digits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dpzero_theory import datasets
from dpzero_theory.curvature.objective import Batch, Losses

BATCH = 2048


@dataclass(frozen=True, kw_only=True)
class Task:
    """module in eval mode, losses(module, batch) -> (batch,), batches, a lower bound on every loss, and whether the
    data is known to be public or synthetic whatever the user says ('' where it is not known)."""

    module: nn.Module
    losses: Losses
    batches: Sequence[Batch]
    least_loss: float = 0.0
    known: str = ""


def logits(module: nn.Module, inputs: Batch) -> torch.Tensor:
    """Of the module; inputs: a tensor, or a dictionary of what the module takes by name."""
    found: torch.Tensor = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    return found


def cross_entropy(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Of the module's logits, one per sample; batch: (inputs, labels)."""
    inputs, labels = batch
    return nn.functional.cross_entropy(logits(module, inputs), labels, reduction="none")


def mlp_digits(width: int, samples: int | None, seed: int) -> Task:
    """64 - WIDTH - 10 with tanh, cross-entropy, PyTorch's initialisation from `seed`, float64: d = 75 WIDTH + 10.

    On `samples` random digits (default: all). Raises PreconditionError without scikit-learn.
    """
    features, labels = (torch.as_tensor(part[:samples]) for part in datasets.digits(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10)).double().eval()
    return Task(
        module=module,
        losses=cross_entropy,
        batches=list(zip(torch.split(features, BATCH), torch.split(labels, BATCH), strict=True)),
        known="public",
    )
