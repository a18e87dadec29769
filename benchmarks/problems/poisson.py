"""The sharpened theorem with Poisson mini-batches: the best parameters under a cap on evaluations of losses."""

import math
from collections.abc import Callable
from functools import cache
from typing import Unpack

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.calibration import calibrate
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp.certificate import at_point
from dpzero_theory.theory.sharp.smallest import (
    LARGEST_GDP,
    MOST_STEPS,
    SMALLEST_GDP,
    Search,
    SearchOptions,
    SmallestBound,
)

_Noise = Callable[[float, int, Relation], float]
"""A function (q_s, T, relation) -> noise multiplier, the standard deviation of the noise on the clipped sum over C."""


def poisson_noise(epsilon: float, delta: float) -> _Noise:
    """A function (q_s, T, relation) -> the noise multiplier with which T releases are (epsilon, delta)-DP.

    q_s is the rate of Poisson sampling, and relation says which data sets are neighbours. The noise multiplier is the
    upper end, which is safe to rely on, of the bracket by `dpzero_theory.calibrate`; errors
    raised there are not caught.
    """

    def noise_multiplier(rate: float, steps: int, relation: Relation) -> float:
        return calibrate(epsilon=epsilon, delta=delta, steps=steps, sampling=Poisson(rate), relation=relation).upper

    return noise_multiplier


def prescribe_poisson(
    problem: Problem,
    gdp: float,
    noise_multiplier: _Noise,
    *,
    expected_batch: float | None = None,
    relation: str = "replace-one",
    **options: Unpack[SearchOptions],
) -> Prescription:
    """The Poisson mini-batch parameters with the smallest certificate under a cap on differences or losses evaluated.

    For each rate q_s, T is the largest number of steps that the caps allow. The rates tried are apart by the factor
    1.5. The search begins at the rate that would be best with the noise by the central limit theorem, which takes no
    time, and goes to neighbouring rates as long as the bound falls; so the accountant is asked only a few times. The
    bound is proved at whatever rate is returned.

    Args:
        problem: the constants.
        gdp: mu of full batches with the same (epsilon, delta); the search starts from it, and it is recorded.
        noise_multiplier: the function that returns the noise multiplier needed for the wanted privacy, such as
            `poisson_noise(epsilon, delta)`.
        expected_batch: q_s n, if the rate q_s is given; None to search for it.
        relation: neighbouring relation, a `privacy.relation.Relation` or its name.
        options: what the search may choose from, as of `SearchOptions`, with q_s n in place of n in the caps; of
            max_evaluations and max_points at least one must be given. The best K is chosen together with the first
            rate, by the central limit theorem.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the caps allow no step at the given rate.
    """
    p = problem
    gdp = check.real("gdp", gdp, at_least=SMALLEST_GDP, at_most=LARGEST_GDP)
    between = Relation(relation)
    given = expected_batch and check.real("expected_batch", expected_batch, above=0, at_most=p.n) / p.n
    free = Search(**options)
    if free.max_evaluations is None and free.max_points is None:
        raise ValueError("max_evaluations or max_points must be given; got neither")
    evaluations, points = (
        math.inf if cap is None else check.integer(name, cap)
        for name, cap in (("max_evaluations", free.max_evaluations), ("max_points", free.max_points))
    )
    rule, direction = DIFFERENCES[free.difference], free.direction
    most = MOST_STEPS if free.max_steps is None else check.integer("max_steps", free.max_steps, at_most=MOST_STEPS)
    search_of = cache(lambda k: SmallestBound(p, direction, k))

    def allowed(rate: float, k: int) -> float:
        """The steps T, not rounded, that the caps `evaluations` and `points` allow at a sample rate and K = k."""
        return min(evaluations / (rate * p.n * k), points / (rate * p.n * rule.points(k)))

    def most_steps(rate: float, k: int) -> int:
        return math.floor(min(float(most), allowed(rate, k) * (1 + 1e-12)))

    def smallest(rate: float, multiplier: float, k: int) -> float:
        variance = (multiplier / (rate * p.n)) ** 2
        return float(search_of(k).values(most_steps(rate, k), variance, rate)[0].min())

    def by_central_limit(rate: float, k: int) -> float:
        return smallest(rate, 2 / math.sqrt(math.log1p((gdp / rate) ** 2 / most_steps(rate, k))), k)

    @cache
    def candidate(rate: float, k: int) -> tuple[float, float]:
        needed = noise_multiplier(rate, most_steps(rate, k), between)
        multiplier = check.real("noise_multiplier(sample_rate, steps, relation)", needed, above=0)
        return smallest(rate, multiplier, k), multiplier

    def rates_of(k: int) -> list[float]:
        high = min(1.0, allowed(1.0, k)) if given is None else given
        rate = high
        check.precondition(
            most_steps(rate, k) >= 1,
            "max_evaluations >= expected_batch directions_per_step and max_points >= expected_batch "
            f"{rule.points(k)} are required; got {free.max_evaluations} and {free.max_points} with expected_batch = "
            f"{rate * p.n:g}, directions_per_step = {k}",
        )
        if given is not None:
            return [rate]
        low = min(high, max(1 / p.n, allowed(1.0, k) / most))
        return [high / 1.5**i for i in range(1 + math.floor(math.log(high / low, 1.5)))]

    @cache
    def best_rate(k: int) -> tuple[float, int]:
        return min((by_central_limit(rate, k), i) for i, rate in enumerate(rates_of(k)))

    if free.directions_per_step == "best":
        k = free.best_directions(p, 1.0 if given is None else given * p.n, lambda k: best_rate(k)[0])
    else:
        k = check.integer("directions_per_step", free.directions_per_step)
    rates, search = rates_of(k), search_of(k)
    i: int | None = best_rate(k)[1]
    while i is not None:  # go to a neighbouring rate as long as its bound is smaller
        here = i
        near = (j for j in (here + 1, here - 1) if 0 <= j < len(rates))
        i = next((j for j in near if candidate(rates[j], k)[0] < candidate(rates[here], k)[0]), None)
    rate = rates[here]
    steps, multiplier = most_steps(rate, k), candidate(rate, k)[1]
    unit = multiplier / (rate * p.n)
    c, alpha = search.best(steps, unit * unit, rate)
    return at_point(search, c, alpha, steps, unit, rate, gdp=gdp, relation=between, difference=free.difference)
