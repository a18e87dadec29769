"""How much faster is the sweep than running its settings one by one?  python -m benchmarks.sweep_speed

The engine runs all combinations of parameters in the paper's grid at once: 880 runs, 900,240 steps in all (for DP-GD
the half of the grid with T <= 160, 3% of its steps), in mode (c), with eigenvalues 1/i. Each row is one repetition,
with four times taken in turns. The first is the engine's. The second is that of the whole grid by
`dpzero_theory.optim.reference` on the same problem, which follows from a few steps. The third is the same for losses
written as they are defined, which form x - x_i for every sample (`direct`). The last is that of the matrix products
alone, the machine's limit for this approach. With one thread the times are processor times, so that other work on the
machine does not enter; otherwise they are wall times.

The engine is compared with that of another checkout, in one run, over the paper's grid (its seven dimensions and three
modes, both methods, a seed), by

    git worktree add ../before REVISION
    python -m benchmarks.sweep_speed --preset full --other ../before

Each dimension is swept by `benchmarks.synthetic` in a new process in either checkout, one after the other, on one
thread. The processor seconds, and how many of the rows are the same to the last digit, go into a second table.
"""

import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results, read_rows, revision
from benchmarks.kit.tables import rounded, rounded_row
from benchmarks.sweeps import synthetic
from benchmarks.sweeps.synthetic import PAPER, Computation, Preset, paper_lanes, run_methods
from dpzero_theory.cli import Parser, input_folder, integer, output_folder
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import sample_sphere
from dpzero_theory.synthetic.data import gaussian_data
from dpzero_theory.synthetic.lanes import Lanes
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum
from tests.optim import reference

Array = NDArray[np.float64]

KEY = ("device", "threads", "dtype", "method", "d", "repetition")
FIELDS = (
    *(
        "n",
        "lanes",
        "lane_steps",
        "engine_s",
        "reference_step_s",
        "reference_s",
        "ratio",
        "direct_step_s",
        "direct_ratio",
    ),
    *("product_s", "product_share", "product_gflops"),
)
PRESETS = {
    "smoke": (Preset(500, (20,), steps=(10, 40), step_sizes=(0.01, 0.1), clips=(0.3, 3.0)), ("dpzero", "dpgd-0th")),
    "full": (Preset(PAPER.n, (20, 200, 2_000)), ("dpzero", "dpgd-0th")),
    "first-order": (Preset(PAPER.n, (20, 200, 2_000), steps=PAPER.steps[:5]), ("dpgd",)),
}


def measure(method: str, preset: Preset, d: int, place: Computation) -> dict[str, Any]:
    """Time one sweep of the engine by `method`, its matrix products alone, and steps of the reference implementation,
    in dimension d. Returns the columns of a row. The engine is warmed up first. The preset has the grid of parameters,
    and `place` the device and precision."""
    rng = np.random.default_rng(d)
    problem = Quadratic(gaussian_data(rng, preset.n, d), paper_spectrum("c", d))
    lanes, x0, device = paper_lanes(preset, "paper"), np.zeros(d), place.device

    def sweep(some: Lanes) -> None:
        run_methods([(method, x0, some)], problem, 0, [], **place.of(method))

    sweep(lanes.take(np.flatnonzero(lanes.steps == lanes.steps.min())))
    engine = _seconds(lambda: sweep(lanes), device)
    direct = _reference_step(method, _Direct(problem, rng), steps=3)
    step = _reference_step(method, problem, steps=3 if method == "dpgd" else 10)
    lane_steps = int(lanes.steps.sum())
    row = {
        "n": preset.n,
        "lanes": len(lanes),
        "lane_steps": lane_steps,
        "engine_s": engine,
        "reference_step_s": step,
        "reference_s": step * lane_steps,
        "ratio": step * lane_steps / engine,
        "direct_step_s": direct,
        "direct_ratio": direct * lane_steps / engine,
    }
    if method != "dpgd":
        product = _product(preset.n, d, int(lanes.steps.max()), getattr(torch, place.dtype), device)
        flops = 2.0 * preset.n * d * int(lanes.steps.max())
        row |= {"product_s": product, "product_share": product / engine, "product_gflops": flops / product / 1e9}
    return rounded_row(row)


def _product(n: int, d: int, steps: int, dtype: torch.dtype, device: str, block: int = 128) -> float:
    """Return the seconds that the products of `steps` directions with the data take, in matrix products of `block`
    directions at a time, on random matrices of the engine's shapes. Steps are rounded up to whole blocks. There are n
    records in d dimensions; dtype and device are those of the matrices."""
    points = torch.randn(n, d, dtype=dtype, device=device)
    w = torch.randn(min(block, steps), d, dtype=dtype, device=device)
    count = -(-steps // len(w))

    def products() -> None:
        for _ in range(count):
            w @ points.T

    return _seconds(products, device)


class _Direct:
    """A quadratic loss with the spectrum of `problem` and data of its size, drawn with `rng`, computed as it is
    defined, for comparison: losses (1/2) (x - x_i)^T A (x - x_i) and gradients A (x - x_i), each of which forms the (n,
    d) array of the x - x_i."""

    def __init__(self, problem: Quadratic, rng: np.random.Generator) -> None:
        self.n, self.d = problem.n, problem.d
        self.spectrum = problem.spectrum
        self.data = gaussian_data(rng, self.n, self.d)

    def losses(self, x: Array) -> Array:
        offsets = x - self.data
        losses: Array = 0.5 * ((offsets * offsets) @ self.spectrum)
        return losses

    def gradients(self, x: Array) -> Array:
        gradients: Array = (x - self.data) * self.spectrum
        return gradients


def _reference_step(method: str, problem: Quadratic | _Direct, steps: int) -> float:
    u = sample_sphere(np.random.default_rng(0), steps, problem.d)
    options: dict[str, Any] = {"steps": steps, "step_size": 0.01, "clip": 3.0, "noise_std": 0.1, "keep": False}
    if method == "dpgd":
        run = reference.dpgd
    else:
        run = reference.dpzero if method == "dpzero" else reference.dpgd_0th  # type: ignore[assignment]
        options |= {"smoothing": 1e-4, "directions": u}

    def few_steps() -> None:
        run(problem, np.zeros(problem.d), noise=SeededNoise(0), **options)

    few_steps()
    return _seconds(few_steps, "cpu") / steps


def _seconds(work: Callable[[], None], device: str) -> float:
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    _wait(device)
    started = clock()
    work()
    _wait(device)
    return clock() - started


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


HERE = Path(__file__).resolve().parents[2]
SWEEP = """
import dataclasses, importlib, sys, time, torch, warnings
warnings.simplefilter("ignore")  # older checkouts have the module under another path
torch.set_num_threads(1)
synthetic = importlib.import_module("benchmarks.synthetic")
words = sys.argv[1:]
dimension, folder, preset = int(words[0]), words[1], synthetic.PRESETS[words[2]]
synthetic.PRESETS["smoke"] = dataclasses.replace(preset, dimensions=(dimension,))
command = getattr(synthetic, "EXPERIMENT", synthetic)
started = time.process_time()
command.main(f"--preset smoke --methods dpzero dpgd-0th --jobs 1 --device cpu --out {folder}".split())
print("processor seconds", time.process_time() - started)
"""


def _beside(parser: Parser, options: Namespace) -> int:
    """Time the paper's grid in this checkout and in the one that --other names, and save a row of times for each
    dimension and repetition. Returns the exit status."""
    name = "smoke" if options.preset == "smoke" else "paper"
    results = Results(
        (options.out or (Path("out") if name == "smoke" else RESULTS) / "sweep_speed").with_name("sweep_speed_before"),
        key=("d", "repetition"),
        fields=("seconds", "other_seconds", "rows", "same"),
        seeds=[0],
        device="cpu",
        dtype="float64",
        settings={"other": revision(options.other)},
    )
    with parser.opened("--out", results):
        for repetition in range(options.repetitions):
            for turn, d in enumerate(synthetic.PRESETS[name].dimensions, start=repetition):
                if not results.done(d=d, repetition=repetition):
                    row = _compared(name, d, options.other, turn % 2)
                    results.add([{"d": d, "repetition": repetition, **row}])
                    print(f"d={d}: {row['seconds']} s, the other checkout {row['other_seconds']} s", flush=True)
        table = read_rows(results.folder)
        ratio = table["other_seconds"].sum() / table["seconds"].sum()
        print(f"{ratio:.2f} times as fast; {table['same'].sum():,} of {table['rows'].sum():,} rows the same")
    return 0


def _compared(name: str, d: int, other: Path, first: int) -> dict[str, Any]:
    """Return the processor seconds of a sweep at dimension d in this checkout and in `other`, the number of rows, and
    how many of them are the same to the last digit in both. name is the preset, "smoke" or "paper"; first says which
    checkout is timed first: 0 for this one, 1 for `other`. Raises RuntimeError if a sweep fails."""
    seconds, tables = {}, {}
    with TemporaryDirectory() as folder:
        for number in (first, 1 - first):
            checkout = (HERE, other)[number]
            command = [sys.executable, "-c", SWEEP, str(d), f"{folder}/{number}", name]
            run = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
            if run.returncode:
                raise RuntimeError(f"the sweep in {checkout} failed: {run.stderr.strip().splitlines()[-1]}")
            seconds[number] = float(re.findall(r"processor seconds (\S+)", run.stdout)[-1])
            tables[number] = set(Path(folder, str(number), "rows.csv").read_text().splitlines()[1:])
    here, there = (rounded(seconds[number]) for number in range(2))
    same = len(tables[0] & tables[1])
    return {"seconds": here, "other_seconds": there, "rows": len(tables[0]), "same": same}


def _body(parser: Parser, options: Namespace) -> int:
    """Make the measurements whose rows are not in the results yet; with --other, compare with that checkout instead.
    Returns the exit status."""
    if options.other is not None:
        return _beside(parser, options)
    device = chosen_device(parser, options.device)
    torch.set_num_threads(options.threads)
    preset, methods = PRESETS[options.preset]
    results = Results(
        options.out or (Path("out") if options.preset == "smoke" else RESULTS) / "sweep_speed",
        key=KEY,
        fields=FIELDS,
        seeds=[0],
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        dtype="see rows",
        settings={"mode": "c", "calibration": "paper"},
    )
    with parser.opened("--out", results):
        for repetition in range(options.repetitions):
            for d in preset.dimensions:
                for method in methods:
                    values = (device, options.threads, options.dtype, method, d, repetition)
                    key = dict(zip(KEY, values, strict=True))
                    if results.done(**key):
                        continue
                    row = measure(method, preset, d, Computation(options.dtype, device=device))
                    results.add([{**key, **row}])
                    print(f"{method} d={d}: {row['engine_s']} s, {row['ratio']} times the reference", flush=True)
    return 0


EXPERIMENT = Command(
    "sweep_speed",
    __doc__,
    _body,
    [
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
        flag("--dtype", choices=("float64", "float32"), default="float64"),
        flag("--threads", type=integer(1, 1024), default=torch.get_num_threads()),
        flag("--repetitions", type=integer(1, 100), default=3),
        flag("--other", type=input_folder("pyproject.toml"), help="another checkout to compare with"),
        flag("--out", type=output_folder, help="folder (default: out/NAME, else benchmarks/results/NAME)"),
    ],
)
