import numpy as np
import pytest

from dpzero_theory.audit.bounds import attack_gdp
from dpzero_theory.audit.power import curve, likely_bound, runs_to_see


def test_the_likely_bound_is_reached_as_often_as_it_says() -> None:
    """Of 400 attacks at a fixed good threshold, 95%, less 5 standard deviations, prove at least the predicted bound."""
    gdp, count, rng = 1.5, 400, np.random.default_rng(8)
    least = likely_bound(gdp, count, 0.95)
    reached = 0
    for _ in range(400):
        up, down = rng.normal(gdp / 2, 1, count), rng.normal(-gdp / 2, 1, count)
        bounds = [
            attack_gdp(int((down > cut).sum()), count, int((up <= cut).sum()), count, 0.95)
            for cut in np.linspace(-1, 1, 21)
        ]
        reached += max(bounds) >= least
    assert reached / 400 > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 400)
    assert least < gdp


def test_less_noise_is_seen_sooner() -> None:
    needed = [runs for runs in curve(1.0, 0.999).values() if runs]
    assert needed == sorted(needed, reverse=True)
    half = runs_to_see(1.0, 0.5, 0.999)
    assert half is not None
    assert likely_bound(2.0, half, 0.999) > 1.0 >= likely_bound(2.0, half // 2, 0.999)
    assert runs_to_see(15.0, 0.99, 0.999) is None


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="fraction must be"):
        runs_to_see(1.0, 1.0, 0.95)
    with pytest.raises(ValueError, match="claimed must be"):
        runs_to_see(0.0, 0.5, 0.95)
