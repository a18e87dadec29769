"""The synthetic problem of the DPZero paper: quadratic losses whose constants are known."""

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array

MODES = ("a", "b", "c")  # The paper's names of three diagonals of A, the one with the largest effective rank first


def paper_spectrum(mode: str, d: int) -> Array:
    """Return the eigenvalues of the matrix A of the DPZero paper's synthetic problem, shape (d,).

    For i = 1, ..., d they are 1 with mode "a", 1/sqrt(i) with "b" and 1/i with "c". The effective rank trace(A)/||A||_2
    is then d, about 2 sqrt(d), or about log d. Raises ValueError for another mode, and unless d >= 1.
    """
    power = {"a": 0.0, "b": 0.5, "c": 1.0}[check.choice("mode", mode, MODES)]
    return np.arange(1, check.integer("d", d) + 1, dtype=np.float64) ** -power


def gaussian_data(rng: np.random.Generator, n: int, d: int) -> Array:
    """Draw the DPZero paper's synthetic data: n samples in R^d, shape (n, d), with independent coordinates from N(1,
    1).

    Raises ValueError unless n >= 1, d >= 1 and `rng` is a numpy.random.Generator.
    """
    shape = (check.integer("n", n), check.integer("d", d))
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a numpy.random.Generator; got {type(rng).__name__}")
    data = rng.standard_normal(shape)
    data += 1
    return data


class Distances:
    """Base class of losses of sample x_i that depend on x through (x - x_i)^T A (x - x_i), with a diagonal matrix A.

    Args:
        data: the samples x_i, shape (n, d).
        spectrum: the diagonal of A, > 0, shape (d,).

    Attributes:
        n, d: the number of samples and the dimension.
        spectrum: the diagonal of A, shape (d,).
        center: the mean of the samples, shape (d,).

    Raises:
        ValueError: an argument has another shape, or is outside its range.
    """

    def __init__(self, data: ArrayLike, spectrum: ArrayLike) -> None:
        points = check.real_array("data", data)
        if points.ndim != 2 or points.size == 0:
            raise ValueError(f"data must have shape (n, d), n >= 1, d >= 1; got {points.shape}")
        self.n, self.d = int(points.shape[0]), int(points.shape[1])
        self.spectrum = check.real_array("spectrum", spectrum, above=0)
        if self.spectrum.shape != (self.d,):
            raise ValueError(f"spectrum must have shape (d,) = ({self.d},); got {self.spectrum.shape}")
        self.center = points.mean(axis=0)
        self._root = np.sqrt(self.spectrum)
        self._points = points
        self._points -= self.center
        self._points *= self._root
        self._squares = np.einsum("ij,ij->i", self._points, self._points)

    @property
    def points(self) -> Array:
        """The scaled samples sqrt(spectrum) * (x_i - mean of the samples), shape (n, d), which sum to zero."""
        return self._points

    @property
    def smoothness(self) -> float:
        """The largest entry of `spectrum`, a Lipschitz constant of the gradient of each sample's loss."""
        return float(self.spectrum.max())

    @property
    def r(self) -> float:
        """The effective rank, which is the sum of `spectrum` divided by its largest entry."""
        return float(self.spectrum.sum() / self.spectrum.max())

    def scaled(self, x: Array) -> Array:
        """Return sqrt(spectrum) * (x - mean of the samples) for a point x, shape (d,)."""
        scaled: Array = self._root * (point_of(x, self.d) - self.center)
        return scaled

    def squared_distances(self, y: Array) -> Array:
        """Return ||y - y_i||^2 for each row y_i of `points`, shape (n,). y, shape (d,), is what `scaled` returns."""
        squares: Array = np.maximum(self._squares - 2 * (self._points @ y) + y @ y, 0.0)
        return squares


class Quadratic(Distances):
    """Losses (1/2) (x - x_i)^T A (x - x_i) of samples x_i, with a diagonal matrix A: the DPZero paper's synthetic
    problem.

    The mean loss has the Hessian A, and its minimiser is the mean of the samples. The losses are not Lipschitz on R^d,
    so no theorem of the paper applies.

    Args:
        data: the samples x_i, shape (n, d).
        spectrum: the diagonal of A, > 0, shape (d,).
    """

    @property
    def lipschitz(self) -> float:
        """Raises PreconditionError, since the gradients of the samples' losses are unbounded."""
        raise check.PreconditionError("Assumption 2 (L-Lipschitz losses): the quadratic loss is not Lipschitz on R^d")

    def losses(self, x: Array) -> Array:
        """Return the loss of each sample at the point x, shape (n,)."""
        return 0.5 * self.squared_distances(self.scaled(x))

    def gradients(self, x: Array) -> Array:
        """Return the gradient spectrum * (x - x_i) of the loss of each sample x_i at the point x, shape (n, d)."""
        return self._root * (self.scaled(x) - self._points)

    def loss(self, x: Array) -> float:
        """Return the mean of all samples' losses at the point x."""
        return self.gap(x) + self.minimum

    def gradient(self, x: Array) -> Array:
        """Return the gradient spectrum * (x - mean of the samples) of the mean loss at the point x, shape (d,)."""
        return self._root * self.scaled(x)

    @property
    def minimum(self) -> float:
        """The smallest value of the mean loss, attained at the mean of the samples."""
        return 0.5 * float(self._squares.mean())

    def gap(self, x0: Array) -> float:
        """Return how far the mean loss at the point x0 is above its smallest value."""
        y = self.scaled(x0)
        return 0.5 * float(y @ y)


def point_of(x: Array, d: int, name: str = "x") -> Array:
    """Return the point x as a float64 array of shape (d,).

    Raises ValueError, with `name` as the name of the point, if x has another shape or a value that is not finite.
    """
    point = check.real_array(name, x)
    if point.shape != (d,):
        raise ValueError(f"{name} must have shape (d,) = ({d},); got {point.shape}")
    return point
