"""Replaces the sources from which a loop may draw its noise by known ones: clocks, the process id and random bytes.

Seeds that a loop gives to random generators are noted too.
"""

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

KEY_BYTES = 8  # A cryptographic key needs at least this many random bytes: all values of fewer bytes can be tried
_CLOCK = 1_700_000_000  # The time that stopped clocks show, in seconds since 1970
_PROCESS = 4321  # The process id that `os.getpid` returns in a block of `stopped_clocks`
_CALLER = "dpzero_theory.audit.loop"  # The name of the module from which the audit calls a loop
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
"""The functions of the module `time` that read a clock; each has a variant that counts nanoseconds too."""


class _StoppedDatetime(datetime.datetime):
    """Stands in for `datetime.datetime` while clocks are stopped; its present time is a fixed one."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_StoppedDatetime":
        return cls.fromtimestamp(_CLOCK, tz)

    @classmethod
    def utcnow(cls) -> "_StoppedDatetime":
        return cls.fromtimestamp(_CLOCK, datetime.UTC).replace(tzinfo=None)


@contextmanager
def stopped_clocks() -> Iterator[None]:
    """A context manager in whose block Python's clocks stand still and `os.getpid` returns a fixed number.

    The functions are replaced in every module that has imported them.
    """
    seconds: list[tuple[Any, Any]] = [(getattr(time, name), lambda: float(_CLOCK)) for name in _CLOCKS]
    nanoseconds = [(getattr(time, f"{name}_ns"), lambda: _CLOCK * 10**9) for name in _CLOCKS]
    with _everywhere([*seconds, *nanoseconds, (os.getpid, lambda: _PROCESS), (datetime.datetime, _StoppedDatetime)]):
        yield


class Entropy:
    """Known streams of bytes in place of the operating system's random bytes, one for each place in the code.

    A place is the line of the loop's code that asks for random bytes, together with the lines that called it.

    Attributes:
        places: how many bytes each place has taken since `start` was called.
    """

    def __init__(self) -> None:
        self._real = os.urandom
        self.start(0)

    @property
    def taken(self) -> int:
        """How many bytes all places in the code have taken since `start` was called."""
        return sum(self.places.values())

    def start(self, number: int | None, others: Collection[str] = (), which: int = 0) -> None:
        """Select a set of streams of bytes and begin them from their start.

        Args:
            number: selects the streams; None for the operating system's own random bytes.
            others: places in the code whose streams are selected by `which` in addition, so that they alone can be
                exchanged.
            which: selects the streams of the places in `others`; 0 for those that they have without `others`.
        """
        self.number, self.others, self.which = number, others, which
        self.places = dict[str, int]()

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes for the place in the code that calls this; it stands in for `os.urandom`."""
        if self.number is None:
            return self._real(size)
        place = _place(sys._getframe(1))
        before, which = self.places.get(place, 0), self.which if place in self.others else 0
        self.places[place] = before + size
        return hashlib.shake_256(f"{self.number} {which} {before} {place}".encode()).digest(size)


def _place(frame: FrameType | None) -> str:
    """Returns the modules, files and lines of the call stack as one text, without folders.

    They lead from `frame` out to where the audit called the loop. The text is the same wherever the code is installed,
    and so are the streams that it selects.
    """
    lines: list[str] = []
    while frame is not None and frame.f_globals.get("__name__") != _CALLER:
        file = os.path.basename(frame.f_code.co_filename)
        lines.append(f"{frame.f_globals.get('__name__')} {file} {frame.f_lineno}")
        frame = frame.f_back
    return "\n".join(lines)


@contextmanager
def known_entropy() -> Iterator[Entropy]:
    """A context manager in whose block the operating system's random bytes are known ones.

    `os.urandom`, and with it `secrets` and NumPy's seeding, reads from the yielded streams. A module that was first
    imported in the block may keep the replacement, which then reads the system's bytes again.
    """
    entropy = Entropy()
    try:
        with _everywhere([(os.urandom, entropy.read)]):
            yield entropy
    finally:
        entropy.number = None


@contextmanager
def noted_seeds() -> Iterator[list[int]]:
    """A context manager that notes the integers with which generators of NumPy, Python and torch are seeded.

    They are appended to the yielded list while the block runs.
    """
    seeds: list[int] = []

    def note(seed: Any) -> None:
        if isinstance(seed, int | np.integer):
            seeds.append(int(seed))

    def noting(real: Any, method: str) -> Any:
        """Returns a subclass of `real`, a generator's class, whose method of the name `method` appends the seeds that
        it is given to the yielded list, and then does what it did."""

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
        yield seeds


@contextmanager
def _everywhere(changes: list[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """A context manager in whose block functions and classes are replaced.

    They are replaced in every module that has them under some name. `changes` are pairs of a function or class and what
    replaces it.
    """
    others = {id(real): other for real, other in changes}
    # Types are compared before id() is called, because every call of id() is an event that a process's audit hooks
    # hear.
    kinds = {type(real) for real, _ in changes}
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
