"""A proved bound on the mean loss after the last step of DPZero (Algorithm 2 of the paper), under the PL inequality.

The assumptions need to hold on a set of weights only: a run that leaves the set before its last step counts as 0 in the
expectation that is bounded. On all of R^d, losses can be Lipschitz and satisfy the PL inequality only if the mean loss
is constant. Proof: dpzero_theory/theory/sharp/proof.md, section 8.
"""

import bisect
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from dpzero_theory import check
from dpzero_theory.bisection import halved, outward
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.theory.noise import noise_std as full_batch_noise
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem, Run
from dpzero_theory.theory.sharp.constants import Constants
from dpzero_theory.theory.sharp.smallest import (
    LARGEST_GDP,
    MOST_STEPS,
    SMALLEST_GDP,
    SMOOTHING_SHARE,
    STEPS_SHARE,
    ScaledRun,
    Search,
    SearchOptions,
    Terms,
    constants_of,
)

_TRIED = np.geomspace(1e-6, 10.0, 300)  # `_bound` holds for every y > 0. These are tried, in units of L.


def certify_last_iterate(problem: Problem, **run: Unpack[Run]) -> float:
    """Return a proved bound on E[F_S(x_T) - F_S^*] for a run with given parameters.

    F_S is the mean loss, F_S^* its infimum and x_T the weights after the last step. In the expectation a run counts as
    0 if it leaves the set on which the problem's constants hold, before step T. The bound is infinite if the theorem
    gives none.

    Args:
        problem: the constants, with `pl`.
        run: the parameters of the run, the keys of `Run`; noise_std = 0 is allowed.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the problem has no `pl`, or the theorem does not cover the directions.
    """
    p, at = problem, ScaledRun.of(problem, **run)
    values = _bound(
        p,
        Terms.of(constants_of(p, np.array([at.clip]), at.direction, at.directions), p, at.error, 0.0, 1.0),
        np.array([at.alpha]),
        check.integer("steps", at.steps, at_most=MOST_STEPS),
        np.array([at.variance]),
        _TRIED,
    )
    return float(values[0]) * (p.gradient_unit / p.smoothness * p.gradient_unit)


def prescribe_last_iterate(
    problem: Problem, gdp: float, *, relation: str = "replace-one", **options: Unpack[SearchOptions]
) -> Prescription:
    """Return the parameters with the smallest bound of `certify_last_iterate`, for a run that uses all samples in every
    step.

    The prescription's id is "corollary-3-sharp". The number of steps is the largest that the limits in `options`
    allow; without a limit it is the smallest power of two whose bound is at most 5% above the bound for 2^48 steps.

    Args:
        problem: the constants, with `pl`.
        gdp: the mu of Gaussian DP that the whole run is to have, in [1e-50, 1e50].
        relation: the neighbouring relation, "replace-one", "add-remove" or "zero-out".
        options: keywords of `SearchOptions`, which limit the parameters.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the problem has no `pl`, the limits allow no step, the theorem does not cover the directions,
            or no step size has a finite bound within the limits.
    """
    p, free = problem, Search(**options)
    pl, direction = p.smoothness / p.condition_number, free.direction
    gdp = check.real("gdp", gdp, at_least=SMALLEST_GDP, at_most=LARGEST_GDP)
    between = Relation(relation)
    unit = full_batch_noise(gdp, 1, 1.0, p.n, between)

    @functools.cache
    def smallest(k: int) -> float:
        cap = free.steps(p.n, k)
        return _LastIterateBound(p, unit, direction, k).best(2**48 if cap is None else cap, 1)[0]

    if free.directions_per_step == "best":
        directions = free.best_directions(p, p.n, smallest, STEPS_SHARE / 2)
    else:
        directions = check.integer("directions_per_step", free.directions_per_step)
    search = _LastIterateBound(p, unit, direction, directions)
    steps = free.steps(p.n, directions)
    if steps is None:
        target = (1 + STEPS_SHARE) * search.best(2**48, 1)[0]
        steps = 2 ** bisect.bisect_left(range(48), True, key=lambda k: search.best(2**k, 1)[0] <= target)
    least, clip, exponent = search.best(steps, 6)
    check.precondition(math.isfinite(least), f"no step size contracts within {steps} steps: raise the cap")
    k = constants_of(p, np.array([clip]), direction, directions)

    def bound(e: float) -> float:
        return float(search.value(k, np.array([clip]), np.array([exponent]), steps, e, _TRIED)[0])

    smooth = DIFFERENCES[free.difference].smoothing
    e = _largest_below(bound, (1 + SMOOTHING_SHARE) * least) if smooth else 0.0
    alpha, variance = search.parameters(np.array([clip]), np.array([exponent]), steps)
    root = math.sqrt(directions)
    run = Run(
        step_size=float(alpha[0]) / p.smoothness,
        steps=steps,
        clip=clip * p.gradient_unit * root,
        smoothing=2 * e * p.gradient_unit / p.smoothness,
        noise_std=math.sqrt(float(variance[0])) * p.gradient_unit * root,
        direction=direction,
        directions_per_step=directions,
        difference=free.difference,
    )
    return Prescription.of_run(
        p,
        run,
        certify_last_iterate(p, **run),
        gdp,
        between,
        id="corollary-3-sharp",
        guarantee=Guarantee.SUBOPTIMALITY,
        trivial_bound=p.steepest / pl * p.steepest / 2,
        evaluations=p.n * steps * directions,
    )


def _largest_below(function: Callable[[float], float], target: float) -> float:
    # `function` increases, is below `target` at 0 and above it somewhere. The result is at most the largest e with
    # function(e) <= target, and below it by at most a relative 1e-12.
    def small(e: float) -> bool:
        return function(e) <= target

    low, high = outward(lambda e: not small(e), 1.0, 1.0)
    if low == high:
        low = outward(small, 0.5, -0.25, growth=0.5)[1]
    return halved(small, low, 2 * low, 40)[0]


@dataclass(frozen=True)
class _LastIterateBound:
    # The bound on E[F_S(x_T) - F_S^*] as a function of c = C/(L sqrt(K)) for the clip C, and of the exponent 2 mu alpha
    # T for T steps of size alpha
    problem: Problem  # has `pl`, which is mu
    unit: float  # sigma/(C sqrt(T)) for T steps with clip C, where sigma is the standard deviation of the noise
    direction: str  # the name of the distribution of the directions
    directions: int  # K, the number of directions in a step

    def parameters(self, clip: Array, exponent: Array, steps: int) -> tuple[Array, Array]:
        # The step sizes, in units of 1/ell, and the noise's variances, in units of K L^2
        return exponent * self.problem.condition_number / (2 * steps), (self.unit * clip) ** 2 * steps

    def value(self, k: Constants, clip: Array, exponent: Array, steps: int, e: float, tried: Array) -> Array:
        # The bound in units of L^2/ell for N clips c = C/(L sqrt(K)) and exponents 2 mu alpha T, arrays of shape (N,),
        # with the constants `k` at these clips. `e` is ell lambda/(2 L). The bound holds for every value y > 0 of a
        # free number; the best of the values `tried` counts.
        terms = Terms.of(k, self.problem, e, 0.0, 1.0)
        alpha, variance = self.parameters(clip, exponent, steps)
        return _bound(self.problem, terms, alpha, steps, variance, tried)

    def best(self, steps: int, rounds: int) -> tuple[float, float, float]:
        # The smallest bound for T = `steps`, in units of L^2/ell, and its clip c = C/(L sqrt(K)) and exponent 2 mu
        # alpha T; (inf, 1, 1) if none is finite. The first of `rounds` >= 1 grids has c from 0.1 to 10 (10^4 with a
        # `gradient_moment`) and exponents from 0.05 to 300; each further one is narrower, around the best point so far.
        p = self.problem
        clips, exponents = (
            np.geomspace(0.1, 10.0 if p.gradient_moment is None else 1e4, 17),
            np.geomspace(0.05, 300.0, 33),
        )
        tried = _TRIED[::6]
        best = (math.inf, 1.0, 1.0)
        for _ in range(rounds):
            k = constants_of(p, clips, self.direction, self.directions)
            for exponent in exponents:
                values = self.value(k, clips, np.full_like(clips, exponent), steps, 0.0, tried)
                i = int(np.argmin(values))
                best = min(best, (float(values[i]), float(clips[i]), float(exponent)))
            factors = (
                (clips[1] / clips[0]) ** np.linspace(-1, 1, 7),
                (exponents[1] / exponents[0]) ** np.linspace(-1, 1, 7),
            )
            clips, exponents = best[1] * factors[0], best[2] * factors[1]
            tried = _TRIED
        return best


def _geometric(log_ratio: Array, steps: int) -> Array:
    # The sum of ratio^k over k = 0, ..., steps - 1, where 0 < ratio = e^log_ratio <= 1
    small = np.abs(log_ratio) * steps < 1e-9
    with np.errstate(over="ignore"):
        total: Array = np.expm1(steps * log_ratio) / np.expm1(np.where(small, 1.0, log_ratio))
    return np.where(small, steps * (1 + steps * np.abs(log_ratio)), total)


def _bound(p: Problem, terms: Terms, alpha: Array, steps: int, variance: Array, tried: Array) -> Array:
    # The bound on E[F_S(x_T) - F_S^*], in units of L^2/ell, for each of N step sizes `alpha`, in units of 1/ell, N
    # `terms` for the clips (noise 0, full batches) and N variances sigma^2/K of the noise on each of a step's K
    # averages, in units of L^2. With 1/mu the condition number, r = `Problem.r`, constant = `Terms.constant`, and
    # rho = 1 - 2 mu alpha (progress - drift/(2 y)) it is, for every y > 0 with rho in (0, 1),
    #     rho^T gap + (alpha/2) (drift y + alpha constant + alpha r sigma^2/K) (1 - rho^T)/(1 - rho).
    # Of the values `tried` of y, in units of L, the best counts; the bound is infinite if none has rho in (0, 1).
    alpha = alpha[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        progress = terms.kept[:, None] - alpha / 2 * terms.quadratic[:, None]
        drift = terms.first[:, None] + alpha * terms.second[:, None]
        rate = 2 / p.condition_number * alpha * (progress - drift / (2 * tried))
        valid = (rate > 0) & (rate < 1)
        log_rho = np.log1p(-np.where(valid, rate, 0.5))
        pulled = alpha / 2 * (drift * tried + alpha * terms.constant[:, None])
        noise = alpha * alpha / 2 * p.r * variance[:, None]
        total = _geometric(log_rho, steps)
        value = np.exp(steps * log_rho) * p.relative_gap + pulled * total + noise * total
    best: Array = np.where(valid & ~np.isnan(value), value, math.inf).min(axis=1)
    return best
