"""Algorithms 1 (DPGD-0th) and 2 (DPZero) of the paper and DP-GD, line by line in float64.

The reference that faster code is tested against. Each takes the noise standard deviation as a number: what
privacy it buys is the business of `dpzero_theory.privacy`. Whether a run is private at all depends on the
noise source: `noise.private`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory import check
from dpzero_theory.optim.estimator import clip_scalars, clip_vectors, two_point_difference
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.sphere import sample_sphere

__all__ = ["Directions", "LossFunction", "Run", "SmoothLossFunction", "dpgd", "dpgd_0th", "dpzero"]

Array = NDArray[np.float64]
Directions = np.random.Generator | Iterable[ArrayLike]
Callback = Callable[[int, Array], None]


class LossFunction(Protocol):
    """A per-sample loss f(x; xi_i) on R^d, i = 1..n."""

    @property
    def n(self) -> int: ...
    @property
    def d(self) -> int: ...
    def losses(self, x: Array) -> Array:
        """f(x; xi_i) for every i, shape (n,)."""


class SmoothLossFunction(LossFunction, Protocol):
    def gradients(self, x: Array) -> Array:
        """Gradients of f(x; xi_i) for every i, shape (n, d)."""


@dataclass(frozen=True, eq=False)
class Run:
    """What an algorithm returns.

    x_tau: the output, shape (d,), with tau uniform on 0..T-1; last: x_T; trajectory: x_0..x_T, shape
    (T + 1, d), or None where it was not kept.
    """

    x_tau: Array
    tau: int
    last: Array
    trajectory: Array | None


def dpzero(
    problem: LossFunction,
    x0: ArrayLike,
    *,
    steps: int,
    step_size: float,
    smoothing: float,
    clip: float,
    noise_std: float,
    noise: NoiseSource,
    directions: Directions,
    rng: np.random.Generator | None = None,
    keep: bool = True,
    callback: Callback | None = None,
) -> Run:
    """Run Algorithm 2: x <- x - alpha ((1/n) sum_i clip_C(difference_i) + z) u, z ~ N(0, sigma^2) a scalar.

    problem: n, d and losses(x) of shape (n,); x0: shape (d,); steps: T >= 1; step_size: alpha > 0; smoothing:
    lambda > 0; clip: C > 0; noise_std: sigma >= 0, of the released average; noise: where z comes from;
    directions: u_0..u_{T-1} as an array of shape (T, d) or any iterable of at least T vectors, or a Generator
    to draw them from sqrt(d) S^{d-1}; rng: draws tau (public; fresh entropy if None); keep: whether to return
    the trajectory; callback: called with (t, x_t) for t = 0..T, the array being the callback's to keep.
    Raises ValueError.
    """
    start, count = _start(problem, x0), check.integer("steps", steps)
    width = check.real("smoothing", smoothing, above=0)
    sigma = check.real("noise_std", noise_std, at_least=0)
    alpha = check.real("step_size", step_size, above=0)
    check.real("clip", clip, above=0)
    stream = _stream(directions, count, problem.d)

    def step(x: Array) -> Array:
        u = next(stream)
        difference = two_point_difference(_losses(problem, x + width * u), _losses(problem, x - width * u), width)
        z = noise.gaussian(sigma)
        updated: Array = x - alpha * (clip_scalars(difference, clip).mean() + z) * u
        return updated

    return _run(step, start, count, rng, keep, callback)


def dpgd_0th(
    problem: LossFunction,
    x0: ArrayLike,
    *,
    steps: int,
    step_size: float,
    smoothing: float,
    clip: float,
    noise_std: float,
    noise: NoiseSource,
    directions: Directions,
    rng: np.random.Generator | None = None,
    keep: bool = True,
    callback: Callback | None = None,
) -> Run:
    """Run Algorithm 1: x <- x - alpha ((1/n) sum_i clip_C(difference_i u) + z), z ~ N(0, sigma^2 I_d).

    clip bounds the norm of the estimator; since it is difference_i times one common u,
    clip_C(difference_i u) = clip_{C/||u||}(difference_i) u, and no (n, d) array is formed. Arguments as
    `dpzero`. Raises ValueError.
    """
    start, count = _start(problem, x0), check.integer("steps", steps)
    width = check.real("smoothing", smoothing, above=0)
    sigma = check.real("noise_std", noise_std, at_least=0)
    alpha = check.real("step_size", step_size, above=0)
    check.real("clip", clip, above=0)
    stream = _stream(directions, count, problem.d)

    def step(x: Array) -> Array:
        u = next(stream)
        difference = two_point_difference(_losses(problem, x + width * u), _losses(problem, x - width * u), width)
        z = noise.gaussian(sigma, problem.d)
        updated: Array = x - alpha * (clip_scalars(difference, clip / float(np.linalg.norm(u))).mean() * u + z)
        return updated

    return _run(step, start, count, rng, keep, callback)


def dpgd(
    problem: SmoothLossFunction,
    x0: ArrayLike,
    *,
    steps: int,
    step_size: float,
    clip: float,
    noise_std: float,
    noise: NoiseSource,
    rng: np.random.Generator | None = None,
    keep: bool = True,
    callback: Callback | None = None,
) -> Run:
    """Run DP-GD: x <- x - alpha ((1/n) sum_i clip_C(grad f(x; xi_i)) + z), z ~ N(0, sigma^2 I_d).

    problem: also gradients(x) of shape (n, d). Other arguments as `dpzero`. Raises ValueError.
    """
    start, count = _start(problem, x0), check.integer("steps", steps)
    sigma = check.real("noise_std", noise_std, at_least=0)
    alpha = check.real("step_size", step_size, above=0)
    check.real("clip", clip, above=0)

    def step(x: Array) -> Array:
        gradients = problem.gradients(x)
        if gradients.shape != (problem.n, problem.d):
            raise ValueError(f"gradients must have shape (n, d) = {(problem.n, problem.d)}; got {gradients.shape}")
        z = noise.gaussian(sigma, problem.d)
        updated: Array = x - alpha * (clip_vectors(gradients, clip).mean(axis=0) + z)
        return updated

    return _run(step, start, count, rng, keep, callback)


def _run(
    step: Callable[[Array], Array],
    start: Array,
    steps: int,
    rng: np.random.Generator | None,
    keep: bool,
    callback: Callback | None,
) -> Run:
    tau = int((np.random.default_rng() if rng is None else rng).integers(steps))
    trajectory = np.empty((steps + 1, start.size)) if keep else None
    x = x_tau = start
    for t in range(steps + 1):
        if t > 0:
            x = step(x)
        if t == tau:
            x_tau = x.copy()
        if trajectory is not None:
            trajectory[t] = x
        if callback is not None:
            callback(t, x.copy())
    return Run(x_tau=x_tau, tau=tau, last=x, trajectory=trajectory)


def _start(problem: LossFunction, x0: ArrayLike) -> Array:
    start = check.real_array("x0", x0)
    if start.shape != (problem.d,):
        raise ValueError(f"x0 must have shape (d,) = ({problem.d},); got {start.shape}")
    return start


def _losses(problem: LossFunction, x: Array) -> Array:
    losses = problem.losses(x)
    if losses.shape != (problem.n,):
        raise ValueError(f"losses must have shape (n,) = ({problem.n},); got {losses.shape}")
    return losses


def _stream(directions: Directions, steps: int, d: int) -> Iterator[Array]:
    if isinstance(directions, np.ndarray) and directions.shape != (steps, d):
        raise ValueError(f"directions must have shape (T, d) = {(steps, d)}; got {directions.shape}")
    return _vectors(directions, steps, d)


def _vectors(directions: Directions, steps: int, d: int) -> Iterator[Array]:
    if isinstance(directions, np.random.Generator):
        for _ in range(steps):
            yield sample_sphere(directions, 1, d)[0]
        return
    vectors = iter(directions)
    for t in range(steps):
        vector = next(vectors, None)
        if vector is None:
            raise ValueError(f"directions must hold T = {steps} vectors; got {t}")
        u = check.real_array("directions", vector)
        if u.shape != (d,) or not u.any():
            raise ValueError(f"each direction must be a non-zero vector of shape ({d},); got shape {u.shape}")
        yield u
