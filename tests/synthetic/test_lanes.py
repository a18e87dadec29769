"""Tests of the settings of many runs: grids, their order and what they refuse."""

from typing import Any

import numpy as np
import pytest
import torch

from dpzero_theory.synthetic.lanes import Lanes, blocks, drawn_on, on_sphere


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_streams_drawn_on_a_device_are_normal_and_a_function_of_the_key(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    whole, part, other = (drawn_on(device, key, 8) for key in ([1, 0], [1, 0], [1, 1]))
    rows = torch.as_tensor(whole(10_000))
    assert rows.shape == (10_000, 8)
    assert torch.equal(torch.as_tensor(part(10_000)), rows)
    values = rows.cpu().numpy().ravel()
    limit = 4.5 / np.sqrt(len(values))  # The limit is 4.5 standard errors for each of four numbers.
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        assert abs((values**power).mean() - moment) < limit * np.sqrt(variance)
    assert abs((values * torch.as_tensor(other(10_000)).cpu().numpy().ravel()).mean()) < limit
    u = torch.as_tensor(on_sphere(drawn_on(device, [1, 0], 8))(100))
    torch.testing.assert_close(u.square().sum(dim=1).cpu(), torch.full((100,), 8.0, dtype=torch.float64))
    torch.testing.assert_close(u * rows[:100].norm(dim=1, keepdim=True) / 8**0.5, rows[:100])
