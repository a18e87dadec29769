"""Tests of Lanczos, Gauss rules, brackets and intervals: against dense algebra, with the promised coverage."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats
from torch import nn

from dpzero_theory.check import PreconditionError
from dpzero_theory.curvature.intervals import Interval, quantiles
from dpzero_theory.curvature.lanczos import Operator, dot, norm, random_start, tridiagonalise
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.quadrature import probable_ends, root_bracket
from dpzero_theory.curvature.samples import measure_samples
from dpzero_theory.curvature.spectrum import Effort, Spectrum, measure_spectrum
from tests.curvature.small import (
    EFFORT,
    contains,
    full_hessian,
    generator,
    small_network,
)


def test_t_intervals() -> None:
    """The t intervals are scipy's, and wider where the draws are known only between bounds."""
    draws = np.array([1.0, 2.0, 4.0, 3.0, 7.0])
    found = Interval.of_mean(draws, 0.9, shift=10)
    low, high = stats.t.interval(0.9, 4, loc=draws.mean(), scale=stats.sem(draws))
    assert (found.low, found.high) == (pytest.approx(10 + low), pytest.approx(10 + high))
    wide = Interval.of_mean(draws, 0.9, lows=draws - 1, highs=draws + 2, shift=10)
    assert (wide.low, wide.high) == (pytest.approx(9 + low), pytest.approx(12 + high))
    with pytest.raises(ValueError, match="at least 2 draws"):
        Interval.of_mean([1.0], 0.9)


def test_quotients_take_opposite_ends_and_add_failures() -> None:
    top = Interval(2.0, 4.0, 6.0, "interval", 0.95)
    bottom = Interval(1.0, 1.0, 2.0, "probability", 0.97)
    found = top.over(bottom, 1.5, 5.0)
    assert (found.low, found.estimate, found.high) == (1.5, 4.0, 5.0)
    assert found.kind == "interval"
    assert found.level == pytest.approx(0.92)
    with pytest.raises(ValueError, match="low <= estimate <= high"):
        Interval(2.0, 1.0, 3.0, "interval", 0.95)


def test_quantiles_by_name() -> None:
    assert quantiles([3.0, 1.0, 2.0], (0.0, 0.25, 0.5, 1.0)) == {"0": 1.0, "0.25": 1.5, "0.5": 2.0, "1": 3.0}
    with pytest.raises(ValueError, match="values must be finite"):
        quantiles([1.0, math.nan], (0.5,))


def dense(matrix: np.ndarray) -> Operator:
    tensor = torch.as_tensor(matrix)
    return Operator(len(matrix), lambda v: tensor @ v)


def symmetric(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    q, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return (q * values) @ q.T


def diagonal(values: torch.Tensor) -> Operator:
    return Operator(len(values), lambda v: values * v, values.dtype, values.device)


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


def test_the_gauss_rule_shares_2k_moments() -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(50)
    v = rng.standard_normal(50)
    points, weights = tridiagonalise(diagonal(torch.as_tensor(values)), torch.as_tensor(v), 6).gauss_rule()
    for power in range(12):
        assert weights @ points**power == pytest.approx(v**2 @ values**power, rel=1e-9)
    assert weights @ points**12 != pytest.approx(v**2 @ values**12, rel=1e-6)


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(3, 30),
    steps=st.integers(1, 8),
    signed=st.booleans(),
    power=st.sampled_from([2, 4, 6]),
    decay=st.floats(0, 6),
)
def test_root_brackets_contain_the_value(
    seed: int, size: int, steps: int, signed: bool, power: int, decay: float
) -> None:
    """The brackets contain v^T |A| v and v^T A^(1/p) v, computed from eigenvalues.

    The spectra are random, from flat to steep.
    """
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.5, 1, size) * np.exp(-decay * rng.uniform(size=size))
    values = values * rng.choice([-1, 1], size) if signed else values
    v = rng.standard_normal(size)
    p = 2 if signed else power
    low, estimate, high = root_bracket(
        tridiagonalise(diagonal(torch.as_tensor(values)), torch.as_tensor(v), steps), p, signed
    )
    exact = v**2 @ (np.abs(values) if signed else values ** (1 / p))
    assert low <= exact * (1 + 1e-9)
    assert exact <= high * (1 + 1e-9)
    assert low <= estimate <= high


@pytest.mark.parametrize("d", [2, 3, 50, 10_000])
@pytest.mark.parametrize("share", [1e-9, 0.01, 0.3])
def test_probable_ends_miss_a_start_exactly_below_its_quantile(d: int, share: float) -> None:
    """For a rank-one matrix and one step, the upper end is above 1 if and only if the squared component of the start
    along the top eigenvector is not among the smallest failure/2, whose law is mpmath's."""
    squared = share / d
    start = torch.full((d,), math.sqrt((1 - squared) / (d - 1)), dtype=torch.float64)
    start[0] = math.sqrt(squared)
    steps = tridiagonalise(diagonal(torch.eye(1, d, dtype=torch.float64)[0]), start, 1)
    failure = 2 * float(mp.betainc(0.5, (d - 1) / mp.mpf(2), 0, squared, regularized=True))
    assert probable_ends(steps, d, failure * (1 - 1e-6))[1] > 1
    assert probable_ends(steps, d, failure * (1 + 1e-6))[1] < 1


def test_probable_ends_fail_exactly_as_often_as_said_where_they_are_tight() -> None:
    """Where the bounds on the eigenvalues are tight they fail exactly as often as stated.

    For a rank-one matrix and one step, the polynomials of degree <= 1 know the two-point measure, so the upper end is
    above 1 if and only if the share of the top eigenvector is at least c. Of 2,000 starts 10% are missed, within 4
    standard deviations.
    """
    values = torch.zeros(50, dtype=torch.float64)
    values[7] = 1.0
    missed = 0
    for seed in range(2_000):
        low, high = probable_ends(tridiagonalise(diagonal(values), start(seed, 50), 1), 50, failure=0.2)
        assert low <= 0
        missed += high < 1
    assert 146 <= missed <= 254


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


SMALL = Effort(search=20, probes=8, steps=8)
LEVEL = 0.95


def spectrum(name: str, d: int) -> np.ndarray:
    """Returns d numbers i^-1 or i^-1/2, every third of them negative where the name says "signs"."""
    values = np.arange(1, d + 1) ** (-0.5 if "sqrt" in name else -1.0)
    return values * np.where(np.arange(d) % 3 == 1, -1, 1) if "signs" in name else values


def measure(values: np.ndarray, seed: int = 0, effort: Effort = SMALL) -> Spectrum:
    operator = diagonal(torch.as_tensor(values, dtype=torch.float64))
    return measure_spectrum(operator, torch.Generator().manual_seed(seed), effort, LEVEL)


@pytest.mark.parametrize("name", ["1/i", "1/sqrt(i)"])
def test_trace_and_rank_at_a_hundred_thousand_dimensions(name: str) -> None:
    values = spectrum(name, 100_000)
    found = measure(values, effort=Effort(search=40, probes=16, steps=4))
    truth = values.sum()
    assert found.trace.estimate == pytest.approx(truth, rel=0.05)
    assert contains(found.trace, truth)
    assert found.trace.high / found.trace.low < 1.1
    assert contains(found.rank, truth)  # its norm is 1, and all of its eigenvalues are positive
    assert found.norm.low == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("name", ["1/i", "1/i, signs", "1/sqrt(i), signs"])
def test_intervals_cover(name: str) -> None:
    """The intervals cover the true values as often as stated.

    Of 60 repetitions at d = 300, at least 51 do; that has probability 0.995 if each covers with 0.95.
    """
    values = spectrum(name, 300)
    truth = {"trace": values.sum(), "absolute_trace": np.abs(values).sum(), "rank": np.abs(values).sum(), "norm": 1.0}
    covered = dict.fromkeys(truth, 0)
    for seed in range(60):
        found = measure(values, seed)
        for quantity, value in truth.items():
            interval: Interval = getattr(found, quantity)
            covered[quantity] += interval.low - 1e-9 <= value <= interval.high + 1e-9
    assert min(covered.values()) >= 51, covered


def test_the_trace_interval_is_not_wide_for_nothing() -> None:
    """The interval of the trace is not too wide.

    At level 50% it covers in 100 of 200 repetitions within 4 standard deviations; one twice too wide or too narrow
    would not.
    """
    values = spectrum("1/sqrt(i), signs", 300)
    operator = diagonal(torch.as_tensor(values))
    hits = 0
    for seed in range(200):
        found = measure_spectrum(
            operator, torch.Generator().manual_seed(seed), Effort(search=4, probes=8, steps=2), 0.5
        )
        hits += contains(found.trace, values.sum())
    assert 72 <= hits <= 128


def test_a_matrix_that_the_search_exhausts_is_measured_exactly() -> None:
    values = np.array([3.0, -2.0, 0.5, 0.0, 0.25])
    found = measure(values, effort=Effort(search=10, probes=2, steps=5))
    for interval, truth in (
        (found.norm, 3.0),
        (found.trace, 1.75),
        (found.absolute_trace, 5.75),
        (found.rank, 5.75 / 3),
    ):
        assert (interval.low, interval.high) == (pytest.approx(truth, rel=1e-12), pytest.approx(truth, rel=1e-12))
        assert (interval.kind, interval.level) == ("bound", 1.0)


def test_the_density_has_the_mass_and_moments_of_the_matrix() -> None:
    values = spectrum("1/sqrt(i), signs", 2_000)
    found = measure(values, effort=Effort(search=30, probes=40, steps=12))
    assert found.weights.sum() == pytest.approx(2_000, rel=1e-9)
    assert found.weights @ found.points**2 == pytest.approx((values**2).sum(), rel=0.05)
    assert found.weights[found.points < 0].sum() == pytest.approx((values < 0).sum(), rel=0.2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_measures_the_same() -> None:
    """A CUDA device measures the same numbers up to rounding, since directions are drawn on the CPU."""
    values = torch.as_tensor(spectrum("1/i, signs", 3_000))
    found = [
        measure_spectrum(diagonal(values.to(device)), torch.Generator().manual_seed(0), SMALL)
        for device in ("cpu", "cuda")
    ]
    for name in ("norm", "trace", "absolute_trace", "rank"):
        here, there = (getattr(item, name) for item in found)
        assert (here.low, here.high) == (pytest.approx(there.low, rel=1e-6), pytest.approx(there.high, rel=1e-6))


def test_the_zero_matrix_has_no_effective_rank() -> None:
    with pytest.raises(PreconditionError, match="the matrix must not be zero"):
        measure(np.zeros(10))


# The next tests use torch modules. The constants of the first come from its eigenvalues, of the others by hand.


def test_a_small_network_is_measured_within_its_intervals() -> None:
    """The norm, traces and rank of a small network's indefinite Hessian are within the measured intervals.

    They are computed from its eigenvalues.
    """
    objective = small_network()
    values = torch.linalg.eigvalsh(full_hessian(objective, objective.start))
    assert values.min() < -0.01
    found = measure_spectrum(objective.hessian(objective.start), generator(), EFFORT)
    absolute = float(values.abs().sum())
    assert found.norm.low == pytest.approx(float(values.abs().max()), rel=1e-9)
    assert contains(found.trace, float(values.sum()))
    assert contains(found.absolute_trace, absolute)
    assert found.absolute_trace.estimate == pytest.approx(absolute, rel=0.05)
    assert contains(found.rank, absolute / float(values.abs().max()))


@pytest.mark.parametrize("d", [10**6, 10**7])
def test_many_numbers_in_single_precision_hold_the_truth_of_the_identity(d: int) -> None:
    """For A = I in float32 the norm is 1 and both traces are d, up to rounding of the products.

    With sums in float32 the norm was found as 1.0005 and the trace as at least 1.0003 d, at d = 10^7.
    """
    draw, room = generator(0), 1e-6
    found = measure_spectrum(diagonal(torch.ones(d)), draw, Effort(search=3, probes=3, steps=2))
    for one, exact in ((found.norm, 1.0), (found.trace, d), (found.absolute_trace, d), (found.rank, d)):
        assert one.low * (1 - room) <= exact <= one.high * (1 + room)
    u = math.sqrt(d) * random_start(d, draw, torch.zeros(1))
    assert u.dtype == torch.float32
    assert float(u.double().square().sum()) == pytest.approx(d, rel=room)
    tri = tridiagonalise(diagonal(torch.ones(d)), 3 * u, 2)
    assert tri.length == pytest.approx(3 * d**0.5, rel=room)
    assert tri.diagonal == pytest.approx([1.0], rel=room)


def test_inner_products_are_summed_in_double_precision() -> None:
    rows = torch.randn(3, 10**6 + 17, generator=generator(1))
    torch.testing.assert_close(dot(rows, rows[1]), rows.double() @ rows[1].double(), rtol=1e-12, atol=1e-8)
    assert norm(rows[0]) == pytest.approx(float(rows[0].double().norm()), rel=1e-12)


FEW = Effort(search=2, probes=2, steps=2)


class _Point(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(d, dtype=torch.float64))


def _losses(module: nn.Module, curvatures: torch.Tensor) -> torch.Tensor:
    """Returns losses f_i(x) = sum_j h_ij x_j^2/2, whose Hessians are diag(h_i); `curvatures` are the h_ij."""
    assert isinstance(module, _Point)
    return curvatures @ module.x.square() / 2


def _problem(n: int, d: int) -> tuple[Objective, np.ndarray]:
    rng = np.random.default_rng(0)
    h = rng.standard_normal((n, d)) * rng.uniform(0.5, 1.5, (n, 1)) / np.arange(1, d + 1)
    return Objective(_Point(d).eval(), _losses, [torch.as_tensor(h)]), h


def test_upper_ends_cover_the_root_mean_square() -> None:
    """The upper end of the interval is above the true root mean square as often as stated.

    Of 20 repetitions with 8 of 30 samples at least 16 must be above; at the level 0.975 more are missed once in 9,000
    times.
    """
    objective, h = _problem(30, 20)
    truth = math.sqrt(float((np.abs(h).sum(axis=1) ** 2).mean()))
    covered, middle = 0, []
    for seed in range(20):
        found = measure_samples(objective, objective.start, torch.Generator().manual_seed(seed), 8, FEW, 0.95)
        covered += found.trace.high >= truth
        middle.append(found.trace.estimate / truth)
        assert found.count == 8
    assert covered >= 16
    assert 0.95 < float(np.mean(middle)) < 1.2


def test_all_samples_with_all_steps_are_exact() -> None:
    """With all samples and as many Lanczos steps as dimensions the measurement is exact.

    No direction is random any more, and the norm is the largest one.
    """
    objective, h = _problem(4, 6)
    every = Effort(search=6, probes=2, steps=6)
    found = measure_samples(objective, objective.start, torch.Generator().manual_seed(0), 9, every, 0.5)
    assert found.count == 4
    assert found.trace.estimate == pytest.approx(math.sqrt(float((np.abs(h).sum(axis=1) ** 2).mean())), rel=1e-9)
    assert found.norm == pytest.approx(float(np.abs(h).max()), rel=1e-9)
