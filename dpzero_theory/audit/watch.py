"""Everything that a run shows beside what it returns: what it prints, logs and warns of, the files that it leaves."""

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

_LARGEST = 1 << 24
_MEMORY = Path("/dev/shm")
_WRITING = os.O_WRONLY | os.O_RDWR
_CHANGING = re.compile(r"tmp\w{8}|\d+")
"""What changes in the name of a file from run to run: a counter, a number, eight letters of `tempfile`."""


def working_folder(owner: object) -> Path:
    """An empty folder that is gone with its owner, in memory where that can be."""
    folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)).resolve()
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


class Watch:
    """What was shown: `shown` after the block of `watch`, texts and files as bytes by `printed`, `file NAME`."""

    def __init__(self) -> None:
        self.shown: dict[str, bytes | str] = {}


@contextmanager
def watch(folder: Path) -> Iterator[Watch]:
    """The working directory is `folder`, empty at first and again afterwards; nothing is printed meanwhile."""
    found, before, opened = Watch(), Path.cwd(), list[str]()
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
            yield found
        said = "".join(f"{warning.category.__name__}: {warning.message}\n" for warning in warned)
        found.shown = {"printed": read() + said, **_files(folder, opened)}
    finally:
        os.chdir(before)
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


@contextmanager
def _printed() -> Iterator[Any]:
    """Prints, logs, and what is written to the process's standard streams below Python; read by the call yielded."""
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
            below = os.pread(streams.fileno(), _LARGEST, 0).decode(errors="replace")
            return text.getvalue() + log.getvalue() + below

        found: list[str] = []
        yield lambda: found[0]
        found.append(read())


_listeners: list[list[str]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _listeners and isinstance(arguments[0], str) and (arguments[2] or 0) & _WRITING:
        _listeners[-1].append(os.path.abspath(arguments[0]))


@contextmanager
def _opening(opened: list[str]) -> Iterator[None]:
    """Names of files that Python opens for writing. An audit hook cannot be removed: there is one, for all."""
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
    """`torch.save` opens files below Python."""
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
    """Every file that was left, here by `file NAME`, elsewhere by `file WHOLE NAME`, and their `names of files`.

    Names that differ in numbers are the same, and told apart by a count: runs are compared file by file.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    elsewhere = [Path(name) for name in dict.fromkeys(opened) if not Path(name).is_relative_to(folder)]
    paths += [path for path in elsewhere if path.is_file() and path.suffix != ".pyc"]
    names = [str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in paths]
    found: dict[str, bytes | str] = {"names of files": " ".join(re.sub(r"tmp\w{8}", "tmp", name) for name in names)}
    for path, name in zip(paths, names, strict=True):
        with path.open("rb") as file:
            found[_new(f"file {_CHANGING.sub('#', name)}" if _CHANGING.search(name) else f"file {name}", found)] = (
                file.read(_LARGEST)
            )
    return found


def _new(name: str, taken: dict[str, Any]) -> str:
    return (
        name if name not in taken else next(n for k in range(2, len(taken) + 3) if (n := f"{name} ({k})") not in taken)
    )
