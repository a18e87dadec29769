"""The paper's synthetic problem: quadratic losses whose constants are known.

`Quadratic` has n samples in d dimensions, losses(x) of shape (n,), gradients(x) of shape (n, d), and their averages
loss(x) and gradient(x). Of the constants of Assumption asp:rank it has smoothness (ell) and the effective rank r, and
gap(x0) is F_S(x0) - F_S^*, where F_S is the average loss and F_S^* its minimum. Averages cost O(n d) at most and form
no (n, d) array.
"""

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array

MODES = ("a", "b", "c")  # The paper's names of three spectra of A, the one of the largest effective rank first


def paper_spectrum(mode: str, d: int) -> Array:
    """Return the eigenvalues of the diagonal matrix A of the DPZero paper's synthetic problem, shape (d,).

    For i = 1, ..., d they are 1 with mode "a", 1/sqrt(i) with "b" and 1/i with "c". The effective rank tr(A)/||A||_2 is
    then d, about 2 sqrt(d), or about log d. Raises ValueError for another mode, and unless d >= 1.
    """
    power = {"a": 0.0, "b": 0.5, "c": 1.0}[check.choice("mode", mode, MODES)]
    return np.arange(1, check.integer("d", d) + 1, dtype=np.float64) ** -power


def gaussian_data(rng: np.random.Generator, n: int, d: int) -> Array:
    """Draw the DPZero paper's synthetic data, n samples in R^d with all coordinates from N(1, 1), shape (n, d).

    Raises ValueError unless n >= 1 and d >= 1, and for an `rng` of another type.
    """
    shape = (check.integer("n", n), check.integer("d", d))
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a numpy.random.Generator; got {type(rng).__name__}")
    data = rng.standard_normal(shape)
    data += 1
    return data


class Distances:
    """Base class of losses that are functions of q_i(x) = (x - x_i)^T A (x - x_i), where A is diagonal.

    They are computed in the coordinates y = A^(1/2) (x - mean of the x_i), in which q_i = ||y - y_i||^2.

    Args:
        data: the samples x_i, shape (n, d).
        spectrum: the eigenvalues of A, > 0, shape (d,).

    Attributes:
        n, d, spectrum: the numbers of samples and of dimensions, and the eigenvalues of A.
        center: the mean of the samples, shape (d,).

    Raises:
        ValueError: an argument of another shape, or outside its range.
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
        """The samples x_i, the rows of `data`, in other coordinates: y_i = A^(1/2) (x_i - mean of the x_i), shape (n,
        d), where A is diagonal with the entries `spectrum`. They sum to zero."""
        return self._points

    @property
    def smoothness(self) -> float:
        """The smoothness ell = ||A||_2: every sample's loss is ell-smooth, and A bounds the Hessians."""
        return float(self.spectrum.max())

    @property
    def r(self) -> float:
        """The effective rank tr(A)/||A||_2 of A, which bounds the Hessians of all samples' losses."""
        return float(self.spectrum.sum() / self.spectrum.max())

    def scaled(self, x: Array) -> Array:
        """Return y = A^(1/2) (x - mean of the samples), with A = diag(spectrum), for a point x; shape (d,)."""
        scaled: Array = self._root * (point_of(x, self.d) - self.center)
        return scaled

    def squared_distances(self, y: Array) -> Array:
        """Return ||y - y_i||^2 for each scaled sample y_i in `points`, shape (n,); y is what `scaled` returns."""
        squares: Array = np.maximum(self._squares - 2 * (self._points @ y) + y @ y, 0.0)
        return squares


class Quadratic(Distances):
    """f(x; x_i) = (1/2) (x - x_i)^T A (x - x_i) with A = diag(spectrum): the synthetic problem of the DPZero paper. Its
    arguments are the samples x_i, `data` of shape (n, d), and `spectrum` > 0 of shape (d,).

    The Hessian is A everywhere, and the minimiser is the mean of the data. The loss is not Lipschitz on R^d, so no
    theorem of the paper applies to it, and `lipschitz` raises PreconditionError.
    """

    @property
    def lipschitz(self) -> float:
        """Not defined, since the gradient A (x - x_i) is unbounded; raises PreconditionError."""
        raise check.PreconditionError("Assumption 2 (L-Lipschitz losses): the quadratic loss is not Lipschitz on R^d")

    def losses(self, x: Array) -> Array:
        """Return each sample's loss at x, shape (n,)."""
        return 0.5 * self.squared_distances(self.scaled(x))

    def gradients(self, x: Array) -> Array:
        """Return the gradient A (x - x_i) of each sample's loss at x, shape (n, d)."""
        return self._root * (self.scaled(x) - self._points)

    def loss(self, x: Array) -> float:
        """Return the mean of all samples' losses at x."""
        return self.gap(x) + self.minimum

    def gradient(self, x: Array) -> Array:
        """Return the gradient of the mean loss at x, which is A (x - mean of the samples x_i), shape (d,)."""
        return self._root * self.scaled(x)

    @property
    def minimum(self) -> float:
        """The minimum F_S^* of the mean loss F_S, attained at the mean of the data."""
        return 0.5 * float(self._squares.mean())

    def gap(self, x0: Array) -> float:
        """Return how far the mean loss at x0 is above its minimum, which is at the mean of the samples."""
        y = self.scaled(x0)
        return 0.5 * float(y @ y)


def point_of(x: Array, d: int, name: str = "x") -> Array:
    """Return the point x in float64; raise ValueError for a shape other than (d,), or a value that is not finite.

    The error message calls the point `name`.
    """
    point = check.real_array(name, x)
    if point.shape != (d,):
        raise ValueError(f"{name} must have shape (d,) = ({d},); got {point.shape}")
    return point
