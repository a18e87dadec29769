"""Reads the records of a run from a map-style data set, one at a time, so that reading cannot mix records."""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import IterableDataset

Collate = Callable[[Sequence[Any]], Any] | None
"""A function from a list of records to the batch that a loss function takes, or None for torch's default_collate."""


class Data(Protocol):
    """A map-style data set: len(data) is the number of records, and data[i] is the record with the index i, from 0."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


@runtime_checkable
class DrawnData(Data, Protocol):
    """A map-style data set whose records are drawn at random, anew in each training step, such as `users.ByUser`.

    drawn(index, seed) returns the record with this index, drawn with `seed`, an integer in [0, 2^64). data[index]
    returns the record drawn with a fixed seed.
    """

    def drawn(self, index: int, seed: int) -> Any: ...


def read(data: Data, numbers: Iterable[int], moment: bytes = b"", *, alike: bool = False) -> list[Any]:
    """Return the records of `data` with the given indices, in their order, each read by itself.

    Args:
        data: a map-style data set. What it raises is raised.
        numbers: the indices of the records, from 0.
        moment: bytes that are different for each step of each run. A `DrawnData` draws its records with seeds that
            follow from `moment` and a record's index, or as data[index] does if `moment` is b"". Other data sets ignore
            it.
        alike: whether the global generators of torch, numpy and Python are seeded with a record's index while it is
            read, so that it reads the same each time. Their states are restored afterwards. If True, `moment` is
            ignored.
    """
    if alike:
        return [_seeded(data, number) for number in numbers]
    if moment and isinstance(data, DrawnData):
        return [data.drawn(number, _seed(moment, number)) for number in numbers]
    return [_read_one(data, number) for number in numbers]


def _seed(moment: bytes, number: int) -> int:
    # The length of `moment` is hashed too, so that different pairs (moment, number) never give the same bytes.
    found = hashlib.sha256(b"%d " % len(moment) + moment + b"%d" % number)
    return int.from_bytes(found.digest()[:8], "little")


def _seeded(data: Data, number: int) -> Any:
    with seeded(number):
        return _read_one(data, number)


def _read_one(data: Data, number: int) -> Any:
    many: Callable[[list[int]], list[Any]] | None = getattr(data, "__getitems__", None)
    return data[number] if many is None else many([number])[0]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context manager that seeds the global generators of torch (on the CPU), numpy and Python with `seed`.

    `seed` is an integer in [0, 2^64). The generators get their earlier states back when the block ends.
    """
    python, numbers, torches = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.default_generator.set_state(torches)


def require_data(data: object, name: str = "data") -> None:
    """Raise ValueError, with a message that says what to give instead, unless `data` is a map-style data set with a
    record.

    Among others, these are refused: a DataLoader, which holds batches; a tuple (X, y) of arrays; and a data frame, of
    which data[0] is a column. `name` is the name of the argument in the message.
    """
    inner = getattr(data, "dataset", data)  # The type of a Subset says nothing; that of the data set in it does.
    table = any(hasattr(type(inner), method) for method in ("iloc", "__dataframe__", "to_pylist"))
    map_style = hasattr(data, "__len__") and hasattr(data, "__getitem__") and not table
    count = 0
    if map_style:
        try:
            count = len(data)  # type: ignore[arg-type]
        except TypeError:
            map_style = False
    arrays = isinstance(data, tuple) or (isinstance(data, list) and count == 2)
    arrays = arrays and any(len(getattr(part, "shape", ())) and len(part) > count for part in data)  # type: ignore[attr-defined]
    if not map_style or arrays or isinstance(data, Mapping | str | bytes | IterableDataset):
        raise ValueError(
            f"{name} must be a map-style data set: len(data) records, data[0] the first (arrays: TensorDataset(X, y) of"
            " tensors; a data frame: Dataset.from_pandas(frame) or frame.to_dict('records'); a DataLoader: its dataset;"
            f" a stream: loaded without streaming; splits: one of them); got {type(inner if table else data).__name__}"
        )
    if not count:
        raise ValueError(f"{name} must hold a record; got none")
