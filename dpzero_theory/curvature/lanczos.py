"""The Lanczos method with full reorthogonalisation, for symmetric matrices given as functions v -> A v."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array


@dataclass(frozen=True)
class Operator:
    """A symmetric matrix A of shape (d, d), given by a function that multiplies it by a vector.

    Attributes:
        d: the number of rows.
        apply: a function v -> A v, for vectors v of shape (d,).
        dtype, device: the dtype and the device of the vectors.
    """

    d: int
    apply: Callable[[Tensor], Tensor]
    dtype: torch.dtype = torch.float64
    device: torch.device | str = "cpu"


@dataclass(frozen=True)
class _Ritz:
    # Approximate eigenvalues theta_j and orthonormal eigenvectors y_j of a symmetric matrix A (Ritz pairs). An
    # eigenvalue of A lies within the residual rho_j = ||A y_j - theta_j y_j|| of theta_j, and all theta_j lie between
    # the smallest and the largest eigenvalue of A

    values: Array  # The theta_j, ascending, shape (k,)
    residuals: Array  # The rho_j, shape (k,)
    vectors: Tensor  # The y_j as rows, shape (k, d)


@dataclass(frozen=True)
class Tridiagonal:
    """The result of k steps of the Lanczos method from a starting vector, for a symmetric (d, d) matrix A.

    The result is the tridiagonal matrix T = Q^T A Q for an orthonormal basis Q = (q_1, ..., q_k) of the Krylov space,
    which v, A v, ..., A^(k - 1) v span for the starting vector v = length * q_1.

    Attributes:
        diagonal, off_diagonal: the entries of T, of shapes (k,) and (k - 1,).
        last: the norm of the part of A q_k outside the Krylov space; 0 if A maps the space into itself.
        length: the norm of the starting vector.
        basis: the vectors q_j as rows, shape (k, d), or None if they were not kept.
    """

    diagonal: Array
    off_diagonal: Array
    last: float
    length: float
    basis: Tensor | None

    def eigen(self) -> tuple[Array, Array]:
        """Return the eigenvalues of the tridiagonal matrix T, ascending, and its eigenvectors as columns."""
        values, vectors = eigh_tridiagonal(self.diagonal, self.off_diagonal)
        return np.asarray(values, np.float64), np.asarray(vectors, np.float64)

    def gauss_rule(self) -> tuple[Array, Array]:
        """Return the points and weights, both of shape (k,), of the Gauss rule that the k Lanczos steps determine.

        The sum of weight times f(point) approximates v^T f(A) v for any function f of the matrix A, where v is the
        vector from which the steps start. The weights sum to ||v||^2.
        """
        values, vectors = self.eigen()
        return values, self.length**2 * vectors[0] ** 2

    def residuals(self) -> Array:
        """Return for each of the k eigenvalues theta of the tridiagonal matrix T, ascending as in `eigen`, a distance
        within which the matrix A has an eigenvalue, shape (k,): ||A y - theta y|| for y = Q s, where s is theta's
        eigenvector of norm 1, and Q has the k basis vectors as columns."""
        # For Lanczos steps the norm is `last` times the absolute last component of s
        return np.asarray(self.last * np.abs(self.eigen()[1][-1]), np.float64)

    def ritz(self, accuracy: float | None = None) -> _Ritz:
        """Return approximate eigenvalues theta and eigenvectors y of the matrix A (Ritz pairs), with the attributes
        `values`, ascending, and `residuals`, of shape (pairs,), and `vectors`, orthonormal rows, shape (pairs, d).

        Args:
            accuracy: if given, only the pairs are returned, perhaps none, whose residual ||A y - theta y|| is at most
                `accuracy` times |theta|. If None, all pairs, one for each of the k steps.

        Raises:
            PreconditionError: the basis was not kept (`tridiagonalise` keeps it with keep_basis=True).
        """
        check.precondition(self.basis is not None, "Ritz vectors need the basis: keep_basis=True")
        assert self.basis is not None
        (values, vectors), residuals = self.eigen(), self.residuals()
        kept = slice(None) if accuracy is None else residuals <= accuracy * np.abs(values)
        rotation = torch.as_tensor(vectors.T[kept], dtype=self.basis.dtype, device=self.basis.device)
        return _Ritz(values[kept], residuals[kept], rotation @ self.basis)


_BLOCK = 2**16  # To save memory, vectors are converted to float64 this many numbers at a time


def dot(a: Tensor, v: Tensor) -> Tensor:
    """Return the inner products of a vector v with the rows of a matrix, or with another vector, in float64.

    Args:
        a: the matrix, shape (k, d), for a result of shape (k,); or the vector, shape (d,), for a result of shape ().
        v: shape (d,).
    """
    # Torch would sum the products of float32 vectors on a CPU in few running float32 sums: the norm of 10^7 normal
    # numbers is then too small by 4e-4, and the norm of 10^8 by 1%.
    total = v.new_zeros(a.shape[:-1], dtype=torch.float64)
    for at in range(0, len(v), _BLOCK):
        total += a[..., at : at + _BLOCK].double() @ v[at : at + _BLOCK].double()
    return total


def norm(v: Tensor) -> float:
    """Return the Euclidean norm of a vector, summed in float64."""
    return math.sqrt(float(dot(v, v)))


def random_start(d: int, generator: torch.Generator, like: Operator | Tensor) -> Tensor:
    """Return a random vector, shape (d,), uniform on the unit sphere of R^d.

    Args:
        d: the dimension.
        generator: a CPU generator, so that every device gets the same vector.
        like: has the dtype and the device of the result.
    """
    z = torch.randn(d, generator=generator, dtype=like.dtype)
    unit: Tensor = z / norm(z)
    return unit.to(like.device)


def tridiagonalise(operator: Operator, start: Tensor, steps: int, keep_basis: bool = False) -> Tridiagonal:
    """Run the Lanczos method for at most `steps` steps; each multiplies a matrix A by a vector once.

    Fewer steps are made if A maps the space that the basis so far spans into itself; `last` of the result is then 0.

    Args:
        operator: the matrix A, symmetric of shape (d, d).
        start: a vector of shape (d,) that is not zero.
        steps: the largest number of steps, at least 1.
        keep_basis: whether the result has the orthonormal basis of this space too, which needs steps * d numbers.

    Raises:
        ValueError: a start of another shape, or zero, or a product that is not finite.
    """
    k = min(check.integer("steps", steps), operator.d)
    if start.shape != (operator.d,):
        raise ValueError(f"start must have shape (d,) = ({operator.d},); got {tuple(start.shape)}")
    length = check.real("norm of start", norm(start), above=0)
    basis = start.new_empty((k, operator.d))
    basis[0] = start / length
    diagonal, off_diagonal = np.zeros(k), np.zeros(k)
    largest = 0.0
    for j in range(k):
        w = operator.apply(basis[j])
        size = norm(w)
        if not math.isfinite(size):
            raise ValueError(f"products of the operator must be finite; got norm {size}")
        largest = max(largest, size)
        diagonal[j] = float(dot(basis[j], w))
        # After one orthogonalisation rounding errors can be large beside a small w; after two they are not.
        for _ in range(2):
            w = w - dot(basis[: j + 1], w).to(w.dtype) @ basis[: j + 1]
        off_diagonal[j] = norm(w)
        if off_diagonal[j] <= 16 * torch.finfo(operator.dtype).eps * largest:
            off_diagonal[j], k = 0.0, j + 1
            break
        if j + 1 < k:
            basis[j + 1] = w / off_diagonal[j]
    return Tridiagonal(
        diagonal[:k], off_diagonal[: k - 1], float(off_diagonal[k - 1]), length, basis[:k] if keep_basis else None
    )
