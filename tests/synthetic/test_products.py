"""Inner products of blocks of coordinates add up, and forms along a path are the forms of its points."""

import numpy as np
import pytest
import torch

from dpzero_theory.synthetic.products import Products, form_path, products

STEPS, N, D, LANES = 6, 9, 10, 4


def inputs(vector: bool) -> dict[str, torch.Tensor | None]:
    draw = torch.Generator().manual_seed(5)
    shapes = {"w": (STEPS, D), "points": (N, D), "y": (D, LANES), "noise": (STEPS, D)}
    made: dict[str, torch.Tensor | None] = {
        name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()
    }
    return made if vector else {**made, "noise": None}


def part(values: dict[str, torch.Tensor | None], metric: torch.Tensor, center: torch.Tensor, at: slice) -> Products:
    w, points, y, noise = (values[name] for name in ("w", "points", "y", "noise"))
    assert w is not None
    assert points is not None
    assert y is not None
    return products(
        w[:, at],
        points[:, at],
        y[at],
        None if noise is None else noise[:, at],
        [(center[at], metric[at]), (torch.zeros(D, dtype=torch.float64)[at], None)],
    )


@pytest.mark.parametrize("vector", [False, True])
def test_blocks_of_coordinates_add_up(vector: bool) -> None:
    values, metric, center = inputs(vector), torch.rand(D, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    whole = part(values, metric, center, slice(0, D))
    pieces = [part(values, metric, center, at) for at in (slice(0, 3), slice(3, 4), slice(4, D))]
    added = pieces[0]
    added += pieces[1]
    added += pieces[2]
    torch.testing.assert_close(added.data, whole.data)
    torch.testing.assert_close(added.own, whole.own)
    for mine, other in zip(added.forms, whole.forms, strict=True):
        for name, value in vars(mine).items():
            expected = getattr(other, name)
            assert (value is None) == (expected is None)
            if value is not None:
                torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("vector", [False, True])
def test_forms_along_a_path_are_those_of_its_points(vector: bool) -> None:
    values, metric, center = inputs(vector), torch.rand(D, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    given = part(values, metric, center, slice(0, D))
    draw = torch.Generator().manual_seed(6)
    move = torch.randn(STEPS, LANES, generator=draw, dtype=torch.float64)
    push = torch.rand(LANES, generator=draw, dtype=torch.float64)
    w, y, noise = values["w"], values["y"], values["noise"]
    assert w is not None
    assert y is not None
    paths = [form_path(form, move, push).numpy() for form in given.forms]
    for t in range(STEPS + 1):
        offset = y - center[:, None]
        np.testing.assert_allclose(paths[0][t], (metric[:, None] * offset**2).sum(dim=0), rtol=1e-10)
        np.testing.assert_allclose(paths[1][t], (y**2).sum(dim=0), rtol=1e-10)
        if t < STEPS:
            y = y - w[t][:, None] * move[t]
            if noise is not None:
                y = y - noise[t][:, None] * push
