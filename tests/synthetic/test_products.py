"""Tests that inner products over blocks of coordinates add up, and give the quadratic forms of a path's points."""

import numpy as np
import pytest
import torch

from dpzero_theory.synthetic.products import Products, _blocked_sums, _sort_rows, form_path, products

STEPS, N, D, LANES = 6, 9, 10, 4


def inputs(vector: bool) -> dict[str, torch.Tensor | None]:
    draw = torch.Generator().manual_seed(5)
    shapes = {"w": (STEPS, D), "points": (N, D), "y": (D, LANES), "noise": (STEPS, D)}
    made: dict[str, torch.Tensor | None] = {
        name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()
    }
    return made if vector else {**made, "noise": None}


def part(values: dict[str, torch.Tensor | None], metric: torch.Tensor, at: slice) -> Products:
    w, points, y, noise = (values[name] for name in ("w", "points", "y", "noise"))
    assert w is not None
    assert points is not None
    assert y is not None
    lanes = [(y[at], None if noise is None else noise[:, at]), (2 * y[at], None)]
    return products(w[:, at], points[:, at], lanes, [metric[at]])


@pytest.mark.parametrize("vector", [False, True])
def test_forms_along_a_path_are_those_of_its_points(vector: bool) -> None:
    values, metric = inputs(vector), torch.rand(D, dtype=torch.float64)
    given = part(values, metric, slice(0, D))
    draw = torch.Generator().manual_seed(6)
    move = torch.randn(STEPS, LANES, generator=draw, dtype=torch.float64)
    push = torch.rand(LANES, generator=draw, dtype=torch.float64)
    w, y, noise = values["w"], values["y"], values["noise"]
    assert w is not None
    assert y is not None
    paths = [form_path(*of, move, push).numpy() for of in zip(given.starts[0], given.grams, strict=True)]
    own = given.starts[0][0].own(push).numpy()
    drift = torch.zeros_like(y)
    for t in range(STEPS + 1):
        np.testing.assert_allclose(paths[0][t], (y**2).sum(dim=0), rtol=1e-10)
        np.testing.assert_allclose(paths[1][t], (metric[:, None] * y**2).sum(dim=0), rtol=1e-10)
        if t < STEPS:
            start = values["y"]
            assert start is not None
            np.testing.assert_allclose(own[t], w[t] @ (start - drift), rtol=1e-10)
            y = y - w[t][:, None] * move[t]
            if noise is not None:
                y = y - noise[t][:, None] * push
                drift = drift + noise[t][:, None] * push


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
