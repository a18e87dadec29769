"""An append-only file with one writer at a time, where every write is on disk before it counts."""

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
    """The bytes of the plain file at `path`. Raises OSError, with one line that says what to do, if there is no such
    file, if it is a folder or pipe, or if it cannot be read."""
    with explained(path), opened(path, "rb") as file:
        return file.read()


def opened(path: str | os.PathLike[str], mode: str, permissions: int = 0o644) -> FileIO:
    """Open the plain file at `path`, or make a new one if `mode` has an "x", with these permissions. Raises OSError if
    that fails, or if the file is a folder or a pipe.

    It returns a file object, not a bare descriptor, so that the file is closed even if an interrupt stops the caller.
    """
    if "x" not in mode and not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
        raise OSError("not a plain file")
    return FileIO(path, mode, opener=partial(os.open, mode=permissions))


def sync_folder(path: Path) -> None:
    """Wait until the entries of the folder at `path` are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """A context manager that raises an OSError of its block again, with the file at `path` and what to do, in one line.

    A FileExistsError is left as it is.
    """
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

    The file is locked (flock) before anything is read. The attribute `content` is what it held then. After a write that
    failed or was interrupted the journal cannot be used until it is opened again. A journal that nothing refers to any
    more is closed. In the child of a fork it is closed at once, since the child would keep the lock after its parent
    has ended.

    path, mode: the file, and how `opened` opens it. error: the class of the exceptions, each with one line, by which
    the journal refuses an action. The attribute `mutex` is a lock for threads that are about to write or close. A
    caller whose next line depends on the last one takes it before it reads the last one. An interrupt may leave the
    lock with the thread that had it, which can take it again.

    Raises FileExistsError, FileNotFoundError and other OSErrors, and `error` if another process has the file.
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
        """Start a new file at `path`; it is on disk, with its entry in the folder, when this returns.

        error: the class of the exceptions by which the journal refuses an action. Raises FileExistsError if the file
        exists.
        """
        journal = cls(path, error, "x+b")
        sync_folder(journal.path.parent)
        return journal

    @classmethod
    def open(cls, path: str | os.PathLike[str], error: type[Exception]) -> Self:
        """Resume the file at `path`, for reading its `content` and appending to it. Raises OSError if it cannot be
        opened. error: the class of the exceptions by which the journal refuses an action."""
        return cls(path, error, "r+b")

    def keep(self, size: int) -> None:
        """From now on count only the first `size` bytes of the file: the next write begins after them, and then cuts
        off what is left of the rest."""
        self._size = size

    def require_writable(self) -> None:
        """Raise the journal's error if this process must not write.

        It must not if the journal is closed, was opened before a fork, or was changed by another process.
        """
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
        """Write `data`, wait until it is on disk (unless `sync` is False), and then call `written`.

        The caller uses `written` to note in memory what the file now holds. Raises the journal's error if this process
        must not write, and OSError if writing fails; then `written` is not called.
        """
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
        """Wait until all that was appended is on disk. After `close` nothing is done, since all is there. Raises the
        journal's error or OSError if that fails."""
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
        """The file's number on its file system; a copy of the file has another one."""
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
        # This runs in the forked child. A new lock is made, because a lock that another thread of the parent held would
        # never be released here.
        journal.mutex = threading.RLock()
        if journal._file is not None:
            journal._file.close()


os.register_at_fork(after_in_child=_leave_to_parent)
