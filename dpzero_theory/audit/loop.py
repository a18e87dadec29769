"""Runs a training loop as often as an audit needs, and keeps what the loop returns, prints and writes.

A loop runs in an empty folder. Known random bytes, known clocks and seeded generators can stand in for the operating
system's, so that two runs can be made to draw the same numbers. While it runs, this module replaces functions of `os`,
`random` and `time`, the working directory and the output streams, and puts them back. A loop is a function:

    train(records, seed, settings) -> what it releases

`records` are of the kind that the audit was given, `seed` is an integer, and `settings` are the claim's numbers and the
user's own settings, by the loop's names for them. The loop returns an array, the releases of shape (T,) or (T, k), or a
mapping with some of these outputs:

    releases     (T,) or (T, k), the noised average (or sum) of each step
    trajectory   (T + 1, d), the weights before and after each step, in place of releases, which are then their
                 differences over -step_size. Only loops with one constant step size and no momentum may return it.
    seeds        (T,), the integers that made the steps' directions and are published
    batches      T lists of record numbers; the attacker never sees them
    clean        the releases before noise is added, of the same shape; the attacker never sees them
    NAME         any other output that an attacker may see, such as losses and metrics
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
"""A training loop, a function (records, seed, settings) -> an array of releases, or a mapping of outputs by name."""

# The fields of a loop's claim that the loop is given as settings
_WORDS = ("noise_multiplier", "clip", "batch", "steps", "n", "sampling", "relation", "epsilon", "delta")
_MEMORY = Path("/dev/shm")  # Linux's file system in memory, where temporary files are fastest
_MOST_BYTES = 1 << 24  # At most this many bytes of each file are kept
_CHANGING = re.compile(r"tmp\w{8}|\d+")
"""Parts of a file's name that may change from run to run: numbers, and names that `tempfile` makes."""
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
"""The functions of the module `time` that are replaced, each together with its variant in nanoseconds."""
_BEGINS = 1_700_000_000.0  # Known clocks show this time, in seconds, when a run begins


class LoopFailed(ValueError):
    """The loop raised an error, or returned something that is not an output; the message is one line."""


@dataclass(frozen=True)
class LoopOutput:
    """What one run of a training loop returned and showed.

    Attributes:
        releases: the noised average or sum of each step, of shape (T, k) for T steps of k numbers; None if the loop
            returned neither releases nor weights from which they follow.
        clean: the releases before noise, of the same shape; None if the loop does not return them.
        batches: for each step the list of the indices of its records; None if the loop does not return them.
        seeds: the published seed of each step's directions; None if the loop does not return them.
        trajectory: the weights before and after each step, shape (T + 1, d), if the loop returned them in place of the
            releases, which were computed from them; else None.
        shown: what the attacker sees: outputs by name, printed text under `printed`, files as bytes under `file NAME`,
            and the files' names under `names of files`.
    """

    releases: Array | None
    clean: Array | None = None
    batches: list[list[int]] | None = None
    seeds: list[int] | None = None
    trajectory: NDArray[Any] | None = None
    shown: dict[str, Any] = field(default_factory=dict)


# Stands in for the operating system's source of random bytes, so that a run which reads it can be repeated: after
# start(number) `read` returns bytes that follow from the number; after start(None), and at first, the system's.
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
        # In the block `read` inverts all bits of the byte with the index `place` after each `start`, which shows
        # whether what a loop draws depends on this byte. The operating system's own bytes stay as they are.
        self._inverted = place
        try:
            yield
        finally:
            self._inverted = None


class _Clock:
    # Its time, in seconds, advances only when it is read. So times that a run measures depend only on what the run does
    def __init__(self, tick: float) -> None:
        self._tick, self._now = tick, _BEGINS

    def start(self) -> None:
        self._now = _BEGINS

    def read(self) -> float:
        self._now += self._tick
        return self._now


@contextmanager
def known_system() -> Iterator[_Entropy]:
    """A context manager in whose block known bytes can stand in for the operating system's random bytes.

    It yields an object, from which `os.urandom`, `secrets` and unseeded generators of NumPy then read. At first they
    get the system's bytes; after a call of its method start(number) with an integer they get the bytes of an endless
    sequence that this number determines, from its first byte on, and after start(None) the system's again. A module
    that took `urandom` by name before the block, and torch's `seed()`, always read the system's bytes. After the block
    the global random generators of Python, NumPy and torch (if it is loaded) are as they were before.
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
    """A training loop with what it claims; its method `run` makes every run of it.

    Attributes:
        train: the loop, a function (records, seed, settings) -> its releases, an array of shape (T,) or (T, k) for T
            steps, or a mapping with them and other outputs by name. `settings` is a dictionary with all fields of the
            claim but `average`, such as "clip" (or the loop's name for it in `view.names`), and the settings below.
        records: the data on which `run` calls the loop if it is given no other.
        claim, view: what the loop claims, and what an attacker sees.
        settings: what the loop is given in addition to the claim's numbers, by the loop's own names.
        entropy: what stands in for the operating system's random bytes in the audit, as `known_system` yields it.
        count: how many runs were made.
        from_weights: whether releases are computed from weights, because the loop returns none.
        clock: what stands in for the process's clocks in a block of the method `clocks`, which sets it; else None.
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
        # The working directory of all runs; it is removed together with this object
        folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)).resolve()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    @contextmanager
    def clocks(self, tick: float) -> Iterator[None]:
        """A context manager in whose block every run begins at the same time, and clocks advance only when read.

        Times that a run measures then depend only on what the run does.

        Args:
            tick: by how many seconds all clocks advance whenever one is read; with 0 they stand still.
        """
        before, self.clock = self.clock, (clock := _Clock(tick))
        seconds = [(time, name, clock.read) for name in _CLOCKS]
        with _replaced([*seconds, *((time, f"{name}_ns", lambda: int(1e9 * clock.read())) for name in _CLOCKS)]):
            try:
                yield
            finally:
                self.clock = before

    def setting(self, name: str) -> str:
        """Return the loop's own name for the setting that the audit calls `name`, such as "lr" for "step_size"."""
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
            stream: an integer from which the bytes follow that the run reads in place of the operating system's random
                bytes, so that it can be repeated; if None, it reads the system's.
            changes: settings to replace, by the audit's names for them, such as noise_multiplier or step_size.

        Raises:
            LoopFailed: the loop raised an error or SystemExit, or its releases, clean releases or weights are not
                numbers with a row for each step.
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
    # `folder` is the working directory of the block. The dictionary is empty in the block; after it, it has the text
    # that was printed, logged and warned under "printed", the contents of each file in the folder under "file NAME",
    # and the files' names under "names of files"; the folder is emptied. Output that C code writes to the process's
    # streams, and files in other folders, are not seen.
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
        # What may change from run to run in a file's name becomes #; names that are then equal end in (2), (3), ...
        key = stem = f"file {_CHANGING.sub('#', name)}"
        count = 1
        while key in contents:
            key = f"{stem} ({(count := count + 1)})"
        with path.open("rb") as file:
            contents[key] = file.read(_MOST_BYTES)
    return contents
