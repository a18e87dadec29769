"""A privacy budget (epsilon, delta) for steps that are chosen during the run, with regard to earlier outputs.

The budget also holds if the run stops at any time for any reason that its outputs show. The proof is in
laws/derivation.md, section 9. A filter is kept in memory only: after a crash make one and spend again what was spent.
"""

import math
from dataclasses import replace
from functools import cache

from scipy.optimize import minimize_scalar

from dpzero_theory import check
from dpzero_theory.privacy.conversions import rdp_of_history
from dpzero_theory.privacy.laws.law import log_c
from dpzero_theory.privacy.step import Steps, steps_of

_LOG_ORDERS = (math.log(1e-2), math.log(1e4))  # of the least and largest order t on the grid of `_best_order`
_ROUNDING = 1e-12  # a bound on the relative rounding error of a step's cost, which is raised by this share


class BudgetExceededError(ValueError):
    """Raised if steps would cost more than is left of a `Filter`'s budget; nothing was spent."""


class Filter:
    """A privacy budget (epsilon, delta) from which steps are paid one by one; each may depend on earlier outputs.

        budget = Filter(epsilon=2, delta=1e-5, planned=step)
        while budget.has_room(step):
            budget.spend(step)    # before the step is made
            ...                   # make the step, look at what it releases, choose the next step

    Steps may have Gaussian or discrete Gaussian noise of any size, and all have the same neighbouring relation. Batches
    must be drawn anew in each step: full, Poisson, or fixed-size (not under "zero-out"). Each step spends its log
    moment K(t) = log E e^(t L), with L its privacy loss and t > 0 the same for all steps (Feldman and Zrnic 2021).

    Args:
        epsilon: the epsilon of the budget, > 0.
        delta: the delta of the budget, in (0, 1).
        planned: the steps that you expect to make, such as `step * 1000` or a list of steps. They only determine t,
            chosen so that as many repetitions of them as possible fit into the budget. The guarantee holds for any
            other steps too.

    Attributes:
        epsilon: the argument `epsilon`.
        delta: the argument `delta`.
        order: the number t.
        limit: the largest allowed sum of K(t) over all steps.
        steps: the number of steps spent so far.

    Raises:
        ValueError: epsilon or delta is outside its range, or `planned` has no steps or steps of another kind.
    """

    def __init__(self, epsilon: float, delta: float, *, planned: Steps) -> None:
        self.epsilon, self.delta = check.real("epsilon", epsilon, above=0), check.real("delta", delta, above=0, below=1)
        if not (made := steps_of(planned)):
            raise ValueError("planned must have at least one step; got none")
        self.order = t = _best_order(made, self.epsilon, self.delta)
        self.limit, self.steps = _most_moments(t, self.epsilon, self.delta), 0
        self._spent, self._relations = 0.0, set[str]()
        self._moment = cache(lambda step: t * rdp_of_history(step, t + 1).upper)  # often asked about the same step

    def has_room(self, history: Steps) -> bool:
        """Returns True if these steps fit into what is left of the budget, else False. Nothing is spent. Raises
        ValueError for steps of a kind that a filter cannot count, or with another relation than earlier steps."""
        return self._spent_with(history) <= self.limit

    def spend(self, history: Steps) -> None:
        """Counts these steps as spent. Call it before they are made. Raises BudgetExceededError, and spends nothing, if
        they do not fit into what is left. Raises ValueError for steps of a kind that a filter cannot count, or with
        another relation than earlier steps."""
        made = steps_of(history)  # once, as a history may be a generator
        after, count = self._spent_with(made), sum(release.steps for release in made)
        if not after <= self.limit:
            raise BudgetExceededError(
                f"history must cost no more than is left of epsilon = {self.epsilon:g} at delta = {self.delta:g};"
                f" {self.steps} steps are spent, and got {count} more"
            )
        self._spent = after
        self._relations |= {str(release.relation) for release in made}
        self.steps += count

    def _spent_with(self, history: Steps) -> float:
        relations, spent = set(self._relations), self._spent
        for release in steps_of(history):
            relations.add(str(release.relation))
            if len(relations) > 1:
                raise ValueError(f"history must have one relation; got {', '.join(sorted(relations))}")
            if release.sampling.scheduled:
                rule = "history must have batches that are drawn anew in each step"
                raise ValueError(f"{rule}; got sampling {release.sampling.word}")
            # Each part is raised by its rounding error, and each sum to the next float, so the whole is rounded up.
            part = release.steps * self._moment(replace(release, steps=1))
            spent = math.nextafter(spent + part * (1 + _ROUNDING), math.inf)
        return spent


def _most_moments(t: float, epsilon: float, delta: float) -> float:
    # Steps are within the budget if their log moments K(t), each given all earlier outcomes, add up to at most this.
    return t * epsilon + math.log(delta) - log_c(t)


def _best_order(planned: Steps, epsilon: float, delta: float) -> float:
    # The order t > 0 with which the planned steps can be repeated most often within the budget, if counted by K(t) =
    # log E e^(t L) of their privacy loss L
    def minus_count(log_t: float) -> float:  # of repetitions of the planned steps, not rounded; for `minimize_scalar`
        t = math.exp(log_t)
        try:
            return -_most_moments(t, epsilon, delta) / (t * rdp_of_history(planned, t + 1).upper)
        except ValueError:
            return math.inf

    grid = [_LOG_ORDERS[0] + k * (_LOG_ORDERS[1] - _LOG_ORDERS[0]) / 40 for k in range(41)]
    best, width = min(grid, key=minus_count), grid[1] - grid[0]
    if minus_count(best) == math.inf:
        rdp_of_history(planned, 2.0)  # raises the error that says what is wrong with the steps
    found = minimize_scalar(minus_count, bounds=(best - width, best + width), method="bounded", options={"xatol": 1e-3})
    return math.exp(float(found.x))
