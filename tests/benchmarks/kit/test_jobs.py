"""Tests that independent jobs are each done once, with their results returned, in one process or several."""

import os
import time

import pytest

from benchmarks.kit.jobs import completed


def work(number: int, delay: float) -> tuple[int, int]:
    time.sleep(delay)
    return number * number, os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_comes_back_with_its_result(workers: int) -> None:
    jobs = [(0, 0.2), (1, 0.0), (2, 0.0)]
    found = dict(completed(work, jobs, workers))
    assert {job: result for job, (result, _) in found.items()} == {(0, 0.2): 0, (1, 0.0): 1, (2, 0.0): 4}
    assert (os.getpid() in {process for _, process in found.values()}) == (workers == 1)
