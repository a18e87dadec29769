"""A file that is only appended to, whose every write is on disk before it counts, with one writer at a time."""

import fcntl
import os
from pathlib import Path
from typing import Self


class Journal:
    """An append-only file open for writing by this process; `create` starts one, `open` resumes one.

    The file is locked (flock) before anything is read. `content` is what was found. After a failed write the
    journal is unusable until it is opened again. error: the exception that refusals raise, with one line.

    Raises FileExistsError, FileNotFoundError and other OSErrors, and `error` where another process has the file.
    """

    def __init__(self, path: str | os.PathLike[str], error: type[Exception], flags: int) -> None:
        self.path = Path(path)
        self._error = error
        self._pid = os.getpid()
        self._usable = True
        self._file = os.open(self.path, os.O_RDWR | flags, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.content = self.path.read_bytes()
        except BlockingIOError:
            self.close()
            raise error(f"{self.path}: another process has this file open") from None
        except BaseException:
            self.close()
            raise
        self._size = self._length = len(self.content)

    @classmethod
    def create(cls, path: str | os.PathLike[str], error: type[Exception]) -> Self:
        """Start a file that is not there, its directory entry on disk too."""
        journal = cls(path, error, os.O_CREAT | os.O_EXCL)
        directory = os.open(journal.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return journal

    @classmethod
    def open(cls, path: str | os.PathLike[str], error: type[Exception]) -> Self:
        """Resume the file at `path`."""
        return cls(path, error, 0)

    def keep(self, size: int) -> None:
        """Count only the first `size` bytes as whole: the next write goes there, and cuts off what is beyond it."""
        self._size = size

    def require_writable(self) -> None:
        """Raise `error` where this process must not write: closed, forked, or the file changed under it."""
        if not self._usable:
            raise self._error(f"{self.path}: closed, or a write failed: open it again")
        if os.getpid() != self._pid:
            raise self._error(f"{self.path}: opened by another process, before a fork")
        held = os.fstat(self._file)
        try:
            in_place = os.path.samestat(held, os.stat(self.path))
        except FileNotFoundError:
            in_place = False
        if not in_place or held.st_size != self._length:
            raise self._error(f"{self.path}: the file was moved or changed by something else")

    def append(self, data: bytes) -> None:
        """Write `data`; returns when it is on disk."""
        self.require_writable()
        self._usable = False
        if os.pwrite(self._file, data, self._size) != len(data):
            raise self._error(f"{self.path}: written in part (disk full?): open it again")
        os.fsync(self._file)
        self._size += len(data)
        if self._length > self._size:
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)
        self._length = self._size
        self._usable = True

    def cut(self) -> None:
        """Cut off what is beyond the whole part."""
        self.append(b"")

    def close(self) -> None:
        """Give up the lock; safe to repeat."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._usable = -1, False
