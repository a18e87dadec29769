"""Run independent jobs in several processes, and hand back each result as soon as it is there."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


@dataclass(frozen=True)
class Share:
    """The part of a list of jobs that one of `count` machines does: the jobs with the places number, number + count,
    number + 2 count, ... in the list, where the first place is 1. `number` is from 1 to `count`."""

    number: int = 1
    count: int = 1

    def of(self, jobs: Sequence[Result]) -> Sequence[Result]:
        """Return the jobs of this machine. `jobs` must be the same list on every machine."""
        return jobs[self.number - 1 :: self.count]


def share(text: str) -> Share:
    """Return the share that the text "I/N" means, the I-th of N shares. It is a `type` for `add_argument`:
    ArgumentTypeError is raised unless I and N are integers with 1 <= I <= N."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ArgumentTypeError(f"must be I/N with integers 1 <= I <= N; got {text!r}")
    return Share(int(number), int(count))


def completed(
    work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[tuple[Any, ...], Result]]:
    """Yield (job, work(*job)) for every job, a job being the tuple of arguments of `work`. With more than one worker
    they come in order of completion, from as many new processes, so `work` must be a function that can be pickled; with
    one worker everything runs in this process, in the given order.

    Each worker process uses one thread, because two processes whose threads share a core wait for each other most of
    the time. An exception of `work` is raised here, and jobs that have not begun are then dropped, as they are when the
    caller stops early.
    """
    if workers == 1:
        for job in jobs:
            yield job, work(*job)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is then imported once for all workers
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(work, *job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
