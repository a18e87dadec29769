"""Tests of a rough estimate of delta against the exact one, and of where large privacy losses begin."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpzero_theory.privacy.certified.grids.grid import grid_delta
from dpzero_theory.privacy.certified.laws.cells import Span
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.sketch import (
    Slice,
    rare_log_delta,
    reach_of,
    rough_cut,
    rough_log_delta,
    saddle,
)
from tests.privacy import oracle


@pytest.mark.parametrize(
    ("kind", "relation", "index"),
    [("remove", "add-remove", 0), ("add", "add-remove", 1), ("replace", "replace-one", 0)],
)
@pytest.mark.parametrize("q", [0.3, 1e-3])
def test_a_rough_delta_is_the_exact_one_within_a_factor(kind, relation, index, q):
    """A rough delta is between half of the exact one and 60 times it.

    The exact one, of two releases, is a sum over all outputs.
    """
    couple = oracle.gaussian(1.5, q, relation, points=2001)[index]
    epsilon = 0.05 if q < 0.01 and kind != "add" else 2e-4 if q < 0.01 else 0.4
    exact = oracle.exact_delta(epsilon, [[couple], [couple]])
    rough = rough_log_delta(epsilon, [(Pair(kind, q, 1.5), 2)])
    assert -math.log(2) < rough - math.log(exact) < math.log(60)


@pytest.mark.parametrize(("kind", "relation"), [("remove", "add-remove"), ("replace", "replace-one")])
@pytest.mark.parametrize(("q", "epsilon"), [(1e-3, 0.05), (1e-3, 1.0), (0.01, 0.5), (1e-5, 0.01)])
def test_a_rough_delta_of_a_record_that_is_seldom_used_is_near_the_exact_one(kind, relation, q, epsilon):
    couple = oracle.gaussian(1.5, q, relation, points=2001)[0]
    exact = oracle.exact_delta(epsilon, [[couple], [couple]])
    rough = rare_log_delta(epsilon, [(Pair(kind, q, 1.5), 2)])
    assert rough == pytest.approx(math.log(exact), abs=0.1)


def test_a_record_that_is_often_used_or_beside_other_noise_has_no_such_rough_delta():
    pair = Pair("remove", 1e-3, 1.5)
    assert rare_log_delta(1.0, [(pair, 90)]) is not None
    assert rare_log_delta(1.0, [(pair, 110)]) is None
    assert rare_log_delta(1.0, [(pair, 90)], 0.1) is None
    quiet = Pair("remove", 1e-5, 0.4)
    assert rare_log_delta(1.0, [(quiet, 90_000)]) == pytest.approx(
        math.log(grid_delta(1.0, [(quiet, 90_000)]).upper), abs=0.3
    )
    assert rare_log_delta(1.0, [(quiet, 110_000)]) is None
    assert rare_log_delta(1e-4, [(Pair("add", 1e-3, 1.5), 90)]) is None


def test_a_plain_gaussian_part_counts():
    mu, epsilon = 0.8, 1.0
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    rough = rough_log_delta(epsilon, [(Pair("remove", 1e-9, 5.0), 3)], mu)
    assert -math.log(2) < rough - math.log(exact) < math.log(20)


def test_large_losses_begin_where_two_of_them_are_as_rare_as_delta():
    """Large losses begin where two of them are as rare as delta.

    The record is seldom drawn. The cut leaves a share between delta and 1, and less for a smaller delta.
    """
    parts = [(Pair("remove", 1e-6, 0.7), 40_000)]
    (cut, rough), (further, smaller) = (rough_cut(epsilon, parts, 0.0) for epsilon in (0.2, 2.0))
    assert rough < cut < 0
    assert smaller < rough
    assert further < cut
    for log_cut in (cut, -700.0):
        assert math.log(2 * 40_000) + norm.logsf(reach_of(log_cut, 40_000)) == pytest.approx(log_cut, rel=1e-9)


def test_a_sketch_has_the_moments_of_its_law():
    """A rough law has the moments of the law of the privacy loss.

    The mean loss of a release under the tilt tau is a Riemann sum, and at the saddle point the tilted mean is where it
    should be.
    """
    pair = Pair("remove", 0.1, 1.2)
    sketch = Slice(pair, 5, Span(12.0, 12.0)).sketch(400)
    x = np.linspace(-15, 16, 400_001)
    p = 0.9 * norm.pdf(x, scale=1.2) + 0.1 * norm.pdf(x, 1, 1.2)
    loss = np.log(p / norm.pdf(x, scale=1.2))
    for tau in (0.0, 3.0):
        weights = p * np.exp(tau * loss)
        assert sketch.tilted(tau)[0] == pytest.approx(float(weights @ loss / weights.sum()), rel=1e-6)
    tau = saddle(1.0, [sketch])
    assert 5 * sketch.tilted(tau / 1.11)[0] < 1.0 + 1 / tau + 1 / (1 + tau) < 5 * sketch.tilted(tau * 1.11)[0]
