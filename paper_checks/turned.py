"""For each check the first change of an input that turns its verdict, and the committed report of these changes.

`python -m paper_checks.mutate --turned all` (or `missing`) searches and writes `mutations.csv`. A check without a row
is constant.
"""

import csv
import io
import multiprocessing
import resource
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.kit.rows import write_atomically
from paper_checks.changes import Change, changed, changes, smaller, verdict
from paper_checks.registry import NOT_TESTABLE, STATUSES, Claim

REPORT = Path(__file__).with_name("mutations.csv")  # The committed report
SECONDS = 6  # The processor time, in seconds, that a check may take with a change if it is not timed first
TIMES = 3  # How many times its own processor time a check may take with a change
FIVEFOLD = 5  # From which factor on a change counts as coarse
MEMORY = 4 << 30  # How many bytes a search may hold: a changed size can ask for any amount


@dataclass(frozen=True)
class Turned:
    """A check, the change that turns its verdict, and the verdict that it then gives."""

    check: str
    verdict: str
    change: Change


class _TooLongError(Exception):
    pass


def after(change: Change | None, id: str, seconds: float = SECONDS) -> str:
    """The verdict of the check `id` with the change: 'crashed' where the changed code does not run, or not in time."""

    def late(number: int, frame: FrameType | None) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with changed(change, id):
                return verdict(id)
    except (_TooLongError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError):
        return "crashed"
    except SystemError:  # what the end of the time is called where it falls into the parser
        return "crashed"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _turns(change: Change, claim: Claim, seconds: float) -> Turned | None:
    """The change, if the check has another verdict with it."""
    found = after(change, claim.id, seconds)
    noticed = found in STATUSES or (found == "failed" and change.kind == "statement")
    return Turned(claim.id, found, change) if noticed and found != claim.status else None


def _first(claim: Claim, seconds: float) -> Turned | None:
    """The first change that turns the check, made as small as it can be and still turn it."""
    start = time.process_time()
    after(None, claim.id, seconds)
    limit = 0.5 + TIMES * (time.process_time() - start)
    for change in changes(claim):
        if time.process_time() > start + seconds:
            return None
        if row := _turns(change, claim, limit):
            return next(filter(None, (_turns(less, claim, limit) for less in smaller(claim, change))), row)
    return None


def _named_first(claim: Claim, seconds: float) -> tuple[Claim, Turned | None]:
    return claim, _first(claim, seconds)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))


def coarse(found: Mapping[str, Turned]) -> str:
    """How coarse the changes are, in a sentence: a check that only a large one turns would miss a small error.

    The report has the first input of a check whose change turns it, and the smallest change of that input by 1.1, 2,
    10, 1,000 or one more or less that does. Another input may need less.
    """
    large, zero, operator = 0, 0, 0
    for row in found.values():
        if row.change.index < 0:
            operator += 1
            continue
        new = float(row.change.new)
        old = 1.0 if row.change.kind == "rows" else float(row.change.old)
        if new * old <= 0:
            zero += 1
        else:
            large += max(new / old, old / new) >= FIVEFOLD
    return (
        f"In {len(found)} checks the change that turns the verdict is an operator (a product for a quotient, a sum for "
        f"a difference) in {operator}, a 1 that becomes 0 in {zero}, and a number by a factor of five or more in "
        f"{large}; in the other {len(found) - operator - zero - large} a number changes by less than that."
    )


def search(claims: Sequence[Claim], jobs: int, seconds: float) -> Iterator[tuple[Claim, Turned | None]]:
    """The first change that turns each check, searched in forked processes; claims without a check are left out.

    seconds: the processor time after which a search ends without a change.
    """
    chosen = [claim for claim in claims if claim.status != NOT_TESTABLE]
    with multiprocessing.get_context("fork").Pool(jobs, _limited, maxtasksperchild=16) as pool:
        yield from pool.imap_unordered(partial(_named_first, seconds=seconds), chosen)


def read() -> dict[str, Turned]:
    """The committed report, by check; empty where there is none yet."""
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
    """Write the report; `stated` has the verdict of each check as it is, in the order of the rows."""
    lines = [["check", "verdict", "turned to", "kind", "place", "index", "old", "new"]]
    lines += [[id, stated[id], found[id].verdict, *map(str, astuple(found[id].change))] for id in stated if id in found]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_atomically(REPORT, text.getvalue().encode())
