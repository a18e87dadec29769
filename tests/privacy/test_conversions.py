"""Tests of Renyi DP and of the trade-off curve of a history."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.conversions import rdp_of_history, trade_off
from dpzero_theory.privacy.gaussian import delta_from_gdp
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release
from tests.privacy import oracle


def release(mechanism, multiplier, steps, q, relation):
    sampling = "full" if q == 1 else "poisson"
    return Release(multiplier, steps, sampling=sampling, relation=relation, sample_rate=q, mechanism=mechanism)


def test_renyi_divergence_against_dp_accounting():
    unit = Release(1.3, 500, sampling="poisson", relation="add-remove", sample_rate=0.03)
    orders = [2.0, 8.0, 20.0]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.03, dp_event.GaussianDpEvent(1.3)), 500)
    for order, theirs in zip(orders, accountant._rdp, strict=True):
        ours = rdp_of_history([unit], order)
        assert ours.lower <= theirs * (1 + 1e-9)
        assert theirs * (1 - 1e-9) <= ours.upper <= (1 + 2e-5) * ours.lower


def test_zcdp_bounds_the_currencies():
    history = [
        Release(1.3, 500, sampling="poisson", relation="zero-out", sample_rate=0.03),
        Release(9.0, 100, sampling="fixed-order", relation="zero-out", sample_rate=0.1),
    ]
    rho = 500 / (2 * 1.69) + 10 / (2 * 81)
    for order in (1.5, 10.0):
        assert rdp_of_history(history, order).upper <= rho * order
    for epsilon in (0.5, 3.0):
        assert delta_of_history(history, epsilon).upper <= float(delta_from_gdp(epsilon, math.sqrt(2 * rho)))


def test_trade_off_of_a_gaussian_is_the_gaussian_curve():
    unit = Release(50.0, 2500, sampling="full", relation="add-remove")
    levels = np.array([0.0, 0.001, 0.05, 0.3, 0.5, 0.9, 1.0])
    exact = norm.cdf(norm.ppf(1 - levels) - 1.0)
    found = trade_off([unit], levels)
    assert np.all(found <= exact + 1e-12)
    assert np.all(found >= exact - 4e-3)


def test_trade_off_lies_below_the_best_test_of_one_subsampled_release():
    q, s = 0.3, 1.0
    unit = Release(s, 1, sampling="poisson", relation="add-remove", sample_rate=q)
    cut = np.linspace(-1, 4, 11)
    type_one = norm.sf(cut, 0, s)
    type_two = (1 - q) * norm.cdf(cut, 0, s) + q * norm.cdf(cut, 1, s)
    found = trade_off([unit], type_one, points=12)
    assert np.all(found <= type_two + 1e-12)
    assert np.all(found >= trade_off([Release(s, 1, sampling="full", relation="add-remove")], type_one))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.2])
@pytest.mark.parametrize("order", [1.5, 4.0])
def test_renyi_divergence_of_either_gaussian_law_against_its_integral(relation, q, order):
    """The Renyi divergence of either Gaussian law agrees with its integral.

    It is a fine sum over outputs of the continuous law, in both directions; that of the discrete law is within the
    ratio of the two laws.
    """
    couples = oracle.gaussian(1.3, q, relation)
    exact = max(math.log(float((p[r > 0] ** order * r[r > 0] ** (1 - order)).sum())) for p, r in couples) / (order - 1)
    for mechanism in ("gaussian", "discrete-gaussian"):
        found = rdp_of_history([release(mechanism, 1.3, 6, q, relation)], order)
        assert found.lower * (1 - 1e-7) <= 6 * exact <= found.upper * (1 + 1e-7)
        assert found.upper == pytest.approx(found.lower, rel=2e-5)


@pytest.mark.parametrize("relation", Relation)
def test_laplace_has_no_gaussian_summary_and_is_refused_by_name(relation):
    gaussian, laplace = release("gaussian", 9.0, 3, 1.0, relation), release("laplace", 9.0, 3, 1.0, relation)
    for history in ([laplace], [gaussian, laplace]):
        with pytest.raises(ValueError, match=r"^history must have Gaussian noise only; got mechanism laplace$"):
            rdp_of_history(history, 2.0)


def best_test(couples, levels):
    """Returns the exact trade-off curve at `levels` of laws with finitely many outputs, by Neyman and Pearson.

    `couples` has the two laws for each direction, and the lower of the directions' curves is returned.
    """
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
    exact = best_test(couples, levels)
    found = trade_off([release("discrete-laplace:3", 2.0, 2, q, relation)], levels, points=12)
    assert (found <= exact + 1e-12).all()
    pure = max(float(np.max(np.log(p / r))) for p, r in couples)
    assert (found >= np.maximum(1 - math.exp(pure) * levels, math.exp(-pure) * (1 - levels)) - 1e-9).all()
    history = [release(mechanism, 2.0, 2, 1.0, relation) for mechanism in ("laplace", "gaussian")]
    assert (trade_off(history, levels, points=8) <= trade_off(history[1:], levels) + 1e-12).all()


def divergence(there, without, order):
    """Returns the larger of the two Renyi divergences of this order between two laws, given by their probabilities."""
    return max(
        math.log(float(np.sum(np.exp(order * np.log(p) + (1 - order) * np.log(q))))) / (order - 1)
        for p, q in ((there, without), (without, there))
    )


@pytest.mark.parametrize("order", [1.5, 2.0, 6.0])
def test_renyi_divergence_of_fixed_size_batches_under_zero_out(order):
    """The Renyi divergence of batches of fixed size under zero-out agrees with sums over outputs.

    A batch has one of three records: the record is at 1, or adds nothing, and the others are at -1 or 1; both steps are
    alike.
    """
    s, q = 1.5, 1 / 3
    x = np.linspace(-18, 18, 20_001)
    law = {m: np.exp(-((x - m) ** 2) / (2 * s * s)) * (x[1] - x[0]) / (s * math.sqrt(2 * math.pi)) for m in (-1, 0, 1)}
    exact = max(divergence((1 - q) * law[y] + q * law[1], (1 - q) * law[y] + q * law[0], order) for y in (-1, 0, 1))
    found = rdp_of_history([Release(s, 2, sampling="fixed-size", relation="zero-out", sample_rate=q)], order)
    assert 0 < found.lower <= 2 * exact * (1 + 1e-9)
    assert 2 * exact <= found.upper * (1 + 1e-9)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one", "add-remove"])
def test_renyi_divergence_of_truncated_batches_counts_what_makes_way(relation):
    """The Renyi divergence of truncated batches counts the records that make way.

    Where both of two records are drawn one is kept, at rate 0.9; the record is at 1 and the other one at -1.
    """
    s, q, order = 1.0, 0.9, 2.0
    x = np.linspace(-20, 20, 20_001)
    law = {m: np.exp(-((x - m) ** 2) / (2 * s * s)) * (x[1] - x[0]) / (s * math.sqrt(2 * math.pi)) for m in (-1, 0, 1)}
    alone, both = q * (1 - q), q * q

    def output(record):
        return (1 - q) ** 2 * law[0] + (alone + both / 2) * (law[record] + law[-1])

    without = (
        (1 - q) * law[0] + q * law[-1] if relation == "add-remove" else output(-1 if relation == "replace-one" else 0)
    )
    exact = divergence(output(1), without, order)
    release = Release(s, 1, sampling="truncated-poisson:1/2", relation=relation, sample_rate=q)
    found = rdp_of_history([release], order)
    assert found.lower <= found.upper
    assert exact <= found.upper
    if relation == "add-remove":
        # what the other record adds by making way is more than a Poisson batch tells of the record itself
        plain = Release(s, 1, sampling="poisson", relation=relation, sample_rate=q)
        assert rdp_of_history([plain], order).upper < exact


def test_the_lower_end_of_a_random_allocation_is_not_that_of_known_steps():
    found = rdp_of_history([Release(1.0, 10, sampling="random-allocation", relation="add-remove", sample_rate=0.1)], 2)
    assert found.lower < found.upper == pytest.approx(1.0)


def test_an_order_that_is_too_large_for_the_noise_is_named():
    with pytest.raises(ValueError, match=r"^order must be smaller for a divergence at noise 0\.1 of its sensitivity"):
        rdp_of_history([Release(0.1, 5, sampling="poisson", relation="replace-one", sample_rate=0.1)], 1e6)


def test_a_trade_off_at_hardly_any_noise_has_no_overflow():
    unit = Release(0.001, 10, sampling="full", relation="add-remove", mechanism="discrete-laplace:5")
    assert trade_off([unit], [0.0, 1e-300, 0.1, 1.0], points=4).tolist() == [1.0, 0.0, 0.0, 0.0]
