import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.audit.sequential import _EVENTS, Betting, decide, lower_bound


@pytest.mark.parametrize("gdp", [0.5, 1.0, 3.0])
def test_no_bet_gains_where_the_claim_is_attained(gdp: float) -> None:
    """No bet gains on average for scores that attain the claim: Gaussian ones whose means are mu apart.

    The mean of every bet's factor is computed from its four outcomes, in both directions.
    """
    bets = Betting(gdp)
    grid = product(_EVENTS, zip(bets._odds, bets._deltas, bets._stakes, strict=True))
    for cut, (odds, delta, stake) in grid:
        a, b = (stats.norm.sf((cut - mean) * gdp) for mean in (0.5, -0.5))
        mean = sum(
            (a if x else 1 - a) * (b if y else 1 - b) * (1 + stake * (x - odds * y - delta))
            for x in (0, 1)
            for y in (0, 1)
        )
        assert mean <= 1 + 1e-9
        assert 1 - stake * (odds + delta) > 0


def test_wealth_is_the_mean_of_every_bet_by_its_definition() -> None:
    """The wealth is the mean over all bets, whose factors are here multiplied one by one, in both directions."""
    scores = np.concatenate(pairs(1.0, 30, np.random.default_rng(4)))
    bets = Betting(0.7)
    path = bets.see(scores)
    wealth = [
        np.cumprod([1 + stake * ((a > cut) - odds * (b > cut) - delta) for a, b in direction])
        for cut, (odds, delta, stake) in product(_EVENTS, zip(bets._odds, bets._deltas, bets._stakes, strict=True))
        for direction in (scores, -scores[:, ::-1])
    ]
    assert np.exp(path) == pytest.approx(np.mean(wealth, axis=0), rel=1e-10)


def pairs(gdp: float, count: int, rng: np.random.Generator) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [np.array([[0.5, -0.5]]) + rng.normal(size=(1, 2)) / gdp for _ in range(count)]


def test_the_claim_is_seldom_refuted_where_it_holds() -> None:
    """A claim that holds is seldom refuted: 31 or more of 300 audits at level 5% has probability 1e-4."""
    rng = np.random.default_rng(5)
    refuted = [decide([(p,) for p in pairs(1.0, 60, rng)], (1.0,), 0.05).refuted for _ in range(300)]
    assert sum(refuted) < 31


def test_half_the_noise_is_refuted_and_stops_early() -> None:
    found = decide([(p,) for p in pairs(2.0, 2000, np.random.default_rng(6))], (1.0,), 1e-6)
    assert found.refuted
    assert found.rounds < 600
    assert found.wealth[-1] >= math.log(1e6) > found.wealth[-2]


def test_two_games_share_the_stake() -> None:
    rng = np.random.default_rng(7)
    found = decide([(p, p) for p in pairs(2.0, 1500, rng)], (1.0, 50.0), 1e-6)
    assert found.refuted


def test_wealth_is_the_same_pair_by_pair() -> None:
    scores = np.concatenate(pairs(1.5, 40, np.random.default_rng(8)))
    together, one_by_one = Betting(1.0), Betting(1.0)
    path = together.see(scores)
    assert path == pytest.approx([float(one_by_one.see(pair)[-1]) for pair in scores], abs=1e-12)
    assert together.log_wealth == pytest.approx(path[-1], abs=1e-12)


def test_the_lower_bound_is_below_the_truth_and_comes_near_it() -> None:
    """The lower bound on mu is seldom above the true mu, and at least half of the bounds are above half of it.

    Of 10 bounds at level 5%, 5 or more above the truth has probability 6e-5.
    """
    rng = np.random.default_rng(9)
    bounds = [lower_bound(np.concatenate(pairs(1.0, 300, rng)), 0.05) for _ in range(10)]
    assert sum(bound > 1.0 for bound in bounds) < 5
    assert np.median(bounds) > 0.5
    assert lower_bound(np.zeros((50, 2)), 0.05) == 0.0


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="gdp must be"):
        Betting(0.0)
    with pytest.raises(ValueError, match="level must be"):
        decide([], (1.0,), 0.0)
    with pytest.raises(ValueError, match="scores must be numbers"):
        Betting(1.0).see(np.array([[math.nan, 0.0]]))
