"""The folder of a run, which is made whole or not at all. It has two files:

    run.sqlite   what the run was begun with, what is paid for and what it released (`privacy.ledger`), from which the
                 run can be replayed. Everybody may see it
    data.key     a secret key for the owner of the folder alone, mode 0600. From it come the digest of the records in
                 run.sqlite, what a run's batches have in common (such as the order of an epoch), and records that are
                 drawn anew in each step (`records.DrawnData`). A key that others may read is refused

A release is paid for when run.sqlite has, on disk, that the release counts towards the budget, which is before its
noise is drawn. Payments and releases are rows of one file, so they cannot disagree. A crash between them is no damage:
what was paid for stays paid for. Three things cannot be noticed: a folder that was rolled back in place (a snapshot of
the disk), a copy with the same inode number (a cloned machine), and an edit that recomputes every check.
"""

import math
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dpzero_theory.check import printable
from dpzero_theory.optim.files.transcript import RUN, Content, Header
from dpzero_theory.optim.losses.identity import versions
from dpzero_theory.privacy.ledger import Account, Ledger, sync_folder
from dpzero_theory.privacy.schedule import SECRET_BYTES

KEY = "data.key"
"""The file of a run's secret key in its folder."""


class Folder(NamedTuple):
    """The open folder of a run.

    Attributes:
        header: what the run was begun with.
        file: the run's file, open for writing. It gets a payment before a release, which says that the release counts
            towards the budget, and then the released numbers.
        secret: the 32 bytes in data.key, random and not to be shown. They are the key of the digest of the records, and
            the seed of what a data set draws anew in each step (`records.DrawnData`); in a private run also the seed of
            schedules that last many steps, such as the groups of cyclic Poisson batches.
    """

    header: Header
    file: Ledger
    secret: bytes


def create(
    path: Path, header: Header, digest: Callable[[bytes], str], budget: tuple[float, float] | None, paid_at_once: int
) -> Folder:
    """Start a run: make its folder with a new secret key in it, and return the folder, open.

    Args:
        path: the folder, which is new or empty.
        header: what the run begins with; its entries `records` and `software` are filled in here.
        digest: a function from a secret key to the digest of the records under it.
        budget: (epsilon, delta), the most that the run may cost; None for a run that is not private.
        paid_at_once: how many releases are paid for together, an integer >= 1: before the first of them the file says,
            on disk, that they all count towards the budget. Without a budget it has no effect.

    Raises:
        FileExistsError: `path` is a file, or a folder that is not empty.
        OSError: the folder cannot be made.
        ValueError: the header's plan costs more than the budget, or `path` is the working directory or a mount point.
    """
    path = path.resolve()
    with made_whole(path) as new:
        key = os.urandom(SECRET_BYTES)
        with open(new / KEY, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(key)
        _require_for_owner_alone(new / KEY)
        header = replace(header, records=digest(key), software=versions())
        run, plan = header.to_json(), header.plan
        if budget is None:
            Ledger.for_records(new / RUN, run).close()
        else:
            target = {"target_epsilon": budget[0], "target_delta": budget[1]}
            step, steps = plan.release, plan.steps
            Ledger.create(new / RUN, **target, step=step, steps=steps, block=paid_at_once, run=run).close()
    return Folder(header, Ledger.open(path / RUN), key)


def opened(
    path: Path,
    header: Header,
    digest: Callable[[bytes], str],
    budget: tuple[float, float] | None,
    paid_at_once: int | None,
    *,
    moved: bool,
) -> Folder:
    """Open the folder of a run to go on with it, and return it.

    Args:
        path: the folder.
        header: what the run must have been begun with. Compared are `private`, the plan, `isolation`, `losses`, `unit`
            and, in a run that is not private, `header.key`, the public key of the directions, which follows from the
            run's seed. The fingerprint of the weights and the software are not compared, nor is `header.key` of a
            private run, which was drawn at random.
        digest: a function from a secret key to the digest of the records under it, which must be the digest in the
            file.
        budget: (epsilon, delta) with which the run was begun; None for a run that is not private.
        paid_at_once: how many releases are counted towards the budget by one payment, the number with which the run was
            begun; None for whatever that was.
        moved: whether the file may have another inode number than it had, as a copy has. That is sound only if no other
            copy of the folder is ever resumed.

    Raises:
        FileNotFoundError, OSError: there is no run in the folder, or a file is missing.
        ValueError: a setting or the records differ from those with which the run was begun, or data.key is not of 32
            bytes or may be read by others.
        LedgerError: run.sqlite is damaged, in use, the file of no run, or a copy although `moved` is False.
    """
    path = path.resolve()
    names = [name for name in (RUN, KEY) if not (path / name).exists()]
    if len(names) == 2:
        raise FileNotFoundError(f"{path} holds no run: start one (resume=False)")
    if names:
        raise FileNotFoundError(f"{path / names[0]} is missing: put it back, or start in another folder")
    _require_for_owner_alone(path / KEY)
    secret = (path / KEY).read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"{path / KEY} must hold {SECRET_BYTES} bytes; got {len(secret)}: put it back")
    file = Ledger.open(path / RUN, moved=moved)
    try:
        begun = Content.of(file.account, path / RUN).header
        _require_begun_with(begun, header)
        if budget is not None:
            _require_same_budget(file.account, *budget, paid_at_once)
        if digest(secret) != begun.records:
            raise ValueError("data must be the records of the run that is resumed; these are others, or data.key is")
    except BaseException:
        file.close()
        raise
    return Folder(begun, file, secret)


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """A context manager that gives its block a new folder to fill, and renames it to `path` after the block.

    The block's files are forced to disk (fsync) before that, and the new name after it. If the block raises, the folder
    is deleted. If the process is killed, the folder is left beside `path`, under a name that begins with `_` and ends
    with `.new`, and nothing reads it. Raises FileExistsError if there is anything but an empty folder at `path`,
    ValueError if that is the working directory or a mount point, and OSError if the folder cannot be made.
    """
    require_new(path)
    if path.is_mount() or path == Path.cwd():
        raise ValueError(f"folder must not be the working directory or a mount point; got {path}: use one in it")
    new = path.with_name(f"_{path.name:.200}.{os.urandom(8).hex()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
    except OSError as error:
        raise type(error)(f"{path}: the folder cannot be made ({error.strerror}): use another") from None
    try:
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written)
        require_new(path)  # Another process may have put a folder there while the block ran.
        new.rename(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    sync_folder(path.parent)


def require_new(path: Path) -> None:
    """Raise FileExistsError if there is anything but an empty folder at `path`."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"{path} is there and not empty: resume the run in it, or use another folder (resume=True goes on with the"
            " model, data and settings that it was begun with)"
        )


def _require_for_owner_alone(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ValueError(
            f"{path} must be secret, and others may read or change it (mode {mode:04o}): chmod go= {path}, if nobody"
            " has read it"
        )


def _require_same_budget(account: Account, epsilon: float, delta: float, paid_at_once: int | None) -> None:
    if paid_at_once not in (None, account.block):
        raise ValueError(f"paid_at_once must be {account.block}, as the run was begun; got {paid_at_once}")
    for name, given in (("target_delta", delta), ("target_epsilon", epsilon)):
        if not math.isclose(begun := getattr(account, name), given, rel_tol=1e-5):
            raise ValueError(f"{name} must be {begun:g}, as the run was begun; got {given:g}")


def _require_begun_with(found: Header, given: Header) -> None:
    # `found` is the header in the run's file. The caller compares the records. Left out are the weights' fingerprint,
    # since a checkpoint may be loaded, the software, and the key of a private run, which is drawn at random each time.
    if found.private != given.private:
        makers = ("make_from_seed_not_private", "make_private or make_private_with_epsilon")
        raise ValueError(f"the folder must be resumed as it was begun, with {makers[found.private]}")
    given.plan.require_same(found.plan)
    for name, begun, now in (
        ("isolation", found.isolation, given.isolation),
        ("seed", found.key if not found.private else given.key, given.key),
        ("losses", found.losses, given.losses),
        ("what a record is", found.unit or "one entry of the data set", given.unit or "one entry of the data set"),
    ):
        if begun != now:
            raise ValueError(f"{name} must be as in the run that is resumed, {printable(begun)}; got {now}")
