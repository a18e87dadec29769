"""The folder of a run, which is made whole or not at all (`files.new_folder`):

    run.sqlite   what the run was begun with, what is paid for and what it released (`privacy.ledger`); it replays the
                 run. Everybody may see it
    data.key     a secret key for its owner alone, mode 0600. Under it the header has a digest of the records, and from
                 it come batches that depend on one another (`Sampling.lasting`). A key that others may read is refused

Payment and record are one row, so they cannot disagree. A crash between them is no damage: what was paid for stays paid
for. Three things cannot be noticed: a folder that was rolled back in place (a snapshot of the disk), a copy with the
same inode number (a cloned machine), and an edit that recomputes every check. `epsilon_of_runs` tells the copies of a
run apart where all of them are at hand.
"""

import math
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from dpzero_theory.check import choice, printable
from dpzero_theory.optim.files.new_folder import made_whole
from dpzero_theory.optim.files.transcript import RUN, Header, Record, layout, parsed, read
from dpzero_theory.optim.losses.identity import KEY_BYTES, new_key, of_records, versions
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.algorithm import Sums
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import Account, BudgetSpentError, Ledger, LedgerError
from dpzero_theory.privacy.step import Step

KEY = "data.key"
OF_TRAINER = "_dpzero"
"""The run folder in a Trainer's output folder; pushes to the hub leave out what begins with `_`."""


class Budget(NamedTuple):
    """What a run may cost at most, (epsilon, delta), and how many releases one payment pays for, `paid_at_once`. None
    stands for 1 in a new run, and in a resumed one for the number with which it was begun."""

    epsilon: float
    delta: float
    paid_at_once: int | None


class Folder:
    """The open file of a run, which says what it may still release and what it has released.

    `create` starts a run, `open` resumes one, `nowhere` keeps nothing. The first two raise FileExistsError or
    FileNotFoundError, other OSErrors, ValueError for a setting that is not the run's, and LedgerError where the file is
    damaged or in use.

    Attributes:
        header: what the run was begun with.
        file: the rows of the run's file.
        secret: the bytes of data.key.
        kept: whether the file is on disk.
        paid: the numbers of the releases that are paid for and not begun.
    """

    def __init__(self, header: Header, file: Ledger, secret: bytes, *, kept: bool = True) -> None:
        self.header, self.file, self.secret, self.kept = header, file, secret, kept
        self.paid = range(0)
        self._layout = layout(header.plan)

    @classmethod
    def nowhere(cls, header: Header, secret: bytes) -> Self:
        """Return the file of a run that keeps nothing. secret: from which its batches come."""
        return cls(header, Ledger.for_records(None, header.to_json()), secret, kept=False)

    @classmethod
    def create(cls, path: Path, header: Header, data: Any, budget: Budget | None) -> Self:
        """Start a run, and return its open file.

        Args:
            path: the folder, which is new or empty.
            header: what the run begins with. The digest of the records and the software's versions are put in here.
            data: the records.
            budget: what the run may cost; None for a run that is not private.
        """
        path = path.resolve()
        with made_whole(path) as new:
            key = new_key()
            with open(new / KEY, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(key)
            _require_secret(new / KEY)
            header = replace(header, records=of_records(data, key), software=versions())
            run, plan = header.to_json(), header.plan
            if budget is None:
                Ledger.for_records(new / RUN, run).close()
            else:
                Ledger.create(
                    new / RUN, target_epsilon=budget.epsilon, target_delta=budget.delta, step=plan.release,
                    steps=plan.steps, block=budget.paid_at_once or 1, run=run,
                ).close()  # fmt: skip
        return cls.open(path, header, None, budget)

    @classmethod
    def open(cls, path: Path, header: Header, data: Any, budget: Budget | None, *, moved: bool = False) -> Self:
        """Resume a run, and return its open file.

        Args:
            path: the folder of the run.
            header: settings that must be those with which the run was begun. The key of the directions (unless it is a
                seed) and the fingerprint of the weights may be others.
            data: the records, which must be the run's; None leaves them unchecked.
            budget: what the run may cost, as it was begun; None for a run that is not private.
            moved: whether the folder may be a copy, which is sound only if no other copy goes on.
        """
        path = path.resolve()
        _require_there(path)
        _require_secret(path / KEY)
        secret = (path / KEY).read_bytes()
        if len(secret) != KEY_BYTES:
            raise ValueError(f"{path / KEY} must hold {KEY_BYTES} bytes; got {len(secret)}: put it back")
        file = Ledger.open(path / RUN, moved=moved)
        try:
            begun = parsed(file.account, path / RUN).header
            _require_begun_with(begun, header)
            if budget is not None:
                _require_budget(file.account, budget)
            if data is not None and begun.records and of_records(data, secret) != begun.records:
                raise ValueError(
                    "data must be the records of the run that is resumed; these are others, or data.key is"
                )
            return cls(begun, file, secret)
        except BaseException:
            file.close()
            raise

    @property
    def history(self) -> list[Step]:
        """The releases that are paid for; empty without a budget."""
        return self.file.history if self.header.private else []

    def left(self, position: int) -> int:
        """Return how many releases may still be made.

        position: how many releases have moved the weights, which counts only where there is no budget.
        """
        if self.header.private:
            return self.file.releases_left + len(self.paid)
        return self.header.plan.steps - position

    def begin(self, position: int) -> int:
        """Return the number of the next release, which is then paid for.

        position: as in `left`. Raises BudgetSpentError when all releases are made, and LedgerError.
        """
        if self.header.private:
            paid = self.paid or self.file.spend()
            self.paid = paid[1:]
            return paid[0]
        if self.left(position):
            return position
        raise BudgetSpentError(f"all {self.header.plan.steps} steps of the plan are made")

    def write(self, release: int, sums: Sums) -> Sums:
        """Write a release into its row. The row is on disk afterwards if no further release is paid for.

        Args:
            release: the number of the release.
            sums: the K released numbers; none where a release is a vector.

        Returns:
            The sums.
        """
        self.file.record(release, self._layout.pack(*sums.tolist()), durable=not self.paid)
        return sums

    def records(self) -> list[Record]:
        """Return the releases that were recorded."""
        return [Record(number, self._layout.unpack(sums)) for number, sums in self.file.records()]

    def sync(self) -> None:
        """Wait until all records are on disk."""
        self.file.sync()

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        self.file.close()


def begun_with(path: Path) -> Header:
    """Return what the run in the folder at `path` was begun with.

    Raises FileNotFoundError where there is no run, LedgerError for a damaged file, and OSError.
    """
    _require_there(path)
    return read(path).header


def epsilon_of_runs(folders: Iterable[str | os.PathLike[str]], delta: float, *, planned: bool = False) -> float:
    """Return an upper bound on epsilon, at `delta`, of these runs together. Such runs are, for example, those that were
    made to choose settings.

    Each run counts with all releases of its plan, since it may have been stopped because of what it released; with
    stopping="fixed" it counts with those that are paid for. Copies of one run that went on apart count their common
    part once, and each of them what it did afterwards. Where batches depend on one another (`Sampling.lasting`) copies
    of one run raise LedgerError, since both used the same batches.

    Args:
        folders: of runs with one neighbouring relation; nothing is written in them.
        delta: the delta of the bound, in (0, 1); 0 where the noise has a pure epsilon.
        planned: True, by which the caller says that noise, batches and number of steps of every run, and how many runs
            there are, were fixed before the first of them began. Where they followed from what earlier runs released,
            no sum over these runs holds: a `privacy.filter.Filter` keeps such a budget.

    Raises:
        ValueError: another argument, `planned` among them.
        LedgerError, OSError: files that are damaged or cannot be read.
    """
    if planned is not True:
        raise ValueError(
            "planned must be True: noise, batches and steps of all runs were fixed before the first began; for runs"
            f" that were chosen by what earlier ones released keep a budget by privacy.filter.Filter; got {planned!r}"
        )
    payments: dict[tuple[str, int], set[str]] = defaultdict(set)
    shown: dict[tuple[str, int], set[tuple[float, ...]]] = defaultdict(set)
    plans: dict[str, Plan] = {}
    accounts: dict[str, list[Account]] = defaultdict(list)
    for folder in map(Path, folders):
        header, records, account = read(folder, private=True)
        run = account.digest
        plans[run] = header.plan
        accounts[run].append(account)
        for spend in account.spends:
            for release in range(spend.release, spend.release + spend.count):
                payments[run, release].add(spend.check)
        for release, sums in records:
            shown[run, release].add(sums)
    counts = {run: sum(_unpaid(accounts[run])) if plans[run].stopping != "fixed" else 0 for run in plans}
    for (run, release), checks in payments.items():
        made = max(len(checks), len(shown[run, release]))
        sampling = plans[run].sampling
        if made > 1 and sampling.lasting:
            raise LedgerError(
                f"release {release} was made by {made} copies of one run, with one batch of sampling"
                f" {sampling.word}: what that costs is not known; count none but one of the copies"
            )
        counts[run] += made
    history = [replace(plans[run].release, steps=count) for run, count in counts.items() if count]
    return epsilon_of_history(history, delta).upper


def _unpaid(copies: Sequence[Account]) -> Iterator[int]:
    """Yield how many releases of the plan each of these copies of one run has not paid for, but for copies from which
    another one went on."""
    paid = [tuple(spend.check for spend in account.spends) for account in copies]
    for mine, account in dict(zip(paid, copies, strict=True)).items():
        if account.spends and not any(other[: len(mine)] == mine for other in paid if len(other) > len(mine)):
            yield account.steps - account.spent


def _require_there(path: Path) -> None:
    names = [name for name in (RUN, KEY) if not (path / name).exists()]
    if len(names) == 2:
        raise FileNotFoundError(f"{path} holds no run: start one (resume=False)")
    if names:
        raise FileNotFoundError(f"{path / names[0]} is missing: put it back, or start in another folder")


def _require_secret(path: Path) -> None:
    """Raise ValueError where the mode of the file at `path` lets anybody but its owner read or change it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ValueError(
            f"{path} must be secret, and others may read or change it (mode {mode:04o}): chmod go= {path}, if nobody"
            " has read it"
        )


def _require_budget(account: Account, budget: Budget) -> None:
    """Raise ValueError, naming what differs, unless a run is resumed with the budget that it was begun with."""
    if budget.paid_at_once not in (None, account.block):
        raise ValueError(f"paid_at_once must be {account.block}, as the run was begun; got {budget.paid_at_once}")
    for name, given in (("target_delta", budget.delta), ("target_epsilon", budget.epsilon)):
        if not math.isclose(begun := getattr(account, name), given, rel_tol=1e-5):
            raise ValueError(f"{name} must be {begun:g}, as the run was begun; got {given:g}")


def _require_begun_with(found: Header, given: Header) -> None:
    """Raise ValueError, naming what differs, unless a run is resumed as it was begun.

    found: the header in the run's transcript. given: the header of the resumption.
    """
    if found.private != given.private:
        makers = ("make_from_seed_not_private", "make_private or make_private_with_epsilon")
        raise ValueError(f"the folder must be resumed as it was begun, with {makers[found.private]}")
    given.plan.require_same(found.plan)
    choice("precision", given.precision, (found.precision,))
    choice("isolation", given.isolation, (found.isolation,))
    for name, begun, now in (
        ("seed", found.key if not found.private else given.key, given.key),
        ("the trainable parameters", found.layout, given.layout),
        ("losses", found.losses, given.losses),
        ("what a record is", found.unit or "one entry of the data set", given.unit or "one entry of the data set"),
    ):
        if begun != now:
            raise ValueError(f"{name} must be as in the run that is resumed, {printable(begun)}; got {now}")
