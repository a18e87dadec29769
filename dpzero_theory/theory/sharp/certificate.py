"""The sharpened theorem for Algorithm 2 (DPZero) with K directions a step: a certificate, and the best parameters.

The certificate is a proved bound, as a number, for given parameters: step size alpha, T steps, smoothing lambda, clip
C, noise sigma and rate q_s of Poisson sampling (1 for full batches). Under Assumption asp:rank, with no bound on |F_S|,
for all alpha, T, lambda, C > 0 and noise sigma with q > 0, and tau uniform on 0, ..., T - 1,

    E||grad F_S(x_tau)||^2 <= ((p + sqrt(p^2 + 4 q K))/(2 q))^2,
    q = kept - (alpha ell/2) quadratic,
    p = L bias + e nu_1 + alpha ell (L cross + e nu_2 spread),
    K = gap/(alpha T) + (alpha ell/2) ((L excess + e nu_2)^2 + r sigma^2/K
                                       + (1 - q_s)/(q_s n) (L sampled + e nu_2)^2),
    e = ell lambda/2, or 0 with exact derivatives,

where the K in r sigma^2/K is the number of directions. The words (kept, quadratic, ...) are the constants of the module
`constants` at c = C/(L sqrt(K)), where C is the clip of the norm of a sample's K scalars; nu_1 and nu_2 are its
smooth_first and smooth_second. Where the problem bounds a moment of the gradients, or their mean excess, in place of
their maximum L, the constants are those of the module `moments` and L is `Problem.gradient_unit`. Statement and proof:
dpzero_theory/theory/sharp/proof.md.

Whatever the search for parameters does, the bound that `prescribe` returns is this one at the parameters that it
returns. Computations are in units of L/ell for lengths and L^2/ell for losses, so prescriptions scale exactly.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import noise_std as full_batch_noise
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Poisson
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
    """The bound of the sharpened theorem at given parameters, with the three numbers that it is computed from.

    The theorem (proof.md) has numbers q, p and K with q y^2 - p y <= K, where y^2 = E||grad F_S(x_tau)||^2 for the mean
    loss F_S and tau uniform on 0, ..., T - 1. So y^2 is at most the square of the larger root, ((p + sqrt(p^2 + 4 q
    K))/(2 q))^2.

    Attributes:
        progress: q, which has no unit; the bound is finite only where q > 0.
        drift: p, in the unit of the gradient.
        floor: K, here not the number of directions, in the unit of the squared gradient.
        bound: the bound on E||grad F_S(x_tau)||^2, infinite where q <= 0.
        vacuous: whether `bound` is at least L^2, which bounds the squared gradient at every point. Where the problem
            has no L, `Problem.steepest` stands in its place.
    """

    progress: float
    drift: float
    floor: float
    bound: float
    vacuous: bool


def certificate(
    problem: Problem, *, sample_rate: float = 1.0, algorithm: str = "dpzero", **run: Unpack[Run]
) -> Certificate:
    """Return the bound on E||grad F_S(x_tau)||^2, tau uniform on 0, ..., T - 1, at given parameters.

    No statement about privacy is made, and noise_std = 0 is allowed.

    Args:
        problem: the constants; n matters only with sample_rate < 1, and loss_bound and pl not at all.
        sample_rate: q_s in (0, 1]; the clipped sum is divided by q_s n, and the noise is on that average.
        algorithm: 'dpzero' (Algorithm 2) or 'dpgd-0th' (Algorithm 1, for directions u with ||u|| = sqrt(d) always and
            directions_per_step 1). Algorithm 1 clips the norm of s u for a sample's difference s; the theorem covers it
            because clip_C(s u) = clip_{C/sqrt(d)}(s) u.
        run: the parameters of the run, the entries of `Run`. Central and forward differences have the same bound; the
            bound for exact derivatives is the one with lambda = 0.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a direction law or a number of directions that the theorem, or the algorithm, does not cover.
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
    """Return the full-batch parameters with the smallest bound on E||grad F_S(x_tau)||^2, tau uniform on the steps, at
    mu-GDP, by `certificate`.

    The prescription's id is 'theorem-3-sharp', or 'theorem-2-sharp' for Algorithm 1.

    With alpha T fixed the bound falls as T grows. So T is the largest number of steps that the caps on steps,
    differences or losses in `options` allow; without a cap it is about the smallest T whose bound exceeds the bound for
    T -> infinity by at most 5%. The smoothing lambda is the largest that raises the bound by at most 1%, and 0 with the
    exact difference rule.

    Args:
        problem: the constants.
        gdp: mu > 0 of the whole run.
        relation: the neighbouring relation, a `privacy.relation.Relation` (which is a str) or its name.
        algorithm: 'dpzero' (Algorithm 2) or 'dpgd-0th' (Algorithm 1).
        options: what the search may choose from, the entries of `SearchOptions`. K, the number of directions in a step,
            is 1 unless `directions_per_step` is another number or "best". With a cap the best K is the one with the
            smallest bound; without a cap it is the smallest K whose bound is at most about 2.5% above the best.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a cap that allows no step; a direction law or a K that `certificate` refuses.
    """
    free = Search(**options)
    gdp = check.real("gdp", gdp, at_least=SMALLEST_GDP, at_most=LARGEST_GDP)
    between, direction = Relation(relation), free.direction
    # For T steps and the clip C of a sample's K scalars, the noise at this privacy is C sqrt(T) times this number.
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
    """Return the number by which the clip of `algorithm` is divided to get the clip of a sample's difference s that
    does the same: 1 for "dpzero", which clips s, and sqrt(d) for "dpgd-0th", which clips s u with ||u|| = sqrt(d).
    For "dpgd-0th" PreconditionError is raised if the law named `direction` has directions of other lengths, or if
    `directions`, the number of directions a step, is not 1."""
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
    """Return the prescription at parameters that a search found, with their certificate as its bound.

    The smoothing is the largest that raises the bound by at most 1%, and 0 with a difference rule that shifts no
    weights.

    Args:
        search: the search, which has the problem, the law of the directions, and K, the number of directions a step.
        c: C/(L sqrt(K)) for the clip C, with L = `Problem.gradient_unit`.
        alpha: the step size times ell.
        steps: the number of steps.
        noise: the standard deviation of the noise on each of a step's K averages, over the clip C.
        rate: the sampling rate, 1 for full batches.
        gdp, relation: fields of the prescription; they are stored, and nothing is computed from them.
        difference: the name of the difference rule.
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
    # each of a step's K averages, of L^2. `rate` is the sampling rate, 1 for full batches.
    q, drift, _, least = Terms.of(k, p, 0.0, variance, rate).root(gap_per_step, alpha)
    # The bound y^2 is now given, and p and K of the theorem (not the number of directions) depend on e = ell lambda/2,
    # so that q y^2 - p y = K is an equation of degree 2 in e.
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
