"""Tests of the certified accountant used in place of dp-accounting's."""

import math

import dp_accounting as dp
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import UnsupportedEventError

from dpzero_theory.privacy.dp_accounting import CertifiedAccountant
from tests.privacy.oracle import noise_for

RELATIONS = tuple(dp.NeighboringRelation)
POISSON = dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.3))


@pytest.mark.parametrize("relation", RELATIONS)
def test_it_answers_as_the_pld_accountant_does(relation):
    ours, theirs = (accountant(relation).compose(POISSON, 300) for accountant in (CertifiedAccountant, PLDAccountant))
    assert theirs.get_epsilon(1e-5) * (1 - 1e-3) < ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5) * (1 + 1e-4)
    assert theirs.get_delta(1.0) * (1 - 1e-2) < ours.get_delta(1.0) <= theirs.get_delta(1.0) * (1 + 1e-3)


def test_events_composed_one_by_one_are_one_history():
    one, many = CertifiedAccountant(), CertifiedAccountant().compose(POISSON, 200)
    for _ in range(100):
        one.compose(dp.ComposedDpEvent([POISSON, POISSON]))
    assert one.history == many.history
    assert len(one.history) == 1
    assert one.ledger == dp.SelfComposedDpEvent(dp.ComposedDpEvent([POISSON, POISSON]), 100)


def test_its_calibration_is_ours():
    found = dp.calibrate_dp_mechanism(
        CertifiedAccountant, lambda s: dp.SelfComposedDpEvent(dp.GaussianDpEvent(s), 100), 2.0, 1e-5
    )
    ours = noise_for(target_epsilon=2.0, target_delta=1e-5, steps=100, sampling="full", relation="add-remove")
    assert found == pytest.approx(ours.value, rel=1e-5)
    assert found >= ours.lower


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_corners_of_the_protocol(relation):
    nothing = CertifiedAccountant(relation)
    assert (nothing.get_epsilon(0.0), nothing.get_epsilon(1.0), nothing.get_delta(0.0)) == (0.0, 0.0, 0.0)
    gaussian = CertifiedAccountant(relation).compose(dp.GaussianDpEvent(2.0))
    assert (gaussian.get_epsilon(0.0), gaussian.get_epsilon(1.0)) == (math.inf, 0.0)
    assert gaussian.get_delta(math.inf) == 0.0
    laplace = CertifiedAccountant(relation).compose(dp.LaplaceDpEvent(2.0), 3)
    sensitivity = 2 if relation.name == "REPLACE_ONE" else 1
    assert laplace.get_epsilon(0.0) == pytest.approx(1.5 * sensitivity)
    bare = CertifiedAccountant(relation).compose(dp.ComposedDpEvent([POISSON, dp.NonPrivateDpEvent()]))
    assert (bare.get_epsilon(0.5), bare.get_delta(3.0)) == (math.inf, 1.0)
    for delta in (-0.1, 1.1, math.nan, "1"):
        with pytest.raises(ValueError, match=r"^target_delta must be a finite number"):
            gaussian.get_epsilon(delta)


def test_an_event_it_does_not_account_changes_nothing():
    accountant = CertifiedAccountant().compose(POISSON)
    other = dp_event.RandomizedResponseDpEvent(0.5, 3)
    assert not accountant.supports(dp.ComposedDpEvent([POISSON, other]))
    with pytest.raises(UnsupportedEventError, match="caused by subevent Randomized"):
        accountant.compose(dp.ComposedDpEvent([POISSON, other]))
    assert accountant.history == CertifiedAccountant().compose(POISSON).history
    for count in (0, -1):
        with pytest.raises(ValueError, match="must be"):
            accountant.compose(POISSON, count)


def test_what_its_accountants_take_is_taken_or_refused():
    add_remove = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    plain = CertifiedAccountant(add_remove).compose(POISSON, 30).get_epsilon(1e-5)
    for made in (
        CertifiedAccountant(add_remove, 1e-3),
        CertifiedAccountant(neighboring_relation=add_remove, orders=[2]),
    ):
        assert made.compose(POISSON, 30).get_epsilon(1e-5) == plain
    with pytest.raises(
        ValueError, match=r"^neighboring_relation must be one of ADD_OR_REMOVE_ONE, .*; got 'add-remove'"
    ):
        CertifiedAccountant("add-remove")
