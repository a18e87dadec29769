"""Limits of the searches for parameters: the number of steps, the range of inputs, and the loss of bound that is
accepted for a run with fewer steps or a larger smoothing."""

import bisect

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.theory.problem import Problem

MOST_DIRECTIONS = 2**16  # The largest K that is tried, which is the most that a run takes
MOST_STEPS = 10**15  # The largest number of steps T that a search for parameters tries, or that a cap may be
SMOOTHING_SHARE = 0.01  # The smoothing lambda is the largest that raises the bound by at most about this share of it
STEPS_SHARE = 0.05  # Without a cap, T is the smallest number of steps whose bound is at most this share above the best
SMALLEST, LARGEST = 1e-150, 1e150
"""The smallest and the largest value that the sharpened results accept for each of L, ell and gap ell/L^2. Beyond these
their numbers overflow or underflow in float64."""
SMALLEST_GDP, LARGEST_GDP = 1e-50, 1e50  # The range of mu for which a sharpened result is minimised in float64


def step_cap(
    problem: Problem,
    max_steps: int | None,
    max_evaluations: int | None,
    directions: int = 1,
    *,
    max_points: int | None = None,
    difference: str = "central",
) -> int | None:
    """The largest number of steps T that the caps allow; None if there is no cap.

    n is the number of samples, and K = `directions` that of directions a step.

    Args:
        problem: only its n matters.
        max_steps: a cap on T.
        max_evaluations: a cap on n K T, the differences of single samples.
        directions: K >= 1, the number of directions in a step.
        max_points: a cap on n T points(K), the evaluations of single samples' losses in the run. points(K) is how many
            of one sample a step takes, as the difference rule says: 2 K, or K + 1.
        difference: the difference rule, one of `DIFFERENCES`.

    Raises:
        ValueError: a cap outside its range, an unknown rule.
        PreconditionError: a cap allows no step.
    """
    points = DIFFERENCES[difference].points(directions)
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
    if max_points is not None:
        most = check.integer("max_points", max_points)
        step = problem.n * points
        check.precondition(
            most >= step,
            f"max_points >= {points} n is required (full batch, {difference} differences, directions_per_step = "
            f"{directions}); got {most} below {step}",
        )
        caps.append(min(most // step, MOST_STEPS))
    return min(caps) if caps else None


def most_in_full_batches(
    problem: Problem, max_evaluations: object, max_points: object, difference: str
) -> float | None:
    """The largest number K of directions, not necessarily whole, with which one step on all n samples keeps to the
    caps; None without a cap.

    It is `most_directions` for the caps divided by n.

    Args:
        problem: only its n matters.
        max_evaluations: a cap on n K T, the differences of single samples in T steps; None for no cap.
        max_points: a cap on n T points(K), the evaluations of single samples' losses; None for no cap.
        difference: the difference rule.

    Raises ValueError for a cap that is no integer >= 1.
    """
    return most_directions(
        None if max_evaluations is None else check.integer("max_evaluations", max_evaluations) / problem.n,
        None if max_points is None else check.integer("max_points", max_points) / problem.n,
        difference,
    )


def most_directions(evaluations: float | None, points: float | None, difference: str) -> float | None:
    """The largest number K of directions a step that caps on one step allow, which need not be whole, and is below 1
    where not even one direction is allowed; None if there is no cap.

    Args:
        evaluations: a cap on K, the differences of a sample in a step; None for no cap.
        points: a cap on the evaluations of a sample's loss in a step; None for no cap.
        difference: the difference rule, one of `DIFFERENCES`, which says how many evaluations K directions take.
    """
    caps = [] if evaluations is None else [evaluations]
    if points is not None:
        caps.append(bisect.bisect_right(range(1, MOST_DIRECTIONS + 1), points, key=DIFFERENCES[difference].points))
    return min(caps) if caps else None
