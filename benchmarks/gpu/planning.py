"""Which jobs fit into the time and the memory of a card, in order of value, and why the others do not."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.gpu.cards import Card
from benchmarks.gpu.jobs import Job

LONGEST = 540.0
"""The seconds after which a job's process is ended. A job that needs more continues in another process."""


@dataclass(frozen=True)
class Entry:
    """A line of the plan: a job, the estimated seconds that it needs, the seconds from now at which it starts, and the
    reason `why` it is left out, which is empty for a job that is to run."""

    job: Job
    seconds: float
    start: float
    why: str


def refusal(job: Job, card: Card, left: float, given: Mapping[str, object], jobs: Iterable[Job]) -> str:
    """Return the reason why a job cannot run on a card in the `left` seconds, or "" if it can begin. A job of several
    parts can begin if there is time for one part.

    `given` has the values of the command's options by name, and an option that the job needs must have one. `jobs` are
    all jobs of the call, among which may be one that fits the card's memory and makes this one needless.
    """
    absent = [name for name in job.needs if not given.get(name)]
    if absent:
        return f"needs --{absent[0]}"
    if job.memory_gib > card.memory_gib:
        return f"needs {job.memory_gib:,.0f} GiB, the card has {card.memory_gib:,.0f}"
    for other in jobs:
        if other.name == job.unless and other.memory_gib <= card.memory_gib:
            return f"{other.name} fits, which shows more"
    part = job.work.on(card) / job.parts
    if part > left:
        what = "the smallest part of it needs" if job.parts > 1 else "needs"
        return f"{what} {shown(part)}, {shown(max(left, 0))} are left"
    return ""


def planned(jobs: Iterable[Job], card: Card, seconds: float, given: Mapping[str, object]) -> Iterator[Entry]:
    """Yield a line of the plan for each job, in the given order. A job that would begin in time but not end in time is
    planned for all the seconds that are left. `given` has the values of the command's options by name. The jobs run on
    `card`, for at most `seconds` seconds in all."""
    chosen, start = list(jobs), 0.0
    for job in chosen:
        needed = job.work.on(card)
        why = refusal(job, card, seconds - start, given, chosen)
        yield Entry(job, needed, start, why)
        if not why:
            start += min(needed, seconds - start)


def shown(seconds: float) -> str:
    """Return a time as text: in seconds if it is below two minutes, else in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
