"""Quadrature rules for random vectors, exact for polynomials: oracles of the tests for expectations over directions."""

import itertools
import math

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import roots_gegenbauer

Array = NDArray[np.float64]


def sphere_rule(d: int, order: int = 4) -> tuple[Array, Array]:
    """Returns points, shape (m, d), and weights of a rule for the uniform law on the sphere of radius sqrt(d).

    It is exact for polynomials of degree < 2 * order: Gauss-Gegenbauer in the first coordinate times the rule on the
    sphere below; equal angles for d = 2.
    """
    points, weights = _unit_sphere_rule(d, order)
    return math.sqrt(d) * points, weights


def _unit_sphere_rule(d: int, order: int) -> tuple[Array, Array]:
    if d == 1:
        return np.array([[-1.0], [1.0]]), np.array([0.5, 0.5])
    if d == 2:
        angle = 2 * np.pi * (np.arange(2 * order) + 0.25) / (2 * order)
        return np.column_stack([np.cos(angle), np.sin(angle)]), np.full(2 * order, 0.5 / order)
    x, w = roots_gegenbauer(order, (d - 2) / 2)
    below, v = _unit_sphere_rule(d - 1, order)
    rows = [np.column_stack([np.full(len(v), t), math.sqrt(1 - t * t) * below]) for t in x]
    return np.vstack(rows), np.outer(w / w.sum(), v).ravel()


def gaussian_rule(d: int, order: int = 4) -> tuple[Array, Array]:
    """Returns points, shape (m, d), and weights of a rule for N(0, I_d).

    It is exact for polynomials of degree < 2 * order in each variable.
    """
    x, w = hermegauss(order)
    points = np.array(list(itertools.product(x, repeat=d)))
    return points, np.array([math.prod(v) for v in itertools.product(w / w.sum(), repeat=d)])


def sign_rule(d: int) -> tuple[Array, Array]:
    """Returns all 2^d vectors of signs as points, with equal weights."""
    points = np.array(list(itertools.product((-1.0, 1.0), repeat=d)))
    return points, np.full(len(points), 0.5**d)
