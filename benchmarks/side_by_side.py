"""This checkout beside another one, in one run: calibration, a private step and the sweep engine.

    git worktree add ../before REVISION
    python -m benchmarks.side_by_side --other ../before [--turns N] [--out DIR]

Each turn runs the same piece of work in a new process in either checkout, one after the other, and counts its
processor time after a warm-up. The work calls commands and the README's function, which stay from version to version.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.kit.timing import median_ratio
from dpzero_theory.cli import Parser, input_folder, integer, output_folder

HERE = Path(__file__).resolve().parents[1]
COMMON = "import contextlib, io, sys, tempfile, time\nquiet = io.StringIO()\n"
CLOCK = """
def timed(work, repeats):
    work()
    start = time.process_time()
    for _ in range(repeats):
        work()
    print((time.process_time() - start) / repeats)
"""
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
    "private step, batch 64": """
import torch
torch.set_num_threads(1)
from torch.utils.data import TensorDataset
from dpzero_theory.optim.private import make_private_with_epsilon
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 784), torch.zeros(64).long())
model = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
run = make_private_with_epsilon(
    model, losses, data, target_epsilon=2, target_delta=1e-5, steps=10**6, expected_batch=64, clip=1.0, step_size=0.1,
    smoothing=1e-3, relation="add-remove", sampling="full", folder=tempfile.mkdtemp() + "/run",
)
timed(lambda: [run.step() for _ in range(20)], 5)
""",
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


def seconds(work: str, checkout: Path) -> float:
    """Processor seconds of the work in that checkout."""
    run = subprocess.run(
        [sys.executable, "-c", COMMON + CLOCK + WORK[work]], cwd=checkout, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"{work} in {checkout} failed: {run.stderr.strip().splitlines()[-1]}")
    return float(run.stdout)


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
        fields=("seconds", "other"),
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
                    mine, others = found[HERE], found[options.other]
                    results.add([{"work": work, "turn": turn, "seconds": mine, "other": others}])
                    print(f"{work}, turn {turn + 1} of {options.turns}: {mine / others:.3f}", file=sys.stderr)
    for name, rows in read_rows(options.out).groupby("work", sort=False):
        ratio, error = median_ratio(list(rows["seconds"]), list(rows["other"]))
        print(f"{name}: {ratio:.3f} +- {error:.3f} of the other checkout's processor time ({len(rows)} turns)")
    print(f"rows: {options.out}")
    return 0


def _revision(checkout: Path) -> str:
    run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "no revision"


if __name__ == "__main__":
    sys.exit(main())
