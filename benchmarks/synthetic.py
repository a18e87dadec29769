"""The paper's synthetic experiment (Section 5.1, app:toy), whole grid.  python -m benchmarks.synthetic

Quadratic loss, n = 10,000 training and test samples from N(1, 1), (2, 1e-6)-DP, three spectra, three methods,
and for each dimension every combination of the paper's steps, step sizes and clips (Table tab:toy-param): one
row per combination. The preset `wide` goes on from the paper's d = 2,000 to 20,000. Noise and directions are shared by
the rows of a cell and come from seeds, so no row is a private release.

What the paper leaves open, and how it enters here:

- the start x_0: `--start zero` (default) or `normal`, a draw from N(0, I);
- the noise: `--calibration paper` (default), the noise that its algorithms state, or `exact`, the least noise
  with the same privacy;
- which iterate is measured: every row has the last one, the average of x_0..x_{T-1}, and the root mean square
  over them, which is what the theorems bound (x_tau, tau uniform);
- repetitions: `--seeds`.

`python -m figures.synthetic` draws how the answer depends on them, from

    python -m benchmarks.synthetic --preset choices --methods dpzero dpgd-0th \\
        --start zero normal --calibration paper exact

Everything is in `--dtype`, except that DP-GD's products with the samples are in float32 (`--dpgd-products`): the rows
agree with those of float64 to their four digits. The processor seconds of every cell, its data, products and
measurements included, are in a second table beside the rows, NAME_seconds. All methods and five seeds on one GPU:

    python -m benchmarks.synthetic --preset paper --seeds 5 --device cuda --out out/synthetic
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kit.device import chosen_device
from benchmarks.kit.jobs import completed
from benchmarks.kit.rows import OK, RESULTS, Results
from dpzero_theory.cli import Parser, Several, integer, output_folder
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std, paper_gdp
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.data import gaussian_data
from dpzero_theory.synthetic.first_order import dpgd
from dpzero_theory.synthetic.lanes import Lanes, directions_of
from dpzero_theory.synthetic.problems import MODES, Quadratic, paper_spectrum

__all__ = ["METHODS", "PRESETS", "Cell", "Place", "Preset", "main", "paper_lanes", "run_cell", "run_method"]

Array = NDArray[np.float64]

EPSILON, DELTA = 2.0, 1e-6
STEPS = tuple(10 * 2**k for k in range(10))
STEP_SIZES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
METHODS = ("dpzero", "dpgd-0th", "dpgd")
OUTPUTS = ("last", "average", "tau")
CELL_KEY = ("method", "mode", "d", "start", "calibration", "seed")
KEY = (*CELL_KEY, "steps", "step_size", "clip")
FIELDS = tuple(
    f"{what}_{on}_{output}" for output in OUTPUTS for what in ("gradient", "loss") for on in ("train", "test")
)
DIGITS = 4
DIVERGED = "diverged"


@dataclass(frozen=True)
class Preset:
    """Sizes of a sweep."""

    n: int
    dimensions: tuple[int, ...]
    steps: tuple[int, ...] = STEPS
    step_sizes: tuple[float, ...] = STEP_SIZES
    clips: tuple[float, ...] = CLIPS


PAPER = Preset(10_000, (20, 50, 100, 200, 500, 1_000, 2_000))
PRESETS = {
    "smoke": Preset(500, (10, 20), steps=(10, 40), step_sizes=(0.01, 0.1), clips=(0.3, 3.0)),
    "paper": PAPER,
    "wide": Preset(10_000, (5_000, 10_000, 20_000)),
    "choices": Preset(10_000, (20, 200, 2_000)),
}
FOLDERS = {
    "smoke": Path("out") / "synthetic",
    "paper": RESULTS / "synthetic",
    "wide": RESULTS / "synthetic_wide",
    "choices": RESULTS / "synthetic_choices",
}


@dataclass(frozen=True)
class Cell:
    """One sweep: a method on one problem, all lanes."""

    method: str
    mode: str
    d: int
    start: str
    calibration: str
    seed: int


def paper_lanes(preset: Preset, calibration: str) -> Lanes:
    """The grid of the paper with the noise of (2, 1e-6)-DP under replacement of one record."""
    gdp = float((paper_gdp if calibration == "paper" else gdp_from_epsilon)(EPSILON, DELTA))
    return Lanes.grid(
        steps=preset.steps,
        step_sizes=preset.step_sizes,
        clips=preset.clips,
        noise_std=lambda steps, clip: noise_std(gdp, steps, clip, preset.n, "replace-one"),
    )


def run_method(
    method: str,
    problem: Quadratic,
    x0: Array,
    lanes: Lanes,
    seed: int,
    centers: Sequence[Array],
    direction: str = "sphere",
    **options: Any,
) -> engine.Outcome:
    """Run all lanes of one method with this seed's directions, of that law, and noise; options: the engine's."""
    drawn, noise = (np.random.default_rng([seed, stream]) for stream in range(2))
    vectors: Callable[[int], Array] = lambda count: noise.standard_normal((count, problem.d))  # noqa: E731
    if method == "dpgd":
        return dpgd(problem, x0, lanes, noise=vectors, centers=centers, **options)
    sweep, rows = (engine.dpzero, noise.standard_normal) if method == "dpzero" else (engine.dpgd_0th, vectors)
    return sweep(
        problem,
        x0,
        lanes,
        directions=directions_of(direction, drawn, problem.d),
        noise=rows,
        centers=centers,
        **options,
    )


@dataclass(frozen=True)
class Place:
    """Where and in which precision a sweep runs: dtypes by name, `dpgd_products` for DP-GD's products alone."""

    dtype: str = "float64"
    dpgd_products: str = "float32"
    device: str = "cpu"

    def of(self, method: str) -> dict[str, Any]:
        """The options of `run_method`."""
        options = {"dtype": getattr(torch, self.dtype), "device": self.device}
        return options | ({"product_dtype": getattr(torch, self.dpgd_products)} if method == "dpgd" else {})


def run_cell(cell: Cell, preset: Preset, place: Place) -> list[dict[str, Any]]:
    """One row per lane. A value that is not finite is left empty and makes the row's status `diverged`."""
    train, center, variances = _samples(preset.n, cell.d, cell.seed)
    problem = Quadratic(train, paper_spectrum(cell.mode, cell.d))
    minima = (problem.minimum, 0.5 * float(problem.spectrum @ variances))
    x0 = np.random.default_rng([cell.seed, 2]).standard_normal(cell.d) * (cell.start == "normal")
    lanes = paper_lanes(preset, cell.calibration)
    outcome = run_method(cell.method, problem, x0, lanes, cell.seed, [center], **place.of(cell.method))
    measured: dict[str, Array] = {}
    for index, (on, at) in enumerate((("train", problem.center), ("test", center))):
        for output, points in (("last", outcome.last), ("average", outcome.average)):
            offsets = points - at
            measured[f"gradient_{on}_{output}"] = np.linalg.norm(offsets * problem.spectrum, axis=1)
            measured[f"loss_{on}_{output}"] = 0.5 * (offsets**2 @ problem.spectrum) + minima[index]
        measured[f"gradient_{on}_tau"] = np.sqrt(outcome.gradient_squared[index])
        measured[f"loss_{on}_tau"] = outcome.excess[index] + minima[index]
    return [
        _row(key, {name: values[lane] for name, values in measured.items()})
        for lane, key in enumerate(_keys(cell, preset))
    ]


def _keys(cell: Cell, preset: Preset) -> Iterable[dict[str, Any]]:
    lanes = paper_lanes(preset, cell.calibration)
    values = (cell.method, cell.mode, cell.d, cell.start, cell.calibration, cell.seed)
    for steps, step_size, clip in zip(lanes.steps, lanes.step_size, lanes.clip, strict=True):
        yield dict(zip(KEY, (*values, int(steps), float(step_size), float(clip)), strict=True))


def _row(key: dict[str, Any], measured: dict[str, float]) -> dict[str, Any]:
    rounded = {name: float(f"{value:.{DIGITS}g}") for name, value in measured.items() if np.isfinite(value)}
    return {**key, **rounded, "status": OK if len(rounded) == len(measured) else DIVERGED}


@lru_cache(maxsize=1)
def _samples(n: int, d: int, seed: int) -> tuple[Array, Array, Array]:
    """The training sample, and the mean and variance of each coordinate of the test sample."""
    rng = np.random.default_rng([seed, d])
    train, test = gaussian_data(rng, n, d), gaussian_data(rng, n, d)
    return train, test.mean(axis=0), test.var(axis=0)


def _parser() -> Parser:
    parser = Parser("benchmarks.synthetic", __doc__)
    parser.add_argument("--preset", choices=PRESETS, default="smoke")
    parser.add_argument("--methods", nargs="+", action=Several, choices=METHODS, default=list(METHODS))
    parser.add_argument("--modes", nargs="+", action=Several, choices=MODES, default=list(MODES))
    parser.add_argument("--start", nargs="+", action=Several, choices=("zero", "normal"), default=["zero"])
    parser.add_argument("--calibration", nargs="+", action=Several, choices=("paper", "exact"), default=["paper"])
    parser.add_argument("--seeds", type=integer(1, 1000), default=1)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--dpgd-products", choices=("float64", "float32"), default="float32")
    parser.add_argument("--jobs", type=integer(1, 256), default=os.cpu_count() or 1)
    parser.add_argument(
        "--out", type=output_folder, help="folder (default: benchmarks/results/synthetic, synthetic_PRESET)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cells of the preset that are not in the results yet."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.out is not None and not options.out.resolve().name:
        parser.error(f"--out must have a name; got {str(options.out)!r}")
    options.device = chosen_device(parser, options.device)
    preset = PRESETS[options.preset]
    cells = [
        Cell(method, mode, d, start, calibration, seed)
        for seed in range(options.seeds)
        for method in options.methods
        for d in preset.dimensions
        for start in options.start
        for calibration in options.calibration
        for mode in options.modes
    ]
    _run(cells, preset, options, parser)
    return 0


def _run(cells: Sequence[Cell], preset: Preset, options: argparse.Namespace, parser: Parser) -> None:
    place = Place(options.dtype, options.dpgd_products, options.device)
    folder = options.out or FOLDERS[options.preset]
    results = Results(
        folder,
        key=KEY,
        fields=FIELDS,
        seeds=range(options.seeds),
        device=options.device,
        dtype=options.dtype,
        settings={"n": preset.n, "epsilon": EPSILON, "delta": DELTA, "relation": "replace-one", "noise": "seeded"},
        compress=options.preset != "smoke",
        cell=CELL_KEY,
        figure="figures.synthetic",
    )
    seconds = Results(
        folder.resolve().with_name(f"{folder.resolve().name}_seconds"),
        key=(*CELL_KEY, "device", "products"),
        fields=("lanes", "cpu_s", "wall_s"),
        seeds=range(options.seeds),
        device=options.device,
        dtype=options.dtype,
    )
    with parser.opened("--out", results), parser.opened("--out", seconds):
        todo = [(cell, preset, place) for cell in cells if not all(results.done(**key) for key in _keys(cell, preset))]
        workers = options.jobs if options.device == "cpu" else 1
        for count, ((cell, *_), (rows, spent)) in enumerate(completed(_job, todo, workers), start=1):
            results.add(row for row in rows if not results.done(**{name: row[name] for name in KEY}))
            seconds.add([] if seconds.done(**{name: spent[name] for name in seconds.key}) else [spent])
            best = min((row.get("gradient_train_last", np.inf) for row in rows), default=np.inf)
            print(f"{count}/{len(todo)} {cell}: best last gradient {best:.4g}, {spent['cpu_s']} s", flush=True)


def _job(cell: Cell, preset: Preset, place: Place) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a cell, and its row of processor and wall seconds."""
    started, cpu = time.perf_counter(), time.process_time()
    try:
        rows = run_cell(cell, preset, place)
    except Exception as error:
        rows = [{**key, "status": f"{type(error).__name__}: {error}"} for key in _keys(cell, preset)]
    spent = {
        **asdict(cell),
        "device": place.device,
        "products": place.dpgd_products if cell.method == "dpgd" else place.dtype,
        "lanes": len(rows),
        "cpu_s": round(time.process_time() - cpu, 2),
        "wall_s": round(time.perf_counter() - started, 2),
        "status": OK if all(row["status"] in (OK, DIVERGED) for row in rows) else rows[0]["status"],
    }
    return rows, spent


if __name__ == "__main__":
    sys.exit(main())
