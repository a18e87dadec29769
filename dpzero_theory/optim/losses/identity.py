"""Digests of a run's loss function and records, and a count of the records that two data sets share.

A digest of records must be kept under a secret key (`of_records`). Without a key, anyone who has the digest could test
a guess of the data set, and no (epsilon, delta) accounts for that.
"""

import ast
import hashlib
import hmac
import inspect
import pickle
import platform
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from tokenize import TokenError
from typing import Any

import numpy as np
import scipy
import torch
from torch.utils.data import TensorDataset

import dpzero_theory
from dpzero_theory.optim.engines.engine import Engine
from dpzero_theory.optim.losses.records import read

_MOST_READ = 1000
"""The largest number of records that `of_records` reads, evenly spread over the data set."""
_LABELS = ("labels", "label", "label_ids", "idx", "id", "index")
"""Names of columns that hold no input of a model, and are left out when the records of two data sets are compared."""
_UNLIKE = (pickle.PicklingError, TypeError, AttributeError, KeyError)
"""The exceptions that pickle raises for values that it cannot turn into bytes."""


def of_losses(losses: Callable[..., object]) -> str:
    """Return the name of a loss function and a digest of its source code, as one string.

    A run can only be resumed with a loss function that has the same string. Comments, the functions that `losses`
    calls, and the values in its closure do not change it. If the source code cannot be found, the string is the name
    alone. For an `engines.engine.Engine`, a server that evaluates the losses, it is `Engine.name`.
    """
    if isinstance(losses, Engine):
        return losses.name
    function: Any = inspect.unwrap(losses)
    while hasattr(function, "func"):  # The source of a functools.partial is that of its function.
        function = inspect.unwrap(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = textwrap.dedent(inspect.getsource(named))
    except (OSError, TypeError, SyntaxError, TokenError):  # The source file is missing, or was changed after the import
        return str(named.__qualname__)
    with suppress(SyntaxError):  # The source of a lambda may be a part of a statement, which cannot be parsed alone.
        source = ast.unparse(ast.parse(source))
    return f"{named.__qualname__} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def versions() -> str:
    """Return the installed versions of this package, torch, numpy, scipy and Python, as one string."""
    packages = (dpzero_theory, torch, np, scipy)
    found = [f"{package.__name__} {package.__version__}" for package in packages]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def of_records(data: Any, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a data set's records under a secret key, as 64 hexadecimal digits.

    A run can only be resumed with records that have the same digest. All records of a TensorDataset count, and up to
    1,000 evenly spread records of other data sets; a fixed string stands for a record that cannot be read. If a record
    cannot be pickled, or if reading it again with equally seeded generators returns another value, the digest depends
    on the number of records alone.

    Args:
        data: a map-style data set.
        key: the run's secret key, 32 bytes.
    """
    if isinstance(data, TensorDataset):
        return of_all(data.tensors, key)
    count = min(len(data), _MOST_READ)

    def records() -> Iterator[Any]:
        for i in range(count):
            try:
                yield from read(data, [i * len(data) // count], alike=True)
            except Exception:
                yield "unreadable"

    first, second = of_all(records(), key), of_all(records(), key)
    return first if first and first == second else of_all([len(data)], key)


def of_all(values: Iterable[Any], key: bytes) -> str:
    """Return the HMAC-SHA-256 of `values` under `key`, as 64 hexadecimal digits; "" if a value cannot be pickled.

    Values are tensors, arrays, numbers, strings, mappings and lists of these, or objects that can be pickled.
    """
    found = hmac.new(key, digestmod="sha256")
    try:
        for value in values:
            for piece in _bytes(value):
                found.update(piece)
    except _UNLIKE:
        return ""
    return found.hexdigest()


def shared(data: Any, others: Any, names: Collection[str] = (), labels: Collection[str] = ()) -> list[int]:
    """Return the indices of the records of `others` that the data set `data` has too, compared by a model's inputs.

    Labels are left out: the last entry of a tuple, and the columns labels, label, label_ids, idx, id and index. The
    rest must have the same bytes, so a record that was augmented, cut, padded, tokenised or converted in another way is
    not recognised.

    Args:
        data, others: two map-style data sets.
        names: the columns that the model takes; other columns are left out. All columns count for a record that has
            none of these.
        labels: the names of further columns to leave out.

    Raises:
        ValueError: a data set is a stream, or a record cannot be pickled.
    """
    try:
        known = {inputs_digest(data[i], names, labels) for i in range(len(data))}
        return [i for i in range(len(others)) if inputs_digest(others[i], names, labels) in known]
    except TypeError:
        raise ValueError("records must be those of a map-style data set to be compared; got a stream") from None


def inputs_digest(record: Any, names: Collection[str] = (), labels: Collection[str] = ()) -> str:
    """Return a digest of a record's inputs to a model, without its labels, as 32 hexadecimal digits.

    Two records are the same to `shared` if their digests are equal. The digest has no secret key, so anyone who has it
    can test a guess of the record. Raises ValueError if the inputs cannot be pickled.

    Args:
        record: a tuple, whose last entry is left out as the label; a mapping; or any other value.
        names: the entries of a mapping that the model takes; others are left out. All count if the mapping has none of
            these.
        labels: entries of a mapping to leave out, in addition to labels, label, label_ids, idx, id and index.
    """
    if isinstance(record, tuple) and len(record) > 1:  # By convention the last entry of a tuple is the label.
        record = record[:-1]
    if isinstance(record, Mapping):
        inputs = [name for name in record if name not in _LABELS and name not in labels]
        record = {name: record[name] for name in [name for name in inputs if name in names] or inputs}
    found = of_all([record], b"")[:32]
    if not found:
        raise ValueError("records must be such that they can be compared, by their bytes; got one that cannot")
    return found


def _bytes(value: Any) -> Iterator[bytes]:
    # Each piece has its length or shape before it, so that unequal values have unequal bytes.
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
        if all(type(part) is int for part in value):  # Token ids, for example: the same bytes, but faster
            yield b"".join(map(_of_int, value))
        else:
            for part in value:
                yield from _bytes(part)
    else:
        text = pickle.dumps(value, protocol=4)
        yield b"%d %b" % (len(text), text)


@lru_cache(maxsize=2**16)
def _of_int(value: int) -> bytes:
    return b"".join(_bytes(value))
