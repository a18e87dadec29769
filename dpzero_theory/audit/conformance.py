"""Does a training loop do what it claims? Every check on one loop, and the report of it.

    from dpzero_theory.audit import Claim, View, check
    claim = Claim(epsilon=2, delta=1e-5, relation="add-remove", sampling="poisson", n=64, batch=16, steps=12,
                  noise_multiplier=2.3, clip=1.0)
    report = check(train, records, claim, View(seed="secret"), {"step_size": 0.1})
    print(report.text())

The loop (`loop`) is called as it is, some thousand times, on small data: `records` are to have the kind and number that
the claim says (n of them; 16 to 256 are enough), and `settings` what else it takes. The more of these it heeds the more
can be looked at: noise_multiplier (quiet runs), batch (all records in each step), step_size (weights that stay).

False alarms: a loop that does as claimed is reported as violated with probability at most `false_alarm` in all, split
evenly over the checks that are random (Bonferroni), and within each over its tests; those on batches and noise are
exact (`exact`), the attack is valid whenever it stops (`sequential`). Checks without randomness compare numbers, to
rounding, of runs whose weights stay, or hardly matter where they move; what may agree by chance they see again in 20
runs on each of two data sets (4^-20). What a check could have seen stands beside what it held.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dpzero_theory import check as rules
from dpzero_theory.audit.checks import (
    accounting,
    attacks,
    batches,
    floats,
    generators,
    leaks,
    noise,
    seeds,
    sensitivity,
    unpaid,
)
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.finding import CHECKS, Check, Verdict, untested
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import Loop, LoopFailed, Train, generators_kept
from dpzero_theory.audit.report import Entry, Report
from dpzero_theory.audit.weights import runs_of

for _family in (seeds, generators, noise, floats, sensitivity, batches, accounting, leaks, unpaid, attacks):
    for _check in _family.FAMILY:
        CHECKS.register(_check)


def every() -> tuple[Check, ...]:
    """All checks, in the order of the report."""
    return tuple(CHECKS.values())


@generators_kept()
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
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Audit a loop.

    Args:
        train: the loop, see `audit.loop`; `loop.command` makes one of a program.
        records: the data, see `audit.datasets`.
        claim: what its author says.
        view: what is not secret.
        settings: handed to the loop beside the claim's numbers; `step_size` among them if it has one.
        variations: settings under which the claim must hold as well, by a name for the report, as in
            {"four micro-batches": {"micro_batches": 4}}.
        checks: names of those to make; all if empty.
        runs: about how many runs the statistics may take, at least 24.
        false_alarm: probability that a sound loop is reported, in (0, 0.5).
        progress: told the name of each check before it is made.

    Raises:
        ValueError: an argument outside its range, or a loop that does not run on the records given.
    """
    rules.integer("runs", runs, at_least=24)
    level = rules.real("false_alarm", false_alarm, above=0, below=0.5)
    wanted = [CHECKS[name] for name in checks] or every()
    if not callable(train):
        raise ValueError(f"train must be callable; got {rules.shown(train)}")
    if not hasattr(records, "__len__") or len(records) != claim.n:
        raise ValueError(f"records must be the claim's n = {claim.n}; got {_count(records)}")
    started = time.perf_counter()
    loop = Loop(train, records, claim, view or View(), dict(settings or {}))
    try:
        others = tuple((name, dict(changes)) for name, changes in (variations or {}).items())
        lab = Lab(runs_of(loop), runs, others)
    except LoopFailed as error:
        raise ValueError(f"train must run on the records given; got {error}") from error
    share = level / max(1, sum(entry.random for entry in wanted))
    entries = []
    for one in wanted:
        if progress is not None:
            progress(one.name)
        begun, before = time.perf_counter(), loop.count
        verdict = _look(one.look, lab, share)
        entries.append(Entry(one, verdict, loop.count - before, time.perf_counter() - begun))
    return Report(claim, loop.view, tuple(entries), loop.count, time.perf_counter() - started, level)


def _look(look: Callable[[Lab, float], Verdict], lab: Lab, level: float) -> Verdict:
    try:
        return look(lab, level)
    except LoopFailed as error:
        return untested(f"the loop fails: {error}")


def _count(records: object) -> str:
    return str(len(records)) if isinstance(records, Sequence) or hasattr(records, "__len__") else rules.shown(records)
