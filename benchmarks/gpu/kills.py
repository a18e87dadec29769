"""The smoke run, killed at random and resumed, gives the rows of an undisturbed one.  python -m benchmarks.gpu.kills

The small run `benchmarks.gpu --preset smoke --device cpu` is killed by SIGKILL after a random time and started again,
--kills times. Each start begins with a random job, so that kills fall everywhere in the list. Then the run is left to
end. Its rows are compared, file by file, with those of an undisturbed run, in all columns but those that are measured
(times, memory, rates). Of private runs, whose noise does not come from a seed, only the keys and the status are
compared. There is a row for each kill. The last row says how many rows were compared, how many differ, and how many
seconds the jobs of the undisturbed run took.
"""

import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.gpu.jobs import JOBS
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results, read_manifest, read_rows
from dpzero_theory.cli import Parser, Several, integer, number, output_folder

MEASURED = re.compile(
    r"(_s|_mb|_mib|_error)$|second|ratio|peak|gflops|share|wall|turns|processes|to_mezo|to_non_private"
)
"""A pattern that matches the names of columns that hold times, memory or rates."""
SEED = 2121
FIELDS = ("begun_at", "delay_s", "exit", "rows", "differ", "whole_s")
NAMES = [job.name for job in JOBS]


def differences(folder: Path, other: Path) -> tuple[int, int]:
    """Compare the tables of rows below the folders `folder` and `other`, each with the one at the same place. Returns
    how many different rows there are in all tables together, and how many of them only one of the two folders has. If
    one folder lacks a table, all rows of the table count as different."""
    paths = {path.parent.relative_to(root) for root in (folder, other) for path in root.rglob("rows.csv*")}
    tables = [[_lines(root / path) for root in (folder, other)] for path in sorted(paths)]
    return sum(len(one | two) for one, two in tables), sum(len(one ^ two) for one, two in tables)


def _lines(folder: Path) -> set[tuple[str, ...]]:
    """Return the rows of the table in `folder` as tuples of texts, without the columns that are measured. In rows of
    private runs, everything but key and status is replaced by the word "private". A missing table has no rows."""
    try:
        rows: pd.DataFrame = read_rows(folder, failed=True)
    except FileNotFoundError:
        return set()
    kept = rows[[name for name in rows if not MEASURED.search(str(name))]].astype(str)
    if "epsilon" in kept:
        private = pd.to_numeric(kept["epsilon"], errors="coerce").notna()
        noisy = [name for name in kept if name not in (*read_manifest(folder)["key"], "status")]
        kept.loc[private, noisy] = "private"
    return set(kept.itertuples(index=False, name=None))


def _start(only: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
    arguments = ["--minutes", "60", "--preset", "smoke", "--device", "cpu", "--out", str(out), "--only", *only]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.gpu", *arguments], stdout=subprocess.DEVNULL)


def _body(parser: Parser, options: Namespace) -> int:
    """Kill and resume the run, compare its rows with those of an undisturbed one, and return the exit status: 1 if rows
    differ, if none were compared, or if the last run failed; else 0."""
    results = Results(
        options.out, key=("kill",), fields=FIELDS, seeds=[SEED], device="cpu", dtype="",
        settings={"kills": options.kills, "only": " ".join(options.only), "longest": options.longest},
    )  # fmt: skip
    whole, killed = (options.out / "work" / name for name in ("whole", "killed"))
    with parser.opened("--out", results):
        for kill in range(options.kills):
            if not results.done(kill=kill):
                rng = np.random.default_rng([SEED, kill])
                delay, first = float(rng.uniform(0, options.longest)), int(rng.integers(len(options.only)))
                process = _start(options.only[first:], killed)
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
                row = {"kill": kill, "begun_at": options.only[first], "delay_s": round(delay, 2)}
                results.add([{**row, "exit": process.wait()}])
                print(f"{kill + 1}/{options.kills}: {row['begun_at']}, killed after {delay:.1f} s", flush=True)
        if not results.done(kill=options.kills):
            statuses = [_start(options.only, folder).wait() for folder in (killed, whole)]
            compared, differ = differences(killed, whole)
            seconds = float(read_rows(whole / "jobs", failed=True)["wall_s"].sum())
            found = {"rows": compared, "differ": differ, "whole_s": round(seconds, 1)}
            results.add([{"kill": options.kills, "exit": max(statuses), **found}])
            shutil.rmtree(options.out / "work")
    last = read_rows(options.out).iloc[-1]
    print(f"{options.kills} kills; {last['rows']:.0f} rows compared, {last['differ']:.0f} differ")
    return int(last["differ"] > 0 or last["rows"] == 0 or last["exit"] != 0)


EXPERIMENT = Command(
    "gpu.kills",
    __doc__,
    _body,
    [
        flag("--kills", type=integer(1, 10**6), default=50),
        flag("--longest", type=number(above=0, at_most=3600), default=12, help="seconds until a kill, at most"),
        flag("--only", nargs="+", action=Several, choices=NAMES, default=NAMES, help="these jobs"),
        flag("--out", type=output_folder, default=RESULTS / "gpu_kills"),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
