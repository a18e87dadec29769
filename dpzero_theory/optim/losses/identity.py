"""Digests of what a run was begun with (parameters, losses, records), and the number of records that two sets share.

`layout` and `of_losses` depend on the model and the code alone. `of_records` depends on the records: whoever has that
digest and its key can test a guess of the data set, which no (epsilon, delta) covers. The digest without the key says
nothing, so the key must be secret. Data sets are read, and nothing is written.
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
from dpzero_theory.optim.losses.records import read
from dpzero_theory.optim.weights.module import Weights

_MOST_READ = 1000
"""The largest number of records of a data set, evenly spread, that are read for a digest (`of_records`)."""
_LABELS = ("labels", "label", "label_ids", "idx", "id", "index")
_MADE_OF_TOKENS = ("attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "length")
"""Names of columns that do not count where the records of two data sets are compared; the latter follow from tokens."""
_UNLIKE = (pickle.PicklingError, TypeError, AttributeError, KeyError)
"""The exceptions that are raised for values that have no digest."""


def layout(weights: Weights) -> str:
    """Return a text by which a resumed run is told to have the same trainable parameters.

    It has their number, the number d of weights, and a digest of the parameters' names, shapes and types.
    """
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in zip(weights.names, weights.parameters, strict=True)]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
    return f"{len(shapes)} parameters, d = {weights.d}, {digest[:16]}"


def of_losses(losses: Callable[..., object]) -> str:
    """Return a text by which a resumed run is told to have the same loss function: its name and a digest of its source.

    Changes of comments, of functions that the loss function calls, and of values in its closure do not show in it.
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


def versions() -> str:
    """Return the installed versions of this package, torch, numpy, scipy and Python, as a text."""
    packages = (dpzero_theory, torch, np, scipy)
    found = [f"{package.__name__} {package.__version__}" for package in packages]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def of_records(data: Any, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a TensorDataset's records, or of at most 1,000 records of another data set, evenly
    spread over it.

    A record that cannot be read counts as a fixed word.

    Args:
        data: a data set with a length.
        key: the run's secret key, 32 bytes.

    Returns:
        64 hexadecimal digits; or "" if a record cannot be pickled, or reads differently the second time although the
        global random generators are seeded equally.
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
    return first if first == second else ""


def of_all(values: Iterable[Any], key: bytes) -> str:
    """Return the HMAC-SHA-256 of values, 64 hexadecimal digits; "" if one of them cannot be pickled.

    Args:
        values: tensors, arrays, numbers, texts, mappings and lists of these, or objects that can be pickled.
        key: the key of the HMAC.
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
    """Return how many records of `others` are also in `data`, by the inputs that a model is given.

    Labels, columns that the model does not take, and tokens where `attention_mask` is 0 are left out. Equal numbers
    count as equal whether a list, an array or a tensor holds them. Records whose inputs were changed (augmented, cut,
    tokenised in another way) are not recognised.

    Args:
        data, others: two data sets, or iterables of records.
        names: the columns that the model takes. Records with none of them are compared by all their columns.
        labels: the names of further columns that are left out.

    Raises:
        ValueError: a record cannot be read or compared, or the first one reads differently the second time.
    """

    def digest(record: Any) -> str:
        if isinstance(record, tuple) and len(record) > 1:  # the last entry is taken for the label
            record = record[:-1]
        if isinstance(record, Mapping):
            there = [name for name in record if name not in _LABELS and name not in labels]
            taken = [name for name in there if name in names] or there
            if "input_ids" in taken:
                record = {**record, "input_ids": _without_padding(record)}
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


def _without_padding(record: Mapping[str, Any]) -> Any:
    """Return the `input_ids` of a record where its `attention_mask`, if it has one, is not 0."""
    found, mask = np.asarray(record["input_ids"]), np.asarray(record.get("attention_mask"))
    return found[mask != 0] if mask.shape == found.shape else found


def _numbers(value: Any) -> Any:
    """Return a value with float64 arrays in place of numbers, and of lists, arrays and tensors of numbers."""
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
    """Yield a value as pieces of bytes, each with its length or shape before it, so that unequal values differ.

    Raises one of `_UNLIKE` for a value that cannot be pickled.
    """
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
