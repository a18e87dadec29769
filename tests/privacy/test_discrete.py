"""Noise on integers beside continuous noise: sums over all outputs, laws point by point, and exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.mechanism import _KERNEL, MECHANISMS, _discrete_gap
from tests.privacy import oracle
from tests.privacy.oracle import made

Array = NDArray[np.float64]


def brute_force(epsilon: float, sigma: float, shift: tuple[int, ...], q: float, steps: int, relation: str) -> float:
    """Returns delta of so many Poisson-subsampled discrete Gaussian releases whose record moves the sum by an integer
    vector, summed over all outputs up to 12 standard deviations."""
    reach = int(12 * sigma) + max(shift)
    axis = np.arange(-reach, reach + 1)
    total = np.exp(-(axis.astype(float) ** 2) / (2 * sigma**2)).sum()

    def law(sign: int) -> Array:
        found = np.ones(1)
        for entry in shift:
            found = np.outer(found, np.exp(-((axis - sign * entry) ** 2) / (2 * sigma**2)) / total).ravel()
        return found

    couple = [(1 - q) * law(0) + q * law(sign) for sign in (1, -1 if relation == "replace-one" else 0)]
    first, second = oracle.power((couple[0], couple[1]), steps)
    return max(float(np.maximum(p - math.exp(epsilon) * r, 0).sum()) for p, r in ((first, second), (second, first)))


def bound(epsilon: float, noise: float, q: float, steps: int, relation: str, gap: float) -> float:
    history = made(noise, steps, q, relation, sampling="poisson")
    return math.exp(gap) * delta_of_history(history, epsilon - 2 * gap).upper


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("q", [0.3, 1.0])
@pytest.mark.parametrize(("shift", "noise"), [((1,), 1.0), ((3,), 0.8), ((1, 2), 0.7)])
def test_the_bound_holds_against_the_sum_over_all_outputs(
    tau: float, relation: str, q: float, shift: tuple[int, ...], noise: float
) -> None:
    sigma, steps, gap = math.hypot(noise * float(np.linalg.norm(shift)), tau), 2 // len(shift), _discrete_gap(2, tau)
    for epsilon in (0.3, 1.0):
        exact = brute_force(epsilon, sigma, shift, q, steps, relation)
        assert exact <= bound(epsilon, noise, q, steps, relation, gap) * (1 + 1e-9)


def test_without_the_kernel_the_lattice_is_less_private_than_the_continuous_gaussian() -> None:
    """Noise that is not widened breaks the bound by a quarter, so that these tests can fail."""
    exact = brute_force(1.0, 0.3, (1,), 0.3, 1, "add-remove")
    assert exact > 1.2 * bound(1.0, 0.3, 0.3, 1, "add-remove", 0.0)


@pytest.mark.parametrize(("tau", "sigma"), [(0.5, 0.51), (0.5, 2.1), (0.75, 0.8), (2.0, 3.7)])
def test_the_law_is_within_the_gap_of_the_post_processed_gaussian_pointwise(tau: float, sigma: float) -> None:
    """The trapezoid rule is exact to rounding for such integrands; with sigma near tau much of the ratio is used."""
    integers = np.arange(-40, 41)
    centre = integers[integers == 0]
    law = np.exp(-((integers - centre) ** 2) / (2 * sigma**2))
    law /= law.sum()
    y, step = np.linspace(-35, 35, 20_001, retstep=True)
    within = math.sqrt(sigma**2 - tau**2)
    kernel = np.exp(-((integers[:, None] - y) ** 2) / (2 * tau**2))
    kernel /= np.exp(-((np.arange(-60, 61)[:, None] - y) ** 2) / (2 * tau**2)).sum(axis=0)
    smoothed = (kernel * np.exp(-(y**2) / (2 * within**2))).sum(axis=1) * step / (math.sqrt(2 * math.pi) * within)
    near = np.abs(integers) <= 10
    worst = np.abs(np.log(law[near] / smoothed[near])).max()
    assert worst <= _discrete_gap(1, tau) + 1e-12
    if sigma < 1:
        assert worst > 0.01 * _discrete_gap(1, tau)


def test_a_full_batch_agrees_with_the_convolved_laws() -> None:
    """With that of the sum of 40 releases by FFT: no use is made of the form of the privacy loss."""
    levels, steps, multiplier, epsilon = 50, 40, 12.0, 1.0
    scale = MECHANISMS["discrete-gaussian"].scale(multiplier, levels)
    width = 8 * scale * math.ceil(math.sqrt(steps))
    one = np.exp(-(np.arange(-width, width + 1.0) ** 2) / (2 * scale**2))
    law = np.fft.irfft(np.fft.rfft(np.fft.ifftshift(one / one.sum())) ** steps, one.size)
    p = np.fft.fftshift(law)
    exact = float(np.maximum(p - math.exp(epsilon) * np.roll(p, 2 * levels * steps), 0)[width // 4 : -width // 4].sum())
    history = made(multiplier, steps, relation="replace-one", mechanism="discrete-gaussian")
    found = delta_of_history(history, epsilon)
    assert found.lower * (1 - 5e-3) <= exact <= found.upper
    assert found.upper <= exact * 1.005


def test_the_gap_is_negligible_and_the_kernel_is_the_stated_one() -> None:
    assert _KERNEL == 2
    assert 2e-34 < _discrete_gap(1) < 2.1e-34
    assert _discrete_gap(10**6) == pytest.approx(10**6 * _discrete_gap(1))
    assert _discrete_gap(0) == 0


@pytest.mark.parametrize(("multiplier", "levels"), [(0.1, 1), (3.7, 2**30), (1e-3, 2**20), (159.6, 7)])
def test_the_scale_is_the_smallest_integer_that_leaves_the_continuous_noise(multiplier: float, levels: int) -> None:
    scale = MECHANISMS["discrete-gaussian"].scale(multiplier, levels)
    needed = (Fraction(multiplier) * levels) ** 2
    assert scale**2 - _KERNEL**2 >= needed > (scale - 1) ** 2 - _KERNEL**2


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="tau"):
        _discrete_gap(1, 0.4)
