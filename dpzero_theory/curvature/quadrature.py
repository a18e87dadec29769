"""Bounds on v^T f(A) v and on the eigenvalues of a symmetric matrix A from a few Lanczos steps that start at a vector
v.

The spectral measure of A at v has mass (v^T y)^2 at the eigenvalue of each eigenvector y. k steps determine its first 2
k moments. The k-point Gauss rule is the measure on k points with the same moments (Golub and Meurant, "Matrices,
Moments and Quadrature", 2010). A measure is given here by its Jacobi matrix, the tridiagonal matrix of Lanczos steps.
"""

import math

import numpy as np
from scipy import special
from scipy.linalg import eigh_tridiagonal

from dpzero_theory import check
from dpzero_theory.bisection import halved, outward
from dpzero_theory.check import Array
from dpzero_theory.curvature.lanczos import Tridiagonal


def root_bracket(tri: Tridiagonal, power: int, signed: bool) -> tuple[float, float, float]:
    """Return bounds on v^T S^(1/p) v, and an estimate, where S is a symmetric matrix A or its square.

    Args:
        tri: the result of Lanczos steps with A from the vector v.
        power: the integer p >= 2.
        signed: if True, S = A^2; with p = 2 the number is then v^T |A| v. If False, S = A, which must be positive
            semidefinite; this is not checked.

    Returns:
        (low, estimate, high). low and high are certain apart from rounding. All three are the exact number if A maps
        the space that the steps span into itself.

    Raises:
        ValueError: power is below 2.
    """
    # The number is the integral of f(s) = s^(1/p) over the spectral measure of S at v. The estimate is the integral by
    # the Gauss rule of A: of x^(1/p), where points x below 0 count as 0, or, for S = A^2, of |x|^(2/p)
    p = check.integer("power", power, at_least=2)
    points, weights = tri.gauss_rule()
    s = points * points if signed else np.maximum(points, 0.0)
    estimate = float(weights @ s ** (1 / p))
    if tri.last == 0:
        return estimate, estimate, estimate
    # k Lanczos steps with A give the first 2 k moments of the spectral measure of A, from the zeroth on, and so the
    # first k of the measure of A^2 without a further product. `low` and `high` hold for every measure on [0, inf) with
    # the first `known` moments: f(s) = s^(1/p) has negative derivatives of even order on (0, inf), and positive ones of
    # odd order. So the error of a Gauss rule, f^(2j) times a positive number, makes it an upper bound, and the error of
    # a Gauss-Radau rule with a point at 0 makes it a lower bound. For A^2 and p = 2, |v^T A v| is a lower bound too
    known = len(points) if signed else 2 * len(points)
    a, b = _recurrence(s, weights, (known + 1) // 2 if signed else len(points))
    high = _rule_value(a[: known // 2], b[: max(known // 2 - 1, 0)], weights.sum(), p) if known >= 2 else math.inf
    low = _rule_value(*_radau(a, b, (known + 1) // 2), weights.sum(), p)
    if signed:
        low = max(low, abs(float(weights @ points)))
    return min(low, estimate), estimate, max(high, estimate)


def _recurrence(points: Array, weights: Array, steps: int) -> tuple[Array, Array]:
    # Returns the diagonal and the off-diagonal of the Jacobi matrix of the measure with mass weights[j] at points[j],
    # by Lanczos steps. It has `steps` rows, or fewer if the measure has fewer points
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
    # Returns the diagonal and off-diagonal of the Jacobi matrix of the Gauss-Radau rule with a point at 0 (Golub 1973).
    # It has `count` >= 1 points, or fewer if the measure, whose Jacobi matrix has the diagonal a and the off-diagonal
    # b, has fewer
    inner = min(count, len(a)) - 1
    if inner == 0:
        return np.zeros(1), np.zeros(0)
    if b[inner - 1] == 0:  # The measure has no further points: its Gauss rule is exact, with a point at 0 or without
        return a[:inner], b[: inner - 1]
    values, vectors = eigh_tridiagonal(a[:inner], b[: inner - 1])
    last = b[inner - 1] ** 2 * float(vectors[-1] ** 2 @ (1 / np.maximum(values, np.finfo(float).tiny ** 0.5)))
    return np.append(a[:inner], last), b[:inner]


def _rule_value(a: Array, b: Array, mass: float, power: int) -> float:
    # Returns the integral of s^(1/power) by the Gauss rule of total weight `mass` whose Jacobi matrix has this diagonal
    # and off-diagonal
    values, vectors = eigh_tridiagonal(a, b[: len(a) - 1])
    return float(mass * (vectors[0] ** 2 @ np.maximum(values, 0.0) ** (1 / power)))


def _small_share(d: int, probability: float) -> float:
    # Returns c with P((v^T y)^2 < c) = `probability`, for v uniform and y fixed on the unit sphere of R^d:
    # (v^T y)^2 has the distribution Beta(1/2, (d - 1)/2)
    return 1.0 if d == 1 else float(special.betaincinv(0.5, (d - 1) / 2, probability))


def probable_ends(tri: Tridiagonal, d: int, failure: float) -> tuple[float, float]:
    """Return (low, high), between which all eigenvalues of a symmetric matrix lie with probability at least 1 -
    failure.

    They are the smallest and the largest eigenvalue if the matrix maps the space that the Lanczos steps span into
    itself.

    Args:
        tri: the result of Lanczos steps from a random vector, uniform on a sphere around 0 in R^d.
        d: the dimension.
        failure: the probability, in (0, 1), with which an eigenvalue may lie outside.

    Raises:
        ValueError: failure is outside its range.
    """
    # Let p_0, ..., p_k be the orthonormal polynomials of the spectral measure of A at v. The top eigenvector carries
    # mass w of the measure, so for every polynomial p, int p^2 >= w p(lambda_max)^2; for p = sum_j p_j(lambda_max) p_j
    # this is w sum_j p_j(lambda_max)^2 <= 1. With probability 1 - failure/2, w >= c (`_small_share`), and then the sum
    # is at most 1/c. The sum increases beyond the largest Ritz value, so lambda_max is at most the point where it
    # reaches 1/c. The same holds for lambda_min. (After Van Dorsselaer et al., SIAM J. Matrix Anal. Appl. 22, 2000.)
    values, _ = tri.eigen()
    ends = float(values[0]), float(values[-1])
    if tri.last == 0:
        return ends
    most = 1 / _small_share(d, check.real("failure", failure, above=0, below=1) / 2)
    return -_outer(tri, most, -1.0, -ends[0]), _outer(tri, most, 1.0, ends[1])


def _outer(tri: Tridiagonal, most: float, sign: float, start: float) -> float:
    # Returns the largest x >= start with sum_j p_j(sign * x)^2 <= most, rounded up to the next float, for the
    # orthonormal polynomials p_j of the steps `tri`. The sum increases from `start` on, where it is at most `most`

    def below(x: float) -> bool:
        return _christoffel_sum(tri, sign * x, most) <= most

    width = max(abs(start), tri.last)
    beyond = outward(lambda x: not below(x), start + width, width)[1]
    return halved(below, start, beyond)[1]


def _christoffel_sum(tri: Tridiagonal, x: float, enough: float) -> float:
    # Returns sum_j p_j(x)^2 for the polynomials p_0, ..., p_k that are orthonormal for the spectral measure of the k
    # steps `tri`; the summation stops early if it exceeds `enough`
    off = np.append(tri.off_diagonal, tri.last)
    before, now, total = 0.0, 1.0, 1.0
    for j, b in enumerate(off):
        previous = off[j - 1] if j else 0.0
        before, now = now, ((x - tri.diagonal[j]) * now - previous * before) / b
        total += now * now
        if total > enough:
            break
    return total
