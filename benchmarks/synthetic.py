r"""The paper's synthetic experiment (Section 5.1, app:toy), whole grid.  python -m benchmarks synthetic

The loss is quadratic, with n = 10,000 training and as many test samples from N(1, 1); runs are (2, 1e-6)-DP by the
noise that the paper's algorithms state, and start at 0. There are three spectra (modes a, b, c) and three methods, and
for each dimension every combination of the paper's steps, step sizes and clips (Table tab:toy-param), one row each. The
preset `long` has up to 16 times the paper's steps, smaller clips and a larger step size, for problems on which the best
of the paper's grid is on its edge. Cells of one mode, dimension and seed share their noise and directions, which come
from seeds and are on the sphere: no row is a private release.

Every row has the last iterate, the average of x_0..x_{T-1}, and the root mean square over them, which is what the
theorems bound (x_tau with tau uniform). DP-GD's products with the samples are in float32; its rows agree with those of
float64 to their four digits. All methods and five seeds run on one GPU by

    python -m benchmarks synthetic --preset paper --seeds 5 --device cuda --out out/synthetic
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.kit.device import chosen_device, one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import OK, RESULTS
from dpzero_theory.cli import Parser, Several, integer
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.first_order import dpgd
from dpzero_theory.synthetic.lanes import Draw, Lanes, directions_of
from dpzero_theory.synthetic.problems import MODES, Quadratic, gaussian_data, paper_spectrum
from dpzero_theory.theory.noise import noise_std, paper_gdp

Array = NDArray[np.float64]

EPSILON, DELTA = 2.0, 1e-6
STEPS = tuple(10 * 2**k for k in range(10))
STEP_SIZES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
METHODS = ("dpzero", "dpgd-0th", "dpgd")
OUTPUTS = ("last", "average", "tau")
KEY = ("method", "mode", "d", "start", "calibration", "seed", "steps", "step_size", "clip")
FIELDS = tuple(
    f"{what}_{on}_{output}" for output in OUTPUTS for what in ("gradient", "loss") for on in ("train", "test")
)
DIGITS, FOUR_DIGITS = 4, 1.001e-3
DIVERGED = "diverged"


@dataclass(frozen=True)
class Preset:
    """The sizes and the grid of a sweep: the number n of training samples, the dimensions, and the values of steps,
    step size and clip."""

    n: int
    dimensions: tuple[int, ...]
    steps: tuple[int, ...] = STEPS
    step_sizes: tuple[float, ...] = STEP_SIZES
    clips: tuple[float, ...] = CLIPS


PAPER = Preset(10_000, (20, 50, 100, 200, 500, 1_000, 2_000))
PRESETS = {
    "smoke": Preset(500, (10, 20), steps=(10, 40), step_sizes=(0.01, 0.1), clips=(0.3, 3.0)),
    "paper": PAPER,
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
    "long": RESULTS / "synthetic_long",
}


class Group(NamedTuple):
    """Methods that share data and directions: a spectrum `mode`, a dimension d and a seed. DP-GD is a group alone."""

    methods: tuple[str, ...]
    mode: str
    d: int
    seed: int


def paper_lanes(preset: Preset) -> Lanes:
    """Return the combinations of steps, step size and clip in the preset's grid, for the sweep engine, which calls each
    a lane. Each has the noise that makes its run (2, 1e-6)-DP when one record is replaced, as the paper states it."""
    gdp = float(paper_gdp(EPSILON, DELTA))
    return Lanes.grid(
        steps=preset.steps,
        step_sizes=preset.step_sizes,
        clips=preset.clips,
        noise_std=lambda steps, clip: noise_std(gdp, steps, clip, preset.n, "replace-one"),
    )


def drawn_on(device: str, key: Sequence[int], *shape: int) -> Draw:
    """Return a stream of standard normal numbers, drawn by a torch generator on `device`.

    All devices of one kind draw the same numbers. On a CPU torch uses 32 bits of a seed: two of 10^5 keys draw the same
    numbers with probability 0.7.

    Args:
        device: the device.
        key: integers that make the generator's seed.
        shape: the shape of each row.
    """
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    generator = torch.Generator(device).manual_seed(seed)
    return lambda count: torch.randn((count, *shape), generator=generator, dtype=torch.float64, device=generator.device)


def on_sphere(normals: Draw) -> Draw:
    """Return the stream `normals` with its rows scaled to length sqrt(d).

    If its rows are standard normal, the scaled ones are uniform on the sphere of radius sqrt(d).
    """

    def rows(count: int) -> Tensor:
        given = torch.as_tensor(normals(count))
        scaled: Tensor = given * (given.shape[1] ** 0.5 / given.square().sum(dim=1, keepdim=True).sqrt())
        return scaled

    return rows


def outcomes(group: Group, problem: Quadratic, lanes: Lanes, center: Array, device: str) -> list[engine.Outcome]:
    """Run every lane of each method with the group's noise and directions. The zeroth-order methods share their
    directions. A GPU draws its own random numbers, which are not those of a CPU. The engine also measures gradients and
    losses of the data whose mean is `center`."""
    d, x0 = problem.d, np.zeros(problem.d)

    def noise(vector: bool) -> Draw:
        shape = [d] if vector else []
        if device != "cpu":
            return drawn_on(device, [group.seed, 1], *shape)
        rng = np.random.default_rng([group.seed, 1])
        return lambda count: rng.standard_normal((count, *shape))

    options: dict[str, Any] = {"centers": [center], "dtype": torch.float64, "device": device}
    if group.methods == ("dpgd",):
        return [dpgd(problem, x0, lanes, noise=noise(True), product_dtype=torch.float32, **options)]
    vector = "dpgd-0th"
    each = [engine.Sweep(x0, lanes, method == vector, noise(method == vector)) for method in group.methods]
    directions = (
        directions_of("sphere", np.random.default_rng([group.seed, 0]), d)
        if device == "cpu"
        else on_sphere(drawn_on(device, [group.seed, 0], d))
    )
    return engine.run_together(problem, each, directions=directions, **options)


def run_group(group: Group, preset: Preset, device: str = "cpu") -> list[dict[str, Any]]:
    """Run a group on the grid of the preset, and return its rows. A value that is not finite is left empty, and the
    row's status is then `diverged`."""
    train, center, variances = samples(preset.n, group.d, group.seed)
    problem = Quadratic(train, paper_spectrum(group.mode, group.d))
    minima = (problem.minimum, 0.5 * float(problem.spectrum @ variances))
    found = [
        _measured(one, problem, center, minima) for one in outcomes(group, problem, paper_lanes(preset), center, device)
    ]
    values = [{name: of[name][lane] for name in of} for of in found for lane in range(len(paper_lanes(preset)))]
    return [_row(key, measured) for key, measured in zip(keys(group, preset), values, strict=True)]


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


def keys(group: Group, preset: Preset) -> Iterator[dict[str, Any]]:
    """Yield the key columns of a group's rows: for each method a row for each combination of the preset's grid."""
    lanes = paper_lanes(preset)
    for method in group.methods:
        for steps, step_size, clip in zip(lanes.steps, lanes.step_size, lanes.clip, strict=True):
            cell = (method, group.mode, group.d, "zero", "paper", group.seed)
            yield dict(zip(KEY, (*cell, int(steps), float(step_size), float(clip)), strict=True))


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
    """Make a committed row again, together with the shorter runs of its step size and clip, because the engine ends its
    blocks of steps wherever one of these runs ends. A run that enlarges rounding errors is made again with everything
    that was first made with it, because its digits depend on how many runs are computed at once."""
    group = Group((row["method"],), row["mode"], row["d"], row["seed"])
    enlarges = row["step_size"] * (paper_spectrum(row["mode"], row["d"]).sum() + 2) > 1
    if enlarges and row["method"] != "dpgd":
        return run_group(group._replace(methods=METHODS[:2]), preset)
    steps = tuple(steps for steps in preset.steps if steps <= row["steps"])
    return run_group(group, replace(preset, steps=steps, step_sizes=(row["step_size"],), clips=(row["clip"],)))


REMAKES = {
    "synthetic": Remake(KEY, partial(_again, PAPER)),
    "synthetic_long": Remake(KEY, partial(_again, PRESETS["long"])),
    "synthetic_dpgd": Remake(KEY, partial(_again, PAPER), tolerance=FOUR_DIGITS),
}


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)
    # with more threads, sums are added in another order, which changes runs that enlarge rounding errors
    one_thread(parser, options)
    if options.device != "cpu":
        options.workers = 1


def _groups(options: Namespace) -> Iterator[Group]:
    together = tuple(method for method in METHODS[:2] if method in options.methods)
    for seed in range(options.seeds):
        for methods in [together, *[("dpgd",)] * ("dpgd" in options.methods)]:
            for d in PRESETS[options.preset].dimensions if methods else ():
                yield from (Group(methods, mode, d, seed) for mode in options.modes)


def _told(group: Group, rows: Sequence[dict[str, Any]]) -> str:
    """Return the text that is printed after a group has been run: its mode, dimension and seed, and for each of its
    methods the smallest training gradient norm of a last iterate in the rows."""
    best: dict[str, float] = {}
    for row in rows:
        best[row["method"]] = min(row.get("gradient_train_last", np.inf), best.get(row["method"], np.inf))
    found = ", ".join(f"{name} {value:.4g}" for name, value in best.items())
    return f"mode {group.mode}, d = {group.d:,}, seed {group.seed}: best last gradient {found}"


def _measure(options: Namespace, group: Group) -> list[dict[str, Any]]:
    return run_group(group, PRESETS[options.preset], options.device)


EXPERIMENT = Experiment(
    name="synthetic",
    about=__doc__,
    flags=[
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--methods", nargs="+", action=Several, choices=METHODS, default=list(METHODS)),
        flag("--modes", nargs="+", action=Several, choices=MODES, default=list(MODES)),
        flag("--seeds", type=integer(1, 1000), default=1),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
    ],
    folder=lambda options: FOLDERS[options.preset],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    settings=lambda options: {
        "n": PRESETS[options.preset].n,
        "epsilon": EPSILON,
        "delta": DELTA,
        "relation": "replace-one",
        "noise": "seeded",
    },
    device=lambda options: str(options.device),
    compress=True,
    check=_check,
    cells=_groups,
    keys=lambda options, group: keys(group, PRESETS[options.preset]),
    measure=_measure,
    told=_told,
    workers=os.cpu_count() or 1,
    tolerant=True,
)

if __name__ == "__main__":
    from benchmarks.__main__ import main

    sys.exit(main(["synthetic", *sys.argv[1:]]))
