"""Tests of the choice of a method of accounting where there is almost no noise, and every method is at its limit."""

import contextlib
import math

import pytest

from dpzero_theory.privacy.certified.analytic.contour import delta_bracket
from dpzero_theory.privacy.certified.analytic.rare import rare_delta
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.router import direction_delta, surely_above
from tests.privacy import oracle


@pytest.mark.parametrize("kind", ["remove", "replace", "fixed-size"])
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
@pytest.mark.parametrize("steps", [3, 1000])
def test_next_to_no_noise_says_whether_the_record_was_used(kind, noise, steps):
    q = 1e-3
    truth = -math.expm1(steps * math.log1p(-q))
    found = direction_delta(1.0, ((Pair(kind, q, noise), steps),), 0.0)
    assert found.lower <= truth <= found.upper
    assert found.upper < found.lower * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", [delta_bracket, rare_delta])
@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_no_method_is_wrong_where_the_density_of_the_loss_overflows(method, noise):
    """No method is wrong where the density of the privacy loss overflows.

    The loss is nearly constant where the record was not used, and its density there is e^5000 times that elsewhere.
    """
    with contextlib.suppress(OverflowError):
        found = method(1.0, ((Pair("remove", 1e-3, noise), 10),), budget=1e6)
        assert found.lower <= -math.expm1(10 * math.log1p(-1e-3)) <= found.upper


@pytest.mark.parametrize(("kind", "relation"), [("remove", "add-remove"), ("replace", "replace-one")])
@pytest.mark.parametrize(("q", "noise", "steps"), [(0.3, 1.5, 2), (1e-3, 0.8, 2), (0.02, 0.5, 1)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_what_is_surely_above_a_number_is(kind, relation, q, noise, steps, epsilon):
    """The quick answer is right about numbers just below and just above delta, and sees a tenth of it.

    The exact delta is a sum over all outputs.
    """
    couple = oracle.gaussian(noise, q, relation, points=2001)[0]
    exact = oracle.exact_delta(epsilon, [[couple]] * steps)
    parts = ((Pair(kind, q, noise), steps),)
    assert not surely_above(epsilon, parts, 0.0, exact * 1.0001)
    assert surely_above(epsilon, parts, 0.0, exact / 10)
