"""Tests of norm, traces and effective rank on known spectra, with the coverage that the intervals promise."""

import numpy as np
import pytest
import torch

from dpzero_theory.check import PreconditionError
from dpzero_theory.curvature.intervals import Interval
from dpzero_theory.curvature.lanczos import diagonal, dot, norm, tridiagonalise
from dpzero_theory.curvature.slopes import sphere_direction
from dpzero_theory.curvature.spectrum import Effort, Spectrum, measure_spectrum
from tests.curvature.small import (
    EFFORT,
    contains,
    full_hessian,
    generator,
    small_network,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


SMALL = Effort(search=20, probes=8, steps=8)
LEVEL = 0.95


def spectrum(name: str, d: int) -> np.ndarray:
    """Returns d numbers i^-1 or i^-1/2, every third of them negative where the name says "signs"."""
    values = np.arange(1, d + 1) ** (-0.5 if "sqrt" in name else -1.0)
    return values * np.where(np.arange(d) % 3 == 1, -1, 1) if "signs" in name else values


def measure(values: np.ndarray, seed: int = 0, effort: Effort = SMALL, positive: bool = False) -> Spectrum:
    operator = diagonal(torch.as_tensor(values, dtype=torch.float64))
    return measure_spectrum(operator, torch.Generator().manual_seed(seed), effort, LEVEL, positive=positive)


@pytest.mark.parametrize("name", ["1/i", "1/sqrt(i)"])
def test_effective_rank_at_a_hundred_thousand_dimensions(name: str) -> None:
    values = spectrum(name, 100_000)
    found = measure(values, effort=Effort(search=40, probes=16, steps=4), positive=True)
    truth = values.sum()
    assert found.rank.estimate == pytest.approx(truth, rel=0.05)
    assert contains(found.rank, truth)
    assert found.rank.high / found.rank.low < 1.1
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
    u = sphere_direction(d, draw, torch.zeros(1))
    assert u.dtype == torch.float32
    assert float(u.double().square().sum()) == pytest.approx(d, rel=room)
    tri = tridiagonalise(diagonal(torch.ones(d)), 3 * u, 2)
    assert tri.length == pytest.approx(3 * d**0.5, rel=room)
    assert tri.diagonal == pytest.approx([1.0], rel=room)


def test_inner_products_are_summed_in_double_precision() -> None:
    rows = torch.randn(3, 10**6 + 17, generator=generator(1))
    torch.testing.assert_close(dot(rows, rows[1]), rows.double() @ rows[1].double(), rtol=1e-12, atol=1e-8)
    assert norm(rows[0]) == pytest.approx(float(rows[0].double().norm()), rel=1e-12)
