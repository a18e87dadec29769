"""The privacy budget on disk: one SQLite file of releases that survives crashes and never counts too few.

The file has the budget and the plan, and one row for each release: `paid` is written before its noise is drawn, `sums`
and `chain` when it is made. `paid` is a random number of the payment and the beginning of a SHA-256 of everything
before it; `chain` is one of the records before and of the row's sums. So an edited, lost or repeated row is found, and
two copies that both went on are told apart. The checks are no signature: whoever rewrites the file can recompute them.
Rows missing from the end are not noticed, so a ledger must never be restored from a backup.

On a file system whose fsync is durable, the following is guaranteed:

- `spend` returns only after its rows are on disk, so a release made after it is counted whatever happens next;
- a payment is there whole or not at all, and a number that was paid for is not handed out again, also where a crash or
  an interrupt came between the payment and the release;
- a copy is refused, because it is another file with another inode number, unless it is opened as `moved`, which is
  counted (a cloned disk is not noticed);
- one process writes at a time (flock on the file), and never the child of a fork;
- settings that differ from the plan in n, q, s, C, relation, sampling, mechanism or coordinates are refused, and so is
  a release beyond the plan's number. In an adaptive ledger later releases may have other settings, and what is refused
  is a release for which the budget has no room.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack
from weakref import finalize

from dpzero_theory.check import choice, entries, integer, printable, real
from dpzero_theory.privacy.accountant import epsilon_beside
from dpzero_theory.privacy.filter import BudgetExceededError, Filter
from dpzero_theory.privacy.step import Chosen, Release, Step, Words
from dpzero_theory.privacy.stopping import ANY, claimed

_FORMAT = "dpzero-run-1"
_SCHEMA = """
CREATE TABLE header (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (first INTEGER PRIMARY KEY, words TEXT NOT NULL);
CREATE TABLE releases (number INTEGER PRIMARY KEY, paid BLOB NOT NULL, sums BLOB, chain BLOB);
"""
_CHECK = 8
"""The bytes of a hash that are kept."""
_BEGUN = {"format": str, "run": str, "unit": str, "target_epsilon": float, "target_delta": float, "steps": int,
          "block": int, "order": float}  # fmt: skip
"""The entries of the header, with their types. Without a budget the file only records what is released."""
_OPTIONAL = ("target_epsilon", "target_delta", "steps", "block", "order")
_SETTINGS: dict[str, type] = {
    "n": int,
    "sample_rate": float,
    "noise_multiplier": float,
    "clip": float,
    "relation": str,
    "sampling": str,
    "mechanism": str,
    "coordinates": int,
}
"""The entries of `Settings.words` with their types, in their order in the file."""
_FIXED = ("n", "relation")
"""The settings that no release of an adaptive ledger may change."""
_BUDGET_ROUNDING = 1e-9
"""The epsilon of a plan may be above the target epsilon by this share of it, because a noise multiplier from a closed
form is rounded."""
_CURES = {
    "full": "make room, then resume",
    "readonly": "make it readable and writable, then resume",
    "unable to open": "make it readable and writable, then resume",
    "disk I/O": "the disk failed; resume where the file can be read",
    "closed": "open it again (resume the run)",
    "same thread": "use a run in the thread that made it",
    "locked": "close what reads it, then go on",
}
"""What to do about an error of SQLite, by words of its message."""
_held: set[tuple[int, int]] = set()
"""The files, as (device, inode), that this process has open for writing. A second attempt must not even open the file:
closing it would drop the locks of the first."""


class LedgerError(RuntimeError):
    """The file refuses an action: the settings are not the plan's, it is damaged, or another process writes it."""


class BudgetSpentError(LedgerError):
    """No release can be paid for: every release of the plan is spent, or the budget has no room for it."""


class PlanCostsMoreError(LedgerError, ValueError):
    """A ledger is not created, because its plan costs more than its budget."""


@dataclass(frozen=True, init=False)
class Settings:
    """The settings that every release of a plan has.

    n: the number of records, >= 1. clip: C > 0. step: noise, sampling, relation, mechanism and coordinates. The
    constructor takes n, noise_multiplier, clip and the words of `step.Words`, and raises ValueError if one of them is
    outside its range.
    """

    n: int
    clip: float
    step: Step

    def __init__(self, *, n: int, noise_multiplier: float, clip: float, **words: Unpack[Words]) -> None:
        object.__setattr__(self, "step", Release(noise_multiplier, 1, **words).step)
        object.__setattr__(self, "n", integer("n", n))
        object.__setattr__(self, "clip", real("clip", clip, above=0.0))

    def release(self, steps: int) -> Release:
        """`steps` >= 1 releases with these settings. Raises ValueError for a number outside its range, or too little
        noise for so many."""
        return Release.of(self.step, steps)

    @property
    def noise_multiplier(self) -> float:
        return self.step.noise

    @property
    def mechanism(self) -> str:
        return self.step.mechanism

    @property
    def words(self) -> dict[str, Any]:
        """The settings as a dictionary with the names and values that the ledger's file has."""
        r = self.release(1)
        values = self.n, r.sample_rate, r.noise_multiplier, self.clip, str(r.relation), r.sampling, r.mechanism
        return dict(zip(_SETTINGS, (*values, r.coordinates), strict=True))

    def changed(self, **words: Any) -> "Settings":
        """The same settings with some of them changed. words: the new values by their names, those of the property
        `words`. Raises ValueError for a value outside its range."""
        return Settings(**{**self.words, **words})


class Report(NamedTuple):
    """How much of a ledger's plan is spent.

    releases_spent, releases_left: numbers of releases. epsilon_spent, epsilon_planned: certified upper bounds on
    epsilon at target_delta: what may be claimed of the spent releases, and of the whole plan. The two are equal once a
    release is spent, unless the number of releases was said to be fixed (`Ledger.report`). In an adaptive ledger
    epsilon_spent is a number that the privacy loss has at no time exceeded, but for a probability of target_delta
    (`Filter.odometer`), and epsilon_planned is target_epsilon. target_epsilon, target_delta: the budget.
    """

    releases_spent: int
    releases_left: int
    epsilon_spent: float
    epsilon_planned: float
    target_epsilon: float
    target_delta: float

    @property
    def epsilon_left(self) -> float:
        return self.target_epsilon - self.epsilon_spent


@dataclass(frozen=True)
class Spend:
    """What one payment paid for: the releases numbered from `release` to `release + count - 1`. check: the payment's
    hash in hexadecimal digits, which is equal in copies of the file."""

    release: int
    count: int
    check: str


class Account(NamedTuple):
    """What a ledger says, read without opening it for writing.

    settings, steps: the plan's settings and number of releases. block: how many releases one payment pays for.
    target_epsilon, target_delta: the budget. run: the text that says what the ledger was created for. moves: how often
    the file was opened as `moved`. spends: one entry for each payment. unit: what one of the n records is, if it is not
    one entry of the data set. order: the t of the filter of an adaptive ledger, else 0. changes: in an adaptive ledger,
    for each change of the settings, the number of the first release that has them, and the new settings.
    """

    settings: Settings
    steps: int
    block: int
    target_epsilon: float
    target_delta: float
    run: str
    moves: int
    spends: tuple[Spend, ...]
    unit: str = ""
    order: float = 0.0
    changes: tuple[tuple[int, Settings], ...] = ()

    @property
    def spent(self) -> int:
        """The number of releases that are paid for."""
        return self.spends[-1].release + self.spends[-1].count if self.spends else 0

    @property
    def history(self) -> list[Release]:
        """The releases that are paid for, in the form that the accountant takes. Of an adaptive ledger it refuses them:
        what they cost is counted by the ledger's filter."""
        return _history([(0, self.settings), *self.changes], self.spent, chosen=bool(self.order))


class Rows(NamedTuple):
    """The whole content of a file, whose hashes hold.

    run: the text that says what the file was created for. digest: the SHA-256 of all that it was created with. records:
    the number and the bytes of each release that was recorded. account: what is paid for; None without a budget.
    """

    run: str
    digest: str
    inode: int
    records: list[tuple[int, bytes]]
    account: Account | None


class Ledger(AbstractContextManager["Ledger"]):
    """The budget of one data set, open for writing by this process; a context manager.

    `Ledger.create` starts a ledger and `Ledger.open` resumes one. Both raise LedgerError (the file is damaged, or
    another process holds it) and OSError. It is used by the thread that opened it. A ledger without a file, which
    `Ledger.in_memory` makes, has no budget and keeps records only.

    path: the file. run: the text that says what it was created for.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, lock: int | None) -> None:
        self.path, self.run = path, ""
        self._db, self._lock, self._pid = db, lock, os.getpid()
        self._end = finalize(self, _close, db, lock, self._pid)  # also where nothing refers to the ledger any more
        self._account: Account | None = None
        self._filter: Filter | None = None
        self._digest, self._words, self._durable, self._ready = b"", "", True, False
        self._ended: tuple[list[tuple[int, str]], int] | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        target_epsilon: float,
        target_delta: float,
        settings: Settings,
        steps: int,
        block: int = 1,
        run: str = "",
        unit: str = "",
        adaptive: bool = False,
    ) -> Self:
        """Start a ledger for `steps` releases with `settings`, which must cost at most the target.

        If it is adaptive, the settings of later releases may be chosen from what earlier ones have shown: noise, clip,
        sampling and rate, but not n or the relation. The whole is (target_epsilon, target_delta)-DP whenever one stops,
        by the theorem of `filter.Filter`, whose order is that which suits `settings`; what the plan alone would cost
        does not matter then.

        Args:
            path: the file to make, which must not exist yet.
            target_epsilon, target_delta: the whole budget; target_epsilon > 0, and 0 <= target_delta < 1, with 0 for
                noise that needs no delta.
            settings: the settings of every release, or of the first one of an adaptive ledger.
            steps: T >= 1.
            block: how many releases one payment pays for. With 64 the disk is waited for once in 64 releases, and a
                crash can waste up to 64.
            run: what the ledger is for, a text kept in it.
            unit: what one of the n records is, a text kept there too; empty for one entry of the data set.
            adaptive: whether later releases may have other settings. `steps` is then the most releases that are made.

        Raises:
            ValueError: an argument outside its range.
            PlanCostsMoreError: the plan costs more than the target, or the first release of an adaptive ledger does.
                Nothing is written.
            FileExistsError: the file exists.
            OSError: the file cannot be written.
        """
        begun: dict[str, Any] = {
            "target_epsilon": real("target_epsilon", target_epsilon, above=0.0),
            "target_delta": real("target_delta", target_delta, at_least=0.0, below=1.0),
            "steps": integer("steps", steps),
            "block": integer("block", block),
        }
        if adaptive:
            first = settings.release(1)
            counted = Filter(begun["target_epsilon"], begun["target_delta"], planned=first)
            if not counted.has_room(first):
                raise PlanCostsMoreError(
                    f"target_epsilon must have room for one release; got {target_epsilon!r} at target_delta"
                    f" {target_delta!r} and noise_multiplier {settings.noise_multiplier!r}"
                )
            begun["order"] = counted.orders[0]
        else:
            _require_planned(settings.release(steps), begun["target_epsilon"], begun["target_delta"])
        write(path, {"run": run, "unit": unit, **begun}, settings)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, moved: bool = False) -> Self:
        """Resume the ledger at `path`, verifying every row.

        moved: whether to accept a file that was copied or brought from another disk. It must then be the only copy that
        goes on. Raises LedgerError if the file is damaged, was moved without `moved`, or is open in another process,
        and OSError if it cannot be read or written.
        """
        path = Path(path)
        lock = _locked(path)
        try:
            with _explained(path):
                db = _connected(path, "rw")
        except BaseException:
            _unlock(lock)
            raise
        ledger = cls(path, db, lock)
        try:
            ledger._load(moved)
            return ledger
        except BaseException:
            ledger.close()
            raise

    @classmethod
    def in_memory(cls, run: str) -> Self:
        """Start a file in memory, for a run that keeps nothing. run: what it is for."""
        ledger = cls(Path(":memory:"), sqlite3.connect(":memory:", isolation_level=None), None)
        _fill(ledger._db, {"run": run, "unit": ""}, None, 0)
        ledger._load(moved=False)
        return ledger

    def spend(self, settings: Settings) -> range:
        """Pay for the next `block` releases of the plan, or for those that are left, before any of their noise is
        drawn.

        settings: the settings that the releases will really have. It returns, when the payment is on disk, the numbers
        of the releases, counted from 0 over the life of the ledger. It raises BudgetSpentError if the plan is complete,
        or the budget of an adaptive ledger has no room for the releases, and LedgerError for settings other than the
        plan's; in an adaptive ledger only n and the relation must be the plan's, and ValueError is raised for steps
        that `Filter` does not account for. Nothing is written in these cases.
        """
        planned = self.settings
        if settings != planned:
            for name, expected in planned.words.items():
                given = settings.words[name]
                if given != expected and (self._filter is None or name in _FIXED):
                    raise LedgerError(f"{self.path}: {name} is {given!r}, but {expected!r} was planned")
        assert self._account is not None
        with self._writing(durable=True) as db:
            spent, before = self._last_payment()
            count = min(self._account.block, self._account.steps - spent)
            if not count:
                raise BudgetSpentError(f"{self.path}: all {self._account.steps} releases of the plan are spent")
            if self._filter is not None:
                release = settings.release(count)
                if not self._filter.has_room(release):
                    raise BudgetSpentError(
                        f"{self.path}: no room for {count} more releases with noise multiplier"
                        f" {settings.noise_multiplier:g}"
                    )
                self._filter.spend(release)  # before the payment: what fails to be written counts too
                if (words := json.dumps(settings.words)) != self._words:
                    db.execute("INSERT INTO settings VALUES (?, ?)", (spent, words))
                    self._words = words
            nonce = os.urandom(_CHECK)
            paid = _paid(nonce, before, self._last_chain(), spent, count, self._words)
            numbers = range(spent, spent + count)
            db.executemany("INSERT INTO releases (number, paid) VALUES (?, ?)", [(each, paid) for each in numbers])
        return numbers

    def record(self, number: int, sums: bytes, *, durable: bool = True) -> None:
        """Write what a release has released into its row.

        number: of a release that is paid for and later than all recorded ones; without a budget any such number. sums:
        the bytes to keep. It returns when they are written, and with `durable` when they are on disk.
        """
        with self._writing(durable=durable) as db:
            row = (sums, _chained(self._last_chain(), number, sums), number)
            if self._account is None:
                db.execute("INSERT INTO releases (sums, chain, number, paid) VALUES (?, ?, ?, x'')", row)
            elif not db.execute("UPDATE releases SET sums=?, chain=? WHERE number=? AND sums IS NULL", row).rowcount:
                raise LedgerError(f"{self.path}: release {number} is not paid for, or was recorded before")

    def rows(self) -> Rows:
        """Return the whole content of the file, after its hashes are checked."""
        with self._explained():
            return _rows(self._db, self.path)

    def records(self) -> list[tuple[int, bytes]]:
        """Return the number and the bytes of each release that was recorded, in order."""
        with self._explained():
            return _records(self._db)

    def sync(self) -> None:
        """Wait until all that was recorded is on disk."""
        if not self._durable:
            with self._explained():
                self._db.execute("PRAGMA wal_checkpoint(FULL)")

    @property
    def settings(self) -> Settings:
        """The settings of the plan. Raises LedgerError without a budget."""
        if self._account is None:
            raise LedgerError(f"{self.path}: it has no budget")
        return self._account.settings

    @property
    def history(self) -> list[Release]:
        """The releases that are spent, in the form that the accountant takes. Of an adaptive ledger it refuses them:
        `report` says what its filter counts."""
        settings, spent = self._paid_for()
        found = [(max(first, 0), _settings(words)) for first, words in settings]
        return _history(found, spent, chosen=self._filter is not None)

    @property
    def releases_left(self) -> int:
        """How many releases of the plan may still be made."""
        assert self._account is not None
        return self._account.steps - self._paid_for()[1]

    def report(self, stopping: str = ANY) -> Report:
        """How much of the plan is spent and how much is left, in releases and in epsilon at target_delta.

        stopping: "any" if the releases may end because of what they show; then epsilon_spent is that of the whole plan.
        "fixed" if their number does not depend on that; then it is that of the spent releases (`privacy.stopping`).
        """
        assert self._account is not None
        steps, left = self._account.steps, self.releases_left
        delta, target = self._account.target_delta, self._account.target_epsilon
        if self._filter is not None:
            return Report(steps - left, left, self._filter.odometer, target, target, delta)
        planned = epsilon_beside([self.settings.release(steps)], delta, target)
        return Report(
            releases_spent=steps - left,
            releases_left=left,
            # A part of the plan shows no more than the whole one.
            epsilon_spent=min(claimed(self.settings.step, steps - left, steps, delta, stopping).upper, planned),
            epsilon_planned=planned,
            target_epsilon=target,
            target_delta=delta,
        )

    def close(self) -> None:
        """Wait until everything is on disk, and give up the lock. A second call does nothing."""
        if os.getpid() == self._pid and self._ended is None:
            with suppress(LedgerError):
                self.sync()
                self._ended = self._paid_for()
            self._ended = self._ended or ([], 0)
            self._end()

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _load(self, moved: bool) -> None:
        with self._explained():
            rows = _rows(self._db, self.path)
        account = self._account = rows.account
        self.run, self._digest = rows.run, bytes.fromhex(rows.digest)
        if account is not None:
            self._words = json.dumps((account.changes[-1][1] if account.changes else account.settings).words)
            if account.order:
                self._filter = _counted(account, self.path)
        inode = self.path.stat().st_ino if self._lock is not None else rows.inode
        if rows.inode != inode:
            if not moved:
                raise LedgerError(
                    f"{self.path}: a copy, or brought from another disk: copies that each go on cost more than any"
                    " says; if this one alone goes on, open it as moved (resume='moved')"
                )
            with self._writing(durable=True) as db:
                db.execute("UPDATE header SET value=? WHERE name='inode'", (str(inode),))
                db.execute("UPDATE header SET value=CAST(value AS INTEGER) + 1 WHERE name='moves'")

    @contextmanager
    def _writing(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """A context manager for one transaction, which is on disk at its end if it is `durable`."""
        with self._explained():
            # The journal mode is set at the first write: opening a file and refusing it must not change the file.
            if not self._ready:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._ready = True
            if durable != self._durable:
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _explained(self) -> AbstractContextManager[None]:
        if os.getpid() != self._pid:
            raise LedgerError(f"{self.path}: opened by another process, before a fork: open it in one of them")
        return _explained(self.path)

    def _paid_for(self) -> tuple[list[tuple[int, str]], int]:
        """Return the settings by the first release that has them, and how many releases are paid for; after `close`
        what they were then."""
        if self._ended is not None:
            return self._ended
        with self._explained():
            settings = self._db.execute("SELECT first, words FROM settings ORDER BY first").fetchall()
            return settings, self._last_payment()[0]

    def _last_payment(self) -> tuple[int, bytes]:
        """Return how many releases are paid for, and the hash of the last payment."""
        last = self._db.execute("SELECT number, paid FROM releases ORDER BY number DESC LIMIT 1").fetchone()
        return (last[0] + 1, last[1]) if last else (0, self._digest)

    def _last_chain(self) -> bytes:
        last = "SELECT chain FROM releases WHERE chain IS NOT NULL ORDER BY number DESC LIMIT 1"
        return (self._db.execute(last).fetchone() or (self._digest,))[0]


def write(path: str | os.PathLike[str], begun: dict[str, Any], settings: Settings | None) -> None:
    """Make the file at `path`, closed and on disk.

    begun: its header, without the format. settings: those of each release; None where there is no budget. Raises
    FileExistsError if the file exists, and OSError.
    """
    path = Path(path)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    try:
        with _explained(path):
            db = _connected(path, "rw")
            try:
                _fill(db, begun, settings, path.stat().st_ino)
            finally:
                db.close()
        sync_folder(path.parent)
    except BaseException:
        path.unlink()
        raise


def rows(path: str | os.PathLike[str]) -> Rows:
    """Return the whole content of the file at `path`, even while another process writes it. Nothing is written.

    Raises LedgerError if the file is damaged, and OSError if there is none.
    """
    path = Path(path)
    _require_plain(path)
    with _explained(path):
        db = _connected(path, "ro")
        try:
            db.execute("BEGIN")
            return _rows(db, path)
        finally:
            db.close()


def read(path: str | os.PathLike[str]) -> Account:
    """What the ledger at `path` says, even while another process writes it.

    Nothing is written. Raises LedgerError if the file is damaged or has no budget, and OSError if there is none.
    """
    account = rows(path).account
    if account is None:
        raise LedgerError(f"{path}: it has no budget")
    if account.order:
        _counted(account, Path(path))
    return account


def sync_folder(path: Path) -> None:
    """Wait until the entries of the folder at `path` are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _fill(db: sqlite3.Connection, begun: dict[str, Any], settings: Settings | None, inode: int) -> None:
    text = json.dumps({"format": _FORMAT, **begun}, allow_nan=False)
    words = [] if settings is None else [(-1, json.dumps(settings.words, allow_nan=False))]  # the plan's come first
    digest = _digest(text, words).hex()
    db.executescript(f"PRAGMA synchronous=FULL; BEGIN; {_SCHEMA}")
    header = {"begun": text, "check": digest, "inode": str(inode), "moves": "0"}
    db.executemany("INSERT INTO header VALUES (?, ?)", header.items())
    db.executemany("INSERT INTO settings VALUES (?, ?)", words)
    db.execute("COMMIT")


def _rows(db: sqlite3.Connection, path: Path) -> Rows:
    """Read a file and check all its hashes. Raises LedgerError where one does not fit."""
    try:
        header = dict(db.execute("SELECT name, value FROM header"))
        settings = db.execute("SELECT first, words FROM settings ORDER BY first").fetchall()
        text = header["begun"]
        begun = entries("the header", json.loads(text), _BEGUN, _OPTIONAL)
        choice("format", begun["format"], (_FORMAT,))
        start = _digest(text, settings[:1])
        if start.hex() != header["check"]:
            raise ValueError("its header does not match its check")
        spends, records = _chains(db, start, settings, begun.get("steps"))
        account = None
        if "steps" in begun:
            account = _account(begun, [(first, _settings(words)) for first, words in settings], spends, header["moves"])
        return Rows(begun["run"], start.hex(), int(header["inode"]), records, account)
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RecursionError) as error:
        raise LedgerError(f"{path}: damaged ({printable(str(error)):.200}): put the file back") from None


def _chains(
    db: sqlite3.Connection, start: bytes, settings: list[tuple[int, str]], steps: int | None
) -> tuple[list[Spend], list[tuple[int, bytes]]]:
    """Check the hashes of all releases, and return the payments and the records.

    start: the first hash. settings: pairs (number of a release, settings that hold from it on). steps: the number of
    releases of the plan; None without a budget. Raises ValueError where a hash does not fit, or a row is missing.
    """
    spends: list[Spend] = []
    records: list[tuple[int, bytes]] = []
    paid = chain = start
    spent = 0
    found = db.execute("SELECT number, paid, sums, chain FROM releases ORDER BY number")
    for token, group in groupby(found, key=lambda row: row[1]):
        block = list(group)
        first, count = block[0][0], len(block)
        if steps is not None:
            words = [words for begin, words in settings if begin <= first][-1]
            there = first == spent and block[-1][0] == first + count - 1 and first + count <= steps
            if not there or token != _paid(token[:_CHECK], paid, chain, first, count, words):
                raise ValueError(f"release {first} does not match its check")
            spends.append(Spend(first, count, token.hex()))
            paid, spent = token, first + count
        for number, _, sums, check in block:
            if (sums, check) != (None, None):
                chain = _chained(chain, number, sums)
                if check != chain:
                    raise ValueError(f"release {number} does not match its check")
                records.append((number, sums))
    return spends, records


def _account(begun: dict[str, Any], settings: list[tuple[int, Settings]], spends: list[Spend], moves: str) -> Account:
    (_, first), *changes = settings
    for _, each in changes:
        for name in _FIXED:
            if each.words[name] != first.words[name]:
                raise ValueError(f"{name} must be {first.words[name]!r}, that of the plan; got {each.words[name]!r}")
    return Account(
        settings=first,
        steps=integer("steps", begun["steps"]),
        block=integer("block", begun["block"]),
        target_epsilon=real("target_epsilon", begun["target_epsilon"], above=0.0),
        target_delta=real("target_delta", begun["target_delta"], at_least=0.0, below=1.0),
        run=begun["run"],
        moves=int(moves),
        spends=tuple(spends),
        unit=begun["unit"],
        order=begun.get("order", 0.0),
        changes=tuple(changes),
    )


def _settings(words: str) -> Settings:
    return Settings(**entries("settings", json.loads(words), _SETTINGS))


def _records(db: sqlite3.Connection) -> list[tuple[int, bytes]]:
    return db.execute("SELECT number, sums FROM releases WHERE chain IS NOT NULL ORDER BY number").fetchall()


def _digest(begun: str, settings: list[tuple[int, str]]) -> bytes:
    return hashlib.sha256("\n".join([begun, *(words for _, words in settings)]).encode()).digest()


def _paid(nonce: bytes, before: bytes, chain: bytes, first: int, count: int, words: str) -> bytes:
    """Return the hash of a payment, which begins with its random `nonce`.

    before: the hash of the payment before. chain: that of the last record before. words: the settings in force.
    """
    body = b"".join((nonce, before, chain, f"{first} {count} {words}".encode()))
    return nonce + hashlib.sha256(body).digest()[:_CHECK]


def _chained(chain: bytes, number: int, sums: bytes) -> bytes:
    return hashlib.sha256(chain + number.to_bytes(8, "little") + sums).digest()[:_CHECK]


def _require_planned(plan: Release, epsilon: float, delta: float) -> None:
    """Raise PlanCostsMoreError if the certified epsilon of the releases `plan` at `delta` is more than `epsilon` (by
    more than 1e-9 of it)."""
    cost = epsilon_beside([plan], delta, epsilon)
    if not cost <= epsilon * (1 + _BUDGET_ROUNDING):
        raise PlanCostsMoreError(
            "target_epsilon must be at least what the plan certifiably costs: the plan costs epsilon "
            f"{cost:.6g} at delta {delta:g}, more than target_epsilon {epsilon:g}"
        )


def _counted(account: Account, path: Path) -> Filter:
    """Return the filter of an adaptive ledger after all that was paid. Raises LedgerError where that is too much."""
    counted = Filter(account.target_epsilon, account.target_delta, orders=[account.order])
    try:
        if account.spent:
            counted.spend(list(account.history))
    except (BudgetExceededError, ValueError) as error:
        said = printable(str(error))
        raise LedgerError(f"{path}: its releases cost more than its budget ({said}): put the file back") from None
    return counted


def _history(settings: list[tuple[int, Settings]], spent: int, *, chosen: bool) -> list[Release]:
    """The first `spent` releases as a history. settings: pairs (number of a release, settings that hold from it on), by
    rising number. chosen: whether they were chosen from what earlier releases showed."""
    ends = [first for first, _ in settings[1:]] + [spent]
    found = [each.release(end - first) for (first, each), end in zip(settings, ends, strict=True) if end > first]
    return Chosen(found) if chosen else found


def _require_plain(path: Path) -> os.stat_result:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for a writer
        raise OSError(f"{path}: not a plain file: put it back")
    return found


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)


def _locked(path: Path) -> int:
    """Lock the file at `path` against other processes and other openings in this one, and return the descriptor."""
    found = _require_plain(path)
    key = found.st_dev, found.st_ino
    said = f"{path}: another process has this file open, or another run here: close it"
    if key in _held:
        raise LedgerError(said)
    lock = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _held.add(key)
        return lock
    except BlockingIOError:
        os.close(lock)
        raise LedgerError(said) from None


def _close(db: sqlite3.Connection, lock: int | None, pid: int) -> None:
    if os.getpid() != pid:
        return
    with suppress(sqlite3.Error):  # a reader may be in the way; the file is whole either way
        db.execute("PRAGMA journal_mode=DELETE")
    with suppress(sqlite3.Error):
        db.close()
    if lock is not None:
        _unlock(lock)


def _unlock(lock: int) -> None:
    found = os.fstat(lock)
    _held.discard((found.st_dev, found.st_ino))
    os.close(lock)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A context manager that turns an error of SQLite into a LedgerError of one line, which says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        said = printable(str(error))
        cure = next((cure for word, cure in _CURES.items() if word in said), "put the file back")
        raise LedgerError(f"{path}: {said}: {cure}") from None
