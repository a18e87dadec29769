"""Tests of releases that are of one of several kinds by chance: delta is the mean over the numbers of each kind."""

import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.analytic.bounds import by_use, chernoff
from dpzero_theory.privacy.certified.analytic.contour import delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.analytic.rare import rare_delta
from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.grids.grid import grid_delta, grid_delta_beside
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import OneOf, PlainParts, expected
from dpzero_theory.privacy.certified.laws.zeroed import zeroed_pairs
from dpzero_theory.privacy.certified.router import direction_delta

KINDS = {
    "remove": (Pair("remove", 0.05, 1.2), Pair("remove", 0.03, 0.7)),
    "add": (Pair("add", 0.05, 1.2), Pair("add", 0.03, 0.7)),
    "replace-one": (Pair("replace", 0.05, 1.2), Pair("fixed-size", 0.03, 0.7)),
}


def one_of(chance: float, kinds: tuple[Pair, Pair], listed: FinitePair | None = None) -> OneOf:
    """A release of the second kind with a chance, which may have a pair with finitely many outcomes."""
    return OneOf(((1 - chance, kinds[0]), (chance, kinds[1])), (None, listed))


def mean(chance: float, kinds: tuple[Pair, Pair], steps: int, epsilon: float) -> tuple[float, float]:
    """Bounds on the mean of delta over the binomial number of releases of the second kind."""
    low = high = 0.0
    for count in range(steps + 1):
        weight = float(stats.binom.pmf(count, steps, chance))
        if weight > 1e-18:
            parts: PlainParts = tuple((pair, k) for pair, k in zip(kinds, (steps - count, count), strict=True) if k)
            found = direction_delta(epsilon, parts, 0.0)
            low, high = low + weight * found.lower, high + weight * found.upper
    return low * (1 - 1e-9), high * (1 + 1e-9) + 1e-15


def meet(found: Bracket, low: float, high: float) -> bool:
    return found.lower <= high and low <= found.upper


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("chance", [1e-3, 0.3])
def test_a_contour_gives_the_mean_over_the_numbers_of_each_kind(name: str, chance: float) -> None:
    steps, epsilon = 120, 0.6
    low, high = mean(chance, KINDS[name], steps, epsilon)
    parts = ((one_of(chance, KINDS[name]), steps),)
    found = delta_bracket(epsilon, parts)
    assert meet(found, low, high)
    assert found.upper <= (1 + 1e-6) * found.lower
    estimate = delta_estimate(epsilon, parts)
    assert estimate is None or estimate[0] == pytest.approx(math.log(found.upper), abs=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_a_contour_of_a_single_kind_told_twice_is_that_of_the_kind(name: str) -> None:
    """Of 3,000,000 releases: errors of one release, if they were not bounded, would show after so many."""
    pair, steps = Pair(KINDS[name][1].kind, 0.01, 12.0), 3_000_000
    whole = delta_bracket(2.0, ((pair, steps),))
    found = delta_bracket(2.0, ((one_of(0.25, (pair, pair)), steps),))
    assert meet(found, whole.lower, whole.upper)
    assert found.upper <= (1 + 1e-6) * found.lower


def test_a_contour_of_many_releases_is_in_the_bracket_of_a_grid() -> None:
    kinds = Pair("remove", 0.01, 6.0), Pair("remove", 0.008, 3.0)
    parts = ((one_of(0.2, kinds), 40_000),)
    found, grid = delta_bracket(1.0, parts), grid_delta(1.0, parts)
    assert meet(grid, found.lower, found.upper)
    assert found.upper <= (1 + 1e-7) * found.lower
    assert grid.upper <= 1.05 * grid.lower


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("gdp", [0.0, 0.3])
def test_a_grid_gives_the_mean_over_the_numbers_of_each_kind(name: str, gdp: float) -> None:
    """Also for a delta that comes from single large losses, which a grid counts apart."""
    chance, steps = 0.1, 12
    for epsilon in (0.5, 9.0):
        low = high = 0.0
        for count in range(steps + 1):
            parts: PlainParts = tuple(
                (pair, k) for pair, k in zip(KINDS[name], (steps - count, count), strict=True) if k
            )
            one = grid_delta(epsilon, parts, gdp, points=2**15)
            weight = float(stats.binom.pmf(count, steps, chance))
            low, high = low + weight * one.lower, high + weight * one.upper
        found = grid_delta(epsilon, ((one_of(chance, KINDS[name]), steps),), gdp, points=2**15)
        assert meet(found, low * (1 - 1e-9), high * (1 + 1e-9))
        assert found.upper <= 1.05 * found.lower or found.upper < 1e-100


def test_a_listed_kind_is_summed_on_a_grid_alone() -> None:
    """The upper end is the mean over the numbers of releases of each kind, summed by the grid for finite pairs."""
    chance, steps, epsilon = 0.3, 6, 0.8
    plain, known, listed = Pair("remove", 0.2, 1.0), Pair("fixed-size", 0.15, 0.5), zeroed_pairs(1.0, 0.15)[0]
    upper = 0.0
    for count in range(steps + 1):
        finite, parts = [(listed, count)] if count else [], ((plain, steps - count),) if count < steps else ()
        told = grid_delta_beside(epsilon, finite, parts, 0.0, -60.0, points=2**15)
        upper += float(stats.binom.pmf(count, steps, chance)) * told.upper
    parts = ((one_of(chance, (plain, known), listed), steps),)
    assert grid_delta(epsilon, parts).upper == pytest.approx(upper, rel=2e-3)
    assert direction_delta(epsilon, parts, 0.0).upper == pytest.approx(upper, rel=2e-3)
    with pytest.raises(OverflowError):
        delta_bracket(epsilon, parts)
    with pytest.raises(OverflowError, match="finitely many outcomes"):
        delta_estimate(epsilon, parts)


def test_a_listed_kind_that_hardly_ever_is_drawn_does_not_hinder_a_contour() -> None:
    kinds, listed = (Pair("remove", 0.05, 1.2), Pair("fixed-size", 0.04, 0.6)), zeroed_pairs(1.2, 0.04)[0]
    plain = delta_bracket(0.7, ((kinds[0], 200),))
    found = delta_bracket(0.7, ((one_of(1e-15, kinds, listed), 200),))
    assert found.upper == pytest.approx(plain.upper, rel=1e-6)
    with pytest.raises(OverflowError, match="finitely many outcomes"):
        delta_bracket(3.0, ((one_of(1e-9, kinds, listed), 200),))


def test_an_infinite_loss_of_a_listed_kind_counts_with_its_chance() -> None:
    """Its releases have the loss 0 or, with probability 0.001, an infinite one."""
    listed = FinitePair(np.zeros(1), np.array([0.999]), 0.001, np.ones(1), np.ones(1))
    kinds = Pair("remove", 1e-9, 10.0), Pair("fixed-size", 1e-9, 5.0)
    parts = ((one_of(0.25, kinds, listed), 8),)
    assert grid_delta(1.0, parts).upper == pytest.approx(8 * 0.25 * 0.001, rel=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_bounds_hold(name: str) -> None:
    chance, steps, epsilon = 0.2, 50, 0.9
    pair = one_of(chance, KINDS[name])
    delta = delta_bracket(epsilon, ((pair, steps),)).upper
    assert by_use(epsilon, ((pair, steps),), 0.0)[0] == 0.0
    assert by_use(epsilon, ((pair, steps),), 0.0)[1] >= delta
    assert chernoff(epsilon, ((pair, steps),), 0.0) >= delta
    with pytest.raises(OverflowError, match="several kinds"):
        rare_delta(epsilon, ((pair, steps),))


@pytest.mark.parametrize("tau", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("name", KINDS)
def test_the_log_moment_is_that_of_the_mean(name: str, tau: float) -> None:
    value, error = cumulant(one_of(0.2, KINDS[name]), tau)
    known = [cumulant(pair, tau) for pair in KINDS[name]]
    first, second = (np.exp(np.longdouble(log_moment)) for log_moment, _ in known)
    exact = np.log(np.longdouble(0.8) * first + np.longdouble(0.2) * second)
    assert abs(value - float(exact)) <= error + max(wrong for _, wrong in known) + 1e-18
    assert error < 1e-12 * (1 + abs(value))


def test_the_expected_numbers_of_each_kind_are_rounded_and_never_all_zero() -> None:
    first, second = KINDS["remove"]
    assert expected(((one_of(0.25, (first, second)), 10), (first, 3))) == ((first, 8), (second, 2), (first, 3))
    rare = OneOf(((0.4, first), (0.3, second), (0.3, second)), (None, None, None))
    assert expected(((rare, 1),)) == ((first, 1),)
