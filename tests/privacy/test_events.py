"""Tests of histories made from dp-accounting's events, and of what they cost there and here."""

import math
from dataclasses import dataclass

import dp_accounting as dp
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.dp_accounting import history_from_event
from dpzero_theory.privacy.relation import Relation
from tests.privacy.oracle import RELATIONS, made

G = dp.GaussianDpEvent


def test_events_become_histories():
    event = dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, G(1.1)), 30),
            G(7.0),
            dp.SampledWithoutReplacementDpEvent(100, 5, G(2.0)),
            dp.NoOpDpEvent(),
            dp.PoissonSampledDpEvent(0.5, dp.LaplaceDpEvent(3.0)),
            dp_event.DiscreteLaplaceDpEvent(0.25, 2),
        ]
    )
    found = history_from_event(dp.SelfComposedDpEvent(event, 2), "add-remove")
    assert [(r.steps, r.sampling.word, r.sampling.sample_rate, r.noise, r.mechanism) for r in found] == [
        (60, "poisson", 0.01, 1.1, "gaussian"),
        (2, "full", 1.0, 7.0, "gaussian"),
        (2, "fixed-size", 0.05, 2.0, "gaussian"),
        (2, "poisson", 0.5, 3.0, "laplace"),
        (2, "full", 1.0, 2.0, "discrete-laplace:2"),
    ]


@pytest.mark.parametrize("name", RELATIONS)
@pytest.mark.parametrize(("multiplier", "q", "steps"), [(4.0, 0.2, 300), (30.0, 1.0, 400)])
def test_an_event_costs_here_what_it_costs_there(multiplier, q, steps, name):
    """For the convention of every relation; their upper bound is above ours, by their grid only."""
    inner = G(multiplier)
    event = dp.SelfComposedDpEvent(inner if q == 1 else dp.PoissonSampledDpEvent(q, inner), steps)
    theirs = PLDAccountant(dp.NeighboringRelation[name]).compose(event).get_epsilon(1e-5)
    ours = epsilon_of_history(history_from_event(event, RELATIONS[name]), 1e-5)
    assert ours.lower <= theirs * (1 + 1e-9)
    assert ours.upper == pytest.approx(theirs, rel=5e-3)


def test_the_rdp_accountant_counts_a_replaced_record_as_one_clip():
    """As the module says: its epsilon is below our certified lower end, and equals that of add-remove."""
    event = dp.SelfComposedDpEvent(G(4.0), 50)
    rdp = {n: RdpAccountant(neighboring_relation=dp.NeighboringRelation[n]).compose(event) for n in RELATIONS}
    theirs = {name: accountant.get_epsilon(1e-5) for name, accountant in rdp.items()}
    assert theirs["REPLACE_ONE"] == theirs["ADD_OR_REMOVE_ONE"]
    assert epsilon_of_history(history_from_event(event, "replace-one"), 1e-5).lower > 2 * theirs["REPLACE_ONE"]


OTHER = {
    "UnsupportedDpEvent": dp_event.UnsupportedDpEvent(),
    "SampledWithReplacementDpEvent": dp_event.SampledWithReplacementDpEvent(10, 2, G(1.0)),
    "int": 3,
}
AROUND = {
    "alone": lambda event: event,
    "composed": lambda event: dp.ComposedDpEvent([G(1.0), event]),
    "repeated": lambda event: dp.SelfComposedDpEvent(event, 3),
    "poisson": lambda event: dp.PoissonSampledDpEvent(0.1, event),
    "never drawn": lambda event: dp.PoissonSampledDpEvent(0, event),
    "fixed size": lambda event: dp.SampledWithoutReplacementDpEvent(10, 2, event),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", OTHER)
def test_an_event_of_another_mechanism_is_refused_by_name(name, around):
    with pytest.raises(ValueError, match=f"^event must be built from Gaussian, .*{name}$") as caught:
        history_from_event(AROUND[around](OTHER[name]), "add-remove")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "event", [dp.NonPrivateDpEvent(), G(0.0), dp.LaplaceDpEvent(0), dp_event.DiscreteLaplaceDpEvent(0, 1)]
)
def test_an_event_that_protects_nothing_is_no_history(event):
    with pytest.raises(ValueError, match=r"^event must protect its records; got "):
        history_from_event(dp.SelfComposedDpEvent(event, 3), "add-remove")


@pytest.mark.parametrize("relation", Relation)
def test_the_relation_is_the_callers_and_the_noise_is_over_the_clip(relation):
    (release,) = history_from_event(G(3.0), relation)
    assert release == made(3.0, relation=relation)
    with pytest.raises(ValueError, match="relation must be one of"):
        history_from_event(G(3.0), "replace_one")
    for noise in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="noise_multiplier"):
            history_from_event(G(noise), relation)


@dataclass
class DiscreteGaussianDpEvent:
    """Events of this name and the three below are on dp-accounting's main branch, and in no release yet."""

    sigma: float
    sensitivity: float = 1.0
    dimension: int | None = None


@dataclass
class EpsilonDeltaDpEvent:
    epsilon: float
    delta: float


@dataclass
class ExponentialMechanismDpEvent:
    epsilon: float


@dataclass
class PermuteAndFlipDpEvent:
    epsilon: float


UPSTREAM = {
    "discrete": (DiscreteGaussianDpEvent(10.0, 5.0, 1), 11.4800, 1e-4),
    "discrete, of unknown dimension": (DiscreteGaussianDpEvent(10.0, 5.0), 11.4800, 0.02),
    "stated": (EpsilonDeltaDpEvent(0.1, 1e-8), 1.598443, 1e-4),
    "exponential": (ExponentialMechanismDpEvent(0.1), 1.597980, 1e-4),
    "permute and flip": (PermuteAndFlipDpEvent(0.1), 1.592229, 5e-3),
}


@pytest.mark.parametrize("name", UPSTREAM)
def test_events_that_are_not_released_yet(name):
    """Beside what the accountant of privacy loss distributions says at commit 1e2abd4 of its main branch. It has no
    discrete Gaussian (here: a Gaussian event), and takes permute and flip as Laplace noise."""
    event, theirs, above = UPSTREAM[name]
    (steps,) = history_from_event(dp.SelfComposedDpEvent(event, 20), "add-remove")
    assert steps.steps == 20
    assert theirs <= epsilon_of_history([steps], 1e-5).upper <= theirs * (1 + above)


def test_what_such_an_event_says_nothing_or_everything_about():
    assert history_from_event(EpsilonDeltaDpEvent(0.0, 0.0), "add-remove") == []
    for event in (EpsilonDeltaDpEvent(0.0, 1.0), PermuteAndFlipDpEvent(math.inf), DiscreteGaussianDpEvent(0.0)):
        with pytest.raises(ValueError, match=r"^event must protect its records; got "):
            history_from_event(event, "add-remove")
    with pytest.raises(ValueError, match=r"got DiscreteGaussianDpEvent with a sensitivity of 1\.5"):
        history_from_event(DiscreteGaussianDpEvent(10.0, 1.5), "add-remove")
