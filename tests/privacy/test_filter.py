"""Budgets for steps that are chosen as one goes: closed forms, adversaries that watch the privacy loss, refusals."""

import math

import numpy as np
import pytest

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.filter import BudgetExceededError, Filter
from dpzero_theory.privacy.sampling import CyclicPoisson, FullBatch, Poisson
from dpzero_theory.privacy.step import Step

STEP = Step(4.0, Poisson(1 / 16), "add-remove")
FULL = Step(20.0, FullBatch(), "add-remove")


def spent_until_full(budget: Filter, step: Step, most: int = 100_000) -> int:
    """How many equal steps a budget has room for."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if budget.has_room(step * middle) else (low, middle)
    return low


def test_full_batches_have_a_closed_form() -> None:
    """K(t) = t (t + 1)/(2 s^2) a step, against t epsilon + log delta - log c(t)."""
    t, epsilon, delta = 6.0, 2.0, 1e-5
    log_c = t * math.log(t) - (1 + t) * math.log1p(t)
    expected = (t * epsilon + math.log(delta) - log_c) / (t * (t + 1) / (2 * 20.0**2))
    assert spent_until_full(Filter(epsilon, delta, orders=[t]), FULL) == math.floor(expected)
    two = Filter(epsilon, delta, orders=[t, 1e-3])
    less = (t * epsilon + math.log(delta / 2) - log_c) / (t * (t + 1) / (2 * 20.0**2))
    assert spent_until_full(two, FULL) == math.floor(less)


@pytest.mark.parametrize("step", [STEP, FULL, Step(6.0, Poisson(1 / 16), "replace-one", "discrete-gaussian")])
def test_what_a_filter_lets_pass_costs_no_more_as_a_plan(step: Step) -> None:
    """A plan with as many steps costs less than the budget, and not less than three quarters of it."""
    budget = Filter(2.0, 1e-5, planned=step)
    count = spent_until_full(budget, step)
    fixed = epsilon_of_history(step * count, 1e-5)
    assert 1.5 < fixed.lower < fixed.upper < 2.0
    budget.spend(step * count)
    assert budget.steps == count
    assert budget.odometer > fixed.upper
    with pytest.raises(BudgetExceededError, match=r"^history must cost no more than is left of epsilon = 2"):
        budget.spend(step * 100)
    assert budget.steps == count


def test_a_thousand_policies_stay_within_the_budget() -> None:
    """Random noise, rate and number of each next step, until there is no room; the sequence is then accounted."""
    draw, worst = np.random.default_rng(3), 0.0
    for policy in range(1000):
        budget, made = Filter(1.0, 1e-5, orders=[10.0, 20.0]), []
        while len(made) < 12:
            part = Step(float(np.exp(draw.uniform(4, 6))), FullBatch(), "replace-one") * int(draw.integers(1, 40))
            if not budget.has_room(part):
                break
            budget.spend(part)
            made.append(part)
        assert made
        if policy % 20 == 0:
            worst = max(worst, epsilon_of_history(made, 1e-5).upper)
    assert 0.7 < worst <= 1.0


@pytest.mark.parametrize("chase", [0.0, 0.5, 2.0])
def test_adversaries_that_watch_the_loss_gain_no_more_than_delta(chase: float) -> None:
    """Each next step's noise and the time to stop depend on the loss so far; 200,000 runs of each adversary.

    The mean gain (1 - e^(epsilon - L))_+ is at most delta, with room for 6 standard errors. The strongest adversary
    gains over a third of delta, so that a budget twice as large would be noticed. chase: how much harder the adversary
    tries while the loss is small.
    """
    epsilon, delta, runs = 1.0, 0.05, 200_000
    budget = Filter(epsilon, delta, planned=Step(2.0, FullBatch(), "add-remove"))
    [t], [limit], draw = budget.orders, budget.limits, np.random.default_rng(5)
    loss, spent, on = np.zeros(runs), np.zeros(runs), np.ones(runs, dtype=bool)
    for _ in range(40):
        mu2 = np.exp(chase * np.clip(epsilon - loss, -1, 1)) * 0.05
        mu2 = np.minimum(mu2, (limit - spent) / (t * (t + 1) / 2))
        on &= (loss < 1.5 * epsilon) & (mu2 > 0)
        mu2 = np.where(on, mu2, 0.0)
        spent += t * (t + 1) / 2 * mu2
        loss += mu2 / 2 + np.sqrt(mu2) * draw.standard_normal(runs)
    gain = np.maximum(-np.expm1(np.minimum(epsilon - loss, 0.0)), 0.0)
    error = float(gain.std() / math.sqrt(runs))
    assert delta / 3 < gain.mean() + 6 * error
    assert gain.mean() - 6 * error <= delta


def test_the_loss_passes_the_odometer_no_more_often_than_delta() -> None:
    """At any of 60 times in a run, in 100,000 runs at delta = 0.1; random losses of full batches with s = 5."""
    step, delta, runs = Step(5.0, FullBatch(), "add-remove"), 0.1, 100_000
    budget, draw = Filter(3.0, delta, orders=[2.0, 4.0]), np.random.default_rng(9)
    loss, passed = np.zeros(runs), np.zeros(runs, dtype=bool)
    odometer = []
    for _ in range(10):
        budget.spend(step)
        odometer.append(budget.odometer)
        loss += 0.02 + 0.2 * draw.standard_normal(runs)
        passed |= loss > odometer[-1]
    assert odometer == sorted(odometer)
    assert passed.mean() <= delta + 6 * math.sqrt(delta / runs)
    assert passed.mean() > delta / 100


def test_bad_input_is_one_line_and_spends_nothing() -> None:
    with pytest.raises(ValueError, match=r"^planned or orders must be given"):
        Filter(1.0, 1e-5)
    with pytest.raises(ValueError, match=r"^delta must be"):
        Filter(1.0, 0.0, orders=[2.0])
    with pytest.raises(ValueError, match=r"^orders must be"):
        Filter(1.0, 1e-5, orders=[])
    budget = Filter(4.0, 1e-5, orders=[4.0])
    with pytest.raises(ValueError, match=r"^history must have batches that are drawn anew.*cyclic-poisson:4"):
        budget.spend(Step(4.0, CyclicPoisson(1 / 16, 4), "add-remove"))
    budget.spend(STEP)
    with pytest.raises(ValueError, match=r"^history must have the relation add-remove; got replace-one"):
        budget.spend(Step(4.0, FullBatch(), "replace-one"))
    with pytest.raises(ValueError, match="laplace"):
        budget.spend(Step(40.0, FullBatch(), "add-remove", "laplace"))
    assert budget.steps == 1
