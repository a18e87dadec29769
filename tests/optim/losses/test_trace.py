"""Tests of the trace of an evaluation: what each operation gave for every record."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from dpzero_theory.optim.losses.trace import Trace
from torch import Tensor

ROWS = 4
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
W = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))


def traced(work: Callable[[Tensor], object], x: Tensor = X) -> Trace:
    with Trace(len(x)) as trace:
        work(x)
    return trace


APART = {
    "rows": lambda x: x @ W.T,
    "turned": lambda x: x.T * 2,
    "flat": lambda x: x.flatten() * 2,
    "in turns": lambda x: x.T.reshape(-1) * 2,
    "a mean beside": lambda x: x.mean(),
    "blocks": lambda x: (x[:, None, :].expand(-1, 2, -1).reshape(2 * ROWS, 3)) * 2,
    "nothing": lambda x: x[:0] * 2,
    "memory that nobody wrote": lambda x: torch.empty(ROWS, 3),
}
MIXED = {
    "centred": lambda x: x - x.mean(0),
    "a column": lambda x: torch.cat([x[:, :2] * 2, (x[:, 2] / x[:, 2].sum())[:, None]], dim=1),
    "hidden": lambda x: (x - x.mean(0)) * 0 + x,
}


@pytest.mark.parametrize("name", [*APART, *MIXED])
def test_rows_are_found_in_every_layout(name: str) -> None:
    """The numbers of each record are found whatever the layout of a tensor.

    The other record 3 must not change them, and neither must the opposite order of records.
    """
    work = {**APART, **MIXED}[name]
    other = X.clone()
    other[3] += 1
    here, every = np.arange(3), np.arange(ROWS)
    beside = traced(work, other).first_difference(traced(work), here, here)
    turned = traced(work, X.flip(0)).first_difference(traced(work), every[::-1], every)
    assert bool(beside) is (name in MIXED), beside
    assert name in MIXED or turned == ""


def test_changes_that_cancel_in_the_sum_are_a_difference() -> None:
    other = X.view(torch.int32) + torch.tensor([1, -1, 0], dtype=torch.int32)
    found = traced(lambda x: x * 1, other.view(torch.float32))
    assert found.first_difference(traced(lambda x: x * 1), np.arange(1), np.arange(1)) == "aten.mul.Tensor"
