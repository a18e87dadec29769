"""What stands in for the operating system while a loop is run: known random bytes, known clocks, seeded generators."""

import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
"""The functions of the module `time` that are replaced, each together with its variant in nanoseconds."""
_BEGINS = 1_700_000_000.0  # What the known clocks show when a run begins, in seconds


class Entropy:
    """A known stream of bytes in place of the operating system's random bytes.

    Attributes:
        number: selects the stream; None for the system's own bytes.
        taken: how many bytes of the stream were read.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._real, self.taken = os.urandom, 0

    def start(self, number: int | None) -> None:
        """Select a stream and begin it from its start."""
        self.number, self.taken = number, 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; stands in for `os.urandom`."""
        if self.number is None:
            return self._real(size)
        self.taken += size
        return hashlib.shake_256(f"{self.number} {self.taken}".encode()).digest(size)


@contextmanager
def known_entropy() -> Iterator[Entropy]:
    """A context manager in whose block `os.urandom`, `secrets` and the seeding of NumPy read from the yielded stream.

    A module that took `urandom` by name before the block, or torch's `seed()`, reads the system's bytes as always.
    """
    entropy = Entropy()
    with _replaced([(os, "urandom", entropy.read), (random, "_urandom", entropy.read)]):
        yield entropy


class Clock:
    """A clock that begins a run at one time, and advances by `tick` seconds each time it is read."""

    def __init__(self, tick: float) -> None:
        self._tick, self._now = tick, _BEGINS

    def start(self) -> None:
        self._now = _BEGINS

    def read(self) -> float:
        self._now += self._tick
        return self._now


@contextmanager
def known_clocks(tick: float) -> Iterator[Clock]:
    """A context manager in whose block the clocks of the module `time` are one `Clock`, which the context yields."""
    clock = Clock(tick)
    seconds = [(time, name, clock.read) for name in _CLOCKS]
    with _replaced([*seconds, *((time, f"{name}_ns", lambda: int(1e9 * clock.read())) for name in _CLOCKS)]):
        yield clock


@contextmanager
def _replaced(changes: list[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """A context manager in whose block attributes of modules are replaced: triples of module, name and new value."""
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextmanager
def generators_kept() -> Iterator[None]:
    """A context manager that restores the global random generators of Python, NumPy and torch (if it is loaded)."""
    torch = sys.modules.get("torch")
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    state = torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(state)


def seed_generators(world: int) -> None:
    """Seed the global random generators of Python, NumPy and torch (if it is loaded)."""
    random.seed(world)
    np.random.seed(world % 2**32)  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(world)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(world)
