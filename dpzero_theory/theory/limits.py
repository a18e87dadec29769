"""Limits of the searches for parameters: the number of steps, the range of inputs, and the loss of bound that is
accepted for a run with fewer steps or a larger smoothing."""

from dpzero_theory import check
from dpzero_theory.theory.problem import Problem

MOST_STEPS = 10**15  # The largest number of steps T that a search for parameters tries, or that a cap may be
SMOOTHING_SHARE = 0.01  # The smoothing lambda is the largest that raises the bound by at most about this share of it
STEPS_SHARE = 0.05  # Without a cap, T is the smallest number of steps whose bound is at most this share above the best
SMALLEST, LARGEST = 1e-150, 1e150
"""The smallest and the largest L, ell and gap ell/L^2 that the sharpened results accept: beyond them their numbers
overflow or underflow in float64."""
SMALLEST_GDP, LARGEST_GDP = 1e-50, 1e50  # The range of mu for which a sharpened result is minimised in float64


def step_cap(problem: Problem, max_steps: int | None, max_evaluations: int | None, directions: int = 1) -> int | None:
    """The largest number of steps T that the caps allow, `max_steps` on T and `max_evaluations` on n K T; None if there
    is no cap.

    n is the number of samples, and K = `directions` that of directions a step. Raises ValueError for a cap outside its
    range, PreconditionError for one that allows no step.
    """
    caps = []
    if max_steps is not None:
        caps.append(check.integer("max_steps", max_steps, at_most=MOST_STEPS))
    if max_evaluations is not None:
        most = check.integer("max_evaluations", max_evaluations)
        step = problem.n * directions
        check.precondition(
            most >= step, f"max_evaluations >= n directions_per_step is required (full batch); got {most} below {step}"
        )
        caps.append(min(most // step, MOST_STEPS))
    return min(caps) if caps else None
