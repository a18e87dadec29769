"""The theorems and corollaries by name: what each assumes, what it bounds and which parameters it prescribes."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import epsilon_from_gdp, gdp_from_epsilon
from dpzero_theory.theory.noise import paper_gdp
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem
from dpzero_theory.theory.sharp import certificate as sharp
from dpzero_theory.theory.sharp.constants import known_direction
from dpzero_theory.theory.sharp.last_iterate import prescribe_last_iterate
from dpzero_theory.theory.sharp.smallest import SearchOptions
from dpzero_theory.theory.theorems import displayed


@dataclass(frozen=True, kw_only=True)
class _Result:
    """One theorem or corollary of the DPZero paper or of this package.

    Attributes:
        id: the name used on the command line, for example "theorem-3".
        title: the name that tables show; for a result of the paper it includes the label in the paper's source.
        assumptions: what must hold for the bound, as text.
        guarantee: the quantity that is bounded.
        search: a function (problem, gdp, **options) that returns the `Prescription` with the smallest bound, with the
            options of `SearchOptions`. None for a result of the paper, which gives its parameters by formulas.
        formulas: formulas as text, by the name of the field of `Prescription` that they give. In them v is 1/(2 sqrt(2)
            mu) for the mu of Gaussian DP, mu_PL is `Problem.pl`, kappa is ell/mu_PL, ell is `Problem.smoothness`, L is
            `Problem.lipschitz`, and Lt is defined by the formula of the clip.
        needs_pl: True if the result assumes the Polyak-Lojasiewicz inequality, that is, needs `Problem.pl`.
        opt_in: True if `calculate` leaves the result out unless its id is given.
    """

    id: str
    title: str
    assumptions: str
    guarantee: Guarantee
    formulas: Mapping[str, str]
    search: Callable[..., Prescription] | None = None
    needs_pl: bool = False
    opt_in: bool = False

    def prescribe(self, problem: Problem, gdp: float, **options: Unpack[SearchOptions]) -> Prescription:
        """Return the parameters that this theorem or corollary prescribes for a problem, and its bound.

        Args:
            problem: the constants of the problem.
            gdp: the mu > 0 of Gaussian DP that the whole run is to have.
            options: keywords of `SearchOptions`, which limit the parameters. A result of the paper ignores `max_steps`,
                `max_evaluations` and `max_points`, and requires direction "sphere", directions_per_step 1 or "best",
                and difference "central".

        Raises:
            ValueError: an argument is outside its range.
            PreconditionError: the result does not apply, or a number is outside the range of float64.
        """
        rule = check.choice("difference", options.get("difference", "central"), DIFFERENCES)
        if self.search is None:
            problem.require_lipschitz(self.id)
            law, k = known_direction(options.get("direction", "sphere")), options.get("directions_per_step", 1)
            check.precondition(law == "sphere", f"{self.id} is proved for directions on the sphere, not for {law} ones")
            check.precondition(k in (1, "best"), f"{self.id} is proved for one direction a step; got {k}")
            check.precondition(rule == "central", f"{self.id} is proved for central differences, not for {rule} ones")
        try:
            with np.errstate(all="ignore"):
                if self.search is None:
                    found = displayed(self.id, problem, gdp)
                else:
                    found = self.search(problem, gdp, **options)
        except (OverflowError, ZeroDivisionError) as error:
            raise check.PreconditionError("a value leaves the range of float64 for these inputs") from error
        smoothing = ("smoothing",) if DIFFERENCES[rule].smoothing else ()
        for field in ("step_size", *smoothing, "clip", "noise_std", "bound"):
            inside = 0 < getattr(found, field) < math.inf
            check.precondition(inside, f"{self.id}: the {field} leaves the range of float64 for these inputs")
        return found


_SMOOTH = "every f L-Lipschitz; F_S ell-smooth (asp:smooth)"
_CURVED = "-H <= Hessian of F_S <= H, tr(H) <= r ell, ||H|| <= ell (asp:rank)"
_RANK = f"every f L-Lipschitz and ell-smooth; {_CURVED}"
_SHARP = f"every f ell-smooth, and L-Lipschitz or with the stated bound on a mean of gradients; {_CURVED}"
_BOUNDED = _RANK + "; |F_S(x_t)| <= B along the run"
_PL = "; PL inequality (asp:pl)"

_SHARP_FORMULAS = {
    "step_size": "minimises the bound",
    "steps": "fewest steps within 5% of the best bound, or the cap",
    "smoothing": "largest that costs 1% of the bound; 0 with exact derivatives",
    "clip": "minimises the bound",
    "bound": "((p + sqrt(p^2 + 4 q K))/(2 q))^2",
}

_ALL = (
    _Result(
        id="theorem-1",
        title="Theorem 1 (thm:d-dependent), DPGD-0th",
        assumptions=_SMOOTH,
        guarantee=Guarantee.GRADIENT,
        formulas={
            "step_size": "1/(4 ell d)",
            "T": "n/(sqrt(d) v)",
            "smoothing": "(4 L/(ell d)) sqrt(sqrt(d) v/n)",
            "clip": "L d",
            "bound": "16 (gap ell + 2 L^2) d sqrt(d) v/n",
        },
    ),
    _Result(
        id="theorem-2",
        title="Theorem 2 (thm:d-dependent-rank), DPGD-0th",
        assumptions=_RANK,
        guarantee=Guarantee.GRADIENT,
        formulas={
            "step_size": "1/(4 ell (r + 2))",
            "T": "n (r + 2)/(d sqrt(r) v)",
            "smoothing": "(4 L/(ell d)) sqrt(sqrt(r) v/n)",
            "clip": "L d",
            "bound": "16 (gap ell + 2 L^2) d sqrt(r) v/n",
        },
    ),
    _Result(
        id="theorem-3",
        title="Theorem 3 (thm:d-free), DPZero",
        assumptions=_BOUNDED,
        guarantee=Guarantee.GRADIENT,
        formulas={
            "step_size": "1/(4 ell (r + 2))",
            "T": "n (r + 2)/(4 sqrt(r) v)",
            "smoothing": "min(4 (2 - sqrt 2) Lt, L sqrt(sqrt(r) v/(n d)))/(ell d)",
            "clip": "4 Lt, Lt^2 = L^2 log(2 sqrt(2 pi) n^3 (r + 2)(d + 8 ell B (r + 2)/L^2)/(r v^2))",
            "bound": "(64 (gap ell + Lt^2) + 2 L^2) sqrt(r) v/n",
        },
    ),
    _Result(
        id="corollary-1",
        title="Corollary 1 (cor:pl-d), DPGD-0th",
        assumptions=_SMOOTH + _PL,
        guarantee=Guarantee.SUBOPTIMALITY,
        formulas={
            "step_size": "1/(4 ell d)",
            "T": "8 kappa d log X, X = n^2/(kappa d^3 v^2)",
            "smoothing": "2 L v/(ell n)",
            "clip": "L d",
            "bound": "(ell gap + 64 L^2 kappa log X + 2 L^2) d^3 v^2/(mu_PL n^2)",
        },
        needs_pl=True,
    ),
    _Result(
        id="corollary-2",
        title="Corollary 2 (cor:pl-d-rank), DPGD-0th",
        assumptions=_RANK + _PL,
        guarantee=Guarantee.SUBOPTIMALITY,
        formulas={
            "step_size": "1/(4 ell (r + 2))",
            "T": "8 kappa (r + 2) log X, X = n^2/(kappa r d^2 v^2)",
            "smoothing": "2 L sqrt(r) v/(ell sqrt(d) n)",
            "clip": "L d",
            "bound": "(ell gap + 64 L^2 kappa log X + 2 L^2) r d^2 v^2/(mu_PL n^2)",
        },
        needs_pl=True,
    ),
    _Result(
        id="corollary-3",
        title="Corollary 3 (cor:pl-free), DPZero",
        assumptions=_BOUNDED + _PL + "; |F_S^*| <= B",
        guarantee=Guarantee.SUBOPTIMALITY,
        formulas={
            "step_size": "1/(4 ell (r + 2))",
            "T": "8 kappa (r + 2) log X, X = n^2/(kappa r v^2)",
            "smoothing": "min((2 - sqrt 2) Lt, 4 L sqrt(r) v/(sqrt(d) n))/(2 ell d)",
            "clip": "Lt/2, Lt^2 = 64 L^2 log(32 sqrt(2 pi) kappa n^3 (r + 2)(d + (8 ell (r+2) + mu_PL) B/L^2)/(r v^2))",
            "bound": "(ell gap + log X (L^2 + 16 Lt^2 kappa) + 2 L^2) r v^2/(mu_PL n^2)",
        },
        needs_pl=True,
    ),
    _Result(
        id="theorem-3-sharp",
        title="Theorem 3 sharpened (dpzero_theory/theory/sharp/proof.md), DPZero",
        assumptions=_SHARP,
        guarantee=Guarantee.GRADIENT,
        search=sharp.prescribe,
        formulas=_SHARP_FORMULAS,
    ),
    _Result(
        id="theorem-2-sharp",
        title="Theorem 2 sharpened (dpzero_theory/theory/sharp/proof.md), DPGD-0th",
        assumptions=_SHARP,
        guarantee=Guarantee.GRADIENT,
        search=functools.partial(sharp.prescribe, algorithm="dpgd-0th"),
        formulas=_SHARP_FORMULAS,
        opt_in=True,
    ),
    _Result(
        id="corollary-3-sharp",
        title="Corollary 3 sharpened (dpzero_theory/theory/sharp/proof.md), DPZero",
        assumptions=_SHARP + "; PL inequality (asp:pl) on a set that the run stays in",
        guarantee=Guarantee.SUBOPTIMALITY,
        search=prescribe_last_iterate,
        formulas={**_SHARP_FORMULAS, "bound": "one-step inequality with ||grad F||^2 >= 2 mu_PL (F - F^*), resolved"},
        needs_pl=True,
        opt_in=True,
    ),
)

RESULTS: Mapping[str, _Result] = {result.id: result for result in _ALL}
"""All theorems and corollaries by their ids, in the order in which tables show them."""

# The mu of Gaussian DP for (epsilon, delta): the DPZero paper's formula, or the largest mu that implies it
CALIBRATIONS = ("paper", "exact")


@dataclass(frozen=True, kw_only=True)
class Calculated:
    """What one theorem or corollary prescribes at a given (epsilon, delta).

    Attributes:
        result: the theorem or corollary, an entry of `RESULTS` with an `id` such as "theorem-3" and a `title`.
        calibration: where the mu of Gaussian DP comes from: the paper's formula ("paper"), or exactly ("exact").
        prescription: the parameters and the bound.
        notes: remarks about the privacy and the bound, one sentence each.
    """

    result: _Result
    calibration: str
    prescription: Prescription
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """A theorem or corollary that does not apply to the given problem.

    Attributes:
        result: the theorem or corollary, an entry of `RESULTS` with an `id` such as "theorem-3" and a `title`.
        calibration: where the mu of Gaussian DP comes from: the paper's formula ("paper"), or exactly ("exact").
        reason: a sentence that says which precondition fails.
    """

    result: _Result
    calibration: str
    reason: str


def calibrated_gdp(epsilon: float, delta: float, calibration: str) -> float:
    """Return the mu of Gaussian DP from which noise for (epsilon, delta)-DP is computed; a smaller mu means more noise.

    Raises ValueError if an argument is outside its range.

    Args:
        epsilon: epsilon > 0.
        delta: delta in (0, 1).
        calibration: "exact" returns the largest mu with which every mu-GDP mechanism is (epsilon, delta)-DP. "paper"
            returns epsilon/sqrt(8 log(e + epsilon/delta)), by Lemma lm:composition of the DPZero paper; for a large
            epsilon this mu is too large, and the run is not (epsilon, delta)-DP.
    """
    epsilon = check.real("epsilon", epsilon, above=0)
    delta = check.real("delta", delta, above=0, below=1)
    if check.choice("calibration", calibration, CALIBRATIONS) == "paper":
        return float(paper_gdp(epsilon, delta))
    return float(gdp_from_epsilon(epsilon, delta))


def _calculated_by_default(problem: Problem) -> tuple[str, ...]:
    stated = (result for result in RESULTS.values() if problem.pl is not None or not result.needs_pl)
    if math.isinf(problem.lipschitz):
        stated = (result for result in stated if result.search is not None)
    return tuple(result.id for result in stated if not result.opt_in)


def calculate(
    problem: Problem,
    epsilon: float,
    delta: float,
    *,
    results: Sequence[str] | None = None,
    calibrations: Sequence[str] = CALIBRATIONS,
    **options: Unpack[SearchOptions],
) -> tuple[list[Calculated], list[Unmet]]:
    """Return what each theorem prescribes for a problem at (epsilon, delta) with respect to replacing one sample, for
    runs that use all samples in every step. Raises ValueError if an argument is outside its range.

    Args:
        problem: the constants of the problem.
        epsilon: epsilon > 0.
        delta: delta in (0, 1).
        results: the ids of the theorems and corollaries, keys of `RESULTS`. By default all whose required `Problem.pl`
            and `Problem.lipschitz` are given, except "theorem-2-sharp" and "corollary-3-sharp".
        calibrations: the mu of Gaussian DP: "exact", the largest that implies (epsilon, delta)-DP; "paper", the formula
            of the paper, with which runs are not (epsilon, delta)-DP if epsilon is large; or, by default, both.
        options: keywords of `SearchOptions`, which limit the parameters. The paper's results ignore `max_steps`,
            `max_evaluations` and `max_points`.

    Returns:
        Two lists, each ordered by result and then by calibration: what applies, and what does not apply because the
        problem or the options do not meet its preconditions.
    """
    answers: list[Calculated] = []
    unmet: list[Unmet] = []
    known_direction(options.get("direction", "sphere"))
    check.choice("difference", options.get("difference", "central"), DIFFERENCES)
    gdps = {calibration: calibrated_gdp(epsilon, delta, calibration) for calibration in calibrations}
    said: dict[str, tuple[str, ...]] = {}
    if "paper" in gdps:
        true, level = float(epsilon_from_gdp(gdps["paper"], delta)), f"at delta = {delta:g}"
        fails = (
            f"the paper's composition lemma fails here: this noise gives epsilon = {true:.6g}, not the claimed "
            f"{epsilon:g}, {level}; use the exact calibration"
        )
        holds = f"this noise gives epsilon = {true:.4g} {level}, below the {epsilon:g} asked for"
        said["paper"] = (fails if true > epsilon else holds,)
    for id in _calculated_by_default(problem) if results is None else results:
        result = RESULTS[check.choice("result", id, RESULTS)]
        for calibration, gdp in gdps.items():
            try:
                prescription = result.prescribe(problem, gdp, **options)
            except check.PreconditionError as error:
                unmet.append(Unmet(result=result, calibration=calibration, reason=str(error)))
                continue
            notes = said.get(calibration, ()) + prescription.notes
            if prescription.vacuous:
                notes += (f"vacuous: the bound is not below the trivial {prescription.trivial_bound:.4g}",)
            answers.append(Calculated(result=result, calibration=calibration, prescription=prescription, notes=notes))
    return answers, unmet
