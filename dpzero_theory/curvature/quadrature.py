"""Bounds on v^T f(A) v and on the eigenvalues of a symmetric matrix A from a few Lanczos steps that start at v.

The spectral measure of A at v has mass (v^T y)^2 at the eigenvalue of each eigenvector y. k steps determine its first 2
k moments. The k-point Gauss rule is the measure on k points that shares these moments (Golub and Meurant, "Matrices,
Moments and Quadrature", 2010).
"""

import math

import numpy as np
from scipy import special
from scipy.linalg import eigh_tridiagonal

from dpzero_theory import check
from dpzero_theory.bisection import halved, outward
from dpzero_theory.check import Array
from dpzero_theory.curvature.lanczos import Tridiagonal


def gauss_rule(tri: Tridiagonal) -> tuple[Array, Array]:
    """Return the points and weights of the Gauss rule that k Lanczos steps from a vector v give.

    `tri` is the result of the steps. The rule approximates v^T f(A) v for any function f. The weights sum to ||v||^2.
    """
    values, vectors = tri.eigen()
    return values, tri.length**2 * vectors[0] ** 2


def root_bracket(tri: Tridiagonal, power: int, signed: bool) -> tuple[float, float, float]:
    """Return (low, estimate, high) for v^T S^(1/power) v from the Lanczos steps `tri` with a matrix A from a vector v.

    S is A (power >= 2), or, where `signed`, S = A^2 (with power 2 the number is v^T |A| v).

    The lower and the upper end are theorems about every measure on [0, inf) with the known moments. With f(s) =
    s^(1/p), p being the power, the derivatives of even order are negative and those of odd order positive on (0, inf).
    So the error of a Gauss rule, f^(2j) times a positive number, makes it an upper bound, and the error of a
    Gauss-Radau rule with a point at 0 makes it a lower bound. The rules for S = A^2 follow from those moments of A^2
    that the steps with A determine, so no further product is needed; and v^T |A| v >= |v^T A v|. The estimate is the
    Gauss rule of A.

    Where the Krylov space is invariant all three are the exact value. A must be positive semidefinite unless `signed`,
    which is not checked; negative points of rounding size count as 0. Raises ValueError for a power below 2.
    """
    p = check.integer("power", power, at_least=2)
    points, weights = gauss_rule(tri)
    s = points * points if signed else np.maximum(points, 0.0)
    estimate = float(weights @ s ** (1 / p))
    if tri.last == 0:
        return estimate, estimate, estimate
    # How many moments of the spectral measure of S are known: from k Lanczos steps with A, 2 k of those of A, from the
    # zeroth on, and so k of those of A^2.
    known = len(points) if signed else 2 * len(points)
    a, b = _recurrence(s, weights, (known + 1) // 2 if signed else len(points))
    high = _rule_value(a[: known // 2], b[: max(known // 2 - 1, 0)], weights.sum(), p) if known >= 2 else math.inf
    low = _rule_value(*_radau(a, b, (known + 1) // 2), weights.sum(), p)
    if signed:
        low = max(low, abs(float(weights @ points)))
    return min(low, estimate), estimate, max(high, estimate)


def _recurrence(points: Array, weights: Array, steps: int) -> tuple[Array, Array]:
    """Return the diagonal and the off-diagonal of the Jacobi matrix of a discrete measure.

    The measure has the given points and weights. The matrix comes from at most `steps` Lanczos steps with diag(points).
    """
    basis = [np.sqrt(weights / weights.sum())]
    a, b = list[float](), list[float]()
    scale = float(np.abs(points).max())
    for _ in range(min(steps, len(points))):
        w = points * basis[-1]
        a.append(float(basis[-1] @ w))
        earlier = np.array(basis)
        for _ in range(2):
            w = w - earlier.T @ (earlier @ w)
        b.append(float(np.linalg.norm(w)))
        if b[-1] <= 1e-14 * scale:
            b[-1] = 0.0
            break
        basis.append(w / b[-1])
    return np.array(a), np.array(b)


def _radau(a: Array, b: Array, count: int) -> tuple[Array, Array]:
    """Return the Jacobi matrix (its diagonal and off-diagonal) of the Gauss-Radau rule with a point at 0.

    The rule has `count` points, or as many as the measure where that has fewer. Where the measure ends before them, so
    that its Gauss rule is exact, that rule is returned, which need not have a point at 0. The point at 0 makes the rule
    a lower bound (Golub 1973). `a` and `b` are the diagonal and the off-diagonal of the Jacobi matrix of the measure.
    """
    inner = min(count, len(a)) - 1
    if inner == 0:
        return np.zeros(1), np.zeros(0)
    if b[inner - 1] == 0:
        return a[:inner], b[: inner - 1]
    values, vectors = eigh_tridiagonal(a[:inner], b[: inner - 1])
    last = b[inner - 1] ** 2 * float(vectors[-1] ** 2 @ (1 / np.maximum(values, np.finfo(float).tiny ** 0.5)))
    return np.append(a[:inner], last), b[:inner]


def _rule_value(a: Array, b: Array, mass: float, power: int) -> float:
    """Return the integral of s^(1/power) by the quadrature rule that a Jacobi matrix stands for.

    `a` is the matrix's diagonal, `b` its off-diagonal, and `mass` the measure's total mass.
    """
    values, vectors = eigh_tridiagonal(a, b[: len(a) - 1])
    return float(mass * (vectors[0] ** 2 @ np.maximum(values, 0.0) ** (1 / power)))


def small_share(d: int, probability: float) -> float:
    """Return the number c in [0, 1] with P((v^T y)^2 < c) = `probability`, for v uniform on the unit sphere and y
    fixed on it.

    The sphere is that of R^d. (v^T y)^2 ~ Beta(1/2, (d - 1)/2); it is 1 for d = 1. Raises ValueError unless 0 <
    probability < 1 and d >= 1.
    """
    wanted = check.real("probability", probability, above=0, below=1)
    dimension = check.integer("d", d)
    return 1.0 if dimension == 1 else float(special.betaincinv(0.5, (dimension - 1) / 2, wanted))


def probable_ends(tri: Tridiagonal, d: int, failure: float) -> tuple[float, float]:
    """Return (low, high), which contain every eigenvalue of a matrix A with probability >= 1 - failure.

    `tri` is the result of k Lanczos steps with A from a vector v that is uniform on the sphere of R^d.

    Let p_0, p_1, ..., p_k be the orthonormal polynomials of the spectral measure of A at v, which the tridiagonal
    matrix T of the steps and `last` determine. The top eigenvector carries mass w of the measure, so for every
    polynomial p, int p^2 >= w p(lambda_max)^2; for the best p of degree k this is w sum_j p_j(lambda_max)^2 <= 1. With
    probability 1 - failure/2, w >= c (`small_share`), and then sum_j p_j(lambda_max)^2 <= 1/c. The left side increases
    beyond the largest Ritz value, so lambda_max is at most the point where it reaches 1/c. The same holds for
    lambda_min.

    This is the bound of van Dorsselaer, Hochstenbach and van der Vorst (SIAM J. Matrix Anal. Appl. 22, 2000), who use
    p_k alone, with the sum. As an a posteriori bound it is sharper than that of Kuczynski and Wozniakowski (1992). Both
    ends are exact where the Krylov space is invariant. Raises ValueError unless 0 < failure < 1.
    """
    values, _ = tri.eigen()
    ends = float(values[0]), float(values[-1])
    if tri.last == 0:
        return ends
    most = 1 / small_share(d, check.real("failure", failure, above=0, below=1) / 2)
    return -_outer(tri, most, -1.0, -ends[0]), _outer(tri, most, 1.0, ends[1])


def _outer(tri: Tridiagonal, most: float, sign: float, start: float) -> float:
    """Return the largest x >= start with sum_j p_j(sign * x)^2 <= most, rounded up to the next float, the safe side of
    an upper bound.

    The p_j are the orthonormal polynomials that the Lanczos steps `tri` determine, and `sign` is +1 or -1.
    """

    def below(x: float) -> bool:
        return _christoffel_sum(tri, sign * x, most) <= most

    width = max(abs(start), tri.last)
    beyond = outward(lambda x: not below(x), start + width, width)[1]
    return halved(below, start, beyond)[1]


def _christoffel_sum(tri: Tridiagonal, x: float, enough: float) -> float:
    """Return sum_j p_j(x)^2 for the orthonormal polynomials p_0, ..., p_k of the k Lanczos steps `tri`.

    The summation stops early once the sum exceeds `enough`.
    """
    off = np.append(tri.off_diagonal, tri.last)
    before, now, total = 0.0, 1.0, 1.0
    for j, b in enumerate(off):
        previous = off[j - 1] if j else 0.0
        before, now = now, ((x - tri.diagonal[j]) * now - previous * before) / b
        total += now * now
        if total > enough:
            break
    return total
