"""Lanes: many runs of one algorithm on one problem, advanced together with the same directions and noise.

A lane is one set of parameters (steps, step size, smoothing, clip, noise). Whatever depends on the direction u_t and
the data alone is computed once for all lanes. So is the noise, which every lane multiplies by its own standard
deviation. The results of lanes are therefore dependent: compare them freely, but take standard errors over seeds, never
over lanes.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
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
    """Return a stream of random directions in R^d, drawn with `rng`.

    `direction` is the name of their law, one of `sphere.DIRECTIONS`; another name raises ValueError.
    """
    sample = DIRECTIONS[direction].sample
    return lambda count: sample(rng, count, d)


def drawn_on(device: str, key: Sequence[int], *shape: int) -> Draw:
    """Return a stream of standard normal numbers, drawn by a torch generator on `device`.

    `key` are integers that make the generator's seed, and `shape` is the shape of each row. All devices of one kind
    draw the same numbers. On a CPU torch uses 32 bits of a seed: two of 10^5 keys draw the same numbers with
    probability 0.7.
    """
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    generator = torch.Generator(device).manual_seed(seed)
    return lambda count: torch.randn((count, *shape), generator=generator, dtype=torch.float64, device=generator.device)


def on_sphere(normals: Draw) -> Draw:
    """Return the stream `normals` with its rows scaled to length sqrt(d).

    If its rows are standard normal, the scaled ones are uniform on the sphere of radius sqrt(d).
    """

    def rows(count: int) -> Tensor:
        given = torch.as_tensor(normals(count))
        scaled: Tensor = given * (given.shape[1] ** 0.5 / given.square().sum(dim=1, keepdim=True).sqrt())
        return scaled

    return rows


@dataclass(frozen=True)
class Lanes:
    """The parameters of L runs of an algorithm: arrays of shape (L,) in any order.

    Attributes:
        steps: T >= 1.
        step_size: alpha > 0.
        smoothing: lambda > 0; DP-GD ignores it, and on the quadratic central and exact differences do, as they are
            equal there for every lambda.
        clip: C > 0, of the norm of a sample's K differences (DPZero) or of a vector (DPGD-0th, DP-GD).
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
        """Makes the parameters of L runs from scalars or arrays, broadcast to one shape (L,).

        The arguments are the attributes of the class. Raises ValueError for a value out of its range, and for shapes
        that do not match.
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
        """Makes the parameters of a run for every combination of the given values.

        The steps vary slowest and the clip fastest.

        Args:
            steps, step_sizes, clips: the values of T, alpha and C.
            noise_std: a function (T, C) that returns sigma, the standard deviation of the noise.
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
        """Return the runs' parameters sorted by falling number of steps, and for each run its index among these.

        So sorted, the runs that are still going at any step are the first ones, and `take` with the indices undoes the
        sorting.
        """
        order = np.argsort(-self.steps, kind="stable")
        return self.take(order), np.argsort(order, kind="stable")


def blocks(steps: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Return blocks (start, stop), in order, of at most `size` steps each, into which the steps 0, ..., max(steps) - 1
    are split so that no run ends inside a block.

    `steps` are the numbers of steps of the runs.
    """
    ends = [0, *sorted(set(steps.tolist()))]
    return [
        (start, min(start + size, end)) for begin, end in itertools.pairwise(ends) for start in range(begin, end, size)
    ]
