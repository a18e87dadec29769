"""Theorems 1, 2 and 3 of the paper: from a problem and a privacy level, the prescribed parameters and the bound.

All three are for full batches and the replace-one relation. Every bound is on E||grad F_S(x_tau)||^2, with tau uniform
on 0, ..., T - 1, where T is the number of steps. In the formulas v = sqrt(log(e + epsilon/delta))/epsilon is the noise
level, computed as 1/(2 sqrt(2) mu) by `noise_level`; everything else is as displayed in the paper. `results.RESULTS`
shows each formula in words.

Each function takes the problem's constants and `gdp`, the mu > 0 of Gaussian DP of the whole run, and returns a
`Prescription`. ValueError is raised for another gdp, and PreconditionError for a result outside the range of float64.
"""

import functools
import math
from collections.abc import Callable
from typing import ParamSpec

import numpy as np

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import noise_std
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.theory import inequalities
from dpzero_theory.theory.inequalities import Inequality
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem

P = ParamSpec("P")


def guard_float_results(prescribe: Callable[P, Prescription]) -> Callable[P, Prescription]:
    """Returns the function `prescribe` with a guard against numbers outside the range of float64.

    If its arithmetic overflows or divides by 0, or if the step size, smoothing, clip, noise or bound of the result is
    not positive and finite, PreconditionError is raised instead of a warning, NaN or infinity. The smoothing may be 0
    with a difference rule that shifts no weights.
    """

    @functools.wraps(prescribe)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Prescription:
        try:
            with np.errstate(all="ignore"):
                prescription = prescribe(*args, **kwargs)
        except (OverflowError, ZeroDivisionError) as error:
            raise check.PreconditionError("a value leaves the range of float64 for these inputs") from error
        smoothing = ("smoothing",) if DIFFERENCES[prescription.difference].smoothing else ()
        for field in ("step_size", *smoothing, "clip", "noise_std", "bound"):
            value = getattr(prescription, field)
            check.precondition(
                0 < value < math.inf, f"{prescription.id}: the {field} leaves the range of float64 for these inputs"
            )
        return prescription

    return guarded


def noise_level(gdp: float) -> float:
    """The paper's v = sqrt(log(e + epsilon/delta))/epsilon, computed as 1/(2 sqrt(2) mu), where `gdp` is the mu of
    Gaussian DP. The theorems depend on the privacy budget through v alone. ValueError is raised unless gdp > 0."""
    return 1 / (2 * math.sqrt(2) * check.real("gdp", gdp, above=0))


def positive_log(value: float, statement: str) -> float:
    """The natural logarithm of `value`, where this logarithm must be positive and finite.

    Unless 1 < value < infinity, PreconditionError is raised with `statement`, a sentence that names the rule.
    """
    check.precondition(1 < value < math.inf, f"{statement}; it is {value:g}")
    return math.log(value)


def trivial_bound(problem: Problem, guarantee: Guarantee) -> float:
    """The bound that holds at every point, without running anything, on the quantity that `guarantee` names.

    It is L^2 on ||grad F_S||^2 (the paper's Remark rmk:bound), or L^2/(2 mu) on F_S - F_S^* under the PL inequality,
    where L is the problem's `lipschitz` and mu its `pl`.
    """
    square = problem.lipschitz**2
    if guarantee is Guarantee.GRADIENT:
        return square
    return square * problem.condition_number / (2 * problem.smoothness)


def prescription(
    inequality: Inequality,
    guarantee: Guarantee,
    *,
    id: str,
    algorithm: str,
    step_size: float,
    T: float,
    smoothing: float,
    clip: float,
    bound: float,
) -> Prescription:
    """The prescription with a theorem's parameters, and with a whole number of steps next to the theorem's real T.

    Of the two integers next to T (at least 1) the one with the smaller bound in the inequality of the proof is taken.
    The noise, the evaluations and `bound_at_steps` are for that integer.

    Args:
        inequality: the inequality of the result's proof, with the problem and the mu of Gaussian DP of the whole run.
        guarantee: which quantity is bounded, the squared gradient or the suboptimality of the last iterate.
        id: the name of the theorem or corollary, for example 'theorem-3'.
        algorithm: 'dpgd-0th' (Algorithm 1) or 'dpzero' (Algorithm 2).
        step_size: alpha > 0.
        T: the number of steps by the formula, a real number.
        smoothing: lambda > 0.
        clip: C > 0.
        bound: the right-hand side that the theorem displays.

    Raises:
        PreconditionError: T exceeds 1e18.
    """
    check.precondition(0 < T <= 1e18, f"{id} requires 0 < T <= 1e18; got T = {T:g}")
    neighbours = sorted({max(1, math.floor(T)), max(1, math.ceil(T))})
    problem, bound_at = inequality.problem, inequality.of(guarantee)
    values = [float(bound_at(step_size, t, smoothing, clip)) for t in neighbours]
    best = min(range(len(neighbours)), key=values.__getitem__)
    steps = neighbours[best]
    notes = () if T >= 1 else (f"T = {T:.3g} is below 1: one step is prescribed, and `bound` is not reached by it",)
    return Prescription(
        id=id,
        guarantee=guarantee,
        algorithm=algorithm,
        n=problem.n,
        gdp=inequality.gdp,
        step_size=step_size,
        T=T,
        steps=steps,
        smoothing=smoothing,
        clip=clip,
        noise_std=noise_std(inequality.gdp, steps, clip, problem.n, Relation.REPLACE_ONE),
        bound=bound,
        bound_at_steps=values[best],
        trivial_bound=trivial_bound(problem, guarantee),
        evaluations=problem.n * steps,
        notes=notes,
    )


@guard_float_results
def theorem_1(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound (Eq. eq:d-dependent) of Theorem 1 (thm:d-dependent): Algorithm 1.

    It holds under Assumption asp:smooth. Of the problem it uses n, d, lipschitz, smoothness and gap; gdp is the mu > 0
    of Gaussian DP of the whole run.

    Raises:
        ValueError: a gdp that is no finite number above 0.
        PreconditionError: T above 1e18, or a result outside the range of float64.
    """
    p, v = problem, noise_level(gdp)
    rate = math.sqrt(p.d) * v / p.n
    return prescription(
        inequalities.dpgd_0th(p, gdp),
        Guarantee.GRADIENT,
        id="theorem-1",
        algorithm="dpgd-0th",
        step_size=1 / (4 * p.smoothness * p.d),
        T=p.n / (math.sqrt(p.d) * v),
        smoothing=4 * p.lipschitz / (p.smoothness * p.d) * math.sqrt(rate),
        clip=p.lipschitz * p.d,
        bound=16 * (p.gap * p.smoothness + 2 * p.lipschitz**2) * p.d * rate,
    )


@guard_float_results
def theorem_2(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound (Eq. eq:d-dependent-rank) of Theorem 2 (thm:d-dependent-rank): Algorithm 1.

    It holds under Assumption asp:rank. Of the problem it uses n, d, r, lipschitz, smoothness and gap; gdp is the mu > 0
    of Gaussian DP of the whole run.

    Raises:
        ValueError: a gdp that is no finite number above 0.
        PreconditionError: T above 1e18, or a result outside the range of float64.
    """
    p, v = problem, noise_level(gdp)
    rate = math.sqrt(p.r) * v / p.n
    return prescription(
        inequalities.dpgd_0th_rank(p, gdp),
        Guarantee.GRADIENT,
        id="theorem-2",
        algorithm="dpgd-0th",
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        T=p.n * (p.r + 2) / (p.d * math.sqrt(p.r) * v),
        smoothing=4 * p.lipschitz / (p.smoothness * p.d) * math.sqrt(rate),
        clip=p.lipschitz * p.d,
        bound=16 * (p.gap * p.smoothness + 2 * p.lipschitz**2) * p.d * rate,
    )


@guard_float_results
def theorem_3(problem: Problem, gdp: float) -> Prescription:
    """The parameters and the bound (Eq. eq:d-free) of Theorem 3 (thm:d-free): Algorithm 2 under Assumption asp:rank.

    It assumes that |F_S(x_t)| is at most B, which is `loss_bound`. The clip is 4 L-tilde, where the paper's L-tilde is
    L times the square root of a logarithm. Of the problem it uses everything but pl and sample_rank; gdp is the mu > 0
    of Gaussian DP of the whole run. PreconditionError is raised if that logarithm is not positive.
    """
    p, v = problem, noise_level(gdp)
    rate = math.sqrt(p.r) * v / p.n
    dimension = p.d + 8 * p.smoothness * p.loss_bound * (p.r + 2) / p.lipschitz**2
    argument = 2 * math.sqrt(2 * math.pi) * p.n * (p.r + 2) * dimension / rate**2
    log = positive_log(argument, "theorem-3 requires the argument of the logarithm in L-tilde to be above 1")
    lipschitz_tilde = p.lipschitz * math.sqrt(log)
    return prescription(
        inequalities.dpzero(p, gdp),
        Guarantee.GRADIENT,
        id="theorem-3",
        algorithm="dpzero",
        step_size=1 / (4 * p.smoothness * (p.r + 2)),
        T=p.n * (p.r + 2) / (4 * math.sqrt(p.r) * v),
        smoothing=min(4 * (2 - math.sqrt(2)) * lipschitz_tilde, p.lipschitz / math.sqrt(p.d) * math.sqrt(rate))
        / (p.smoothness * p.d),
        clip=4 * lipschitz_tilde,
        bound=(64 * (p.gap * p.smoothness + lipschitz_tilde**2) + 2 * p.lipschitz**2) * rate,
    )
