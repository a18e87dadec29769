import math

import numpy as np
import pytest

from dpzero_theory.privacy.certified.pairs import group
from dpzero_theory.privacy.laplace import calibrate_laplace, laplace_epsilon, release_epsilon


@pytest.mark.parametrize("q", [1.0, 0.4, 0.01])
@pytest.mark.parametrize("multiplier", [0.5, 3.0])
def test_epsilon_is_the_largest_log_ratio_over_all_outputs(q: float, multiplier: float) -> None:
    """By enumeration for levels = 5: nothing is larger, and it is reached."""
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
    assert release_epsilon(multiplier, q, "add-remove") == pytest.approx(removed, rel=1e-9)
    assert release_epsilon(multiplier, q, "replace-one") == pytest.approx(replaced, rel=1e-9)


def test_the_formula_by_hand() -> None:
    assert release_epsilon(2.0, 0.1, "add-remove") == pytest.approx(math.log(1 + 0.1 * (math.exp(0.5) - 1)))
    assert release_epsilon(2.0, 1.0, "replace-one") == pytest.approx(1.0)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("sampling", "q"), [("full", 1.0), ("poisson", 0.3), ("poisson", 1e-3)])
@pytest.mark.parametrize(("epsilon", "steps"), [(2.0, 1000), (1e-6, 3), (80.0, 2)])
def test_calibration_meets_the_target_and_is_tight(
    relation: str, sampling: str, q: float, epsilon: float, steps: int
) -> None:
    multiplier = calibrate_laplace(
        target_epsilon=epsilon, steps=steps, sampling=sampling, relation=relation, sample_rate=q
    )

    def cost(noise: float) -> float:
        return laplace_epsilon([group(noise, steps, sampling=sampling, relation=relation, sample_rate=q)])

    assert cost(multiplier) <= epsilon < cost(multiplier * (1 - 1e-8))


def test_other_samplings_are_refused() -> None:
    history = [group(1.0, 1, sampling="fixed-size", relation="add-remove", sample_rate=0.1)]
    with pytest.raises(ValueError, match="sampling must be one of full, poisson"):
        laplace_epsilon(history)
    with pytest.raises(ValueError, match="sampling"):
        calibrate_laplace(target_epsilon=1, steps=1, sampling="fixed-size", relation="add-remove", sample_rate=0.1)
    with pytest.raises(ValueError, match="1/700"):
        release_epsilon(1e-3, 0.5, "add-remove")
