"""The engine equals the line-by-line algorithms on the same directions and noise, for every lane."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpzero_theory.optim import reference
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import sample_gaussian, sample_sphere
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Lanes
from tests.synthetic.small import CASES, close, close_forms, from_array, lanes, quadratic, runs

Array = NDArray[np.float64]


@pytest.mark.parametrize("method", ["dpzero", "dpgd_0th"])
@pytest.mark.parametrize(("seed", "n", "d", "mode", "start", "block"), CASES)
def test_zeroth_order_lanes_equal_the_reference(
    method: str, seed: int, n: int, d: int, mode: str, start: float, block: int
) -> None:
    problem = quadratic(seed, n, d, mode)
    grid = lanes(seed, 12, 60)
    x0 = np.full(d, start)
    draw = sample_sphere if seed % 2 else sample_gaussian
    u = draw(np.random.default_rng(seed), 60, d)
    other = np.random.default_rng(seed).standard_normal(d)
    # smoothing large enough for the reference's difference of losses to keep ten digits
    grid = Lanes.of(steps=grid.steps, step_size=grid.step_size, clip=grid.clip, noise_std=grid.noise_std, smoothing=0.1)
    expected = runs(getattr(reference, method), x0, grid, u, problem=problem)
    standard = SeededNoise(7)
    noise = (lambda k: standard.gaussian(1.0, k)) if method == "dpzero" else (lambda k: standard.gaussian(1.0, (k, d)))
    outcome = getattr(engine, method)(
        problem, x0, grid, directions=from_array(u), noise=noise, centers=[other], block=block
    )
    close(outcome.last, np.array([run[-1] for run in expected]))
    close(outcome.average, np.array([run[:-1].mean(axis=0) for run in expected]))
    close_forms(outcome, problem, expected, [problem.center, other])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["dpzero", "dpgd_0th"])
def test_a_gpu_gives_what_the_cpu_gives(method: str) -> None:
    problem, grid = quadratic(3, 200, 20, "c"), lanes(3, 12, 60)
    u = sample_sphere(np.random.default_rng(3), 60, 20)
    shape = (60,) if method == "dpzero" else (60, 20)
    standard = np.random.default_rng(4).standard_normal(shape)
    found = [
        getattr(engine, method)(
            problem, np.zeros(20), grid, directions=from_array(u), noise=from_array(standard), device=device
        )
        for device in ("cpu", "cuda")
    ]
    close(found[1].last, found[0].last)
    close(found[1].gradient_squared, found[0].gradient_squared)
