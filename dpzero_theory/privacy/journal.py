"""A file that is only appended to, whose every write is on disk before it counts, with one writer at a time."""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Self
from weakref import WeakSet

_CURES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it readable and writable, then resume"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room, then resume"),
    errno.EIO: "the disk failed; resume where the files can be read",
}


def content(path: str | os.PathLike[str]) -> bytes:
    """What a file holds. Raises OSError, with one line that says what to do, also for what is no plain file."""
    with explained(path), opened(path, "rb") as file:
        return file.read()


def opened(path: str | os.PathLike[str], mode: str, permissions: int = 0o644) -> FileIO:
    """The plain file at `path`, or a new one (mode `xb`). Raises OSError.

    The descriptor is never a bare number: whatever interrupts the caller, it is closed once nobody holds the file.
    """
    if "x" not in mode and not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
        raise OSError("not a plain file")
    return FileIO(path, mode, opener=partial(os.open, mode=permissions))


def sync_folder(path: Path) -> None:
    """Returns when the entries of a folder are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


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


class Journal:
    """An append-only file open for writing by this process; `create` starts one, `open` resumes one.

    The file is locked (flock) before anything is read. `content` is what was found. After a write that failed, or was
    interrupted, the journal is unusable until it is opened again, and one that nobody holds any more is closed; in the
    child of a fork, which would keep the lock when its parent is gone, it is closed at once. error: the exception that
    refusals raise, with one line.

    mutex: held by the thread that writes or closes; whoever makes the next line of the last holds it from there on. An
    interrupt may leave it held, by its own thread, which may enter again.

    Raises FileExistsError, FileNotFoundError and other OSErrors, and `error` where another process has the file.
    """

    _file: FileIO | None = None

    def __init__(self, path: str | os.PathLike[str], error: type[Exception], mode: str) -> None:
        self.path = Path(path)
        self._error = error
        self.mutex = threading.RLock()
        self._pid = os.getpid()
        self._usable, self._synced = True, False
        try:
            with explained(self.path):
                self._file = opened(self.path, mode)
                _open.add(self)
                self._lock(self._file)
                self.content = self._file.readall()
            self._size = self._length = len(self.content)
        except BaseException:
            self._leave()
            raise

    @classmethod
    def create(cls, path: str | os.PathLike[str], error: type[Exception]) -> Self:
        """Start a file that is not there, its directory entry on disk too."""
        journal = cls(path, error, "x+b")
        sync_folder(journal.path.parent)
        return journal

    @classmethod
    def open(cls, path: str | os.PathLike[str], error: type[Exception]) -> Self:
        """Resume the file at `path`."""
        return cls(path, error, "r+b")

    def keep(self, size: int) -> None:
        """Count only the first `size` bytes as whole: the next write goes there, and cuts off what is beyond it."""
        self._size = size

    def require_writable(self) -> None:
        """Raise `error` where this process must not write: closed, forked, or the file changed under it."""
        if os.getpid() != self._pid:
            raise self._error(f"{self.path}: opened by another process, before a fork: open it in one of them")
        if not self._usable:
            raise self._error(f"{self.path}: closed, or a write failed: open it again (resume the run)")
        held = os.fstat(self._number)
        try:
            in_place = os.path.samestat(held, os.stat(self.path))
        except OSError:
            in_place = False
        if not in_place or held.st_size != self._length:
            raise self._error(f"{self.path}: the file was moved or changed by something else: put it back, resume")

    def append(self, data: bytes, written: Callable[[], None] = lambda: None, *, sync: bool = True) -> None:
        """Write `data`; returns when it is on disk (sync=False: written), and `written`, which notes it, is done."""
        with self.mutex:
            self._append(data, written, sync)

    def _append(self, data: bytes, written: Callable[[], None], sync: bool) -> None:
        self.require_writable()
        self._usable = self._synced = False
        with explained(self.path):
            if os.pwrite(self._number, data, self._size) != len(data):
                raise self._error(f"{self.path}: written in part (disk full?): make room, then resume")
            if sync:
                self._flush()
            self._size += len(data)
            if self._length > self._size:
                os.ftruncate(self._number, self._size)
                self._synced = False
                if sync:
                    self._flush()
        self._length = self._size
        written()
        self._usable = True

    def sync(self) -> None:
        """Returns when all that was appended is on disk; at once where `close` has seen to that."""
        with self.mutex:
            if self._synced and self._file is not None and self._file.closed:
                return
            self.require_writable()
            if not self._synced:
                self._usable = False
                with explained(self.path):
                    self._flush()
                self._usable = True

    @property
    def inode(self) -> int:
        """The file's number on its file system: a copy has another one."""
        return os.fstat(self._number).st_ino

    def close(self) -> None:
        """All on disk, give up the lock; safe to repeat."""
        with self.mutex:
            try:
                if self._usable and not self._synced and os.getpid() == self._pid:
                    with explained(self.path):
                        self._flush()
            finally:
                self._leave()

    @property
    def _number(self) -> int:
        assert self._file is not None
        return self._file.fileno()

    def _flush(self) -> None:
        os.fsync(self._number)
        self._synced = True

    def _lock(self, file: FileIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = f"{self.path}: another process has this file open, or another run here: close it"
            raise self._error(said) from None

    def _leave(self) -> None:
        self._usable = False
        if self._file is not None:
            self._file.close()

    def __del__(self) -> None:
        self._leave()


_open: WeakSet[Journal] = WeakSet()


def _leave_to_parent() -> None:
    for journal in list(_open):
        journal.mutex = threading.RLock()  # which a thread of the parent's may hold
        if journal._file is not None:
            journal._file.close()


os.register_at_fork(after_in_child=_leave_to_parent)
