"""This checkout beside another one, in one run: calibration, private steps and the sweep engine.

    git worktree add ../before REVISION
    python -m benchmarks.side_by_side --other ../before [--turns N] [--out DIR]

Each turn runs the same piece of work in a new process in either checkout, one after the other, and counts its
processor time, and wall time, after a warm-up. The work calls commands and the README's function, which stay from
version to version; releases are paid for 64 at a time where that is known.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.kit.timing import median_ratio
from dpzero_theory.cli import Parser, input_folder, integer, output_folder

HERE = Path(__file__).resolve().parents[1]
COMMON = "import contextlib, inspect, io, sys, tempfile, time\nquiet = io.StringIO()\n"
CLOCK = """
def timed(work, repeats):
    work()
    start, wall = time.process_time(), time.perf_counter()
    for _ in range(repeats):
        work()
    print((time.process_time() - start) / repeats, (time.perf_counter() - wall) / repeats)
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
timed(lambda: [run.step() for _ in range(STEPS)], 5)
"""


def private_steps(width: int, hidden: int, steps: int, paid_at_once: int) -> str:
    """The README's function, with a perceptron of these widths."""
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
timed(work, 10)
""",
    "20 private steps, batch 64": private_steps(784, 256, 20, 1),
    "64 private steps, 1,002 weights, paid at once": private_steps(20, 32, 64, 64),
    "sweep engine": """
import torch
torch.set_num_threads(1)
from benchmarks import synthetic
preset = synthetic.Preset(2000, (200,), steps=(320, 640), step_sizes=(0.01, 0.1, 1.0), clips=(0.3, 1.0, 3.0))
synthetic.PRESETS["smoke"] = preset
def work():
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), tempfile.TemporaryDirectory() as folder:
        synthetic.main(f"--preset smoke --methods dpzero dpgd-0th --jobs 1 --out {folder}/out".split())
timed(work, 2)
""",
}


def seconds(work: str, checkout: Path) -> tuple[float, float]:
    """Processor and wall seconds of the work in that checkout."""
    run = subprocess.run(
        [sys.executable, "-c", COMMON + CLOCK + WORK[work]], cwd=checkout, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"{work} in {checkout} failed: {run.stderr.strip().splitlines()[-1]}")
    busy, wall = map(float, run.stdout.split())
    return busy, wall


def _parser() -> Parser:
    parser = Parser("benchmarks.side_by_side", __doc__ or "")
    parser.add_argument("--other", type=input_folder("pyproject.toml"), required=True, help="the other checkout")
    parser.add_argument("--turns", type=integer(2, 1000), default=9)
    parser.add_argument("--out", type=output_folder, default=RESULTS / "side_by_side")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    results = Results(
        options.out,
        key=("work", "turn"),
        fields=("seconds", "other", "wall_s", "other_wall_s"),
        seeds=(),
        device="cpu",
        dtype="float64",
        settings={"other": _revision(options.other)},
    )
    with parser.opened("--out", results):
        for turn in range(options.turns):
            for work in WORK:
                if not results.done(work=work, turn=turn):
                    order = (HERE, options.other) if turn % 2 else (options.other, HERE)
                    found = {place: seconds(work, place) for place in order}
                    (mine, wall), (others, others_wall) = found[HERE], found[options.other]
                    numbers = {"seconds": mine, "other": others, "wall_s": wall, "other_wall_s": others_wall}
                    results.add([{"work": work, "turn": turn, **numbers}])
                    print(f"{work}, turn {turn + 1} of {options.turns}: {mine / others:.3f}", file=sys.stderr)
    for name, rows in read_rows(options.out).groupby("work", sort=False):
        ratio, error = median_ratio(list(rows["seconds"]), list(rows["other"]))
        walls = f"wall {rows['wall_s'].median():.4g} s, there {rows['other_wall_s'].median():.4g} s"
        print(f"{name}: {ratio:.3f} +- {error:.3f} of the other checkout's processor time ({len(rows)} turns; {walls})")
    print(f"rows: {options.out}")
    return 0


def _revision(checkout: Path) -> str:
    run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "no revision"


if __name__ == "__main__":
    sys.exit(main())
