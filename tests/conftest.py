"""Property tests draw the same examples on every machine and are not timed; without a GPU, kernels are interpreted.

The files and tests that `slow.txt` lists are marked `slow`: `make test-fast` leaves them out.

TRITON_INTERPRET is read when Triton is first imported, which other packages do: too late for the tests that need it.
Each test process computes on one thread, as there is one for each core: threads that wait for each other spin.
"""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests import forks

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")  # read when numpy and torch are imported

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")

if not any(Path("/dev").glob("nvidia*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text().split())


def pytest_configure() -> None:
    gc.disable()  # the imports of a collection make much, and free little


def pytest_collection_finish() -> None:
    gc.freeze()
    forks.prepare()
    gc.enable()


def pytest_unconfigure() -> None:
    forks.finish()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not SLOW.isdisjoint((item.nodeid.partition("::")[0], item.nodeid.partition("[")[0])):
            item.add_marker("slow")
