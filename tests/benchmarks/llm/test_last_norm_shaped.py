"""Tests of directions of another shape on the pretrained model: the change of coordinates, and the committed rows."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm.last_norm_shaped import Shaped, reported
from benchmarks.training.shaped import POWERS, root


def test_the_weight_starts_where_it_was_and_a_step_moves_it_by_the_metric() -> None:
    """A step of the trained vector by its gradient moves the weight by B times the gradient of the weight."""
    torch.manual_seed(0)
    norm, x = nn.RMSNorm(4), torch.randn(9, 4)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(4))
    before = norm.weight.detach().clone()
    plain = torch.autograd.grad(norm(x).square().sum(), norm.weight)[0]
    by = root(torch.randn(30, 4), -0.5)
    parametrize.register_parametrization(norm, "weight", Shaped(before, by))
    torch.testing.assert_close(norm.weight, before)
    (vector,) = norm.parameters()
    norm(x).square().sum().backward()
    assert vector.grad is not None
    with torch.no_grad():
        vector -= 0.1 * vector.grad
    torch.testing.assert_close(norm.weight, before - 0.1 * by @ by @ plain)


def test_half_of_the_way_to_undoing_the_curvature_gains_four_points() -> None:
    rows = read_rows(RESULTS / "llm_last_norm_shaped")
    table = reported(rows).set_index("power")
    assert set(table.index) == set(POWERS)
    assert rows.groupby(["power", "step_size"]).size().min() >= 3
    gain = table.loc[-0.5, "accuracy"] - table.loc[0.0, "accuracy"]
    assert gain == pytest.approx(4, abs=0.5)
    assert gain > 3 * (table.loc[-0.5, "error"] ** 2 + table.loc[0.0, "error"] ** 2) ** 0.5
