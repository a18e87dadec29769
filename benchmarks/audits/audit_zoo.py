"""The conformance check on a zoo of training loops: every fault is found by the right check, and sound loops pass.

    python -m benchmarks.audit_zoo [--sound] [--quick] [--loops NAME ...] [--out DIR]

A row is one audit of one loop (`benchmarks.zoo.catalogue`) by all checks of `dpzero_theory.audit`: the verdict of each
check, its message, the number of runs, wall seconds, and processor seconds. Loops with a fault are audited three times.
With `--sound` the sound loops, with those of `benchmarks.zoo.invented`, are audited 20 times, each time with a
probability of at most 1e-6 of any false alarm. Repeats have other records, and other noise from the operating system.
The exit status is 1 where a fault is missed or a sound loop is reported. `--quick` audits each loop once.
"""

import time
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from pathlib import Path

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.zoo import catalogue, libraries
from benchmarks.zoo.catalogue import Specimen, records
from benchmarks.zoo.invented.catalogue import LOOPS as LOOPS_OF_OTHERS
from dpzero_theory.audit.conformance import check, every
from dpzero_theory.cli import Several

FAULTS, SOUND = RESULTS / "audit_zoo", RESULTS / "audit_zoo_sound"
FALSE_ALARM = 1e-6
_WORDS = {"held": "held", "violated": "VIOLATED", "could not be tested": "untested"}
INVENTED = tuple(replace(specimen, repeats=20) for _, specimen in LOOPS_OF_OTHERS.values() if not specimen.finds)
"""The sound loops that somebody wrote from the tutorial alone; they are audited at the audit's default settings."""
ZOO = (*catalogue.FAULTS, *libraries.FAULTS, *catalogue.SOUND, *libraries.SOUND, *INVENTED)
LOOPS = {specimen.name: specimen for specimen in ZOO}


def audit_row(specimen: Specimen, repeat: int = 0) -> dict[str, str | int | float]:
    """Audit one loop of the zoo by all checks, on the records of the given repeat. Returns the columns of its row: the
    verdict of each check, the message of the check that ought to find the loop's fault, and the costs."""
    claim, begun = specimen.claimed(), time.process_time()
    report = check(
        specimen.make(),
        records(claim.n, repeat),
        claim,
        specimen.view,
        specimen.all_settings,
        variations=specimen.variations,
        runs=specimen.runs,
        false_alarm=FALSE_ALARM,
    )
    said = report[specimen.finds].says if specimen.finds else "; ".join(report[name].says for name in report.violations)
    return {
        "finds": specimen.finds,
        "found": "yes" if (specimen.finds in report.violations if specimen.finds else report.violations) else "no",
        "said": said,
        "violated": " ".join(report.violations),
        **{entry.check.name: _WORDS[entry.verdict.status] for entry in report.entries},
        "runs": report.runs,
        "wall_s": round(report.seconds, 2),
        "cpu_s": round(time.process_time() - begun, 2),
    }


def _summary(folder: Path) -> int:
    """Print a line for each loop with how often its fault was found. Returns the number of loops for which this went
    wrong: a missed fault, or a sound loop that was reported."""
    table, failures = read_rows(folder), 0
    for name, rows in table.groupby("loop", sort=False):
        specimen, found = LOOPS[str(name)], int((rows["found"] == "yes").sum())
        good = found == (len(rows) if specimen.finds else 0)
        failures += not good
        what = f"by {specimen.finds}" if specimen.finds else "sound"
        print(
            f"{name!s:42} {what:25} found {found}/{len(rows)}  {rows['runs'].mean():6.0f} runs"
            f" {rows['cpu_s'].max():6.1f} s  {'ok' if good else 'FAILED'}"
        )
    return failures


def _loop(text: str) -> str:
    if text not in LOOPS:
        raise ArgumentTypeError(f"must be a loop of benchmarks.zoo; got {text[:40]!r}")
    return text


def _loops(options: Namespace) -> list[str]:
    return options.loops or [name for name in LOOPS if bool(LOOPS[name].finds) != options.sound]


EXPERIMENT = Experiment(
    name="audit_zoo",
    about=__doc__,
    flags=[
        flag("--sound", action="store_true", help="the sound loops"),
        flag("--quick", action="store_true", help="each loop once"),
        flag("--loops", nargs="+", action=Several, type=_loop, default=[], metavar="NAME"),
    ],
    folder=lambda options: SOUND if options.sound else FAULTS,
    key=("loop", "repeat"),
    fields=("finds", "found", "said", "violated", *(one.name for one in every()), "runs", "wall_s", "cpu_s"),
    settings={"false_alarm": FALSE_ALARM},
    figure="figures.audit",
    check=one_thread,
    cells=lambda options: (
        {"loop": name, "repeat": repeat}
        for name in _loops(options)
        for repeat in range(1 if options.quick else LOOPS[name].repeats)
    ),
    begun=lambda at: f"{at['loop']}, {at['repeat']}",
    measure=lambda options, at: audit_row(LOOPS[at["loop"]], at["repeat"]),
    report=lambda options: 1 if _summary(options.out) else 0,
)
