r"""The paper's synthetic experiment (Section 5.1, app:toy), whole grid.  python -m benchmarks.synthetic

The loss is quadratic, with n = 10,000 training and as many test samples from N(1, 1); runs are (2, 1e-6)-DP. There are
three spectra (modes a, b, c) and three methods, and for each dimension every combination of the paper's steps, step
sizes and clips (Table tab:toy-param), one row each. The preset `wide` goes on from the paper's d = 2,000 to 20,000. The
preset `long` has up to 16 times the paper's steps, smaller clips and a larger step size, for problems on which the best
of the paper's grid is on its edge. The rows of a cell (a method, mode, dimension, start, calibration and seed) share
their noise and directions, which come from seeds: no row is a private release.

The paper leaves some things open. Here they are:

- the start x_0: `--start zero` (default) or `normal`, a draw from N(0, I);
- the noise: `--calibration paper` (default), the noise that the paper's algorithms state, or `exact`, the least noise
with the same privacy;
- the law of the directions (the paper's section says Gaussian, its algorithms the sphere): the sphere here, others in
`benchmarks.rank`;
- which iterate is measured: every row has the last one, the average of x_0..x_{T-1}, and the root mean square over
them, which is what the theorems bound (x_tau with tau uniform);
- repetitions: `--seeds`.

`python -m figures.synthetic` draws how the answer depends on them, from

    python -m benchmarks.synthetic --preset choices --methods dpzero dpgd-0th \\
        --start zero normal --calibration paper exact

Everything is computed in `--dtype`, except that DP-GD's products with the samples are in float32 (`--dpgd-products`);
its rows agree with those of float64 to their four digits. A second table, NAME_seconds, has the processor seconds of
every cell, its data, products and measurements included; cells of one mode, dimension and seed share their directions,
sorted products and seconds. All methods and five seeds run on one GPU by

    python -m benchmarks.synthetic --preset paper --seeds 5 --device cuda --out out/synthetic
"""

import os
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.jobs import Share, completed, share
from benchmarks.kit.remake import FOUR_DIGITS, Remake, Row
from benchmarks.kit.rows import OK, RESULTS, Results
from dpzero_theory.cli import Parser, Several, integer, output_folder
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std, paper_gdp
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.data import gaussian_data
from dpzero_theory.synthetic.first_order import dpgd
from dpzero_theory.synthetic.lanes import Draw, Lanes, directions_of, drawn_on, on_sphere
from dpzero_theory.synthetic.problems import MODES, Quadratic, paper_spectrum

Array = NDArray[np.float64]

EPSILON, DELTA = 2.0, 1e-6
STEPS = tuple(10 * 2**k for k in range(10))
STEP_SIZES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
METHODS = ("dpzero", "dpgd-0th", "dpgd")
STARTS, CALIBRATIONS = ("zero", "normal"), ("paper", "exact")
OUTPUTS = ("last", "average", "tau")
CELL_KEY = ("method", "mode", "d", "start", "calibration", "seed")
KEY = (*CELL_KEY, "steps", "step_size", "clip")
FIELDS = tuple(
    f"{what}_{on}_{output}" for output in OUTPUTS for what in ("gradient", "loss") for on in ("train", "test")
)
DIGITS = 4
DIVERGED = "diverged"
Setting = tuple[int, float, float]


@dataclass(frozen=True)
class Preset:
    """The sizes and the grid of a sweep: the number n of training samples, the dimensions, and the values of steps,
    step size and clip. settings lists the triples (steps, step size, clip) of the grid that are run; if it is empty,
    the whole grid is."""

    n: int
    dimensions: tuple[int, ...]
    steps: tuple[int, ...] = STEPS
    step_sizes: tuple[float, ...] = STEP_SIZES
    clips: tuple[float, ...] = CLIPS
    settings: tuple[Setting, ...] = ()


PAPER = Preset(10_000, (20, 50, 100, 200, 500, 1_000, 2_000))
PRESETS = {
    "smoke": Preset(500, (10, 20), steps=(10, 40), step_sizes=(0.01, 0.1), clips=(0.3, 3.0)),
    "paper": PAPER,
    "wide": Preset(10_000, (5_000, 10_000, 20_000)),
    "choices": Preset(10_000, (20, 200, 2_000)),
    "long": Preset(
        10_000,
        (20, 200, 2_000),
        steps=tuple(5_120 * 2**k for k in range(5)),
        step_sizes=(*STEP_SIZES[3:], 3.0),
        clips=(0.003, 0.01, 0.03, *CLIPS[:5]),
    ),
}
FOLDERS = {
    "smoke": Path("out") / "synthetic",
    "paper": RESULTS / "synthetic",
    "wide": RESULTS / "synthetic_wide",
    "choices": RESULTS / "synthetic_choices",
    "long": RESULTS / "synthetic_long",
}


@dataclass(frozen=True)
class SweepCell:
    """One cell of the sweep: a method; a problem, which is a spectrum `mode`, a dimension d and a start ("zero" or
    "normal"); a calibration of the noise ("paper" or "exact"); and a seed. Every combination of steps, step size and
    clip of the grid is run on it."""

    method: str
    mode: str
    d: int
    start: str
    calibration: str
    seed: int


def paper_lanes(preset: Preset, calibration: str) -> Lanes:
    """Return the combinations of steps, step size and clip in the preset's grid, for the sweep engine, which calls each
    a lane. Each has the noise that makes its run (2, 1e-6)-DP when one record is replaced, by the calibration "paper"
    or "exact"."""
    gdp = float((paper_gdp if calibration == "paper" else gdp_from_epsilon)(EPSILON, DELTA))
    lanes = Lanes.grid(
        steps=preset.steps,
        step_sizes=preset.step_sizes,
        clips=preset.clips,
        noise_std=lambda steps, clip: noise_std(gdp, steps, clip, preset.n, "replace-one"),
    )
    if not preset.settings:
        return lanes
    grid = zip(lanes.steps, lanes.step_size, lanes.clip, strict=True)
    return lanes.take(np.array([lane for lane, setting in enumerate(grid) if setting in preset.settings]))


def run_methods(
    sweeps: Sequence[tuple[str, Array, Lanes]],
    problem: Quadratic,
    seed: int,
    centers: Sequence[Array],
    **options: Any,
) -> list[engine.Outcome]:
    """Run every combination of parameters of each method with this seed's noise, and with its directions on the sphere.
    `sweeps` has for each method its name, its start x_0 and its combinations, the lanes, which are run side by side.
    Returns an outcome for each method.

    The zeroth-order methods share their directions. DP-GD has none, and must be the only method of a call. A GPU draws
    its own random numbers, which are not those of a CPU. centers: further points c, such as the mean of a test sample;
    for each the engine also measures the gradient A (x - c) and the loss of the data whose mean is c. options: those of
    the engine, such as device and dtype.
    """
    d, device = problem.d, options.get("device", "cpu")

    def noise(vector: bool) -> Draw:
        return _normals(device, [seed, 1], *([d] if vector else []))

    if sweeps[0][0] == "dpgd":
        ((_, x0, lanes),) = sweeps
        return [dpgd(problem, x0, lanes, noise=noise(True), centers=centers, **options)]
    each = [engine.Sweep(x0, lanes, method == "dpgd-0th", noise(method == "dpgd-0th")) for method, x0, lanes in sweeps]
    directions = (
        directions_of("sphere", np.random.default_rng([seed, 0]), d)
        if device == "cpu"
        else on_sphere(drawn_on(device, [seed, 0], d))
    )
    return engine.run_together(problem, each, directions=directions, centers=centers, **options)


def _normals(device: str, key: Sequence[int], *shape: int) -> Draw:
    """Return a function of a count that draws so many arrays of standard normals of the given shape, stacked along a
    first axis, on the device. The numbers of its first, second, ... call are a function of the key, so that every
    method draws the same."""
    if device != "cpu":
        return drawn_on(device, key, *shape)
    rng = np.random.default_rng(key)
    return lambda count: rng.standard_normal((count, *shape))


@dataclass(frozen=True)
class Computation:
    """The device and the precision with which a sweep is computed. Precisions are names of dtypes; `dpgd_products` is
    the precision of DP-GD's products with the samples alone."""

    dtype: str = "float64"
    dpgd_products: str = "float32"
    device: str = "cpu"

    def of(self, method: str) -> dict[str, Any]:
        """Return the keyword options of `run_methods` for a method: its dtype and device, and for "dpgd" the dtype of
        its products."""
        options = {"dtype": getattr(torch, self.dtype), "device": self.device}
        return options | ({"product_dtype": getattr(torch, self.dpgd_products)} if method == "dpgd" else {})


def run_cells(cells: Sequence[SweepCell], preset: Preset, place: Computation) -> list[dict[str, Any]]:
    """Run cells that have the same mode, dimension and seed, and return their rows. A cell of DP-GD must be the only
    one. The preset has the grid of parameters, and `place` the device and precision.

    A value that is not finite is left empty, and the row's status is then `diverged`.
    """
    mode, d, seed = cells[0].mode, cells[0].d, cells[0].seed
    train, center, variances = samples(preset.n, d, seed)
    problem = Quadratic(train, paper_spectrum(mode, d))
    minima = (problem.minimum, 0.5 * float(problem.spectrum @ variances))
    normal = np.random.default_rng([seed, 2]).standard_normal(d)
    sweeps = [(c.method, normal * (c.start == "normal"), paper_lanes(preset, c.calibration)) for c in cells]
    outcomes = run_methods(sweeps, problem, seed, [center], **place.of(cells[0].method))
    return [
        _row(key, {name: values[lane] for name, values in measured.items()})
        for cell, outcome in zip(cells, outcomes, strict=True)
        for measured in [_measured(outcome, problem, center, minima)]
        for lane, key in enumerate(keys(cell, preset))
    ]


def _measured(
    outcome: engine.Outcome, problem: Quadratic, center: Array, minima: tuple[float, float]
) -> dict[str, Array]:
    """Return, by name of the column, the gradient norm and the loss of every output (last iterate, average, x_tau,
    which is the root mean square over iterates for the gradient and the mean for the loss) on the training and the test
    sample, with one value for each run of the outcome. problem is that of the training sample, center is the mean of
    the test sample, and minima are the least losses on the two samples."""
    measured: dict[str, Array] = {}
    for index, (on, at) in enumerate((("train", problem.center), ("test", center))):
        for output, points in (("last", outcome.last), ("average", outcome.average)):
            offsets = points - at
            measured[f"gradient_{on}_{output}"] = np.linalg.norm(offsets * problem.spectrum, axis=1)
            measured[f"loss_{on}_{output}"] = 0.5 * (offsets**2 @ problem.spectrum) + minima[index]
        measured[f"gradient_{on}_tau"] = np.sqrt(outcome.gradient_squared[index])
        measured[f"loss_{on}_tau"] = outcome.excess[index] + minima[index]
    return measured


def keys(cell: SweepCell, preset: Preset) -> Iterable[dict[str, Any]]:
    """Yield the key columns of a cell's rows, one row for each combination of steps, step size and clip in the
    preset."""
    lanes = paper_lanes(preset, cell.calibration)
    values = (cell.method, cell.mode, cell.d, cell.start, cell.calibration, cell.seed)
    for steps, step_size, clip in zip(lanes.steps, lanes.step_size, lanes.clip, strict=True):
        yield dict(zip(KEY, (*values, int(steps), float(step_size), float(clip)), strict=True))


def _row(key: dict[str, Any], measured: dict[str, float]) -> dict[str, Any]:
    rounded = {name: float(f"{value:.{DIGITS}g}") for name, value in measured.items() if np.isfinite(value)}
    return {**key, **rounded, "status": OK if len(rounded) == len(measured) else DIVERGED}


@lru_cache(maxsize=1)
def samples(n: int, d: int, seed: int) -> tuple[Array, Array, Array]:
    """Draw from `seed` and d a training sample and a test sample, each of n records in R^d. Returns the training
    sample, shape (n, d), and the mean and the variance (normalised by n) of each coordinate of the test sample, shape
    (d,)."""
    rng = np.random.default_rng([seed, d])
    train, test = gaussian_data(rng, n, d), gaussian_data(rng, n, d)
    return train, test.mean(axis=0), test.var(axis=0)


def _again(preset: Preset, row: Row) -> list[dict[str, Any]]:
    """Make a committed row of a preset again, together with the shorter runs of its step size and clip, because the
    engine ends its blocks of steps wherever one of these runs ends.

    If the row's run enlarges rounding errors, it is made again with everything that was first made with it, because its
    digits depend on how many runs are computed at once.
    """
    cell = SweepCell(*(row[name] for name in CELL_KEY))
    if _upset(row) and cell.method != "dpgd":
        choices = [*product(STARTS, CALIBRATIONS)] if preset is PRESETS["choices"] else [("zero", "paper")]
        those = [replace(cell, method=m, start=x0, calibration=c) for m in METHODS[:2] for x0, c in choices]
        return run_cells(those, preset, Computation())
    steps = tuple(steps for steps in preset.steps if steps <= row["steps"])
    one = replace(preset, steps=steps, step_sizes=(row["step_size"],), clips=(row["clip"],))
    return run_cells([cell], one, Computation())


def _upset(row: Row) -> bool:
    return bool(row["step_size"] * (paper_spectrum(row["mode"], row["d"]).sum() + 2) > 1)


REMAKES = {
    folder.name: Remake(KEY, partial(_again, PRESETS[name]), elsewhere=FOUR_DIGITS, upset=_upset)
    for name, folder in FOLDERS.items()
    if folder.parent == RESULTS
} | {
    "synthetic_dpgd": Remake(
        KEY, partial(_again, PAPER), tolerance=FOUR_DIGITS, why="float32 products, in blocks with other runs; 4 digits"
    )
}


def _body(parser: Parser, options: Namespace) -> int:
    """Run the cells of the preset whose rows are not in the results yet. Returns the exit status."""
    if options.out is not None and not options.out.resolve().name:
        parser.error(f"--out must have a name; got {str(options.out)!r}")
    options.device = chosen_device(parser, options.device)
    # with more threads, sums are added in another order, which changes runs that enlarge rounding errors
    torch.set_num_threads(1)
    preset = PRESETS[options.preset]
    cells = [
        SweepCell(method, mode, d, start, calibration, seed)
        for seed in range(options.seeds)
        for method in options.methods
        for d in preset.dimensions
        for start in options.start
        for calibration in options.calibration
        for mode in options.modes
    ]
    _run(cells, preset, options, parser)
    return 0


def _run(cells: Sequence[SweepCell], preset: Preset, options: Namespace, parser: Parser) -> None:
    place = Computation(options.dtype, options.dpgd_products, options.device)
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
        mine = [cell for group in options.share.of(_groups(cells)) for cell in group]
        todo = [cell for cell in mine if not all(results.done(**key) for key in keys(cell, preset))]
        jobs = [(group, preset, place) for group in _groups(todo)]
        workers = options.jobs if options.device == "cpu" else 1
        for count, ((group, *_), (rows, spent)) in enumerate(completed(_job, jobs, workers), start=1):
            results.add(row for row in rows if not results.done(**{name: row[name] for name in KEY}))
            seconds.add(row for row in spent if not seconds.done(**{name: row[name] for name in seconds.key}))
            print(f"{count}/{len(jobs)} {_told(group, rows)}, {sum(row['cpu_s'] for row in spent):.2f} s", flush=True)


def _groups(cells: Sequence[SweepCell]) -> list[list[SweepCell]]:
    """Return the cells in groups that share directions and data. Each cell of DP-GD is a group by itself."""
    groups: dict[tuple[Any, ...], list[SweepCell]] = {}
    for cell in cells:
        alone = cell if cell.method == "dpgd" else None
        groups.setdefault((cell.mode, cell.d, cell.seed, alone), []).append(cell)
    return list(groups.values())


def _told(group: Sequence[SweepCell], rows: Sequence[dict[str, Any]]) -> str:
    """Return the text that is printed after a group of cells has been run: its mode, dimension and seed, and for each
    of its methods, starts and calibrations the smallest training gradient norm of a last iterate in the rows."""
    best: dict[str, float] = {}
    for row in rows:
        name = f"{row['method']} ({row['start']}, {row['calibration']})"
        best[name] = min(row.get("gradient_train_last", np.inf), best.get(name, np.inf))
    found = ", ".join(f"{name} {value:.4g}" for name, value in best.items())
    return f"mode {group[0].mode}, d = {group[0].d:,}, seed {group[0].seed}: best last gradient {found}"


def _job(
    group: Sequence[SweepCell], preset: Preset, place: Computation
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run a group of cells. Returns its rows and, for each cell, a row of processor and wall seconds, which are the
    group's divided by its number of cells. An exception is not raised but makes the rows' status. The preset has the
    grid of parameters, and `place` the device and precision."""
    started, cpu = time.perf_counter(), time.process_time()
    try:
        rows = run_cells(group, preset, place)
    except Exception as error:
        rows = [{**key, "status": f"{type(error).__name__}: {error}"} for cell in group for key in keys(cell, preset)]
    spent = {
        "device": place.device,
        "products": place.dpgd_products if group[0].method == "dpgd" else place.dtype,
        "lanes": len(rows) // len(group),
        "cpu_s": round((time.process_time() - cpu) / len(group), 2),
        "wall_s": round((time.perf_counter() - started) / len(group), 2),
        "status": OK if all(row["status"] in (OK, DIVERGED) for row in rows) else rows[0]["status"],
    }
    return rows, [{**asdict(cell), **spent} for cell in group]


EXPERIMENT = Command(
    "synthetic",
    __doc__,
    _body,
    [
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--methods", nargs="+", action=Several, choices=METHODS, default=list(METHODS)),
        flag("--modes", nargs="+", action=Several, choices=MODES, default=list(MODES)),
        flag("--start", nargs="+", action=Several, choices=STARTS, default=["zero"]),
        flag("--calibration", nargs="+", action=Several, choices=CALIBRATIONS, default=["paper"]),
        flag("--seeds", type=integer(1, 1000), default=1),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
        flag("--dtype", choices=("float64", "float32"), default="float64"),
        flag("--dpgd-products", choices=("float64", "float32"), default="float32"),
        flag("--jobs", type=integer(1, 256), default=os.cpu_count() or 1),
        flag("--share", type=share, default=Share(), help="I/N: the I-th of N machines (benchmarks.merge)"),
        flag("--out", type=output_folder, help="folder (default: benchmarks/results/synthetic, synthetic_PRESET)"),
    ],
)
