"""The sharpened theorem for Algorithm 2 (DPZero): a certificate at given parameters, and the best parameters.

Under Assumption asp:rank, with no bound on |F_S|, for all alpha, T, lambda, C > 0 and noise sigma with q > 0,

    E||grad F_S(x_tau)||^2 <= ((p + sqrt(p^2 + 4 q K))/(2 q))^2,
    q = kept - (alpha ell/2) quadratic,
    p = L bias + e nu_1 + alpha ell (L cross + e nu_2 spread),
    K = gap/(alpha T) + (alpha ell/2) ((L excess + e nu_2)^2 + r sigma^2
                                       + (1 - q_s)/(q_s n) (L sampled + e nu_2)^2),
    e = ell lambda/2,

with the constants of `constants` at c = C/L (nu_1, nu_2 are smooth_first, smooth_second). q_s is the
rate of Poisson sampling, 1 for full batches. Statement and proof: dpzero_theory/theory/sharp/proof.md.

Whatever the minimiser does, what it returns is this bound at the parameters it returns. Inside, lengths are
in units of L/ell and losses in units of L^2/ell, so prescriptions scale exactly.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from dpzero_theory import check
from dpzero_theory.privacy.gaussian import noise_std as full_batch_noise
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.theory.limits import SMOOTHING_SHARE, STEPS_SHARE, step_cap
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem
from dpzero_theory.theory.sharp.constants import constants
from dpzero_theory.theory.sharp.search import (
    Search,
    largest_below,
    quadratic_terms,
    relative_gap,
    solve_quadratic,
    step_terms,
)

ALGORITHMS = ("dpzero", "dpgd-0th")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What the theorem says at given parameters.

    Attributes:
        progress: q, must be positive for the bound to be finite.
        drift: p, in units of the gradient.
        floor: K, in units of the squared gradient.
        bound: bound on E||grad F_S(x_tau)||^2, infinite where q <= 0.
        vacuous: whether bound >= L^2, which holds with no algorithm.
    """

    progress: float
    drift: float
    floor: float
    bound: float
    vacuous: bool


def certificate(
    problem: Problem,
    *,
    step_size: float,
    steps: int,
    clip: float,
    smoothing: float,
    noise_std: float,
    sample_rate: float = 1.0,
    direction: str = "sphere",
    algorithm: str = "dpzero",
) -> Certificate:
    """The bound on E||grad F_S(x_tau)||^2, tau uniform on 0, ..., T - 1, at given parameters.

    Pure numbers: no privacy statement is made; noise_std = 0 is allowed.

    Args:
        problem: the constants (n enters only with sample_rate < 1; loss_bound and pl are not used).
        step_size: alpha > 0.
        steps: T >= 1.
        clip: C > 0, of the scalar finite difference (dpzero) or of the vector s_i u (dpgd-0th).
        smoothing: lambda > 0.
        noise_std: sigma >= 0 of the noise on the (expected-batch) average, per coordinate for dpgd-0th.
        sample_rate: q_s in (0, 1]; the clipped sum is divided by q_s n.
        direction: law of u, one of `constants.LAWS`; the paper's is 'sphere'.
        algorithm: 'dpzero' (Algorithm 2) or 'dpgd-0th' (Algorithm 1, where ||u|| = sqrt(d) always):
            clip_C(s u) = clip_{C/sqrt(d)}(s) u, so both have one theorem.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a direction law that the theorem, or the algorithm, does not cover.
    """
    p = problem
    alpha = check.real("step_size", step_size, above=0) * p.smoothness
    t = check.integer("steps", steps)
    c = check.real("clip", clip, above=0) / (p.lipschitz * _clip_scale(p, direction, algorithm))
    e = check.real("smoothing", smoothing, above=0) * p.smoothness / (2 * p.lipschitz)
    sigma = check.real("noise_std", noise_std, at_least=0) / p.lipschitz
    rate = check.real("sample_rate", sample_rate, above=0, at_most=1)
    terms = step_terms(constants(np.array([c]), p.d, p.r, direction, p.sample_rank), p, e, sigma * sigma, rate)
    q, drift, floor = (float(x[0]) for x in quadratic_terms(terms, relative_gap(p) / t, np.array([alpha])))
    root = p.lipschitz * solve_quadratic(q, drift, floor)
    bound = root * root
    return Certificate(
        progress=q,
        drift=p.lipschitz * drift,
        floor=p.lipschitz * p.lipschitz * floor,
        bound=bound,
        vacuous=bound >= p.lipschitz * p.lipschitz,
    )


def prescribe(
    problem: Problem,
    gdp: float,
    *,
    max_steps: int | None = None,
    max_evaluations: int | None = None,
    relation: str = "replace-one",
    direction: str = "sphere",
    algorithm: str = "dpzero",
) -> Prescription:
    """The full-batch parameters with the smallest certificate at mu-GDP.

    The id is 'theorem-3-sharp', for Algorithm 1 'theorem-2-sharp'.

    The bound falls as T grows with alpha T fixed, so T is the cap; without a cap it is the smallest T whose
    bound exceeds the infimum (T to infinity) by at most `STEPS_SHARE`. lambda is the largest that costs at
    most `SMOOTHING_SHARE` of the bound.

    Args:
        problem: the constants.
        gdp: mu > 0 of the whole run.
        max_steps: cap on T.
        max_evaluations: cap on n T, the finite differences of single samples (two losses each); at least n.
        relation: neighbouring relation, a `privacy.relation.Relation` or its name.
        direction, algorithm: see `certificate`.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: max_evaluations below n; a direction law as for `certificate`.
    """
    gdp = check.real("gdp", gdp, above=0)
    between = Relation.of(relation)
    cap = step_cap(problem, max_steps, max_evaluations)
    scale = _clip_scale(problem, direction, algorithm)
    unit = scale * full_batch_noise(gdp, 1, 1.0, problem.n, between)  # sigma/(C sqrt(T)), C of the scalar
    search = Search(problem, direction)
    steps = search.enough_steps(unit, STEPS_SHARE) if cap is None else cap
    c, alpha = search.best(steps, unit * unit * steps, 1.0)
    found = at_point(search, c, alpha, steps, unit * math.sqrt(steps), 1.0, gdp=gdp, relation=between)
    if algorithm == "dpzero":
        return found
    return replace(found, id="theorem-2-sharp", algorithm=algorithm, clip=scale * found.clip)


def _clip_scale(p: Problem, direction: str, algorithm: str) -> float:
    """Clip of the algorithm over that of the scalar s_i: ||u|| = sqrt(d) for Algorithm 1."""
    if check.choice("algorithm", algorithm, ALGORITHMS) == "dpzero":
        return 1.0
    fixed = DIRECTIONS[direction].fixed_norm
    check.precondition(fixed, f"dpgd-0th requires ||u|| = sqrt(d) always; it does not hold for {direction} directions")
    return math.sqrt(p.d)


def at_point(
    search: Search,
    c: float,
    alpha: float,
    steps: int,
    unit: float,
    rate: float,
    *,
    gdp: float,
    relation: Relation,
) -> Prescription:
    """The prescription at clip c L and step size alpha/ell with noise unit C, and its certificate."""
    p = search.problem
    k = constants(np.array([c]), p.d, p.r, search.direction, p.sample_rank)

    def root(e: float) -> float:
        terms = step_terms(k, p, e, (unit * c) ** 2, rate)
        parts = quadratic_terms(terms, relative_gap(p) / steps, np.array([alpha]))
        return solve_quadratic(*(float(x[0]) for x in parts))

    e = largest_below(root, math.sqrt(1 + SMOOTHING_SHARE) * root(0.0))
    step_size, clip, noise_std = alpha / p.smoothness, c * p.lipschitz, unit * c * p.lipschitz
    smoothing = 2 * e * p.lipschitz / p.smoothness
    bound = certificate(
        p,
        step_size=step_size,
        steps=steps,
        clip=clip,
        smoothing=smoothing,
        noise_std=noise_std,
        sample_rate=rate,
        direction=search.direction,
    ).bound
    return Prescription(
        id="theorem-3-sharp",
        guarantee=Guarantee.GRADIENT,
        algorithm="dpzero",
        n=p.n,
        relation=relation,
        sampling="full" if rate == 1 else "poisson",
        sample_rate=rate,
        direction=search.direction,
        gdp=gdp,
        step_size=step_size,
        T=float(steps),
        steps=steps,
        smoothing=smoothing,
        clip=clip,
        noise_std=noise_std,
        bound=bound,
        bound_at_steps=bound,
        trivial_bound=p.lipschitz * p.lipschitz,
        evaluations=round(rate * p.n * steps),
        notes=() if p.sample_rank is None else (f"lambda is for samples of rank r_s = {p.sample_rank:.4g}",),
    )
