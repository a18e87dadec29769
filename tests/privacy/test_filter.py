"""Budgets for steps that are chosen as one goes: closed forms, adversaries that watch the privacy loss, refusals."""

import math

import numpy as np
import pytest
from scipy.interpolate import Akima1DInterpolator

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.bisection import smallest
from dpzero_theory.check import Array
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
    """K(t) = t (t + 1)/(2 s^2) a step, against t epsilon + log delta - log c(t); the order is the best one."""
    epsilon, delta, budget = 2.0, 1e-5, Filter(2.0, 1e-5, planned=FULL)

    def room(t: float) -> float:
        log_c = t * math.log(t) - (1 + t) * math.log1p(t)
        return (t * epsilon + math.log(delta) - log_c) / (t * (t + 1) / (2 * 20.0**2))

    assert spent_until_full(budget, FULL) == math.floor(room(budget.order))
    assert room(budget.order) == pytest.approx(max(map(room, np.geomspace(1, 100, 10_000))), rel=1e-5)


@pytest.mark.parametrize("step", [STEP, FULL, Step(6.0, Poisson(1 / 16), "replace-one", "discrete-gaussian")])
def test_what_a_filter_lets_pass_costs_no_more_as_a_plan(step: Step) -> None:
    """A plan with as many steps costs less than the budget, and not less than three quarters of it."""
    budget = Filter(2.0, 1e-5, planned=step)
    count = spent_until_full(budget, step)
    fixed = epsilon_of_history(step * count, 1e-5)
    assert 1.5 < fixed.lower < fixed.upper < 2.0
    budget.spend(step * count)
    assert budget.steps == count
    with pytest.raises(BudgetExceededError, match=r"^history must cost no more than is left of epsilon = 2"):
        budget.spend(step * 100)
    assert budget.steps == count


@pytest.mark.parametrize("chase", [0.0, 0.5, 2.0])
def test_adversaries_that_watch_the_loss_gain_no_more_than_delta(chase: float) -> None:
    """Each next step's noise and the time to stop depend on the loss so far; 200,000 runs of each adversary.

    The mean gain (1 - e^(epsilon - L))_+ is at most delta, with room for 6 standard errors. The strongest adversary
    gains over a third of delta, so that a budget twice as large would be noticed. chase: how much harder the adversary
    tries while the loss is small.
    """
    epsilon, delta, runs = 1.0, 0.05, 200_000
    budget = Filter(epsilon, delta, planned=Step(2.0, FullBatch(), "add-remove"))
    t, limit, draw = budget.order, budget.limit, np.random.default_rng(5)
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


def test_bad_input_is_one_line_and_spends_nothing() -> None:
    budget = Filter(4.0, 1e-5, planned=STEP)
    budget.spend(STEP)
    for ask, named in (
        (lambda: Filter(1.0, 0.0, planned=STEP), "delta must be"),
        (lambda: Filter(1.0, 1e-5, planned=[]), "planned must have at least one step"),
        (lambda: Filter(1.0, 1e-5, planned=Step(40.0, FullBatch(), "add-remove", "laplace")), ".*laplace"),
        (
            lambda: budget.spend(Step(4.0, CyclicPoisson(1 / 16, 4), "add-remove")),
            "history must have batches that are drawn anew.*cyclic-poisson:4",
        ),
        (
            lambda: budget.spend(Step(4.0, FullBatch(), "replace-one")),
            "history must have one relation; got add-remove, replace-one",
        ),
        (lambda: budget.spend(Step(40.0, FullBatch(), "add-remove", "laplace")), ".*laplace"),
    ):
        with pytest.raises(ValueError, match=f"^{named}"):
            ask()
    assert budget.steps == 1


def after(losses: Array, value: Array, step: Step) -> Array:
    """Return the mean of a function of the loss after one more step, for each loss before it, where the record is
    there: by a sum over the noise, and cubic interpolation in the loss. value: the function at `losses`."""
    q, s = step.sampling.sample_rate, step.noise
    noise = np.linspace(-8.5, 8.5, 201)
    weight = np.exp(-(noise**2) / 2)
    weight, found, spline = weight / weight.sum(), np.zeros(len(losses)), Akima1DInterpolator(losses, value)
    for share, mean in ((1 - q, 0.0), (q, 1.0)):
        if share:
            x = mean + s * noise
            loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * s * s)))
            found += share * (spline(np.clip(losses[:, None] + loss, losses[0], losses[-1])) @ weight)
    return found


def test_what_is_at_most_the_budget_on_every_path_breaks_it() -> None:
    """Full batch, noise 2.5, then one of four steps by the first outcome: each path costs at most epsilon 2 at delta
    1e-5 as a plan, and the best choice attains more than delta."""
    epsilon, delta, first = 2.0, 1e-5, Step(2.5, FullBatch(), "add-remove")

    def cost(step: Step) -> float:
        return epsilon_of_history([first, step], delta).upper

    losses, menu = np.linspace(-3.0, 12.0, 3001), [Step(12.0, FullBatch(), "add-remove")]
    for q, noise in ((0.1, 1.74), (0.01, 0.7), (1e-3, 0.45)):
        met = smallest(lambda s, q=q: cost(Step(s, Poisson(q), "add-remove")) <= epsilon, noise / 3, 3 * noise, 1e-4)
        assert met is not None
        menu.append(Step(met, Poisson(q), "add-remove"))

    stop = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
    best = after(losses, np.max([after(losses, stop, step) for step in menu], axis=0), first)
    assert all(cost(step) <= epsilon for step in menu)
    assert float(np.interp(0.0, losses, best)) > 1.3 * delta


def test_no_policy_of_the_rows_is_above_a_filters_delta() -> None:
    """1,000 menus solved by value iteration, whose own error is what a plan of one step shows beside its exact 1."""
    rows = read_rows(RESULTS / "adaptive_sharper").to_dict("records")
    assert len(rows) == 1000
    error = max(abs(float(row["plan"]) - 1) for row in rows)
    assert error < 0.005
    assert max(float(row["attained"]) for row in rows) < 1.005


def test_a_generator_of_steps_is_spent_once_and_whole() -> None:
    step = Step(10.0, FullBatch(), "add-remove")
    budget = Filter(2.0, 1e-5, planned=step)
    budget.spend(step for _ in range(3))
    assert budget.steps == 3
    with pytest.raises(ValueError, match="one relation"):
        budget.spend(Step(10.0, FullBatch(), "zero-out"))
