"""The sharpened theorem for one run: a bound on its mean of ||grad F_S(x_t)||^2 that fails with small probability.

The theorem bounds the mean over runs, but a user makes only one run. Under the theorem's assumptions, with full batches
and exact Gaussian noise, for every theta > 0 fixed before the run and every kappa in (0, kept], where kept is a field
of `constants.Constants`, with probability at least 1 - delta

    (1/T) sum_t ||grad F_S(x_t)||^2
        <= (1/kappa) [ gap/(alpha T) + log(1/delta_2)/(theta alpha T) + max_{0 <= G <= L} (kappa G^2 - Psi_theta(G)) ].

Psi_theta(G) is a lower bound on -(1/(theta alpha)) log E exp(-theta (F_S(x_t) - F_S(x_{t+1}))) at a point with ||grad
F_S(x_t)|| = G, on the event that the step's directions are no longer than all but a share delta_1 of them; delta =
delta_2 + T delta_1. Psi has the theorem's q G^2 - p G - ..., less what the exponential moment of noise and directions
adds, of which theta alpha sigma^2 G^2/(2 K) is the largest part. The maximum is over G because a run may spend its
gradient in a few large steps, whose directions then average less. Where steps are many this costs little.

Statement and proof: dpzero_theory/theory/sharp/proof.md, section 10, and section 15 for directions of low rank.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from dpzero_theory import check
from dpzero_theory.bisection import halved
from dpzero_theory.check import Array
from dpzero_theory.theory.problem import Problem, Run
from dpzero_theory.theory.sharp.certificate import certificate
from dpzero_theory.theory.sharp.constants import Constants, constants, law_of
from dpzero_theory.theory.sharp.smallest import ScaledRun, Terms

_SHARE = 0.01  # Of delta, the bound's probability to fail, this share is for steps whose directions are too long.
_MOMENTS = 64  # The highest moment by which `_longest_product` bounds projections on directions of low rank
_GRADIENT_CELLS = 1000  # More cells of the gradient norm G make the bound smaller, and slower to compute.
_GRADIENT_LEVELS = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, _GRADIENT_CELLS)])
"""The ends of the cells of G = ||grad F_S(x_t)||, in units of L. The maximum over G is bounded cell by cell, with each
term at the end of the cell where it is largest."""
_SHARES_OF_KEPT = np.concatenate([np.geomspace(1e-3, 0.5, 40), np.linspace(0.5, 1.0, 101)[1:]])
"""The values that are tried for the theorem's free number kappa in (0, kept], divided by the constant `kept`; the bound
for one run holds for each of them."""


@dataclass(frozen=True, kw_only=True)
class RunCertificate:
    """A bound that holds for one run with a stated probability.

    Attributes:
        bound: the bound on the run's mean of ||grad F_S(x_t)||^2 over its steps t = 0, ..., T - 1.
        failure: the probability with which the bound may fail.
        exponent: the theorem's free number theta (`certify_run`), in the unit of 1 over a loss; 0 if the bound comes
            from Markov's inequality or is L^2.
        vacuous: whether `bound` is at least L^2, the square of `Problem.lipschitz`, which no gradient exceeds.
    """

    bound: float
    failure: float
    exponent: float
    vacuous: bool


@dataclass(frozen=True, kw_only=True)
class StepMoments:
    """The quantities of a step from which E exp(theta times the change of the loss) is bounded, for theta > 0; units
    are L = ell = 1.

    U = (u_1 .. u_K) are the step's directions, g the gradient of F_S, G its norm, and H, which bounds the Hessian of
    F_S (-H <= Hess F_S <= H), has 0 <= H <= I and tr(H) <= r.

    Attributes:
        step_size: alpha.
        directions: K, the number of directions a step.
        clip: c = C/(L sqrt(K)), where C is the clip of the norm of a sample's K differences.
        variance: sigma^2/K, where sigma is the standard deviation of the noise on each of the step's K averages.
        rank: the effective rank r.
        error: e = ell lambda/2, for finite differences with smoothing lambda.
        at_rank: the constants of the theorem of `certificate` at effective rank r: bounds on what clipping does to a
            step.
        at_one: the same constants at r = 1, which are those for H = g g'/G^2.
        overlong: delta_1, a bound on the probability that the directions U are too long for one of the next two bounds.
        projection: gamma; ||U'g|| <= gamma sqrt(K) G unless the directions are too long.
        trace: beta; tr(U'HU) <= beta K unless the directions are too long.
        projection_variance: a bound on Var((u'a)^2) for a direction u and a unit vector a.
        trace_variance: a bound on Var(u'Hu).
    """

    step_size: float
    directions: int
    clip: float
    variance: float
    rank: float
    error: float
    at_rank: Constants
    at_one: Constants
    overlong: float
    projection: float
    trace: float
    projection_variance: float
    trace_variance: float

    def progress(self, problem: Problem, exponent: float) -> tuple[float, Array, Array]:
        """Return the parts of kept G^2 - lost(G), a lower bound on how much a step of size alpha decreases the mean
        loss F_S, divided by alpha.

        It bounds -(1/(theta alpha)) log E[exp(-theta (F_S(x_t) - F_S(x_{t+1}))) 1{U not too long}] from a point x_t
        with ||grad F_S(x_t)|| = G; the mean is over the step's directions U and noise, and the indicator leaves out
        directions that are too long (`overlong`).

        Args:
            problem: the constants of the run.
            exponent: theta > 0, in units of ell/L^2.

        Returns:
            The constant kept, the values of G at which lost is computed (0, and 1,000 numbers with equal ratios from
            1e-7 to 1, the steepest gradient), and lost at each of them, in units where L = ell = 1. lost(G) rises with
            G, and is infinite where no bound is proved.
        """
        a, c, e, beta, gamma = self.step_size, self.clip, self.error, self.trace, self.projection
        g, k, directions = _GRADIENT_LEVELS, self.at_rank, self.directions
        share = exponent * a * a * self.variance * beta
        if not share < 1:
            return float(k.kept[0]), g, np.full_like(g, math.inf)
        noise = self.variance / (1 - share)
        terms = Terms.of(k, problem, e, 0.0, 1.0)
        first, second, constant = (float(x[0]) for x in (terms.first, terms.second, terms.constant))
        moved = k.spread * g + float(k.excess[0]) + e * k.smooth_second
        curved = a / 2 * (float(k.quadratic[0]) * g * g + 2 * second * g + constant)
        longest = gamma * g + a * beta * c
        usual = g + a * math.sqrt(beta) * moved
        expected = first * g + curved + exponent * a / 2 * noise * usual * usual + a / 2 * noise * self.rank
        projected = math.sqrt(self.projection_variance / directions)
        spread = (
            g * (g * projected + float(self.at_one.excess[0]) + e * self.at_one.smooth_second)
            + a / 2 * math.sqrt(beta) * c * moved
            + exponent * a / 2 * noise * longest * usual
            + a * noise * math.sqrt(self.trace_variance / (4 * directions))
        )
        highest = (
            (gamma + 1) * g * c
            + a / 2 * beta * c * c
            + exponent * a / 2 * noise * longest * longest
            + a / 2 * noise * beta
        )
        with np.errstate(over="ignore"):
            variance = _second_order(exponent * a * highest) * exponent * a / 2 * spread * spread
        lost = expected + variance + c * math.sqrt(self.overlong) * g
        return float(k.kept[0]), g, np.where(exponent * a * expected <= 1, lost, math.inf)


def step_moments(problem: Problem, *, failure: float, **run: Unpack[Run]) -> StepMoments:
    """Return the properties of one step, such as bounds on how long its directions are, from which `certify_run` bounds
    E exp(theta times a step's change of the loss), theta > 0.

    Args:
        problem: the constants, with `lipschitz`, a bound on the norm of every sample's gradient.
        failure: delta in (0, 1), the probability with which the bound on the whole run may fail; of it 0.01 delta/T is
            spent on each step's directions being too long (`overlong`).
        run: the parameters of the run, the entries of `Run`.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a problem with `gradient_moment` or `mean_excess` in place of `lipschitz`; a direction law or
            a number of directions that the theorem does not cover.
    """
    p, at = problem, ScaledRun.of(problem, **run)
    p.require_lipschitz("the bound for a single run")
    # In a wider range the products of a step's moments would overflow or underflow in float64.
    check.real("step_size smoothness", at.alpha, at_least=1e-100)
    check.real("noise_std", run["noise_std"], at_most=1e100)
    overlong, c, law = _SHARE * failure / at.steps, np.array([at.clip]), law_of(at.direction)
    if math.isinf(law.rank):
        projection, trace = (_longest(at.directions * r, overlong / 2) for r in (1, p.r))
    else:
        projection = trace = _longest_product(law.moment, at.directions, overlong / 2)
    crossed = p.r + 2 if p.layer_rank is None else min(p.r + 2, p.layer_rank + 1)
    return StepMoments(
        step_size=at.alpha,
        directions=at.directions,
        clip=at.clip,
        variance=at.variance,
        rank=p.r,
        error=at.error,
        at_rank=constants(c, p.d, p.r, at.direction, p.sample_rank, at.directions, p.layer_rank),
        at_one=constants(c, p.d, 1.0, at.direction, p.sample_rank, at.directions),
        overlong=overlong,
        projection=math.sqrt(projection),
        trace=p.r * trace,
        projection_variance=2 + 6 / law.rank,
        trace_variance=2 * p.r * (1 + crossed / law.rank),
    )


def certify_run(problem: Problem, *, failure: float, **run: Unpack[Run]) -> RunCertificate:
    """Return a bound on one run's mean of ||grad F_S(x_t)||^2 that fails with probability at most `failure`.

    It is the smallest of three: the theorem's bound over a grid, fixed by the parameters, of its two free numbers theta
    > 0 and kappa in (0, `Constants.kept`]; the bound of `certificate` on the mean over runs, divided by `failure`
    (Markov's inequality); and L^2, which no squared gradient exceeds.

    Args:
        problem: the constants.
        failure: delta, 1e-100 <= delta < 1, a probability over the run's directions and noise.
        run: the parameters of the run, the entries of `Run`; noise_std = 0 is allowed.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a problem without `lipschitz`, or directions that the theorem does not cover.
    """
    p = problem
    delta = check.real("failure", failure, at_least=1e-100, below=1)
    gap = p.relative_gap
    step, t = step_moments(p, failure=delta, **run), run["steps"]
    budget, needed = gap / (step.step_size * t), math.log(1 / ((1 - _SHARE) * delta))
    unit = p.lipschitz * p.lipschitz
    of_mean = certificate(p, **run).bound
    best, exponent = min(of_mean / unit / delta, 1.0), 0.0
    thetas = np.geomspace(needed / (100 * gap), max(10 / step.step_size, needed / gap), 60)
    apart = thetas[1] / thetas[0]
    for _ in range(2):
        for theta in thetas:
            kept, g, lost = step.progress(p, float(theta))
            shares = (kept * _SHARES_OF_KEPT)[:, None]
            ends = (shares - kept) * np.square(g[:-1]) + lost[1:]
            allowed = budget + needed / (theta * step.step_size * t)
            value = float(((allowed + ends.max(axis=1)) / shares[:, 0]).min())
            if value < best:
                best, exponent = value, float(theta)
        thetas = exponent * apart ** np.linspace(-1, 1, 15 if exponent else 0)
    return RunCertificate(
        bound=best * unit,
        failure=delta,
        exponent=exponent * (p.smoothness / unit),
        vacuous=best >= 1,
    )


def _longest(degrees: float, chance: float) -> float:
    # Chernoff's bound: for k degrees of freedom and x > 1, P(chi^2_k > k x) <= exp(-(k/2)(x - 1 - log x)). The x is
    # found at which this is `chance`, and rounded up.
    target = 2 * math.log(1 / chance) / degrees
    return halved(lambda x: x - 1 - math.log(x) < target, 1.0, 2 + 2 * target, 80)[1]


def _longest_product(moment: Callable[[float], float], directions: int, chance: float) -> float:
    """Return a number x with P(v^2 > x) <= `chance`. v is the length of the projections of a unit vector on K =
    `directions` directions of low rank rho (sums of rho products of random signs), divided by sqrt(K). `moment` is the
    function j -> E[X^j] for X ~ chi^2_rho/rho."""
    # The least of Markov's bounds by E[v^(2j)] <= E[S^j] with S of `product_moments`, which holds for j >= 2
    found = (product_moments(moment, directions) - math.log(chance)) / np.arange(1, _MOMENTS + 1)
    return math.exp(float(found[1:].min())) * (1 + 1e-9)  # The factor is more than all rounding errors.


def product_moments(moment: Callable[[float], float], directions: int) -> Array:
    """Return log E[S^j] for j = 1, ..., 64, shape (64,), with S the mean of K independent products X Z^2.

    For j >= 2, E[S^j] bounds E[v^(2j)], where v is the length of a unit vector's projection on K directions of low
    rank, over sqrt(K) (proof.md, section 15).

    Args:
        moment: the function j -> E[X^j] for X ~ chi^2_rho/rho and rank rho; Z ~ N(0, 1) is independent of X.
        directions: K.
    """
    order = range(_MOMENTS + 1)
    factorials = np.array([math.lgamma(j + 1) for j in order])
    logs = [math.log(moment(j)) + math.lgamma(j + 0.5) - math.lgamma(0.5) + j * math.log(2 / directions) for j in order]
    # The E[S^j]/j! of a sum S of independent terms are the convolution of the terms' own; none cancel, being positive
    term, total, left = np.exp(logs - factorials), np.eye(1, len(order))[0], directions
    while left:
        total = np.convolve(total, term)[: len(order)] if left % 2 else total
        term, left = np.convolve(term, term)[: len(order)], left // 2
    found: Array = (np.log(total) + factorials)[1:]
    return found


def _second_order(x: Array) -> Array:
    small = x < 1e-3
    safe = np.where(small, 1.0, x)
    # s(x) = 2 (e^x - 1 - x)/x^2, with which e^y <= 1 + y + s(x) y^2/2 for every y <= x. Near 0 it is 1 + x/3 + x^2/12 +
    # ..., of which a little more is taken.
    values: Array = np.where(small, 1 + x / 3 + x * x / 10, 2 * (np.expm1(safe) - safe) / (safe * safe))
    return values
