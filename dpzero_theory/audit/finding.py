"""What a check of a loop says, and the registry of checks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpzero_theory.registry import Registry

if TYPE_CHECKING:
    from dpzero_theory.audit.lab import Lab

HELD, VIOLATED, UNTESTED = "held", "violated", "could not be tested"


@dataclass(frozen=True)
class Verdict:
    """What a check says of a loop.

    Attributes:
        status: `HELD`, `VIOLATED` or `UNTESTED`.
        says: what was seen, or why nothing could be seen.
        mend: how to repair the loop, where the check is violated.
        power: what the check would have seen, where it held.
        p_value: of the statistic that decided, where there is one.
        evidence: numbers for the report, and for its plot.
    """

    status: str
    says: str
    mend: str = ""
    power: str = ""
    p_value: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def held(says: str, *, power: str = "", p_value: float | None = None, **evidence: Any) -> Verdict:
    """A verdict that the loop does what the check asks."""
    return Verdict(HELD, says, power=power, p_value=p_value, evidence=evidence)


def violated(says: str, mend: str, *, p_value: float | None = None, **evidence: Any) -> Verdict:
    """A verdict that the loop does not do what the check asks, with how to mend it."""
    return Verdict(VIOLATED, says, mend, p_value=p_value, evidence=evidence)


def untested(why: str, **evidence: Any) -> Verdict:
    """A verdict that the check could not be made, with the reason."""
    return Verdict(UNTESTED, why, evidence=evidence)


@dataclass(frozen=True)
class Check:
    """One question to a loop.

    Attributes:
        name: of the check, on the command line and in the report.
        question: what it asks.
        look: (lab, level) -> the verdict; a sound loop may be reported as violated with probability at most `level`.
        random: whether the check can raise a false alarm. Random checks share the audit's probability of one.
    """

    name: str
    question: str
    look: Callable[["Lab", float], Verdict]
    random: bool = True


CHECKS: Registry[Check] = Registry("check")
"""Every check, in the order of the report."""
