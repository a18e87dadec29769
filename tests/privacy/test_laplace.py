import math

import mpmath
import numpy as np
import pytest

from dpzero_theory.privacy.laplace import laplace_multiplier, lattice_gap, release_epsilon
from dpzero_theory.privacy.relation import Relation


@pytest.mark.parametrize("q", [1.0, 0.4, 0.01])
@pytest.mark.parametrize("multiplier", [0.5, 3.0])
def test_epsilon_is_the_largest_log_ratio_over_all_outputs(q: float, multiplier: float) -> None:
    """The pure epsilon of a Laplace release is the largest log ratio over all outputs, by enumeration for 5 levels.

    Nothing is larger, and it is reached.
    """
    levels = 5
    x = np.arange(-60, 61)

    def law(centre: int) -> np.ndarray:
        return np.exp(-np.abs(x - centre) / (multiplier * levels))

    def used(centre: int) -> np.ndarray:
        return (1 - q) * law(0) + q * law(centre)

    removed = max(np.abs(np.log(used(v) / law(0))).max() for v in range(-levels, levels + 1))
    replaced = max(
        np.abs(np.log(used(v) / used(w))).max() for v in range(-levels, levels + 1) for w in range(-levels, levels + 1)
    )
    assert release_epsilon(multiplier, q, replaced=False) == pytest.approx(removed, rel=1e-9)
    assert release_epsilon(multiplier, q, replaced=True) == pytest.approx(replaced, rel=1e-9)


def test_the_formula_by_hand() -> None:
    assert release_epsilon(2.0, 0.1, replaced=False) == pytest.approx(math.log(1 + 0.1 * (math.exp(0.5) - 1)))
    assert release_epsilon(2.0, 1.0, replaced=True) == pytest.approx(1.0)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3, 1e-3])
@pytest.mark.parametrize(("epsilon", "steps"), [(2.0, 1000), (1e-6, 3), (80.0, 2)])
def test_calibration_meets_the_target_and_is_tight(relation: Relation, q: float, epsilon: float, steps: int) -> None:
    multiplier = laplace_multiplier(epsilon, steps, q, replaced=relation.replaces)
    assert steps * release_epsilon(multiplier, q, replaced=relation.replaces) <= epsilon
    assert epsilon < steps * release_epsilon(multiplier * (1 - 1e-8), q, replaced=relation.replaces)


def two_laws(levels: int, scale: float, q: float, relation: Relation) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-60 * levels, 60 * levels + 1)

    def law(centre: int) -> np.ndarray:
        found = np.exp(-np.abs(x - centre) / scale)
        return np.asarray(found / found.sum())

    second = law(0) if relation is Relation.ADD_REMOVE else (1 - q) * law(0) + q * law(-levels)
    return (1 - q) * law(0) + q * law(levels), second


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="1/700"):
        release_epsilon(1e-3, 0.5, replaced=False)
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        release_epsilon(math.nan, 0.5, replaced=False)
    with pytest.raises(ValueError, match="target_epsilon must be"):
        laplace_multiplier(0.0, 1, 1.0, replaced=False)


@pytest.mark.parametrize("multiplier", [1 / 300, 0.1, 1.0, 30.0])
def test_lattice_noise_is_within_the_gap_of_continuous_noise(multiplier: float) -> None:
    """The densities' ratios at all distances, with 60 digits; one release on a lattice of 2^30 integers to a clip.

    Discrete noise with a uniform number added is compared with continuous noise at both ends of each integer, and
    continuous noise that is rounded with discrete noise.
    """
    with mpmath.workdps(60):
        y = 1 / (2 * mpmath.mpf(multiplier) * 2**30)
        gap = mpmath.mpf(lattice_gap(multiplier, 1))
        ends = [mpmath.tanh(y) / y * mpmath.e ** (side * y) for side in (-1, 1)]
        rounded = [mpmath.sinh(y) / mpmath.tanh(y), (1 - mpmath.e ** (-y)) / mpmath.tanh(y)]
        for ratio in (*ends, *rounded):
            assert abs(mpmath.log(ratio)) <= gap <= y * (1 + 2 * y) + mpmath.mpf(10) ** -20
