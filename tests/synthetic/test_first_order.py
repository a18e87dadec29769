"""Tests that DP-GD on many settings at once equals the line-by-line algorithm."""

import numpy as np
import pytest
import torch

from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.synthetic import first_order
from dpzero_theory.synthetic.first_order import dpgd
from dpzero_theory.synthetic.lanes import Lanes
from tests.optim import reference
from tests.synthetic.small import CASES, close, close_forms, from_array, lanes, quadratic, runs


@pytest.mark.parametrize(("seed", "n", "d", "mode", "start", "block"), CASES)
def test_first_order_lanes_equal_the_reference(seed: int, n: int, d: int, mode: str, start: float, block: int) -> None:
    problem = quadratic(seed, n, d, mode)
    grid, x0 = lanes(seed, 12, 40), np.full(d, start)
    other = np.random.default_rng(seed).standard_normal(d)
    expected = runs(reference.dpgd, x0, grid, None, problem=problem)
    standard = SeededNoise(7)
    outcome = dpgd(problem, x0, grid, noise=lambda k: standard.gaussian(1.0, (k, d)), centers=[other])
    close(outcome.last, np.array([run[-1] for run in expected]))
    close(outcome.average, np.array([run[:-1].mean(axis=0) for run in expected]))
    close_forms(outcome, problem, expected, [problem.center, other])


def test_lanes_that_move_together_part_when_a_sample_comes_near() -> None:
    """Settings whose runs move together part when a sample comes near enough not to be clipped.

    On this grid alpha C and alpha sigma coincide for several settings; from far away all samples are clipped, near them
    some are not.
    """
    problem, x0 = quadratic(6, 40, 8, "b"), np.full(8, 8.0)
    grid = Lanes.grid(
        steps=(5, 60), step_sizes=(0.03, 0.1, 0.3), clips=(0.3, 1.0, 3.0, 10.0), noise_std=lambda _, clip: 0.05 * clip
    )
    leader = first_order._leaders(grid)
    followers = np.flatnonzero(leader != np.arange(len(grid)))
    assert len(followers) == 2 * 4  # For each number of steps there are 12 products alpha C, of which 8 are different
    expected = runs(reference.dpgd, x0, grid, None, problem=problem)
    apart = [np.abs(expected[lane] - expected[leader[lane]]).max(axis=1) > 1e-9 for lane in followers]
    first = [int(path.argmax()) if path.any() else -1 for path in apart]
    assert {-1, 1} < set(first)  # Some pairs of runs never part, some part at once, and some in between
    standard = SeededNoise(7)
    outcome = dpgd(problem, x0, grid, noise=lambda k: standard.gaussian(1.0, (k, 8)))
    close(outcome.last, np.array([path[-1] for path in expected]))
    close(outcome.average, np.array([path[:-1].mean(axis=0) for path in expected]))
    close_forms(outcome, problem, expected, [problem.center])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_what_the_cpu_gives_for_dpgd() -> None:
    problem, grid = quadratic(3, 200, 20, "c"), lanes(3, 12, 60)
    standard = np.random.default_rng(4).standard_normal((60, 20))
    found = [dpgd(problem, np.zeros(20), grid, noise=from_array(standard), device=device) for device in ("cpu", "cuda")]
    close(found[1].last, found[0].last)
    close(found[1].gradient_squared, found[0].gradient_squared)
