"""Tests that runs on many settings at once equal the line-by-line algorithms, and of the parts of the engines."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.step.algorithm import clip_jointly
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.synthetic import clipping, engine, first_order
from dpzero_theory.synthetic.captured import Captured
from dpzero_theory.synthetic.first_order import dpgd
from dpzero_theory.synthetic.lanes import Draw, Lanes, blocks, directions_of
from dpzero_theory.synthetic.products import _blocked_sums, _sort_rows, step_loop
from tests.optim import reference
from tests.synthetic.small import CASES, close, close_forms, from_array, lanes, quadratic, runs

Array = NDArray[np.float64]


def against_the_reference(
    method: str, case: int, law: str, steps: int, difference: str = "central", smoothing: float = 0.1, several: int = 1
) -> Array:
    """Require that the runs of an engine equal the reference's, and return their last points. The smoothing is large
    enough for the reference's differences of losses to keep ten digits."""
    seed, n, d, mode, start, block = CASES[case]
    problem, x0 = quadratic(seed, n, d, mode), np.full(d, start)
    grid = replace(lanes(seed, 8, steps), smoothing=np.full(8, smoothing))
    u = directions_of(law, np.random.default_rng(seed), d)(steps * several)
    other = np.random.default_rng(seed).standard_normal(d)
    how: dict[str, Any] = {"difference": difference}
    if several > 1:
        how["directions_per_step"] = several
    given = replace(grid, smoothing=np.zeros(8)) if difference == "exact" else grid
    expected = runs(getattr(reference, method), x0, given, u, problem=problem, **how)
    standard = SeededNoise(7)
    noise = (lambda k: standard.gaussian(1.0, k)) if method == "dpzero" else (lambda k: standard.gaussian(1.0, (k, d)))
    outcome = getattr(engine, method)(
        problem, x0, grid, directions=from_array(u), noise=noise, centers=[other], block=block, **how
    )
    close(outcome.last, np.array([run[-1] for run in expected]))
    close(outcome.average, np.array([run[:-1].mean(axis=0) for run in expected]))
    close_forms(outcome, problem, expected, [problem.center, other])
    last: Array = outcome.last
    return last


@pytest.mark.parametrize("method", ["dpzero", "dpgd_0th"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_zeroth_order_lanes_equal_the_reference(method: str, case: int) -> None:
    against_the_reference(method, case, "sphere" if case % 2 else "gaussian", 60)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("case", "several"), [(0, 3), (1, 2), (2, 64), (3, 5), (4, 7)])
def test_lanes_of_several_directions_equal_the_reference(direction: str, case: int, several: int) -> None:
    """A sample's K differences are clipped jointly, there are K noises, and the step is alpha/K. Every law of
    directions is tested, also with K > d and K > block."""
    against_the_reference("dpzero", case, direction, 8, several=several)


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize(("method", "several"), [("dpzero", 1), ("dpzero", 3), ("dpgd_0th", 1)])
def test_the_difference_rules_equal_the_reference(difference: str, method: str, several: int) -> None:
    """Each rule of the engine equals the reference's by that rule, and forward differences show their second order."""
    mine, central = (
        against_the_reference(method, 0, "sphere", 20, rule, smoothing=0.3, several=several)
        for rule in (difference, "central")
    )
    assert bool(np.abs(mine - central).max() > 1e-6) is (difference == "forward")


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
@pytest.mark.parametrize("method", ["dpzero", "dpgd_0th", "dpgd"])
def test_a_gpu_gives_what_the_cpu_gives(method: str) -> None:
    problem, grid = quadratic(3, 200, 20, "c"), lanes(3, 12, 60)
    u = DIRECTIONS["sphere"].sample(np.random.default_rng(3), 60, 20)
    standard = np.random.default_rng(4).standard_normal((60,) if method == "dpzero" else (60, 20))
    of, found = dpgd if method == "dpgd" else getattr(engine, method), []
    for device in ("cpu", "cuda"):
        drawn = {} if method == "dpgd" else {"directions": from_array(u)}
        found.append(of(problem, np.zeros(20), grid, noise=from_array(standard), device=device, **drawn))
    close(found[1].last, found[0].last)
    close(found[1].gradient_squared, found[0].gradient_squared)


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


@pytest.mark.parametrize("width", [1, 3, 64])
def test_the_mean_of_clipped_vectors(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "_SAMPLES", 7)
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((40, width))
    rows -= rows.mean(axis=0)
    h, clip = rng.standard_normal((width, 6)), np.array([0.01, 0.5, 2.0, 5.0, 10.0, 1e3])
    clipped_mean = clipping.ClippedMean(torch.as_tensor(rows), torch.float64)
    mean, nearest = clipped_mean(torch.as_tensor(h), torch.as_tensor(clip))
    for lane, bound in enumerate(clip):
        vectors = h[:, lane] - rows
        np.testing.assert_allclose(mean[:, lane], clip_jointly(vectors, bound).mean(axis=0), rtol=1e-12, atol=1e-13)
        norms = np.linalg.norm(vectors, axis=1)
        if bound < norms.max():
            assert nearest[lane] == pytest.approx(norms.min())
    assert nearest[-1] == 0


@pytest.mark.parametrize("n", [1, 5, 128, 300])
def test_sums_by_products_are_running_sums(n: int) -> None:
    rows = torch.randn(4, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    torch.testing.assert_close(_blocked_sums(rows), rows.cumsum(dim=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_are_sorted_whatever_they_hold(dtype: torch.dtype) -> None:
    """Rows are sorted whatever they hold.

    They hold equal values, one value, one value so far away that all others share a bin, and only tiny values.
    """
    draw = torch.randn(6, 3000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draw[0] = 2.5
    draw[1] = draw[1].round()
    draw[2, 7] = 1e30
    draw[3] *= 1e-30
    for rows in (draw.to(dtype), draw[:, :1].to(dtype)):
        assert torch.equal(_sort_rows(rows), rows.sort(dim=1).values)


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


def test_blocks_cover_every_step_once_and_no_lane_ends_inside_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        steps, size = rng.integers(1, 60, rng.integers(1, 6)), int(rng.integers(1, 70))
        found = blocks(steps, size)
        assert [t for start, stop in found for t in range(start, stop)] == list(range(steps.max()))
        assert all(stop - start <= size for start, stop in found)
        assert not any(start < end < stop for start, stop in found for end in steps.tolist())


def test_the_longest_come_first_and_the_index_undoes_it() -> None:
    grid = Lanes.of(steps=[3, 1, 3, 2], step_size=[0.1, 0.2, 0.3, 0.4], clip=1, noise_std=0)
    run, back = grid.longest_first()
    assert run.steps.tolist() == [3, 3, 2, 1]
    assert run.step_size.tolist() == [0.1, 0.3, 0.4, 0.2], "lanes of equal length keep their order"
    assert run.take(back).step_size.tolist() == grid.step_size.tolist()
