"""The privacy budget on disk: one SQLite file of releases that survives crashes and never counts too few.

The file has the budget and the plan, and a log to which rows are only added: a payment before the noise of its releases
is drawn, and a record of what each of them released. Each row has a hash of itself and of the row before, so an edited,
lost or repeated row is found. The hashes are no signature: whoever rewrites the file can recompute them. Rows missing
from the end are not noticed, so a ledger must never be restored from a backup.

On a file system whose fsync is durable, the following is guaranteed:

- `spend` returns only after its row is on disk, so a release made after it is counted whatever happens next;
- a number that was paid for is not handed out again, also where a crash or an interrupt came between the payment and
  the release, because the last row alone says what is paid for;
- a copy is refused, because it is another file with another inode number, unless it is opened as `moved`, which is
  counted (a cloned disk is not noticed);
- a file whose process was killed is refused without its write-ahead log, `NAME-wal` beside it, which holds the last
  rows until the file is closed;
- one process writes at a time (flock on the file), and never the child of a fork;
- a release beyond the plan's number is refused.
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
    """Raised if the file of a ledger is damaged, was copied or moved, is open elsewhere, or can no longer be written
    after it was opened; also for a release that is not paid for."""


class BudgetSpentError(LedgerError):
    """Raised if no release can be paid for: every release of the plan is spent, or the file has no budget."""


@dataclass(frozen=True)
class Account:
    """The content of a ledger's file, all of whose hashes were checked.

    Attributes:
        run: the text that says what the file was created for.
        digest: the SHA-256 of the header, in hexadecimal: of the plan, the budget and `run`.
        inode: the file's inode number when it was created or last opened as `moved`.
        moves: how often the file was opened as `moved`.
        open: whether a process writes the file, or was killed while it did: rows may be in the write-ahead log.
        spent: the number of releases that are paid for.
        records: a pair (number of the release, its bytes) for each release that was recorded, in order.
        step, steps, block, target_epsilon, target_delta: the plan and the budget, as `Ledger.create` takes them. In a
            file without a budget `step` is None, and the others mean nothing.
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
    """The budget of one data set, open for writing by this process; a context manager.

    Make a ledger by `Ledger.create`, resume it by `Ledger.open`, or make a file of records without a budget by
    `Ledger.for_records`. Only the thread that opened a ledger may use it. Methods raise LedgerError if the file is
    damaged or cannot be written, and `spend` and `record` in the child of a fork, too.

    Attributes:
        path: the file.
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
        """Start a ledger for `steps` releases like `step`, which must cost at most the target.

        Args:
            path: the file to make, which must not exist yet.
            target_epsilon, target_delta: the whole budget; target_epsilon > 0, and 0 <= target_delta < 1, with 0 for
                noise that needs no delta.
            step: one release. All releases of the ledger are like it.
            steps: the number of releases of the plan, >= 1.
            block: how many releases one payment pays for. With 64 the disk is waited for once in 64 releases, and a
                crash can waste up to 64.
            run: a text that says what the ledger is for, written into the file.

        Raises:
            ValueError: an argument outside its range, or a plan that costs more than the target. Nothing is written.
            FileExistsError: the file exists.
            OSError: the file cannot be made.
            LedgerError: the file cannot be written; none is left.
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
        """Start a ledger without a budget, in which the method `record` writes what releases have released, at `path`,
        or in memory if `path` is None. It is for runs that are not private, or that are not kept. `run` is a text that
        says what the file is for. Raises FileExistsError if there is a file at `path` already, OSError or LedgerError
        if it cannot be written."""
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
        """Open the ledger's file at `path` to go on with it, after verifying the hash of every row.

        Args:
            path: the file.
            moved: whether to accept a file that was copied or brought from another disk. Set it only if no other copy
                of the file will be used again.

        Raises:
            LedgerError: the file is damaged or was not written by a ledger; it was copied or moved, and `moved` is
                False; it is open already, in another process or in this one; or its process was killed, and its
                write-ahead log, FILE-wal, is missing.
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
        """Return the content of the file at `path`, even while another process writes it. Nothing is written. Raises
        LedgerError if the file is damaged, and OSError if there is no file."""
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
        """Pay for the next `block` releases of the plan, or those that are left, before their noise is drawn.

        Returns:
            The numbers of the releases, counted from 0 over the life of the ledger, when the payment is on disk.

        Raises:
            BudgetSpentError: the plan is complete, or the file has no budget, and nothing is written.
        """
        _, first, last = self._last_row()
        numbers = range(first, min(first + self.account.block, self.account.steps))
        if not numbers:
            raise BudgetSpentError(f"{self.path}: all {self.account.steps} releases of the plan are spent")
        self._add(last, numbers.start, numbers.stop, None)
        return numbers

    def record(self, number: int, sums: bytes, *, durable: bool = True) -> None:
        """Write down what a release has released.

        Args:
            number: the number of a release that `spend` has paid for, later than all recorded releases; others in
                between can no longer be recorded. In a file without a budget it may be any number >= 0 that is later
                than them.
            sums: the released numbers as bytes, in any form.
            durable: whether to return only when the record is on disk. With False, `sync` waits for it.

        Raises:
            LedgerError: the release is not paid for, or it or a later release was recorded before.
        """
        first, spent, last = self._last_row()
        if not first <= number < spent:
            raise LedgerError(f"{self.path}: release {number} is not paid for, or was recorded before")
        self._add(last, number, spent, sums, durable=durable)

    def records(self) -> list[tuple[int, bytes]]:
        """Return a pair (number of the release, its bytes) for each release that was recorded, in order. It may be
        called after `close`, too."""
        return (_read(self._db, self.path) if self._end.alive else self.read(self.path)).records

    def sync(self) -> None:
        """Wait until all that was recorded is on disk."""
        if self._level == "NORMAL":  # the last write was not durable; one that is waits for all rows before it, too
            self._write("UPDATE header SET moves = moves")

    @property
    def history(self) -> list[Step]:
        """The releases that are paid for, as a history for the accountant; empty without a budget."""
        step = self.account.step
        return [replace(step, steps=self._spent)] if step is not None and self._spent else []

    @property
    def releases_left(self) -> int:
        """How many releases of the plan are not paid for yet; 0 without a budget. A release that was paid for counts as
        spent, even if it was never made or recorded."""
        return self.account.steps - self._spent

    def close(self) -> None:
        """Wait until everything is on disk, and give up the lock. A second call does nothing."""
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
    """Wait until the entries of the folder at `path` are on disk."""
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
