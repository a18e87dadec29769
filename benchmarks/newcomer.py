"""The README's three quickstarts as a newcomer pastes them, each in a process and a folder of its own, timed.

    python -m benchmarks.newcomer [--out DIR]

One row for each section with a quickstart: wall-clock seconds from the shell's start of Python to its end, imports
included. A first run in a fresh clone compiles what it imports: that is what is timed there.
"""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.kit.tables import markdown
from dpzero_theory.cli import Parser, output_folder

__all__ = ["main", "quickstarts", "table"]

README = RESULTS.parents[1] / "README.md"
_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def quickstarts(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Of each section of a README that has some, its title and what its blocks give Python, one process each."""
    for title, body in _SECTION.findall(text):
        found: list[list[str]] = []
        for kind, block in _BLOCK.findall(body):
            if kind == "python":
                found.append(["-c", block])
            else:
                found += [shlex.split(line)[2:] for line in block.splitlines()]
        if found:
            yield title, found


def table() -> str:
    """Of the committed rows."""
    rows = read_rows(RESULTS / "newcomer")
    return markdown(
        ["quickstart", "seconds"], [[row["section"], f"{row['seconds']:.0f}"] for _, row in rows.iterrows()]
    )


def _parser() -> Parser:
    parser = Parser("benchmarks.newcomer", __doc__)
    parser.add_argument("--out", type=output_folder, default=RESULTS / "newcomer")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Time those that are not in the rows yet."""
    parser = _parser()
    options = parser.parse_args(argv)
    results = Results(
        options.out, key=["section"], fields=["processes", "seconds"], seeds=(), device="cpu", dtype="float32"
    )
    with parser.opened("--out", results):
        for title, processes in quickstarts(README.read_text()):
            if results.done(section=title):
                continue
            with TemporaryDirectory() as folder:
                started = time.perf_counter()
                for arguments in processes:
                    subprocess.run(
                        [sys.executable, *arguments], cwd=Path(folder), check=True, stdout=subprocess.DEVNULL
                    )
                seconds = round(time.perf_counter() - started, 2)
            results.add([{"section": title, "processes": len(processes), "seconds": seconds}])
            print(f"{title}: {seconds:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
