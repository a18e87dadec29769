"""The records of a run: which data sets are accepted, and how their records are read.

Each record is read by itself, even if a data set can read many at a time, so that reading cannot mix records. `seeded`
changes the states of the process's generators of random numbers for the length of its block; nothing else is written.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import IterableDataset

Collate = Callable[[Sequence[Any]], Any] | None
"""A function from a list of records to the batch that the losses take; None stands for torch's default_collate."""


class Data(Protocol):
    """A map-style data set: it has len(data) records, and data[i] is the record with the number i, from 0."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


@runtime_checkable
class DrawnData(Data, Protocol):
    """A data set whose records are drawn anew in each step, such as `users.ByUser`.

    `drawn(index, seed)` is the record with this number, drawn from `seed`, an integer in [0, 2^64). data[index] is one
    such draw, always the same.
    """

    def drawn(self, index: int, seed: int) -> Any: ...


def read(data: Data, numbers: Iterable[int], moment: bytes = b"", *, alike: bool = False) -> list[Any]:
    """Return the records of `data` with these numbers, in their order, each read by itself.

    What the data set raises is raised.

    Args:
        data: a map-style data set.
        numbers: the numbers of the records, from 0.
        moment: bytes that tell one release of one run from all others. The records of a `DrawnData` are drawn anew for
            each moment, unless it is b""; other data sets are read the same way whatever it is.
        alike: whether the global generators of torch, numpy and Python are seeded with the number of each record while
            it is read, so that it reads the same each time. Afterwards they have their earlier states.
    """
    if alike:
        return [_seeded(data, number) for number in numbers]
    if moment and isinstance(data, DrawnData):
        return [data.drawn(number, _seed(moment, number)) for number in numbers]
    return [_read_one(data, number) for number in numbers]


def _seed(moment: bytes, number: int) -> int:
    # The length of `moment` comes first, so that no two pairs (moment, number) are hashed as the same bytes.
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
    """A context manager in whose block the global generators of torch (on the CPU), numpy and Python are seeded.

    When the block ends they have their earlier states again. `seed` is an integer in [0, 2^64).
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
    """Raise ValueError, which says what to give instead, unless `data` is a map-style data set that holds a record.

    Refused are, among others, a DataLoader, which holds batches and not records; a tuple (X, y) of arrays, which has
    two entries and not n; and a data frame, of which data[0] is a column. `name` is the name of the argument, for the
    message.
    """
    inner = getattr(data, "dataset", data)  # A Subset has methods of its own, so the data set in it is looked at.
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
