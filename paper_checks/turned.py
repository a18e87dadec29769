"""Search, for each check, a change of one of its inputs that turns its verdict (makes it another one), and keep the
report of these changes.

`python -m paper_checks.mutate --turned all` (or `missing`) searches and writes the report `mutations.csv`. A check
without a row there is constant: its verdict does not depend on its inputs.
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

REPORT = Path(__file__).with_name("mutations.csv")  # the committed report of the changes that turn verdicts
SECONDS = 6  # the default limit on the processor seconds of a check that runs with a changed input
TIMES = 3  # with a changed input, a check may take this many times its usual processor time, plus 0.5 s
FIVEFOLD = 5  # a change of a number by this factor or a larger one counts as coarse
MEMORY = 4 << 30  # the limit on a search process's memory in bytes, because a changed size can ask for any amount


@dataclass(frozen=True)
class Turned:
    """A check, the change that turns its verdict, and the verdict that it then gives."""

    check: str
    verdict: str
    change: Change


class _TooLongError(Exception):
    pass


def after(change: Change | None, id: str, seconds: float = SECONDS) -> str:
    """Return the verdict that the check `id` gives with the change (None for no change), as `changes.verdict` does, or
    'crashed' if the changed code cannot be loaded or takes more than `seconds` of processor time. Afterwards nothing is
    changed."""

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
    except SystemError:  # Python raises SystemError in place of _TooLongError if time runs out inside its parser
        return "crashed"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _turns(change: Change, claim: Claim, seconds: float) -> Turned | None:
    """Return the change as a `Turned` if it gives the claim's check another verdict within `seconds` of processor time,
    else None."""
    found = after(change, claim.id, seconds)
    noticed = found in STATUSES or (found == "failed" and change.kind == "statement")
    return Turned(claim.id, found, change) if noticed and found != claim.status else None


def _first(claim: Claim, seconds: float) -> Turned | None:
    """Return the first change, in the order of `changes`, that turns the verdict of the claim's check, or, if smaller
    changes of the same input do so, the smallest of them. Returns None if none is found within `seconds` of processor
    time. A single run of the check is given a few times the time that it takes unchanged."""
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
    """Return a sentence that counts how large the changes in the report `found` are: a check that only a large change
    turns would miss a small error.

    For each check the report has the first input whose change turns it, with the smallest change of that input that
    does: by a factor of 1.1, 2, 10 or 1,000, or by 1. Another input of the check may need less.
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
        f"Of {len(found)} checks, the change that turns the verdict is a number changed less than fivefold in "
        f"{len(found) - operator - zero - large}, a number changed fivefold or more in {large}, another operator (a "
        f"product for a quotient, a sum for a difference) in {operator}, and a 1 set to 0 in {zero}."
    )


def search(claims: Sequence[Claim], jobs: int, seconds: float) -> Iterator[tuple[Claim, Turned | None]]:
    """Search in `jobs` forked processes, and yield each of the given claims that has a check, in the order in which
    searches end, with a change that turns its verdict, or with None if none is found.

    seconds: the processor time after which the search for one check ends with None.
    """
    chosen = [claim for claim in claims if claim.status != NOT_TESTABLE]
    with multiprocessing.get_context("fork").Pool(jobs, _limited, maxtasksperchild=16) as pool:
        yield from pool.imap_unordered(partial(_named_first, seconds=seconds), chosen)


def read() -> dict[str, Turned]:
    """Return the committed report by id of the check; empty if there is none yet."""
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
    """Write the report of the changes found, by id of the check. `stated` has each check's verdict without a change, in
    the order in which the rows are written."""
    lines = [["check", "verdict", "turned to", "kind", "place", "index", "old", "new"]]
    lines += [[id, stated[id], found[id].verdict, *map(str, astuple(found[id].change))] for id in stated if id in found]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_atomically(REPORT, text.getvalue().encode())
