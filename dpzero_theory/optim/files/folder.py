"""Makes and opens the folder of a training run, which has two files:

    run.sqlite   the run's settings, the releases paid for from its privacy budget, and the released numbers, from which
                 the run can be replayed (`privacy.ledger`). It is not secret
    data.key     a secret key of 32 bytes, readable by its owner alone (mode 0600). The digest of the records in the
                 other file is made with it, and random numbers that a resumed run must draw again follow from it

A release is paid for, that is, counted towards the budget in run.sqlite on disk, before its noise is drawn. If the
process is killed between payment and release, the release stays paid for. Three things are not noticed: a folder that
was put back to an earlier state in place, a copy with the same inode number (as of a cloned disk), and an edit of
run.sqlite that recomputes all its hashes.
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
"""The name of the file with the secret key in a run's folder."""


class Folder(NamedTuple):
    """The open folder of a run.

    Attributes:
        header: the settings of the run.
        file: run.sqlite, open for writing. Before a release it gets an entry that counts the release towards the
            budget, and after it the released numbers.
        secret: the 32 random bytes of data.key, which must not be shown. The digest of the records and records that are
            drawn anew in each step (`records.DrawnData`) follow from them; in a private run also batches that depend on
            each other, such as those of one epoch.
    """

    header: Header
    file: Ledger
    secret: bytes


def create(
    path: Path, header: Header, digest: Callable[[bytes], str], budget: tuple[float, float] | None, paid_at_once: int
) -> Folder:
    """Make the folder of a new run, with a new secret key and a new file, and return the folder, open.

    Args:
        path: where to make the folder; there may be an empty one.
        header: the settings of the run. Its entries `records` and `software` are filled in here.
        digest: a function from a secret key to the digest of the run's records under this key.
        budget: (epsilon, delta), the most that the run may cost; None for a run that is not private.
        paid_at_once: how many releases one payment counts towards the budget, an integer >= 1: they are all paid for
            before the first of them is made. Without a budget it has no effect.

    Raises:
        FileExistsError: `path` is a file, or a folder that is not empty.
        OSError: the folder cannot be made.
        ValueError: the plan in `header` costs more than the budget, or `path` is the working directory or a mount
            point.
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
    """Open the folder of an existing run, to go on with the run, and return it.

    Args:
        path: the folder.
        header: the settings that the run must have. `private`, `plan`, `isolation`, `losses` and `unit` are compared
            with those in the file, and for a run that is not private also `key`, which follows from its seed.
            `fingerprint` and `software` are not compared.
        digest: a function from a secret key to the digest of the run's records under this key. The result must be the
            digest in the file.
        budget: (epsilon, delta) as when the run was begun; None for a run that is not private.
        paid_at_once: how many releases one payment counts towards the budget, as when the run was begun; None to accept
            any number.
        moved: whether run.sqlite may have another inode number than before, as a copy has. Use True only if no other
            copy of the folder is ever resumed.

    Raises:
        FileNotFoundError, OSError: there is no run in the folder, or one of its files is missing.
        ValueError: a setting or the records are not those of the run, or data.key does not have 32 bytes or can be read
            by others.
        LedgerError: run.sqlite is damaged, in use, not the file of a run, or a copy while `moved` is False.
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
    """A context manager that yields a new folder to write to, and renames it to `path` after the block.

    Its files are forced to disk (fsync) before that. If the block raises, the folder is deleted. If the process is
    killed, the folder stays beside `path`, under the name `_*.new`. Raises FileExistsError if there is
    something other than an empty folder at `path`, ValueError if `path` is the working directory or a mount point, and
    OSError if the folder cannot be made.
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
    """Raise FileExistsError if there is something other than an empty folder at `path`."""
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
    # Raises ValueError unless the settings `given` are those in the run's file, `found`. The caller compares `records`.
    # `fingerprint` may differ, since a checkpoint may be loaded, and so may `software`. The key of a private run, which
    # is drawn at random, is not compared.
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
