"""The choice of a method: next to no noise, where every method is at its limit, and the bracket by the record's use."""

import contextlib
import math

import pytest

from dpzero_theory.privacy.certified import router
from dpzero_theory.privacy.certified.analytic.contour import delta_bracket
from dpzero_theory.privacy.certified.analytic.rare import rare_delta
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.router import direction_delta
from tests.privacy.oracle import closed_form


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
    """L is all but constant where the record was not used: its density there is e^5000 times that elsewhere."""
    with contextlib.suppress(OverflowError):
        found = method(1.0, ((Pair("remove", 1e-3, noise), 10),), budget=1e6)
        assert found.lower <= -math.expm1(10 * math.log1p(-1e-3)) <= found.upper


@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
@pytest.mark.parametrize(("q", "s", "epsilon"), [(0.3, 0.2, 0.5), (0.01, 0.12, 2.0), (0.9, 0.3, 0.1)])
def test_the_bracket_by_use_holds_the_closed_form(kind, q, s, epsilon):
    if kind == "add" and epsilon >= -math.log1p(-q):
        return  # beyond its largest loss
    lower, upper = router._by_use(epsilon, ((Pair(kind, q, s), 1),), 0.0)
    exact = closed_form(kind, q, s, epsilon)
    assert lower <= exact <= upper
    assert kind == "add" or lower > 0.5 * exact
