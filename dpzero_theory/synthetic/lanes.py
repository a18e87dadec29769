"""Lanes: many runs of one algorithm on one problem, advanced together with the same directions and noise.

A lane is one run, with one setting of the parameters (steps, step size, smoothing, clip, noise). Whatever depends on
the direction u_t and the data alone is computed once for all lanes. The noise too is drawn once, and every lane
multiplies it by its own standard deviation. The results of lanes are therefore dependent: compare them freely, but take
standard errors over seeds, never over lanes.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.sphere import DIRECTIONS

Draw = Callable[[int], Array | Tensor]
"""A stream of random numbers, as a function draw(k) that returns its next k rows.

They have shape (k, d) for vectors and (k,) for scalars, as an array or as a tensor on any device.
"""


def directions_of(direction: str, rng: np.random.Generator, d: int) -> Draw:
    """Return a stream of random directions u in R^d, E[u u^T] = I, drawn with `rng`: a function draw(k) that returns
    the next k of them as a float64 array of shape (k, d). `direction` is the name of their law in `sphere.DIRECTIONS`,
    such as "sphere" (uniform of length sqrt(d)). Raises ValueError for an unknown name. For a low-rank law draw raises
    PreconditionError."""
    sample = DIRECTIONS[direction].sample
    return lambda count: sample(rng, count, d)


@dataclass(frozen=True)
class Lanes:
    """The parameters of L runs of an algorithm on a quadratic loss: arrays of shape (L,), entry i of each for run i.

    Attributes:
        steps: T >= 1.
        step_size: alpha > 0.
        smoothing: lambda > 0; only forward differences use it, since on the quadratic central differences are exact.
        clip: C > 0, on the norm of a sample's differences along the K directions of a step (DPZero), of its difference
            times the direction (DPGD-0th), or of its gradient (DP-GD).
        noise_std: sigma >= 0, the standard deviation of the noise in each number of the released average.
    """

    steps: NDArray[np.int64]
    step_size: Array
    smoothing: Array
    clip: Array
    noise_std: Array

    @classmethod
    def of(
        cls,
        *,
        steps: ArrayLike,
        step_size: ArrayLike,
        clip: ArrayLike,
        noise_std: ArrayLike,
        smoothing: ArrayLike = 1e-4,
    ) -> Self:
        """Make the parameters of L runs: numbers of steps >= 1, step sizes > 0, clips > 0, standard deviations of the
        noise >= 0 and smoothings > 0, scalars or arrays that broadcast to shape (L,).

        Raises:
            ValueError: a value out of its range, or shapes that do not match.
        """
        whole = check.real_array("steps", steps, at_least=1)
        if not (whole == np.floor(whole)).all():
            raise ValueError(f"steps must be integers; got {whole[whole != np.floor(whole)][0]}")
        values = (
            whole,
            check.real_array("step_size", step_size, above=0),
            check.real_array("smoothing", smoothing, above=0),
            check.real_array("clip", clip, above=0),
            check.real_array("noise_std", noise_std, at_least=0),
        )
        shaped = [np.array(value) for value in np.broadcast_arrays(*map(np.atleast_1d, values))]
        if shaped[0].ndim != 1:
            raise ValueError(f"lanes must be scalars or one-dimensional; got shape {shaped[0].shape}")
        return cls(shaped[0].astype(np.int64), *shaped[1:])

    @classmethod
    def grid(
        cls,
        *,
        steps: Sequence[int],
        step_sizes: Sequence[float],
        clips: Sequence[float],
        noise_std: Callable[[int, float], float],
        smoothing: float = 1e-4,
    ) -> Self:
        """Make the parameters of a run for every combination of the given values: the steps vary slowest, the clip
        fastest.

        Args:
            steps, step_sizes, clips: the values of T, alpha and C.
            noise_std: a function (T, C) that returns sigma, the standard deviation of the noise on the released
                average.
            smoothing: lambda, the same for all runs.
        """
        points = list(itertools.product(steps, step_sizes, clips))
        return cls.of(
            steps=[t for t, _, _ in points],
            step_size=[alpha for _, alpha, _ in points],
            clip=[c for _, _, c in points],
            noise_std=[noise_std(t, c) for t, _, c in points],
            smoothing=smoothing,
        )

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, index: NDArray[np.int64]) -> "Lanes":
        """Return the parameters of the runs with the indices `index`, in that order."""
        return Lanes(
            self.steps[index],
            self.step_size[index],
            self.smoothing[index],
            self.clip[index],
            self.noise_std[index],
        )

    def longest_first(self) -> tuple["Lanes", NDArray[np.int64]]:
        """Return the runs' parameters sorted by falling number of steps, and for each run its index among the sorted.

        So the runs that are still going at any step are the first ones; `take` with the indices undoes the sorting.
        """
        order = np.argsort(-self.steps, kind="stable")
        return self.take(order), np.argsort(order, kind="stable")


def blocks(steps: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Split the steps 0, ..., max(steps) - 1 into blocks (start, stop), in order, so that no run ends inside a block.

    `steps` are the numbers of steps of the runs, shape (L,), and `size` >= 1 is the largest number in a block.
    """
    ends = [0, *sorted(set(steps.tolist()))]
    return [
        (start, min(start + size, end)) for begin, end in itertools.pairwise(ends) for start in range(begin, end, size)
    ]
