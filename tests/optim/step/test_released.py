"""Tests of what the weights show of the sum over a batch before its noise: only what is released."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import Run
from tests.optim.small import N, contributions, losses, plan

WIDTH = 4096


class Wide(nn.Module):
    def __init__(self, dtype: torch.dtype, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)) * start).to(dtype))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.weight.to(features)


def wide_run(dtype: torch.dtype, start: float, **changes: Any) -> Run:
    rng = np.random.default_rng(2)
    features = torch.tensor(rng.normal(size=(N, WIDTH)))
    rows = TensorDataset(features, torch.sign(features.sum(dim=1)))
    chosen = plan(**{"clip": 300.0, **changes})
    return make_from_seed_not_private(Wide(dtype, start), losses, rows, chosen, seed=4)


@pytest.mark.parametrize(
    ("dtype", "directions"),
    [(torch.float32, 3), (torch.bfloat16, 3)],
)
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_weights_after_are_a_function_of_what_is_released(dtype: torch.dtype, directions: int, start: float) -> None:
    """With the noise that each neighbouring sum would need for the same release, which is as likely as any, they are
    the same to the bit."""
    run = wide_run(dtype, start, directions_per_step=directions)
    rows = run.sums.differences(0, np.arange(N))
    total = contributions(run.plan, rows)
    record = run.step()
    for sums in (total, total + run.plan.rule.levels // 3, total + 1):
        noise = np.array(record.sums, dtype=np.int64) - sums
        assert (np.abs(noise) < 8 * run.plan.scale).all()
        other = wide_run(dtype, start, directions_per_step=directions)
        other.weights.move_(other.plan.moves(0, noise + sums))
        assert torch.equal(other.weights.parameters[0], run.weights.parameters[0])
