"""Tests of the Lanczos method against dense linear algebra."""

import math

import numpy as np
import pytest
import torch

from dpzero_theory.curvature.lanczos import Operator, diagonal, random_start, tridiagonalise


def dense(matrix: np.ndarray) -> Operator:
    tensor = torch.as_tensor(matrix)
    return Operator(len(matrix), lambda v: tensor @ v)


def symmetric(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    q, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return (q * values) @ q.T


def start(seed: int, d: int) -> torch.Tensor:
    return random_start(d, torch.Generator().manual_seed(seed), diagonal(torch.ones(d, dtype=torch.float64)))


def test_the_basis_is_orthonormal_and_reduces_the_matrix() -> None:
    rng = np.random.default_rng(0)
    matrix = symmetric(rng, rng.standard_normal(60))
    tri = tridiagonalise(dense(matrix), 3 * start(1, 60), 25, keep_basis=True)
    assert tri.basis is not None
    basis = tri.basis.numpy()
    reduced = np.diag(tri.diagonal) + np.diag(tri.off_diagonal, 1) + np.diag(tri.off_diagonal, -1)
    np.testing.assert_allclose(basis @ basis.T, np.eye(25), atol=1e-13)
    np.testing.assert_allclose(basis @ matrix @ basis.T, reduced, atol=1e-13)
    assert tri.length == pytest.approx(3)


def test_an_eigenvalue_lies_within_the_residual_of_each_ritz_value() -> None:
    """An eigenvalue lies within the residual of each Ritz value, and Ritz values between the ends of the spectrum.

    Both hold up to rounding, which is at most d^2 eps ||A|| (Wilkinson).
    """
    rng = np.random.default_rng(1)
    matrix = symmetric(rng, rng.standard_normal(80))
    exact = np.linalg.eigvalsh(matrix)
    tri = tridiagonalise(dense(matrix), start(2, 80), 20, keep_basis=True)
    ritz = tri.ritz()
    for value, residual, vector in zip(ritz.values, ritz.residuals, ritz.vectors.numpy(), strict=True):
        assert np.abs(exact - value).min() <= residual + 1e-12
        assert np.linalg.norm(matrix @ vector - value * vector) == pytest.approx(residual, abs=1e-12)
    room = len(matrix) ** 2 * np.finfo(float).eps * np.abs(exact).max()
    assert exact[0] - room <= ritz.values[0] <= ritz.values[-1] <= exact[-1] + room


def test_it_refuses_what_is_not_a_start_or_not_finite() -> None:
    operator = diagonal(torch.ones(4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"start must have shape \(d,\) = \(4,\); got \(3,\)"):
        tridiagonalise(operator, torch.ones(3, dtype=torch.float64), 2)
    with pytest.raises(ValueError, match="norm of start must be"):
        tridiagonalise(operator, torch.zeros(4, dtype=torch.float64), 2)
    with pytest.raises(ValueError, match="products of the operator must be finite"):
        tridiagonalise(Operator(4, lambda v: v * math.nan), torch.ones(4, dtype=torch.float64), 2)
