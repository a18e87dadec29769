"""Independent pieces of work on several processes, each result handed back as soon as it is there."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

from benchmarks.kit.rows import Results, shown

Result = TypeVar("Result")


@dataclass(frozen=True)
class Share:
    """Every count-th job from the number-th on: those of one of `count` machines."""

    number: int = 1
    count: int = 1

    def of(self, jobs: Sequence[Result]) -> Sequence[Result]:
        """This machine's; jobs: all of them, the same on every machine."""
        return jobs[self.number - 1 :: self.count]


def share(text: str) -> Share:
    """A type for `add_argument`: I/N, the I-th of N shares."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ArgumentTypeError(f"must be I/N with integers 1 <= I <= N; got {text!r}")
    return Share(int(number), int(count))


def completed(
    work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[tuple[Any, ...], Result]]:
    """Yield (job, work(*job)) in order of completion; with one worker in this process, in the order given.

    Worker processes use one thread each: two that share a core by threads wait for each other most of the time.
    Jobs that have not begun are dropped when the caller stops early.
    """
    if workers == 1:
        for job in jobs:
            yield job, work(*job)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that torch is imported once for all
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(work, *job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def fill(
    results: Results,
    answer: Callable[[dict[str, Any]], dict[str, Any]],
    settings: Sequence[dict[str, Any]],
    workers: int,
) -> None:
    """Add the row `answer(setting)` of every setting, numbered by its `setting`, that is not in the results yet."""
    left = [one for one in settings if not results.done(setting=one["setting"])]
    print(
        f"{len(left)} of {len(settings)} settings are left; rows in {shown(results.folder)}",
        file=sys.stderr,
        flush=True,
    )
    for count, (_, row) in enumerate(completed(answer, [(one,) for one in left], workers), start=1):
        results.add([row])
        print(f"{count} of {len(left)}: setting {row['setting']}, {row['status']}", file=sys.stderr, flush=True)
