"""A file that is only appended to, whose every write is on disk before it counts, with one writer at a time."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_CURES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it readable and writable, then resume"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room, then resume"),
    errno.EIO: "the disk failed; resume where the files can be read",
}


def content(path: str | os.PathLike[str]) -> bytes:
    """What a file holds. Raises OSError, with one line that says what to do, also for what is no plain file."""
    with explained(path):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(file, "rb") as opened:
            _require_plain(file)
            return opened.read()


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """The block's OSErrors, FileExistsError apart, say in one line which file it is and what to do."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        said = type(error)(f"{path}: {error.strerror or error}: {_CURES.get(error.errno or 0, 'put it back')}")
        said.errno = error.errno
        raise said from None


def _require_plain(file: int) -> None:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError("not a plain file")


class Journal:
    """An append-only file open for writing by this process; `create` starts one, `open` resumes one.

    The file is locked (flock) before anything is read. `content` is what was found. After a write that failed, or was
    interrupted, the journal is unusable until it is opened again, and one that nobody holds any more is closed. error:
    the exception that refusals raise, with one line.

    Raises FileExistsError, FileNotFoundError and other OSErrors, and `error` where another process has the file.
    """

    _file = -1

    def __init__(self, path: str | os.PathLike[str], error: type[Exception], flags: int) -> None:
        self.path = Path(path)
        self._error = error
        self._pid = os.getpid()
        self._usable = True
        try:
            with explained(self.path):
                self._file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | flags, 0o644)
                _require_plain(self._file)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.content = content(self.path)
        except BlockingIOError:
            self.close()
            raise error(f"{self.path}: another process has this file open, or another run here: close it") from None
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
            raise self._error(f"{self.path}: closed, or a write failed: open it again (resume the run)")
        if os.getpid() != self._pid:
            raise self._error(f"{self.path}: opened by another process, before a fork")
        held = os.fstat(self._file)
        try:
            in_place = os.path.samestat(held, os.stat(self.path))
        except OSError:
            in_place = False
        if not in_place or held.st_size != self._length:
            raise self._error(f"{self.path}: the file was moved or changed by something else: put it back, resume")

    def append(self, data: bytes, written: Callable[[], None] = lambda: None) -> None:
        """Write `data`; returns when it is on disk and `written`, which notes that, is done."""
        self.require_writable()
        self._usable = False
        with explained(self.path):
            if os.pwrite(self._file, data, self._size) != len(data):
                raise self._error(f"{self.path}: written in part (disk full?): make room, then resume")
            os.fsync(self._file)
            self._size += len(data)
            if self._length > self._size:
                os.ftruncate(self._file, self._size)
                os.fsync(self._file)
        self._length = self._size
        written()
        self._usable = True

    @property
    def inode(self) -> int:
        """The file's number on its file system: a copy has another one."""
        return os.fstat(self._file).st_ino

    def close(self) -> None:
        """Give up the lock; safe to repeat."""
        file, self._file, self._usable = self._file, -1, False
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        try:  # noqa: SIM105
            self.close()
        except AttributeError:  # at the very end of the process, whose end closes it
            pass
