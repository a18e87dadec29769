"""This checkout beside another one, in one run: calibration, private steps and the sweep engine.

    git worktree add ../before REVISION
    python -m benchmarks.side_by_side --other ../before [--starts N] [--turns N] [--out DIR]

Two processes, one in either checkout, do the same piece of work in turns, so that other work on the machine slows both
alike. Each counts its processor time and its wall time. They are started anew several times, because the place of a
process in memory can change its speed by more than the difference that is measured. The work calls commands and the
README's function, which stay from version to version; releases are paid for 64 at a time where the version knows that
setting.
"""

import math
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any, Self

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import read_rows, revision
from dpzero_theory.cli import input_folder, integer

HERE = Path(__file__).resolve().parents[2]
COMMON = "import contextlib, inspect, io, sys, tempfile, time\nquiet = io.StringIO()\n"
CLOCK = """
def timed(work):
    work()
    for _ in sys.stdin:  # the parent writes a line for each turn
        start, wall = time.process_time(), time.perf_counter()
        work()
        print(time.process_time() - start, time.perf_counter() - wall, flush=True)
"""
PRIVATE = """
import torch
torch.set_num_threads(1)
from torch.utils.data import TensorDataset
from dpzero_theory.optim.private import make_private_with_epsilon
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, WIDTH), torch.zeros(64).long())
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10))
def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
known = "paid_at_once" in inspect.signature(make_private_with_epsilon).parameters
run = make_private_with_epsilon(
    model, losses, data, target_epsilon=2, target_delta=1e-5, steps=10**6, expected_batch=64, clip=1.0, step_size=0.1,
    smoothing=1e-3, relation="add-remove", sampling="full", folder=tempfile.mkdtemp() + "/run",
    **({"paid_at_once": PAID} if known else {}),
)
timed(lambda: [run.step() for _ in range(STEPS)])
"""


def private_steps(width: int, hidden: int, steps: int, paid_at_once: int) -> str:
    """Return the source of a program that makes `steps` private steps with the README's function, on a perceptron with
    `width` inputs and `hidden` hidden units. The ledger pays for `paid_at_once` steps at a time."""
    values = {"WIDTH": width, "HIDDEN": hidden, "STEPS": steps, "PAID": paid_at_once}
    return "\n".join(f"{name} = {value}" for name, value in values.items()) + PRIVATE


WORK = {
    "calibration": """
from dpzero_theory.privacy.__main__ import main
cases = [(1024, 64, 10000, 2), (1024, 64, 10000, 6), (1000, 8, 20000, 2), (1000, 8, 20000, 6), (3072, 64, 10000, 2)]
def work():
    with contextlib.redirect_stdout(quiet):
        for n, batch, steps, epsilon in cases:
            main(f"--epsilon {epsilon} --delta 1e-5 --steps {steps} --n {n} --batch {batch} --sampling poisson"
                 " --relation add-remove".split())
timed(work)
""",
    "20 private steps, batch 64": private_steps(784, 256, 20, 1),
    "64 private steps, 1,002 weights, paid at once": private_steps(20, 32, 64, 64),
    "sweep engine": """
import importlib, torch, warnings
torch.set_num_threads(1)
warnings.simplefilter("ignore")  # older checkouts have the module under another path
synthetic = importlib.import_module("benchmarks.synthetic")
command = getattr(synthetic, "EXPERIMENT", synthetic)
preset = synthetic.Preset(2000, (200,), steps=(320, 640), step_sizes=(0.01, 0.1, 1.0), clips=(0.3, 1.0, 3.0))
synthetic.PRESETS["smoke"] = preset
def work():
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), tempfile.TemporaryDirectory() as folder:
        command.main(f"--preset smoke --methods dpzero dpgd-0th --jobs 1 --out {folder}/out".split())
timed(work)
""",
}


class Worker:
    """A process that does the work of this name (a key of WORK) in the folder of a checkout each time it is asked to.
    It is a context manager, whose end stops the process."""

    def __init__(self, work: str, checkout: Path) -> None:
        self.name = f"{work} in {checkout}"
        code = COMMON + CLOCK + WORK[work]
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=checkout, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
        )

    def seconds(self) -> tuple[float, float]:
        """Let the process do its work once, and return the processor and wall seconds that it took. Raises
        RuntimeError, with the last line that the process printed on standard error, if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} failed: {self._process.communicate()[1].strip().splitlines()[-1]}")
        busy, wall = map(float, line.split())
        return busy, wall

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()


def turns(work: str, other: Path, count: int) -> Iterator[dict[str, float]]:
    """Yield for each of `count` turns the seconds that the work takes: processor seconds in this checkout (`seconds`)
    and in `other` (`other`), and wall seconds in each (`wall_s`, `other_wall_s`). Two new processes, one in each
    checkout, do the work once each in a turn and take turns in being first; one turn before these is not counted."""
    with Worker(work, HERE) as mine, Worker(work, other) as theirs:
        for turn in range(count + 1):
            order = (mine, theirs) if turn % 2 else (theirs, mine)
            found = {worker: worker.seconds() for worker in order}
            (seconds, wall), (others, others_wall) = found[mine], found[theirs]
            if turn:
                yield {"seconds": seconds, "other": others, "wall_s": wall, "other_wall_s": others_wall}


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    return [{"turn": turn, **found} for turn, found in enumerate(turns(at["work"], options.other, options.turns))]


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    return (
        f"{at['work']}, start {at['start'] + 1}: {statistics.median(row['seconds'] / row['other'] for row in rows):.3f}"
    )


def _report(options: Namespace) -> None:
    found = read_rows(options.out)
    for work in WORK:
        table = found[found["work"] == work]
        medians = [statistics.median(part["seconds"] / part["other"]) for _, part in table.groupby("start")]
        walls = f"wall {table['wall_s'].median():.4g} s, there {table['other_wall_s'].median():.4g} s"
        mean, error = statistics.fmean(medians), statistics.stdev(medians) / math.sqrt(len(medians))
        share = f"{mean:.3f} +- {error:.3f} of the other checkout's processor time"
        print(f"{work}: {share} ({len(medians)} starts of {options.turns} turns; {walls})")
    print(f"rows: {options.out}")


EXPERIMENT = Experiment(
    name="side_by_side",
    about=__doc__,
    flags=[
        flag("--other", type=input_folder("pyproject.toml"), required=True, help="the other checkout"),
        flag("--starts", type=integer(2, 1000), default=7),
        flag("--turns", type=integer(2, 1000), default=21, help="turns a start"),
    ],
    key=("work", "start", "turn"),
    fields=("seconds", "other", "wall_s", "other_wall_s"),
    settings=lambda options: {"other": revision(options.other), "turns": options.turns},
    cells=lambda options: ({"work": work, "start": start} for start in range(options.starts) for work in WORK),
    keys=lambda options, at: [at | {"turn": options.turns - 1}],
    measure=_measure,
    told=_told,
    report=_report,
)
