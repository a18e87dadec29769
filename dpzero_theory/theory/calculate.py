"""The calculator as a function: every theorem and corollary for a problem at an (epsilon, delta)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import epsilon_from_gdp, gdp_from_epsilon, paper_gdp
from dpzero_theory.theory.limits import step_cap
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.results import RESULTS, Result
from dpzero_theory.theory.sharp.constants import known_direction

CALIBRATIONS = ("paper", "exact")
"""The two ways to turn (epsilon, delta) into the mu of Gaussian DP. "paper" goes by the paper's composition lemma,
"exact" by the exact trade-off of Gaussian noise."""


@dataclass(frozen=True, kw_only=True)
class Calculated:
    """What one theorem or corollary says under one calibration.

    Attributes:
        result: which theorem or corollary.
        calibration: one of `CALIBRATIONS`.
        prescription: the parameters of its closed form; for a sharpened result, which has none, those with the smallest
            bound.
        best: for a result with a closed form, the parameters that minimise the inequality of its proof; None for a
            sharpened result, or if they were not asked for (`minimise=False`).
        notes: remarks on the privacy and the bound.
    """

    result: Result
    calibration: str
    prescription: Prescription
    best: Prescription | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """A theorem or corollary that does not apply, because the inputs do not meet its precondition.

    Attributes:
        result: which theorem or corollary.
        calibration: how the noise was to be computed, one of `CALIBRATIONS`.
        reason: the sentence that says which precondition fails.
    """

    result: Result
    calibration: str
    reason: str


def calibrated_gdp(epsilon: float, delta: float, calibration: str) -> float:
    """The mu of Gaussian DP from which noise for (epsilon, delta)-DP is computed; a smaller mu means more noise. It is
    `paper_gdp`, by the paper's composition lemma, if calibration is "paper", and `gdp_from_epsilon`, the largest mu
    that is (epsilon, delta)-DP, if it is "exact". Raises ValueError for an argument outside its range."""
    epsilon = check.real("epsilon", epsilon, above=0)
    delta = check.real("delta", delta, above=0, below=1)
    if check.choice("calibration", calibration, CALIBRATIONS) == "paper":
        return float(paper_gdp(epsilon, delta))
    return float(gdp_from_epsilon(epsilon, delta))


def applicable(problem: Problem) -> tuple[str, ...]:
    """The ids of the results that `calculate` answers if none are named.

    These are all of `RESULTS` but those that need a `pl` or `lipschitz` that the problem lacks, and those marked
    `opt_in`.
    """
    stated = (result for result in RESULTS.values() if problem.pl is not None or not result.needs_pl)
    if math.isinf(problem.lipschitz):
        stated = (result for result in stated if result.minimised)
    return tuple(result.id for result in stated if not result.opt_in)


def calculate(
    problem: Problem,
    epsilon: float,
    delta: float,
    *,
    results: Sequence[str] | None = None,
    calibrations: Sequence[str] = CALIBRATIONS,
    max_steps: int | None = None,
    max_evaluations: int | None = None,
    max_points: int | None = None,
    direction: str = "sphere",
    directions_per_step: int | str = 1,
    difference: str = "central",
    minimise: bool = True,
) -> tuple[list[Calculated], list[Unmet]]:
    """Prescriptions and bounds for a problem under (epsilon, delta)-DP, replace-one, with full batches.

    Args:
        problem: the constants.
        epsilon: epsilon > 0.
        delta: 0 < delta < 1.
        results: ids of the results; by default `applicable(problem)`.
        calibrations: a subset of `CALIBRATIONS`.
        max_steps: a cap on the steps T for parameters that are searched for; closed forms ignore it.
        max_evaluations: a cap on n K T for such parameters, where K is the number of directions a step.
        max_points: a cap on the number of evaluations of single samples' losses in the whole run, for such parameters;
            see `limits.step_cap`.
        direction: the law of the directions, one of `constants.known_directions`. The paper's results hold for its
            sphere only.
        directions_per_step: K, or 'best'. The paper's results, and Algorithm 1, have K = 1.
        difference: the difference rule, one of `DIFFERENCES`. The paper's results have central differences.
        minimise: whether to search for the best parameters of the paper's inequalities too.

    Returns:
        The list of the answers, ordered by result and then by calibration, and the list of the results whose
        preconditions these inputs do not meet.

    Raises:
        ValueError: an argument outside its range.
    """
    answers: list[Calculated] = []
    unmet: list[Unmet] = []
    known_direction(direction)
    check.choice("difference", difference, DIFFERENCES)
    gdps = {calibration: calibrated_gdp(epsilon, delta, calibration) for calibration in calibrations}
    privacy = {calibration: _privacy_notes(epsilon, delta, calibration, gdp) for calibration, gdp in gdps.items()}
    for id in applicable(problem) if results is None else results:
        result = RESULTS[check.choice("result", id, RESULTS)]
        for calibration, gdp in gdps.items():
            try:
                prescription = result.prescribe(
                    problem,
                    gdp,
                    max_steps=max_steps,
                    max_evaluations=max_evaluations,
                    max_points=max_points,
                    direction=direction,
                    directions_per_step=directions_per_step,
                    difference=difference,
                )
                cap = step_cap(problem, max_steps, max_evaluations, max_points=max_points, difference=difference)
                best = result.best(prescription, problem, max_steps=cap) if minimise else None
            except check.PreconditionError as error:
                unmet.append(Unmet(result=result, calibration=calibration, reason=str(error)))
                continue
            notes = privacy[calibration] + prescription.notes
            if prescription.vacuous:
                notes += (f"vacuous: the bound is not below the trivial {prescription.trivial_bound:.4g}",)
            answers.append(
                Calculated(result=result, calibration=calibration, prescription=prescription, best=best, notes=notes)
            )
    return answers, unmet


def _privacy_notes(epsilon: float, delta: float, calibration: str, gdp: float) -> tuple[str, ...]:
    if calibration == "exact":
        return ()
    true_epsilon = float(epsilon_from_gdp(gdp, delta))
    if true_epsilon > epsilon:
        return (
            f"the paper's composition lemma fails here: this noise gives epsilon = {true_epsilon:.6g}, not the claimed "
            f"{epsilon:g}, at delta = {delta:g}; use the exact calibration",
        )
    return (f"this noise gives epsilon = {true_epsilon:.4g} at delta = {delta:g}, below the {epsilon:g} asked for",)
