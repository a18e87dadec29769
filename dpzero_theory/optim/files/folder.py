"""The folder of a run: three files that are opened together or not at all, and must say the same.

    transcript.bin   what the run was begun with and what it released; it replays the run. Its lock is the folder's
    ledger.jsonl     what is paid for, before it is released (only in a private run)
    data.key         a secret key. Under it the transcript's header has a digest of the records, and from it come
                     batches that depend on one another (`Sampling.lasting`)

The folder is made whole or not at all (`files.new_folder`). `data.key` is for its owner alone, mode 0600; a key that
others may read is refused before anything is read or paid. Everything else may be seen.

Each file names the others: the ledger's first line has the digest of the transcript's header, and each payment says how
far the transcript was. So an opening refuses, in one line, a file of another run, a ledger that was rolled back, and a
transcript that was cut off, replaced or changed. A crash between payment and record is no damage: what was paid for
stays paid for.

Four things cannot be noticed: both files rolled back together in place (a snapshot of the disk), a copy with the same
inode number (a cloned machine), a transcript that lacks no more than its last payment, and an edit that recomputes
every check. `epsilon_of_runs` tells the copies of a run apart where all of them are at hand.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from dpzero_theory.check import choice, printable
from dpzero_theory.optim.files.new_folder import clear_dead_starts, made_whole, require_secret, resolved, write_secret
from dpzero_theory.optim.files.transcript import (
    Content,
    DamagedRecordError,
    Header,
    Transcript,
    TranscriptError,
    contents,
    seen,
)
from dpzero_theory.optim.losses.identity import KEY_BYTES, new_key, of_records, versions
from dpzero_theory.optim.plan import Plan
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.journal import content
from dpzero_theory.privacy.ledger import Account, Ledger, LedgerError, read
from dpzero_theory.privacy.stopping import FIXED

LEDGER, TRANSCRIPT, KEY = "ledger.jsonl", "transcript.bin", "data.key"
OF_TRAINER = "_dpzero"
"""The run folder in a Trainer's output folder; pushes to the hub leave out what begins with `_`."""


class Budget(NamedTuple):
    """What a run may cost at most, (epsilon, delta), and how many releases one entry of the ledger pays for,
    `paid_at_once`. None stands for 1 in a new run, and in a resumed one for the number with which it was begun."""

    epsilon: float
    delta: float
    paid_at_once: int | None


@dataclass(frozen=True)
class Folder:
    """The open files of a run. `create` starts a run, `open` resumes one.

    header: what the run was begun with. ledger: the record of what is paid for; None for a run that is not private.
    transcript: the record of what was released. secret: the bytes of data.key.

    Both methods raise FileExistsError or FileNotFoundError, other OSErrors, ValueError for a setting that is not the
    run's, and LedgerError or TranscriptError where the files are damaged, do not fit together or are in use.
    """

    header: Header
    ledger: Ledger | None
    transcript: Transcript
    secret: bytes

    @classmethod
    def create(cls, path: Path, header: Header, data: Any, budget: Budget | None) -> Self:
        """Start a run in the folder at `path`, which is new or empty, and return its open files.

        header: what the run begins with; the digest of the records and the software's versions are put in here. data:
        the records. budget: what the run may cost; None for a run that is not private.
        """
        path = resolved(path)
        with made_whole(path) as new:
            key = new_key()
            write_secret(new / KEY, key)
            header = replace(header, records=of_records(data, key), software=versions())
            if budget is not None:
                Ledger.create(
                    new / LEDGER,
                    target_epsilon=budget.epsilon,
                    target_delta=budget.delta,
                    settings=header.plan.settings,
                    steps=header.plan.steps,
                    block=budget.paid_at_once or 1,
                    run=header.digest,
                    unit=header.unit,
                ).close()
            Transcript.create(new / TRANSCRIPT, header).close()
        return cls.open(path, header, None, budget)

    @classmethod
    def open(cls, path: Path, header: Header, data: Any, budget: Budget | None, *, moved: bool = False) -> Self:
        """Resume the run in the folder at `path` and return its open files.

        header: settings that must be those with which the run was begun; the key of the directions (unless it is a
        seed) and the fingerprint of the weights may be others. data: the records, which must be the run's; None leaves
        them unchecked. budget: what the run may cost, as it was begun; None for a run that is not private. moved:
        whether the folder may be a copy, which is sound only if no other copy goes on.
        """
        path = resolved(path)
        clear_dead_starts(path)
        _require_there(path)
        if (path / KEY).is_file():  # a key that is no file is refused below, when it is read
            require_secret(path / KEY)
        transcript, ledger = _transcript(path), None
        try:
            found = transcript.header
            _require_begun_with(found, header)
            if budget is not None:
                account = read(path / LEDGER)
                require_fit(contents(path / TRANSCRIPT), account, path)
                _require_budget(account, budget)
            secret = _key(path / KEY)
            if data is not None and found.records and of_records(data, secret) != found.records:
                raise ValueError(
                    "data must be the records of the run that is resumed; these are others, or data.key is"
                )
            if budget is not None:
                ledger = Ledger.open(path / LEDGER, moved=moved)
            return cls(found, ledger, transcript, secret)
        except BaseException:
            if ledger is not None:
                ledger.close()
            transcript.close()
            raise

    def close(self) -> None:
        """Close the ledger and the transcript. Safe to repeat."""
        if self.ledger is not None:
            self.ledger.close()
        self.transcript.close()


def begun_with(path: Path) -> Header:
    """Return what the run in the folder at `path` was begun with, read from its transcript.

    Raises FileNotFoundError where there is no run, TranscriptError for a damaged transcript or one in use, and OSError.
    """
    path = resolved(path)
    _require_there(path)
    with _transcript(path) as found:
        return found.header


def require_fit(found: Content, account: Account, path: Path) -> None:
    """Raise LedgerError or TranscriptError unless a transcript and a ledger are of one run and neither lacks what the
    other has seen. The ledger must pay for every release in the transcript, and the transcript must hold every record
    that the ledger notes beside a payment.

    found: the transcript's content. account: the ledger's content. path: the folder's, for the message.
    """
    plan, back = found.header.plan, "put back the files that belong together"
    paid, law = account.settings.mechanism, plan.settings.mechanism
    if account.run == found.digest and paid != law:
        raise LedgerError(
            f"{path}: the ledger accounts for mechanism {paid}, but the lattice of the transcript's plan has {law}:"
            " what the run costs is not what its ledger says; start another"
        )
    told = (account.run, account.unit, account.settings, account.steps)
    if told != (found.digest, found.header.unit, plan.settings, plan.steps):
        raise LedgerError(f"{path}: ledger and transcript are of different runs: {back}")
    if found.records and found.records[-1].release >= account.spent:
        raise LedgerError(
            f"{path}: the transcript has release {found.records[-1].release}, but the ledger counts only"
            f" {account.spent}: it was rolled back; {back}, never an older ledger"
        )
    for spend in reversed(account.spends):
        if spend.state is not None and spend.state != found.state_before(spend.release):
            raise TranscriptError(
                f"{path}: the transcript has {len(found.records)} records and is not the one of which the ledger has"
                f" seen {seen(spend.state)}: it was cut off or replaced; {back}"
            )


def both(path: Path) -> tuple[Content, Account]:
    """Return the content of the transcript and of the ledger in the run's folder at `path`; the run may go on
    meanwhile.

    The ledger is read before the transcript and again after it. Every record that the first reading knows of must be in
    the transcript, and every record of the transcript must be paid for in the second reading, which is returned. Raises
    LedgerError or TranscriptError where the files are of different runs, cut short or damaged, and OSError.
    """
    size = (path / LEDGER).stat().st_size if (path / LEDGER).exists() else 0
    before, found = read(path / LEDGER), contents(path / TRANSCRIPT)
    after = before if (path / LEDGER).stat().st_size == size else read(path / LEDGER)
    if after.order:
        raise LedgerError(f"{path / LEDGER}: an adaptive ledger, and a run's is one of a plan: put the file back")
    known = {spend.check for spend in before.spends}
    spends = tuple(spend if spend.check in known else replace(spend, state=None) for spend in after.spends)
    require_fit(found, after._replace(spends=spends), path)
    return found, after


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
        ValueError: another argument, `planned` among them; LedgerError, TranscriptError, OSError: as `both` raises them
            where files cannot be read or do not fit together.
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
        found, account = both(folder)
        plans[account.run] = found.header.plan
        accounts[account.run].append(account)
        for spend in account.spends:
            for release in range(spend.release, spend.release + spend.count):
                payments[account.run, release].add(spend.check)
        for release, sums in found.records:
            shown[account.run, release].add(sums)
    counts = {run: sum(_unpaid(accounts[run])) if plans[run].stopping != FIXED else 0 for run in plans}
    for (run, release), checks in payments.items():
        made = max(len(checks), len(shown[run, release]))
        sampling = plans[run].batches
        if made > 1 and sampling.lasting:
            raise LedgerError(
                f"release {release} was made by {made} copies of one run, with one batch of sampling"
                f" {sampling.word}: what that costs is not known; count none but one of the copies"
            )
        counts[run] += made
    history = [plans[run].settings.release(count) for run, count in counts.items() if count]
    return epsilon_of_history(history, delta).upper


def _unpaid(copies: Sequence[Account]) -> Iterator[int]:
    """Yield how many releases of the plan each of these copies of one run has not paid for, but for copies from which
    another one went on."""
    paid = [tuple(spend.check for spend in account.spends) for account in copies]
    for mine, account in dict(zip(paid, copies, strict=True)).items():
        if account.spends and not any(other[: len(mine)] == mine for other in paid if len(other) > len(mine)):
            yield account.steps - account.spent


def _transcript(path: Path) -> Transcript:
    """Open the transcript of the folder at `path`, and return it. Raises TranscriptError for a damaged one.

    Where the last payment in the ledger notes no record beyond the undamaged ones, or there is no ledger, the message
    says how to go on without the damaged ones.
    """
    try:
        return Transcript.open(path / TRANSCRIPT)
    except DamagedRecordError as error:
        if (path / LEDGER).exists() and error.whole < seen(read(path / LEDGER).state):
            raise
        way = f"{error}, or cut it to its first {error.size} bytes: what it lacks stays paid for"
        raise TranscriptError(way) from None


def _require_there(path: Path) -> None:
    names = {name for name in (TRANSCRIPT, LEDGER, KEY) if (path / name).exists()}
    if not names:
        raise FileNotFoundError(f"{path} holds no run: start one (resume=False)")
    for name in (TRANSCRIPT, KEY):
        if name not in names:
            raise FileNotFoundError(f"{path / name} is missing: put it back, or start in another folder")


def _require_budget(account: Account, budget: Budget) -> None:
    if budget.paid_at_once not in (None, account.block):
        raise ValueError(f"paid_at_once must be {account.block}, as the run was begun; got {budget.paid_at_once}")
    for name, begun, given in (
        ("target_delta", account.target_delta, budget.delta),
        ("target_epsilon", account.target_epsilon, budget.epsilon),
    ):
        if not math.isclose(begun, given, rel_tol=1e-5):
            raise ValueError(f"{name} must be {begun:g}, as the run was begun; got {given:g}")


def _key(path: Path) -> bytes:
    found = content(path)
    if len(found) != KEY_BYTES:
        raise ValueError(f"{path} must hold {KEY_BYTES} bytes; got {len(found)}: put it back")
    return found


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
