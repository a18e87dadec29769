"""Independent pieces of work on several processes, each result handed back as soon as it is there."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

__all__ = ["completed"]

Result = TypeVar("Result")


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
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(work, *job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
