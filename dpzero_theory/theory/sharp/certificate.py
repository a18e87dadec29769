"""This package's own theorem for Algorithm 2 of the DPZero paper (DPZero) with K directions a step: its bound, and the
parameters with the smallest bound.

Symbols: F_S is the mean loss, x_tau the weights after a uniformly random number of steps in 0, ..., T - 1, L, ell, r
and gap are the fields `gradient_unit`, `smoothness`, `r` and `gap` of a `Problem`, alpha is the step size, lambda the
smoothing, C the clip, sigma the standard deviation of the noise on the average for each direction, and q_s the rate of
Poisson sampling (1 if every step uses all n samples). For all alpha, T, lambda, C > 0 and sigma with q > 0,

    E||grad F_S(x_tau)||^2 <= ((p + sqrt(p^2 + 4 q M))/(2 q))^2,
    q = kept - (alpha ell/2) quadratic,
    p = L bias + e nu_1 + alpha ell (L cross + e nu_2 spread),
    M = gap/(alpha T) + (alpha ell/2) ((L excess + e nu_2)^2 + r sigma^2/K
                                       + (1 - q_s)/(q_s n) (L sampled + e nu_2)^2),
    e = ell lambda/2, or 0 with exact derivatives,

where kept, quadratic, bias, cross, spread, excess and sampled are the fields of `constants.Constants` at the clip C/(L
sqrt(K)), and nu_1 and nu_2 are its smooth_first and smooth_second. Statement and proof:
dpzero_theory/theory/sharp/proof.md, where M is called K.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.theory.noise import noise_std as full_batch_noise
from dpzero_theory.theory.problem import SMALLEST, Guarantee, Prescription, Problem, Run
from dpzero_theory.theory.sharp.constants import Constants, law_of
from dpzero_theory.theory.sharp.smallest import (
    LARGEST_GDP,
    SMALLEST_GDP,
    SMOOTHING_SHARE,
    STEPS_SHARE,
    ScaledRun,
    Search,
    SearchOptions,
    SmallestBound,
    Terms,
    constants_of,
)

_ALGORITHMS = ("dpzero", "dpgd-0th")  # They are the paper's Algorithm 2 and Algorithm 1.


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proved bound on the mean squared gradient of a run of given parameters.

    F_S is the mean loss, and x_tau the weights before a uniformly random step of the run. The theorem
    (theory/sharp/proof.md) shows that y = sqrt(E||grad F_S(x_tau)||^2) satisfies q y^2 - p y <= M for three numbers q,
    p and M.

    Attributes:
        progress: q, which has no unit. The bound is finite only if q > 0.
        drift: p, in the unit of a gradient.
        floor: M, in the unit of a squared gradient.
        bound: the bound ((p + sqrt(p^2 + 4 q M))/(2 q))^2 on E||grad F_S(x_tau)||^2; infinite if q <= 0.
        vacuous: True if `bound` is at least the square of `Problem.steepest`, which no gradient of F_S exceeds.
    """

    progress: float
    drift: float
    floor: float
    bound: float
    vacuous: bool


def certificate(
    problem: Problem, *, sample_rate: float = 1.0, algorithm: str = "dpzero", **run: Unpack[Run]
) -> Certificate:
    """Return a proved bound on E||grad F_S(x_tau)||^2 for a run with given parameters.

    F_S is the mean loss, and x_tau the weights before a uniformly random step of the run. Privacy is not considered;
    noise_std = 0 is allowed.

    Args:
        problem: the constants. `n` has an effect only if sample_rate < 1; `loss_bound` and `pl` have none.
        sample_rate: the probability in (0, 1] with which each sample is in a step's batch. The sum over a batch is
            divided by sample_rate n.
        algorithm: "dpzero", which clips the vector of a sample's finite differences along a step's directions, or
            "dpgd-0th", which clips a sample's finite difference times the direction u. The latter needs
            directions_per_step 1, and directions of length sqrt(d).
        run: the parameters of the run, the keys of `Run`.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the theorem or the algorithm does not cover the distribution or the number of directions.
    """
    p, direction = problem, run.get("direction", "sphere")
    norm = _vector_norm(p, direction, run.get("directions_per_step", 1), algorithm)
    run["clip"] = check.real("clip", run["clip"], above=0) / norm
    at = ScaledRun.of(p, **run)
    rate = check.real("sample_rate", sample_rate, at_least=SMALLEST, at_most=1)
    k = constants_of(p, np.array([at.clip]), direction, at.directions)
    q, drift, floor, y = Terms.of(k, p, at.error, at.variance, rate).root(at.gap / at.steps, at.alpha)
    bound = (p.gradient_unit * y) * (p.gradient_unit * y)
    return Certificate(
        progress=q,
        drift=p.gradient_unit * drift,
        floor=p.gradient_unit * p.gradient_unit * floor,
        bound=bound,
        vacuous=bound >= p.steepest * p.steepest,
    )


def prescribe(
    problem: Problem,
    gdp: float,
    *,
    relation: str = "replace-one",
    algorithm: str = "dpzero",
    **options: Unpack[SearchOptions],
) -> Prescription:
    """Return the parameters with the smallest bound of `certificate`, for a run that uses all samples in every step.

    The prescription's id is "theorem-3-sharp", or "theorem-2-sharp" for algorithm "dpgd-0th". The step size and the
    clip minimise the bound. The number of steps is the largest that the limits in `options` allow; without a limit it
    is about the smallest whose bound is at most 5% above the bound for infinitely many steps. The smoothing is the
    largest that raises the bound by at most 1%, or 0 for difference "exact".

    Args:
        problem: the constants.
        gdp: the mu of Gaussian DP that the whole run is to have, in [1e-50, 1e50].
        relation: the neighbouring relation, "replace-one", "add-remove" or "zero-out".
        algorithm: "dpzero" (Algorithm 2 of the DPZero paper) or "dpgd-0th" (Algorithm 1).
        options: keywords of `SearchOptions`. With directions_per_step "best" and one of the limits `max_evaluations`
            and `max_points`, the number of directions with about the smallest bound is taken; without them about the
            smallest number whose bound is at most 2.5% above the best.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the limits allow no step, or `certificate` does not cover the directions.
    """
    free = Search(**options)
    gdp = check.real("gdp", gdp, at_least=SMALLEST_GDP, at_most=LARGEST_GDP)
    between, direction = Relation(relation), free.direction
    # For T steps and the clip C of a sample's K differences, the noise's standard deviation is C sqrt(T) times this.
    unit = full_batch_noise(gdp, 1, 1.0, problem.n, between)
    search_of = functools.cache(lambda k: SmallestBound(problem, direction, k))

    def smallest(k: int) -> float:
        cap, search = free.steps(problem.n, k), search_of(k)
        return search.limit(unit) if cap is None else float(search.values(cap, unit * unit * cap, 1.0)[0].min())

    if free.directions_per_step != "best":
        k = check.integer("directions_per_step", free.directions_per_step)
    else:
        k = free.best_directions(problem, problem.n, smallest, STEPS_SHARE / 4) if algorithm == "dpzero" else 1
    scale = _vector_norm(problem, direction, k, algorithm)
    search, unit = search_of(k), scale * unit
    cap = free.steps(problem.n, k)
    steps = search.enough_steps(unit, STEPS_SHARE) if cap is None else cap
    c, alpha = search.best(steps, unit * unit * steps, 1.0)
    found = at_point(
        search, c, alpha, steps, unit * math.sqrt(steps), 1.0, gdp=gdp, relation=between, difference=free.difference
    )
    if algorithm == "dpzero":
        return found
    return replace(found, id="theorem-2-sharp", algorithm=algorithm, clip=scale * found.clip)


def _vector_norm(p: Problem, direction: str, directions: int, algorithm: str) -> float:
    # The factor between the two algorithms' clips: "dpgd-0th" clips s u for a sample's difference s and ||u|| =
    # sqrt(d), which is the same as clipping s to C/sqrt(d); "dpzero" clips s itself, so that the factor is 1.
    if check.choice("algorithm", algorithm, _ALGORITHMS) == "dpzero":
        return 1.0
    fixed = law_of(direction).fixed_norm
    check.precondition(fixed, f"dpgd-0th requires ||u|| = sqrt(d) always; it does not hold for {direction} directions")
    check.precondition(directions == 1, f"dpgd-0th has one direction a step; got directions_per_step = {directions}")
    return math.sqrt(p.d)


def at_point(
    search: SmallestBound,
    c: float,
    alpha: float,
    steps: int,
    noise: float,
    rate: float,
    *,
    gdp: float,
    relation: Relation,
    difference: str,
) -> Prescription:
    """Return the prescription for a clip, a step size and a number of steps, with the bound of `certificate`.

    The smoothing is the largest that raises the bound by at most 1%, or 0 for difference "exact".

    Args:
        search: gives the problem, the distribution of the directions, and the number K of directions in a step.
        c: the clip C as C/(L sqrt(K)), where L is `Problem.gradient_unit`.
        alpha: the step size times `Problem.smoothness`.
        steps: the number of steps.
        noise: the standard deviation of the noise on the average for each direction, divided by C.
        rate: the probability with which each sample is in a step's batch; 1 if every step uses all samples.
        gdp, relation: stored in the prescription; nothing is computed from them.
        difference: "central", "forward" or "exact".
    """
    p = search.problem
    directions = search.directions
    k = constants_of(p, np.array([c]), search.direction, directions)
    smooth = DIFFERENCES[difference].smoothing
    e = _largest_error(k, p, alpha, p.relative_gap / steps, (noise * c) ** 2, rate) if smooth else 0.0
    clip = c * p.gradient_unit * math.sqrt(directions)
    run = Run(
        step_size=alpha / p.smoothness,
        steps=steps,
        clip=clip,
        smoothing=2 * e * p.gradient_unit / p.smoothness,
        noise_std=noise * clip,
        direction=search.direction,
        directions_per_step=directions,
        difference=difference,
    )
    notes: tuple[str, ...] = ()
    if smooth and p.sample_rank is not None:
        notes = (f"lambda is for samples of rank r_s = {p.sample_rank:.4g}",)
    return Prescription.of_run(
        p,
        run,
        certificate(p, sample_rate=rate, **run).bound,
        gdp,
        relation,
        id="theorem-3-sharp",
        guarantee=Guarantee.GRADIENT,
        batches=None if rate == 1 else Poisson(rate),
        trivial_bound=p.steepest * p.steepest,
        evaluations=round(rate * p.n * steps * directions),
        notes=(*notes, *_assumed(p)) if math.isinf(p.lipschitz) else notes,
    )


def _largest_error(k: Constants, p: Problem, alpha: float, gap_per_step: float, variance: float, rate: float) -> float:
    # e = ell lambda/2, in units of L, for the largest smoothing lambda with which the bound on the mean squared
    # gradient is at most 1 + `SMOOTHING_SHARE` times the bound for lambda -> 0. `k` has arrays of one entry. `alpha` is
    # in units of 1/ell, `gap_per_step`, (F_S(x_0) - F_S^*)/T, of L^2/ell, and `variance`, sigma^2/K for noise sigma on
    # each of a step's K averages, of L^2. `rate` is the sampling rate, 1 if all samples are used.
    q, drift, _, least = Terms.of(k, p, 0.0, variance, rate).root(gap_per_step, alpha)
    # The bound y^2 is now given, and p and M of `Certificate` depend on e = ell lambda/2, so that q y^2 - p y = M is an
    # equation of degree 2 in e.
    y = math.sqrt(1 + SMOOTHING_SHARE) * least
    batch, second = (1 - rate) / (rate * p.n), k.smooth_second
    spare = (y - least) * (q * (y + least) - drift)
    linear = (k.smooth_first + alpha * second * k.spread) * y
    linear += alpha * second * float(k.excess[0] + batch * k.sampled[0])
    square = alpha / 2 * second * second * (1 + batch)
    return (1 - 1e-9) * 2 * spare / (linear + math.sqrt(linear * linear + 4 * square * spare))


def _assumed(p: Problem) -> tuple[str, ...]:
    where = "at every point of the run the mean over samples of"
    if p.gradient_moment is not None:
        power, value = p.gradient_moment
        return (f"no Lipschitz constant: {where} ||grad f||^{power:g} must be at most {value:.4g}",)
    if p.mean_excess is not None:
        level, value = p.mean_excess
        return (f"no Lipschitz constant: {where} (||grad f|| - {level:.4g})_+ must be at most {value:.4g}",)
    return ()
