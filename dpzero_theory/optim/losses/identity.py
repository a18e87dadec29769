"""What a run was begun with, so that a resumption with something else is noticed: parameters, losses, records.

`layout` and `of_losses` are functions of the model and the code. `of_records` depends on the records: whoever has it
with its key can test a guess of the data set, which no (epsilon, delta) covers. So it is keyed with `new_key`, the
digest alone says nothing, and the key stays where it is: it is not part of what may be seen.
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
from typing import Any

import numpy as np
import scipy
import torch
from torch.utils.data import TensorDataset

import dpzero_theory
from dpzero_theory.optim.losses.records import each
from dpzero_theory.optim.weights.module import Weights

KEY_BYTES = 32
RECORDS = 1000
"""How many records of a data set are compared, evenly spread, where they are read one by one."""
SEARCHED = 20_000


def layout(weights: Weights) -> str:
    """The trainable parameters in a few words, with a digest of their names, shapes and types."""
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in zip(weights.names, weights.parameters, strict=True)]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
    return f"{len(shapes)} parameters, d = {weights.d}, {digest[:16]}"


def of_losses(losses: Callable[..., object]) -> str:
    """The name of a loss function and a digest of its source, comments apart; the name alone where there is none.

    What the function calls, and the values that it has closed over, are not looked at.
    """
    function: Any = inspect.unwrap(losses)
    while hasattr(function, "func"):  # functools.partial
        function = inspect.unwrap(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = textwrap.dedent(inspect.getsource(named))
    except (OSError, TypeError):
        return str(named.__qualname__)
    with suppress(SyntaxError):  # a lambda inside of something
        source = ast.unparse(ast.parse(source))
    return f"{named.__qualname__} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def new_key() -> bytes:
    """For `of_records`."""
    return os.urandom(KEY_BYTES)


def versions() -> str:
    """Of this package and of what computes in it."""
    packages = (dpzero_theory, torch, np, scipy)
    found = [f"{package.__name__} {package.__version__}" for package in packages]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def of_records(data: Any, key: bytes) -> str:
    """HMAC-SHA-256 of the records: all of a TensorDataset, else `RECORDS` of them; "" for what cannot be compared.

    Records cannot that read differently each time, by other draws than those of the global generators
    (`records.each`), or that cannot be pickled. One that cannot be read has a digest as such.

    data: with a length. key: secret.
    """
    if isinstance(data, TensorDataset):
        return _digest(data.tensors, key)
    count = min(len(data), RECORDS)
    first, second = (of_all(each(data, (i * len(data) // count for i in range(count))), key) for _ in range(2))
    return first if first == second else ""


def of_all(records: Iterable[Any], key: bytes) -> str:
    """As `of_records`, of records that were read."""
    try:
        return _digest(records, key)
    except (pickle.PicklingError, TypeError, AttributeError):
        return ""


def shared(data: Any, others: Any) -> int:
    """How many records of `others` are records of `data`: the first `RECORDS` in the first `SEARCHED`.

    0 for what cannot be compared.
    """
    if others is data:
        return len(data)
    key = new_key()
    try:
        wanted = [_digest([record], key) for record in each(others, range(min(len(others), RECORDS)))]
        known = {_digest([record], key) for record in each(data, range(min(len(data), SEARCHED)))}
    except (pickle.PicklingError, TypeError, AttributeError, KeyError):
        return 0
    return sum(digest in known for digest in wanted)


def _digest(parts: Iterable[Any], key: bytes) -> str:
    found = hmac.new(key, digestmod="sha256")
    for part in parts:
        for piece in _bytes(part):
            found.update(piece)
    return found.hexdigest()


def _bytes(value: Any) -> Iterator[bytes]:
    """A value piece by piece, each with its length or shape before it."""
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
