"""A folder that is there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpzero_theory.privacy.ledger import sync_folder


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """A context manager that gives its block a new folder to fill, beside `path`.

    When the block is done the folder is at `path`, on disk; after an exception it is gone. A killed process leaves it
    as `_NAME.*.new`, which nothing reads. Raises FileExistsError where `path` is there and not empty, ValueError where
    it is the working directory, and OSError where it cannot be made.
    """
    require_new(path)
    if path.is_mount() or path == Path.cwd():
        raise ValueError(f"folder must not be the working directory or a mount point; got {path}: use one in it")
    new = path.with_name(f"_{path.name:.200}.{os.urandom(8).hex()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
    except OSError as error:
        raise type(error)(f"{path}: the folder cannot be made ({error.strerror}): use another") from None
    try:
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written)
        require_new(path)  # another start may have put its folder there meanwhile
        new.rename(path)
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
