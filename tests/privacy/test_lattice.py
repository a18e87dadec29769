import math
from functools import reduce
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy import lattice as module
from dpzero_theory.privacy.gaussian import delta_from_gdp, gdp_from_epsilon
from dpzero_theory.privacy.lattice import Lattice, lattice_delta, lattice_scale, sum_gap
from dpzero_theory.privacy.noise import SeededNoise


def draw_pmf(scale: float) -> NDArray[np.float64]:
    """The discrete Gaussian on -w..w; what lies outside is below 1e-60."""
    w = math.ceil(17 * scale)
    weights = np.exp(-(np.arange(-w, w + 1.0) ** 2) / (2 * scale**2))
    return np.asarray(weights / weights.sum())


def brute_force_delta(epsilon: float, scale: float, steps: int, shift: int) -> float:
    """Hockey-stick divergence of the convolved laws: no use is made of the form of the privacy loss."""
    pmf = reduce(np.convolve, [draw_pmf(scale)] * steps)
    pad = np.zeros(steps * shift)
    p, q = np.concatenate([pad, pmf]), np.concatenate([pmf, pad])
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("scale", [1.0, 1.3, 2.0, 6.5])
@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("shift", [1, 4])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 3.0])
def test_delta_encloses_brute_force(scale: float, steps: int, shift: int, epsilon: float) -> None:
    found = lattice_delta(epsilon, scale, steps, shift)
    exact = brute_force_delta(epsilon, scale, steps, shift)
    assert found.lower - 1e-14 <= exact <= found.upper + 1e-14
    wide = sum_gap(scale, steps) + 2 * math.exp(-2 * math.pi**2 * steps * scale**2) + 1e-11
    assert found.upper - found.lower <= 2.1 * wide * found.upper


def test_the_sum_is_sufficient_for_two_releases() -> None:
    scale, shift, epsilon = 2.0, 1, 0.5
    pmf = np.append(draw_pmf(scale), np.zeros(shift))
    p, q = np.outer(pmf, pmf), np.outer(np.roll(pmf, shift), np.roll(pmf, shift))
    joint = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
    found = lattice_delta(epsilon, scale, 2, shift)
    assert found.lower - 1e-14 <= joint <= found.upper + 1e-14


def test_two_releases_with_different_shifts_are_covered() -> None:
    scale, epsilon = 2.0, 0.5
    pmf = np.append(draw_pmf(scale), np.zeros(2))
    bound = lattice_delta(epsilon, scale, 2, 2).upper
    for one, two in product(range(3), repeat=2):
        p, q = np.outer(pmf, pmf), np.outer(np.roll(pmf, one), np.roll(pmf, two))
        assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= bound + 1e-14


def test_small_deltas_agree_with_mpmath() -> None:
    with mpmath.workdps(60):
        for scale, epsilon in [(5.0, 2.0), (3.0, 4.0)]:
            rho = {x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(scale) ** 2)) for x in range(-150, 151)}
            total = sum(rho.values())
            exact = (
                sum(
                    max(rho[x] - mpmath.exp(epsilon) * rho.get(x + 1, mpmath.mpf(0)), mpmath.mpf(0))
                    for x in range(-150, 150)
                )
                / total
            )
            found = lattice_delta(epsilon, scale, 1, 1)
            assert found.lower <= exact <= found.upper
            assert found.upper < found.lower * (1 + 1e-10)


@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("steps", [2, 3, 10])
def test_sum_gap_bounds_the_law_of_the_sum(scale: float, steps: int) -> None:
    with mpmath.workdps(40):
        w = 30
        one = [mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(scale) ** 2)) for x in range(-w, w + 1)]
        law = np.array(one, dtype=object)
        for _ in range(steps - 1):
            law = np.convolve(law, np.array(one, dtype=object))
        x = np.arange(len(law)) - (len(law) - 1) // 2
        rho = np.array([mpmath.exp(-(mpmath.mpf(int(v)) ** 2) / (2 * steps * mpmath.mpf(scale) ** 2)) for v in x])
        ratio = (law / law.sum()) / (rho / rho.sum())
        inside = np.abs(x) <= 4 * scale * math.sqrt(steps)  # away from the cut at +-w
        worst = max(abs(mpmath.log(value)) for value in ratio[inside])
    assert worst <= sum_gap(scale, steps)
    if steps == 2:  # the bound is not idle
        assert worst > sum_gap(scale, steps) / 3


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.floats(0.0, 12.0),
    st.floats(3.0, 2_000.0),
    st.integers(1, 400),
    st.integers(1, 60),
)
@example(epsilon=0.0, scale=3.0, steps=400, shift=60)
def test_the_gap_to_the_continuous_gaussian_is_certified(epsilon: float, scale: float, steps: int, shift: int) -> None:
    """The two evaluations, term by term and by the continuous formula, agree within the proved gap."""
    variance = steps * scale**2
    start, slope = epsilon * scale**2 / shift - steps * shift / 2, shift / scale**2
    if start > 36 * math.sqrt(variance):
        return
    summed, left_out = module._summed(start, slope, variance)
    continuous = float(delta_from_gdp(epsilon, math.sqrt(steps) * shift / scale))
    gap = module._trapezoid_gap(start, slope, variance)
    assert abs(summed - continuous) <= gap + left_out + 2e-11 * continuous


def test_the_gap_can_go_either_way_and_is_not_idle() -> None:
    ratios = []
    for epsilon in np.linspace(0.5, 3.5, 40):
        found = lattice_delta(float(epsilon), 3.0, 1, 1)
        ratios.append(found.value / float(delta_from_gdp(epsilon, 1 / 3)))
    assert min(ratios) < 0.99
    assert max(ratios) > 1.01
    gap = module._trapezoid_gap(0.5, 1.0, 25.0)
    summed, _ = module._summed(0.5, 1.0, 25.0)
    integral = float(
        mpmath.quad(lambda x: mpmath.exp(-(x**2) / 50) * (1 - mpmath.exp(-(x - 0.5))), [0.5, 2, 5, 10, 20, 60])
    ) / math.sqrt(50 * math.pi)
    assert gap / 20 < abs(summed - integral) <= gap


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0])
@pytest.mark.parametrize("steps", [1, 5_120])
@pytest.mark.parametrize("sensitivity", [8, 2**21])
def test_calibration_is_private_and_nearly_minimal(epsilon: float, steps: int, sensitivity: int) -> None:
    scale = lattice_scale(epsilon, 1e-6, steps, sensitivity)
    assert lattice_delta(epsilon, scale, steps, sensitivity).upper <= 1e-6
    continuous = math.sqrt(steps) * sensitivity / float(gdp_from_epsilon(epsilon, 1e-6))
    assert 1 <= scale / continuous < 1 + (1e-9 if sensitivity > 1000 else 0.01)
    if scale > continuous * (1 + 1e-12):
        assert lattice_delta(epsilon, scale * (1 - 1e-10), steps, sensitivity).upper > 1e-6


def test_extreme_arguments_stay_in_range() -> None:
    assert lattice_delta(1e300, 5.0, 1, 1) == (0.0, 0.0, 1e-300)
    assert lattice_delta(800.0, 1e6, 100, 1).upper == 1e-300
    far = lattice_delta(0.0, 1.0, 10**6, 1)
    assert 0.98 < far.lower <= far.value <= far.upper == 1.0
    assert sum_gap(3.0, 10**9) < 1e-37


def test_rounding_keeps_the_sensitivity() -> None:
    lattice = Lattice(clip=0.3, levels=7)
    rng = np.random.default_rng(5)
    values = rng.normal(scale=0.4, size=4_000)
    rounded = lattice.round(values)
    assert np.abs(rounded).max() == 7
    assert np.abs(rounded * lattice.spacing - np.clip(values, -0.3, 0.3)).max() <= lattice.spacing / 2 + 1e-15
    assert lattice.sensitivity("replace-one") == 14
    assert lattice.sensitivity("add-remove") == 7
    swaps = [
        int(lattice.round([a]).sum() - lattice.round([b]).sum()) for a, b in zip(values, values[::-1], strict=True)
    ]
    assert max(swaps) == 14


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.floats(1e-300, 1e300), st.integers(1, 2**32), st.floats(allow_nan=True, allow_infinity=True))
def test_no_contribution_leaves_the_range(clip: float, levels: int, value: float) -> None:
    rounded = int(Lattice(clip, levels).round([value])[0])
    assert -levels <= rounded <= levels


def test_nan_and_infinite_contributions_are_mapped_silently() -> None:
    assert Lattice(1.0, 5).round([math.nan, math.inf, -math.inf]).tolist() == [0, 5, -5]


def test_a_release_is_the_rounded_mean_plus_lattice_noise() -> None:
    lattice = Lattice(clip=1.0, levels=2**16)
    contributions = np.linspace(-1.5, 1.2, 40)
    scale = 3.0 * 2**16
    noise = SeededNoise(6)
    releases = np.array([lattice.release_mean(contributions, 40, scale, noise) for _ in range(4_000)])
    steps = releases / (lattice.spacing / 40)
    assert np.abs(steps - np.rint(steps)).max() < 1e-9
    mean = np.clip(contributions, -1, 1).mean()
    std = scale * lattice.spacing / 40
    assert abs(releases.mean() - mean) < 4 * std / math.sqrt(4_000)
    assert abs(releases.std() / std - 1) < 0.05


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, "2", None])
@pytest.mark.parametrize("name", ["epsilon", "scale", "steps", "sensitivity"])
def test_bad_arguments(name: str, bad: object) -> None:
    arguments: dict[str, object] = {"epsilon": 1.0, "scale": 5.0, "steps": 3, "sensitivity": 2, name: bad}
    with pytest.raises(ValueError, match=f"{name} must be"):
        lattice_delta(**arguments)  # type: ignore[arg-type]


def test_bad_calibration_and_lattices() -> None:
    with pytest.raises(ValueError, match="delta must be"):
        lattice_scale(1.0, 1.0, 10, 1)
    with pytest.raises(ValueError, match="epsilon must be"):
        lattice_scale(0.0, 1e-6, 10, 1)
    with pytest.raises(PreconditionError, match="scale must be at least 1"):
        lattice_scale(50.0, 0.01, 1, 1)
    with pytest.raises(PreconditionError, match="scale must be at least 1"):
        sum_gap(0.5, 10)
    for clip, levels in [(0.0, 4), (math.nan, 4), (1.0, 0), (1.0, 2.5), (1.0, 2**33)]:
        with pytest.raises(ValueError, match="must be"):
            Lattice(clip, levels)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="relation must be one of"):
        Lattice(1.0, 4).sensitivity("both")
    with pytest.raises(ValueError, match="n must be"):
        Lattice(1.0, 4).release_mean([0.0], 0, 5.0, SeededNoise(0))
