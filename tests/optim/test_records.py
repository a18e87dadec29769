"""What is taken as data, and the batch of some of its records."""

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from dpzero_theory.optim.records import fetcher, require_data, sample

PLACES = np.array([1, 4, 7])


class Rows(Dataset[tuple[int, int]]):
    """Ten records (i, i^2)."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index**2


class Batched(Rows):
    """Rows that hands out many records at a time, as `datasets` does; one at a time is an error."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        raise AssertionError("asked for one record")

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [(i, i**2) for i in indices]


@pytest.mark.parametrize(
    "data", [Rows(), Batched(), [(i, i**2) for i in range(10)], tuple((i, i**2) for i in range(10))]
)
def test_records_come_in_the_order_asked_for(data: Any) -> None:
    require_data(data)
    first, second = fetcher(data, None)(PLACES)
    assert (first.tolist(), second.tolist()) == ([1, 4, 7], [1, 16, 49])


def test_tensors_are_indexed_at_once_and_a_collate_is_used() -> None:
    data = TensorDataset(torch.arange(10.0), torch.arange(10) * 2)
    values, doubled = fetcher(data, None)(PLACES)
    assert (values.tolist(), doubled.tolist()) == ([1.0, 4.0, 7.0], [2, 8, 14])
    assert fetcher(data, len)(PLACES) == 3
    assert fetcher(data, default_collate)(PLACES)[1].tolist() == [2, 8, 14]


@pytest.mark.parametrize(
    "bad", [None, 3, (torch.zeros(4), torch.zeros(4)), {"x": [1]}, "text", iter([1]), DataLoader(Rows(), batch_size=2)]
)
def test_what_is_no_map_style_data_set_is_refused_in_one_line(bad: object) -> None:
    with pytest.raises(ValueError, match=r"^data must be a map-style data set.*got \w+$"):
        require_data(bad)


class Drawn(Rows):
    """Reads differently each time."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, next(DRAWS)


def taken_apart(records: Any) -> list[int]:
    return [record.pop("value") for record in records]


DRAWS = count()


def test_a_sample_is_read_once_and_numbered_anew() -> None:
    fetch, _ = sample(Drawn(), None, np.array([7, 2]))
    assert fetch(np.array([1, 0, 1]))[0].tolist() == [2, 7, 2]
    assert fetch(np.array([1]))[1].tolist() == fetch(np.array([1]))[1].tolist()
    tensors, _ = sample(TensorDataset(torch.arange(10.0)), None, np.array([7, 2]))
    assert tensors(np.array([1, 0]))[0].tolist() == [2.0, 7.0]


def test_a_collate_function_may_take_records_apart() -> None:
    fetch, _ = sample([{"value": 3}, {"value": 4}], taken_apart, np.array([1, 0]))
    assert [fetch(np.array([0, 1])) for _ in range(2)] == [[4, 3], [4, 3]]


@pytest.mark.parametrize(
    ("record", "length"),
    [
        (3, 1),
        ("words", 5),
        ([1, 2, 3], 3),
        ({"ids": [1, 2], "label": 0}, 3),
        ((torch.zeros(2, 3), torch.tensor(1)), 7),
        ((np.zeros(4), "ab"), 6),
    ],
)
def test_how_long_records_are(record: Any, length: int) -> None:
    assert sample([record], None, np.array([0]))[1] == [length]
