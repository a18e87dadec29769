"""The verdict of a check of a training loop, and the registry of all checks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpzero_theory.registry import Registry

if TYPE_CHECKING:
    from dpzero_theory.audit.lab import Lab

HELD, VIOLATED, UNTESTED = "held", "violated", "could not be tested"


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check on a training loop.

    Attributes:
        status: `HELD`, `VIOLATED` or `UNTESTED`.
        says: what was seen, or why the check could not be made.
        mend: how to repair the loop, where the check is violated.
        power: where the check held, the smallest fault that it would have noticed, in words.
        p_value: the p-value of the statistic that decided, where there is one.
        evidence: numbers for the report, by name.
    """

    status: str
    says: str
    mend: str = ""
    power: str = ""
    p_value: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def held(says: str, *, power: str = "", p_value: float | None = None, **evidence: Any) -> Verdict:
    """Return the verdict that the loop does what the check asks for.

    Args:
        says: what was seen.
        power: the smallest fault that the check would have noticed, in words.
        p_value: the p-value of the statistic that decided, where there is one.
        evidence: numbers for the report, by name.
    """
    return Verdict(HELD, says, power=power, p_value=p_value, evidence=evidence)


def violated(says: str, mend: str, *, p_value: float | None = None, **evidence: Any) -> Verdict:
    """Return the verdict that the loop does not do what the check asks for.

    Args:
        says: what was seen.
        mend: how to repair the loop.
        p_value: the p-value of the statistic that decided, where there is one.
        evidence: numbers for the report, by name.
    """
    return Verdict(VIOLATED, says, mend, p_value=p_value, evidence=evidence)


def untested(why: str, **evidence: Any) -> Verdict:
    """Return the verdict that the check could not be made, for the reason `why`, with numbers for the report."""
    return Verdict(UNTESTED, why, evidence=evidence)


@dataclass(frozen=True)
class Check:
    """One check that an audit makes of a training loop.

    Attributes:
        name: the check's name on the command line and in the report.
        question: what the check asks, as the report shows it.
        look: a function (lab, level) -> verdict that makes the check on a `Lab`, by which it runs the loop. A sound
            loop is reported as violated with probability at most `level`.
        core: whether a claim cannot be defended where this check could not be made; the command then has an exit status
            of its own.
        random: whether the check can raise a false alarm. The audit's probability of one is split over such checks.
        follows: the names of checks whose faults alone can violate this check too. Where one of them is violated, the
            report lists this check's violation below it, since mending that one may mend both.
    """

    name: str
    question: str
    look: Callable[["Lab", float], Verdict]
    core: bool = False
    random: bool = True
    follows: tuple[str, ...] = ()


CHECKS: Registry[Check] = Registry("check")
"""Every check of an audit by its name, in the order of the report."""
