"""Tests of the trace of an evaluation: what each operation gave for every record."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dpzero_theory.optim.losses.trace import Trace

ROWS = 4
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
W = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))


def traced(work: Callable[[Tensor], object], x: Tensor = X) -> Trace:
    with Trace(len(x)) as trace:
        work(x)
    return trace


def test_equal_operations_on_equal_shapes_are_equal_traces() -> None:
    assert traced(lambda x: x.exp().sum(1)).operations == traced(lambda x: x.exp().sum(1), X + 1).operations
    assert traced(lambda x: x.exp()).operations != traced(lambda x: x.sin()).operations
    assert traced(lambda x: x.exp()).operations != traced(lambda x: x[:2].exp()).operations
    assert traced(lambda x: x.exp()).operations != traced(lambda x: x.double().exp()).operations


@pytest.mark.parametrize(
    ("work", "eps"),
    [
        (lambda x: x.double(), 2.0**-52),
        (lambda x: x + 1, 2.0**-23),
        (lambda x: x.half() + 1, 2.0**-10),
        (lambda x: (x.bfloat16() + 1).float(), 2.0**-7),
        (lambda x: x > 0, 0.0),
    ],
)
def test_the_coarsest_type_of_any_operation_is_seen(work: Callable[[Tensor], object], eps: float) -> None:
    assert traced(work).coarsest == eps


def test_products_that_may_be_of_fewer_bits_are_coarse() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert traced(lambda x: x + 1).coarsest == 2.0**-10
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.unique(x),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_what_makes_the_rest_depend_on_values_is_seen(work: Callable[[Tensor], object]) -> None:
    assert traced(work).reads.startswith("aten.")


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[torch.tensor([1, 0]), torch.tensor([0, 1])],
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.sort(1).values,
        lambda x: torch.nn.functional.cross_entropy(x, torch.zeros(ROWS, dtype=torch.long), reduction="none"),
    ],
)
def test_what_does_not_is_not_named(work: Callable[[Tensor], object]) -> None:
    assert traced(work).reads == ""


APART = {
    "rows": lambda x: x @ W.T,
    "of the weights": lambda x: W * 2,
    "constants": lambda x: torch.linspace(0, 1, ROWS)[:, None] + torch.zeros(ROWS, 3),
    "turned": lambda x: x.T * 2,
    "flat": lambda x: x.flatten() * 2,
    "in turns": lambda x: x.T.reshape(-1) * 2,
    "a mean beside": lambda x: x.mean(),
    "blocks": lambda x: (x[:, None, :].expand(-1, 2, -1).reshape(2 * ROWS, 3)) * 2,
    "complex": lambda x: torch.fft.fft(x, dim=1),
    "nothing": lambda x: x[:0] * 2,
    "memory that nobody wrote": lambda x: torch.empty(ROWS, 3),
}
MIXED = {
    "centred": lambda x: x - x.mean(0),
    "turned and centred": lambda x: (x.T - x.T.mean(1, keepdim=True)) * 2,
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


def test_the_same_rows_in_smaller_batches() -> None:
    first = np.arange(2)
    assert traced(lambda x: x @ W.T).first_difference(traced(lambda x: x @ W.T, X[:2]), first, first) == ""
    assert "div" in traced(lambda x: x / len(x)).first_difference(traced(lambda x: x / len(x), X[:2]), first, first)
    assert traced(lambda x: x + 1).first_difference(traced(lambda x: x * 1), first, first)


def test_one_bit_is_a_difference() -> None:
    """A difference of one bit is seen, in one entry, and in two entries whose changes cancel in the sum."""
    one = X.view(torch.int32)
    for changes in ([(0, 0, 1)], [(0, 0, 1), (0, 1, -1)]):
        other = one.clone()
        for row, column, by in changes:
            other[row, column] += by
        found = traced(lambda x: x * 1, other.view(torch.float32)).first_difference(
            traced(lambda x: x * 1), np.arange(1), np.arange(1)
        )
        assert found == "aten.mul.Tensor"
