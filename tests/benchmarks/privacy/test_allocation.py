"""Tests of the benchmark of random allocation.

They test its sampler against integrals, that a wrong bracket is noticed, and the claim that the committed rows meet.
"""

import math

import numpy as np
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.privacy import allocation
from dpzero_theory.privacy.bracket import Bracket
from tests.privacy.certified.allocations.test_allocation import brute_force
from tests.privacy.certified.allocations.test_epoch import SIDES, integral


@pytest.mark.parametrize(
    ("epsilon", "s", "t", "epochs"), [(4.5, 0.7, 2, 1), (2.0, 1.2, 3, 1), (1.5, 2.0, 2, 2), (0.05, 3.0, 3, 1)]
)
def test_draws_agree_with_brute_force(epsilon, s, t, epochs):
    rng = np.random.default_rng(1)
    for direction, exact in zip(("remove", "add"), brute_force(epsilon, s, t, t, epochs), strict=True):
        delta, error = allocation.sampled(s, t, epochs, direction, epsilon, rng)
        assert abs(delta - exact) < 6 * error
        assert error < 0.06 * exact


@pytest.mark.parametrize(("epsilon", "s", "t"), [(6.0, 0.7, 2), (1.5, 2.0, 3)])
def test_draws_of_a_replaced_record_agree_with_an_integral(epsilon, s, t):
    delta, error = allocation.sampled(s, t, 1, "replace", epsilon, np.random.default_rng(2))
    exact = integral(SIDES["replace"], s, t, t, epsilon)
    assert abs(delta - exact) < 6 * error
    assert error < 0.06 * exact


def test_settings_are_the_same_again_and_within_the_ranges():
    first, more = allocation.settings(20), allocation.settings(60)
    assert more[:20] == first
    for one in more:
        assert 2 <= one["epoch"] <= 10**4
        assert 1 <= one["epochs"] <= 1000
        assert 0.5 <= one["noise_multiplier"] <= 10
        assert 1e-9 <= one["delta"] <= 1e-4


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_a_bracket_that_is_a_tenth_off_is_found(factor, monkeypatch):
    setting = next(s for s in allocation.settings(60) if s["epoch"] * s["epochs"] < 40 and s["setting"] > 16)
    exact = allocation.epsilon_of_history

    def moved(*arguments):
        found = exact(*arguments)
        return Bracket(factor * found.lower, factor * found.value, factor * found.upper, found.method)

    monkeypatch.setattr(allocation, "epsilon_of_history", moved)
    assert allocation.answer(setting)["contained"] is (factor == 1.0)


def test_the_rows_meet_the_claim():
    rows = read_rows(RESULTS / "accounting_allocation")
    assert len(rows) == allocation.COUNT
    assert (rows["epoch"].min(), rows["epoch"].max()) == (2, 10**4)
    assert (rows["epochs"].min(), rows["epochs"].max()) == (1, 1000)
    assert (rows["noise_multiplier"].min(), rows["noise_multiplier"].max()) == (0.5, 10.0)
    assert rows["width"].max() <= allocation.WIDTH
    assert (
        rows["cpu_seconds"] <= allocation.SECONDS
    ).mean() >= 0.99  # One of 116 settings took 2.3 s, on a busy machine
    checked = rows[rows["contained"].notna()]
    assert len(checked) > 50
    assert checked["contained"].all()
    assert math.isfinite(float(checked["error_lower"].median()))
