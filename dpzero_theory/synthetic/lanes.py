"""`Lanes`, the parameters of many runs that are advanced together with the same random directions and noise.

Every run multiplies the same noise by its own standard deviation, so results of runs that were made together are
dependent: take standard errors over seeds, never over runs.
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
"""A function of k that returns the next k random numbers, shape (k,), or vectors, shape (k, d), as array or tensor."""


def directions_of(direction: str, rng: np.random.Generator, d: int) -> Draw:
    """Return a function of k that returns the next k random directions as a float64 array of shape (k, d).

    Args:
        direction: the name of the distribution, such as "sphere", "gaussian" or "rademacher". It is a key of
            `sphere.DIRECTIONS`; ValueError is raised for any other name. With "low-rank" the returned function raises
            PreconditionError.
        rng: the generator that draws.
        d: the dimension. A direction u has E[u u^T] = I.
    """
    sample = DIRECTIONS[direction].sample
    return lambda count: sample(rng, count, d)


@dataclass(frozen=True)
class Lanes:
    """The parameters of L runs of an algorithm on a quadratic loss, as arrays of shape (L,) with an entry for each run.

    Attributes:
        steps: the numbers of steps, >= 1.
        step_size: the step sizes, > 0.
        smoothing: lambda > 0 of the finite differences; it has an effect for forward differences only.
        clip: the clips, > 0. A clip bounds the norm of a sample's finite differences along the K directions of a step
            (DPZero), of its finite difference times the direction (DPGD-0th), or of its gradient (DP-GD).
        noise_std: the standard deviations, >= 0, of the noise on each number of a step's average over the samples.
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
        """Make the parameters of L runs from numbers or arrays that broadcast to shape (L,), one for each field.

        Raises ValueError if a value is outside its range, or if the shapes do not match.
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
        """Make the parameters of a run for every combination of the given values. `steps` varies slowest and `clips`
        fastest.

        Args:
            steps, step_sizes, clips: the values to combine.
            noise_std: a function (number of steps, clip) that returns the standard deviation of the noise.
            smoothing: lambda of the finite differences, for all runs.
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
        """Return the parameters with the largest numbers of steps first, and the index in that order of each original
        run.

        `take` with these indices restores the original order.
        """
        order = np.argsort(-self.steps, kind="stable")
        return self.take(order), np.argsort(order, kind="stable")


def blocks(steps: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Split the steps 0, ..., max(steps) - 1 into consecutive blocks such that no run ends inside a block.

    Args:
        steps: the numbers of steps of the runs, shape (L,).
        size: the largest number of steps in a block, >= 1.

    Returns:
        Pairs (start, stop), in order; a block has the steps start, ..., stop - 1.
    """
    ends = [0, *sorted(set(steps.tolist()))]
    return [
        (start, min(start + size, end)) for begin, end in itertools.pairwise(ends) for start in range(begin, end, size)
    ]
