"""A folder that is there whole or not at all, and files in it that only their owner can read."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpzero_theory.privacy.ledger import sync_folder


@contextmanager
def made_whole(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """A context manager that gives its block a new folder to fill, beside `path`.

    When the block is done the folder is at `path`, on disk; after an exception it is gone. A killed process leaves it
    as `_NAME.*.new`, which nothing reads.

    mode: the folder's permissions, less the umask. Raises FileExistsError where `path` is there and not empty,
    ValueError and OSError where it cannot be made.
    """
    require_new(path)
    if path.is_mount() or path == Path.cwd():
        raise ValueError(f"folder must not be the working directory or a mount point; got {path}: use one in it")
    new = path.with_name(f"_{path.name:.200}.{os.urandom(8).hex()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir(mode)
    except OSError as error:
        raise type(error)(f"{path}: the folder cannot be made ({error.strerror}): use another") from None
    try:
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written)
        try:
            new.rename(path)
        except OSError:
            require_new(path)  # raises if another start has put its folder there first
            raise
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    sync_folder(path.parent)


def require_new(path: Path) -> None:
    """Raise FileExistsError where `path` is there and not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"{path} is there and not empty: resume the run in it, or use another folder (resume=True goes on with the"
            " model, data and settings that it was begun with)"
        )


def write_secret(path: Path, content: bytes) -> None:
    """Write `content` into a new file at `path` that its owner alone can read, whatever the umask.

    Raises OSError, and ValueError where the file system lets others read the file all the same.
    """
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)
        require_secret(path)
        file.write(content)


def require_secret(path: Path) -> None:
    """Raise ValueError where the mode of the file or folder at `path` lets anybody but its owner read, write or execute
    it, and OSError where there is none."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ValueError(
            f"{path} must be secret, and others may read or change it (mode {mode:04o}): chmod go= {path}, if nobody"
            " has read it"
        )


def resolved(path: Path) -> Path:
    """Return the path of a folder without symbolic links, so that a link to a folder gives the folder itself.

    Raises OSError where the path leads nowhere, as where links go in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise OSError(f"{path} must be a folder that can be reached; got {error}") from None
