"""Tests of what is accepted as a data set, and of batches made of some of its records."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from dpzero_theory.optim.losses.evaluation import Evaluation
from dpzero_theory.optim.losses.records import require_data

PLACES = np.array([1, 4, 7])


def batch(data: Any, collate: Any = None) -> Any:
    found = Evaluation(lambda *_: None, data, collate).batch(PLACES)
    assert found.rows == 3
    return found.content


class Rows(Dataset[tuple[int, int]]):
    """A data set of ten records (i, i^2)."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index**2


class Batched(Rows):
    """A data set that returns many records at a time, as the package `datasets` does; asking for one is an error."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        raise AssertionError("asked for one record")

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [(i, i**2) for i in indices]


@pytest.mark.parametrize(
    "data", [Rows(), Batched(), [(i, i**2) for i in range(10)], tuple((i, i**2) for i in range(10))]
)
def test_records_come_in_the_order_asked_for(data: Any) -> None:
    require_data(data)
    first, second = batch(data)
    assert (first.tolist(), second.tolist()) == ([1, 4, 7], [1, 16, 49])


def test_tensors_are_indexed_at_once_and_a_collate_is_used() -> None:
    data = TensorDataset(torch.arange(10.0), torch.arange(10) * 2)
    values, doubled = batch(data)
    assert (values.tolist(), doubled.tolist()) == ([1.0, 4.0, 7.0], [2, 8, 14])
    assert batch(data, len) == 3
    assert batch(data, default_collate)[1].tolist() == [2, 8, 14]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        3,
        (torch.zeros(4), torch.zeros(4)),
        {"x": [1]},
        "text",
        iter([1]),
        DataLoader(Rows(), batch_size=2),
    ],
)
def test_what_is_no_map_style_data_set_is_refused_in_one_line(bad: object) -> None:
    with pytest.raises(ValueError, match=r"^data must be a map-style data set.*got \w+$"):
        require_data(bad)


def test_tables_of_other_libraries_are_refused_and_what_is_made_of_them_is_not() -> None:
    pandas = pytest.importorskip("pandas", reason="the hf extra is not installed")
    arrow = pytest.importorskip("pyarrow", reason="the hf extra is not installed")
    datasets = pytest.importorskip("datasets", reason="the hf extra is not installed")
    frame = pandas.DataFrame({"a": range(4), "b": range(4)})
    kept = frame["a"][frame["a"] % 2 == 0]
    for bad in (
        frame, frame.T, kept, frame["a"], arrow.table({"a": [1, 2]}), Subset(frame, [0]), Subset(kept, [0]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"^data must be a map-style data set: .* frame\.to_dict\("):
            require_data(bad)
    for good in (
        datasets.Dataset.from_pandas(frame), frame.to_dict("records"), kept.tolist(), frame.to_numpy(),
        Subset(Rows(), [0]), [torch.zeros(3)] * 5, [(torch.zeros(2), 1)] * 2,
    ):  # fmt: skip
        require_data(good)
