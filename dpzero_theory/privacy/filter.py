"""A privacy budget for steps whose noise, batch or clip is chosen as one goes, from the outcomes of earlier steps.

A plan fixes all steps beforehand. Here each step may be chosen after the earlier ones were seen, and one may stop at
any time, for any reason that the releases show. Three theorems, one for each class method of `Filter`, say how
much fits into a budget (epsilon, delta); their proofs are in laws/derivation.md, section 9.

A filter lives in memory alone, touches no file and makes no step: after a crash spend again what was spent before it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Self

from scipy.optimize import minimize_scalar

from dpzero_theory import check
from dpzero_theory.bisection import largest
from dpzero_theory.privacy.accountant import Group
from dpzero_theory.privacy.conversions import rdp_of_history
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.laws.law import log_c
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.privacy.step import MOST_STEPS, Step, Steps, steps_of

_LOG_ORDERS = (math.log(1e-2), math.log(1e4))  # of the least and largest order t on the grid of `_best_order`
_ROUNDING = 1e-12  # a bound on the relative rounding error of a step's cost, which is raised by this share


class BudgetExceededError(ValueError):
    """The steps would cost more than is left of a `Filter`'s budget; nothing was spent."""


class Filter:
    """A budget (epsilon, delta) for steps that are chosen as one goes. Each step takes a known share of the budget.

        budget = Filter.of_moments(epsilon=2, delta=1e-5, planned=step)
        while budget.has_room(step):
            budget.spend(step)    # before the step is made
            ...                   # make it, look at what it releases, choose the next one

    Make a filter by `of_moments` (for steps of any noise and batch size), `of_worst` (for steps that cost no more than
    one step that is known beforehand) or `of_gaussian` (for full batches with Gaussian noise). All steps must have one
    neighbouring relation. The three raise ValueError unless epsilon > 0 and delta is in (0, 1).

    Args:
        epsilon, delta: the budget.
        limit: the largest sum of `part` over all steps: of log moments K(t) for `of_moments`, the number of steps (and
            a half, for rounding) for `of_worst`, mu^2 for `of_gaussian`.
        part: a function from one `Step` to its part of `limit`; ValueError for a kind of step that cannot be counted.
        order: the order t of the log moments; 0 for `of_worst` and `of_gaussian`.

    Attributes:
        epsilon, delta, limit, order: as given.
        steps: how many steps are spent.
    """

    def __init__(
        self, epsilon: float, delta: float, limit: float, part: Callable[[Step], float], order: float = 0.0
    ) -> None:
        self.epsilon, self.delta, self.limit, self.order, self.steps = epsilon, delta, limit, order, 0
        self._part, self._spent, self._relations = part, 0.0, set[str]()

    @classmethod
    def of_moments(cls, epsilon: float, delta: float, *, planned: Steps) -> Self:
        """A budget for steps with Gaussian or discrete Gaussian noise of any size. Batches must be drawn anew in each
        step: full, Poisson, or fixed-size (not under zero-out). Each step takes as much of the budget as its log moment
        K(t) = log E e^(t L), with L its privacy loss and t > 0 one number for all steps (Feldman and Zrnic 2021).

        Args:
            epsilon, delta: the budget.
            planned: the steps that you expect to make, such as `step * 1000` or a list of steps. They only determine
                the order t of the log moments by which the budget is counted: the order for which most repetitions of
                these steps fit into the budget, or come nearest to it. The guarantee holds for all steps.

        Raises:
            ValueError: an epsilon or a delta outside its range, or planned steps of another kind.
        """
        budget, share = _target(epsilon, delta)
        if not steps_of(planned):
            raise ValueError("planned must have at least one step; got none")
        t = _best_order(planned, budget, share)
        moment = cache(lambda step: t * rdp_of_history(step, t + 1).upper)  # the same step is often asked about again

        def part(release: Step) -> float:
            _require_fresh("history", release)
            return release.steps * moment(replace(release, steps=1))

        return cls(budget, share, _most_moments(t, budget, share), part, t)

    @classmethod
    def of_worst(cls, epsilon: float, delta: float, *, worst: Step) -> Self:
        """A budget of T steps, where T is the largest number of copies of the step `worst` that are within the budget.

        Each step that is made counts as one of the T, however little it costs: T steps that `worst` dominates cost at
        most T times `worst`, whatever is chosen and whenever one stops. Use it to choose when to stop, or to choose
        more noise or smaller batches than `worst`. If most steps cost much less, `of_moments` has more room.

        Args:
            epsilon, delta: the budget.
            worst: a step with batches that are drawn anew in each step. The steps that are made must have the relation,
                noise law and coordinates of `worst`, no less noise, and the same sampling or, if `worst` has Poisson
                batches, Poisson batches with a smaller sample rate.

        Raises:
            ValueError: an epsilon or a delta (here from 1e-30 on) outside its range, several steps as `worst`, batches
                that are not drawn anew in each step, or a `worst` that alone costs more than the budget.
        """
        budget, share = _target(epsilon, delta)
        if not isinstance(worst, Step) or worst.steps != 1:
            raise ValueError(f"worst must be a single step; got {check.shown(worst)}")
        _require_fresh("worst", worst)

        def fits(count: int) -> bool:
            return Group(worst * count).epsilon(share, ends="upper").upper <= budget

        def part(step: Step) -> float:
            same = replace(step, noise=worst.noise, sampling=worst.sampling, steps=1) == worst
            # A batch with a smaller rate is a batch with the larger rate from which each record is left out at random
            # once more, which costs no more.
            fewer = type(step.sampling) is type(worst.sampling) is Poisson
            drawn = step.sampling == worst.sampling or (
                fewer and step.sampling.sample_rate <= worst.sampling.sample_rate
            )
            if not (same and drawn and step.noise >= worst.noise):
                raise ValueError(f"history must have steps that cost no more than {worst}; got {step}")
            return float(step.steps)

        most = largest(fits, 1, MOST_STEPS)
        if most is None:
            raise ValueError(f"worst must cost at most epsilon = {budget:g} at delta = {share:g}; got {worst}")
        return cls(budget, share, most + 0.5, part)  # half a step more, since sums of parts are rounded up

    @classmethod
    def of_gaussian(cls, epsilon: float, delta: float) -> Self:
        """A budget (epsilon, delta) for full batches with Gaussian noise, each with as much noise as one likes.

        It has room for all steps with mu_1^2 + mu_2^2 + ... <= mu^2, where step j is mu_j-GDP and mu is the largest
        number for which mu-GDP implies the budget. The same steps, fixed beforehand, would cost exactly as much.
        """
        budget, share = _target(epsilon, delta)

        def part(release: Step) -> float:
            if (release.mechanism, release.sampling.word) != ("gaussian", "full"):
                rule = "history must have full batches and gaussian noise"
                raise ValueError(f"{rule}; got sampling {release.sampling.word} and mechanism {release.mechanism}")
            return release.steps * (release.relation.sensitivity / release.noise) ** 2

        return cls(budget, share, float(gdp_from_epsilon(budget, share)) ** 2 * (1 - _ROUNDING), part)

    def has_room(self, history: Steps) -> bool:
        """Whether the budget still holds if these steps are made after all that was spent so far. Nothing is spent.
        Raises ValueError for steps of a kind that this budget cannot count, whatever is left (see `of_moments`,
        `of_worst` and `of_gaussian`), or with another relation than earlier steps. No room is no error."""
        return self._spent_with(history) <= self.limit

    def spend(self, history: Steps) -> None:
        """Count these steps as spent, in addition to all that was spent before. Call `spend` before they are made.
        Raises BudgetExceededError, and spends nothing, without room for them; ValueError as `has_room`."""
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
            # Each part is raised by its rounding error, and each sum to the next float, so the whole is rounded up.
            spent = math.nextafter(spent + self._part(release) * (1 + _ROUNDING), math.inf)
        return spent


def _target(epsilon: float, delta: float) -> tuple[float, float]:
    return check.real("epsilon", epsilon, above=0), check.real("delta", delta, above=0, below=1)


def _require_fresh(name: str, step: Step) -> None:
    if step.sampling.scheduled:
        rule = f"{name} must have batches that are drawn anew in each step"
        raise ValueError(f"{rule}; got sampling {step.sampling.word}")


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
