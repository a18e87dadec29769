"""The parameters that minimise the inequality in the proof of a result of the paper (`theorems.Inequality`).

For a fixed number of steps T the bound is minimised over the step size alpha and, for Algorithm 2, over the threshold
C_0, by grids in logarithms that zoom in on the best point. The bound is log-convex in log alpha, and the first grid is
fine enough in C_0 to hold its one minimum. For Algorithm 1, C = L d always.

At the same alpha T more steps only help Algorithm 1, because the factor 2/(1 - 2 k ell alpha) falls to 2 as alpha goes
to 0. So without a cap the search takes the fewest steps whose bound is within `STEPS_SHARE` of the best for any number
of steps. The bound also falls as lambda goes to 0; the lambda returned is the largest that costs about
`SMOOTHING_SHARE`. Whatever the search does, the bound that it returns is the inequality at the parameters that it
returns.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from dpzero_theory import check
from dpzero_theory.bisection import halved
from dpzero_theory.check import Array
from dpzero_theory.theory.noise import noise_std
from dpzero_theory.theory.problem import Guarantee, Prescription
from dpzero_theory.theory.sharp.smallest import MOST_STEPS, SMOOTHING_SHARE, STEPS_SHARE
from dpzero_theory.theory.theorems import Inequality

Range = tuple[float, float]
"""The logarithms of the smallest and of the largest value of a parameter."""


def _zoom(value: Callable[..., Array], ranges: Sequence[Range], points: int = 25) -> tuple[list[float], float]:
    """The point of a box at which `value` is smallest, and its value there, by grids that shrink around the best point
    until their cells are below 1e-7 in each logarithm.

    value: a function of arrays of parameters, which broadcast. ranges: the box, as the range of each parameter's
    logarithm. points: the number of grid points in each parameter.
    """
    boxes, numbers = list(ranges), np.arange(points)
    shapes = [[points if k == i else 1 for k in range(len(boxes))] for i in range(len(boxes))]
    best_point, best_value = [math.exp(low) for low, _ in ranges], math.inf
    while True:
        axes = [low + numbers * ((high - low) / (points - 1)) for low, high in boxes]
        values = value(*(np.exp(axis).reshape(shape) for axis, shape in zip(axes, shapes, strict=True)))
        index = np.unravel_index(int(np.argmin(values)), values.shape)
        if values[index] < best_value:
            best_value = float(values[index])
            best_point = [float(np.exp(axis[i])) for axis, i in zip(axes, index, strict=True)]
        cells = [2 * (high - low) / (points - 1) for low, high in boxes]
        if max(cells) < 1e-7:
            return best_point, best_value
        boxes = [
            (max(low, axis[i] - cell), min(high, axis[i] + cell))
            for (low, high), axis, i, cell in zip(ranges, axes, index, cells, strict=True)
        ]


def minimised(inequality: Inequality, closed_form: Prescription, *, max_steps: int | None = None) -> Prescription:
    """The parameters with the smallest bound in the proof's inequality, and that bound, for one result of the paper.

    Args:
        inequality: the inequality of the result's proof.
        closed_form: the result's own prescription, whose id, algorithm and privacy are kept.
        max_steps: a cap on T; without one, T is the fewest steps whose bound is within `STEPS_SHARE` of the best.

    Returns:
        A prescription whose `bound` and `bound_at_steps` are the inequality at its own parameters. If the parameters of
            `closed_form` are within the cap and have the smaller bound, it has those parameters; that is possible
            because the search gives some of the bound away for a larger smoothing.

    Raises:
        ValueError: max_steps outside its range.
        PreconditionError: no admissible parameters give a finite bound.
    """
    p = inequality.problem
    bound = inequality.bound
    largest_step = 1 / (2 * inequality.growth * p.smoothness)
    alphas = (math.log(largest_step * 1e-18), math.log(largest_step * (1 - 1e-9)))
    thresholds = (math.log(0.5 * p.lipschitz), math.log(60 * p.lipschitz))

    def at(steps: float) -> tuple[list[float], float]:
        if inequality.clips:
            return _zoom(lambda alpha, c: bound(alpha, steps, 0.0, c), [alphas, thresholds])
        point, value = _zoom(lambda alpha: bound(alpha, steps, 0.0, p.lipschitz * p.d), [alphas])
        return [*point, p.lipschitz * p.d], value

    steps = _steps(inequality, lambda t: at(t)[1], max_steps)
    (alpha, threshold), value = at(steps)
    check.precondition(math.isfinite(value), f"{closed_form.id}: no admissible parameters give a finite bound")

    progress = 1 - 2 * inequality.growth * p.smoothness * alpha
    gradient = closed_form.guarantee is Guarantee.GRADIENT
    weight = 2 / progress if gradient else p.condition_number / (p.smoothness * progress)
    smoothing = 2 / p.smoothness * math.sqrt(SMOOTHING_SHARE * value / weight / float(p.d) ** 3)
    clip = threshold
    if inequality.clips:
        smoothing = min(smoothing, SMOOTHING_SHARE * threshold / (p.smoothness * p.d))
        clip = threshold + p.smoothness * smoothing * p.d / 2
    final = float(bound(alpha, steps, smoothing, clip))
    if closed_form.bound_at_steps <= final and (max_steps is None or closed_form.steps <= max_steps):
        return dataclasses.replace(closed_form, T=float(closed_form.steps), bound=closed_form.bound_at_steps, notes=())
    return dataclasses.replace(
        closed_form,
        step_size=alpha,
        T=float(steps),
        steps=steps,
        smoothing=smoothing,
        clip=clip,
        noise_std=noise_std(closed_form.gdp, steps, clip, p.n, closed_form.relation),
        bound=final,
        bound_at_steps=final,
        evaluations=p.n * steps,
        notes=(),
    )


def _steps(inequality: Inequality, value: Callable[[int], float], max_steps: int | None) -> int:
    """The number of steps T with the smallest bound under the cap `max_steps`. Without a cap (None) it is the fewest
    steps whose bound is above the smallest bound by at most the share `STEPS_SHARE`.

    `inequality` says which algorithm it is. `value` gives the smallest bound for a number of steps. For Algorithm 1 it
    falls with T. For Algorithm 2 it falls to one minimum and then rises slowly, since C_0 grows with log T. The search
    ends when T is known to 0.1%, which changes the bound by far less.
    """
    best = MOST_STEPS if max_steps is None else check.integer("max_steps", max_steps, at_most=MOST_STEPS)

    def between(mean: Callable[[int, int], int]) -> Callable[[int, int], int]:
        """A function (miss, hit) -> the next number of steps that `halved` tries, where miss fails a test and hit
        passes it: the mean of miss + 1 and hit or, once these are within 0.1%, miss, which ends the search.

        mean: a function of two integers, such as their arithmetic mean rounded down.
        """
        return lambda miss, hit: miss if hit - miss - 1 <= (miss + 1) // 1000 else mean(miss + 1, hit)

    if inequality.clips:
        mean = between(lambda low, high: (low + high) // 2)
        best = halved(lambda t: value(t + 1 + t // 1000) < value(t), 0, best, middle=mean)[1]
    if max_steps is not None:
        return best
    enough = value(best) * (1 + STEPS_SHARE)
    middle = between(lambda low, high: math.isqrt(low * high))
    return halved(lambda t: not value(t) <= enough, 0, best, middle=middle)[1]
