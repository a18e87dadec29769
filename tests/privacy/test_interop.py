"""Histories from dp-accounting's events, and what they cost there and here."""

import pytest
from dp_accounting import dp_event

from dpzero_theory.privacy.interop import history_from_event


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
