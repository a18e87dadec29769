"""The engine equals the line-by-line algorithms on the same directions and noise, for every lane."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpzero_theory.optim import reference
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import sample_gaussian, sample_sphere
from dpzero_theory.synthetic import engine, first_order
from dpzero_theory.synthetic.captured import Captured
from dpzero_theory.synthetic.first_order import dpgd
from dpzero_theory.synthetic.lanes import Lanes, blocks, from_array
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum
from dpzero_theory.synthetic.products import step_loop

Array = NDArray[np.float64]
TOLERANCE = 1e-9


def quadratic(seed: int, n: int, d: int, mode: str) -> Quadratic:
    rng = np.random.default_rng(seed)
    return Quadratic(1 + rng.standard_normal((n, d)), paper_spectrum(mode, d))


def lanes(seed: int, count: int, longest: int) -> Lanes:
    """Random parameters; clipping from never to always, and noise from none to dominant."""
    rng = np.random.default_rng(seed)
    noise_std = np.where(rng.random(count) < 0.2, 0.0, 10 ** rng.uniform(-3, 1, count))
    return Lanes.of(
        steps=rng.integers(1, longest + 1, count),
        step_size=10 ** rng.uniform(-4, 0, count),
        clip=10 ** rng.uniform(-2, 3, count),
        noise_std=noise_std,
    )


def runs(method: Callable[..., reference.Run], x0: Array, grid: Lanes, u: Array | None, **same: Any) -> list[Array]:
    """The trajectory (T + 1, d) of each lane, by the reference."""
    found = []
    for lane in range(len(grid)):
        options: dict[str, Any] = {
            "steps": int(grid.steps[lane]),
            "step_size": float(grid.step_size[lane]),
            "clip": float(grid.clip[lane]),
            "noise_std": float(grid.noise_std[lane]),
            "noise": SeededNoise(7),
            **same,
        }
        if u is not None:
            options |= {"directions": u[: grid.steps[lane]], "smoothing": float(grid.smoothing[lane])}
        trajectory = method(x0=x0, **options).trajectory
        assert trajectory is not None
        found.append(trajectory)
    return found


def close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


CASES = [
    # seed, n, d, mode, start, block
    (1, 1, 1, "a", 0.0, 128),
    (2, 7, 3, "b", 5.0, 4),
    (3, 200, 20, "c", 0.0, 128),
    (4, 50, 60, "a", -2.0, 7),
    (5, 300, 40, "b", 0.0, 1),
]


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
    """A grid on which alpha C and alpha sigma coincide; from far away all samples clip, near them some do not."""
    problem, x0 = quadratic(6, 40, 8, "b"), np.full(8, 8.0)
    grid = Lanes.grid(
        steps=(5, 60), step_sizes=(0.03, 0.1, 0.3), clips=(0.3, 1.0, 3.0, 10.0), noise_std=lambda _, clip: 0.05 * clip
    )
    leader = first_order._leaders(grid)
    followers = np.flatnonzero(leader != np.arange(len(grid)))
    assert len(followers) == 2 * 4  # for each T 12 products alpha C, 8 different
    expected = runs(reference.dpgd, x0, grid, None, problem=problem)
    apart = [np.abs(expected[lane] - expected[leader[lane]]).max(axis=1) > 1e-9 for lane in followers]
    first = [int(path.argmax()) if path.any() else -1 for path in apart]
    assert {-1, 1} < set(first)  # some never part, some at once, some in between
    standard = SeededNoise(7)
    outcome = dpgd(problem, x0, grid, noise=lambda k: standard.gaussian(1.0, (k, 8)))
    close(outcome.last, np.array([path[-1] for path in expected]))
    close(outcome.average, np.array([path[:-1].mean(axis=0) for path in expected]))
    close_forms(outcome, problem, expected, [problem.center])


def test_float32_products_change_no_digit_that_is_kept() -> None:
    """DP-GD on 60 random lanes, 300 steps, n = 500: within 2e-6 of float64, where rows keep four digits."""
    problem = quadratic(8, 500, 30, "b")
    grid, noise = lanes(8, 60, 300), np.random.default_rng(1).standard_normal((300, 30))
    exact, mixed = (
        dpgd(problem, np.zeros(30), grid, noise=from_array(noise), product_dtype=dtype)
        for dtype in (None, torch.float32)
    )
    np.testing.assert_allclose(mixed.gradient_squared, exact.gradient_squared, rtol=2e-6)


def close_forms(outcome: engine.Outcome, problem: Quadratic, expected: list[Array], centers: list[Array]) -> None:
    for index, center in enumerate(centers):
        offsets = [run[:-1] - center for run in expected]
        gradients = [((problem.spectrum * z) ** 2).sum(axis=1).mean() for z in offsets]
        excess = [(problem.spectrum * z * z).sum(axis=1).mean() / 2 for z in offsets]
        close(outcome.gradient_squared[index], np.array(gradients))
        close(outcome.excess[index], np.array(excess))


def test_the_grid_of_lanes_and_its_blocks() -> None:
    grid = Lanes.grid(steps=[20, 10], step_sizes=[0.1, 1.0], clips=[1.0, 2.0, 3.0], noise_std=lambda t, c: t * c)
    assert len(grid) == 12
    assert grid.steps.tolist() == [20] * 6 + [10] * 6
    assert grid.clip[:4].tolist() == [1.0, 2.0, 3.0, 1.0]
    assert grid.noise_std[-1] == 30.0
    assert blocks(grid.steps, 8) == [(0, 8), (8, 10), (10, 18), (18, 20)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", 1.5),
        ("step_size", 0),
        ("clip", -1),
        ("noise_std", -1),
        ("smoothing", float("nan")),
    ],
)
def test_lanes_refuse_what_no_run_could_use(name: str, value: float) -> None:
    good: dict[str, Any] = {"steps": 1, "step_size": 1, "clip": 1, "noise_std": 0, "smoothing": 1}
    with pytest.raises(ValueError, match=name):
        Lanes.of(**{**good, name: value})
    with pytest.raises(ValueError, match="one-dimensional"):
        Lanes.of(**{**good, "clip": np.ones((2, 2))})


def test_a_stream_that_is_too_short_is_noticed() -> None:
    problem = quadratic(1, 5, 2, "a")
    u = sample_sphere(np.random.default_rng(0), 3, 2)
    with pytest.raises(ValueError, match="rows must number"):
        engine.dpzero(
            problem,
            np.zeros(2),
            Lanes.of(steps=4, step_size=1, clip=1, noise_std=0),
            directions=from_array(u),
            noise=from_array(np.zeros(4)),
        )


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_loop_gives_what_the_loop_gives_for_new_values_and_shapes() -> None:
    captured = Captured(step_loop)
    for seed, (steps, n, count) in enumerate([(5, 50, 3), (5, 50, 3), (2, 50, 4)]):
        rng = np.random.default_rng(seed)
        given = [
            torch.as_tensor(values, device="cuda")
            for values in (
                np.sort(rng.standard_normal((steps, n)), axis=1),
                rng.standard_normal((steps, n + 1)),
                rng.standard_normal((steps, count)),
                rng.standard_normal((steps, steps)),
                rng.random(count),
                rng.random((steps, count)),
                rng.standard_normal((steps, count)),
            )
        ]
        torch.testing.assert_close(captured(*given), step_loop(*given), rtol=1e-12, atol=1e-12)
    assert len(captured._recorded) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_what_the_cpu_gives_for_dpgd() -> None:
    problem, grid = quadratic(3, 200, 20, "c"), lanes(3, 12, 60)
    standard = np.random.default_rng(4).standard_normal((60, 20))
    found = [dpgd(problem, np.zeros(20), grid, noise=from_array(standard), device=device) for device in ("cpu", "cuda")]
    close(found[1].last, found[0].last)
    close(found[1].gradient_squared, found[0].gradient_squared)
