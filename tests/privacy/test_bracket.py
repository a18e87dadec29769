"""Tests of the logarithm of a certified bracket's value."""

import math

from dpzero_theory.privacy.bracket import Bracket


def test_the_log_is_that_of_the_value() -> None:
    assert Bracket(0.0, 0.25, 1.0, "known").log_value == math.log(0.25)
    assert Bracket(0.0, 0.0, 1.0, "known").log_value == -math.inf
