"""Digests of what a run was begun with (losses, records), and the number of records that two data sets share.

`of_losses` depends on the code alone. `of_records` depends on the records: whoever has that digest and its key can test
a guess of the data set, which no (epsilon, delta) covers. The digest without the key says nothing, so the key must be
secret. Data sets are read, and nothing is written.
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
"""The largest number of records of a data set, evenly spread, that are read for a digest (`of_records`)."""
_LABELS = ("labels", "label", "label_ids", "idx", "id", "index")
"""Names of columns that do not count where the records of two data sets are compared."""
_UNLIKE = (pickle.PicklingError, TypeError, AttributeError, KeyError)
"""The exceptions that pickle raises for values that it cannot turn into bytes."""


def of_losses(losses: Callable[..., object]) -> str:
    """Return the name of a loss function and a digest of its source, a text that must be the same to resume a run.

    Changes of comments, of functions that it calls, and of values in its closure leave this text as it is. If the
    source cannot be found, the text is the name alone. For an `engines.engine.Engine`, a server that stands in for a
    loss function and can be called like one, it is the attribute `name`.
    """
    if isinstance(losses, Engine):
        return losses.name
    function: Any = inspect.unwrap(losses)
    while hasattr(function, "func"):  # A functools.partial has no source of its own, but the function in it has.
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
    """Return the installed versions of this package, torch, numpy, scipy and Python, as a text."""
    packages = (dpzero_theory, torch, np, scipy)
    found = [f"{package.__name__} {package.__version__}" for package in packages]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def of_records(data: Any, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a data set's records, which must be the same to resume a run.

    All records of a TensorDataset count, and at most 1,000, evenly spread, of another data set. A fixed text takes the
    place of a record that cannot be read. If a record cannot be pickled, or reads differently the second time although
    the global random generators are seeded equally, only the number of records counts.

    Args:
        data: a data set with a length.
        key: the run's secret key, 32 bytes.

    Returns:
        64 hexadecimal digits.
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
    """Return the HMAC-SHA-256 of values under a key, 64 hexadecimal digits; "" if one of them cannot be pickled.

    Values are tensors, arrays, numbers, texts, mappings and lists of these, or objects that can be pickled.
    """
    found = hmac.new(key, digestmod="sha256")
    try:
        for value in values:
            for piece in _bytes(value):
                found.update(piece)
    except _UNLIKE:
        return ""
    return found.hexdigest()


def shared(data: Any, others: Any, names: Collection[str] = (), labels: Collection[str] = ()) -> int:
    """Return how many records of the data set `others` are also in the data set `data`, by what a model is given.

    Labels (the last entry of a tuple; columns named labels, label, label_ids, idx, id or index) and columns that the
    model does not take are left out. The rest must have the same bytes: records that were prepared in another way
    (augmented, cut, padded, tokenised, of other number types) are not recognised.

    Args:
        data, others: two map-style data sets.
        names: the columns that the model takes. Records with none of them are compared by all their columns.
        labels: the names of further columns that are left out.

    Raises:
        ValueError: records cannot be compared: a data set is a stream, or a record cannot be pickled.
    """
    try:
        known = {inputs_digest(data[i], names, labels) for i in range(len(data))}
        return sum(inputs_digest(others[i], names, labels) in known for i in range(len(others)))
    except TypeError:
        raise ValueError("records must be those of a map-style data set to be compared; got a stream") from None


def inputs_digest(record: Any, names: Collection[str] = (), labels: Collection[str] = ()) -> str:
    """Return a digest of what a model is given of a record, by which `shared` compares records; 32 hexadecimal digits.

    It has no key: whoever has the digest can test a guess of the record. Raises ValueError if that cannot be pickled.

    Args:
        record: a tuple, whose last entry is left out as the label, a mapping, or anything else.
        names: the entries of a mapping that the model takes, if it has some of them; else all its entries count.
        labels: entries of a mapping that are left out, in addition to labels, label, label_ids, idx, id and index.
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
        for part in value:
            yield from _bytes(part)
    else:
        text = pickle.dumps(value, protocol=4)
        yield f"{len(text)} ".encode()
        yield text
