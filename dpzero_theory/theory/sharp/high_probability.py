"""A bound on one run's mean of ||grad F_S(x_t)||^2 over its steps t that fails with a small probability.

F_S is the mean loss and x_t the weights after t steps. The bound is for runs that use all samples in every step, with
exact Gaussian noise. Proof: dpzero_theory/theory/sharp/proof.md, section 10, and section 15 for directions of low rank.
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

_SHARE = 0.01  # This share of the bound's probability to fail is spent on steps whose directions are too long
_MOMENTS = 64  # The highest moment by which `_longest_product` bounds projections on directions of low rank
_GRADIENT_CELLS = 1000  # More cells of the gradient norm G make the bound smaller, and slower to compute.
# The ends of the cells of G = ||grad F_S(x_t)||, in units of L. `certify_run` bounds the maximum over G cell by cell,
# with each term at the end of the cell where it is largest.
_GRADIENT_LEVELS = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, _GRADIENT_CELLS)])
# The values of kappa of `certify_run` that are tried, divided by the constant `kept`
_SHARES_OF_KEPT = np.concatenate([np.geomspace(1e-3, 0.5, 40), np.linspace(0.5, 1.0, 101)[1:]])


@dataclass(frozen=True, kw_only=True)
class RunCertificate:
    """A bound that holds for one run with a stated probability.

    Attributes:
        bound: the bound on the mean of ||grad F_S(x_t)||^2 over the steps t of the run, where F_S is the mean loss and
            x_t the weights after t steps.
        failure: the probability with which the bound may fail.
        exponent: the best value of the proof's free parameter theta (proof.md, section 10), in units of 1/loss; 0 if
            the bound comes from Markov's inequality, or is `Problem.lipschitz` squared.
        vacuous: True if `bound` is at least `Problem.lipschitz` squared, which no squared gradient exceeds.
    """

    bound: float
    failure: float
    exponent: float
    vacuous: bool


@dataclass(frozen=True, kw_only=True)
class StepMoments:
    """Numbers about one step of a run, from which `certify_run` bounds the exponential moment of the change of the mean
    loss.

    Units are such that `Problem.lipschitz` (L) and `Problem.smoothness` (ell) are 1. U is the (d, K) matrix of the
    step's directions u, g the gradient of the mean loss F_S, G its norm, and H a matrix with -H <= Hess F_S <= H, 0 <=
    H <= I and trace(H) <= rank.

    Attributes:
        step_size: alpha.
        directions: K, the number of directions in a step.
        clip: C/sqrt(K), where C clips the norm of a sample's K finite differences.
        variance: sigma^2/K for noise of standard deviation sigma on the average for each direction.
        rank: `Problem.r`.
        error: half the smoothing; 0 for difference "exact".
        at_rank: the `Constants` (bounds on a clipped step's expectations) that are valid for H of trace at most `rank`.
        at_one: the `Constants` that are valid for H of trace at most 1.
        overlong: an upper bound on the probability that U violates one of the next two inequalities.
        projection: gamma in ||U'g|| <= gamma sqrt(K) G.
        trace: beta in trace(U'HU) <= beta K.
        projection_variance: an upper bound on Var((u'a)^2) for a direction u and a unit vector a.
        trace_variance: an upper bound on Var(u'Hu) for a direction u.
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
        """Return kept and lost(G), with which kept G^2 - lost(G) bounds from below how much a step decreases the mean
        loss.

        F_S is the mean loss, and the step goes from x to y with ||grad F_S(x)|| = G. The decrease is measured by
        -log(E[exp(-exponent (F_S(x) - F_S(y))) 1{A}])/(exponent alpha), where A is the event that the directions U
        satisfy the inequalities of `projection` and `trace`. L is `Problem.lipschitz`, ell `Problem.smoothness` and
        alpha the step size.

        Args:
            problem: the constants of the run.
            exponent: a number > 0, in units of ell/L^2.

        Returns:
            kept; the values of G for which lost is computed, shape (1001,), in units of L; and lost(G), shape (1001,),
            in units of L^2. lost rises with G, and is infinite where no bound is proved.
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
    """Return the numbers about one step from which `certify_run` computes its bound.

    Args:
        problem: the constants, with `lipschitz`.
        failure: the probability in (0, 1) with which the bound on the whole run may fail.
        run: the parameters of the run, the keys of `Run`.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the problem has no `lipschitz`, or the theorem does not cover the directions.
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
    """Return a bound on one run's mean of ||grad F_S(x_t)||^2 over its steps t that fails with probability at most
    `failure`.

    F_S is the mean loss and x_t the weights after t steps. The bound is the smallest of three: the theorem's in
    proof.md, section 10, with the best of several values of its free parameters; the bound of `certificate` on the
    expectation, divided by `failure` (Markov's inequality); and `Problem.lipschitz` squared.

    Args:
        problem: the constants, with `lipschitz`.
        failure: a probability in [1e-100, 1) over the run's directions and noise.
        run: the parameters of the run, the keys of `Run`; noise_std = 0 is allowed.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the problem has no `lipschitz`, or the theorem does not cover the directions.
    """
    # For T steps of size alpha, every theta > 0 and every kappa in (0, kept], with probability at least 1 - delta
    #     (1/T) sum_t ||grad F_S(x_t)||^2
    #         <= (1/kappa) (gap/(alpha T) + log(1/delta_2)/(theta alpha T) + max_G (lost(G) - (kept - kappa) G^2)),
    # where delta_2 is delta less the share that overlong directions take, and `StepMoments.progress` has kept and lost.
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
    # A number x with P(v^2 > x) <= `chance`, where v is the length of a unit vector's projection on K directions of low
    # rank, over sqrt(K): the least of Markov's bounds by E[v^(2j)] <= E[S^j], j >= 2, with S of `product_moments`.
    found = (product_moments(moment, directions) - math.log(chance)) / np.arange(1, _MOMENTS + 1)
    return math.exp(float(found[1:].min())) * (1 + 1e-9)  # The factor is more than all rounding errors.


def product_moments(moment: Callable[[float], float], directions: int) -> Array:
    """Return log E[S^j] for j = 1, ..., 64, shape (64,), where S is the mean of K independent products X Z^2.

    Z is standard normal, and X is independent of Z. For j >= 2, E[S^j] bounds E[v^(2j)], where v sqrt(K) is the length
    of a unit vector's projection on K directions of low rank (proof.md, section 15).

    Args:
        moment: a function of j that returns E[X^j]. For the rank rho, X has the chi-squared distribution with rho
            degrees of freedom, divided by rho.
        directions: K.
    """
    order = range(_MOMENTS + 1)
    factorials = np.array([math.lgamma(j + 1) for j in order])
    logs = [math.log(moment(j)) + math.lgamma(j + 0.5) - math.lgamma(0.5) + j * math.log(2 / directions) for j in order]
    # For a sum S of independent terms, the sequence E[S^j]/j! is the convolution of the sequences of the terms
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
