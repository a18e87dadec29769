"""What the paper's synthetic experiment gives with any number of steps.  python -m benchmarks.limit

The grid of `benchmarks.synthetic` ends at T = 5,120 steps, and DPZero's best x_tau is at that end for every spectrum
and dimension. Here T goes to infinity with alpha T fixed, where alpha is the step size
(`benchmarks.problems.small_steps`), at the same privacy, on the same samples, from x_0 = 0. There is one row for each
alpha T and clip C, in a grid that is wide enough for the best to be inside it. The grid is made of values of the length
alpha T C, on which alone the result depends if every sample is clipped. `benchmarks.selection` has the best of these
rows as the sweep `limit`, with T = 0 and with alpha T as the step size. Noise comes from seeds: no row is a private
release.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.remake import FOUR_DIGITS, Remake, Row
from benchmarks.kit.tables import rounded
from benchmarks.problems.small_steps import many_small_steps
from benchmarks.sweeps.synthetic import DELTA, EPSILON, PRESETS, samples
from dpzero_theory.cli import Several, integer
from dpzero_theory.privacy.gaussian import paper_gdp
from dpzero_theory.synthetic.problems import MODES, Quadratic, paper_spectrum

PAPER = PRESETS["paper"]
METHODS = ("dpzero", "dpgd-0th")
LENGTHS = tuple(2.5 * 2 ** (k / 2) for k in range(23))
CLIPS = (0.01, 0.3, 1.0, 3.0)
"""The clips of DPZero's scalar finite difference that are tried; those of DPGD-0th's vector are sqrt(d) times as
large."""
CELL_KEY = ("method", "mode", "d", "start", "calibration", "seed")
KEY = (*CELL_KEY, "time", "clip")
FIELDS = ("gradient_train_last", "gradient_train_tau")


def _keys(method: str, mode: str, d: int, seed: int) -> Iterator[dict[str, Any]]:
    scale = math.sqrt(d) if method == "dpgd-0th" else 1.0
    for length, clip in product(LENGTHS, CLIPS):
        values = (method, mode, d, "zero", "paper", seed, rounded(length / clip), rounded(clip * scale))
        yield dict(zip(KEY, values, strict=True))


def run_cell(method: str, mode: str, d: int, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a method on the quadratic with the spectrum `mode` in dimension d, with one seed: one row for
    each alpha T (step size times number of steps) and clip."""
    train, _, _ = samples(PAPER.n, d, seed)
    problem = Quadratic(train, paper_spectrum(mode, d))
    length, clip = np.array(list(product(LENGTHS, CLIPS))).T
    scale = math.sqrt(d) if method == "dpgd-0th" else 1.0
    rng = np.random.default_rng([seed, 1])
    outcome = many_small_steps(
        problem,
        np.zeros(d),
        time=length / clip,
        clip=clip,
        noise=2 * scale * length / (PAPER.n * float(paper_gdp(EPSILON, DELTA))),
        normals=lambda count: rng.standard_normal((count, d)),
        product_dtype=torch.float32,
    )
    last = np.linalg.norm((outcome.last - problem.center) * problem.spectrum, axis=1)
    return [
        {**key, "gradient_train_last": rounded(end), "gradient_train_tau": rounded(math.sqrt(squared))}
        for key, end, squared in zip(_keys(method, mode, d, seed), last, outcome.gradient_squared, strict=True)
    ]


def _again(row: Row) -> list[dict[str, Any]]:
    return run_cell(row["method"], row["mode"], row["d"], row["seed"])


REMAKES = {"limit": Remake(KEY, _again, elsewhere=FOUR_DIGITS)}


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    return run_cell(**at)


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    best = ", ".join(f"{name.split('_')[-1]} {min(row[name] for row in rows):.4g}" for name in FIELDS)
    return f"{at['method']}, mode {at['mode']}, d = {at['d']:,}, seed {at['seed']}: best {best}"


EXPERIMENT = Experiment(
    name="limit",
    about=__doc__,
    flags=[
        flag("--methods", nargs="+", action=Several, choices=METHODS, default=list(METHODS)),
        flag("--seeds", type=integer(1, 1000), default=3),
    ],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    dtype="float64, products float32",
    settings={"n": PAPER.n, "epsilon": EPSILON, "delta": DELTA, "relation": "replace-one", "noise": "seeded"},
    cell=CELL_KEY,
    figure="figures.synthetic",
    check=one_thread,
    cells=lambda options: (
        {"method": method, "mode": mode, "d": d, "seed": seed}
        for seed, method, d, mode in product(range(options.seeds), options.methods, PAPER.dimensions, MODES)
    ),
    keys=lambda options, at: _keys(**at),
    measure=_measure,
    told=_told,
)
