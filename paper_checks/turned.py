"""For each check the first change of an input that turns its verdict, and the committed report of them.

`python -m paper_checks.mutate --turned all` (or `missing`) searches and writes `mutations.csv`; a check without a row
is constant.
"""

import csv
import io
import multiprocessing
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.kit.rows import write_atomically
from paper_checks.changed import changed, verdict
from paper_checks.registry import NOT_TESTABLE, STATUSES, Claim
from paper_checks.sites import Change, changes

__all__ = ["REPORT", "Turned", "after", "read", "search", "write"]

REPORT = Path(__file__).with_name("mutations.csv")
SECONDS = 6
"""A changed check that takes longer is left."""


@dataclass(frozen=True)
class Turned:
    """A check, the change that turns its verdict, and the verdict that it then gives."""

    check: str
    verdict: str
    change: Change


class _TooLongError(Exception):
    pass


def after(change: Change, id: str) -> str:
    """The verdict of the check `id` with the change: 'crashed' where the changed code does not run."""

    def late(number: int, frame: FrameType | None) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with changed(change, id):
                return verdict(id)
    except (_TooLongError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError):
        return "crashed"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _first(claim: Claim, seconds: float) -> Turned | None:
    end = time.monotonic() + seconds
    for change in changes(claim):
        if time.monotonic() > end:
            return None
        found = after(change, claim.id)
        noticed = found in STATUSES or (found == "failed" and change.kind == "statement")
        if noticed and found != claim.status:
            return Turned(claim.id, found, change)
    return None


def _named_first(claim: Claim, seconds: float) -> tuple[Claim, Turned | None]:
    return claim, _first(claim, seconds)


def search(claims: Sequence[Claim], jobs: int, seconds: float) -> Iterator[tuple[Claim, Turned | None]]:
    """The first change that turns each check, in forked processes; claims without a check are left out.

    seconds: a check for which nothing is found for so long is left.
    """
    chosen = [claim for claim in claims if claim.status != NOT_TESTABLE]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=16) as pool:
        yield from pool.imap_unordered(partial(_named_first, seconds=seconds), chosen)


def read() -> dict[str, Turned]:
    """The committed report, by check; nothing where there is none yet."""
    if not REPORT.exists():
        return {}
    with REPORT.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["check"]: Turned(
            row["check"],
            row["turned to"],
            Change(row["kind"], row["place"], int(row["index"]), row["old"], row["new"]),
        )
        for row in rows
    }


def write(found: Mapping[str, Turned], stated: Mapping[str, str]) -> None:
    """Write the report; `stated`: the verdict of each check as it is, in the order of the rows."""
    lines = [["check", "verdict", "turned to", "kind", "place", "index", "old", "new"]]
    lines += [[id, stated[id], found[id].verdict, *map(str, astuple(found[id].change))] for id in stated if id in found]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_atomically(REPORT, text.getvalue().encode())
