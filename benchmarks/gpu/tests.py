"""The tests marked `gpu`, a row for each.  python -m benchmarks.gpu.tests

The directions of the kernels are those of the CPU, bit for bit; an engine gives on the device what it gives on the CPU;
a captured loop gives what the loop gives; a run on the device is replayed on the CPU. Without a device the preset
`full` skips them, each row with the reason; `smoke` runs some of the kernels in Triton's interpreter.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks.kit.device import chosen_device
from benchmarks.kit.rows import OK, RESULTS, Results
from dpzero_theory.cli import Parser, output_folder

__all__ = ["FILES", "main"]

FILES = (
    "tests/benchmarks/llm/test_table.py",
    "tests/benchmarks/test_dimension.py",
    "tests/curvature/test_spectrum.py",
    "tests/optim/test_philox_triton.py",
    "tests/optim/test_run.py",
    "tests/synthetic/test_captured.py",
    "tests/synthetic/test_engine.py",
    "tests/synthetic/test_first_order.py",
    "tests/synthetic/test_lanes.py",
)
"""Those with tests marked `gpu`."""
PRESETS = {
    "full": ("-m", "gpu", *FILES),
    "smoke": ("-k", "captured or (words and interpreter)", "tests/optim/test_philox_triton.py", FILES[5]),
}
_ROOT = Path(__file__).resolve().parents[2]


def found(report: Path) -> Iterator[dict[str, Any]]:
    """A row for each test of a JUnit report."""
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        status = OK if outcome is None else f"{outcome.tag}: {outcome.get('message', '')[:200]}"
        name = f"{case.get('classname')}::{case.get('name')}"
        yield {"test": name, "seconds": round(float(case.get("time", "0")), 2), "status": status}


def _parser() -> Parser:
    parser = Parser("benchmarks.gpu.tests", __doc__)
    parser.add_argument("--preset", choices=PRESETS, default="full")
    parser.add_argument("--out", type=output_folder, default=RESULTS / "gpu_tests")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 where a test fails."""
    parser = _parser()
    options = parser.parse_args(argv)
    device = chosen_device(parser, "auto")
    results = Results(
        options.out, key=("test",), fields=("seconds",), seeds=[], dtype="the tests' own",
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
    )  # fmt: skip
    with parser.opened("--out", results), TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        done = subprocess.run([*command, *PRESETS[options.preset]], cwd=_ROOT, check=False)
        results.add(row for row in found(report) if not results.done(test=row["test"]))
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
