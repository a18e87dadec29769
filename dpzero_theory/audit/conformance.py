"""`check` audits one training loop: it makes every check, and returns the report.

The loop is called some thousand times on small data, with changed settings: noise_multiplier to make the noise almost
vanish, batch to put every record into every batch, and step_size to keep the weights where they are. What depends on a
setting that the loop ignores cannot be tested.
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
"""All checks of an audit by name, in the order of the report."""
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
    """Audit a training loop: test by many runs whether it does what it claims, and return the report.

    Args:
        train: the loop, a function (records, seed, settings) -> releases: the noised average or sum of each of T steps,
            shape (T,) or (T, k). Or it returns a mapping with "releases" and other outputs by name. Two of these are
            for the audit alone, and no attacker sees them: "clean", the releases before noise, and "batches", the
            indices of each step's records. `settings` is a dictionary with all fields of `claim` except `average`,
            under the loop's names for them (`view.names`), and with the entries of the argument `settings`.
        records: the claim's n records, as an array with one record in each row, or as a list of numbers, arrays,
            tensors or tuples of these; n from 16 to 256 is enough.
        claim: what the loop's author claims about its privacy.
        view: what an attacker sees of a run; if None, `View()`, in which the loop's seed is public.
        settings: settings that the loop is given in addition to those of the claim, by its own names. Its step size
            must be among them if it has one.
        variations: further settings under which the claim must hold, by a name for the report, such as {"four
            micro-batches": {"micro_batches": 4}}. The size of the noise is tested with each of them.
        checks: the names of the checks to make, from `CHECKS`, such as "noise-size"; all of them if empty.
        runs: about how many runs of the loop a statistical test may use, at least 24.
        false_alarm: an upper bound, in (0, 0.5), on the probability that any check reports a violation for a loop that
            does what it claims.

    Raises:
        ValueError: an argument is outside its range, a check is unknown, or the loop does not run on the given records.
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
    # The probability of a false alarm is split evenly over the random checks (Bonferroni). The other checks compare
    # numbers up to rounding; what could differ by chance is confirmed by 20 runs on each of two data sets.
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
