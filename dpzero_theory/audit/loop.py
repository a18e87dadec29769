"""Runs a training loop as often as an audit needs, and keeps what the loop returns, prints and writes.

A loop is a function

    train(records, seed, settings) -> outputs

`records` is the data, `seed` an integer, and `settings` a dictionary with the numbers of the claim and the user's own
settings, under the loop's names for them. The loop returns an array, which is its releases, or a mapping with some of
these outputs:

    releases     the noised average or sum of each of T steps, shape (T,) or (T, k)
    trajectory   instead of releases, the weights before and after each step, shape (T + 1, d). Releases are then their
                 differences over -step_size, so the step size must be constant, and there may be no momentum
    seeds        the published integers from which the steps' directions follow, shape (T,)
    batches      a list of record indices for each step; the attacker never sees it
    clean        the releases before noise is added, in their shape; the attacker never sees them
    NAME         any other output that an attacker may see, such as losses and metrics

While a loop runs, its working directory is an empty folder, output streams are captured, and functions of `os`,
`random` and `time` are replaced, so that known random bytes and clocks can stand in for the system's. Afterwards all is
put back.
"""

import hashlib
import io
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.datasets import Records
from dpzero_theory.check import Array

Train = Callable[[Records, int, dict[str, Any]], Any]
"""A training loop: (records, seed, settings by name) -> an array of releases, one row a step, or outputs by name."""

# The fields of `Claim` that the loop is given as settings
_WORDS = ("noise_multiplier", "clip", "batch", "steps", "n", "sampling", "relation", "epsilon", "delta")
_MEMORY = Path("/dev/shm")  # Linux's file system in memory, where temporary files are fastest
_MOST_BYTES = 1 << 24  # At most this many bytes of each file are kept
_CHANGING = re.compile(r"tmp\w{8}|\d+")
"""Parts of a file's name that may differ between runs: numbers, and names that `tempfile` makes."""
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
"""The functions of the module `time` that are replaced, together with their variants in nanoseconds."""
_BEGINS = 1_700_000_000.0  # Known clocks show this time, in seconds, when a run begins


class LoopFailed(ValueError):
    """Raised if the loop raises an error, or returns releases or weights that are not a non-empty array of numbers."""


@dataclass(frozen=True)
class LoopOutput:
    """What one run of a training loop returned and showed.

    Attributes:
        releases: the noised average or sum of each step, shape (T, k) for T steps of k numbers; None if the loop
            returned neither releases nor weights from which they follow.
        clean: the releases before noise, in their shape; None if the loop did not return them.
        batches: a list of record indices for each step; None if the loop did not return it.
        seeds: the published seed of each step's directions; None if the loop did not return them.
        trajectory: the weights before and after each step, shape (T + 1, d), if the loop returned them instead of
            releases, which were then computed from them; else None.
        shown: what the attacker sees: outputs by name, printed text under "printed", the bytes of each file under "file
            NAME", and the files' names under "names of files".
    """

    releases: Array | None
    clean: Array | None = None
    batches: list[list[int]] | None = None
    seeds: list[int] | None = None
    trajectory: NDArray[Any] | None = None
    shown: dict[str, Any] = field(default_factory=dict)


# Replaces the operating system's source of random bytes, so that runs which read it can be repeated. After
# start(number), `read` returns bytes that follow from the number; after start(None), and at first, the system's bytes.
class _Entropy:
    def __init__(self) -> None:
        self.number: int | None = None
        self._real, self.taken = os.urandom, 0  # `taken` counts the bytes read since the last `start` with a number
        self._inverted: int | None = None

    def start(self, number: int | None) -> None:
        self.number, self.taken = number, 0

    def read(self, size: int) -> bytes:
        if self.number is None:
            return self._real(size)
        first, self.taken = self.taken, self.taken + size
        found = bytearray(hashlib.shake_256(f"{self.number} {self.taken}".encode()).digest(size))
        if self._inverted is not None and first <= self._inverted < self.taken:
            found[self._inverted - first] ^= 0xFF
        return bytes(found)

    @contextmanager
    def inverted(self, place: int) -> Iterator[None]:
        # In the block, `read` inverts all bits of the byte at index `place` after each start(number), to show whether
        # what a loop draws depends on this byte. The operating system's own bytes are not changed.
        self._inverted = place
        try:
            yield
        finally:
            self._inverted = None


class _Clock:
    # A clock whose time, in seconds, advances only when it is read, so that measured times follow from what a run does
    def __init__(self, tick: float) -> None:
        self._tick, self._now = tick, _BEGINS

    def start(self) -> None:
        self._now = _BEGINS

    def read(self) -> float:
        self._now += self._tick
        return self._now


@contextmanager
def known_system() -> Iterator[_Entropy]:
    """A context manager in whose block known bytes can replace the operating system's random bytes.

    It yields an object from which `os.urandom`, `secrets` and unseeded generators of NumPy read in the block. After a
    call of its method start(number) with an integer, they get an endless sequence of bytes that the integer determines,
    from its beginning; after start(None), and at first, the system's bytes. Modules that imported `urandom` by name
    before the block, and torch's `seed()`, always get the system's bytes. After the block, the global generators of
    Python, NumPy and torch (if loaded) have their earlier states.
    """
    entropy, torch = _Entropy(), sys.modules.get("torch")
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    state = torch.get_rng_state() if torch else None
    try:
        with _replaced([(os, "urandom", entropy.read), (random, "_urandom", entropy.read)]):
            yield entropy
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(state)


@contextmanager
def _replaced(changes: list[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _seed_global_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@dataclass
class Loop:
    """A training loop with its claim, whose method `run` makes every run of it.

    Attributes:
        train: the loop, a function (records, seed, settings) -> an array of releases, or a mapping of outputs by name.
        records: the data of a run that is given no other data.
        claim, view: what the loop's author claims, and what an attacker sees.
        settings: what the loop is given in addition to the numbers of the claim, by its own names.
        entropy: the object that `known_system` yields, which stands in for the operating system's random bytes.
        count: how many runs were made.
        from_weights: whether releases are computed from weights, because the loop returns no releases.
        clock: in a block of the method `clocks`, the object that replaces the process's clocks; else None.
    """

    train: Train
    records: Records
    claim: Claim
    view: View
    settings: Mapping[str, Any]
    entropy: _Entropy = field(default_factory=_Entropy)
    count: int = 0
    from_weights: bool = False
    clock: _Clock | None = None

    @cached_property
    def _folder(self) -> Path:
        # The working directory of all runs, which is deleted when this object is
        folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)).resolve()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    @contextmanager
    def clocks(self, tick: float) -> Iterator[None]:
        """A context manager in whose block every run begins at the same time, and clocks advance only when they are
        read.

        Measured times then depend only on what a run does. Each read advances all clocks by `tick` seconds; with 0 they
        stand still.
        """
        before, self.clock = self.clock, (clock := _Clock(tick))
        seconds = [(time, name, clock.read) for name in _CLOCKS]
        with _replaced([*seconds, *((time, f"{name}_ns", lambda: int(1e9 * clock.read())) for name in _CLOCKS)]):
            try:
                yield
            finally:
                self.clock = before

    def setting(self, name: str) -> str:
        """Return the loop's own name of the setting that the audit calls `name`, such as "lr" for "step_size"."""
        return self.view.names.get(name, name)

    @property
    def step_size(self) -> float | None:
        """The step size that the loop is given; None if its settings have none."""
        size = self.settings.get(self.setting("step_size"))
        return None if size is None else float(size)

    def run(
        self,
        records: Records | None = None,
        *,
        seed: int = 0,
        global_seed: int | None = None,
        stream: int | None = None,
        **changes: Any,
    ) -> LoopOutput:
        """Make one run of the loop, and return what the loop returned and showed.

        Args:
            records: the data; the loop's own if None.
            seed: the loop's seed.
            global_seed: the seed of the global random generators of Python, NumPy and torch; `seed` if None.
            stream: an integer that determines the bytes that replace the operating system's random bytes in the run;
                None to read the system's bytes.
            changes: settings to replace, such as noise_multiplier or step_size, by the audit's names for them
                (`View.names`).

        Raises:
            LoopFailed: the loop raised an error or SystemExit, or its releases, clean releases or weights are not a
                non-empty array of numbers.
        """
        self.count += 1
        self.entropy.start(stream)
        if self.clock is not None:
            self.clock.start()
        given = {self.setting(word): getattr(self.claim, word) for word in _WORDS}
        given |= dict(self.settings) | {self.setting(name): value for name, value in changes.items()}
        with _watch(self._folder) as beside:
            _seed_global_generators(seed if global_seed is None else global_seed)
            try:
                returned = self.train(self.records if records is None else records, seed, given)
            except (Exception, SystemExit) as error:
                raise LoopFailed(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        outputs = dict(returned) if isinstance(returned, Mapping) else {"releases": returned}
        return self._output(outputs, given, beside)

    def _output(self, outputs: dict[str, Any], given: Mapping[str, Any], beside: Mapping[str, Any]) -> LoopOutput:
        # `outputs` are what the loop returned under the settings `given`, and `beside` what it printed and wrote
        shown = {name: value for name, value in outputs.items() if self.view.sees(name)} | dict(beside)
        releases, step = outputs.get("releases"), given.get(self.setting("step_size"))
        batches, seeds, clean = (outputs.get(name) for name in ("batches", "seeds", "clean"))
        path = None
        if releases is None and "trajectory" in outputs and step:
            self.from_weights, path = True, np.asarray(_plain(outputs["trajectory"]))
            releases = -np.diff(_rows("trajectory", path), axis=0) / float(step)
        return LoopOutput(
            None if releases is None else _rows("releases", releases),
            None if clean is None else _rows("clean", clean),
            None if batches is None else [[int(i) for i in batch] for batch in batches],
            None if seeds is None else [int(seed) for seed in seeds],
            path,
            shown,
        )


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _rows(name: str, value: Any) -> Array:
    try:
        rows = np.asarray(_plain(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise LoopFailed(f"{name} must be numbers; got {type(value).__name__}") from None
    if rows.ndim == 0 or not rows.size:
        raise LoopFailed(f"{name} must have a row for each step; got shape {rows.shape}")
    return rows.reshape(len(rows), -1)


@contextmanager
def _watch(folder: Path) -> Iterator[dict[str, bytes | str]]:
    # The block runs in the working directory `folder`, which is emptied after it. The yielded dictionary is filled
    # after the block: "printed" has the text that was printed, logged and warned, "file NAME" the contents of each file
    # in the folder, and "names of files" their names. Not seen are files in other folders, and output that C code
    # writes to the process's streams.
    shown: dict[str, bytes | str] = {}
    before, text = Path.cwd(), io.StringIO()
    handler = logging.StreamHandler(text)
    os.chdir(folder)
    logging.getLogger().addHandler(handler)
    try:
        with redirect_stdout(text), redirect_stderr(text), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            with np.errstate(all="ignore"):
                yield shown
        said = "".join(f"{warning.category.__name__}: {warning.message}\n" for warning in warned)
        shown |= {"printed": text.getvalue() + said, **_files(folder)}
    finally:
        logging.getLogger().removeHandler(handler)
        os.chdir(before)
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _files(folder: Path) -> dict[str, bytes | str]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [str(path.relative_to(folder)) for path in paths]
    contents: dict[str, bytes | str] = {"names of files": " ".join(re.sub(r"tmp\w{8}", "tmp", name) for name in names)}
    for path, name in zip(paths, names, strict=True):
        # Parts of a name that may differ between runs become #. If names are then equal, (2), (3), ... are added.
        key = stem = f"file {_CHANGING.sub('#', name)}"
        count = 1
        while key in contents:
            key = f"{stem} ({(count := count + 1)})"
        with path.open("rb") as file:
            contents[key] = file.read(_MOST_BYTES)
    return contents
