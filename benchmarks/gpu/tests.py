"""The tests marked `gpu`: a row for each test, and for each file of tests.  python -m benchmarks.gpu.tests

They check that the kernels' directions on the GPU are those of the CPU, bit for bit; that the engines give the same
results there as on the CPU; that a captured loop gives what the loop gives; and that a run on the GPU is replayed on
the CPU. Without a GPU the preset `full` skips them, with a row for each that has the reason; `smoke` runs some of the
kernels in Triton's interpreter.
"""

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.rows import OK, read_rows

FILES = (
    "tests/optim/weights/test_philox_triton.py",
    "tests/optim/test_run.py",
    "tests/synthetic/test_captured.py",
    "tests/synthetic/test_engine.py",
    "tests/synthetic/test_first_order.py",
    "tests/synthetic/test_lanes.py",
    "tests/benchmarks/sweeps/test_dimension.py",
    "tests/benchmarks/llm/test_table.py",
    "tests/curvature/test_spectrum.py",
)
"""The files with tests marked `gpu`, the most valuable first."""
WHOLE = "all of them"
"""The value of the column `test` in the row that stands for all tests of a file."""
PRESETS = {
    "full": dict.fromkeys(FILES, ("-m", "gpu")),
    "smoke": {FILES[0]: ("-k", "test_words and interpreter and place0")},
}
"""For each file, the arguments of pytest that choose the tests to run."""
LONGEST = 240.0
"""The number of seconds after which the tests of a file are ended."""
_ROOT = Path(__file__).resolve().parents[2]


def found(report: Path) -> Iterator[dict[str, Any]]:
    """Yield a row (name of the test, seconds, status) for each test in the JUnit report at `report`, or no row if the
    file does not exist. The status is "ok", or "failure", "error" or "skipped" with the message."""
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        outcome = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        status = OK if outcome is None else f"{outcome.tag}: {outcome.get('message', '')[:200]}"
        yield {"test": case.get("name"), "seconds": round(float(case.get("time", "0")), 2), "status": status}


def run(path: str, chosen: Sequence[str], report: Path) -> tuple[str, float]:
    """Run with pytest those tests of the file `path` that the arguments `chosen` (of pytest) choose, and write a JUnit
    report to `report`. Returns "ok" or the reason why it is not ok, and the wall seconds that it took. Tests that take
    longer than `LONGEST` seconds in all are ended, without a report.

    The tests run in a process of their own, because a GPU no longer answers a process that has made an illegal access
    to its memory. Warnings are errors in other runs of the tests, but are only printed here, because a driver's warning
    would hide what the GPU computes.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", f"--junitxml={report}"]
    started = time.monotonic()
    try:
        status = subprocess.run([*command, *chosen, path], cwd=_ROOT, check=False, timeout=LONGEST).returncode
    except subprocess.TimeoutExpired:
        return f"ended after {LONGEST:.0f} s", time.monotonic() - started
    return OK if status == 0 else f"pytest ended with {status}", time.monotonic() - started


def _rows(options: Namespace, path: str) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        status, seconds = run(path, PRESETS[options.preset][path], report)
        last = {"test": WHOLE, "seconds": round(seconds, 2), "status": status}
        return [{"file": path, **row} for row in (*found(report), last)]


EXPERIMENT = Experiment(
    name="gpu.tests",
    about=__doc__,
    flags=[flag("--preset", choices=PRESETS, default="full")],
    folder="gpu_tests",
    key=("file", "test"),
    fields=("seconds",),
    dtype="the tests' own",
    device=lambda options: torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    cells=lambda options: PRESETS[options.preset],
    keys=lambda options, path: [{"file": path, "test": WHOLE}],
    measure=_rows,
    report=lambda options: int(not set(read_rows(options.out, failed=True).query("test == @WHOLE")["status"]) <= {OK}),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
