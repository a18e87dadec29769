"""Losses that meet the paper's Assumption 2 with known constants: pseudo-Huber and logistic regression.

Each class has n samples in d dimensions, losses(x) of shape (n,), gradients(x) of shape (n, d), and their averages
loss(x) and gradient(x). Of the constants of Assumption 2 it has lipschitz (L), smoothness (ell) and the effective rank
r, and gap(x0) is an upper bound on F_S(x0) - F_S^*, where F_S is the average loss and F_S^* its minimum.
"""

import math
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.special import expit

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.synthetic.problems import Distances, point_of

Rows = Array | csr_array

_WEISZFELD_STEPS = 1000


class PseudoHuber(Distances):
    """f(x; x_i) = sqrt(1 + q_i) - 1, q_i = (x - x_i)^T A (x - x_i): Assumption 2 holds with H = A.

    data: x_i, shape (n, d); spectrum: eigenvalues of A, positive, shape (d,); else ValueError is raised.

    Proof, with v = x - x_i and s = sqrt(1 + q_i):

        gradient  A v/s, of norm at most ||A^(1/2)||_2 sqrt(q_i)/s < ||A||_2^(1/2), so L = ||A||_2^(1/2);
        Hessian   A/s - A v v^T A/s^3 <= A/s <= A, since s >= 1; and it is >= 0, for
                  s^3 w^T Hess w = (1 + q_i) w^T A w - (w^T A v)^2 >= w^T A w >= 0 by Cauchy-Schwarz.

    So each f_i is convex with 0 <= Hess <= A, hence ||A||_2-smooth, and so is the average. With ||A||_2 = 1,
    as for the paper's spectra, L = ell = 1 and r = tr(A).
    """

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant L = ||A||_2^(1/2), the supremum of the gradient's norm."""
        return math.sqrt(self.smoothness)

    def losses(self, x: Array) -> Array:
        """Returns each sample's loss at x, shape (n,)."""
        return _pseudo_huber(self.squared_distances(self.scaled(x)))

    def gradients(self, x: Array) -> Array:
        """Each sample's gradient A (x - x_i)/sqrt(1 + q_i), where q_i = (x - x_i)^T A (x - x_i); shape (n, d)."""
        y = self.scaled(x)
        return self._root * (y - self.points) * _weights(self.squared_distances(y))[:, None]

    def loss(self, x: Array) -> float:
        """Returns the mean of all samples' losses at x."""
        return float(self.losses(x).mean())

    def gradient(self, x: Array) -> Array:
        """Returns the gradient of the mean loss at x, shape (d,)."""
        y = self.scaled(x)
        return self._root * self._scaled_gradient(y, _weights(self.squared_distances(y)))

    @cached_property
    def minimum_bounds(self) -> tuple[float, float]:
        """A lower and an upper bound on the minimum F_S^* of the mean loss, usually at most 1e-12 (1 + F_S^*) apart.

        Weiszfeld's iteration y <- sum w_i y_i/sum w_i, with w_i = 1/sqrt(1 + q_i), decreases F_S. A minimiser is such a
        weighted mean, so it lies in the convex hull of the data, and convexity bounds F_S^* from below by F_S(y) +
        min_i grad^T (y_i - y) at any y, whether or not the iteration (at most 1,000 steps) has converged.
        """
        y = np.zeros(self.d)
        lower, upper = 0.0, math.inf
        for _ in range(_WEISZFELD_STEPS):
            squares = self.squared_distances(y)
            weights = _weights(squares)
            gradient = self._scaled_gradient(y, weights)
            value = float(_pseudo_huber(squares).mean())
            upper = min(upper, value)
            lower = max(lower, value + float((self.points @ gradient).min() - gradient @ y))
            if upper - lower <= 1e-12 * (1 + upper):
                break
            y = (self.points.T @ weights) / weights.sum()
        return min(lower, upper), upper

    def gap(self, x0: Array) -> float:
        """Returns an upper bound on how far the mean loss at x0 is above its minimum, up to rounding: the loss less the
        lower bound of `minimum_bounds`. It is usually at most 1e-12 (1 + F_S^*) too large.
        """
        return max(self.loss(x0) - self.minimum_bounds[0], 0.0)

    def _scaled_gradient(self, y: Array, weights: Array) -> Array:
        gradient: Array = weights.mean() * y - (self.points.T @ weights) / self.n
        return gradient


class LogisticRegression:
    """f(x; a_i, b_i) = log(1 + exp(-b_i a_i^T x)), every row a_i scaled to the public norm R.

    features: shape (n, d), dense or a scipy.sparse.csr_array; labels: b_i in {-1, +1}, shape (n,); row_norm:
    R > 0, chosen before seeing data. A row is scaled by its own norm alone, so the constants below hold for
    every data set and cost no privacy; a zero row stays zero. No penalty: an L2 term is not Lipschitz.

    L = R, since the gradient is -b_i expit(-b_i a_i^T x) a_i. Each Hessian is expit (1 - expit) a_i a_i^T, so
    ell = R^2/4, and 0 <= Hess F_S <= H = (1/(4n)) sum_i a_i a_i^T, with ||H||_2 <= tr(H) <= R^2/4 = ell.
    Raises ValueError for arguments of other shapes or values.
    """

    def __init__(self, features: ArrayLike | csr_array, labels: ArrayLike, row_norm: float = 1.0) -> None:
        self.row_norm = check.real("row_norm", row_norm, above=0)
        rows: Rows
        if isinstance(features, csr_array):
            check.real_array("features", features.data)
            rows = features.astype(np.float64, copy=True)
            rows.sum_duplicates()
        else:
            rows = check.real_array("features", features)
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(f"features must have shape (n, d), n >= 1, d >= 1; got {rows.shape}")
        self.n, self.d = int(rows.shape[0]), int(rows.shape[1])
        signs = check.real_array("labels", labels)
        if signs.shape != (self.n,) or not np.isin(signs, (-1.0, 1.0)).all():
            raise ValueError(f"labels must be -1 or +1, shape (n,) = ({self.n},); got shape {signs.shape}")
        self._rows = _signed_rows(rows, signs, self.row_norm)

    @property
    def rows(self) -> Rows:
        """The vectors b_i a_i, where b_i is a label and a_i a sample's features, scaled to norm R; shape (n, d)."""
        return self._rows

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant L of every sample's loss, which is R, the norm of the rows of features."""
        return self.row_norm

    @property
    def smoothness(self) -> float:
        """The smoothness ell of every sample's loss, which is R^2/4, where R is the norm of the rows of features."""
        return self.row_norm**2 / 4

    @property
    def r(self) -> float:
        """The rank constant r of the paper's Assumption 2, which is 1 for every data set, hence public.

        It is max(1, tr(H)/ell), where H bounds the Hessians and ell is the smoothness. The proofs of the paper use
        Assumption 2 only through tr(H) <= r ell and ||H||_2 <= ell, which hold with this r. To the letter, tr(H) <= r
        ||H||_2, it needs tr(H)/||H||_2 for this H, a number that depends on the data; or the larger H + (ell - ||H||_2)
        v v^T, v the top eigenvector of H, and then r = 1 + (tr(H) - ||H||_2)/ell <= 2.
        """
        return 1.0

    def losses(self, x: Array) -> Array:
        """Returns each sample's loss at x, shape (n,)."""
        return np.logaddexp(0.0, -self.margins(x))

    def gradients(self, x: Array) -> Array:
        """The gradient of each sample's loss at x, as a dense array of shape (n, d)."""
        return _dense(_scale(self._rows, -expit(-self.margins(x))))

    def loss(self, x: Array) -> float:
        """Returns the mean of all samples' losses at x."""
        return float(self.losses(x).mean())

    def gradient(self, x: Array) -> Array:
        """Returns the gradient of the mean loss at x, shape (d,)."""
        gradient: Array = -(self._rows.T @ expit(-self.margins(x))) / self.n
        return gradient

    def margins(self, x: Array) -> Array:
        """Returns the margins b_i a_i^T x, shape (n,), positive where the sign of a_i^T x is the label b_i."""
        return np.asarray(self._rows @ point_of(x, self.d))

    def gap(self, x0: Array) -> float:
        """An upper bound on F_S(x0) - F_S^*, how far the mean loss is above its infimum: log(1 + exp(R ||x0||)).

        It is log 2 at x0 = 0. It holds for every data set, and so is public: F_S^* >= 0, and F_S(x0) is at most this
        number.
        """
        return float(np.logaddexp(0.0, self.row_norm * np.linalg.norm(point_of(x0, self.d))))


def _pseudo_huber(squares: Array) -> Array:
    # This is sqrt(1 + squares) - 1 without cancellation.
    values: Array = squares / (np.sqrt(1 + squares) + 1)
    return values


def _weights(squares: Array) -> Array:
    return 1 / np.sqrt(1 + squares)


def _squared_norms(rows: Rows) -> Array:
    if isinstance(rows, csr_array):
        return np.asarray(rows.multiply(rows).sum(axis=1), np.float64).ravel()
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _scale(rows: Rows, factors: Array) -> Rows:
    if isinstance(rows, csr_array):
        data = rows.data * np.repeat(factors, np.diff(rows.indptr))
        return csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
    scaled: Array = factors[:, None] * rows
    return scaled


def _signed_rows(rows: Rows, signs: Array, norm: float) -> Rows:
    """Returns the rows times their labels, each scaled to length `norm`; a zero row stays zero.

    `signs` are the labels, +1 or -1. Each row is divided by its largest entry first, so that its squared norm cannot
    overflow.
    """
    if isinstance(rows, csr_array):
        largest = np.asarray(abs(rows).max(axis=1).toarray(), np.float64).ravel()
    else:
        largest = np.asarray(np.abs(rows).max(axis=1))
    unit = _scale(rows, 1 / np.maximum(largest, 1e-300))
    lengths = np.sqrt(_squared_norms(unit))
    return _scale(unit, signs * norm / np.where(lengths > 0, lengths, 1.0))


def _dense(rows: Rows) -> Array:
    return np.asarray(rows.toarray()) if isinstance(rows, csr_array) else rows
