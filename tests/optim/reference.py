"""Algorithms 1 (DPGD-0th) and 2 (DPZero) of the paper and DP-GD, line by line in float64; faster code is tested against
these functions.

Each takes a problem with n, d and losses(x) or gradients(x) of all records; the standard deviation `noise_std` of the
noise on an average, as a number; `noise`, its source; and returns a `ReferenceRun`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory.check import Array
from dpzero_theory.optim.step.algorithm import clip_jointly
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.sphere import DIRECTIONS


@dataclass(frozen=True, eq=False)
class ReferenceRun:
    """The result of T steps.

    x_tau: the iterate x_t at t = tau, which is drawn uniformly from 0..T-1. last: x_T. trajectory: x_0..x_T, shape
    (T + 1, d), or None where it was not kept.
    """

    x_tau: Array
    tau: int
    last: Array
    trajectory: Array | None


def dpzero(
    problem: Any,
    x0: ArrayLike,
    *,
    smoothing: float,
    directions: Any,
    directions_per_step: int = 1,
    difference: str = "central",
    **options: Any,
) -> ReferenceRun:
    """Run Algorithm 2 with K directions a step: x <- x - (alpha/K) sum_k (M_k + z_k) u_k, z_k ~ N(0, sigma^2) scalars.

    M = (1/n) sum_i clip_C(s_i), where s_i in R^K holds the differences of record i along u_1..u_K, clipped jointly in
    L2 norm. directions: K vectors for each step in turn, or a Generator that draws them from sqrt(d) S^{d-1}. options:
    as in `_run`.
    """

    def step(x: Array, alpha: float, clip: float, draw: Callable[..., Any], us: list[Array]) -> Array:
        found = np.stack([differences(problem, x, u, smoothing, difference) for u in us], axis=1)
        clipped = clip_jointly(found, clip)
        released = np.array([scalars.mean() + draw(()) for scalars in np.ascontiguousarray(clipped.T)])
        updated: Array = x - alpha / directions_per_step * released @ np.stack(us)
        return updated

    return _run(problem, x0, step, directions, directions_per_step, **options)


def dpgd_0th(
    problem: Any, x0: ArrayLike, *, smoothing: float, directions: Any, difference: str = "central", **options: Any
) -> ReferenceRun:
    """Run Algorithm 1: x <- x - alpha ((1/n) sum_i clip_C(difference_i u) + z), z ~ N(0, sigma^2 I_d).

    As u is common to all records, clip_C(difference_i u) = clip_{C/||u||}(difference_i) u.
    """

    def step(x: Array, alpha: float, clip: float, draw: Callable[..., Any], us: list[Array]) -> Array:
        found = differences(problem, x, us[0], smoothing, difference)
        scalar = clip_jointly(found[:, None], clip / float(np.linalg.norm(us[0]))).mean()
        updated: Array = x - alpha * (scalar * us[0] + draw(problem.d))
        return updated

    return _run(problem, x0, step, directions, 1, **options)


def dpgd(problem: Any, x0: ArrayLike, **options: Any) -> ReferenceRun:
    """Run DP-GD: x <- x - alpha ((1/n) sum_i clip_C(grad f(x; xi_i)) + z), z ~ N(0, sigma^2 I_d)."""

    def step(x: Array, alpha: float, clip: float, draw: Callable[..., Any], us: list[Array]) -> Array:
        updated: Array = x - alpha * (clip_jointly(problem.gradients(x), clip).mean(axis=0) + draw(problem.d))
        return updated

    return _run(problem, x0, step, itertools.repeat(np.ones(problem.d)), 1, **options)


def two_point_difference(loss_plus: Array, loss_minus: Array, smoothing: float) -> Array:
    """The differences (f(x + lambda u; xi_i) - f(x - lambda u; xi_i))/(2 lambda) of eq:zo, shape (n,)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return (np.asarray(loss_plus, np.float64) - np.asarray(loss_minus, np.float64)) / (2 * smoothing)


def differences(problem: Any, x: Array, u: Array, smoothing: float, difference: str) -> Array:
    """The differences of all records along u at x, shape (n,), by a difference rule."""
    if difference == "exact":
        found: Array = problem.gradients(x) @ u
        return found
    below, width = (x - smoothing * u, smoothing) if difference == "central" else (x, smoothing / 2)
    return two_point_difference(problem.losses(x + smoothing * u), problem.losses(below), width)


def _run(
    problem: Any,
    x0: ArrayLike,
    step: Callable[..., Array],
    directions: np.random.Generator | Iterable[ArrayLike],
    several: int,
    *,
    steps: int,
    step_size: float,
    clip: float,
    noise_std: float,
    noise: NoiseSource,
    rng: np.random.Generator | None = None,
    keep: bool = True,
    callback: Callable[[int, Array], None] | None = None,
) -> ReferenceRun:
    """Iterate x_{t+1} = step(x_t, alpha, C, draw, the next K directions), where draw(size) gives noise.

    rng: draws tau. keep: whether to return the trajectory. callback: called with (t, x_t) for t = 0..T.
    """
    x = x_tau = np.asarray(x0, np.float64)
    tau = int((rng or np.random.default_rng()).integers(steps))
    trajectory = np.empty((steps + 1, problem.d)) if keep else None
    stream = _vectors(directions, problem.d)
    for t in range(steps + 1):
        if t > 0:
            chosen = list(itertools.islice(stream, several))
            assert len(chosen) == several
            x = step(x, step_size, clip, lambda size: noise.gaussian(noise_std, size), chosen)
        if t == tau:
            x_tau = x.copy()
        if trajectory is not None:
            trajectory[t] = x
        if callback is not None:
            callback(t, x.copy())
    return ReferenceRun(x_tau=x_tau, tau=tau, last=x, trajectory=trajectory)


def _vectors(directions: np.random.Generator | Iterable[ArrayLike], d: int) -> Iterator[Array]:
    if isinstance(directions, np.random.Generator):
        while True:
            yield DIRECTIONS["sphere"].sample(directions, 1, d)[0]
    for vector in directions:
        yield np.asarray(vector, np.float64)
