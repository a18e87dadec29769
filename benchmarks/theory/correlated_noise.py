"""What noise correlated over steps gains where directions are used again.  python -m benchmarks.correlated_noise

The loss is the quadratic x'Hx/2 in 64 or 1,024 dimensions, H with eigenvalues 1/j. A run makes 128 steps with one
direction each and no clipping; it takes its directions, uniform on the sphere, in turn from a pool of P. With P = 128
none is used twice. Every record is used in one step only, so the privacy of Gaussian noise with covariance S over the
steps is the largest diagonal entry of S^-1. A gain is the mean over the run of the squared gradient that comes from the
noise, with independent noise, over that with correlated noise of the same privacy. Two kinds of noise are correlated:

    known     the best for the directions of the pool, which must then be fixed before the noise is drawn;
    unknown   the best for the mean over 32 other pools, which knows the number P alone.

`gain_known` is that of a covariance that was found, so it is attained; no covariance has more than `gain_bound`, by the
dual of the problem. `runs_known` is the same gain measured on 400 runs of the algorithm with either noise, from the
minimum. `signal` is the mean squared gradient without any noise from a start drawn at random, over that at the start:
what a small pool cannot learn. Full batches are not here, since section 13 of the sharpened theorem's proof
bounds their gain by pi/2.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, Experiment
from benchmarks.kit.remake import Remake
from dpzero_theory.check import Array
from dpzero_theory.sphere import DIRECTIONS

STEPS = 128
# By the dimension d, the numbers of directions in a pool
POOLS = {64: (1, 2, 4, 8, 16, 32, 64, 128), 1024: (1, 16, 128)}
SEEDS = {64: range(12), 1024: range(4)}
TRAINING, RUNS, ROUNDS = 32, 400, 80
"""Pools that the unknown noise is the best for; runs for a measured gain; steps of the search for the best noise."""
FIELDS = ("gain_known", "gain_bound", "gain_unknown", "runs_known", "runs_error", "signal")


def quadratic(d: int) -> tuple[Array, float]:
    """Return the diagonal of H in d dimensions, and the step size 1/(2 (r + 2)), where r is its effective rank."""
    curvature = 1 / np.arange(1, d + 1)
    return curvature, 0.5 / (float(curvature.sum()) + 2)


def pool(d: int, size: int, rng: np.random.Generator) -> Array:
    """Draw `size` directions, uniform on the sphere of radius sqrt(d) in R^d, and return the direction of each step,
    shape (STEPS, d): the steps take the drawn ones in turn."""
    drawn = DIRECTIONS["sphere"].sample(rng, size, d)
    return np.asarray(drawn[np.arange(STEPS) % size])


def workload(directions: Array) -> Array:
    """Return the matrix W, shape (STEPS, STEPS), for which tr(W S) is the mean squared gradient over the iterates of a
    run with these directions that comes from noise of covariance S."""
    curvature, step_size = quadratic(directions.shape[1])
    total, reach = np.zeros((STEPS, STEPS)), np.zeros((len(curvature), STEPS))
    for t, u in enumerate(directions):
        reach -= step_size * np.outer(u, (u * curvature) @ reach)
        reach[:, t] = -step_size * u
        gradients = curvature[:, None] * reach
        total += gradients.T @ gradients / STEPS
    return total


def best_noise(matrix: Array) -> tuple[Array, float]:
    """Return a covariance S with diag(S^-1) <= 1 that makes tr(matrix S) nearly least, and a lower bound on the least.

    Let v > 0 be weights of the steps with sum 1, D = diag(v) and R = (D^1/2 matrix D^1/2)^1/2. Among all S for which
    the mean of diag(S^-1) by these weights is at most 1, the least tr(matrix S) is (tr R)^2, attained by a multiple of
    S = D^1/2 R^-1 D^1/2, where diag(S^-1) = diag(R)/v. So (tr R)^2 is a lower bound, and it is attained once diag(R)/v
    is constant. The search replaces v by diag(R) over its sum, again and again.
    """
    v, bound = np.full(STEPS, 1 / STEPS), 0.0
    for _ in range(ROUNDS):
        root = _root(np.sqrt(v)[:, None] * matrix * np.sqrt(v))
        bound = max(bound, float(np.trace(root)) ** 2)
        v = np.maximum(np.diag(root), 1e-12)
        v /= v.sum()
    scale = np.sqrt(v)
    inverse = _root(scale[:, None] * matrix * scale) / np.outer(scale, scale)
    covariance = np.linalg.inv(inverse) * float(np.diag(inverse).max())
    return (covariance + covariance.T) / 2, bound


def _root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    root: Array = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return root


@cache
def unknown_noise(d: int, size: int) -> Array:
    """Return the covariance of the steps' noise, shape (STEPS, STEPS), that is best (`best_noise`) for the mean of the
    matrices `workload` of `TRAINING` pools. A pool has `size` directions in d dimensions, which the steps of a run take
    in turn (`pool`). These pools are drawn with a seed of their own, so that no pool that is measured is among them."""
    rng = np.random.default_rng([d, size, 10**6])
    return best_noise(
        sum((workload(pool(d, size, rng)) for _ in range(TRAINING)), np.zeros((STEPS, STEPS))) / TRAINING
    )[0]


def measure(options: Namespace, cell: Cell) -> dict[str, Any]:
    """Return the row of a pool: it has `cell["pool"]` directions in `cell["d"]` dimensions, and is drawn with the seed
    `cell["seed"]`."""
    d, size = cell["d"], cell["pool"]
    rng = np.random.default_rng([d, size, cell["seed"]])
    directions = pool(d, size, rng)
    matrix = workload(directions)
    independent = float(np.trace(matrix))
    known, least = best_noise(matrix)
    plain, correlated = (
        squares(directions, np.zeros((RUNS, d)), rng.standard_normal((RUNS, STEPS)) @ np.linalg.cholesky(s).T)
        for s in (np.eye(STEPS), known)
    )
    ratio = plain.mean() / correlated.mean()
    spread = math.hypot(plain.std() / plain.mean(), correlated.std() / correlated.mean()) / math.sqrt(RUNS)
    start = rng.standard_normal((1, d))
    signal = squares(directions, start, np.zeros((1, STEPS))).mean() / float(np.sum((quadratic(d)[0] * start) ** 2))
    return {
        "gain_known": independent / float(np.sum(matrix * known)),
        "gain_bound": independent / least,
        "gain_unknown": independent / float(np.sum(matrix * unknown_noise(d, size))),
        "runs_known": float(ratio),
        "runs_error": float(ratio * spread),
        "signal": float(signal),
    }


def squares(directions: Array, start: Array, noise: Array) -> Array:
    """Make a run from each row of `start`, shape (runs, d), with the noise in the same row of `noise`, shape (runs,
    STEPS), and the same directions in all, shape (STEPS, d). Returns each run's mean of ||Hx||^2 over its iterates
    after the start."""
    curvature, step_size = quadratic(directions.shape[1])
    x, total = start.copy(), np.zeros(len(start))
    for u, z in zip(directions, noise.T, strict=True):
        x = x - step_size * np.outer((x * curvature) @ u + z, u)
        total += np.sum((x * curvature) ** 2, axis=1) / STEPS
    return total


def _cells(options: Namespace) -> Iterator[Cell]:
    yield from ({"d": d, "pool": size, "seed": seed} for d in POOLS for size in POOLS[d] for seed in SEEDS[d])


KEY = ("d", "pool", "seed")
REMAKES = {
    "correlated_noise": Remake(KEY, lambda row: [{**{k: row[k] for k in KEY}, **measure(Namespace(), dict(row))}])
}
EXPERIMENT = Experiment(
    name="correlated_noise",
    about=__doc__,
    key=KEY,
    fields=FIELDS,
    seeds=SEEDS[64],
    figure="figures.correlated_noise",
    cells=_cells,
    measure=measure,
    told=lambda cell, rows: f"d = {cell['d']}, pool of {cell['pool']}: gain {rows[0]['gain_known']:.3f}",
)
