"""Measures norm, trace, effective rank and spectral density of a symmetric matrix by products with vectors.

One Lanczos run from a random start finds the largest eigenvalues. Let Q be its converged Ritz vectors (approximate
eigenvectors) as columns. Then trace f(A) = trace(Q^T f(A) Q) + E[u^T f(A) u] for u = (I - Q Q^T) z with random z. The
second term is averaged over independent random u, the probes, with a Lanczos run for each. This is Hutch++ (Meyer,
Musco, Musco and Woodruff 2021) in the Krylov form of Chen and Hallman (2022), and stochastic Lanczos quadrature (Ubaru,
Chen and Saad 2017). For f(t) = |t|, u^T |A| u is known only between two quadrature rules, and intervals contain both.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.curvature.intervals import Interval
from dpzero_theory.curvature.lanczos import Operator, Tridiagonal, dot, norm, random_start, tridiagonalise
from dpzero_theory.curvature.quadrature import probable_ends, root_bracket

# A Ritz vector y of a matrix A, with Ritz value theta, counts as converged if ||A y - theta y|| <= 0.05 |theta|. Then
# y^T |A| y is known to a relative 0.13%.
_CONVERGED = 0.05


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How many products with a matrix to spend on its spectrum: at most search + probes * steps.

    Attributes:
        search: the number of Lanczos steps that look for the largest eigenvalues, at least 1.
        probes: the number of random directions over which traces are averaged, at least 2.
        steps: the number of Lanczos steps from each of these directions, at least 2.

    Raises:
        ValueError: a field is outside its range.
    """

    search: int = 40
    probes: int = 16
    steps: int = 10

    def __post_init__(self) -> None:
        check.integer("search", self.search, at_least=1)
        check.integer("probes", self.probes, at_least=2)
        check.integer("steps", self.steps, at_least=2)


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """What was measured of a symmetric (d, d) matrix A, or of the root A^(1/p) of a positive semidefinite A.

    |A| has the absolute values of A's eigenvalues, with the same eigenvectors. If the root was measured, A stands for
    the root in `norm`, `absolute_trace`, `rank`, `bracket`, `points` and `weights`, and `trace` is the same as
    `absolute_trace`.

    Attributes:
        norm: an `Interval` of ||A||_2. The lower end is certain apart from rounding.
        trace: an `Interval` of trace(A).
        absolute_trace: an `Interval` of trace|A|.
        rank: an `Interval` of the effective rank trace|A|/||A||_2, cut to [1, d].
        bracket: numbers (low, estimate, high) with E[low] <= trace|A| <= E[high] over the random directions.
        extremes: the smallest and the largest approximate eigenvalue (Ritz value) of A itself, even if its root was
            measured.
        residual: A itself has an eigenvalue within this distance of the approximate one with the largest absolute
            value.
        points: approximate eigenvalues, ascending, shape (points,).
        weights: how many eigenvalues each of the points stands for, not necessarily whole numbers; they sum to d.
        products: the number of products of A with a vector that were made.
    """

    norm: Interval
    trace: Interval
    absolute_trace: Interval
    rank: Interval
    bracket: tuple[float, float, float]
    extremes: tuple[float, float]
    residual: float
    points: Array
    weights: Array
    products: int


def measure_spectrum(
    operator: Operator,
    generator: torch.Generator,
    effort: Effort | None = None,
    level: float = 0.95,
    *,
    root: int | None = None,
) -> Spectrum:
    """Measure norm, trace, trace|A| and effective rank of a symmetric matrix A, or of its root A^(1/p).

    Args:
        operator: the matrix A.
        generator: a CPU generator, the only source of randomness.
        effort: how many products to spend; `Effort()` if None.
        level: the probability, in (0, 1), of each interval on its own; `Interval.kind` says what it assumes.
        root: an integer p >= 2 to measure A^(1/p) of a positive semidefinite A, which is not checked; None to measure
            A.

    Raises:
        ValueError: level or root is outside its range, or a product is not finite.
        PreconditionError: A is zero.
    """
    failure = 1 - check.real("level", level, above=0, below=1)
    if root is not None:
        check.integer("root", root, at_least=2)
    runs = _LanczosRuns(operator, generator, effort or Effort(), root)
    points, weights = runs.density()
    return Spectrum(
        norm=runs.norm(failure),
        trace=runs.signed(level) if root is None else runs.absolute(level),
        absolute_trace=runs.absolute(level),
        rank=runs.absolute(1 - failure / 2).over(runs.norm(failure / 2), 1.0, float(operator.d)),
        bracket=runs.bracket(),
        extremes=(runs.lowest, runs.highest),
        residual=runs.residual,
        points=points if root is None else np.maximum(points, 0.0) ** (1 / root),
        weights=weights,
        products=runs.products,
    )


class _LanczosRuns:
    # The first run searches for the largest eigenvalues. Its converged Ritz vectors are deflated, and further runs, the
    # probes, start from random directions orthogonal to them. What is measured is A, or A^(1/p) for `root` = p.
    def __init__(self, operator: Operator, generator: torch.Generator, effort: Effort, root: int | None) -> None:
        self._d, self._root = operator.d, root
        first = tridiagonalise(operator, random_start(operator.d, generator, operator), effort.search, keep_basis=True)
        values, residuals = first.eigen()[0], first.residuals()
        sizes = np.abs(values)
        check.precondition(bool(sizes.max() > 0), "the matrix must not be zero: ||A||_2 = 0")
        ritz = first.ritz(_CONVERGED)
        first = replace(first, basis=None)  # The basis, gigabytes for a language model, is no longer needed
        probes = _probes(operator, generator, ritz.vectors, effort)
        self._first, self._probes, self._taken = first, probes, ritz.values
        self._shift = float(ritz.values.sum())
        self._taken_bracket = _ritz_bracket(ritz.values, ritz.residuals, root)
        self._values = np.array([tri.length**2 * tri.diagonal[0] for tri in probes])
        self._brackets = np.array([root_bracket(tri, root or 2, signed=root is None) for tri in probes])
        self.lowest = min([float(values[0])] + [float(tri.eigen()[0][0]) for tri in probes])
        self.highest = max([float(values[-1])] + [float(tri.eigen()[0][-1]) for tri in probes])
        self.residual = float(residuals[int(sizes.argmax())])
        self.products = first.diagonal.size + sum(tri.diagonal.size for tri in probes)

    def signed(self, level: float) -> Interval:
        # An interval of tr(A), even if a root of A is measured
        if not self._probes:
            return Interval(self._shift, self._shift, self._shift, "bound", 1.0)
        return Interval.of_mean(self._values, level, shift=self._shift)

    def absolute(self, level: float) -> Interval:
        # An interval of tr|A|, or of tr A^(1/p) for a root: the converged Ritz vectors' share, plus the probes' mean
        low, estimate, high = self._taken_bracket
        if not self._probes:
            return Interval(low, estimate, high, "bound", 1.0)
        lows, values, highs = self._brackets.T
        rest = Interval.of_mean(values, level, lows=lows, highs=highs)
        return Interval(max(rest.low, 0.0) + low, rest.estimate + estimate, rest.high + high, rest.kind, level)

    def norm(self, failure: float) -> Interval:
        # An interval of ||A||_2, or of ||A^(1/p)||_2 for a root
        least, most = probable_ends(self._first, self._d, failure)
        low = max(self.highest, -self.lowest)
        high = max(most, -least, low)
        power = 1 / (self._root or 1)
        exact = self._first.last == 0 and self._first.diagonal.size == self._d
        promise = ("bound", 1.0) if exact else ("probability", 1 - failure)
        return Interval(low**power, low**power, high**power, *promise)

    def bracket(self) -> tuple[float, float, float]:
        means = self._brackets.mean(axis=0) if self._probes else np.zeros(3)
        low, estimate, high = (float(mean + part) for mean, part in zip(means, self._taken_bracket, strict=True))
        return low, estimate, high

    def density(self) -> tuple[Array, Array]:
        # The first run's converged Ritz values have weight 1; the others come from the mean of the probes' Gauss rules
        points, weights = [self._taken], [np.ones(len(self._taken))]
        for tri in self._probes:
            at, mass = tri.gauss_rule()
            points.append(at)
            weights.append(mass / len(self._probes))
        order = np.argsort(np.concatenate(points))
        return np.concatenate(points)[order], np.concatenate(weights)[order]


def _ritz_bracket(values: Array, residuals: Array, root: int | None) -> tuple[float, float, float]:
    # Returns (low, estimate, high), with bounds low and high, for the sum of y^T f(A) y over Ritz vectors y of A, where
    # f(A) is |A| or, for a root p, A^(1/p). The Ritz values theta and the residuals rho = ||A y - theta y|| are given.
    # The spectral measure at y has mean theta and second moment theta^2 + rho^2. So |theta| <= y^T |A| y by convexity,
    # and y^T |A| y <= (theta^2 + rho^2)^(1/2) by Cauchy-Schwarz. For A^(1/p) the one-point Gauss rule theta^(1/p) is
    # above, and the two-point Radau rule theta^(1/p) (1 + rho^2/theta^2)^(1/p - 1) below (`root_bracket`).
    sizes = np.abs(values)
    if root is None:
        return float(sizes.sum()), float(sizes.sum()), float(np.hypot(sizes, residuals).sum())
    roots = np.maximum(values, 0.0) ** (1 / root)
    ratio = np.divide(residuals, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    low = roots * (1 + ratio**2) ** (1 / root - 1)
    return float(low.sum()), float(roots.sum()), float(roots.sum())


def _probes(operator: Operator, generator: torch.Generator, taken: Tensor, effort: Effort) -> list[Tridiagonal]:
    # Each run starts from a vector that is uniform on the sphere of radius sqrt(d - q) in the space orthogonal to the q
    # orthonormal rows `taken`: E[u u^T] is the projection on this space
    free = operator.d - len(taken)
    runs: list[Tridiagonal] = []
    for _ in range(effort.probes if free > 0 else 0):
        u = random_start(operator.d, generator, operator)
        for _ in range(2):
            u = u - dot(taken, u).to(u.dtype) @ taken
        u = u * (math.sqrt(free) / norm(u))
        runs.append(tridiagonalise(operator, u, effort.steps))
    return runs
