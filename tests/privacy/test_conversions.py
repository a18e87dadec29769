"""Renyi DP and the trade-off curve of a history, against integrals, the best tests, and dp-accounting."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from dpzero_theory.privacy.conversions import rdp_of_history, trade_off
from dpzero_theory.privacy.relation import Relation
from tests.privacy import oracle
from tests.privacy.oracle import around, made


def divergence(there, without, order):
    """Returns the larger of the two Renyi divergences of this order between two laws, given by their probabilities."""
    both = (there > 0) & (without > 0)
    logs = np.log(there[both]), np.log(without[both])
    return max(
        math.log(float(np.sum(np.exp(order * p + (1 - order) * q)))) / (order - 1) for p, q in (logs, logs[::-1])
    )


def normal(s, reach=20):
    """Returns the laws of N(m, s^2) on a grid for m = -1, 0, 1."""
    x = np.linspace(-reach, reach, 20_001)
    return {m: norm.pdf(x, m, s) * (x[1] - x[0]) for m in (-1, 0, 1)}


def test_renyi_divergence_against_dp_accounting():
    accountant = RdpAccountant([2.0, 8.0, 20.0])
    accountant.compose(dp_event.PoissonSampledDpEvent(0.03, dp_event.GaussianDpEvent(1.3)), 500)
    for order, theirs in zip((2.0, 8.0, 20.0), accountant._rdp, strict=True):
        assert around(rdp_of_history(made(1.3, 500, 0.03), order), theirs, 1e-9, width=2e-5)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.2])
@pytest.mark.parametrize("order", [1.5, 4.0])
@pytest.mark.parametrize("mechanism", ["gaussian", "discrete-gaussian"])
def test_renyi_divergence_of_either_gaussian_law_against_its_integral(relation, q, order, mechanism):
    exact = max(divergence(*couple, order) for couple in oracle.gaussian(1.3, q, relation))
    found = rdp_of_history(made(1.3, 6, q, relation, mechanism=mechanism), order)
    assert around(found, 6 * exact, 1e-7, width=2e-5)


@pytest.mark.parametrize("relation", Relation)
def test_what_has_no_divergence_is_refused_by_name(relation):
    for other, named in (
        ({"mechanism": "laplace"}, "sampling full and mechanism laplace"),
        ({"mechanism": "laplace", "noise": 1e-3}, "sampling full and mechanism laplace"),  # its cost has no law
        ({"sample_rate": 0.1, "sampling": "truncated-poisson:7/50"}, "sampling truncated-poisson:7/50 and"),
        ({"sample_rate": 0.1, "sampling": "random-allocation"}, "sampling random-allocation and"),
    ):
        one = made(other.pop("noise", 9.0), 3, other.pop("sample_rate", 1.0), relation, **other)
        for history in ([one], [made(9.0, 3, 1.0, relation), one]):
            with pytest.raises(ValueError, match=f"^history must have Gaussian noise and batches .*; got {named}"):
                rdp_of_history(history, 2.0)
    with pytest.raises(ValueError, match=r"^order must be smaller for a divergence at noise [0-9.]+ to be known"):
        rdp_of_history(made(0.1, 5, 0.1, relation), 1e6)


def test_the_trade_off_of_gaussian_releases_is_below_the_best_test():
    levels = np.array([0.0, 0.001, 0.05, 0.3, 0.5, 0.9, 1.0])
    exact, found = norm.cdf(norm.ppf(1 - levels) - 1.0), trade_off(made(50.0, 2500), levels)
    assert np.all((found <= exact + 1e-12) & (found >= exact - 4e-3))
    cut = np.linspace(-1, 4, 11)
    type_one, type_two = norm.sf(cut), 0.7 * norm.cdf(cut) + 0.3 * norm.cdf(cut, 1)
    found = trade_off(made(1.0, 1, 0.3), type_one)
    assert np.all(found <= type_two + 1e-12)
    assert np.all(found >= trade_off(made(1.0), type_one))


def best_test(couples, levels):
    """Returns the exact trade-off curve of laws with finitely many outputs, by Neyman and Pearson: the lower one of
    both directions."""
    found = []
    for p, r in couples:
        order = np.argsort(-r / p)
        type_one, type_two = (np.concatenate([[0], np.cumsum(law[order])]) for law in (p, r))
        found.append(np.interp(levels, type_one, 1 - type_two))
    return np.min(found, axis=0)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3])
def test_trade_off_of_laplace_releases_is_below_the_best_test(relation, q):
    couples = [oracle.power(couple, 2) for couple in oracle.laplace(3, 2.0, q, relation)]
    levels = np.linspace(0, 1, 21)
    found = trade_off(made(2.0, 2, q, relation, mechanism="discrete-laplace:3"), levels)
    assert (found <= best_test(couples, levels) + 1e-12).all()
    pure = max(float(np.max(np.log(p / r))) for p, r in couples)
    assert (found >= np.maximum(1 - math.exp(pure) * levels, math.exp(-pure) * (1 - levels)) - 1e-9).all()
    history = [made(2.0, 2, 1.0, relation, mechanism=mechanism) for mechanism in ("laplace", "gaussian")]
    assert (trade_off(history, levels) <= trade_off(history[1:], levels) + 1e-12).all()


def test_a_trade_off_at_hardly_any_noise_has_no_overflow():
    unit = made(0.001, 10, mechanism="discrete-laplace:5")
    assert trade_off(unit, [0.0, 1e-300, 0.1, 1.0]).tolist() == [1.0, 0.0, 0.0, 0.0]
