"""Audits of the zoo on little: 24 records, 6 steps."""

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
    """Faults of the zoo."""
    return [specimen for specimen in FAULTS if specimen.name in names]


def one_of_each(*names: str) -> list[Specimen]:
    """For each check the first fault that it must find."""
    return [next(specimen for specimen in FAULTS if specimen.finds == name) for name in names]


FEW = (SOUND[0], SOUND[3])
"""A first-order and a zeroth-order loop that are sound."""


def records(n: int = N, repeat: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Other ones in other repeats."""
    return catalogue.records(max(n, catalogue.N), repeat)[:n].copy()


@cache
def small(claim: Claim) -> Claim:
    """The same mechanism on fewer records and steps; what is claimed beside what it costs stays, large n too."""
    if claim.n > 100:
        return claim
    changed = replace(claim, n=N, batch=claim.batch * N / claim.n, steps=STEPS)
    costs = [epsilon_of_history([c.release()], c.delta).upper for c in (claim, changed)]
    return replace(changed, epsilon=claim.epsilon * costs[1] / costs[0])


def audit(specimen: Specimen, *names: str, runs: int = 24, repeat: int = 0) -> AuditReport:
    """By these checks."""
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
    """The check that is to find the fault does, and says how to mend it."""
    report = audit(specimen, specimen.finds, **how)
    assert report.violations == [specimen.finds], report.text()
    assert report[specimen.finds].mend


def require_sound(specimen: Specimen, *names: str, **how: int) -> None:
    """None of these checks reports anything."""
    report = audit(specimen, *names, **how)
    assert report.violations == [], report.text()


def lab(specimen: Specimen = SOUND[0], view: View | None = None, **settings: Any) -> Lab:
    """The experiments on a loop of the zoo."""
    claim, given = small(specimen.claimed()), {**specimen.all_settings, **settings}
    return Lab(LoopRuns(Loop(specimen.make(), records(claim.n), claim, view or specimen.view, given)), 24)
