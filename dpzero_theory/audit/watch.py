"""Catches what a run shows beside what it returns: prints, logs, warnings, and the files that it leaves."""

import io
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

_MOST_BYTES = 1 << 24
"""The audit keeps the first so many bytes of each file that a run writes, and of what it writes to standard streams."""

_MEMORY = Path("/dev/shm")  # Linux's file system in memory, where temporary files are fastest
_WRITING = os.O_WRONLY | os.O_RDWR  # A file is opened for writing if its flags have one of these bits
_CHANGING = re.compile(r"tmp\w{8}|\d+")
"""Matches the parts of a file's name that may change from run to run, numbers and names that `tempfile` makes."""


def working_folder(owner: object) -> Path:
    """Returns a new empty folder, in memory where possible; it is removed when `owner` is garbage-collected."""
    folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)).resolve()
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


class Watch:
    """What a run of a training loop printed and wrote, available once the block of `watch` has ended.

    Attributes:
        shown: printed text under `printed`, files as bytes under `file NAME`, their names under `names of files`.
    """

    def __init__(self) -> None:
        self.shown: dict[str, bytes | str] = {}


@contextmanager
def watch(folder: Path) -> Iterator[Watch]:
    """A context manager in whose block `folder` is the working directory and all prints are caught instead of shown.

    The folder must be empty, and is emptied afterwards. Yields a `Watch` that has, after the block, what the block
    printed and wrote.
    """
    seen, before, opened = Watch(), Path.cwd(), list[str]()
    os.chdir(folder)
    try:
        with (
            _printed() as read,
            _opening(opened),
            warnings.catch_warnings(record=True) as warned,
            np.errstate(all="ignore"),
        ):
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            yield seen
        said = "".join(f"{warning.category.__name__}: {warning.message}\n" for warning in warned)
        seen.shown = {"printed": read() + said, **_files(folder, opened)}
    finally:
        os.chdir(before)
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


@contextmanager
def _printed() -> Iterator[Any]:
    """A context manager that catches prints, logs, and what C code writes to the standard streams.

    Yields a function that returns all of it once the block has ended.
    """
    text, log = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    with ExitStack() as stack, tempfile.TemporaryFile(dir=_MEMORY if _MEMORY.is_dir() else None) as streams:
        for stream in (1, 2):
            kept = os.dup(stream)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, stream)
            os.dup2(streams.fileno(), stream)
        logging.getLogger().addHandler(handler)
        stack.callback(logging.getLogger().removeHandler, handler)
        stack.enter_context(redirect_stdout(text))
        stack.enter_context(redirect_stderr(text))

        def read() -> str:
            below = os.pread(streams.fileno(), _MOST_BYTES, 0).decode(errors="replace")
            return text.getvalue() + log.getvalue() + below

        whole: list[str] = []
        yield lambda: whole[0]
        whole.append(read())


_listeners: list[list[str]] = []
"""For each block of `watch` that is running, outermost first, the list of files that it opened for writing."""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _listeners and isinstance(arguments[0], str) and (arguments[2] or 0) & _WRITING:
        _listeners[-1].append(os.path.abspath(arguments[0]))


@contextmanager
def _opening(opened: list[str]) -> Iterator[None]:
    """A context manager that appends to `opened` the names of files that Python opens for writing in its block.

    An audit hook (`sys.addaudithook`) cannot be removed, so one hook serves all `watch` blocks.
    """
    if not hasattr(sys, "_dpzero_audit_hears"):
        sys.addaudithook(_hear)
        sys._dpzero_audit_hears = True  # type: ignore[attr-defined]
    _listeners.append(opened)
    try:
        with _torch_saving(opened):
            yield
    finally:
        _listeners.pop()


@contextmanager
def _torch_saving(opened: list[str]) -> Iterator[None]:
    """A context manager that appends to `opened` the files that `torch.save` writes in its block.

    Its C++ code opens files without an event that Python's audit hooks could see.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    real = torch.save

    def save(value: Any, f: Any, *others: Any, **named: Any) -> None:
        if isinstance(f, str | os.PathLike):
            opened.append(os.path.abspath(f))
        real(value, f, *others, **named)

    torch.save = save
    try:
        yield
    finally:
        torch.save = real


def _files(folder: Path, opened: list[str]) -> dict[str, bytes | str]:
    """Returns the contents of every file that a run left, and the files' names under `names of files`.

    `folder` is the run's working directory, and `opened` are the files that it opened for writing. The key of a file in
    the folder is `file NAME`, that of a file elsewhere `file PATH`. Numbers in names become `#`, and files with equal
    keys are counted, so that files of two runs can be compared although their names change.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    elsewhere = [Path(name) for name in dict.fromkeys(opened) if not Path(name).is_relative_to(folder)]
    paths += [path for path in elsewhere if path.is_file() and path.suffix != ".pyc"]
    names = [str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in paths]
    contents: dict[str, bytes | str] = {"names of files": " ".join(re.sub(r"tmp\w{8}", "tmp", name) for name in names)}
    for path, name in zip(paths, names, strict=True):
        with path.open("rb") as file:
            contents[
                _new(f"file {_CHANGING.sub('#', name)}" if _CHANGING.search(name) else f"file {name}", contents)
            ] = file.read(_MOST_BYTES)
    return contents


def _new(name: str, taken: dict[str, Any]) -> str:
    return (
        name if name not in taken else next(n for k in range(2, len(taken) + 3) if (n := f"{name} ({k})") not in taken)
    )
