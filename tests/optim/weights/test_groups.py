"""Tests of groups of parameters: their step sizes, their smoothings, and what is refused as a group."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpzero_theory.optim.private import make_from_seed_not_private
from tests.optim.small import data, losses, plan, private


class Two(nn.Module):
    """Logistic regression whose weight is in two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.last = nn.Parameter(torch.zeros(4, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return features @ torch.cat([self.first, self.last])


class Scaled(Two):
    """The module `Two` in the coordinates z = x/s of a group with smoothing s."""

    def forward(self, features: Tensor) -> Tensor:
        return features @ torch.cat([SMOOTHING * self.first, self.last])


SMOOTHING = 0.25


@pytest.mark.parametrize("update", ["plain", "momentum:0.9"])
def test_a_group_with_a_smoothing_of_its_own_is_a_change_of_coordinates(update: str) -> None:
    """The differences are the same, and the moves are s times those of z, whose step size is 1/s^2 of that of x."""
    grouped, scaled = Two(), Scaled()
    groups = [{"first": (3.0, SMOOTHING)}, {"first": 3.0 / SMOOTHING**2}]
    for module, given in zip((grouped, scaled), groups, strict=True):
        chosen = plan(groups=given, update=update, directions_per_step=2, smoothing=0.3)
        make_from_seed_not_private(module, losses, data(), chosen, seed=3).run()
    assert grouped.first.abs().min() > 1e-3
    assert torch.allclose(grouped.first, SMOOTHING * scaled.first, rtol=1e-5)
    assert torch.allclose(grouped.last, scaled.last, rtol=1e-5)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"frist": 2.0}, "groups must match trainable parameters' names; got 'frist'"),
        ({"*": -1.0}, r"groups\['\*'\], step size must be"),
        ({"*": (1.0, 0.0)}, r"groups\['\*'\], smoothing must be"),
        ({"*": (1.0, float("nan"))}, r"groups\['\*'\], smoothing must be"),
        ({"*": (1.0, 1.0, 1.0)}, r"groups\['\*'\] must be a number or two, of step size and smoothing; got \(1"),
    ],
)
def test_a_group_that_is_none_is_refused(tmp_path: Path, groups: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        private(tmp_path / "run", Two(), groups=groups)
    assert not (tmp_path / "run").exists()
