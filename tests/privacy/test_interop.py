"""Histories from dp-accounting's events, and what they cost there and here."""

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.interop import history_from_event
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.release import Release


def test_events_of_dp_accounting_become_histories():
    sampled = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.1))
    event = dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(sampled, 30),
            dp_event.GaussianDpEvent(7.0),
            dp_event.SampledWithoutReplacementDpEvent(100, 5, dp_event.GaussianDpEvent(2.0)),
            dp_event.NoOpDpEvent(),
        ]
    )
    first, second, third = history_from_event(dp_event.SelfComposedDpEvent(event, 2), "add-remove")
    assert (first.steps, first.sampling, first.sample_rate) == (60, "poisson", 0.01)
    assert (second.steps, second.sampling, second.noise_multiplier) == (2, "full", 7.0)
    assert (third.steps, third.sampling, third.sample_rate) == (2, "fixed-size", 0.05)
    with pytest.raises(ValueError, match="LaplaceDpEvent"):
        history_from_event(dp_event.LaplaceDpEvent(1.0), "add-remove")


@pytest.mark.parametrize(("multiplier", "q", "steps"), [(1.1, 0.01, 2000), (4.0, 0.2, 300), (30.0, 1.0, 400)])
def test_an_event_costs_here_what_it_costs_there(multiplier, q, steps):
    """dp-accounting's pessimistic answer is above ours, by its discretisation only."""
    inner = dp_event.GaussianDpEvent(multiplier)
    event = dp_event.SelfComposedDpEvent(inner if q == 1 else dp_event.PoissonSampledDpEvent(q, inner), steps)
    accountant = PLDAccountant()
    accountant.compose(event)
    theirs = accountant.get_epsilon(1e-5)
    ours = epsilon_of_history(history_from_event(event, "add-remove"), 1e-5)
    assert ours.lower <= theirs * (1 + 1e-9)
    assert ours.upper == pytest.approx(theirs, rel=5e-3)


OTHER = {
    "LaplaceDpEvent": dp_event.LaplaceDpEvent(1.0),
    "DiscreteLaplaceDpEvent": dp_event.DiscreteLaplaceDpEvent(1.0, 1),
    "NonPrivateDpEvent": dp_event.NonPrivateDpEvent(),
    "UnsupportedDpEvent": dp_event.UnsupportedDpEvent(),
}
AROUND = {
    "alone": lambda event: event,
    "composed": lambda event: dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.0), event]),
    "repeated": lambda event: dp_event.SelfComposedDpEvent(event, 3),
    "poisson": lambda event: dp_event.PoissonSampledDpEvent(0.1, event),
    "fixed size": lambda event: dp_event.SampledWithoutReplacementDpEvent(10, 2, event),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", OTHER)
def test_an_event_of_another_mechanism_is_refused_by_name(name, around):
    with pytest.raises(ValueError, match=f"^event must be built from Gaussian, .*{name}$") as caught:
        history_from_event(AROUND[around](OTHER[name]), "add-remove")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("relation", Relation)
def test_the_relation_is_the_callers_and_the_noise_is_over_the_clip(relation):
    (release,) = history_from_event(dp_event.GaussianDpEvent(3.0), relation)
    assert release == Release(3.0, 1, sampling="full", relation=relation)
    with pytest.raises(ValueError, match="relation must be one of"):
        history_from_event(dp_event.GaussianDpEvent(3.0), "replace_one")
    with pytest.raises(ValueError, match="noise_multiplier"):
        history_from_event(dp_event.GaussianDpEvent(0.0), relation)
