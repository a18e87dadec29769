"""What a numerical check of the sharpened theorem returns, and the rules they share."""

from typing import NamedTuple

from dpzero_theory.sphere import DIRECTIONS

__all__ = ["DRAW", "SEED", "STANDARD_ERRORS", "Outcome", "within"]

STANDARD_ERRORS = 4.5
"""Monte Carlo comparisons allow this many standard errors."""
SEED = 20240601
DRAW = {name: law.sample for name, law in DIRECTIONS.items()}


class Outcome(NamedTuple):
    """The result of a check: it holds when `measured` <= `threshold`."""

    ok: bool
    measured: float
    threshold: float
    text: str


def within(measured: float, threshold: float, text: str) -> Outcome:
    """The outcome that holds if measured <= threshold; NaN fails."""
    return Outcome(bool(measured <= threshold), float(measured), threshold, text)
