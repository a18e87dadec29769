"""A quadratic whose spectrum ends in many equal eigenvalues, in no more coordinates than its runs can tell apart.

The d coordinates have first the p eigenvalues `head`, and then the eigenvalue `tail`, D = d - p times. In the tail's
coordinates data, directions and noise are Gaussian, so only their inner products matter, and those of k vectors live in
k dimensions. For runs of S steps, an orthonormal basis is made by the Gram-Schmidt process from the vector of ones, the
directions u_1, ..., u_S, and the noise vectors z_1, ..., z_S. In this basis (Bartlett's decomposition of a Wishart
matrix)

    ones = (sqrt(D), 0, ...),   u_t = (N, ..., N, chi_{D-t}, 0, ...),   z_t = (N, ..., N, chi_{D-S-t}, 0, ...),

where every N is an independent standard normal number, and chi_m the root of a chi-square number with m degrees of
freedom. A sample is sqrt(D) in the first coordinate plus N in all of them. No direction meets the part of the samples
outside this basis; only the length of that part's mean over the n samples matters. It is chi_{D-1-2S}/sqrt(n), and is
kept as a last coordinate. Every law is exact, and D enters through chi alone: a run with d = 10^9 costs what one with d
= 2 S costs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.synthetic.lanes import Draw
from dpzero_theory.synthetic.problems import Quadratic


@dataclass(frozen=True, eq=False)
class Drawn:
    """A quadratic problem and its streams of random vectors. Each call of `directions` or `noise` with a count returns
    so many new rows in the problem's coordinates; `noise` is standard normal noise of the whole vector, as Algorithm 1
    needs it."""

    problem: Quadratic
    directions: Draw
    noise: Draw


def draw(rng: Callable[[int], np.random.Generator], head: Array, tail: float, d: int, n: int, steps: int) -> Drawn:
    """Return a quadratic with n samples from N(1, I) in R^d, and its streams of random vectors, for runs of at most
    `steps` directions. Its eigenvalues are those in `head`, then `tail` for all other coordinates.

    rng is a function that returns a generator for each of the streams data (0), directions on the sphere (1) and noise
    (2). All d coordinates are drawn if the tail has at most 2 steps + 2 of them; otherwise the problem has only the
    coordinates that runs can tell apart. Raises ValueError for a value out of its range: eigenvalues must be positive
    and d at least their number in `head`.
    """
    values = check.real_array("head", head, above=0)
    check.real("tail", tail, above=0)
    d, n = check.integer("d", d, at_least=len(values)), check.integer("n", n)
    steps = check.integer("steps", steps)
    rest = d - len(values)
    if rest > 2 * steps + 2:
        return _collapsed(rng, values, tail, d, n, steps)
    problem = Quadratic(1 + rng(0).standard_normal((n, d)), np.append(values, np.full(rest, tail)))
    u, z = rng(1), rng(2)
    return Drawn(
        problem, lambda count: DIRECTIONS["sphere"].sample(u, count, d), lambda count: z.standard_normal((count, d))
    )


def _collapsed(
    rng: Callable[[int], np.random.Generator], head: Array, tail: float, d: int, n: int, steps: int
) -> Drawn:
    p, rest, width = len(head), d - len(head), 1 + 2 * steps
    data = rng(0)
    samples = data.standard_normal((n, p + width + 1))
    samples[:, :p] += 1
    samples[:, p] += math.sqrt(rest)
    samples[:, -1] = math.sqrt(data.chisquare(rest - width) / n)
    problem = Quadratic(samples, np.append(head, np.full(width + 1, tail)))
    u, z = (_Triangle(rng(1 + number), p, rest, 1 + number * steps, width) for number in range(2))

    def directions(count: int) -> Array:
        rows = u(count)
        rows *= math.sqrt(d) / np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    return Drawn(problem, directions, z)


class _Triangle:
    """A stream of Gaussian rows in the basis of the module's docstring. A row has p + t standard normal numbers, then
    the length of what is left of a normal vector with `rest` coordinates after t of them, then zeros: p + `width` + 1
    numbers in all. The number t, at first the argument, grows by one with each row."""

    def __init__(self, rng: np.random.Generator, p: int, rest: int, t: int, width: int) -> None:
        self.rng, self.p, self.rest, self.t, self.width = rng, p, rest, t, width

    def __call__(self, count: int) -> Array:
        rows = np.zeros((count, self.p + self.width + 1))
        for row in rows:
            row[: self.p + self.t] = self.rng.standard_normal(self.p + self.t)
            row[self.p + self.t] = math.sqrt(self.rng.chisquare(self.rest - self.t))
            self.t += 1
        return rows
