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
    """A symmetric (d, d) matrix A, given by a function that multiplies it by a vector.

    Attributes:
        d: the number of rows.
        apply: a function that returns A v for a vector v of shape (d,).
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
    """The result of k steps of the Lanczos method from a starting vector v, for a symmetric (d, d) matrix A.

    It is the tridiagonal matrix T = Q^T A Q, where the columns q_1, ..., q_k of Q are an orthonormal basis of the space
    that v, A v, ..., A^(k - 1) v span (the Krylov space), and v = length q_1.

    Attributes:
        diagonal, off_diagonal: the entries of T, of shapes (k,) and (k - 1,).
        last: the norm of the part of A q_k outside the Krylov space; 0 if A maps the space into itself.
        length: the norm of v.
        basis: the vectors q_j as rows, shape (k, d); None if they were not kept.
    """

    diagonal: Array
    off_diagonal: Array
    last: float
    length: float
    basis: Tensor | None

    def eigen(self) -> tuple[Array, Array]:
        """Return the eigenvalues of the tridiagonal matrix T, ascending, shape (k,), and its eigenvectors as columns,
        (k, k)."""
        values, vectors = eigh_tridiagonal(self.diagonal, self.off_diagonal)
        return np.asarray(values, np.float64), np.asarray(vectors, np.float64)

    def gauss_rule(self) -> tuple[Array, Array]:
        """Return points and weights, each of shape (k,), with which the sum of weight f(point) approximates v^T f(A) v.

        A is the matrix, v the starting vector and f any function of a real number. The weights sum to ||v||^2.
        """
        values, vectors = self.eigen()
        return values, self.length**2 * vectors[0] ** 2

    def residuals(self) -> Array:
        """Return for each eigenvalue theta of the tridiagonal matrix, ascending, the distance ||A y - theta y||, shape
        (k,). The matrix A has an eigenvalue within this distance of theta; y is the approximate unit eigenvector of A
        that belongs to theta. The basis need not have been kept."""
        # In exact arithmetic ||A y - theta y|| is `last` times the absolute last component of T's unit eigenvector
        return np.asarray(self.last * np.abs(self.eigen()[1][-1]), np.float64)

    def ritz(self, accuracy: float | None = None) -> _Ritz:
        """Return approximate eigenvalues and eigenvectors of A (Ritz pairs), at most k of them.

        Args:
            accuracy: if given, only pairs (theta, y) with ||A y - theta y|| <= accuracy |theta| are returned; there may
                be none. If None, all k pairs are returned.

        Returns:
            An object with the eigenvalues `values`, ascending, shape (pairs,); `residuals` ||A y - theta y||, shape
            (pairs,); and the orthonormal eigenvectors `vectors` as rows, shape (pairs, d).

        Raises:
            PreconditionError: the basis was not kept (keep_basis=True of `tridiagonalise` keeps it).
        """
        check.precondition(self.basis is not None, "Ritz vectors need the basis: keep_basis=True")
        assert self.basis is not None
        (values, vectors), residuals = self.eigen(), self.residuals()
        kept = slice(None) if accuracy is None else residuals <= accuracy * np.abs(values)
        rotation = torch.as_tensor(vectors.T[kept], dtype=self.basis.dtype, device=self.basis.device)
        return _Ritz(values[kept], residuals[kept], rotation @ self.basis)


_BLOCK = 2**16  # To save memory, vectors are converted to float64 this many numbers at a time


def dot(a: Tensor, v: Tensor) -> Tensor:
    """Return inner products with a vector v, computed in float64.

    Args:
        a: a matrix, shape (k, d), whose rows are multiplied with v, or one vector, shape (d,).
        v: a vector, shape (d,).

    Returns:
        A float64 tensor of shape (k,) for a matrix, or () for a vector.
    """
    # Torch would sum the products of float32 vectors on a CPU in few running float32 sums: the norm of 10^7 normal
    # numbers is then too small by 4e-4, and the norm of 10^8 by 1%.
    total = v.new_zeros(a.shape[:-1], dtype=torch.float64)
    for at in range(0, len(v), _BLOCK):
        total += a[..., at : at + _BLOCK].double() @ v[at : at + _BLOCK].double()
    return total


def norm(v: Tensor) -> float:
    """Return the Euclidean norm of a vector, computed in float64."""
    return math.sqrt(float(dot(v, v)))


def random_start(d: int, generator: torch.Generator, like: Operator | Tensor) -> Tensor:
    """Return a random unit vector, uniform on the sphere, shape (d,).

    Args:
        d: the dimension.
        generator: a CPU generator, so that every device gets the same vector.
        like: an operator or a tensor with the dtype and the device of the result.
    """
    z = torch.randn(d, generator=generator, dtype=like.dtype)
    unit: Tensor = z / norm(z)
    return unit.to(like.device)


def tridiagonalise(operator: Operator, start: Tensor, steps: int, keep_basis: bool = False) -> Tridiagonal:
    """Run the Lanczos method with full reorthogonalisation for at most `steps` steps.

    Each step multiplies the matrix by a vector once. The run ends early if the matrix maps the space that the basis
    vectors so far span into itself; `Tridiagonal.last` is then 0.

    Args:
        operator: the symmetric (d, d) matrix.
        start: the starting vector, not zero, shape (d,).
        steps: the largest number of steps, at least 1.
        keep_basis: True to keep the basis vectors in the result, which takes steps * d numbers.

    Raises:
        ValueError: start has another shape or is zero, or a product with the matrix is not finite.
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
