"""Tests of the root mean square of the traces of single samples' Hessians, on losses with known Hessians."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.samples import measure_samples
from dpzero_theory.curvature.spectrum import Effort

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""

EFFORT = Effort(search=2, probes=2, steps=2)


class _Point(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(d, dtype=torch.float64))


def _losses(module: nn.Module, curvatures: torch.Tensor) -> torch.Tensor:
    """Returns losses f_i(x) = sum_j h_ij x_j^2/2, whose Hessians are diag(h_i); `curvatures` are the h_ij."""
    assert isinstance(module, _Point)
    return curvatures @ module.x.square() / 2


def _problem(n: int, d: int) -> tuple[Objective, np.ndarray]:
    rng = np.random.default_rng(0)
    h = rng.standard_normal((n, d)) * rng.uniform(0.5, 1.5, (n, 1)) / np.arange(1, d + 1)
    return Objective(_Point(d).eval(), _losses, [torch.as_tensor(h)]), h


def test_upper_ends_cover_the_root_mean_square() -> None:
    """The upper end of the interval is above the true root mean square as often as stated.

    Of 20 repetitions with 8 of 30 samples at least 16 must be above; at the level 0.975 more are missed once in 9,000
    times.
    """
    objective, h = _problem(30, 20)
    truth = math.sqrt(float((np.abs(h).sum(axis=1) ** 2).mean()))
    covered, middle = 0, []
    for seed in range(20):
        found = measure_samples(objective, objective.start, torch.Generator().manual_seed(seed), 8, EFFORT, 0.95)
        covered += found.trace.high >= truth
        middle.append(found.trace.estimate / truth)
        assert found.count == 8
    assert covered >= 16
    assert 0.95 < float(np.mean(middle)) < 1.2


def test_all_samples_with_all_steps_are_exact() -> None:
    """With all samples and as many Lanczos steps as dimensions the measurement is exact.

    No direction is random any more, and the norm is the largest one.
    """
    objective, h = _problem(4, 6)
    every = Effort(search=6, probes=2, steps=6)
    found = measure_samples(objective, objective.start, torch.Generator().manual_seed(0), 9, every, 0.5)
    assert found.count == 4
    assert found.trace.estimate == pytest.approx(math.sqrt(float((np.abs(h).sum(axis=1) ** 2).mean())), rel=1e-9)
    assert found.norm == pytest.approx(float(np.abs(h).max()), rel=1e-9)
