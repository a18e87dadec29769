"""Loops for tests of the audit: those of the zoo, and sound loops of it with lines that a test changes."""

from dataclasses import replace
from typing import Any

from benchmarks.zoo.table import LOOPS, Loop, records
from dpzero_theory.audit.conformance import check
from dpzero_theory.audit.report import AuditReport

SOUND, ZEROTH = LOOPS["sound-first-order"], LOOPS["sound-zeroth-order"]


def changed(*lines: str, base: str = "descent", **how: Any) -> Loop:
    """Returns a loop of the zoo in which `lines` take the place of those that assign to the same names."""
    return Loop("changed", "", base=base, change=lines, **how)


def audit(loop: Loop, *names: str, runs: int = 24, repeat: int = 0, **how: Any) -> AuditReport:
    """Audits a loop by the checks called `names`, all if there are none, and returns the report.

    `how` replaces fields of the loop, such as its view, and `repeat` selects the records.
    """
    loop = replace(loop, **how)
    claim = loop.claimed
    return check(
        loop.train(),
        records(claim.n, repeat),
        claim,
        loop.viewed,
        loop.given,
        variations=loop.variations,
        checks=names,
        runs=runs,
    )
