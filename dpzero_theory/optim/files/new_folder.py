"""A folder that is there whole or not at all, and files in it that only their owner can read.

A new folder is filled beside its place, in `_NAME.*.new`, and renamed when it is done. What a killed start leaves there
is removed by the next start or resumption at that place: the lock on a file in it is free, as its process is dead.
"""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from dpzero_theory.privacy.journal import opened, sync_folder

_ALIVE, _NEW = "alive", "new"
"""In the folder beside the place, the locked file of the process that fills it, and the folder that is filled."""


@contextmanager
def made_whole(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """A context manager that gives its block a new folder to fill.

    When the block is done the folder is at `path`, on disk; after an exception it is gone.

    mode: the folder's permissions, less the umask. Until it is in its place only its owner can look into it. Raises
    FileExistsError where `path` is there and not empty, ValueError and OSError where it cannot be made.
    """
    require_new(path)
    if path.is_mount() or path == Path.cwd():
        raise ValueError(f"folder must not be the working directory or a mount point; got {path}: use one in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_dead_starts(path)
        place, alive = _place_for(path, mode)
    except OSError as error:
        raise type(error)(f"{path}: the folder cannot be made ({error.strerror}): use another") from None
    try:
        with alive:
            new = place / _NEW
            yield new
            for file in new.rglob("*"):
                if file.is_file():
                    with opened(file, "rb") as written:
                        os.fsync(written)
            try:
                new.rename(path)
            except OSError:
                require_new(path)  # raises if another start has put its folder there first
                raise
            shutil.rmtree(place, ignore_errors=True)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _place_for(path: Path, mode: int) -> tuple[Path, FileIO]:
    """Make a folder beside `path`, in which the new folder is filled, and a locked file in it.

    Returns the folder beside `path` and the open file. The lock says to other starts that this process is alive. mode:
    the new folder's permissions.
    """
    while True:
        place = path.with_name(f"_{path.name:.200}.{os.urandom(8).hex()}.new")
        try:
            place.mkdir(0o700)
            alive = opened(place / _ALIVE, "xb", 0o600)
            try:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (place / _NEW).mkdir(mode)
                return place, alive
            except BaseException:
                alive.close()
                raise
        except (FileNotFoundError, BlockingIOError):  # another start has removed this folder, or locked it to do so
            if not path.parent.is_dir():
                raise
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def require_new(path: Path) -> None:
    """Raise FileExistsError where `path` is there and not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"{path} is there and not empty: resume the run in it, or use another folder (resume=True goes on with the"
            " model, data and settings that it was begun with)"
        )


def clear_dead_starts(path: Path) -> None:
    """Remove what killed starts of a folder at `path` have left; one that goes on holds a lock, a killed one none."""
    name = re.compile(re.escape(f"_{path.name:.200}.") + r"[0-9a-f]{16}\.new")
    try:
        left = [found for found in path.parent.iterdir() if name.fullmatch(found.name)]
    except OSError:
        return
    for place in left:
        with suppress(OSError):  # raised where the start still runs and holds its lock, or has just removed its files
            if not any(place.iterdir()):
                place.rmdir()
                continue
            with opened(place / _ALIVE, "r+b") as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place)


def write_secret(path: Path, content: bytes) -> None:
    """Write `content` into a new file at `path` that its owner alone can read, whatever the umask.

    Raises OSError, and ValueError where the file system lets others read the file all the same.
    """
    with opened(path, "xb", 0o600) as file:
        os.fchmod(file.fileno(), 0o600)
        require_secret(path)
        if file.write(content) != len(content):
            raise OSError(f"{path}: written in part (disk full?)")


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
