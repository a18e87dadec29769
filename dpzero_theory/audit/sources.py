"""What noise may be drawn from without a seed: clocks, the process's number, the operating system's random bytes."""

import datetime
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_CLOCK, _PROCESS = 1_700_000_000, 4321
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")


class _Stopped(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Stopped":
        return cls.fromtimestamp(_CLOCK, tz)

    @classmethod
    def utcnow(cls) -> "_Stopped":
        return cls.fromtimestamp(_CLOCK, datetime.UTC).replace(tzinfo=None)


@contextmanager
def stopped_clocks() -> Iterator[None]:
    """Every clock of Python, and the number of the process, say the same, wherever they were imported to."""
    seconds: list[tuple[Any, Any]] = [(getattr(time, name), lambda: float(_CLOCK)) for name in _CLOCKS]
    nanoseconds = [(getattr(time, f"{name}_ns"), lambda: _CLOCK * 10**9) for name in _CLOCKS]
    with _everywhere([*seconds, *nanoseconds, (os.getpid, lambda: _PROCESS), (datetime.datetime, _Stopped)]):
        yield


class Entropy:
    """A known stream in the place of the operating system's. taken: bytes by each call since it was started."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, number: int) -> None:
        """One of many streams, from its beginning."""
        self.number, self.taken = number, list[int]()

    def read(self, size: int) -> bytes:
        self.taken.append(size)
        return hashlib.shake_256(f"{self.number} {len(self.taken)}".encode()).digest(size)


@contextmanager
def known_entropy() -> Iterator[Entropy]:
    """`os.urandom`, and with it `secrets` and what NumPy seeds itself with, is one known stream."""
    entropy = Entropy()
    with _everywhere([(os.urandom, entropy.read)]):
        yield entropy


@contextmanager
def _everywhere(changes: list[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Functions and classes exchanged in every module that has them by a name."""
    others = {id(real): other for real, other in changes}
    places = [
        (space, name, value)
        for module in list(sys.modules.values())
        if (space := getattr(module, "__dict__", None)) is not None and space.get("__name__") != __name__
        for name, value in list(space.items())
        if id(value) in others
    ]
    for space, name, value in places:
        space[name] = others[id(value)]
    try:
        yield
    finally:
        for space, name, value in places:
            space[name] = value
