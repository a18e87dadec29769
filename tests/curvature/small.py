"""Small problems whose Hessians can be written out, shared by the tests of this folder."""

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.intervals import Interval
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.spectrum import Effort

EFFORT = Effort(search=30, probes=12, steps=16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_network(samples: int = 30) -> Objective:
    """Returns the losses of a network of 64, 2 and 10 units (d = 160) on digits, in batches of 20 and a rest."""
    task = tasks.mlp_digits(2, samples, 0)
    features, labels = task.batches[0]
    parts = list(zip(torch.split(features, 20), torch.split(labels, 20), strict=True))
    return Objective(task.module, task.losses, parts)


def full_hessian(objective: Objective, x: torch.Tensor) -> torch.Tensor:
    """Returns the full Hessian of the mean loss at x, by torch's double backward on the flat vector.

    The code under test differentiates forward over reverse, which is another code path.
    """
    call = objective._call

    def value(at: torch.Tensor) -> torch.Tensor:
        weights = objective.unflatten(at)
        return (
            sum((functional_call(call, weights, (batch,)).sum() for batch in objective.batches), torch.zeros(()))
            / objective.n
        )

    return torch.autograd.functional.hessian(value, x)  # type: ignore[no-untyped-call, no-any-return]


class Weights(nn.Module):
    """A module that has a bare vector, `start` at first, as its only parameter."""

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.as_tensor(start))


def nearby(x: torch.Tensor, radius: float, source: torch.Generator) -> torch.Tensor:
    """Returns x plus a random vector uniform on the sphere of this radius, drawn with `source`."""
    z = torch.randn(x.shape, generator=source, dtype=x.dtype)
    return x + z * (radius / z.norm())


def contains(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high
