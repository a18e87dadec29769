"""Tests of the private release of a moment of gradient norms: what it costs, how often its bound fails, and what it
refuses."""

import math
from pathlib import Path

import numpy as np
import pytest

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.gradient_moment import moment_settings, release_moment
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger, Settings
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.theory.problem import Problem

N, B = 400, 3.0
NORMS = np.random.default_rng(0).uniform(0, B, N)


def ledger_of(folder: Path, relation: str = "replace-one", noise: float = 8.0, steps: int = 1) -> Ledger:
    settings = moment_settings(N, noise, relation)
    return Ledger.create(folder / "ledger", target_epsilon=1e6, target_delta=1e-6, settings=settings, steps=steps)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove", "zero-out"])
def test_a_release_is_as_private_as_the_ledger_says_and_its_bound_fails_as_often(tmp_path: Path, relation: str) -> None:
    """A record's share is in [0, 1], so it changes the sum of shares by at most 1 under each relation. The measured
    noise has the standard deviation that this and the ledger's epsilon imply, and the upper bound fails in a share beta
    of 200 releases; both within 4.5 standard errors, a threshold fixed beforehand."""
    beta, count = 0.2, 200
    true = float(np.mean(NORMS**2))
    with ledger_of(tmp_path, relation, noise=30.0, steps=count) as ledger:
        epsilon = epsilon_of_history([ledger.settings.release(1)], 1e-6).upper
        source = SeededNoise(2)
        made = [
            release_moment(NORMS, power=2, bound=B, ledger=ledger, failure=beta, source=source) for _ in range(count)
        ]
        assert ledger.releases_left == 0
    values = np.array([one.value for one in made])
    deviation = float(values.std()) * N / B**2
    assert abs(deviation * float(gdp_from_epsilon(epsilon, 1e-6)) - 1) <= 4.5 / math.sqrt(2 * count)
    assert abs(values.mean() - true) <= 4.5 * values.std() / math.sqrt(count)
    failed = np.mean([one.upper < true for one in made])
    assert abs(failed - beta) <= 4.5 * math.sqrt(beta * (1 - beta) / count)
    assert [one.release for one in made] == list(range(count))


def test_long_gradients_and_those_that_are_no_numbers_count_as_the_bound(tmp_path: Path) -> None:
    odd = np.concatenate([NORMS[200:], [math.nan] * 100, [math.inf] * 50, [10 * B] * 50])
    with ledger_of(tmp_path) as ledger:
        found = release_moment(odd, power=4, bound=B, ledger=ledger, source=SeededNoise(3))
    expected = float(np.mean([*NORMS[200:] ** 4, *[B**4] * 200]))
    assert found.value == pytest.approx(expected, abs=5 * 4 * B**4 / N)  # five standard deviations of the noise
    assert Problem(n=N, d=10, r=2.0, gradient_moment=found.gradient_moment).gradient_moment == (4, found.upper)


def test_nothing_is_paid_for_what_is_refused(tmp_path: Path) -> None:
    with ledger_of(tmp_path) as ledger:
        for wrong, said in (
            ({"norms": NORMS[1:]}, "norms must be those of all n = 400"),
            ({"norms": NORMS[:, None]}, "norms must have shape"),
            ({"power": 0.5}, "power"),
            ({"bound": math.nan}, "bound"),
            ({"failure": 0.7}, "failure"),
        ):
            with pytest.raises(ValueError, match=said):
                release_moment(**{"norms": NORMS, "power": 2, "bound": B, "ledger": ledger, **wrong})  # type: ignore[arg-type]
        assert ledger.releases_left == 1
        release_moment(NORMS, power=2, bound=B, ledger=ledger)
        with pytest.raises(BudgetSpentError):
            release_moment(NORMS, power=2, bound=B, ledger=ledger)
    other = Settings(n=N, noise_multiplier=8.0, clip=1.0, relation="replace-one", sampling="full")
    with (
        Ledger.create(tmp_path / "other", target_epsilon=60, target_delta=1e-6, settings=other, steps=1) as ledger,
        pytest.raises(ValueError, match="ledger must have the settings"),
    ):
        release_moment(NORMS, power=2, bound=B, ledger=ledger)


def test_the_number_of_records_is_not_told_under_add_remove(tmp_path: Path) -> None:
    """How far the upper bound is above the value does not depend on how many records there are."""
    with ledger_of(tmp_path, "add-remove", steps=2) as ledger:
        one, two = (release_moment(norms, power=2, bound=B, ledger=ledger) for norms in (NORMS, NORMS[:100]))
    assert one.upper - one.value == pytest.approx(two.upper - two.value, rel=1e-12)
