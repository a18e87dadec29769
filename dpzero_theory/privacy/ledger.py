"""The privacy budget on disk: an append-only file of releases that survives crashes and never counts too few.

The file has one JSON object per line: a `budget`, a `plan` (settings and number of releases), then a `spend` for each
release or block of releases, with a random number of the process that paid (`by`). Each line ends with `check`, the
SHA-256 of the previous line's check and of the rest of the line. So an edited, lost or repeated line is found, and two
copies that both went on are told apart. The check is no signature: whoever rewrites the file can recompute it. Whole
lines missing from the end are not noticed here (`optim.files.folder` notices them), so a ledger must never be restored
from a backup.

On a file system whose fsync is durable, the following is guaranteed:

- `spend` returns only after its line is on disk, so a release made after it is counted whatever happens next;
- a line that was torn by a crash is cut off when the ledger is opened, and its releases are counted as spent, in a
  `torn` line of its own, although the crash most likely preceded them: at most one block too many is counted;
- a copy is refused, because it is another file with another inode number, unless it is opened as `moved`, which a line
  records (a cloned disk is not noticed);
- no release number is handed out twice: one process writes at a time (flock), and never the child of a fork;
- settings that differ from the plan in n, q, s, C, relation, sampling, mechanism or coordinates are refused, and so is
  a release beyond the plan's number. In an adaptive ledger later releases may have other settings, and what is refused
  is a release for which the budget has no room;
- a write that failed or was interrupted leaves the ledger unusable until it is opened again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

from dpzero_theory.check import choice, entries, integer, printable, real
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.filter import BudgetExceededError, Filter
from dpzero_theory.privacy.journal import Journal, content
from dpzero_theory.privacy.step import Chosen, Release, Step, Words
from dpzero_theory.privacy.stopping import ANY, claimed

_START = "0" * 64
_ENTRIES: dict[str, dict[str, type]] = {
    "budget": {"target_epsilon": float, "target_delta": float, "run": str, "inode": int, "unit": str},
    "plan": {"settings": dict, "steps": int, "block": int, "order": float},
    "step": {"settings": dict},
    "spend": {"release": int, "count": int, "by": str, "state": str},
    "torn": {"release": int, "count": int, "bytes": int},
    "moved": {"inode": int},
}
"""The entries of a line, with their types, for each kind of line."""
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
_LATER = ("run", "inode", "by", "state", "unit", "order")
"""The entries that a line of the file may lack: files of earlier versions do not have them, and `order` is that of an
adaptive ledger."""
_FIXED = ("n", "relation")
"""The settings that no release of an adaptive ledger may change."""
_BUDGET_ROUNDING = 1e-9
"""The epsilon of a plan may be above the target epsilon by this share of it, because a noise multiplier from a closed
form is rounded."""


class LedgerError(RuntimeError):
    """The ledger refuses an action: the settings are not the plan's, the file is damaged, or another process writes
    it."""


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
    """What one line of a ledger paid for: the releases numbered from `release` to `release + count - 1`.

    check: the line's checksum, which is equal in copies of the file. state: the text that was given to `Ledger.spend`,
    such as how far a run was; "" if none was given, and None for a line that a crash tore.
    """

    release: int
    count: int
    check: str
    state: str | None = None


class Account(NamedTuple):
    """What a ledger says, read without opening it for writing.

    settings, steps: the plan's settings and number of releases. block: how many releases one line pays for.
    target_epsilon, target_delta: the budget. run: the text that says what the ledger was created for. state: the text
    that was last given to `Ledger.spend`, "" if none was. moves: how often the file was opened as `moved`. spends: one
    entry for each line that paid. unit: what one of the n records is, if it is not one entry of the data set. order:
    the t of the filter of an adaptive ledger, else 0. changes: in an adaptive ledger, for each change of the settings,
    the number of the first release that has them, and the new settings.
    """

    settings: Settings
    steps: int
    block: int
    target_epsilon: float
    target_delta: float
    run: str
    state: str
    moves: int
    spends: tuple[Spend, ...]
    unit: str = ""
    order: float = 0.0
    changes: tuple[tuple[int, Settings], ...] = ()

    @property
    def spent(self) -> int:
        """The number of releases that are paid for, those of a torn last line included."""
        return self.spends[-1].release + self.spends[-1].count if self.spends else 0

    @property
    def history(self) -> list[Release]:
        """The releases that are paid for, in the form that the accountant takes. Of an adaptive ledger it refuses them:
        what they cost is counted by the ledger's filter."""
        return _history([(0, self.settings), *self.changes], self.spent, chosen=bool(self.order))


class Ledger(AbstractContextManager["Ledger"]):
    """The budget of one data set, open for writing by this process; a context manager.

    `Ledger.create` starts a ledger and `Ledger.open` resumes one. Both raise LedgerError (the file is damaged, or
    another process holds it) and OSError.

    journal: the open file. Attributes: `run` is the text that says what the ledger was created for, and `state` is the
    text that the code which pays for the releases last added to a payment, "" at first.
    """

    def __init__(self, journal: Journal) -> None:
        self.path = journal.path
        self._journal = journal
        self._check = _START
        self._budget: dict[str, Any] = {}
        self._settings: Settings | None = None
        self._filter: Filter | None = None
        self._changes: list[tuple[int, Settings]] = []
        self._steps, self._block, self._spent = 0, 1, 0
        self._inode = journal.inode
        self._session = os.urandom(8).hex()
        self.run, self.state = "", ""

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
            block: how many releases one line pays for. With 64 the disk is waited for once in 64 releases, and a crash
                can waste up to 64.
            run: what the ledger is for, a text kept in its first line.
            unit: what one of the n records is, a text kept there too; empty for one entry of the data set.
            adaptive: whether later releases may have other settings. `steps` is then the most releases that are made.

        Raises:
            ValueError: an argument outside its range.
            PlanCostsMoreError: the plan costs more than the target, or the first release of an adaptive ledger does.
                Nothing is written.
            FileExistsError: the file exists.
            OSError: the file cannot be written.
        """
        budget: dict[str, Any] = {
            "kind": "budget",
            "target_epsilon": real("target_epsilon", target_epsilon, above=0.0),
            "target_delta": real("target_delta", target_delta, at_least=0.0, below=1.0),
        }
        plan = {
            "kind": "plan",
            "settings": settings.words,
            "steps": integer("steps", steps),
            "block": integer("block", block),
        }
        if adaptive:
            first = settings.release(1)
            counted = Filter(budget["target_epsilon"], budget["target_delta"], planned=first)
            if not counted.has_room(first):
                raise PlanCostsMoreError(
                    f"target_epsilon must have room for one release; got {target_epsilon!r} at target_delta"
                    f" {target_delta!r} and noise_multiplier {settings.noise_multiplier!r}"
                )
            plan["order"] = counted.orders[0]
        else:
            _require_planned(settings.release(steps), budget["target_epsilon"], budget["target_delta"])

        def begin(ledger: Self) -> None:
            ledger._append({**budget, "run": run, "inode": ledger._inode, **({"unit": unit} if unit else {})})
            ledger._append(plan)

        return cls._of(Journal.create, path, begin)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, moved: bool = False) -> Self:
        """Resume the ledger at `path`, verifying every line. The releases of a torn last line are counted as spent.

        moved: whether to accept a file that was copied or brought from another disk. It must then be the only copy that
        goes on. Raises LedgerError if the file is damaged, was moved without `moved`, or is open in another process,
        and OSError if it cannot be read or written.
        """
        return cls._of(Journal.open, path, lambda ledger: ledger._load(moved))

    def spend(self, settings: Settings, state: str = "") -> range:
        """Pay for the next `block` releases of the plan, or for those that are left, before any of their noise is
        drawn.

        settings: the settings that the releases will really have. state: a text that is kept in the file with this
        payment. It returns, when the payment is on disk, the numbers of the releases, counted from 0 over the life of
        the ledger. It raises BudgetSpentError if the plan is complete, or the budget of an adaptive ledger has no room
        for the releases, and LedgerError for settings other than the plan's; in an adaptive ledger only n and the
        relation must be the plan's, and ValueError is raised for steps that `Filter` does not account for. Nothing is
        written in these cases.
        """
        with self._journal.mutex:
            self._journal.require_writable()
            given = settings.words
            for name, expected in self.settings.words.items():
                if given[name] != expected and (self._filter is None or name in _FIXED):
                    raise LedgerError(f"{self.path}: {name} is {given[name]!r}, but {expected!r} was planned")
            if self.releases_left == 0:
                raise BudgetSpentError(f"{self.path}: all {self._steps} releases of the plan are spent")
            first, count = self._spent, min(self._block, self.releases_left)
            if self._filter is not None:
                if not self._filter.has_room(settings.release(count)):
                    raise BudgetSpentError(
                        f"{self.path}: no room for {count} more releases with noise multiplier"
                        f" {settings.noise_multiplier:g}"
                    )
                if settings != self._now:
                    self._append({"kind": "step", "settings": given})
            line = {"kind": "spend", "release": first, "count": count, "by": self._session}
            self._append({**line, "state": state} if state else line)
            return range(first, first + count)

    @property
    def settings(self) -> Settings:
        """The settings of the plan."""
        assert self._settings is not None
        return self._settings

    @property
    def history(self) -> list[Release]:
        """The releases that are spent, in the form that the accountant takes. Of an adaptive ledger it refuses them:
        `report` says what its filter counts."""
        return _history([(0, self.settings), *self._changes], self._spent, chosen=self._filter is not None)

    @property
    def _now(self) -> Settings:
        """The settings that were last paid with, or those of the plan."""
        return self._changes[-1][1] if self._changes else self.settings

    @property
    def releases_left(self) -> int:
        """How many releases of the plan may still be made."""
        return self._steps - self._spent

    def report(self, stopping: str = ANY) -> Report:
        """How much of the plan is spent and how much is left, in releases and in epsilon at target_delta.

        stopping: "any" if the releases may end because of what they show; then epsilon_spent is that of the whole plan.
        "fixed" if their number does not depend on that; then it is that of the spent releases (`privacy.stopping`).
        """
        delta, target = self._budget["target_delta"], self._budget["target_epsilon"]
        if self._filter is not None:
            return Report(self._spent, self.releases_left, self._filter.odometer, target, target, delta)
        return Report(
            releases_spent=self._spent,
            releases_left=self.releases_left,
            epsilon_spent=claimed(self.settings.step, self._spent, self._steps, delta, stopping).upper,
            epsilon_planned=epsilon_of_history([self.settings.release(self._steps)], delta).upper,
            target_epsilon=target,
            target_delta=delta,
        )

    def close(self) -> None:
        """Give up the lock on the file, so that another process can open the ledger. A second call does nothing."""
        self._journal.close()

    def __exit__(self, *unused: object) -> None:
        self.close()

    @classmethod
    def _of(cls, make: Callable[..., Journal], path: str | os.PathLike[str], work: Callable[[Self], None]) -> Self:
        """The ledger of the file that `make(path, LedgerError)` opens, after `work` was called with the ledger, for
        instance to load its lines.

        If `work` raises an exception the file is closed.
        """
        journal = make(path, LedgerError)
        try:
            ledger = cls(journal)
            work(ledger)
            return ledger
        except BaseException:
            journal.close()
            raise

    def _append(self, record: dict[str, Any]) -> None:
        line, check = _encode(record, self._check)

        def written() -> None:
            self._check = check
            self._apply(record)

        self._journal.append(line, written)

    def _load(self, moved: bool) -> None:
        content, size = self._journal.content, 0
        for record, check, size in _lines(self.path, content):  # noqa: B007
            with _within(self.path):
                self._apply(record)
            self._check = check
        if self._settings is None:
            raise LedgerError(f"{self.path}: no complete plan: put the file back, or start in another folder")
        if self._inode != self._journal.inode and not moved:
            raise LedgerError(
                f"{self.path}: a copy, or brought from another disk: copies that each go on cost more than any says; "
                "if this one alone goes on, open it as moved (resume='moved')"
            )
        if size < len(content):
            # The new line is written over the torn bytes. Until it is whole, the file's last line is still a torn one,
            # whose releases count as spent.
            self._journal.keep(size)
            count = _torn(min(self._block, self.releases_left), self._now, self._filter)
            self._append({"kind": "torn", "release": self._spent, "count": count, "bytes": len(content) - size})
        if self._inode != self._journal.inode:
            self._append({"kind": "moved", "inode": self._journal.inode})

    def _apply(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        self._inode = record.get("inode", self._inode)
        if kind == "budget":
            self._budget, self.run = record, record.get("run", "")
        elif kind == "plan":
            self._settings = Settings(**record["settings"])
            self._steps, self._block = record["steps"], record["block"]
            if record.get("order"):
                self._filter = _filter(self._budget, record["order"])
        elif kind == "step":
            self._changes.append((self._spent, Settings(**record["settings"])))
        elif kind != "moved":
            if self._filter is not None and record["count"]:
                self._filter.spend(self._now.release(record["count"]))
            self._spent = record["release"] + record["count"]
            self.state = record.get("state", self.state)


def read(path: str | os.PathLike[str]) -> Account:
    """What the ledger at `path` says, even while another process writes it. The releases of a torn last line count as
    spent.

    Nothing is written. Raises LedgerError if the file is damaged or has no plan yet, and OSError if it cannot be read.
    """
    text = content(path)
    lines = list(_lines(Path(path), text))
    if len(lines) < 2:
        raise LedgerError(f"{path}: no complete plan: put the file back")
    budget, plan, later = lines[0][0], lines[1][0], lines[2:]
    paid = [(record, check) for record, check, _ in later if record["kind"] in ("spend", "torn")]
    account = Account(
        settings=Settings(**plan["settings"]),
        steps=plan["steps"],
        block=plan["block"],
        target_epsilon=budget["target_epsilon"],
        target_delta=budget["target_delta"],
        run=budget.get("run", ""),
        state=next((record["state"] for record, _ in reversed(paid) if "state" in record), ""),
        moves=sum(record["kind"] == "moved" for record, _, _ in later),
        spends=tuple(Spend(record["release"], record["count"], check, _state(record)) for record, check in paid),
        unit=budget.get("unit", ""),
        order=plan.get("order", 0.0),
        changes=tuple(_changes(record for record, _, _ in later)),
    )
    counted = _filter(budget, account.order) if account.order else None
    if counted is not None:
        with _within(path):
            counted.spend(list(account.history))
    torn = text[lines[-1][2] :]
    if not torn:
        return account
    now = account.changes[-1][1] if account.changes else account.settings
    count = _torn(min(account.block, account.steps - account.spent), now, counted)
    check = hashlib.sha256(lines[-1][1].encode() + torn).hexdigest()
    return account._replace(spends=(*account.spends, Spend(account.spent, count, check)))


def _require_planned(plan: Release, epsilon: float, delta: float) -> None:
    """Raise PlanCostsMoreError if the certified epsilon of the releases `plan` at `delta` is more than `epsilon` (by
    more than 1e-9 of it)."""
    cost = epsilon_of_history([plan], delta).upper
    if not cost <= epsilon * (1 + _BUDGET_ROUNDING):
        raise PlanCostsMoreError(
            "target_epsilon must be at least what the plan certifiably costs: the plan costs epsilon "
            f"{cost:.6g} at delta {delta:g}, more than target_epsilon {epsilon:g}"
        )


def _filter(budget: dict[str, Any], order: float) -> Filter:
    return Filter(budget["target_epsilon"], budget["target_delta"], orders=[order])


def _torn(count: int, now: Settings, counted: Filter | None) -> int:
    """How many releases a torn last line counts as: `count`, or 0 in an adaptive ledger without room for so many.

    There a line that pays is only begun if the budget has room for it with the settings `now`, which an earlier line
    has named; so a torn line without room was one that names settings, and no release was made after it. counted: the
    budget of an adaptive ledger.
    """
    return count if counted is None or (count and counted.has_room(now.release(count))) else 0


def _history(settings: list[tuple[int, Settings]], spent: int, *, chosen: bool) -> list[Release]:
    """The first `spent` releases as a history. settings: pairs (number of a release, settings that hold from it on), by
    rising number. chosen: whether they were chosen from what earlier releases showed."""
    ends = [first for first, _ in settings[1:]] + [spent]
    found = [each.release(end - first) for (first, each), end in zip(settings, ends, strict=True) if end > first]
    return Chosen(found) if chosen else found


def _changes(records: Iterable[dict[str, Any]]) -> Iterator[tuple[int, Settings]]:
    """Yield, for each change of settings in the lines `records` of a ledger, the number of the first release with the
    new settings, and those settings."""
    spent = 0
    for record in records:
        if record["kind"] == "step":
            yield spent, Settings(**record["settings"])
        elif record["kind"] in ("spend", "torn"):
            spent = record["release"] + record["count"]


@contextmanager
def _within(path: str | os.PathLike[str]) -> Iterator[None]:
    """A context manager that turns the errors by which a `Filter` refuses steps into a LedgerError about the file at
    `path`. It is for lines that are on disk already."""
    try:
        yield
    except (BudgetExceededError, ValueError) as error:
        said = printable(str(error))
        raise LedgerError(f"{path}: its releases cost more than its budget ({said}): put the file back") from None


def _state(record: dict[str, Any]) -> str | None:
    found: str | None = record.get("state", "") if record["kind"] == "spend" else None
    return found


def _lines(path: Path, text: bytes) -> Iterator[tuple[dict[str, Any], str, int]]:
    """For each whole line of a ledger its record, its check and the position in the file where the line ends.

    path: the file, for messages. text: its bytes. A last line that a crash may have torn is left out. Raises
    LedgerError for a line that is damaged otherwise.
    """
    lines, check, size = text.split(b"\n"), _START, 0
    torn, spent, steps, block = lines.pop(), 0, 0, 0
    later: tuple[str, ...] = ("spend", "torn", "moved")
    for number, line in enumerate(lines, start=1):
        last = number == len(lines) and not torn
        record, check = _decode(line, check, f"{path}, line {number}", last)
        if record is None:
            return
        try:
            kind = choice("kind", record["kind"], ("budget", "plan")[number - 1 : number] or later)
            entries("the line", record, {"kind": str, **_ENTRIES[kind]}, _LATER)
            if kind == "budget":
                real("target_epsilon", record["target_epsilon"], above=0.0)
                real("target_delta", record["target_delta"], at_least=0.0, below=1.0)
            elif kind == "plan":
                plan = Settings(**entries("settings", record["settings"], _SETTINGS, ("mechanism", "coordinates")))
                steps, block = integer("steps", record["steps"]), integer("block", record["block"])
                if "order" in record:
                    real("order", record["order"], above=0.0)
                    later += ("step",)
            elif kind == "step":
                given = Settings(**entries("settings", record["settings"], _SETTINGS)).words
                for name in _FIXED:
                    if given[name] != plan.words[name]:
                        raise ValueError(f"{name} must be {plan.words[name]!r}, that of the plan; got {given[name]!r}")
            elif kind != "moved":
                integer("release", record["release"], at_least=spent, at_most=spent)
                spent += integer("count", record["count"], at_least=0, at_most=min(block, steps - spent))
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            said = printable(str(error))
            raise LedgerError(f"{path}, line {number}: not what a ledger says ({said}): put the file back") from None
        size += len(line) + 1
        yield record, check, size


def _encode(record: dict[str, Any], previous: str) -> tuple[bytes, str]:
    body = json.dumps(record, separators=(", ", ": "), allow_nan=False)
    check = hashlib.sha256((previous + body).encode()).hexdigest()
    return f'{body[:-1]}, "check": "{check}"}}\n'.encode(), check


def _decode(line: bytes, previous: str, where: str, last: bool) -> tuple[dict[str, Any] | None, str]:
    """The record of a line of a ledger, and its check. The record is None for a last line that a crash may have torn.

    previous: the check of the line before. where: the file and line, for messages. last: whether it is the last line.
    Raises LedgerError for a line that is damaged otherwise.
    """
    try:
        record = json.loads(line)
        check = record.pop("check")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        if last:
            return None, previous
        raise LedgerError(f"{where}: not a line of a ledger; the file is damaged: put it back") from None
    try:
        matches = isinstance(check, str) and line + b"\n" == _encode(record, previous)[0]
    except (ValueError, RecursionError):  # ValueError is raised for NaN and infinity
        matches = False
    if not matches:
        raise LedgerError(f"{where}: the checksum does not match; a line was edited, lost or repeated: put it back")
    return record, check
