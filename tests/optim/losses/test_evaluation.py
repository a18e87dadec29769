"""Tests of batches that are padded to one shape; only the losses of the true records are returned."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpzero_theory.optim.losses.evaluation import Evaluation, Shape, shape_of
from dpzero_theory.optim.losses.records import fetcher

TEXTS = [torch.arange(1, 4), torch.arange(1, 4) * 10, torch.arange(1, 6)]


def losses(module: nn.Module, batch: Tensor) -> Tensor:
    return batch.float().sum(1)


def evaluation(rows: int | None = None) -> Evaluation:
    fetch = fetcher(TEXTS, lambda records: nn.utils.rnn.pad_sequence(records, batch_first=True))
    return Evaluation(losses, fetch, rows and Shape(rows, shape_of(fetch(np.zeros(rows, np.int64)))))


@pytest.mark.parametrize(("rows", "filled"), [(None, 2), (2, 2), (4, 4)])
def test_a_batch_is_filled_up_and_what_fills_it_is_left_out(rows: int | None, filled: int) -> None:
    found = evaluation(rows)
    batch = found.batch(np.array([1, 0]))
    assert batch.content.tolist() == [[10, 20, 30], [1, 2, 3]] + [[10, 20, 30]] * (filled - 2)
    assert found.losses(nn.Identity(), batch).tolist() == [60.0, 6.0]


def test_another_shape_is_refused_where_a_shape_is_given() -> None:
    assert evaluation().batch(np.array([0, 2])).content.shape == (2, 5)
    with pytest.raises(ValueError, match="batches must have one shape where isolation is 'exact'"):
        evaluation(4).batch(np.array([0, 2]))


def test_a_shape_is_all_but_the_values_of_tensors() -> None:
    one = {"ids": torch.zeros(2, 3), "name": "a"}
    assert shape_of(one) == shape_of({"ids": torch.ones(2, 3), "name": "a"})
    for other in (
        {"ids": torch.zeros(2, 4), "name": "a"},
        {"ids": torch.zeros(2, 3).double(), "name": "a"},
        {"ids": torch.zeros(2, 3), "name": "b"},
        {"ids": torch.zeros(2, 3)},
        [torch.zeros(2, 3), "a"],
    ):
        assert shape_of(one) != shape_of(other)
