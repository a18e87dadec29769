"""`check` makes every check of the audit on one training loop and returns the report.

The loop, a function of the user's (`audit.loop`), is called as it is, some thousand times, on small data. The more
settings it obeys, the more can be tested: by noise_multiplier the audit almost turns the noise off, by batch it puts
every record into every step, and by step_size it keeps the weights where they are.

A loop that does what it claims is reported as violated with probability at most `false_alarm` in all. That probability
is split evenly over the checks that are random (Bonferroni), and within each of them over its tests, which are exact
(`exact`). Checks without randomness compare numbers of runs up to rounding, at weights that do not change. What could
differ by chance is compared again in 20 runs on each of two data sets, which leaves a chance of at most 2 * 4^-20.
"""

import time
from collections.abc import Collection, Mapping
from typing import Any

from dpzero_theory import check as rules
from dpzero_theory.audit.checks import batches, leaks, noise, seeds, sensitivity
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import Loop, LoopFailed, Train, known_system
from dpzero_theory.audit.report import AuditReport, Check, Entry, untested
from dpzero_theory.audit.runs import LoopRuns
from dpzero_theory.registry import Registry

CHECKS: Registry[Check] = Registry("check")
"""Every check of an audit by its name, in the order of the report."""
for _check in (*seeds.CHECKS, *noise.CHECKS, *sensitivity.CHECKS, *batches.CHECKS, *leaks.CHECKS):
    CHECKS.register(_check)


def check(
    train: Train,
    records: Records,
    claim: Claim,
    view: View | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    variations: Mapping[str, Mapping[str, Any]] | None = None,
    checks: Collection[str] = (),
    runs: int = 200,
    false_alarm: float = 1e-6,
) -> AuditReport:
    """Audit a training loop and return the report.

    Args:
        train: the loop, a function (records, seed, settings) -> releases, the noised average or sum of each of T steps,
            shape (T,) or (T, k); or a mapping with "releases" and other outputs by name: "clean", the releases before
            noise, and "batches", each step's record numbers, which no attacker sees, and any that one sees. Its
            `settings` are a dictionary with all fields of the claim but `average`, such as "clip" (or the loop's name
            for it in `view.names`), and the settings below. The more changes of them it obeys, the more is tested.
        records: the claim's n records, an array with one record a row, or a list whose entries are numbers, arrays,
            tensors or tuples of these; 16 to 256 are enough.
        claim: what the loop's author says of its privacy.
        view: what an attacker sees of a run; if None, `View()`, by which the seed is public.
        settings: further settings that the loop is given in addition to the claim's numbers, by the loop's names for
            them; its step size must be among them if it has one.
        variations: further settings under which the claim must hold, by a name for the report, as in {"four
            micro-batches": {"micro_batches": 4}}. The size of the noise is tested with each of them.
        checks: the names of the checks to make, keys of `CHECKS` such as "noise-size"; all of them if empty.
        runs: about how many runs of the loop one check may use for its statistical tests, at least 24.
        false_alarm: the probability, in (0, 0.5), with which a sound loop may be reported as violating any check.

    Raises:
        ValueError: an argument outside its range, an unknown check, or a loop that does not run on the records given.
    """
    rules.integer("runs", runs, at_least=24)
    level = rules.real("false_alarm", false_alarm, above=0, below=0.5)
    wanted = [CHECKS[name] for name in checks] or [*CHECKS.values()]
    if not callable(train):
        raise ValueError(f"train must be callable; got {rules.shown(train)}")
    if not hasattr(records, "__len__") or len(records) != claim.n:
        count = len(records) if hasattr(records, "__len__") else rules.shown(records)
        raise ValueError(f"records must be the claim's n = {claim.n}; got {count}")
    started, entries = time.perf_counter(), []
    share = level / max(1, sum(entry.random for entry in wanted))
    with known_system() as entropy:
        loop = Loop(train, records, claim, view or View(), dict(settings or {}), entropy)
        try:
            lab = Lab(LoopRuns(loop), runs, variations)
        except LoopFailed as error:
            raise ValueError(f"train must run on the records given; got {error}") from error
        for one in wanted:
            begun, before = time.perf_counter(), loop.count
            try:
                verdict = one.look(lab, share)
            except LoopFailed as error:
                verdict = untested(f"the loop fails: {error}")
            entries.append(Entry(one, verdict, loop.count - before, time.perf_counter() - begun))
    return AuditReport(claim, loop.view, tuple(entries), loop.count, time.perf_counter() - started, level)
