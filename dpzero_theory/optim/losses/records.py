"""The records of a run: which data sets are accepted, and how the batch of some records is made.

A record is read by itself, also where a data set can read many at a time, so reading cannot mix records.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from dpzero_theory.privacy.schedule import Indices

Collate = Callable[[Sequence[Any]], Any] | None
"""A function from a list of records to the batch that the losses take; torch's default_collate if None."""


Fetch = Callable[[Indices, bytes], Any]
"""A function (numbers of records, moment) -> the batch that the losses take (`evaluation.Losses`). The moment is bytes
that tell one release of one run from all others, from which a `DrawnData` draws; b"" outside a run."""


class Data(Protocol):
    """A map-style data set: len(data) records, of which data[i] is the one with the number i, from 0."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


@runtime_checkable
class DrawnData(Data, Protocol):
    """A data set whose records are drawn anew in each step, such as `users.ByUser`; data[i] is one such draw, always
    the same."""

    def drawn(self, index: int, seed: int) -> Any: ...


def seed_of(moment: bytes, number: int) -> int:
    """Return the seed from which a record is drawn in a release, an integer in [0, 2^64).

    Args:
        moment: the bytes that tell this release of this run from all others (`Fetch`); b"" outside a run.
        number: the number of the record.
    """
    found = hashlib.sha256(b"%d " % len(moment) + moment + b"%d" % number)
    return int.from_bytes(found.digest()[:8], "little")


def drawn_records(data: Data, numbers: Sequence[int], moment: bytes) -> list[Any]:
    """Return the records with these numbers. Those of a `DrawnData` are drawn anew for each `moment` (`Fetch`), unless
    it is b"". Other data sets are read as they are, whatever the moment."""
    if moment and isinstance(data, DrawnData):
        return [data.drawn(number, seed_of(moment, number)) for number in numbers]
    return [_one(data, number) for number in numbers]


def _one(data: Data, number: int) -> Any:
    many: Callable[[list[int]], list[Any]] | None = getattr(data, "__getitems__", None)
    return data[number] if many is None else many([number])[0]


def require_data(data: object, name: str = "data") -> None:
    """Raise ValueError for anything but a map-style data set that holds a record.

    A DataLoader holds batches, not records. A tuple (X, y) of arrays has two entries, not n. And data[0] of a data
    frame is a column, or the row with the label 0.

    Args:
        data: the argument.
        name: the name of the argument, for the message.
    """
    if inner := [part for part in _within(data) if _is_table(part)]:
        raise ValueError(
            f"{name} must be a map-style data set: data[0] the first record, not a column or a label; got"
            f" {type(inner[0]).__name__}: give datasets.Dataset.from_pandas(frame, preserve_index=False), a list of"
            " records such as frame.to_dict('records') or series.tolist(), or TensorDataset of tensors"
        )
    map_style = hasattr(data, "__len__") and hasattr(data, "__getitem__")
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
            " tensors; a DataLoader: its dataset; a stream: loaded without streaming; splits: one of"
            f" them); got {type(data).__name__}"
        )
    if not count:
        raise ValueError(f"{name} must hold a record; got none")


def _within(data: Any) -> Iterator[object]:
    """Yield a data set and those that it wraps, as `Subset` and `ConcatDataset` do."""
    yield data
    for inner in (getattr(data, "dataset", None), *(getattr(data, "datasets", None) or ())):
        if inner is not None:
            yield from _within(inner)


def _is_table(data: object) -> bool:
    """Whether indexing `data` by a number gives a column, or goes by labels, as in the tables of pandas and pyarrow."""
    return any(hasattr(type(data), name) for name in ("iloc", "__dataframe__", "to_pylist")) or (
        hasattr(data, "columns") and hasattr(data, "shape")
    )


class Reading:
    """The records of a run, and how the batch of some of them is made.

    Args:
        data: the records.
        collate: makes the batch of a list of records; torch's default_collate if None.

    Attributes:
        tensors: whether the records are rows of tensors, whose reading draws nothing at random.
    """

    def __init__(self, data: Data, collate: Collate) -> None:
        self._data, self._join = data, default_collate if collate is None else collate
        self.tensors = type(data) is TensorDataset
        self._whole = self.tensors and collate is None

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, records: Indices, moment: bytes = b"") -> Any:
        """Return the batch of the records with these numbers, as `Fetch` has it."""
        if self._whole:
            return self._data[torch.from_numpy(records)]
        return self._join(drawn_records(self._data, records.tolist(), moment))

    def alike(self, records: Indices, moment: bytes = b"") -> Any:
        """Return a batch in which a record reads the same each time, though reading draws at random (augmentation).

        Draws in `collate` stay random: made equal, they would be shared by records.
        """
        return self.batch(records) if self._whole else self._join(_seeded(self._data, records.tolist()))

    def each(self, numbers: Iterable[int]) -> list[Any]:
        """Return single records, as `each` reads them."""
        return list(each(self._data, numbers))


class Unreadable:
    """Its instances stand for records whose reading raises an exception."""


def each(data: Data, numbers: Iterable[int]) -> Iterator[Any]:
    """Yield the records of `data` with these numbers; `Unreadable()` stands for one whose reading raises.

    Before each record the global random generators are seeded with its number, so that it reads the same each time.
    """
    for number in numbers:
        try:
            yield from _seeded(data, [number])
        except Exception:
            yield Unreadable()


def _seeded(data: Data, numbers: Sequence[int]) -> list[Any]:
    with drawing_from() as seed:
        return [_one(data, number) for number in numbers if seed(number) is None]


@contextmanager
def drawing_from() -> Iterator[Callable[[int], None]]:
    """A context manager that gives its block a function which seeds the global generators of torch, numpy and Python.

    When the block ends the generators have their earlier states again.
    """
    python, numbers, torches = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(number)

    try:
        yield seed
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.default_generator.set_state(torches)


def length_of(value: Any) -> int:
    """Return how many numbers or characters there are in a record, or in a part of one. A single number, and any object
    of unknown size, counts as 1."""
    if isinstance(value, Mapping):
        return sum(map(length_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(length_of, value))
    size = value.numel() if isinstance(value, torch.Tensor) else getattr(value, "size", None)
    return len(value) if isinstance(value, str | bytes) else size if isinstance(size, int) else 1
