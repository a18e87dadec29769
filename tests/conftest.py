"""Settings of all tests: property tests draw the same examples on every machine and have no time limit.

Each test process computes on one thread, as there is one for each core: threads that wait for each other would waste
time.
"""

import gc
import os

from hypothesis import settings

from tests import forks

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")  # numpy and torch read this variable when they are imported

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


def pytest_configure() -> None:
    gc.disable()  # Imports during the collection of tests make many objects and free few


def pytest_collection_finish() -> None:
    gc.freeze()
    forks.prepare()
    gc.enable()


def pytest_unconfigure() -> None:
    forks.finish()
