"""The README's three quickstarts as a newcomer pastes them, each timed in a process and a folder of its own.

    python -m benchmarks.newcomer [--out DIR]

There is one row for each section with a quickstart: the wall seconds from the start of Python to its end, imports
included. A first run in a fresh clone also compiles what it imports, which is then part of the time.
"""

import re
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.kit.experiment import Cell, Experiment
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown

README = RESULTS.parents[1] / "README.md"
_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def quickstarts(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield, for each section of a README that has quickstarts, its title, and for each process that they start the
    arguments that follow the name of the Python interpreter: "-c" and the code of a block of Python, or the words of a
    console line after `python`."""
    for title, body in _SECTION.findall(text):
        found: list[list[str]] = []
        for kind, block in _BLOCK.findall(body):
            if kind == "python":
                found.append(["-c", block])
            else:
                found += [shlex.split(line)[2:] for line in block.replace("\\\n", "").splitlines()]
        if found:
            yield title, found


def table() -> str:
    """Return a table of the committed times: for each quickstart the wall seconds that it took."""
    rows = read_rows(RESULTS / "newcomer")
    return markdown(
        ["quickstart", "seconds"], [[row["section"], f"{row['seconds']:.0f}"] for _, row in rows.iterrows()]
    )


def _measure(options: Namespace, at: Cell) -> dict[str, float]:
    processes = dict(quickstarts(README.read_text()))[at["section"]]
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        for arguments in processes:
            subprocess.run([sys.executable, *arguments], cwd=Path(folder), check=True, stdout=subprocess.DEVNULL)
        return {"processes": len(processes), "seconds": round(time.perf_counter() - started, 2)}


EXPERIMENT = Experiment(
    name="newcomer",
    about=__doc__,
    key=["section"],
    fields=["processes", "seconds"],
    dtype="float32",
    cells=lambda options: ({"section": title} for title, _ in quickstarts(README.read_text())),
    measure=_measure,
    told=lambda at, rows: f"{at['section']}: {rows[0]['seconds']:.1f} s",
)
