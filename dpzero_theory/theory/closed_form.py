"""How a `Prescription` is made from the parameters that a theorem displays: the integer number of steps, the noise, and
the checks that all theorems share."""

import functools
import math
from collections.abc import Callable
from typing import ParamSpec

import numpy as np

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import noise_std
from dpzero_theory.privacy.relation import Relation
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
