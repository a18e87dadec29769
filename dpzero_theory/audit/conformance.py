"""`check` makes every check of the audit on one training loop and returns the report.

    from dpzero_theory.audit import Claim, View, check
    claim = Claim(epsilon=2, delta=1e-5, relation="add-remove", sampling="poisson", n=64, batch=16, steps=12,
                  noise_multiplier=2.3, clip=1.0)
    report = check(train, records, claim, View(seed="secret"), {"step_size": 0.1})
    print(report.text())

The loop (see `loop`) is called as it is, some thousand times, on small data. `records` must be the claim's n records,
of the kind that the loop takes; 16 to 256 are enough. `settings` are what the loop takes beside the claim's numbers.
The more of the following settings the loop obeys, the more can be tested: by noise_multiplier the audit almost turns
the noise off, by batch it puts every record into every step, and by step_size it keeps the weights where they are.

A loop that does what it claims is reported as violated with probability at most `false_alarm` in all. That probability
is split evenly over the checks that are random (Bonferroni), and within each of them over its tests. The tests of
batches and noise are exact (`exact`); the attack is valid whenever it stops (`sequential`). Checks without randomness
compare numbers of runs up to rounding, at weights that do not change. What could differ by chance is compared again in
20 runs on each of two data sets, which leaves a chance of 4^-20. Where a check holds, the report says what deviation it
would have noticed.
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
from dpzero_theory.audit.deadline import OutOfTime, now
from dpzero_theory.audit.finding import CHECKS, Check, Verdict, untested
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import Loop, LoopFailed, Train
from dpzero_theory.audit.randomness import generators_kept
from dpzero_theory.audit.report import AuditReport, Entry
from dpzero_theory.audit.runs import Changes
from dpzero_theory.audit.sources import known_entropy
from dpzero_theory.audit.weights import runs_of

_KNOWN = ("noise-fixed", "noise-from-seed", "noise-from-directions")  # Checks that find noise which anyone can compute
_NOISE = (*_KNOWN, "noise-size", "noise-law", "noise-independence")
_ALL = (*_NOISE, "un-noised", "sensitivity", "not-finite", "denominator", "batches", "batches-secret", "accounting")
"""Checks whose faults alone can violate others, in the order in which one is named as the cause of another."""

for _check in (
    Check(
        "noise-from-seed",
        "Can the noise be drawn again from a seed?",
        seeds.from_seed,
        core=True,
        random=False,
        follows=("noise-fixed",),
    ),
    Check(
        "noise-fixed",
        "Is the noise the same in every run, or a function of the clock?",
        seeds.from_nothing,
        random=False,
    ),
    Check(
        "noise-from-directions",
        "Is the noise in the stream of the published directions?",
        seeds.from_directions,
        follows=_KNOWN[:2],
    ),
    Check("noise-shown", "Is the noise shown, its seed, or its generator's state?", generators.shown),
    Check("noise-size", "Is the noise as large as claimed, everywhere?", noise.size, core=True, follows=_KNOWN),
    Check("noise-law", "Is the noise Gaussian?", noise.law, follows=(*_KNOWN, "noise-size")),
    Check("noise-independence", "Is every noise new?", noise.independence, follows=_KNOWN),
    Check("precision", "Does rounding lose the noise?", noise.precision, follows=_NOISE),
    Check("representable", "Do the last bits of a release give the sum away?", floats.representable),
    Check(
        "noise-repeated",
        "Do numbers of the noise come again?",
        floats.repeated,
        follows=(*_KNOWN, "noise-independence"),
    ),
    Check(
        "sensitivity",
        "Does one record move a step by no more than the clip?",
        sensitivity.moves,
        core=True,
        random=False,
    ),
    Check(
        "not-finite",
        "Is a record with NaN or infinity clipped like others?",
        sensitivity.finite,
        random=False,
        follows=("sensitivity", "denominator"),
    ),
    Check("denominator", "Is the denominator a constant?", sensitivity.denominator),
    Check("batches", "Are batches drawn as claimed?", batches.law, core=True),
    Check("batches-secret", "Can the batches be drawn again?", batches.secret, random=False, follows=("noise-fixed",)),
    Check(
        "accounting",
        "Does the claimed noise give the claimed epsilon?",
        accounting.accounting,
        core=True,
        random=False,
    ),
    Check("steps", "Are there as many releases as accounted, whatever the data?", accounting.steps),
    Check("un-noised", "Is anything shown that has no noise in it?", leaks.unnoised, core=True, random=False),
    Check("records-shown", "Are records in anything that is written?", leaks.canaries, random=False),
    Check(
        "unaccounted",
        "Is anything noised and shown that is not accounted?",
        unpaid.unaccounted,
        follows=(*_NOISE, "un-noised"),
    ),
    Check("attack", "Can runs on neighbouring data be told apart better than claimed?", attacks.attacked, follows=_ALL),
    Check("one-run", "Does one run betray many canaries?", attacks.in_one_run, follows=_ALL),
):
    CHECKS.register(_check)


_NO_TIME = untested("no time: the seconds for the loop's runs were over; give more of them, or a quicker loop")
"""The verdict of a check for which the time was over."""


def every() -> tuple[Check, ...]:
    """Returns all checks of the audit, in the order in which they are made and reported."""
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
    seconds: float | None = None,
) -> AuditReport:
    """Audit a training loop and return the report.

    Args:
        train: the loop, a function (records, seed, settings) -> outputs that the module `audit.loop` describes;
            `loop.command` makes one of a program.
        records: the data, in one of the forms that the module `audit.datasets` describes.
        claim: what the loop's author says of it.
        view: what an attacker sees; if None, `View()`, by which the seed is public.
        settings: what the loop is given beside the claim's numbers; `step_size` among them if it has one.
        variations: further settings under which the claim must hold, by a name for the report, as in {"four
            micro-batches": {"micro_batches": 4}}.
        checks: the names of the checks to make; all of them if empty.
        runs: about how many runs of the loop the statistic of one check may use, at least 24.
        false_alarm: the probability, in (0, 0.5), with which a sound loop may be reported as violating any check.
        progress: is called with the name of each check before it is made.
        seconds: the time for all runs of the loop, above 0; no limit if None. When it is over the run under way is
            interrupted, also if it hangs (in the main thread of a Unix process), and the remaining checks could not be
            tested for lack of time.

    Raises:
        ValueError: an argument outside its range, or a loop that does not run on the records given.
    """
    rules.integer("runs", runs, at_least=24)
    level = rules.real("false_alarm", false_alarm, above=0, below=0.5)
    limit = None if seconds is None else now() + rules.real("seconds", seconds, above=0)
    wanted = [CHECKS[name] for name in checks] or every()
    if not callable(train):
        raise ValueError(f"train must be callable; got {rules.shown(train)}")
    if not hasattr(records, "__len__") or len(records) != claim.n:
        raise ValueError(f"records must be the claim's n = {claim.n}; got {_count(records)}")
    loop = Loop(train, records, claim, view or View(), dict(settings or {}), deadline=limit)
    others = tuple((name, dict(changes)) for name, changes in (variations or {}).items())
    with known_entropy() as loop.entropy:
        return _report(loop, wanted, runs, others, level, progress)


def _report(
    loop: Loop,
    wanted: Sequence[Check],
    runs: int,
    variations: tuple[tuple[str, Changes], ...],
    level: float,
    progress: Callable[[str], None] | None,
) -> AuditReport:
    """Make the checks `wanted` of a training loop and return the report.

    `level` is the probability with which a sound loop may be reported as violating any check. The other arguments are
    those of `check`: about how many runs one check may use, further settings, and what is called before each check.
    """
    started = time.perf_counter()
    lab: Lab | None = None
    try:
        lab = Lab(runs_of(loop), runs, variations)
    except OutOfTime:
        pass
    except LoopFailed as error:
        raise ValueError(f"train must run on the records given; got {error}") from error
    share = level / max(1, sum(entry.random for entry in wanted))
    entries = []
    for one in wanted:
        if progress is not None:
            progress(one.name)
        begun, before = time.perf_counter(), loop.count
        verdict = _NO_TIME if lab is None else _look(one.look, lab, share)
        entries.append(Entry(one, verdict, loop.count - before, time.perf_counter() - begun))
    return AuditReport(loop.claim, loop.view, tuple(entries), loop.count, time.perf_counter() - started, level)


def _look(look: Callable[[Lab, float], Verdict], lab: Lab, level: float) -> Verdict:
    try:
        return look(lab, level)
    except LoopFailed as error:
        return untested(f"the loop fails: {error}")
    except OutOfTime:
        return _NO_TIME


def _count(records: object) -> str:
    return str(len(records)) if isinstance(records, Sequence) or hasattr(records, "__len__") else rules.shown(records)
