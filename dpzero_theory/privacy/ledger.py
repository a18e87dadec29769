"""The privacy budget on disk: an append-only file of releases that survives crashes and never under-counts.

One JSON object per line: a `budget`, a `plan` (settings and number of releases), then a `spend` for each release
or block of releases, and further plans if the settings change. Each line ends with `check`, the SHA-256 of the
previous line's check and of the rest of the line, so that an edited, lost or repeated line is found. (It is no
signature: whoever rewrites the file can recompute it, and whole lines missing from the end, as in a restored backup,
are not noticed: never restore a ledger.)

What is guaranteed, on a file system whose fsync is durable:

- `spend` returns only after its line is on disk, so a release made after it is counted whatever happens next;
- a line that was torn by a crash is cut off when the ledger is opened and counted as spent, in a `torn` line of
  its own, although the crash most likely preceded the release: never under-counted, at most one block too many;
- no release number is handed out twice: one writer at a time (flock), and not the child of a fork;
- settings that differ from the plan in n, q, sigma, C, relation, sampling or mechanism are refused, and so is
  release T + 1.

Any failed write leaves the ledger unusable until it is opened again.
"""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from dpzero_theory.check import integer, real
from dpzero_theory.privacy.certified.pairs import Group
from dpzero_theory.privacy.releases import Accountant, Settings, certified_epsilon

__all__ = ["BudgetSpentError", "Ledger", "LedgerError", "Report"]

_START = "0" * 64
_ROUNDING = 1e-9  # relative: what a calibration to the target may lose between its inverse functions


class LedgerError(RuntimeError):
    """The ledger refuses: other settings, a damaged file, a second writer."""


class BudgetSpentError(LedgerError):
    """Every release that was planned is spent."""


class Report(NamedTuple):
    """releases of the current plan; epsilon at target_delta of what is spent, and once the plan is complete."""

    releases_spent: int
    releases_left: int
    epsilon_spent: float
    epsilon_planned: float
    target_epsilon: float
    target_delta: float

    @property
    def epsilon_left(self) -> float:
        return self.target_epsilon - self.epsilon_spent


class Ledger:
    """The budget of one data set, open for writing by this process; a context manager.

    `Ledger.create` starts one, `Ledger.open` resumes one. Both raise LedgerError (the file is damaged, or
    another process holds it) and OSError.
    """

    def __init__(self, path: str | os.PathLike[str], *, _new: bool = False) -> None:
        self.path = Path(path)
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._usable = True
        self._check, self._size = _START, 0
        self._budget: dict[str, Any] = {}
        self._spent: list[tuple[Settings, int]] = []
        self._steps, self._block, self._next = 0, 1, 0
        self._file = os.open(self.path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if _new else 0), 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _new:
                self._load()
        except BlockingIOError:
            self.close()
            raise LedgerError(f"{self.path}: another process has this ledger open") from None
        except BaseException:
            self.close()
            raise

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
        accountant: Accountant = certified_epsilon,
    ) -> Self:
        """Start a ledger for `steps` releases with `settings`, which must cost at most the target.

        Args:
            path: a file that does not exist (FileExistsError otherwise).
            target_epsilon, target_delta: the whole budget, target_epsilon > 0, 0 < target_delta < 1.
            settings: of every release.
            steps: T >= 1.
            block: releases per line; the calls to fsync, and what a crash can waste, are in proportion.
            accountant: epsilon of a history of releases.

        Raises:
            ValueError: an argument outside its range.
            LedgerError: the plan costs more than the target. Nothing is written.
        """
        budget = {
            "kind": "budget",
            "target_epsilon": real("target_epsilon", target_epsilon, above=0.0),
            "target_delta": real("target_delta", target_delta, above=0.0, below=1.0),
        }
        plan = _plan([], settings, steps, block, budget, accountant)
        ledger = cls(path, _new=True)
        try:
            ledger._append(budget)
            ledger._append(plan)
            directory = os.open(ledger.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Resume the ledger at `path`, verifying every line; a torn last line is cut off and counted."""
        return cls(path)

    def spend(self, settings: Settings) -> range:
        """Pay for the next block of releases, before any of their noise is drawn.

        settings: what the releases will really use. Returns their numbers, counted from 0 over the life of the
        ledger. Raises BudgetSpentError when the plan is complete and LedgerError for settings other than the
        plan's, and in both cases writes nothing.
        """
        with self._mutex:
            self._ensure_writable()
            self._require_planned(settings, [field.name for field in fields(Settings)])
            if self.releases_left == 0:
                raise BudgetSpentError(f"{self.path}: all {self._steps} releases of the plan are spent")
            first, count = self._next, min(self._block, self.releases_left)
            self._append({"kind": "spend", "release": first, "count": count})
            return range(first, first + count)

    def replan(
        self,
        settings: Settings,
        steps: int,
        *,
        block: int = 1,
        accountant: Accountant = certified_epsilon,
    ) -> None:
        """Give up what is left of the plan and plan `steps` releases with other settings.

        Arguments and errors as for `create`; all that is spent already and the new plan together must cost at
        most the target, under one relation and mechanism.
        """
        with self._mutex:
            self._ensure_writable()
            self._require_planned(settings, ("relation", "mechanism"))
            self._append(_plan(self.history, settings, steps, block, self._budget, accountant))

    @property
    def settings(self) -> Settings:
        """The settings of the current plan."""
        return self._spent[-1][0]

    @property
    def history(self) -> list[Group]:
        """What is spent, for an accountant: a group for each plan under which anything was."""
        return [settings.releases(count) for settings, count in self._spent if count]

    @property
    def releases_left(self) -> int:
        """How many releases of the current plan may still be made."""
        return self._steps - self._spent[-1][1]

    def report(self, accountant: Accountant = certified_epsilon) -> Report:
        """Spent and left, in releases and in epsilon at target_delta."""
        delta = self._budget["target_delta"]
        closed = [settings.releases(count) for settings, count in self._spent[:-1] if count]
        return Report(
            releases_spent=self._spent[-1][1],
            releases_left=self.releases_left,
            epsilon_spent=accountant(self.history, delta),
            epsilon_planned=accountant([*closed, self.settings.releases(self._steps)], delta),
            target_epsilon=self._budget["target_epsilon"],
            target_delta=delta,
        )

    def close(self) -> None:
        """Give up the lock; safe to repeat."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._usable = -1, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_planned(self, settings: Settings, names: Iterable[str]) -> None:
        for name in names:
            given, expected = getattr(settings, name), getattr(self.settings, name)
            if given != expected:
                raise LedgerError(f"{self.path}: {name} is {given!r}, but {expected!r} was planned")

    def _ensure_writable(self) -> None:
        if not self._usable:
            raise LedgerError(f"{self.path}: this ledger is closed, or a write failed: open it again")
        if os.getpid() != self._pid:
            raise LedgerError(f"{self.path}: this ledger was opened by another process, before a fork")
        held = os.fstat(self._file)
        try:
            in_place = os.path.samestat(held, os.stat(self.path))
        except FileNotFoundError:
            in_place = False
        if not in_place or held.st_size != self._size:
            raise LedgerError(f"{self.path}: the file was moved or changed by something else")

    def _append(self, record: dict[str, Any]) -> None:
        line, check = _encode(record, self._check)
        self._usable = False
        if os.pwrite(self._file, line, self._size) != len(line):
            raise LedgerError(f"{self.path}: a line was written in part (disk full?): open it again")
        os.fsync(self._file)
        self._usable = True
        self._check, self._size = check, self._size + len(line)
        self._apply(record)

    def _load(self) -> None:
        content = self.path.read_bytes()
        lines = content.split(b"\n")
        torn = lines.pop()
        for number, line in enumerate(lines, start=1):
            last = number == len(lines) and not torn
            record, check = _decode(line, self._check, f"{self.path}, line {number}", last)
            if record is None:
                torn = line + b"\n"
                break
            self._apply(record)
            self._check, self._size = check, self._size + len(line) + 1
        if not self._spent:
            raise LedgerError(f"{self.path}: no complete plan, so nothing was released: delete the file")
        if torn:
            # written over the torn bytes, which stay torn, and counted, until this line is whole
            count = min(self._block, self.releases_left)
            self._append({"kind": "torn", "release": self._next, "count": count, "bytes": len(torn)})
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)

    def _apply(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "budget":
            self._budget = record
        elif kind == "plan":
            self._spent.append((Settings(**record["settings"]), 0))
            self._steps, self._block = record["steps"], record["block"]
        else:
            settings, count = self._spent[-1]
            self._spent[-1] = settings, count + record["count"]
            self._next = record["release"] + record["count"]


def _plan(
    spent: Sequence[Group],
    settings: Settings,
    steps: int,
    block: int,
    budget: dict[str, Any],
    accountant: Accountant,
) -> dict[str, Any]:
    """The line of a plan. Raises LedgerError where it costs more than the budget."""
    releases = integer("steps", steps)
    record = {
        "kind": "plan",
        "settings": asdict(settings),
        "steps": releases,
        "block": integer("block", block),
    }
    cost = accountant([*spent, settings.releases(releases)], budget["target_delta"])
    if not cost <= budget["target_epsilon"] * (1 + _ROUNDING):
        raise LedgerError(
            f"the plan costs epsilon {cost:.6g} at delta {budget['target_delta']:g}, "
            f"more than target_epsilon {budget['target_epsilon']:g}"
        )
    return record


def _encode(record: dict[str, Any], previous: str) -> tuple[bytes, str]:
    body = json.dumps(record, separators=(", ", ": "), allow_nan=False)
    check = hashlib.sha256((previous + body).encode()).hexdigest()
    return f'{body[:-1]}, "check": "{check}"}}\n'.encode(), check


def _decode(line: bytes, previous: str, where: str, last: bool) -> tuple[dict[str, Any] | None, str]:
    """The record and its check; None for a last line that is not JSON, which a crash may have left."""
    try:
        record = json.loads(line)
        check = record.pop("check")
    except (ValueError, AttributeError, KeyError, TypeError):
        if last:
            return None, previous
        raise LedgerError(f"{where}: not a line of a ledger; the file is damaged") from None
    if not isinstance(check, str) or line + b"\n" != _encode(record, previous)[0]:
        raise LedgerError(f"{where}: the checksum does not match; a line was edited, lost or repeated")
    return record, check
