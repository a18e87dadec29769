"""Groups of records: against the exact laws of k records that all pull one way, by sums over outputs and subsets."""

import itertools
import math

import numpy as np
import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.group import group_delta, group_epsilon, group_release
from dpzero_theory.privacy.release import Release
from tests.privacy.oracle import exact_delta


def law(shifts, chances, s):
    """A mixture of Gaussians by a Riemann sum."""
    x = np.linspace(-14 * s - 6, 14 * s + 6, 6_001)
    mass = sum(c * np.exp(-((x - m) ** 2) / (2 * s * s)) for m, c in zip(shifts, chances, strict=True))
    return mass * (x[1] - x[0]) / (s * math.sqrt(2 * math.pi))


def binomial(k, q):
    return [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("k", "q", "s", "steps"), [(1, 0.1, 1.0, 1), (2, 0.1, 1.5, 1), (3, 0.3, 2.0, 1), (3, 0.05, 2.0, 2)]
)
def test_poisson_against_all_records_at_once(relation, k, q, s, steps):
    release = Release(s, steps, sampling="poisson", relation=relation, sample_rate=q)
    there = law(range(k + 1), binomial(k, q), s)
    other = law([-j for j in range(k + 1)], binomial(k, q), s) if relation == "replace-one" else law([0], [1.0], s)
    for epsilon in (0.1, 0.8):
        found = group_delta([release], epsilon, size=k)
        truth = exact_delta(epsilon, [[(there, other), (other, there)]] * steps)
        assert found.lower <= truth * (1 + 1e-4)
        assert truth <= found.upper * (1 + 1e-4)
        if k == 1:
            assert found.upper == pytest.approx(truth, rel=1e-4)


def test_fixed_size_against_all_batches():
    n, batch, k, s = 6, 2, 2, 3.0
    release = Release(s, 1, sampling="fixed-size", relation="replace-one", sample_rate=batch / n)
    for side in (1, -1):
        sums = {1: [], -1: []}
        for members in itertools.combinations(range(n), batch):
            drawn = sum(i < k for i in members)
            for sign in (1, -1):
                sums[sign].append(side * (sign * drawn - (batch - drawn)))
        chances = [1 / math.comb(n, batch)] * math.comb(n, batch)
        there, other = (law(sums[sign], chances, s) for sign in (1, -1))
        found = group_delta([release], 0.3, size=k)
        assert 0 < exact_delta(0.3, [[(there, other), (other, there)]]) <= found.upper * (1 + 1e-6)


def test_full_batches_scale():
    found = group_epsilon([Release(50.0, 100, sampling="full", relation="replace-one")], 1e-6, size=5)
    plain = epsilon_of_history([Release(10.0, 100, sampling="full", relation="replace-one")], 1e-6)
    assert (found.lower, found.upper) == (plain.lower, plain.upper)


def test_one_record_is_a_group_of_one_and_more_cost_more():
    history = [Release(2.0, 500, sampling="poisson", relation="add-remove", sample_rate=0.01)]
    assert group_delta(history, 1.0, size=1).upper == delta_of_history(history, 1.0).upper
    costs = [group_epsilon(history, 1e-5, size=k) for k in (1, 2, 4)]
    assert costs[0].upper < costs[1].upper < costs[2].upper
    assert all(cost.lower == pytest.approx(costs[0].lower) for cost in costs)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sampling": "random-allocation"}, "fixed-order for a group; got random-allocation"),
        ({"sampling": "fixed-size"}, "got fixed-size, add-remove"),
        ({"mechanism": "laplace", "sampling": "full", "sample_rate": 1}, "mechanism gaussian"),
    ],
)
def test_what_is_not_accounted_is_refused(changed, named):
    fields = {"sampling": "poisson", "relation": "add-remove", "sample_rate": 0.1} | changed
    with pytest.raises(ValueError, match=named):
        group_release(Release(1.0, 10, **fields), 2)


def test_a_size_is_a_number_of_records():
    with pytest.raises(ValueError, match="size must be an integer"):
        group_release(Release(1.0, 10, sampling="full", relation="zero-out"), 0)
