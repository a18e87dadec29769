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
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

KEY_BYTES = 8  # A cryptographic key needs at least this many random bytes: all values of fewer bytes can be tried
_CLOCK = 1_700_000_000  # The time that stopped clocks show, in seconds since 1970
_PROCESS = 4321  # The process id that `os.getpid` returns in a block of `stopped_clocks`
_CALLER = "dpzero_theory.audit.loop"  # The name of the module from which the audit calls a loop
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
"""The functions of the module `time` that read a clock; each has a variant that counts nanoseconds too."""


class Clock:
    """A clock that advances by `tick` seconds each time it is read, and not otherwise.

    Args:
        tick: in seconds; 0 for a clock that stands still.
    """

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self.start()

    def start(self) -> None:
        """Set the clock back to its first time."""
        self._read = 0

    def nanoseconds(self) -> int:
        self._read += 1
        return round((_CLOCK + self._read * self._tick) * 10**9) if self._tick else _CLOCK * 10**9

    def seconds(self) -> float:
        return self.nanoseconds() / 1e9

    def datetime(self) -> type[datetime.datetime]:
        """Returns a class that stands in for `datetime.datetime` and reads this clock."""
        clock = self

        class Stopped(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> "Stopped":
                return cls.fromtimestamp(clock.seconds(), tz)

            @classmethod
            def utcnow(cls) -> "Stopped":
                return cls.fromtimestamp(clock.seconds(), datetime.UTC).replace(tzinfo=None)

        return Stopped


@contextmanager
def stopped_clocks(tick: float = 0.0) -> Iterator[Clock]:
    """A context manager in whose block Python's clocks stand still and `os.getpid` returns a fixed number.

    The functions are replaced in every module that has imported them. The yielded clock, which they read, advances by
    `tick` seconds each time it is read.
    """
    clock = Clock(tick)
    seconds: list[tuple[Any, Any]] = [(getattr(time, name), partial(clock.seconds)) for name in _CLOCKS]
    nanoseconds = [(getattr(time, f"{name}_ns"), partial(clock.nanoseconds)) for name in _CLOCKS]
    process = (os.getpid, lambda: _PROCESS)
    with _everywhere([*seconds, *nanoseconds, process, (datetime.datetime, clock.datetime())]):
        yield clock


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


Call = tuple[str, int]
"""A call that seeds a random generator: the place in the code, and how many calls there were from it before."""


class Seeds:
    """The seeds that a run gives to random generators of NumPy, Python and torch, and seeds that take their place.

    Attributes:
        noted: all integers among the seeds, in order.
        calls: the seed of each call since `start`, as a tuple of integers.
        forced: the seeds that calls are given in place of their own.
    """

    def __init__(self) -> None:
        self.noted: list[int] = []
        self._within = False
        self.forced: dict[Call, Any] = {}
        self.start()

    def start(self) -> None:
        """Begin a run, whose calls are counted from 0 at each place in the code."""
        self.calls: dict[Call, tuple[int, ...]] = {}
        self.values: dict[Call, Any] = {}
        self._count = dict[str, int]()

    def calling(self, real: Any, owner: tuple[Any, ...], seed: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Notes the seed of a call of `real`, which seeds a generator, makes the call and returns its result.

        Where `forced` has a seed for this call, `real` is given that one instead. `owner` is the generator if `real` is
        a method, else empty; `seed` has the arguments, of which the first is the seed, and `named` those that are given
        by name. Calls of this kind that `real` makes itself are neither noted nor given other seeds.
        """
        if self._within:
            return real(*owner, *seed, **named)
        seed = (*map(self._given, seed[:1]), *seed[1:])
        named |= {name: self._given(named[name]) for name in ("seed", "x", "entropy", "key") if name in named}
        self._within = True
        try:
            return real(*owner, *seed, **named)
        finally:
            self._within = False

    def _given(self, seed: Any) -> Any:
        """Notes a seed, and returns the one that its generator is to have."""
        words = _words(seed)
        if words is None:
            return seed
        if isinstance(seed, int | np.integer):
            self.noted.append(int(seed))
        place = _place(sys._getframe(1))
        call = place, self._count.get(place, 0)
        self._count[place] = call[1] + 1
        self.calls[call], self.values[call] = words, seed
        return self.forced.get(call, seed)


def _words(seed: Any) -> tuple[int, ...] | None:
    """Returns the integers that a seed consists of; None where it is something else, such as None."""
    if isinstance(seed, int | np.integer):
        return (int(seed),)
    if isinstance(seed, bytes | bytearray):
        return (int.from_bytes(seed, "big"),)
    if isinstance(seed, list | tuple | np.ndarray):
        found = [_words(part) for part in seed]
        if found and all(part is not None and len(part) == 1 for part in found):
            return tuple(part[0] for part in found if part is not None)
    return None


_SEEDED = ("SeedSequence", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64", "RandomState")
"""The classes of `numpy.random` whose first argument is a seed."""


@contextmanager
def noted_seeds() -> Iterator[Seeds]:
    """A context manager that notes the seeds which generators of NumPy, Python and torch are given, and may change
    them (`Seeds.forced`)."""
    seeds = Seeds()

    def seeding(real: Any, method: str) -> Any:
        """Returns a subclass of `real`, a generator's class, whose method of the name `method` notes its seed."""

        def noted(self: Any, *seed: Any, **named: Any) -> Any:
            return seeds.calling(getattr(real, method), (self,), seed, named)

        return type(real.__name__, (real,), {method: noted})

    def function(real: Any) -> Any:
        def noted(*seed: Any, **named: Any) -> Any:
            return seeds.calling(real, (), seed, named)

        return noted

    functions: list[Any] = [np.random.default_rng, np.random.seed, random.seed]
    kinds: list[tuple[Any, str]] = [(getattr(np.random, name), "__init__") for name in _SEEDED]
    kinds.append((random.Random, "__init__"))
    if torch := sys.modules.get("torch"):
        kinds.append((torch.Generator, "manual_seed"))
        functions.append(torch.manual_seed)
    changes = [*((real, function(real)) for real in functions), *((real, seeding(real, how)) for real, how in kinds)]
    with _everywhere(changes):
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


class Drawn:
    """The random generators that a run makes, in order, and their states when it ends.

    Attributes:
        states: the states of the generators when the last run ended, and then those of the process's global ones.
        other: the position of a generator that begins in another state than that of its seed; None for none.
    """

    def __init__(self) -> None:
        self.states: list[str] = []
        self.other: int | None = None
        self._made: list[Any] = []

    def making(self, generator: Any) -> None:
        """Notes a generator of NumPy, Python or torch that was just seeded."""
        if any(generator is one for one in self._made):
            return
        if len(self._made) == self.other:
            _begin_elsewhere(generator)
        self._made.append(generator)

    def around(self, train: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the loop `train`, whose generators are noted from its start to its end."""

        def noted(*arguments: Any) -> Any:
            self._made = []
            try:
                return train(*arguments)
            finally:
                torch = sys.modules.get("torch")
                every = [_state_within(one) for one in self._made]
                every += [random.getstate(), np.random.get_state(legacy=False)]  # noqa: NPY002
                every += [torch.get_rng_state().tolist()] if torch else []
                self.states = [repr(state) for state in every]

        return noted


def _state_within(generator: Any) -> Any:
    """Returns the state of a bit generator of NumPy, or of a generator of NumPy, Python or torch."""
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    state = generator.getstate() if isinstance(generator, random.Random) else generator.get_state()
    return state.tolist() if hasattr(state, "tolist") else state


def _begin_elsewhere(generator: Any) -> None:
    """Gives a generator, of the kinds of `_state_within`, another state than that of its seed."""
    if isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(_PROCESS).state
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(_PROCESS)
    else:
        generator.seed(_PROCESS)


@contextmanager
def noted_generators() -> Iterator[Drawn]:
    """A context manager that notes the generators of NumPy, Python and torch which a run makes (`Drawn.around`)."""
    drawn = Drawn()
    within = False

    def default_rng(*seed: Any, **named: Any) -> Any:
        made = real(*seed, **named)
        drawn.making(made.bit_generator)
        return made

    def noting(kind: Any, method: str) -> Any:
        def noted(self: Any, *seed: Any, **named: Any) -> Any:
            nonlocal within
            result = getattr(kind, method)(self, *seed, **named)
            if not within:
                within = True
                try:
                    drawn.making(self)
                finally:
                    within = False
            return result

        return type(kind.__name__, (kind,), {method: noted})

    real = np.random.default_rng
    kinds: list[tuple[Any, str]] = [(getattr(np.random, name), "__init__") for name in _SEEDED[1:]]
    kinds.append((random.Random, "__init__"))
    if torch := sys.modules.get("torch"):
        kinds.append((torch.Generator, "manual_seed"))
    with _everywhere([(real, default_rng), *((kind, noting(kind, how)) for kind, how in kinds)]):
        yield drawn


def generators_outside(train: Any) -> list[Any]:
    """Returns the random generators that live longer than a run of the loop `train`, each once.

    They are looked for among the global names of its function, what the function encloses or has as a default, and the
    attributes of the object that is called and of its classes.
    """
    torch = sys.modules.get("torch")
    kinds = (np.random.Generator, np.random.RandomState, random.Random, *((torch.Generator,) if torch else ()))
    spaces: list[Any] = [getattr(train, "__dict__", {})]
    functions = [train, *(vars(kind).get("__call__") for kind in type(train).__mro__)]
    spaces += [vars(kind) for kind in type(train).__mro__]
    for function in functions:
        function = getattr(function, "__wrapped__", function)
        spaces.append(getattr(function, "__globals__", {}))
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
        spaces.append(dict(enumerate([*cells, *(getattr(function, "__defaults__", None) or ())])))
    found = [value for space in spaces for value in list(space.values()) if isinstance(value, kinds)]
    return list({id(one): one for one in found}.values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def state_of(generator: Any) -> Any:
    """Returns the state of a generator of NumPy, Python or torch, for `set_state`."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    """Gives a generator a state that `state_of` returned."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def seed_of(generator: Any) -> int | None:
    """Returns the integer from which a generator was seeded; None where it does not know, or it was a list."""
    if isinstance(generator, np.random.Generator):
        seed = getattr(generator.bit_generator.seed_seq, "entropy", None)
    else:
        seed = generator.initial_seed() if hasattr(generator, "initial_seed") else None
    return int(seed) if isinstance(seed, int | np.integer) else None
