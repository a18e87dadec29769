"""Tests of the bracket of delta that follows from how often a record is used."""

import math

import pytest

from dpzero_theory.privacy.certified.analytic.bounds import by_use
from dpzero_theory.privacy.certified.laws.pairs import Pair
from tests.privacy.oracle import closed_form


@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
@pytest.mark.parametrize(("q", "s", "epsilon"), [(0.3, 0.2, 0.5), (0.01, 0.12, 2.0), (0.9, 0.3, 0.1)])
def test_the_bracket_by_use_holds_the_closed_form(kind, q, s, epsilon):
    if kind == "add" and epsilon >= -math.log1p(-q):
        return  # This epsilon is beyond the largest privacy loss of the direction
    lower, upper = by_use(epsilon, ((Pair(kind, q, s), 1),), 0.0)
    exact = closed_form(kind, q, s, epsilon)
    assert lower <= exact <= upper
    assert kind == "add" or lower > 0.5 * exact
