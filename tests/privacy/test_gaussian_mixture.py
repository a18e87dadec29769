"""Mixtures of Gaussians as part of a history.

The oracles are sums over outputs of up to three steps, vectors in random directions, and dp-accounting's privacy-loss
distributions.
"""

import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import zcdp_of_history
from dpzero_theory.privacy.interop.events import UnsupportedEvent, event_from_history, history_from_event
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.stated import gaussian_mixture
from dpzero_theory.privacy.step import Release
from tests.privacy.oracle import exact_delta, gaussian

MIXTURES = {
    "as a Poisson batch": (1.3, [0.0, 1.0], [0.7, 0.3]),
    "three distances": (2.0, [0.5, 3.0, 0.0], [0.2, 0.1, 0.7]),
    "never still": (5.0, [1.0, 4.0], [0.9, 0.1]),
    "one distance": (1.0, [2.0], [1.0]),
}


def laws(s: float, shifts: list[float], chances: list[float], replaced: bool, points: int) -> tuple[np.ndarray, ...]:
    x = np.linspace(-max(shifts) - 11 * s, max(shifts) + 11 * s, points)

    def law(sign: int) -> np.ndarray:
        parts = (p * stats.norm.pdf(x, sign * c, s) for c, p in zip(shifts, chances, strict=True))
        return np.asarray(sum(parts) * (x[1] - x[0]))

    return law(1), law(-1 if replaced else 0)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize(("steps", "points"), [(1, 40_001), (2, 2_001)])
def test_delta_is_that_of_a_sum_over_outputs(relation, name, steps, points):
    s, shifts, chances = MIXTURES[name]
    pair = laws(s, shifts, chances, relation == "replace-one", points)
    history = [gaussian_mixture(s, shifts, chances, steps=steps, relation=relation)]
    for epsilon in (0.0, 0.4, 2.0):
        truth = exact_delta(epsilon, [[pair, pair[::-1]]] * steps)
        found = delta_of_history(history, epsilon)
        assert found.lower * (1 - 1e-4) <= truth <= found.upper * (1 + 1e-4)
        assert found.upper <= found.lower * 1.01 + 1e-12


def test_vectors_in_other_directions_cost_less():
    """With the record the mean is one of three vectors of the given norms; delta is a sum over a plane of outputs."""
    draw = np.random.default_rng(3)
    s, norms, chances = 1.5, np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.3, 0.2])
    bound = delta_of_history([gaussian_mixture(s, norms, chances, relation="add-remove")], 0.5).upper
    x, y = np.meshgrid(*[np.linspace(-15, 15, 301)] * 2)
    cell = (x[0, 1] - x[0, 0]) ** 2
    largest = 0.0
    for angles in [np.zeros(3), *draw.uniform(0, 2 * math.pi, (12, 3))]:
        means = norms[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        p = sum(
            c * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * s * s)) for c, (a, b) in zip(chances, means, strict=True)
        )
        p, q = (law * cell / (2 * math.pi * s * s) for law in (p, np.exp(-(x**2 + y**2) / (2 * s * s))))
        largest = max(largest, exact_delta(0.5, [[(p.ravel(), q.ravel()), (q.ravel(), p.ravel())]]))
    assert 0.999 * bound < largest <= bound * (1 + 1e-6)


def test_it_is_a_poisson_batch_where_it_has_two_distances_and_composes():
    told = [gaussian_mixture(1.3 * 7, [0.0, 7.0], [0.9, 0.1], steps=50, relation="replace-one")]
    drawn = [Release(1.3, 50, sampling="poisson", relation="replace-one", sample_rate=0.1)]
    full = Release(3.0, 2, sampling="full", relation="replace-one")
    for more in ([], [full]):
        first, second = (epsilon_of_history([*part, *more], 1e-6) for part in (told, drawn))
        assert first.lower <= second.upper
        assert second.lower <= first.upper
        assert first.upper == pytest.approx(second.upper, rel=1e-4)
    rho = zcdp_of_history([*told, full])
    assert rho.lower == pytest.approx(50 / 1.69 / 2 + 4 / 9 * 2 / 2)
    assert rho.upper == pytest.approx(4 * 50 / 1.69 / 2 + 4 / 9 * 2 / 2)
    three = [gaussian_mixture(*MIXTURES["three distances"], steps=4, relation="replace-one")]
    assert zcdp_of_history(three).lower == pytest.approx(4 * 2.25 / 2)
    assert zcdp_of_history(three).upper == pytest.approx(4 * 4 * 2.25 / 2)
    pair = gaussian(1.3, 0.1, "add-remove")[0]
    one = delta_of_history([gaussian_mixture(1.3, [0.0, 1.0], [0.9, 0.1], relation="add-remove")], 0.5)
    assert one.upper == pytest.approx(exact_delta(0.5, [[pair, pair[::-1]]]), rel=1e-3)


@pytest.mark.parametrize("relation", ["add-remove", "zero-out"])
@pytest.mark.parametrize("name", ["as a Poisson batch", "never still"])
def test_it_costs_here_what_it_costs_in_dp_accounting(relation, name):
    dp = pytest.importorskip("dp_accounting", reason="the compare extra is not installed")
    kind = {"add-remove": "ADD_OR_REMOVE_ONE", "zero-out": "REPLACE_SPECIAL"}[relation]
    event = dp.SelfComposedDpEvent(dp.dp_event.MixtureOfGaussiansDpEvent(*MIXTURES[name]), 3)
    history = history_from_event(event, relation)
    theirs = dp.pld.PLDAccountant(dp.NeighboringRelation[kind], 1e-3).compose(event).get_epsilon(1e-5)
    ours = epsilon_of_history(history, 1e-5)
    assert ours.lower <= theirs * (1 + 1e-9)
    assert ours.upper == pytest.approx(theirs, rel=5e-3)
    assert ours.upper <= ours.lower * 1.01
    assert history_from_event(event_from_history(history), relation) == history


def test_the_value_that_dp_accounting_tests_is_in_the_bracket():
    """epsilon 17.193115 at delta 1e-6, of test_mixture_of_gaussians_basic of dp-accounting 0.6.0."""
    first = gaussian_mixture(1.0, [0.0, 1.0, 2.0], [0.2, 0.6, 0.2], steps=3, relation="add-remove")
    second = gaussian_mixture(2.0, [0.0, 2.0, 3.0], [0.33, 0.34, 0.33], steps=2, relation="add-remove")
    found = delta_of_history([first, second], 17.193115)
    assert found.lower <= 1e-6 <= found.upper <= found.lower * 1.001


def test_events_that_show_nothing_have_no_noise_or_are_not_defined():
    dp = pytest.importorskip("dp_accounting", reason="the compare extra is not installed")
    mixture = dp.dp_event.MixtureOfGaussiansDpEvent
    assert history_from_event(mixture(1.0, [0.0], [1.0]), "add-remove") == []
    with pytest.raises(ValueError, match=r"^event must protect its records"):
        history_from_event(mixture(0.0, [1.0], [1.0]), "add-remove")
    with pytest.raises(UnsupportedEvent, match=r"got MixtureOfGaussiansDpEvent with replace-one$"):
        history_from_event(mixture(1.0, [1.0], [1.0]), "replace-one")
    with pytest.raises(UnsupportedEvent, match=r"got PoissonSampledDpEvent of MixtureOfGaussiansDpEvent$"):
        history_from_event(dp.PoissonSampledDpEvent(0.1, mixture(1.0, [1.0], [1.0])), "add-remove")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((1.0, [1.0, -1.0], [0.5, 0.5]), "^sensitivities must be"),
        ((1.0, [1.0, math.nan], [0.5, 0.5]), "^sensitivities must be"),
        ((1.0, [1.0, 0.0], [0.5]), "^sensitivities and probabilities must be equally many"),
        ((1.0, [], []), "^sensitivities and probabilities must be equally many"),
        ((1.0, [1.0, 0.0], [0.5, 0.4]), r"^probabilities must sum to 1; got 0\.9$"),
        ((1.0, [1.0, 0.0], [0.5, math.nan]), "^probabilities must be"),
        ((1.0, [0.0, 1.0], [1.0, 0.0]), "^sensitivities must be above 0"),
        ((0.1, [1.0], [1.0]), r"^standard_deviation must be .* 0\.2 <="),
        ((math.nan, [1.0], [1.0]), "^standard_deviation must be"),
    ],
)
def test_what_is_no_mixture_is_refused_in_one_line(given, words):
    with pytest.raises(ValueError, match=words) as caught:
        gaussian_mixture(*given, relation="add-remove")
    assert "\n" not in str(caught.value)


def test_its_name_is_read_back():
    law = MECHANISMS["gaussian-mixture:2.0;0.0,0.75;3.0,0.25"]
    assert law.name == "gaussian-mixture:2.0;0.0,0.75;3.0,0.25"
    for arguments, words in (
        ("2", "S;C,P"),
        ("2;1,0.5", "with its numbers; probabilities must sum"),
        ("2;1,e", "numb"),
    ):
        with pytest.raises(ValueError, match=f"^mechanism must be gaussian-mixture.*{words}"):
            MECHANISMS[f"gaussian-mixture:{arguments}"]
