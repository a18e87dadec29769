"""What noise may be drawn from: clocks, the process's number, the operating system's random bytes, seeds."""

import datetime
import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from dpzero_theory.audit.loop import Loop

KEY_BYTES = 8
"""Random bytes: fewer can all be tried."""
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
    """A known stream for each place of the code, instead of the operating system's. places: bytes taken at each.

    A place is where the loop's code stands, and who called it, when it asks for bytes.
    """

    def __init__(self) -> None:
        self.start(0)

    @property
    def taken(self) -> int:
        """Bytes in all."""
        return sum(self.places.values())

    def start(self, number: int, others: Collection[str] = (), which: int = 0) -> None:
        """One of many streams, from its beginning; at the places `others` another one of theirs, `which`."""
        self.number, self.others, self.which = number, others, which
        self.places = dict[str, int]()

    def read(self, size: int) -> bytes:
        place = _place(sys._getframe(1))
        before, which = self.places.get(place, 0), self.which if place in self.others else 0
        self.places[place] = before + size
        return hashlib.shake_256(f"{self.number} {which} {before} {place}".encode()).digest(size)


def _place(frame: FrameType | None) -> str:
    """Files and lines from this frame up to the audit's call of the loop, or to the top."""
    lines: list[str] = []
    while frame is not None and frame.f_globals.get("__name__") != Loop.__module__:
        lines.append(f"{frame.f_code.co_filename} {frame.f_lineno}")
        frame = frame.f_back
    return "\n".join(lines)


@contextmanager
def known_entropy() -> Iterator[Entropy]:
    """`os.urandom`, and with it `secrets` and what NumPy seeds itself with, is a known stream."""
    entropy = Entropy()
    with _everywhere([(os.urandom, entropy.read)]):
        yield entropy


@contextmanager
def noted_seeds() -> Iterator[list[int]]:
    """Integers that generators of NumPy, Python and torch are seeded with, in order."""
    found: list[int] = []

    def note(seed: Any) -> None:
        if isinstance(seed, int | np.integer):
            found.append(int(seed))

    def noting(real: Any, method: str) -> Any:
        """The class, whose method takes a seed."""

        def noted(self: Any, *seed: Any, **named: Any) -> Any:
            for one in (*seed, *named.values()):
                note(one)
            return getattr(real, method)(self, *seed, **named)

        return type(real.__name__, (real,), {method: noted})

    default = np.random.default_rng

    def default_rng(seed: Any = None) -> Any:
        note(seed)
        return default(seed)

    kinds: list[tuple[Any, str]] = [(np.random.RandomState, "__init__"), (random.Random, "__init__")]
    if torch := sys.modules.get("torch"):
        kinds.append((torch.Generator, "manual_seed"))
    with _everywhere([(default, default_rng), *((real, noting(real, method)) for real, method in kinds)]):
        yield found


@contextmanager
def _everywhere(changes: list[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Functions and classes exchanged in every module that has them by a name."""
    others = {id(real): other for real, other in changes}
    kinds = {type(real) for real, _ in changes}  # first, as a module has few: whoever listens hears of every id()
    places = [
        (space, name, value)
        for module in list(sys.modules.values())
        if (space := getattr(module, "__dict__", None)) is not None and space.get("__name__") != __name__
        for name, value in list(space.items())
        if type(value) in kinds and id(value) in others
    ]
    for space, name, value in places:
        space[name] = others[id(value)]
    try:
        yield
    finally:
        for space, name, value in places:
            space[name] = value
