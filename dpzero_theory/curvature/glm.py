"""Generalised linear models: constants that are theorems, not measurements.

f(x; a, b) = phi_b(a^T x) with |phi_b'| <= s and 0 <= phi_b'' <= c has gradient phi' a and Hessian phi'' a a^T. So for
every x: ||grad f|| <= s max ||a_i||, ||Hess f|| <= c max ||a_i||^2, and 0 <= Hess F <= H = (c/n) sum_i a_i a_i^T.

With K classes, f(x; a, b) = -log softmax(X a)_b, x = X of shape (K, m): the gradient is (p - e_b) a^T with
||p - e_b|| <= sqrt(2), and diag(p) - p p^T <= (I - 1 1^T/K)/2 (Boehning 1992), so Hess F <= H = (I - 1 1^T/K)/2
kron (1/n) sum_i a_i a_i^T, of norm half that of the second factor and (K - 1)/2 times its trace.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check

__all__ = ["Bounds", "linear_model", "softmax_model"]


@dataclass(frozen=True)
class Bounds:
    """Constants of Assumption asp:rank that hold at every x.

    lipschitz: L; smoothness: ell, of every sample; norm: ||H||_2; trace: tr(H); d: dimension of x.
    """

    lipschitz: float
    smoothness: float
    norm: float
    trace: float
    d: int

    @property
    def rank(self) -> float:
        """tr(H)/||H||_2, the effective rank of H."""
        return self.trace / self.norm


def linear_model(features: ArrayLike, slope: float = 1.0, curvature: float = 0.25) -> Bounds:
    """One output: |phi'| <= slope, 0 <= phi'' <= curvature; the defaults are those of logistic regression.

    features: a_i as rows, shape (n, m), not all zero. Raises ValueError.
    """
    s, c = check.real("slope", slope, above=0), check.real("curvature", curvature, above=0)
    longest, norm, trace, width = _moments(features)
    return Bounds(s * longest, c * longest**2, c * norm, c * trace, width)


def softmax_model(features: ArrayLike, classes: int) -> Bounds:
    """Multinomial logistic regression with K >= 2 classes. Raises ValueError."""
    k = check.integer("classes", classes, at_least=2)
    longest, norm, trace, width = _moments(features)
    return Bounds(2**0.5 * longest, longest**2 / 2, norm / 2, (k - 1) / 2 * trace, k * width)


def _moments(features: ArrayLike) -> tuple[float, float, float, int]:
    """max ||a_i||, ||(1/n) sum a_i a_i^T||_2, its trace, and m."""
    rows = check.real_array("features", features)
    if rows.ndim != 2 or not rows.any():
        raise ValueError(f"features must have shape (n, m) and not be all zero; got shape {rows.shape}")
    n, m = rows.shape
    gram = rows.T @ rows if m <= n else rows @ rows.T
    squares = np.einsum("ij,ij->i", rows, rows)
    norm = float(np.linalg.eigvalsh(gram)[-1]) / n
    return float(np.sqrt(squares.max())), norm, float(squares.mean()), m
