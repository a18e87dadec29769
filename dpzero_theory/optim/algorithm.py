"""The algorithms a run can follow: each owns its numbers, its noise and its move.

A step evaluates every record of a batch at x +- lambda u_k, k = 1..K, and forms differences; an algorithm maps them to
what is summed, releases the sum, and moves the weights by what was released. A further algorithm is a subclass and
one call of `ALGORITHMS.register`.

**Sensitivity.** A record enters only through its own K differences (the losses must not mix records), each record on
its own. On a lattice they are clipped jointly to L2 norm C and rounded so that the integer vector has norm at most
`levels`, whatever the losses are (`contributions.to_lattice`). So adding or removing a record moves the sum by at most
`levels`, replacing one by at most 2 levels, and the sum over micro-batches and processes is exact. Noise is added
once to the whole sum, never to a part.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.optim.contributions import Sums, to_lattice
from dpzero_theory.optim.estimator import clip_scalars
from dpzero_theory.optim.module import Weights
from dpzero_theory.privacy.lattice import Lattice
from dpzero_theory.privacy.mechanism import Mechanism, noise_law
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.registry import Registry
from dpzero_theory.sphere import DIRECTIONS

_BLOCK = 1 << 17  # coordinates of vector noise at a time


class Algorithm(ABC):
    """One algorithm.

    name: of the algorithm in a `Plan`. private: whether it clips and adds noise. lattice: whether its sums are integers
    (their noise is drawn on the lattice). replayable: whether a release is K numbers, which the transcript holds, or a
    vector, which is not kept. dtype: of the sums.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    lattice: ClassVar[bool] = False
    replayable: ClassVar[bool] = True
    dtype: ClassVar[type] = np.float64

    def law(self, noise: object) -> Mechanism | None:
        """The law of the noise of that family; None where there is none. Raises ValueError."""
        return noise_law(noise, lattice=self.lattice)

    def require(self, direction: object, directions_per_step: object) -> None:
        """Raise ValueError for a direction law, or a number of directions a step, that it cannot use."""
        check.choice("direction", direction, DIRECTIONS)
        check.integer("directions_per_step", directions_per_step, at_most=2**16)

    def require_weights(self, weights: Weights) -> None:
        """Raise PreconditionError for weights that it cannot move as promised."""
        del weights

    def unit(self, clip: float, levels: int) -> float:
        """What 1 in a sum stands for."""
        return clip / levels if self.lattice else 1.0

    @abstractmethod
    def contributions(self, differences: Array, clip: float, levels: int, d: int) -> Sums:
        """The sum over the records of a micro-batch of what each contributes, shape (batch, K) -> (K,)."""

    def release(self, total: Sums, law: Mechanism | None, scale: float, source: NoiseSource) -> Sums:
        """What is released of the sum over the whole batch, shape (K,); once a step."""
        if law is None or not self.lattice:
            return total
        noisy: Sums = total + law.draw(source, scale, total.shape)
        return noisy

    def perturb_(self, weights: Weights, factor: float, draw: Callable[[int], Array]) -> None:
        """x <- x + factor z where the noise z is a vector and not in the sums. draw: the next coordinates of z."""
        del weights, factor, draw


class _DPZero(Algorithm):
    """Algorithm 2: clipped differences on a lattice, K noisy numbers a step."""

    name = "dpzero"
    lattice = True
    dtype = np.int64

    def contributions(self, differences: Array, clip: float, levels: int, d: int) -> Sums:
        total: Sums = to_lattice(Lattice(clip, levels), differences).sum(axis=0)
        return total


class _DPGD0th(Algorithm):
    """Algorithm 1: the clipped estimator difference u, and noise on each of its d coordinates.

    clip bounds its norm, so it clips the difference at C/||u||, ||u|| = sqrt(d).
    """

    name = "dpgd-0th"
    replayable = False

    def require(self, direction: object, directions_per_step: object) -> None:
        check.choice("direction", direction, [name for name, law in DIRECTIONS.items() if law.fixed_norm])
        check.integer("directions_per_step", directions_per_step, at_most=1)

    def require_weights(self, weights: Weights) -> None:
        wide = all(parameter.dtype in (torch.float32, torch.float64) for parameter in weights.parameters)
        check.precondition(
            wide and weights.precision == "nearest", "dpgd-0th needs float32 or float64 weights, precision nearest"
        )

    def contributions(self, differences: Array, clip: float, levels: int, d: int) -> Sums:
        total: Sums = clip_scalars(differences, clip / math.sqrt(d)).sum(axis=0)
        return total

    def perturb_(self, weights: Weights, factor: float, draw: Callable[[int], Array]) -> None:
        with torch.no_grad():
            for size, (held, origin) in zip(weights.sizes, weights.pieces(), strict=True):
                flat = held.view(-1)
                for start in range(0, size, _BLOCK):
                    noise = torch.from_numpy(draw(min(_BLOCK, size - start)))
                    first, last = max(start, origin), min(start + len(noise), origin + len(flat))
                    if first < last:
                        block = flat[first - origin : last - origin]
                        block.add_(noise[first - start : last - start].to(block), alpha=factor)


class _MeZO(Algorithm):
    """The step of Algorithm 2 without clip and noise, which is not private; values that are not finite count as 0."""

    name = "mezo"
    private = False

    def law(self, noise: object) -> None:
        check.choice("noise", noise, ("none",))

    def contributions(self, differences: Array, clip: float, levels: int, d: int) -> Sums:
        total: Sums = np.where(np.isfinite(differences), differences, 0.0).sum(axis=0)
        return total


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")
for _algorithm in (_DPZero(), _DPGD0th(), _MeZO()):
    ALGORITHMS.register(_algorithm)
