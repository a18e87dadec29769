"""Masses and moments of laws as logarithms, so that none of them overflows or underflows."""

import math

import numpy as np

from dpzero_theory.check import Array


def log_law(law: Array) -> Array:
    """Logarithms of masses, -inf where there is none."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law), dtype=np.float64)


def log_sum(log_weight: Array, rate: float, points: Array) -> float:
    """log sum_k exp(log_weight_k + rate points_k)."""
    terms = log_weight + rate * points
    top = float(np.max(terms))
    return top + math.log(float(np.sum(np.exp(terms - top))))


def log_c(tau: float) -> float:
    """Log of max_y (1 - e^{-y}) e^{-tau y}."""
    return tau * math.log(tau) - (1 + tau) * math.log1p(tau)
