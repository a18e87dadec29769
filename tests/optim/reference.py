"""Algorithms 1 (DPGD-0th) and 2 (DPZero) of the paper and DP-GD, line by line in float64.

Faster code is tested against these functions. Each takes the standard deviation of the noise as a number; what privacy
that buys is computed in `dpzero_theory.privacy`. Whether a run is private at all depends on its noise source
(`noise.private`).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NotRequired, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import require_smoothing
from dpzero_theory.optim.step.algorithm import clip_jointly, clip_scalars, clip_vectors
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.sphere import sample_sphere

Directions = np.random.Generator | Iterable[ArrayLike]
Callback = Callable[[int, Array], None]
Draw = Callable[[int | None], Any]
"""A function from a number of coordinates (None for a scalar) to noise of standard deviation sigma."""


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
class ReferenceRun:
    """The result of a reference algorithm after T steps.

    x_tau: the output, shape (d,): the iterate x_t at t = tau, which is drawn uniformly from 0..T-1. last: x_T.
    trajectory: x_0..x_T, shape (T + 1, d), or None where it was not kept.
    """

    x_tau: Array
    tau: int
    last: Array
    trajectory: Array | None


class Options(TypedDict):
    """The arguments that the three algorithms `dpzero`, `dpgd_0th` and `dpgd` have in common.

    steps: T >= 1. step_size: alpha > 0. clip: C > 0. noise_std: sigma >= 0, of the released average. noise: the source
    of the noise. rng: draws tau, which is public; with fresh entropy if None. keep: whether to return the trajectory,
    as is the default. callback: called with (t, x_t) for t = 0..T; it may keep the array.
    """

    steps: int
    step_size: float
    clip: float
    noise_std: float
    noise: NoiseSource
    rng: NotRequired[np.random.Generator | None]
    keep: NotRequired[bool]
    callback: NotRequired[Callback | None]


def dpzero(
    problem: LossFunction,
    x0: ArrayLike,
    *,
    smoothing: float,
    directions: Directions,
    directions_per_step: int = 1,
    difference: str = "central",
    **options: Unpack[Options],
) -> ReferenceRun:
    """Run Algorithm 2 with K directions a step: x <- x - (alpha/K) sum_k (M_k + z_k) u_k, z_k ~ N(0, sigma^2) scalars.

    M = (1/n) sum_i clip_C(s_i), where s_i in R^K holds the differences of record i along u_1..u_K, clipped jointly in
    L2 norm. K = 1 is the paper's algorithm.

    Args:
        problem: has n, d and the method losses(x), of shape (n,); for exact differences gradients(x), of shape
            (n, d), in its place.
        x0: the first iterate, shape (d,).
        smoothing: lambda > 0; 0 for exact differences.
        directions: K vectors for the first step, then K for the second and so on, as an array of shape (T K, d) or any
            iterable of at least T K vectors; or a Generator, which draws them from sqrt(d) S^{d-1}.
        directions_per_step: K >= 1.
        difference: how s_i is found, a name of `dpzero_theory.difference.DIFFERENCES`.
        options: see `Options`.
    """
    along = _differences(problem, difference, smoothing)
    several = check.integer("directions_per_step", directions_per_step)

    def step(x: Array, alpha: float, clip: float, draw: Draw, directions: Sequence[Array]) -> Array:
        clipped = clip_jointly(np.stack([along(x, u) for u in directions], axis=1), clip)
        released = np.array([scalars.mean() + draw(None) for scalars in np.ascontiguousarray(clipped.T)])
        updated: Array = x - alpha / several * released @ np.stack(directions)
        return updated

    return _run(problem, x0, step, directions, several, **options)


def dpgd_0th(
    problem: LossFunction,
    x0: ArrayLike,
    *,
    smoothing: float,
    directions: Directions,
    difference: str = "central",
    **options: Unpack[Options],
) -> ReferenceRun:
    """Run Algorithm 1: x <- x - alpha ((1/n) sum_i clip_C(difference_i u) + z), z ~ N(0, sigma^2 I_d).

    The clip bounds the norm of the estimator difference_i u. As u is common to all records, clip_C(difference_i u) =
    clip_{C/||u||}(difference_i) u, and no (n, d) array is formed. The arguments are those of `dpzero` with K = 1.
    """
    along = _differences(problem, difference, smoothing)

    def step(x: Array, alpha: float, clip: float, draw: Draw, directions: Sequence[Array]) -> Array:
        (u,) = directions
        scalar = clip_scalars(along(x, u), clip / float(np.linalg.norm(u))).mean()
        updated: Array = x - alpha * (scalar * u + draw(problem.d))
        return updated

    return _run(problem, x0, step, directions, 1, **options)


def dpgd(problem: SmoothLossFunction, x0: ArrayLike, **options: Unpack[Options]) -> ReferenceRun:
    """Run DP-GD: x <- x - alpha ((1/n) sum_i clip_C(grad f(x; xi_i)) + z), z ~ N(0, sigma^2 I_d)."""

    def step(x: Array, alpha: float, clip: float, draw: Draw, _: Sequence[Array]) -> Array:
        updated: Array = x - alpha * (clip_vectors(_gradients(problem, x), clip).mean(axis=0) + draw(problem.d))
        return updated

    return _run(problem, x0, step, itertools.repeat(np.ones(problem.d)), 1, **options)


def _run(
    problem: LossFunction,
    x0: ArrayLike,
    step: Callable[[Array, float, float, Draw, Sequence[Array]], Array],
    directions: Directions,
    several: int,
    *,
    steps: int,
    step_size: float,
    clip: float,
    noise_std: float,
    noise: NoiseSource,
    rng: np.random.Generator | None = None,
    keep: bool = True,
    callback: Callback | None = None,
) -> ReferenceRun:
    """Iterate x_{t+1} = step(x_t, alpha, C, draw, the next K directions), where draw(size) gives noise."""
    x = x_tau = check.real_array("x0", x0)
    assert x.shape == (problem.d,)
    count = check.integer("steps", steps)
    alpha, bound = check.real("step_size", step_size, above=0), check.real("clip", clip, above=0)
    draw: Draw = partial(noise.gaussian, check.real("noise_std", noise_std, at_least=0))
    stream = _vectors(directions, count * several, problem.d)
    tau = int((np.random.default_rng() if rng is None else rng).integers(count))
    trajectory = np.empty((count + 1, problem.d)) if keep else None
    for t in range(count + 1):
        if t > 0:
            chosen = list(itertools.islice(stream, several))
            assert len(chosen) == several
            x = step(x, alpha, bound, draw, chosen)
        if t == tau:
            x_tau = x.copy()
        if trajectory is not None:
            trajectory[t] = x
        if callback is not None:
            callback(t, x.copy())
    return ReferenceRun(x_tau=x_tau, tau=tau, last=x, trajectory=trajectory)


def two_point_difference(loss_plus: Array, loss_minus: Array, smoothing: float) -> Array:
    """The differences (f(x + lambda u; xi_i) - f(x - lambda u; xi_i))/(2 lambda), the scalar factor of eq:zo, of shape
    (n,). Entries that are not finite pass through, for `clip_scalars` to map."""
    width = check.real("smoothing", smoothing, above=0)
    plus, minus = np.asarray(loss_plus, np.float64), np.asarray(loss_minus, np.float64)
    assert plus.ndim == 1
    assert plus.shape == minus.shape
    with np.errstate(invalid="ignore", over="ignore"):
        return (plus - minus) / (2 * width)


def _differences(problem: Any, difference: str, smoothing: float) -> Callable[[Array, Array], Array]:
    """Return a function (x, u) -> the differences of all records along u at x, shape (n,), by a difference rule."""
    require_smoothing(difference, smoothing)

    def central(x: Array, u: Array) -> Array:
        above, below = _losses(problem, x + smoothing * u), _losses(problem, x - smoothing * u)
        return two_point_difference(above, below, smoothing)

    def forward(x: Array, u: Array) -> Array:
        return two_point_difference(_losses(problem, x + smoothing * u), _losses(problem, x), smoothing / 2)

    def exact(x: Array, u: Array) -> Array:
        found: Array = _gradients(problem, x) @ u
        return found

    return {"central": central, "forward": forward, "exact": exact}[difference]


def _gradients(problem: SmoothLossFunction, x: Array) -> Array:
    gradients = problem.gradients(x)
    assert gradients.shape == (problem.n, problem.d)
    return gradients


def _losses(problem: LossFunction, x: Array) -> Array:
    losses = problem.losses(x)
    assert losses.shape == (problem.n,)
    return losses


def _vectors(directions: Directions, count: int, d: int) -> Iterator[Array]:
    if isinstance(directions, np.random.Generator):
        for _ in range(count):
            yield sample_sphere(directions, 1, d)[0]
        return
    for vector in itertools.islice(directions, count):
        u = check.real_array("directions", vector)
        assert u.shape == (d,)
        yield u
