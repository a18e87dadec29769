"""A run's privacy budget on disk: one SQLite file that survives crashes and never counts too few releases.

A release is what one private step publishes. The file holds the budget, the plan, and a log to which rows are only
added. A payment row is written before the noise of its releases is drawn. A record row holds the numbers that a release
published. Each row has a hash of itself and of the row before, so edited, lost or repeated rows are detected. The
hashes are no signature: whoever rewrites the file can recompute them. Rows missing at the end are not detected, so
never restore a ledger from a backup.

On a file system whose fsync is durable, the following is guaranteed:

- `spend` returns only after its payment is on disk, so every release made after it is counted.
- The number of a paid release is never handed out again, even if a crash prevented the release.
- A copy of the file has another inode number and is refused, unless it is opened with `moved=True`. A cloned disk is
  not detected.
- After its process was killed, the file is refused without its write-ahead log, `NAME-wal` beside it.
- Only one process can write at a time (flock on the file), and never the child of a fork.
- A release beyond the planned number is refused.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
import time
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from weakref import finalize

from dpzero_theory.check import choice, entries, integer, printable, real
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Step, step_of

_FORMAT = "dpzero-run-5"
_SCHEMA = """
CREATE TABLE header (begun TEXT NOT NULL, hash TEXT NOT NULL, inode INTEGER, moves INTEGER, open INTEGER);
CREATE TABLE log (row INTEGER PRIMARY KEY, release INTEGER NOT NULL, spent INTEGER NOT NULL, sums BLOB, chain BLOB);
"""
# A row of the log without sums is a payment for the releases from `release` to `spent` - 1. A row with sums is the
# record of `release`. In both `spent` is the number of releases that are paid for by then.
_UNLIMITED = 2**62  # the number of releases that a file without a budget counts as paid for
_BUDGET = {"target_epsilon": float, "target_delta": float, "steps": int, "block": int, "step": dict}
_BEGUN = {"format": str, "run": str, **_BUDGET}  # the header's entries with their types, `_BUDGET` only with a budget
_STEP: dict[str, type] = {  # the entries of the header's "step", from which `step.step_of` makes the step again
    "noise_multiplier": float, "sample_rate": float, "relation": str, "sampling": str, "mechanism": str,
    "coordinates": int,
}  # fmt: skip
_BUDGET_ROUNDING = 1e-9  # by this share a plan may exceed the target epsilon, as closed forms are rounded


class LedgerError(RuntimeError):
    """Raised if a ledger's file is damaged, was copied or moved, is open elsewhere or cannot be written, and for a
    release that is not paid for."""


class BudgetSpentError(LedgerError):
    """Raised if no further release can be paid for: all planned releases are spent, or the file has no budget."""


@dataclass(frozen=True)
class Account:
    """The content of a ledger's file, after all hashes were verified.

    Attributes:
        run: the text that says what the file was created for.
        digest: the SHA-256 of the header (plan, budget and `run`), in hexadecimal.
        inode: the file's inode number when it was created or last opened with `moved=True`.
        moves: how often the file was opened with `moved=True`.
        open: True if a process has the file open for writing, or was killed while it had; rows may be in the
            write-ahead log.
        spent: the number of releases that are paid for.
        records: a pair (number of the release, released bytes) for each recorded release, in order.
        step, steps, block, target_epsilon, target_delta: plan and budget as given to `Ledger.create`; `block` releases
            are paid for at once. In a file without a budget `step` is None, and the other four have no meaning.
    """

    run: str
    digest: str
    inode: int
    moves: int
    open: bool
    spent: int
    records: list[tuple[int, bytes]]
    step: Step | None = None
    steps: int = _UNLIMITED
    block: int = 1
    target_epsilon: float = 0.0
    target_delta: float = 0.0


class Ledger(AbstractContextManager["Ledger"]):
    """The privacy budget of one run on a data set, open for writing by this process; a context manager.

    Make a ledger by `Ledger.create`, resume it by `Ledger.open`, or make a file without a budget by
    `Ledger.for_records`. Only the thread that opened a ledger may use it. Methods raise LedgerError if the file is
    damaged or cannot be written; `spend` and `record` also raise it in the child of a fork.

    Attributes:
        path: the path of the file.
        account: the content of the file when it was opened.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, lock: int | None, account: Account) -> None:
        self.path, self._db, self._pid = path, db, os.getpid()
        self._end = finalize(self, _close, db, lock, self._pid)  # closes the file also if nobody calls `close`
        self._level = ""  # what PRAGMA synchronous was last set to; nothing before the first write
        self.account, self._spent = account, account.spent

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        target_epsilon: float,
        target_delta: float,
        step: Step,
        steps: int,
        block: int = 1,
        run: str = "",
    ) -> Self:
        """Creates and opens a ledger for `steps` releases, each made like `step`; their cost may not exceed the target.

        Args:
            path: the file to create; it must not exist.
            target_epsilon: the epsilon of the whole budget, > 0.
            target_delta: the delta of the whole budget, in [0, 1); 0 for noise that is private without a delta.
            step: one release.
            steps: the planned number of releases, >= 1.
            block: the number of releases that one call of `spend` pays for. With 64 the disk is waited for once in 64
                releases, and a crash can waste up to 64 of them.
            run: a text that says what the ledger is for; it is written into the file.

        Raises:
            ValueError: an argument is outside its range, or the plan costs more than the target. Nothing is written.
            FileExistsError: the file exists.
            OSError: the file cannot be created.
            LedgerError: the file cannot be written; it is removed.
        """
        drawn, kind = step.sampling, (step.mechanism, step.coordinates)
        words = step.noise, drawn.sample_rate, str(step.relation), drawn.word, *kind
        begun: dict[str, Any] = {
            "target_epsilon": real("target_epsilon", target_epsilon, above=0.0),
            "target_delta": real("target_delta", target_delta, at_least=0.0, below=1.0),
            "steps": integer("steps", steps),
            "block": integer("block", block),
            "step": dict(zip(_STEP, words, strict=True)),
        }
        cost = epsilon_of_history(replace(step, steps=begun["steps"]), begun["target_delta"]).upper
        if not cost <= begun["target_epsilon"] * (1 + _BUDGET_ROUNDING):
            raise ValueError(
                "target_epsilon must be at least what the plan certifiably costs: the plan costs epsilon "
                f"{cost:.6g} at delta {target_delta:g}, more than target_epsilon {target_epsilon:g}"
            )
        return cls._made(Path(path), {"run": run, **begun})

    @classmethod
    def for_records(cls, path: str | os.PathLike[str] | None, run: str) -> Self:
        """Creates a file without a budget, for runs that are not private or not kept; only `record` and `records` are
        useful. The file is at `path`, or in memory if `path` is None. `run` is a text that says what the file is for.
        Returns the open `Ledger`. Raises FileExistsError if it exists, and OSError or LedgerError if it cannot be
        written."""
        if path is not None:
            return cls._made(Path(path), {"run": run})
        db = sqlite3.connect(":memory:", isolation_level=None)
        _fill(db, {"run": run}, 0)
        return cls(Path(":memory:"), db, None, _read(db, Path(":memory:")))

    @classmethod
    def _made(cls, path: Path, begun: dict[str, Any]) -> Self:
        # A failure leaves no file.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        try:
            with closing(_connect(path, "rw")) as db:
                _fill(db, begun, path.stat().st_ino)
            sync_folder(path.parent)
        except BaseException as error:
            path.unlink()
            if isinstance(error, sqlite3.Error):
                raise _explained(path, error) from None
            raise
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, moved: bool = False) -> Self:
        """Opens the ledger at `path` to continue it, after verifying the hash of every row.

        Args:
            path: the file.
            moved: True to accept a file that was copied or brought from another disk; False refuses it. Use True only
                if no other copy of the file will ever be used.

        Raises:
            LedgerError: the file is damaged or not a ledger; it was copied or moved, and `moved` is False; it is open
                already; or its process was killed and its write-ahead log FILE-wal is missing.
            OSError: the file is missing, or cannot be opened for reading and writing.
        """
        path = Path(path)
        lock = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The descriptor stays open: closing it would drop the locks that SQLite holds on the file in this process.
            raise LedgerError(f"{path}: another process has this file open, or another run here: close it") from None
        try:
            account, inode = cls.read(path), os.fstat(lock).st_ino
            if account.inode != inode and not moved:
                raise LedgerError(
                    f"{path}: a copy, or brought from another disk: copies that each go on cost more than any says; if"
                    " this one alone goes on, open it as moved (resume='moved')"
                )
            found = cls(path, _connect(path, "rw"), lock, account)
        except BaseException:
            os.close(lock)
            raise
        if account.inode != inode:
            found._write("UPDATE header SET inode = ?, moves = moves + 1", inode)
        return found

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Account:
        """Returns the content of the ledger's file at `path` without changing it, even while another process writes it.
        Raises LedgerError if the file is damaged, and OSError if it does not exist."""
        path = Path(path)
        path.stat()  # raises OSError for a missing file, which SQLite would not name as the reason
        log = path.with_name(f"{path.name}-wal")
        for wait in (0.0, 0.1, 1.0):  # another process may open or close the file between two looks
            time.sleep(wait)
            logged = log.exists()
            with closing(_connect(path, "ro" if logged else "ro&immutable=1")) as db:  # else SQLite makes an empty log
                account = _read(db, path)
            if logged or not account.open:
                return account
        raise LedgerError(
            f"{path}: its process was killed, and what it paid for last is in {log.name}, which is missing: put it back"
            " beside the file"
        )

    def spend(self) -> range:
        """Pays for the next `block` planned releases, or for those that are left, and waits for the disk. Call it
        before their noise is drawn.

        Returns:
            The numbers of the paid releases, counted from 0 over the life of the ledger.

        Raises:
            BudgetSpentError: all planned releases are spent, or the file has no budget. Nothing is written.
        """
        _, first, last = self._last_row()
        numbers = range(first, min(first + self.account.block, self.account.steps))
        if not numbers:
            raise BudgetSpentError(f"{self.path}: all {self.account.steps} releases of the plan are spent")
        self._add(last, numbers.start, numbers.stop, None)
        return numbers

    def record(self, number: int, sums: bytes, *, durable: bool = True) -> None:
        """Writes what a release published into the log.

        Args:
            number: the number of a release that `spend` has paid for. It must be later than all recorded releases, and
                earlier ones can no longer be recorded afterwards. In a file without a budget any number >= 0 counts as
                paid for.
            sums: the released numbers as bytes, in any encoding.
            durable: True to return only when the bytes are on disk; False to return earlier (call `sync` to wait).

        Raises:
            LedgerError: the release is not paid for, or it or a later release was recorded before.
        """
        first, spent, last = self._last_row()
        if not first <= number < spent:
            raise LedgerError(f"{self.path}: release {number} is not paid for, or was recorded before")
        self._add(last, number, spent, sums, durable=durable)

    def records(self) -> list[tuple[int, bytes]]:
        """Returns a pair (number of the release, released bytes) for each recorded release, in order; also after
        `close`."""
        return (_read(self._db, self.path) if self._end.alive else self.read(self.path)).records

    def sync(self) -> None:
        """Waits until everything that was recorded is on disk."""
        if self._level == "NORMAL":  # the last write was not durable; one that is waits for all rows before it, too
            self._write("UPDATE header SET moves = moves")

    @property
    def history(self) -> list[Step]:
        """The paid releases as a list of steps to pass to the accountant; an empty list without a budget."""
        step = self.account.step
        return [replace(step, steps=self._spent)] if step is not None and self._spent else []

    @property
    def releases_left(self) -> int:
        """The number of planned releases that are not paid for yet; 0 without a budget. A paid release counts as spent
        even if it was never made."""
        return self.account.steps - self._spent

    def close(self) -> None:
        """Waits until everything is on disk, and releases the lock on the file. A second call does nothing."""
        if self._end.alive:
            with suppress(LedgerError):
                self.sync()
            self._end()

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _last_row(self) -> tuple[int, int, bytes]:
        # The number of the first release that may be recorded, how many releases are paid for, the hash of the last row
        if os.getpid() != self._pid:
            raise LedgerError(f"{self.path}: opened by another process, before a fork: open it in one of them")
        last = "SELECT release + (sums NOT NULL), spent, chain FROM log ORDER BY row DESC LIMIT 1"
        try:
            row = self._db.execute(last).fetchone()
        except sqlite3.Error as error:
            raise _explained(self.path, error) from None
        found = row or (0, self.account.spent, bytes.fromhex(self.account.digest))
        self._spent = found[1]
        return found

    def _add(self, last: bytes, release: int, spent: int, sums: bytes | None, *, durable: bool = True) -> None:
        chain = _chained(last, release, spent, sums)
        row = "INSERT INTO log (release, spent, sums, chain) VALUES (?, ?, ?, ?)"
        self._write(row, release, spent, sums, chain, durable=durable)
        self._spent = spent

    def _write(self, statement: str, *values: object, durable: bool = True) -> None:
        level = "FULL" if durable else "NORMAL"
        try:
            if not self._level:  # not before the first write: a file that is only opened does not change
                # The file says that it is open before the log gets a row, so a file that has lost its log is refused.
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute("UPDATE header SET open = 1")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if level != self._level:
                self._db.execute(f"PRAGMA synchronous={level}")
                self._level = level
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise _explained(self.path, error) from None


def sync_folder(path: Path) -> None:
    """Waits until the directory entries of the folder at `path` are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _fill(db: sqlite3.Connection, begun: dict[str, Any], inode: int) -> None:
    # `begun` has the arguments of `Ledger.create` by name, the step in words and numbers.
    text = json.dumps({"format": _FORMAT, **begun}, allow_nan=False)
    db.executescript(f"PRAGMA synchronous=FULL; BEGIN; {_SCHEMA}")
    db.execute("INSERT INTO header VALUES (?, ?, ?, 0, 0)", (text, hashlib.sha256(text.encode()).hexdigest(), inode))
    db.execute("COMMIT")


def _read(db: sqlite3.Connection, path: Path) -> Account:
    try:
        text, digest, inode, moves, is_open = db.execute("SELECT * FROM header").fetchone()
        last = hashlib.sha256(text.encode()).digest()
        if last.hex() != digest:
            raise ValueError("its header does not match its hash")
        begun = entries("the header", json.loads(text), _BEGUN, _BUDGET)
        choice("format", begun.pop("format"), (_FORMAT,))
        if "step" in begun:
            begun["step"] = step_of(**entries("step", begun["step"], _STEP))
        found = Account(**begun, inode=inode, moves=moves, open=bool(is_open), digest=digest, spent=0, records=[])
        first, spent = 0, 0 if found.step else _UNLIMITED
        for release, paid, sums, chain in db.execute("SELECT release, spent, sums, chain FROM log ORDER BY row"):
            last = _chained(last, release, paid, sums)
            if sums is None:
                follows = first <= release == spent < paid <= found.steps
            else:
                follows = first <= release < spent == paid
                found.records.append((release, sums))
            if chain != last or not follows:
                raise ValueError(f"the row of release {release} does not match its hash")
            first, spent = release + (sums is not None), paid
        return replace(found, spent=spent)
    except sqlite3.Error as error:
        raise _explained(path, error) from None
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise LedgerError(f"{path}: damaged ({printable(str(error)):.200}): put the file back") from None


def _chained(last: bytes, release: int, spent: int, sums: bytes | None) -> bytes:
    # The hash of a row with these columns; `last` is the hash of the row before, or of the header.
    kind = b"payment" if sums is None else b"record"
    return hashlib.sha256(b"%b %b %d %d %b" % (last, kind, release, spent, sums or b"")).digest()[:8]


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise _explained(path, error) from None


def _close(db: sqlite3.Connection, lock: int | None, pid: int) -> None:
    if os.getpid() != pid:  # the child of a fork has no part in the file
        return
    with suppress(sqlite3.Error):  # a reader may be in the way: the log then stays, and the file is whole with it
        db.execute("UPDATE header SET open = 0 WHERE open")
        db.execute("PRAGMA journal_mode=DELETE")
    with suppress(sqlite3.Error):
        db.close()
    if lock is not None:
        os.close(lock)


def _explained(path: Path, error: sqlite3.Error) -> LedgerError:
    # These two classes are raised for a sound file that cannot be used here. Other classes mean that the file is no
    # database or damaged, and so do messages of missing tables ("no such") and of bytes in place of text ("decode").
    usable = isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError)
    usable = usable and not any(word in str(error) for word in ("no such", "decode"))
    cure = "make it writable with room on its disk, and open it in this thread" if usable else "put the file back"
    return LedgerError(f"{path}: {printable(str(error))}: {cure}")
