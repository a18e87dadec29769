"""The records of a run: what is taken as data, and how numbers of records become a batch."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import TensorDataset, default_collate

from dpzero_theory.privacy.schedule import Indices

Collate = Callable[[Sequence[Any]], Any] | None
"""Records -> batch; torch's default_collate if None."""
Fetch = Callable[[Indices], Any]
"""Numbers of records -> the batch that `evaluation.Losses` takes."""


class Data(Protocol):
    """A map-style data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


def require_data(data: object, name: str = "data") -> None:
    """Raise ValueError for what is no map-style data set, and for one without records.

    A DataLoader has batches, not records; a tuple (X, y) of arrays has two entries, not n. name: of the argument.
    """
    map_style = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    arrays = isinstance(data, tuple) and any(hasattr(part, "shape") for part in data)
    count = 0
    if map_style and not arrays:
        try:
            count = len(data)  # type: ignore[arg-type]
        except TypeError:
            map_style = False
    if not map_style or arrays or isinstance(data, Mapping | str | bytes):
        raise ValueError(
            f"{name} must be a map-style data set: len(data) records, data[0] the first (arrays: TensorDataset(X, y) of"
            f" tensors; a DataLoader: its dataset); got {type(data).__name__}"
        )
    if not count:
        raise ValueError(f"{name} must hold a record; got none")


def fetcher(data: Data, collate: Collate) -> Fetch:
    """How the batch of some records is made."""
    if collate is None and isinstance(data, TensorDataset):
        return lambda records: data[torch.from_numpy(records)]
    join, many = default_collate if collate is None else collate, getattr(data, "__getitems__", None)
    return lambda records: join(many(records.tolist()) if many else [data[i] for i in records.tolist()])


def sample(data: Data, collate: Collate, records: Indices) -> tuple[Fetch, list[int]]:
    """As `fetcher` for some of the records alone, numbered in the order given, and how long each of them is.

    They are read once: what a data set draws at random is drawn once. Lengths are in numbers or characters.
    """
    if isinstance(data, TensorDataset):
        return fetcher(TensorDataset(*data[torch.from_numpy(records)]), collate), [0] * len(records)
    many = getattr(data, "__getitems__", None)
    kept = _Kept(many(records.tolist()) if many else [data[i] for i in records.tolist()])
    return fetcher(kept, collate), [_length(kept[i]) for i in range(len(records))]


class _Kept:
    """Records in memory, handed out as copies: some collate functions take entries away."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int, /) -> Any:
        return copy.copy(self._records[index])


def _length(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_length, value))
    size = value.numel() if isinstance(value, torch.Tensor) else getattr(value, "size", None)
    return len(value) if isinstance(value, str | bytes) else size if isinstance(size, int) else 1
