"""Tests of random allocation in every relation, alone and beside other releases.

They use brute force and Monte Carlo, and test the brackets' widths and extreme settings.
"""

import math

import numpy as np
import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.certified.allocations.allocation import Allocated
from dpzero_theory.privacy.certified.allocations.mixture import Mixture, mixture_delta
from dpzero_theory.privacy.gaussian import delta_from_gdp
from dpzero_theory.privacy.step import Release


def allocated(s, t, epochs, *, replaced):
    return Mixture((Allocated(s, t, t * epochs),), ((),), ((),), 0.0, replaced)


def release(s, steps, sampling, q, relation):
    return Release(s, steps, sampling=sampling, sample_rate=q, relation=relation)


def replaced(epsilon, s, t):
    """Returns delta of one epoch of random allocation when the record's contribution changes its sign.

    It is the trapezoid rule in all t outputs; s is the noise multiplier.
    """
    x = np.arange(-8 * s - 1, 8 * s + 1, s / 6)
    grid = np.meshgrid(*[x] * t, indexing="ij", sparse=True)
    base = math.prod(np.exp(-g * g / (2 * s * s)) / (6 * math.sqrt(2 * math.pi)) for g in grid)
    p, q = (sum(np.exp((2 * sign * g - 1) / (2 * s * s)) for g in grid) / t for sign in (1, -1))
    return float(np.sum(base * np.maximum(p - math.exp(epsilon) * q, 0)))


@pytest.mark.parametrize(
    ("epsilon", "s", "t"), [(0.5, 2.0, 1), (0.5, 2.0, 2), (1.0, 1.2, 2), (0.3, 3.0, 3), (2.0, 1.5, 3)]
)
def test_replacing_the_record_is_its_own_pair(epsilon, s, t):
    exact = replaced(epsilon, s, t)
    found = mixture_delta(epsilon, allocated(s, t, 1, replaced=True))
    # The trapezoid rule's step leaves a relative error of 1e-3
    assert found.lower <= exact * (1 + 2e-3)
    assert exact * (1 - 2e-3) <= found.upper <= 1.03 * found.lower


def losses(rng, n, s, t, epochs, *, replaced):
    loss = np.zeros(n)
    for _ in range(epochs):
        x = s * rng.standard_normal((n, t))
        x[:, 0] += 1
        ratio = np.exp((2 * x - 1) / (2 * s * s))
        loss += np.log(ratio.mean(axis=1))
        if replaced:
            loss -= np.log((1 / ratio).mean(axis=1)) - 1 / (s * s)
    return loss


def check(sample, found, narrow):
    threshold = 5 * float(sample.std()) / math.sqrt(len(sample))
    assert threshold < 0.15 * found.value
    assert found.lower - threshold <= sample.mean() <= found.upper + threshold
    assert found.upper / found.lower - 1 < narrow


@pytest.mark.parametrize(
    ("epsilon", "s", "t", "epochs", "sign"),
    [(1.0, 0.5, 40, 3, False), (8.0, 2.0, 8, 200, False), (3.0, 0.5, 40, 3, True), (2.0, 2.0, 16, 20, True)],
)
def test_monte_carlo_is_in_the_bracket(epsilon, s, t, epochs, sign):
    loss = losses(np.random.default_rng(20250311), 60_000, s, t, epochs, replaced=sign)
    found = mixture_delta(epsilon, allocated(s, t, epochs, replaced=sign))
    check(-np.expm1(np.minimum(epsilon - loss, 0)), found, 0.08)


def test_the_reverse_direction_by_monte_carlo():
    # The privacy loss here is that of the data without the record against those with it, the larger one where the
    # record is rarely alone
    rng, n, s, t = np.random.default_rng(20250312), 60_000, 0.6, 3
    loss = np.zeros(n)
    for _ in range(4):
        x = s * rng.standard_normal((n, t))
        loss -= np.log(np.exp((2 * x - 1) / (2 * s * s)).mean(axis=1))
    found = mixture_delta(1.0, allocated(s, t, 4, replaced=False))
    sample = -np.expm1(np.minimum(1.0 - loss, 0))
    assert sample.mean() <= found.upper + 5 * float(sample.std()) / math.sqrt(n)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_beside_poisson_and_full_batches_by_monte_carlo(relation):
    rng, n, s, q = np.random.default_rng(20250313), 100_000, 3.0, 0.1
    sign = relation == "replace-one"
    loss = losses(rng, n, 2.0, 8, 3, replaced=sign)
    x = s * rng.standard_normal((n, 40)) + (rng.random((n, 40)) < q)
    loss += np.log(1 - q + q * np.exp((2 * x - 1) / (2 * s * s))).sum(axis=1)
    if sign:
        loss -= np.log(1 - q + q * np.exp((-2 * x - 1) / (2 * s * s))).sum(axis=1)
    size = 2 if sign else 1
    x = 4 * rng.standard_normal(n) + size
    loss += size * (2 * x - size) / 32
    history = [
        release(2.0, 24, "random-allocation", 1 / 8, relation),
        release(4.0, 1, "full", 1, relation),
        release(s, 40, "poisson", q, relation),
    ]
    found = delta_of_history(history, 1.0)
    assert found.method == "random allocation"
    check(-np.expm1(np.minimum(1.0 - loss, 0)), found, 0.08)
    spent = epsilon_of_history(history, found.upper)
    assert spent.lower <= 1.0 <= spent.upper * (1 + 1e-6)
    assert spent.upper / spent.lower < 1.02


def test_one_more_rare_step_costs_little():
    allocation = release(5.0, 1600, "random-allocation", 1 / 16, "add-remove")
    alone = epsilon_of_history([allocation], 1e-6)
    poisson = epsilon_of_history([allocation, release(5.0, 1, "poisson", 0.001, "add-remove")], 1e-6)
    full = epsilon_of_history([allocation, release(5.0, 1, "full", 1, "add-remove")], 1e-6)
    assert alone.lower < poisson.upper < 1.005 * alone.upper < full.lower


def test_beside_fixed_size_replace_one_the_ends_are_those_of_its_pairs():
    history = [
        release(5.0, 160, "random-allocation", 1 / 16, "replace-one"),
        release(5.0, 100, "fixed-size", 1 / 16, "replace-one"),
    ]
    found = epsilon_of_history(history, 1e-5)
    alone = epsilon_of_history(history[:1], 1e-5)
    assert alone.upper < found.lower < found.upper < 1.2 * found.lower


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("s", "t", "epochs"), [(0.5, 2, 1), (0.5, 3000, 1), (2.0, 16, 625)])
def test_epsilon_is_known_to_two_percent(relation, s, t, epochs):
    found = epsilon_of_history([release(s, t * epochs, "random-allocation", 1 / t, relation)], 1e-5)
    assert 0 < found.lower < found.upper < 1.02 * found.lower


@pytest.mark.parametrize("delta", [1e-2, 1e-30])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_any_delta(relation, delta):
    unit = release(1.0, 60, "random-allocation", 1 / 20, relation)
    found = epsilon_of_history([unit], delta)
    assert 0 < found.lower < found.upper < 1.02 * found.lower
    at = delta_of_history([unit], found.upper)
    assert at.lower <= at.upper <= delta * 1.2
    assert at.lower > delta / 2


def test_replace_one_is_between_the_others():
    """The epsilon of replacing a record is between those of two other relations.

    It is more than that of removing the record, and less than that of removing it and adding another one, where both
    know all that is known.
    """
    unit = {r: release(1.0, 32, "random-allocation", 1 / 16, r) for r in ("add-remove", "replace-one", "zero-out")}
    found = {r: epsilon_of_history([u], 1e-5) for r, u in unit.items()}
    assert found["zero-out"] == found["add-remove"]
    assert found["add-remove"].upper < found["replace-one"].lower < found["replace-one"].upper
    assert found["replace-one"].upper < 2.5 * found["add-remove"].upper


EXTREMES = [(2.0, 0.01, 16, 100), (2.0, 0.35, 4, 100), (800.0, 1.0, 16, 100), (0.0, 1e6, 16, 100)]


@pytest.mark.parametrize("sign", [True, False])
@pytest.mark.parametrize(("epsilon", "s", "t", "steps"), EXTREMES)
def test_extremes_are_ordered_and_never_above_no_amplification(epsilon, s, t, steps, sign):
    found = mixture_delta(epsilon, Mixture((Allocated(s, t, steps),), ((),), ((),), 0.0, sign))
    assert 0 <= found.lower <= found.value <= found.upper <= 1
    known = float(delta_from_gdp(epsilon, (2 if sign else 1) * math.sqrt(-(-steps // t)) / s))
    assert found.upper <= known * (1 + 1e-10) + 5e-324


def test_a_delta_that_nothing_resolves_is_bounded():
    found = delta_of_history([release(2.0, 1000, "random-allocation", 1e-6, "replace-one")], 1.0)
    assert 0 <= found.lower <= found.upper < 1e-15


@pytest.mark.parametrize(("n", "batch", "steps", "epsilon"), [(1024, 64, 10_000, 2.0)])
def test_replace_one_needs_about_the_noise_of_poisson(n, batch, steps, epsilon):
    target = {"target_epsilon": epsilon, "target_delta": 1e-5, "steps": steps, "sample_rate": batch / n}
    poisson = calibrate_noise_multiplier(sampling="poisson", relation="replace-one", **target)
    found = calibrate_noise_multiplier(sampling="random-allocation", relation="replace-one", **target)
    assert found.lower < poisson.value < 1.02 * found.lower
    assert found.upper < 1.01 * found.lower
    unit = release(found.value, steps, "random-allocation", batch / n, "replace-one")
    assert delta_of_history([unit], epsilon).upper <= 1e-5
