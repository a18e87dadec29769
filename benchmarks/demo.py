"""The main job in one command: `python -m benchmarks demo` (or `make demo`).

1. It prints what the calculator prescribes at the paper's synthetic setting. 2. It trains logistic regression on
scikit-learn's digits under (epsilon, delta)-DP, with the parameters of Theorem 3 and of its sharpened version and with
noise from the operating system, and prints the measured ||grad F||^2 beside the certified bound. 3. It sweeps the
paper's quadratic over the dimension; rows and the picture of the rate are in out/demo/.
"""

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import Results, discard
from benchmarks.problems.lipschitz import LogisticRegression
from dpzero_theory import params
from dpzero_theory.cli import Parser, output_folder
from dpzero_theory.datasets import binary_digits
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.noise import SystemNoise
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Lanes, directions_of
from dpzero_theory.synthetic.problems import Quadratic, gaussian_data, paper_spectrum
from dpzero_theory.theory import theorems
from dpzero_theory.theory.noise import noise_std
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp import certificate as sharp
from tests.optim import reference

EPSILON, DELTA = 2.0, 1e-6
DIMENSIONS = (20, 50, 100, 200, 500)
MODES = ("a", "c")
KEY = ("mode", "d", "method")
GRID_STEPS = (40, 160, 640, 2560)
GRID_STEP_SIZES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
GRID_CLIPS = (1.0, 3.0, 10.0, 30.0, 100.0)

Array = NDArray[np.float64]


def calculator() -> None:
    """Do step 1: print what the calculator prescribes at n = 10,000, d = 2,000, eigenvalues 1/i, and (2, 1e-6)-DP."""
    command = f"--n 10000 --epsilon {EPSILON:g} --delta {DELTA:g} --d 2000 --r 8.178 --result theorem-3 theorem-3-sharp"
    print(f"\n1. python -m dpzero_theory.params {command}\n")
    params.main(command.split())


def train() -> None:
    """Do step 2: run DPZero on digits with the prescribed parameters, and print the measured ||grad F||^2 beside the
    certified bound."""
    features, labels = binary_digits()
    loss = LogisticRegression(features, labels)
    x0 = np.zeros(loss.d)
    problem = Problem(
        n=loss.n,
        d=loss.d,
        r=loss.r,
        lipschitz=loss.lipschitz,
        smoothness=loss.smoothness,
        gap=loss.gap(x0),
        loss_bound=2 * loss.gap(x0),
    )
    gdp = float(gdp_from_epsilon(EPSILON, DELTA))
    paper = theorems.displayed("theorem-3", problem, gdp)
    ours = sharp.prescribe(problem, gdp, max_steps=paper.steps)
    print(f"\n2. Private logistic regression on digits: n = {loss.n}, d = {loss.d}, L = 1, ell = 1/4, r = 1,")
    print(f"   (epsilon, delta) = ({EPSILON:g}, {DELTA:g}), replace-one, full batches, noise of the operating system\n")
    print(f"   at the start: ||grad F||^2 = {_square(loss.gradient(x0)):.2e}, accuracy {_accuracy(loss, x0):.1%}\n")
    print("                          steps   clip  sigma    certified   measured E over tau   last     accuracy")
    for name, prescription in (("Theorem 3", paper), ("Theorem 3, sharpened", ours)):
        mean, last = _run(loss, x0, prescription)
        print(
            f"   {name:<20} {prescription.steps:>7,} {prescription.clip:>6.2f} {prescription.noise_std:>6.3f} "
            f"{prescription.bound_at_steps:>11.4g} {mean:>15.3e} {_square(loss.gradient(last)):>14.2e} "
            f"{_accuracy(loss, last):>8.1%}"
        )


def _run(loss: LogisticRegression, x0: Array, p: Prescription) -> tuple[float, Array]:
    """Run DPZero on the mean of `loss` from x0 with the prescribed parameters p and noise from the operating system.
    Returns the mean of ||grad F(x_t)||^2 over t = 0..T-1, which is its expectation at a uniformly random step, and the
    last iterate x_T."""
    total = 0.0

    def measure(t: int, x: Array) -> None:
        nonlocal total
        if t < p.steps:
            total += _square(loss.gradient(x))
        if sys.stderr.isatty() and t % 500 == 0:
            print(f"\r   step {t:,} of {p.steps:,}", end="\r", file=sys.stderr)

    run = reference.dpzero(
        loss,
        x0,
        steps=p.steps,
        step_size=p.step_size,
        smoothing=p.smoothing,
        clip=p.clip,
        noise_std=p.noise_std,
        noise=SystemNoise(),
        directions=np.random.default_rng(0),
        keep=False,
        callback=measure,
    )
    return total / p.steps, run.last


def _square(vector: Array) -> float:
    return float(vector @ vector)


def _accuracy(loss: LogisticRegression, x: Array) -> float:
    """Return the share of training samples that the weights x classify correctly; a sample on the boundary counts
    half."""
    return float((np.sign(loss.margins(x)) + 1).mean() / 2)


def sweep(folder: Path) -> None:
    """Do step 3: run the methods on the paper's quadratic loss for several spectra (modes) and dimensions. Saves in
    `folder` a row for each method, with its smallest gradient norm over a small grid of parameters."""
    print(f"\n3. The paper's quadratic, n = 10,000, ({EPSILON:g}, {DELTA:g}): best of a small grid for each dimension")
    print("   (one seed; the full grid, all methods and five seeds: python -m benchmarks synthetic)\n")
    discard(folder)
    with Results(folder, key=KEY, fields=("gradient_norm",), seeds=[1], device="cpu", dtype="float64") as results:
        rng = np.random.default_rng(1)
        for mode in MODES:
            for d in DIMENSIONS:
                best = _best(mode, d, rng)
                results.add({"mode": mode, "d": d, "method": name, "gradient_norm": x} for name, x in best.items())
                print(f"   mode ({mode}), d = {d:>3}: " + ", ".join(f"{name} {x:.3g}" for name, x in best.items()))


def _best(mode: str, d: int, rng: np.random.Generator) -> dict[str, float]:
    """Return for each method, "DPZero" and "DPGD-0th", the smallest gradient norm of the last iterate over the grid of
    steps, step sizes and clips, on the quadratic with the spectrum `mode` ("a", "b" or "c") in dimension d. `rng` draws
    data, directions and noise."""
    gdp = float(gdp_from_epsilon(EPSILON, DELTA))
    problem = Quadratic(gaussian_data(rng, 10_000, d), paper_spectrum(mode, d))
    lanes = Lanes.grid(
        steps=GRID_STEPS,
        step_sizes=GRID_STEP_SIZES,
        clips=GRID_CLIPS,
        noise_std=lambda steps, clip: noise_std(gdp, steps, clip, 10_000, "replace-one"),
    )
    methods: dict[str, tuple[Callable[..., engine.Outcome], bool]] = {
        "DPZero": (engine.dpzero, False),
        "DPGD-0th": (engine.dpgd_0th, True),
    }
    best = {}
    for name, (method, vector) in methods.items():
        outcome = method(
            problem,
            np.zeros(d),
            lanes,
            directions=directions_of("sphere", rng, d),
            noise=lambda k, vector=vector: rng.standard_normal((k, d) if vector else k),
        )
        best[name] = float(np.linalg.norm(problem.spectrum * (outcome.last - problem.center), axis=1).min())
    return best


def draw(folder: Path) -> Path:
    """Draw the rows in `folder` with the command `figures.demo`, which saves the picture there, and return the
    picture's path."""
    subprocess.run([sys.executable, "-m", "figures.demo", "--rows", str(folder), "--out", str(folder)], check=True)
    return folder / "rate_vs_dimension.png"


def _body(parser: Parser, options: Namespace) -> int:
    start = time.perf_counter()
    calculator()
    train()
    sweep(options.out)
    picture = draw(options.out)
    print(f"\nThe figure is {picture}. {time.perf_counter() - start:.0f} s in all.")
    return 0


EXPERIMENT = Command(
    "demo",
    __doc__,
    _body,
    [flag("--out", type=output_folder, default="out/demo", help="folder of rows and picture (default out/demo)")],
)
