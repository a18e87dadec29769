"""Which records of one data set are also records of another, by what a model is given of them.

Records are compared by digests, under a key that is made for this and kept nowhere. Two records are the same if their
inputs are: labels, names that the model does not take, and padding are left out, and it does not matter whether numbers
are in lists, arrays or tensors, or of which type. Not recognised are records whose inputs were changed: augmented, cut
to another length, or tokenised by another tokeniser.
"""

import hashlib
import os
import pickle
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Digests = NDArray[np.uint64]
_LABELS = ("labels", "label", "label_ids", "idx", "id", "index")
_MADE_OF_TOKENS = ("attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "length")
_TWICE = 32
"""About how many records are read a second time, to see whether they read the same."""


class Inputs:
    """Computes digests of the inputs in records, by which records of two data sets are compared.

    Args:
        names: the columns that the model takes; records with none of them are compared by all of theirs.
        labels: columns that are left out.
        padding: the number of the padding token, if there is one.
    """

    def __init__(self, names: Collection[str] = (), labels: Collection[str] = (), padding: int | None = None) -> None:
        self._names, self._labels, self._padding = frozenset(names), frozenset((*_LABELS, *labels)), padding
        self._key = os.urandom(16)

    def digests(self, data: Any) -> Digests:
        """Return the digests of all records of `data`, to be compared with those of other data by the same `Inputs`.

        Raises ValueError for records that cannot be read or pickled, and for data of which one of some 32 to 63
        records, which are read twice, reads differently the second time, as with random augmentation.
        """
        try:
            found = np.fromiter((self._digest(record) for record in _records(data)), np.uint64)
            numbered = hasattr(data, "__getitem__") and hasattr(data, "__len__")
            places = range(0, len(found) if numbered else 0, max(len(found) // _TWICE, 1))
            again = [self._digest(data[place]) for place in places]
        except (pickle.PicklingError, TypeError, AttributeError, KeyError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"records must be such that they can be compared; got {said:.150}") from None
        if list(found[list(places)]) != again:
            raise ValueError("records must read the same each time to be compared; got others the second time")
        return found

    def shared(self, data: Any, others: Any) -> int:
        """Return how many of the records of `others` are also in `data`. Raises what `digests` raises."""
        return int(np.isin(self.digests(others), self.digests(data)).sum())

    def _digest(self, record: Any) -> int:
        found = hashlib.blake2b(key=self._key, digest_size=8)
        for piece in self._inputs(record):
            found.update(b"%d " % len(piece))
            found.update(piece)
        return int.from_bytes(found.digest(), "little")

    def _inputs(self, record: Any) -> Iterator[bytes]:
        if isinstance(record, tuple) and len(record) > 1:  # the last entry is taken for the label
            record = record[:-1]
        if isinstance(record, Mapping):
            there = [name for name in record if name not in self._labels]
            taken = [name for name in there if name in self._names] or there
            if "input_ids" in taken:
                record = {**record, "input_ids": self._without_padding(record["input_ids"], record)}
                taken = [name for name in taken if name not in _MADE_OF_TOKENS]
            record = {name: record[name] for name in taken}
        yield from _pieces(record)

    def _without_padding(self, tokens: Any, record: Mapping[str, Any]) -> Any:
        found, mask = np.asarray(tokens), np.asarray(record.get("attention_mask"))
        if mask.shape == found.shape:
            found = found[mask != 0]
        if self._padding is not None and found.ndim == 1:
            real = np.flatnonzero(found != self._padding)
            found = found[real[0] : real[-1] + 1] if len(real) else found[:0]
        return found


def _records(data: Any) -> Iterator[Any]:
    if hasattr(data, "__iter__") or not hasattr(data, "__len__"):
        return iter(data)
    return (data[index] for index in range(len(data)))


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield the bytes of a value: numbers as float64, whatever type they have; texts encoded; other values pickled."""
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield str(name).encode()
            yield from _pieces(value[name])
        return
    try:
        array = np.asarray(value.detach().cpu().double() if isinstance(value, Tensor) else value)
    except ValueError:  # numpy refuses nested lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind in "biuf":
        yield array.astype(np.float64).tobytes()
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _pieces(part)
    else:
        yield value.encode() if isinstance(value, str) else pickle.dumps(value, protocol=4)
