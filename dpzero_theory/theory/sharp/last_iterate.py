"""The sharpened one-step inequality under the PL inequality: a certificate for the last iterate of Algorithm 2.

With q and p of `certificate`, mu of the PL inequality and M = (L excess + e nu_2)^2, for every y > 0 with rho = 1 - 2
mu alpha (q - p/(2 y)) in [0, 1),

    E[F_S(x_T) - F_S^*] <= rho^T gap + (alpha/2) (p y + alpha ell M) (1 - rho^T)/(1 - rho)
                           + (alpha^2 ell r/(2 K)) sum_t rho^(T-1-t) sigma_t^2,

and E||grad F_S(x_T)||^2 is at most 2 ell times that. The noise may shrink along the run, sigma_t = noise_std
ratio^(T-1-t). By Cauchy-Schwarz the best ratio at a given total privacy is rho^(-1/4), and it removes the factor
log(n^2) of Corollary 3 (cor:pl-free). Proof: dpzero_theory/theory/sharp/proof.md.

What the assumptions must mean here. L-Lipschitz losses and the PL inequality on all of R^d hold together only for
constant F_S, because F_S - F_S^* <= L^2/(2 mu) while gradient ascent makes it grow exponentially. Both are used at the
iterates alone, so the result is this: with Omega a set where they hold, the left side is E[(F_S(x_T) - F_S^*) 1{x_0,
..., x_(T-1) in Omega}].
"""

import bisect
import functools
import math
from dataclasses import dataclass

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import noise_std as full_batch_noise
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem
from dpzero_theory.theory.sharp.constants import Constants
from dpzero_theory.theory.sharp.smallest import (
    LARGEST_GDP,
    MOST_STEPS,
    NEEDS_DERIVATIVES,
    SMALLEST,
    SMALLEST_GDP,
    SMOOTHING_SHARE,
    STEPS_SHARE,
    Terms,
    clip_share,
    constants_of,
    largest_below,
    most_in_full_batches,
    number_of_directions,
    relative_gap,
    scaled,
    smoothing_error,
    step_cap,
    step_terms,
)

SCHEDULES = ("constant", "shrinking")
"""How the noise changes along a run: it is the same in all steps, or it shrinks from step to step with the same privacy
of the whole run."""

# The values that are tried for the free number y > 0 of the theorem on the last iterate, in units of the
# Lipschitz constant L
_Y_LEVELS = np.geomspace(1e-6, 10.0, 300)


@dataclass(frozen=True, kw_only=True)
class LastIteratePrescription(Prescription):
    """A prescription whose bound is on E[F_S(x_T) - F_S^*].

    In this mean only runs count whose iterates stay where the assumptions hold, as the module's docstring says.

    Attributes:
        gradient_bound: 2 ell times `bound`, which bounds E||grad F_S(x_T)||^2.
    """

    gradient_bound: float


def certify_last_iterate(
    problem: Problem,
    *,
    step_size: float,
    steps: int,
    clip: float,
    smoothing: float,
    noise_std: float,
    noise_ratio: float = 1.0,
    direction: str = "sphere",
    directions_per_step: int = 1,
    difference: str = "central",
) -> float:
    """The bound on E[F_S(x_T) - F_S^*] at given parameters, the smallest over a grid of the theorem's free number y.

    It is infinite if for no y of the grid the one-step contraction factor rho is in [0, 1).

    Args:
        problem: the constants, with `pl`.
        step_size: alpha > 0.
        steps: T >= 1.
        clip: C > 0, of the norm of a sample's K finite differences.
        smoothing: lambda > 0; 0 with the exact difference rule.
        noise_std: sigma >= 0, the noise of the last step on each coordinate of the average.
        noise_ratio: how much larger the noise of a step is than that of the next one, at least 1.
        direction: law of the directions, one of `constants.LAWS`.
        directions_per_step: K >= 1, the number of directions in a step.
        difference: how a change of loss along a direction is found, one of `difference.DIFFERENCES`.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the problem has no `pl`.
    """
    p = problem
    directions = check.integer("directions_per_step", directions_per_step)
    relative_gap(p)
    c = np.array([clip_share(clip, p, directions)])
    e = smoothing_error(smoothing, difference, p)
    noise = check.real("noise_std", noise_std, at_least=0) / p.gradient_unit
    values = _bound(
        p,
        step_terms(constants_of(p, c, direction, directions), p, e, 0.0, 1.0),
        np.array([scaled("step_size", step_size, "smoothness", p.smoothness, SMALLEST)]),
        check.integer("steps", steps, at_most=MOST_STEPS),
        np.array([noise * noise / directions]),
        np.array([math.log(check.real("noise_ratio", noise_ratio, at_least=1))]),
        _Y_LEVELS,
    )
    return float(values[0]) * (p.gradient_unit / p.smoothness * p.gradient_unit)


def prescribe_last_iterate(
    problem: Problem,
    gdp: float,
    *,
    schedule: str,
    max_steps: int | None = None,
    max_evaluations: int | None = None,
    max_points: int | None = None,
    relation: str = "replace-one",
    direction: str = "sphere",
    directions_per_step: int | str = 1,
    difference: str = "central",
) -> LastIteratePrescription:
    """The full-batch parameters with the smallest bound on E[F_S(x_T) - F_S^*] at mu-GDP ('corollary-3-sharp').

    They come from a grid over (C, alpha T) that is refined around its best point. T is the largest number of steps that
    the caps allow; without a cap it is the smallest power of two whose bound is within 5% of the bound at 2^48 steps.

    Args:
        problem: the constants, with `pl`.
        gdp: mu > 0 of the whole run.
        schedule: how the noise changes along the run: "constant" for the same noise in all steps, "shrinking" for one
            that falls from step to step.
        max_steps: a cap on T; this and the two caps below are None for no cap.
        max_evaluations: a cap on n K T, the differences of single samples.
        max_points: a cap on the evaluations of single samples' losses, n T 2 K with central differences and n T (K + 1)
            with forward and exact ones.
        relation: neighbouring relation, a `privacy.relation.Relation` or its name.
        direction: law of the directions, one of `constants.LAWS`.
        directions_per_step: K >= 1, the number of directions in a step, or 'best' to search for it.
        difference: how a change of loss along a direction is found, one of `difference.DIFFERENCES`.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the problem has no `pl`; max_evaluations or max_points below one step's; a direction law or K
            that the theorem does not cover; no step size with a finite bound within the cap on T.
    """
    p = problem
    pl = p.smoothness / p.condition_number
    gdp = check.real("gdp", gdp, at_least=SMALLEST_GDP, at_most=LARGEST_GDP)
    relative_gap(p)
    between = Relation(relation)
    shrinking = check.choice("schedule", schedule, SCHEDULES) == "shrinking"
    unit = full_batch_noise(gdp, 1, 1.0, p.n, between)

    def cap_of(k: int) -> int | None:
        return step_cap(p, max_steps, max_evaluations, k, max_points=max_points, difference=difference)

    @functools.cache
    def smallest(k: int) -> float:
        cap = cap_of(k)
        return _LastIterateBound(p, unit, shrinking, direction, k).best(2**48 if cap is None else cap, 1)[0]

    if directions_per_step == "best":
        most = most_in_full_batches(p, max_evaluations, max_points, difference)
        directions = number_of_directions(p, direction, most, smallest, STEPS_SHARE / 2)
    else:
        directions = check.integer("directions_per_step", directions_per_step)
    search = _LastIterateBound(p, unit, shrinking, direction, directions)
    steps = cap_of(directions)
    if steps is None:
        target = (1 + STEPS_SHARE) * search.best(2**48, 1)[0]
        steps = 2 ** bisect.bisect_left(range(48), True, key=lambda k: search.best(2**k, 1)[0] <= target)
    least, clip, exponent = search.best(steps, 6)
    check.precondition(math.isfinite(least), f"no step size contracts within {steps} steps: raise the cap")
    k = constants_of(p, np.array([clip]), direction, directions)

    def bound(e: float) -> float:
        return float(search.value(k, np.array([clip]), np.array([exponent]), steps, e, _Y_LEVELS)[0])

    smooth = DIFFERENCES[difference].smoothing
    e = largest_below(bound, (1 + SMOOTHING_SHARE) * least) if smooth else 0.0
    alpha, variance, log_ratio = search.parameters(np.array([clip]), np.array([exponent]), steps)
    root = math.sqrt(directions)
    step_size, noise = float(alpha[0]) / p.smoothness, math.sqrt(float(variance[0])) * p.gradient_unit * root
    ratio, smoothing = math.exp(float(log_ratio[0])), 2 * e * p.gradient_unit / p.smoothness
    certified = certify_last_iterate(
        p,
        step_size=step_size,
        steps=steps,
        clip=clip * p.gradient_unit * root,
        smoothing=smoothing,
        noise_std=noise,
        noise_ratio=ratio,
        direction=direction,
        directions_per_step=directions,
        difference=difference,
    )
    return LastIteratePrescription(
        id="corollary-3-sharp",
        guarantee=Guarantee.SUBOPTIMALITY,
        algorithm="dpzero",
        n=p.n,
        relation=between,
        direction=direction,
        directions_per_step=directions,
        difference=difference,
        gdp=gdp,
        step_size=step_size,
        T=float(steps),
        steps=steps,
        smoothing=smoothing,
        clip=clip * p.gradient_unit * root,
        noise_std=noise,
        noise_ratio=ratio,
        bound=certified,
        bound_at_steps=certified,
        trivial_bound=p.steepest / pl * p.steepest / 2,
        evaluations=p.n * steps * directions,
        gradient_bound=2 * p.smoothness * certified,
        notes=() if smooth else (NEEDS_DERIVATIVES,),
    )


def pl_of_growth(growth: float) -> float:
    """The PL constant of a convex F with quadratic growth, F - F^* >= (growth/2) dist(x, argmin F)^2: growth/4.

    F - F^* <= ||grad F|| dist <= ||grad F|| (2 (F - F^*)/growth)^(1/2). On a set Omega it is enough that both hold
    there, and convexity along the segment to the nearest minimiser. growth > 0 is in loss over length squared;
    ValueError is raised for another value.
    """
    return check.real("growth", growth, above=0) / 4


@dataclass(frozen=True)
class _LastIterateBound:
    """The bound as a function of the clip c = C/(L sqrt(K)) and of the exponent 2 mu alpha T, mu the PL constant.

    problem: the constants, with `pl`.
    unit: sigma/(C sqrt(T)) if the noise is the same in all steps.
    shrinking: whether the noise shrinks along the run.
    direction, directions: the law of the directions, and K.
    """

    problem: Problem
    unit: float
    shrinking: bool
    direction: str
    directions: int

    def parameters(self, clip: Array, exponent: Array, steps: int) -> tuple[Array, Array, Array]:
        """For each grid point the step size in units of 1/ell, the variance of the last step's noise in units of K L^2,
        and the logarithm of the noise ratio, which is near rho^(-1/4).

        clip, exponent: c and 2 mu alpha T at the grid points, of one shape. steps: T.

        The factor 1 + 1e-9 makes the noise a little larger, so that rounding errors of ratio^T do not cost privacy.
        """
        alpha = exponent * self.problem.condition_number / (2 * steps)
        if not self.shrinking:
            return alpha, (self.unit * clip) ** 2 * steps, np.zeros_like(exponent)
        log_ratio = exponent / (4 * steps)
        total = _geometric(-2 * log_ratio, steps) * (1 + 1e-9)
        return alpha, (self.unit * clip) ** 2 * total, log_ratio

    def value(self, k: Constants, clip: Array, exponent: Array, steps: int, e: float, levels: Array) -> Array:
        terms = step_terms(k, self.problem, e, 0.0, 1.0)
        alpha, variance, log_ratio = self.parameters(clip, exponent, steps)
        return _bound(self.problem, terms, alpha, steps, variance, log_ratio, levels)

    def best(self, steps: int, rounds: int) -> tuple[float, float, float]:
        """The smallest bound for T = `steps` on a grid of clips c and exponents, and the c and exponent that have it.

        The bound is in units of L^2/ell. The grid is narrowed `rounds` - 1 times around its best point.
        """
        p = self.problem
        clips, exponents = (
            np.geomspace(0.1, 10.0 if p.gradient_moment is None else 1e4, 17),
            np.geomspace(0.05, 300.0, 33),
        )
        levels = _Y_LEVELS[::6]
        best = (math.inf, 1.0, 1.0)
        for _ in range(rounds):
            k = constants_of(p, clips, self.direction, self.directions)
            for exponent in exponents:
                values = self.value(k, clips, np.full_like(clips, exponent), steps, 0.0, levels)
                i = int(np.argmin(values))
                best = min(best, (float(values[i]), float(clips[i]), float(exponent)))
            factors = (
                (clips[1] / clips[0]) ** np.linspace(-1, 1, 7),
                (exponents[1] / exponents[0]) ** np.linspace(-1, 1, 7),
            )
            clips, exponents = best[1] * factors[0], best[2] * factors[1]
            levels = _Y_LEVELS
        return best


def _geometric(log_ratio: Array, steps: int) -> Array:
    """The sum over k = 0, ..., steps - 1 of ratio^k, ratio = e^log_ratio; infinite where it overflows."""
    small = np.abs(log_ratio) * steps < 1e-9
    with np.errstate(over="ignore"):
        total: Array = np.expm1(steps * log_ratio) / np.expm1(np.where(small, 1.0, log_ratio))
    return np.where(small, steps * (1 + steps * np.abs(log_ratio)), total)


def _bound(
    p: Problem, terms: Terms, alpha: Array, steps: int, variance: Array, log_ratio: Array, levels: Array
) -> Array:
    """The theorem's bound for each entry of `alpha`, in units of L^2/ell: the smallest over y in `levels`, and infinite
    where no y gives a contraction.

    p: the problem. terms: the coefficients of the theorem's q, p and M. steps: T. variance: that of the last step's
        noise in units of K L^2. log_ratio: the log of the noise ratio.
    """
    alpha, ratio = alpha[:, None], log_ratio[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        progress = terms.kept[:, None] - alpha / 2 * terms.quadratic[:, None]
        drift = terms.first[:, None] + alpha * terms.second[:, None]
        rate = 2 / p.condition_number * alpha * (progress - drift / (2 * levels))
        valid = (rate > 0) & (rate < 1)
        log_rho = np.log1p(-np.where(valid, rate, 0.5))
        pulled = alpha / 2 * (drift * levels + alpha * terms.constant[:, None])
        noise = alpha * alpha / 2 * p.r * variance[:, None]
        value = (
            np.exp(steps * log_rho) * relative_gap(p)
            + pulled * _geometric(log_rho, steps)
            + noise * _geometric(log_rho + 2 * ratio, steps)
        )
    best: Array = np.where(valid & ~np.isnan(value), value, math.inf).min(axis=1)
    return best
