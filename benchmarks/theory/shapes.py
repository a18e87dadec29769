"""What directions of another shape B^(1/2) u gain on the paper's quadratics.  python -m benchmarks.shapes

The losses are (x - x_i)'A (x - x_i)/2 with 50 dimensions, 10,000 records and the spectra of the paper's modes (a) to
(c): 1, 1/sqrt(j), 1/j. A run has (2, 1e-6)-DP, 300 steps of 16 Gaussian directions and no clipping: the clip is the
largest norm of a record's gradient at the start after B^(1/2), times 4. What is measured is E F(x_T) - F* at the last
iterate over F(x_0) - F*, and the mean of E ||grad F||^2 over the run over its value at the start, both exactly, by the
recursion for second moments, each with its best step size of a grid. B is A^power, or estimated from the gradients of
`public` records at the start, as the power/2 of their covariance, with 1% of its mean eigenvalue added to all. Where
`public` is 0, nothing is estimated: B is A^power.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, Experiment
from benchmarks.kit.remake import Remake
from dpzero_theory.check import Array
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.synthetic.problems import MODES, paper_spectrum

D, N, K, STEPS = 50, 10_000, 16, 300
POWERS = (-1.0, -0.5, 0.0, 0.5, 1.0)
PUBLIC = (0, 50, 1000)
SEEDS = range(3)
STEP_SIZES = np.geomspace(0.02, 1.5, 10)
"""Step sizes in units of 1/(tr(B A)/K + ||B A||), the scale of the largest that do not diverge."""
KEY = ("mode", "power", "public", "seed")
FIELDS = ("height", "gradient", "step_size", "rank")


def measure(options: Namespace, cell: Cell) -> dict[str, Any]:
    """Return the row of a shape, with H = B^(1/2) A B^(1/2): the least height and the least squared gradient over the
    step sizes of the grid, both over their values at the start; the step size of the least height, in units of
    1/(tr(H)/K + ||H||); and the effective rank tr(H)/||H||."""
    rng = np.random.default_rng(cell["seed"])
    spectrum = paper_spectrum(cell["mode"], D)
    records = rng.standard_normal((N, D)) + 1
    public = rng.standard_normal((max(cell["public"], 2), D)) + 1
    center = records.mean(axis=0)
    root = _shape_root(spectrum, cell["power"], public * spectrum if cell["public"] else None)
    curvature = root @ np.diag(spectrum) @ root
    steepest = float(np.linalg.norm((records * spectrum) @ root, axis=1).max())
    mu = float(gdp_from_epsilon(2, 1e-6))
    variance = 4 * STEPS * steepest**2 / (N * mu) ** 2
    start = np.linalg.solve(root, -center)
    unit = 1 / (float(np.trace(curvature)) / K + float(np.linalg.norm(curvature, 2)))
    weights = np.linalg.inv(root) @ curvature
    found = [moments(curvature, start, variance, share * unit, weights) for share in STEP_SIZES]
    height, gradient = np.array(found).T
    return {
        "height": float(height.min()),
        "gradient": float(gradient.min()),
        "step_size": float(STEP_SIZES[height.argmin()]),
        "rank": float(np.trace(curvature) / np.linalg.norm(curvature, 2)),
    }


def _shape_root(spectrum: Array, power: float, gradients: Array | None) -> Array:
    """Return B^(1/2), where B is A^power, or an estimate of it from public gradients.

    spectrum: the diagonal of A. gradients: of public records at the start, as rows, or None for no estimate. Their
    covariance estimates A^2, so its power power/4 estimates B^(1/2).
    """
    if gradients is None:
        return np.diag(spectrum ** (power / 2))
    values, vectors = np.linalg.eigh(np.cov(gradients.T))
    root: Array = (vectors * (np.maximum(values, 0) + 0.01 * values.mean()) ** (power / 4)) @ vectors.T
    return root


def moments(curvature: Array, start: Array, variance: float, step_size: float, weights: Array) -> tuple[float, float]:
    """Return E F(x_T) - F* over its value at the start, and the mean over the T = STEPS steps of E ||weights w||^2 over
    its value at the start; both are infinite if the run diverges.

    w is the distance from the minimum in the coordinates of the directions u, in which the loss is w'H w/2 with H =
    `curvature`. `start` is w at the start, `weights` the matrix that turns w into grad F, and `variance` sigma^2/K. For
    W = U U'/K of Gaussian directions and symmetric M, E[W M W] is (1 + 1/K) M + tr(M) I/K.
    """
    second, total = np.outer(start, start), 0.0
    first = float(start @ curvature @ start), float(np.sum((weights @ start) ** 2))
    square, kept = weights.T @ weights, np.eye(len(start)) - step_size * curvature
    for _ in range(STEPS):
        total += float(np.sum(square * second)) / STEPS
        pulled = curvature @ second @ curvature
        second = kept @ second @ kept + step_size**2 / K * pulled
        second[np.diag_indices(len(second))] += step_size**2 * (float(np.trace(pulled)) / K + variance)
        if not 0 <= np.trace(second) < 1e3 * float(start @ start):  # the run diverges
            return math.inf, math.inf
    return float(np.sum(curvature * second)) / first[0], total / first[1]


def _cells(options: Namespace) -> Iterator[Cell]:
    for mode in MODES:
        for power in POWERS if mode != "a" else (0.0,):
            for public in PUBLIC if power else (0,):
                yield from ({"mode": mode, "power": power, "public": public, "seed": seed} for seed in SEEDS)


REMAKES = {"shapes": Remake(KEY, lambda row: [{**{k: row[k] for k in KEY}, **measure(Namespace(), dict(row))}])}
EXPERIMENT = Experiment(
    name="shapes",
    about=__doc__,
    key=KEY,
    fields=FIELDS,
    seeds=SEEDS,
    cells=_cells,
    measure=measure,
    told=lambda cell, rows: f"mode {cell['mode']}, power {cell['power']:g}: height {rows[0]['height']:.4g}",
)
