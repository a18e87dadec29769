"""Digests of what a run was begun with (parameters, losses, records), and of records that two data sets share.

`layout` and `of_losses` are functions of the model and the code. `of_records` depends on the records: whoever has that
digest and its key can test a guess of the data set, which no (epsilon, delta) covers. So it is keyed with `new_key`.
The digest alone says nothing, and the key must not be shown.
"""

import ast
import hashlib
import hmac
import inspect
import os
import pickle
import platform
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from tokenize import TokenError
from typing import Any

import numpy as np
import scipy
import torch
from torch.utils.data import TensorDataset

import dpzero_theory
from dpzero_theory.optim.losses.records import each
from dpzero_theory.optim.weights.module import Weights

KEY_BYTES = 32
"""The length, in bytes, of the secret key under which a run's records are digested."""
MOST_READ = 1000
"""How many records of a data set, evenly spread, are read at most for a digest (`of_records`)."""
_LABELS = ("labels", "label", "label_ids", "idx", "id", "index")
_MADE_OF_TOKENS = ("attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "length")
_UNLIKE = (pickle.PicklingError, TypeError, AttributeError, KeyError)
"""What is raised for values that have no digest."""


def layout(weights: Weights) -> str:
    """Return a text by which a resumed run recognises the trainable parameters: their number, d, and a digest of names,
    shapes and types."""
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in zip(weights.names, weights.parameters, strict=True)]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
    return f"{len(shapes)} parameters, d = {weights.d}, {digest[:16]}"


def of_losses(losses: Callable[..., object]) -> str:
    """Return a text by which a resumed run recognises a loss function: its name and a digest of its source.

    Comments are left out. Functions that it calls, and values that it has closed over, are not looked at.
    """
    function: Any = inspect.unwrap(losses)
    while hasattr(function, "func"):  # a functools.partial: look at the function in it
        function = inspect.unwrap(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = textwrap.dedent(inspect.getsource(named))
    except (OSError, TypeError, SyntaxError, TokenError):  # no source file, or one that has changed since the import
        return str(named.__qualname__)
    with suppress(SyntaxError):  # the source of a lambda may be part of a statement
        source = ast.unparse(ast.parse(source))
    return f"{named.__qualname__} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def new_key() -> bytes:
    """Return a new secret key for the digest of a run's records, from the operating system."""
    return os.urandom(KEY_BYTES)


def versions() -> str:
    """Return the versions of this package, of torch, numpy and scipy, and of Python, as a text."""
    packages = (dpzero_theory, torch, np, scipy)
    found = [f"{package.__name__} {package.__version__}" for package in packages]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def of_records(data: Any, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a TensorDataset's records, or of at most 1,000 records of another data set, evenly
    spread over it.

    A record that cannot be read enters as a fixed word in its place.

    Args:
        data: a data set with a length.
        key: the run's secret key.

    Returns:
        The hexadecimal digits, or "" for records that cannot be compared: that cannot be pickled, or differ from one
        reading to the next though the global random generators are reset (`records.each`).
    """
    if isinstance(data, TensorDataset):
        return of_all(data.tensors, key)
    count = min(len(data), MOST_READ)
    first, second = (of_all(each(data, (i * len(data) // count for i in range(count))), key) for _ in range(2))
    return first if first == second else ""


def of_all(records: Iterable[Any], key: bytes) -> str:
    """Return the HMAC-SHA-256 of records, or other values, that have been read; "" if one cannot be pickled.

    key: the key of the HMAC.
    """
    found = hmac.new(key, digestmod="sha256")
    try:
        for record in records:
            for piece in _bytes(record):
                found.update(piece)
    except _UNLIKE:
        return ""
    return found.hexdigest()


def shared(
    data: Any, others: Any, names: Collection[str] = (), labels: Collection[str] = (), padding: int | None = None
) -> int:
    """Return how many records of `others` are also in `data`, by what a model is given of them.

    Labels, columns that the model does not take, and padding are left out; numbers are the same in lists, arrays and
    tensors of any type. Records whose inputs were changed (augmented, cut, tokenised otherwise) are not recognised.

    Args:
        data, others: the two data sets, or iterables of records.
        names: the columns that the model takes; records with none of them are compared by all of theirs.
        labels: columns that are left out.
        padding: the number of the padding token, if there is one.

    Raises:
        ValueError: records that cannot be read or compared, or of which the first reads differently the second time.
    """

    def digest(record: Any) -> str:
        if isinstance(record, tuple) and len(record) > 1:  # the last entry is taken for the label
            record = record[:-1]
        if isinstance(record, Mapping):
            there = [name for name in record if name not in _LABELS and name not in labels]
            taken = [name for name in there if name in names] or there
            if "input_ids" in taken:
                record = {**record, "input_ids": _without_padding(record, padding)}
                taken = [name for name in taken if name not in _MADE_OF_TOKENS]
            record = {name: record[name] for name in taken}
        found = hashlib.blake2b(digest_size=16)
        for piece in _bytes(_numbers(record)):
            found.update(piece)
        return found.hexdigest()

    def digests(rows: Any) -> list[str]:
        places = not hasattr(rows, "__iter__") and hasattr(rows, "__len__")
        try:
            found = [digest(rows[i]) for i in range(len(rows))] if places else [digest(row) for row in rows]
            again = [digest(rows[0])] if found and hasattr(rows, "__getitem__") else found[:1]
        except _UNLIKE as error:
            said = " ".join(str(error).split())
            raise ValueError(f"records must be such that they can be compared; got {said:.150}") from None
        if found[:1] != again:
            raise ValueError("records must read the same each time to be compared; got others the second time")
        return found

    known = set(digests(data))
    return sum(one in known for one in digests(others))


def _without_padding(record: Mapping[str, Any], padding: int | None) -> Any:
    found, mask = np.asarray(record["input_ids"]), np.asarray(record.get("attention_mask"))
    if mask.shape == found.shape:
        found = found[mask != 0]
    if padding is not None and found.ndim == 1:
        real = np.flatnonzero(found != padding)
        found = found[real[0] : real[-1] + 1] if len(real) else found[:0]
    return found


def _numbers(value: Any) -> Any:
    """Return a value with its numbers as arrays of float64, whatever held them."""
    if isinstance(value, Mapping):
        return {name: _numbers(part) for name, part in value.items()}
    try:
        array = np.asarray(value.detach().cpu().double() if isinstance(value, torch.Tensor) else value)
    except ValueError:  # numpy refuses nested lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    return [_numbers(part) for part in value] if isinstance(value, (list, tuple)) else value


def _bytes(value: Any) -> Iterator[bytes]:
    """Yield the bytes of a value piece by piece, each with its length or shape before it."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from _bytes(str(name))
            yield from _bytes(value[name])
    elif isinstance(value, (set, frozenset)):
        yield from _bytes(sorted(value, key=repr))
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)} ".encode()
        for part in value:
            yield from _bytes(part)
    else:
        text = pickle.dumps(value, protocol=4)
        yield f"{len(text)} ".encode()
        yield text
