"""Digests of what a run was begun with (parameters, losses, records), so that a resumption with others is noticed.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
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


def layout(weights: Weights) -> str:
    """Return a text by which a resumed run recognises the trainable parameters `weights` of a module.

    It has their number, the number d of their coordinates, and a digest of their names, shapes and types.
    """
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in zip(weights.names, weights.parameters, strict=True)]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
    return f"{len(shapes)} parameters, d = {weights.d}, {digest[:16]}"


def of_losses(losses: Callable[..., object]) -> str:
    """Return a text by which a resumed run recognises the loss function `losses`: its name and a digest of its source.

    The digest leaves out comments; if there is no source, the text is the name alone. Functions that the loss function
    calls, and values that it has closed over, are not looked at.
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
        return _digest(data.tensors, key)
    count = min(len(data), MOST_READ)
    first, second = (of_all(each(data, (i * len(data) // count for i in range(count))), key) for _ in range(2))
    return first if first == second else ""


def of_all(records: Iterable[Any], key: bytes) -> str:
    """Return the HMAC-SHA-256 of records, or other values, that have been read; "" if one cannot be pickled.

    key: the key of the HMAC.
    """
    try:
        return _digest(records, key)
    except (pickle.PicklingError, TypeError, AttributeError):
        return ""


def _digest(parts: Iterable[Any], key: bytes) -> str:
    found = hmac.new(key, digestmod="sha256")
    for part in parts:
        for piece in _bytes(part):
            found.update(piece)
    return found.hexdigest()


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
