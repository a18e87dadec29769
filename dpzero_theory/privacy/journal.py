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
    """The bytes of a plain file. Raises OSError, with what to do in one line, if it can't be read or is no plain
    file."""
    with explained(path), opened(path, "rb") as file:
        return file.read()


def opened(path: str | os.PathLike[str], mode: str, permissions: int = 0o644) -> FileIO:
    """Open the plain file at `path`, or make a new one (mode `xb`). Raises OSError.

    It returns a file object, not a bare descriptor, so that the file is closed even if an interrupt stops the caller.
    """
    if "x" not in mode and not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
        raise OSError("not a plain file")
    return FileIO(path, mode, opener=partial(os.open, mode=permissions))


def sync_folder(path: Path) -> None:
    """Wait until the entries of a folder are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise an OSError of this block again, unless it is a FileExistsError, with the file and what to do in one
    line."""
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

    The file is locked (flock) before anything is read. `content` is what it held then. After a write that failed or was
    interrupted the journal can't be used until it is opened again. A journal that nothing refers to any more is closed.
    In the child of a fork it is closed at once, since the child would keep the lock after its parent has ended.

    error: the class of the exceptions by which the journal refuses something, each with one line. mutex: a lock for
    threads that are about to write or close. A caller whose next line depends on the last one takes it before it reads
    the last one. An interrupt may leave the lock with the thread that had it, which can take it again.

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
        """Start a new file; it is on disk, with its entry in the folder, when this returns."""
        journal = cls(path, error, "x+b")
        sync_folder(journal.path.parent)
        return journal

    @classmethod
    def open(cls, path: str | os.PathLike[str], error: type[Exception]) -> Self:
        """Resume the file at `path`."""
        return cls(path, error, "r+b")

    def keep(self, size: int) -> None:
        """Keep only the first `size` bytes: the next write begins there and cuts off what follows it."""
        self._size = size

    def require_writable(self) -> None:
        """Raise `error` if this process must not write: the journal is closed or forked, or another process changed
        it."""
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
        """Write `data` and wait until it is on disk (not with sync=False); then call `written`, which takes note of
        it."""
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
        """Wait until all that was appended is on disk. After `close` it is."""
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
        """Wait until everything is on disk and give up the lock. A second call does nothing."""
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
        journal.mutex = threading.RLock()  # a thread of the parent may hold the old one
        if journal._file is not None:
            journal._file.close()


os.register_at_fork(after_in_child=_leave_to_parent)
