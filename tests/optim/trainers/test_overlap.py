"""Tests of the comparison of two data sets, by what a model is given of their records."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from dpzero_theory.optim.trainers.overlap import Inputs, count

FEATURES = torch.arange(60.0).reshape(20, 3)
ROWS = [{"input_ids": [5, 6 + i, 7], "attention_mask": [1, 1, 1], "labels": i % 2, "idx": i} for i in range(20)]
OTHERS = [{**row, "input_ids": [4, *row["input_ids"][1:]]} for row in ROWS]  # type: ignore[misc]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([*OTHERS, *ROWS[:2]])


def both(data: Any, others: Any, **given: Any) -> int:
    inputs = Inputs(**given)
    return count(inputs.digests(data), inputs.digests(others))


def test_copies_orders_wrappers_and_other_types_are_found() -> None:
    tensors = TensorDataset(FEATURES, torch.zeros(20))
    arrays = [(row.numpy().astype(np.float64), 1) for row in FEATURES]
    lists = [(row.tolist(), "a label") for row in FEATURES]
    for others in (
        tensors,
        arrays,
        lists,
        Subset(tensors, range(20)),
        ConcatDataset([Subset(tensors, range(20))]),
    ):
        assert both(tensors, others) == 20
        assert both(others, tensors) == 20
    assert both(tensors, Subset(tensors, [3, 7])) == 2
    assert both(tensors, TensorDataset(FEATURES + 3, torch.zeros(20))) == 19


def test_texts_are_compared_by_their_tokens() -> None:
    """Texts are compared by their tokens.

    Labels, numbers of records, masks, types and padding, on either side, do not count.
    """
    padded = [
        {
            "input_ids": torch.tensor([0, 0, *row["input_ids"], 0]),  # type: ignore[misc]
            "attention_mask": torch.tensor([0, 0, 1, 1, 1, 0]),
            "token_type_ids": torch.zeros(6),
            "label": 5,
        }
        for row in ROWS
    ]
    assert both(ROWS, padded) == 20
    unmasked = [{"input_ids": row["input_ids"]} for row in padded]
    assert both(ROWS, unmasked) == 0
    assert both(ROWS, unmasked, padding=0) == 20
    assert both(ROWS, OTHERS) == 0
    assert both(ROWS, [*OTHERS, ROWS[4]]) == 1
    assert both(ROWS, Stream()) == 2


def test_columns_that_the_model_does_not_take_are_left_out() -> None:
    one = [{"pixels": np.full((2, 2), i, np.uint8), "file": f"a/{i}", "target": i} for i in range(4)]
    other = [{"pixels": torch.full((2, 2), float(i)), "file": f"b/{i}", "target": -i} for i in range(6)]
    assert both(one, other) == 0
    assert both(one, other, names=("pixels",)) == 4
    assert both(["a", "b"], ["b", "c"]) == 1
    ragged = [{"words": [["a"], ["b", "c"]], "spans": [[1], [2, 3]]}]
    assert both(ragged, [{"words": [["a"], ["b", "d"]], "spans": [[1], [2, 3]]}]) == 0


def test_keys_differ_so_that_digests_tell_nothing() -> None:
    assert count(Inputs().digests(ROWS), Inputs().digests(ROWS)) == 0


def test_what_cannot_be_compared_is_said_and_every_type_of_tensor_can() -> None:
    with pytest.raises(ValueError, match="^records can be compared|^records must .*can be compared"):
        Inputs().digests([lambda: 1])
    data = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    for dtype in (torch.bfloat16, torch.bool, torch.int8):
        assert both(data.to(dtype), data) == 2
