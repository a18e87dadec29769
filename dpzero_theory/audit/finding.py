"""What a check says, and the checks there are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpzero_theory.registry import Registry

if TYPE_CHECKING:
    from dpzero_theory.audit.lab import Lab

HELD, VIOLATED, UNTESTED = "held", "violated", "could not be tested"


@dataclass(frozen=True)
class Verdict:
    """status: held, violated or could not be tested. says: what was seen, or why nothing could be. mend: what to do.

    power: what would have been seen, where held. p_value: of the statistic that decided, where it is one. evidence:
    numbers for the report; of a plot `x`, `y`, `limit` and their names.
    """

    status: str
    says: str
    mend: str = ""
    power: str = ""
    p_value: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def held(says: str, *, power: str = "", p_value: float | None = None, **evidence: Any) -> Verdict:
    return Verdict(HELD, says, power=power, p_value=p_value, evidence=evidence)


def violated(says: str, mend: str, *, p_value: float | None = None, **evidence: Any) -> Verdict:
    return Verdict(VIOLATED, says, mend, p_value=p_value, evidence=evidence)


def untested(why: str, **evidence: Any) -> Verdict:
    return Verdict(UNTESTED, why, evidence=evidence)


@dataclass(frozen=True)
class Check:
    """One question to a loop. random: whether it can raise a false alarm, and so shares in their probability."""

    name: str
    question: str
    look: Callable[["Lab", float], Verdict]
    random: bool = True


CHECKS: Registry[Check] = Registry("check")
"""In the order of the report."""
