"""Which jobs fit into the time and the memory of a card, in order of value, and why the others do not."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.gpu.cards import Card
from benchmarks.gpu.jobs import Job

LONGEST = 540.0
"""The seconds after which a process is ended; a job that needs more goes on in another process."""


@dataclass(frozen=True)
class Entry:
    """A line of the plan. start: seconds from now. why: why the job is left out, empty for one that is to run."""

    job: Job
    seconds: float
    start: float
    why: str


def refusal(job: Job, card: Card, left: float, given: Mapping[str, object], jobs: Iterable[Job]) -> str:
    """Why a job cannot run with `left` seconds; empty if it can.

    given: options by name, for what a job needs. jobs: all jobs, among them the one that may make this one needless.
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
    """The jobs in their order. A job that begins and does not end in time takes all the time that is left."""
    chosen, start = list(jobs), 0.0
    for job in chosen:
        needed = job.work.on(card)
        why = refusal(job, card, seconds - start, given, chosen)
        yield Entry(job, needed, start, why)
        if not why:
            start += min(needed, seconds - start)


def shown(seconds: float) -> str:
    """A time in words: in seconds below two minutes, else in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
