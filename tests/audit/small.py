"""Audits small enough for tests, of 24 records and 6 steps, of training loops with known faults and of sound ones.

A specimen is a training loop of `benchmarks.audit_zoo`, with its claim and the name of the check that must find its
fault.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.zoo import catalogue
from benchmarks.zoo.catalogue import FAULTS, SOUND, Specimen
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.conformance import check
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import Loop
from dpzero_theory.audit.report import AuditReport
from dpzero_theory.audit.runs import LoopRuns
from dpzero_theory.privacy.accountant import epsilon_of_history

N, STEPS = 24, 6


def named(*names: str) -> list[Specimen]:
    """Returns the faulty specimens with these names."""
    return [specimen for specimen in FAULTS if specimen.name in names]


def one_of_each(*names: str) -> list[Specimen]:
    """Returns, for each check of these names, the first specimen whose fault it must find."""
    return [next(specimen for specimen in FAULTS if specimen.finds == name) for name in names]


FEW = (SOUND[0], SOUND[3])
"""A first-order and a zeroth-order training loop that are sound."""


def records(n: int = N, repeat: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns n records; another `repeat` gives other records."""
    return catalogue.records(max(n, catalogue.N), repeat)[:n].copy()


@cache
def small(claim: Claim) -> Claim:
    """Returns a claim about the same mechanism on fewer records and steps.

    A claim with n above 100 is returned as it is. The claimed epsilon changes in the ratio of what the two claims cost,
    so that a false claim stays as false.
    """
    if claim.n > 100:
        return claim
    changed = replace(claim, n=N, batch=claim.batch * N / claim.n, steps=min(claim.steps, STEPS))
    costs = [epsilon_of_history([c.release()], c.delta).upper for c in (claim, changed)]
    return replace(changed, epsilon=claim.epsilon * costs[1] / costs[0])


def audit(specimen: Specimen, *names: str, runs: int = 24, repeat: int = 0) -> AuditReport:
    """Audits a specimen by the checks called `names`, all if there are none, and returns the report.

    `runs` is about how many runs a check may use, and `repeat` selects the records.
    """
    claim = small(specimen.claimed())
    return check(
        specimen.make(),
        records(claim.n, repeat),
        claim,
        specimen.view,
        specimen.all_settings,
        variations=specimen.variations,
        checks=names,
        runs=runs,
    )


def require_found(specimen: Specimen, **how: int) -> None:
    """Requires that the check which must find the specimen's fault finds it, alone, and says how to mend it.

    `how` are options of `audit`.
    """
    report = audit(specimen, specimen.finds, **how)
    assert report.violations == [specimen.finds], report.text()
    assert report[specimen.finds].mend


def require_sound(specimen: Specimen, *names: str, **how: int) -> None:
    """Requires that none of the checks called `names` reports a violation; `how` are options of `audit`."""
    report = audit(specimen, *names, **how)
    assert report.violations == [], report.text()


def lab(specimen: Specimen = SOUND[0], view: View | None = None, **settings: Any) -> Lab:
    """Returns the experiments on a specimen's loop that checks use.

    `view` is what the attacker sees, by default as the specimen says, and `settings` are further settings of the loop.
    """
    claim, given = small(specimen.claimed()), {**specimen.all_settings, **settings}
    return Lab(LoopRuns(Loop(specimen.make(), records(claim.n), claim, view or specimen.view, given)), 24)
