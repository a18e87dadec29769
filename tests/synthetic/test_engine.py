"""Tests that the engine equals the line-by-line algorithms on the same directions and noise, for every setting."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import DIRECTIONS, sample_gaussian, sample_sphere
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Draw, Lanes, directions_of
from tests.optim import reference
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
    # The smoothing is large enough for the reference's differences of losses to keep ten digits.
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


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("case", "several"), [(0, 3), (1, 2), (2, 64), (3, 5), (4, 7)])
def test_lanes_of_several_directions_equal_the_reference(direction: str, case: int, several: int) -> None:
    """Runs with K directions a step equal the reference.

    A sample's K differences are clipped jointly, there are K noises, and the step is alpha/K. Every law of directions
    is tested, also with K > d and K > block.
    """
    seed, n, d, mode, start, block = CASES[case]
    problem, x0 = quadratic(seed, n, d, mode), np.full(d, start)
    grid = lanes(seed, 8, 8)
    grid = Lanes.of(steps=grid.steps, step_size=grid.step_size, clip=grid.clip, noise_std=grid.noise_std, smoothing=0.1)
    u = directions_of(direction, np.random.default_rng(seed), d)(8 * several)
    expected = runs(reference.dpzero, x0, grid, u, problem=problem, directions_per_step=several)
    standard = SeededNoise(7)
    outcome = engine.dpzero(
        problem,
        x0,
        grid,
        directions=from_array(u),
        noise=lambda k: standard.gaussian(1.0, k),
        directions_per_step=several,
        block=block,
    )
    close(outcome.last, np.array([run[-1] for run in expected]))
    close(outcome.average, np.array([run[:-1].mean(axis=0) for run in expected]))
    close_forms(outcome, problem, expected, [problem.center])


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize(("method", "several"), [("dpzero", 1), ("dpzero", 3), ("dpgd_0th", 1)])
def test_the_difference_rules_equal_the_reference(difference: str, method: str, several: int) -> None:
    """Each rule of the engine equals the reference's by that rule, and forward differences show their second order."""
    seed, n, d, mode, start, block = CASES[0]
    problem, x0 = quadratic(seed, n, d, mode), np.full(d, start)
    grid = lanes(seed, 8, 20)
    grid = Lanes.of(steps=grid.steps, step_size=grid.step_size, clip=grid.clip, noise_std=grid.noise_std, smoothing=0.3)
    given = grid if difference != "exact" else replace(grid, smoothing=np.zeros(len(grid)))
    u = sample_sphere(np.random.default_rng(seed), 20 * several, d)
    same = {"directions_per_step": several} if method == "dpzero" else {}
    expected = runs(getattr(reference, method), x0, given, u, problem=problem, difference=difference, **same)

    def last(rule: str) -> Array:
        standard = SeededNoise(7)
        shape = (lambda k: k) if method == "dpzero" else (lambda k: (k, d))
        outcome = getattr(engine, method)(
            problem, x0, grid, directions=from_array(u), noise=lambda k: standard.gaussian(1.0, shape(k)), block=block,
            difference=rule, **same,
        )  # fmt: skip
        found: Array = outcome.last
        return found

    close(last(difference), np.array([run[-1] for run in expected]))
    assert bool(np.abs(last(difference) - last("central")).max() > 1e-6) is (difference == "forward")


def test_algorithm_1_has_one_direction_a_step() -> None:
    draw = from_array(np.ones((9, 3)))
    with pytest.raises(ValueError, match="directions_per_step must be an integer with 1 <= directions_per_step <= 1"):
        engine.dpgd_0th(
            quadratic(1, 4, 3, "a"), np.zeros(3), lanes(1, 2, 3), directions=draw, noise=draw, directions_per_step=2
        )


def test_sweeps_that_share_directions_are_what_each_is_alone() -> None:
    """Sets of runs that share their directions give what each gives alone.

    They have other methods, starts, settings and lengths, and the short ones end first.
    """
    problem, d = quadratic(3, 200, 20, "c"), 20
    parts = [(False, 0.0, 60), (True, 1.0, 25), (True, 0.0, 60), (False, -1.0, 7)]

    def sweep(number: int) -> engine.Sweep:
        vector, start, longest = parts[number]
        rng = np.random.default_rng(number)
        draw = lambda count: rng.standard_normal((count, d) if vector else count)  # noqa: E731
        return engine.Sweep(np.full(d, start), lanes(number, 9, longest), vector, draw)

    def directions() -> Draw:
        return directions_of("sphere", np.random.default_rng(5), d)

    together = engine.run_together(problem, [sweep(i) for i in range(4)], directions=directions(), block=16)
    for number, found in enumerate(together):
        (alone,) = engine.run_together(problem, [sweep(number)], directions=directions())
        close(found.last, alone.last)
        close(found.average, alone.average)
        close(found.gradient_squared, alone.gradient_squared)
        close(found.excess, alone.excess)


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
