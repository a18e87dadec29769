"""The sharpened theorem with Poisson mini-batches: the best parameters under a cap on gradient evaluations."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from dpzero_theory import check
from dpzero_theory.privacy.calibrate import calibrate_noise_multiplier
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp.certificate import SMOOTHING_SHARE, at_point
from dpzero_theory.theory.sharp.search import MOST_STEPS, Search

__all__ = ["SampledPrescription", "poisson_noise", "prescribe_poisson"]


@dataclass(frozen=True, kw_only=True)
class SampledPrescription(Prescription):
    """A prescription for Poisson mini-batches.

    Attributes:
        sample_rate: q_s, each step includes each record independently with this probability.
        noise_multiplier: noise of the sum over the clip, noise_std = noise_multiplier C/(q_s n).
    """

    sample_rate: float
    noise_multiplier: float


def poisson_noise(epsilon: float, delta: float, relation: str) -> Callable[[float, int], float]:
    """(q_s, T) -> the noise multiplier for T Poisson-sampled releases, for `prescribe_poisson`.

    The certified upper end of `privacy.calibrate.calibrate_noise_multiplier`; its errors pass through.
    """

    def noise_multiplier(sample_rate: float, steps: int) -> float:
        return calibrate_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            steps=steps,
            sampling="poisson" if sample_rate < 1 else "full",
            relation=relation,
            sample_rate=sample_rate,
        ).upper

    return noise_multiplier


def prescribe_poisson(
    problem: Problem,
    gdp: float,
    noise_multiplier: Callable[[float, int], float],
    *,
    max_evaluations: int,
    max_steps: int | None = None,
    sample_rate: float | None = None,
    directions: str = "sphere",
    smoothing_share: float = SMOOTHING_SHARE,
) -> SampledPrescription:
    """The Poisson mini-batch parameters with the smallest certificate under a cap on gradient evaluations.

    For each rate q_s, T is the largest number of steps the caps allow. The rate is searched on a grid of ratio 1.5,
    downhill from the best rate by the central-limit multiplier, so that the accountant is asked a few times only;
    the certificate holds at whatever rate is returned.

    Args:
        problem: the constants.
        gdp: mu of full batches with the same (epsilon, delta): where the search starts, and recorded.
        noise_multiplier: (q_s, T) -> noise standard deviation of the sum, over the clip C, that the wanted
            privacy needs: an accountant for Poisson sampling under the wanted relation.
        max_evaluations: cap on q_s n T, the expected number of finite differences of single samples.
        max_steps: cap on T.
        sample_rate: fix q_s instead of searching it.
        directions: see `sharp.certificate`.
        smoothing_share: as for `prescribe`.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the caps allow no step at the given rate.
    """
    p = problem
    mu = check.real("gdp", gdp, above=0)
    share = check.real("smoothing_share", smoothing_share, above=0, at_most=1)
    budget = check.integer("max_evaluations", max_evaluations)
    most = MOST_STEPS if max_steps is None else check.integer("max_steps", max_steps, at_most=MOST_STEPS)
    search = Search(p, directions)

    def most_steps(rate: float) -> int:
        return min(most, math.floor(budget / (rate * p.n) * (1 + 1e-12)))

    def smallest(rate: float, multiplier: float) -> float:
        return float(search.coarse(most_steps(rate), (multiplier / (rate * p.n)) ** 2, rate).min())

    def central_limit(rate: float) -> float:
        return 2 / math.sqrt(math.log1p((mu / rate) ** 2 / most_steps(rate)))

    @cache
    def candidate(rate: float) -> tuple[float, float]:
        multiplier = check.real(
            "noise_multiplier(sample_rate, steps)", noise_multiplier(rate, most_steps(rate)), above=0
        )
        return smallest(rate, multiplier), multiplier

    high = min(1.0, budget / p.n) if sample_rate is None else sample_rate
    rate = check.real("sample_rate", high, above=0, at_most=1)
    check.precondition(
        most_steps(rate) >= 1,
        f"max_evaluations >= sample_rate n is required; got {budget} with sample_rate n = {rate * p.n:g}",
    )
    if sample_rate is None:
        low = min(high, max(1 / p.n, budget / (p.n * most)))
        rates = [high / 1.5**k for k in range(1 + math.floor(math.log(high / low, 1.5)))]
        k = min(range(len(rates)), key=lambda i: smallest(rates[i], central_limit(rates[i])))
        for step in (1, -1):
            while 0 <= k + step < len(rates) and candidate(rates[k + step])[0] < candidate(rates[k])[0]:
                k += step
        rate = rates[k]
    steps, multiplier = most_steps(rate), candidate(rate)[1]
    unit = multiplier / (rate * p.n)
    c, alpha = search.best(steps, unit * unit, rate)
    found = at_point(search, c, alpha, steps, unit, rate, share)
    return SampledPrescription(**found, gdp=mu, sample_rate=rate, noise_multiplier=multiplier)
