"""delta and epsilon of histories: brackets against exact laws of everything released, and bad input."""

import math
import time

import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.release import Release


def test_heterogeneous_history_lies_between_homogeneous_ones():
    """Twenty groups: between four thousand steps of the noisiest and of the least noisy."""
    history = [
        Release(2.0 + 0.1 * k, 200, sampling="poisson", relation="add-remove", sample_rate=0.01) for k in range(20)
    ]
    started = time.process_time()
    found = epsilon_of_history(history, 1e-5)
    assert time.process_time() - started < 2
    weakest = [Release(3.9, 4000, sampling="poisson", relation="add-remove", sample_rate=0.01)]
    strongest = [Release(2.0, 4000, sampling="poisson", relation="add-remove", sample_rate=0.01)]
    assert epsilon_of_history(weakest, 1e-5).upper < found.lower
    assert found.upper < epsilon_of_history(strongest, 1e-5).lower
    with_full = [*history, Release(5.0, 1, sampling="full", relation="add-remove")]
    assert epsilon_of_history(with_full, 1e-5).lower > found.upper
    assert found.upper - found.lower < 1e-8


def test_zero_epsilon_where_delta_is_generous():
    unit = Release(500.0, 10, sampling="poisson", relation="add-remove", sample_rate=1e-3)
    assert epsilon_of_history([unit], 0.1).upper == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, "1", None, 10**400])
def test_bad_history_is_named_at_once(value):
    with pytest.raises(ValueError, match="noise_multiplier"):
        Release(value, 10, sampling="poisson", relation="add-remove", sample_rate=0.1)
    unit = Release(1.0, 10, sampling="poisson", relation="add-remove", sample_rate=0.1)
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_history([unit], value)
    if value != 0.0:
        with pytest.raises(ValueError, match="epsilon"):
            delta_of_history([unit], value)
    with pytest.raises(ValueError, match="history must be a sequence of Release"):
        epsilon_of_history([value], 1e-5)


def test_paper_lemma_really_gives_less_epsilon():
    gdp = 2 / math.sqrt(8 * math.log(math.e + 2 / 1e-6))
    unit = Release(math.sqrt(5120) / gdp, 5120, sampling="full", relation="add-remove")
    assert epsilon_of_history([unit], 1e-6).value == pytest.approx(0.7699, abs=5e-5)
    assert gdp < float(gdp_from_epsilon(2.0, 1e-6))
