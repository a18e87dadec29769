"""The audit of a zoo of training loops: what it finds of faulty ones, and whether it reports sound ones.

    python -m benchmarks audit_zoo [--sound] [--quick] [--loops NAME ...] [--out DIR]

A row is one audit of one loop (`benchmarks.zoo.table`) by all checks: the verdict of each check, the message of those
that are violated, the number of runs, wall seconds, and processor seconds. A fault is found if one of the checks is
violated that are about it, of which a loop names at least one. Loops with a fault are audited once, and with `--sound`
the sound loops five times, on other records and with other noise from the operating system each time, and with a
probability of at most 1e-6 of any false alarm. The exit status is 1 where a sound loop is reported. `--quick` audits
each loop once.
"""

import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import pandas as pd

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, paragraphs
from benchmarks.zoo.table import FAULTS, LOOPS, SOUND, Loop, records
from dpzero_theory.audit.conformance import CHECKS, check
from dpzero_theory.cli import Several

FALSE_ALARM, REPEATS = 1e-6, 5
_WORDS = {"held": "held", "violated": "VIOLATED", "could not be tested": "untested"}


def audit_row(loop: Loop, repeat: int = 0) -> dict[str, str | int | float]:
    """Audit one loop by all checks, on the records of the given repeat, and return the columns of its row."""
    claim, begun = loop.claimed, time.process_time()
    report = check(
        loop.train(),
        records(claim.n, repeat),
        claim,
        loop.viewed,
        loop.given,
        variations=loop.variations,
        runs=loop.runs,
        false_alarm=FALSE_ALARM,
    )
    return {
        "finds": loop.finds[0] if loop.finds else "",
        "found": "yes" if set(report.violations) & (set(loop.finds) or set(report.violations)) else "no",
        "said": "; ".join(report[name].says for name in report.violations),
        "violated": " ".join(report.violations),
        **{entry.check.name: _WORDS[entry.verdict.status] for entry in report.entries},
        "runs": report.runs,
        "wall_s": round(report.seconds, 2),
        "cpu_s": round(time.process_time() - begun, 2),
    }


def _summary(folder: Path) -> int:
    """Print faulty loops that were not found and sound ones that were reported, and return how many were reported."""
    table = read_rows(folder)
    faulty = table["finds"].notna()
    missed, reported = table[faulty & (table["found"] != "yes")], table[~faulty & (table["found"] == "yes")]
    for row in pd.concat([missed, reported]).to_dict("records"):
        print(f"{row['loop']}, {row['repeat']}: {row['finds']}, violated: {row['violated']} ({row['said']})")
    print(f"{faulty.sum() - len(missed)} of {faulty.sum()} audits of faults found them; {len(reported)} of", end=" ")
    print(f"{(~faulty).sum()} audits of sound loops reported anything; {table['cpu_s'].sum():.0f} s of one processor")
    return len(reported)


def first_try() -> str:
    """Return a table by family of how many faults of the invented loops the first try found, and the audits since.

    The rows are of `audit_invented`: loops that somebody wrote from the tutorial alone, who had not seen the checks.
    """
    rows = read_rows(RESULTS / "audit_invented")
    columns = ("first_try_right", "found_now")
    lines = [
        [
            "sound (nothing may be reported)" if family == "sound" else str(family),
            str(len(part)),
            *(str((part[column] == "yes").sum()) for column in columns),
        ]
        for family, part in rows.groupby("family", sort=False)
    ]
    faults = rows[rows["sound"] == "no"]
    kept = faults[faults["first_try_right"] == "yes"]
    lost = kept[kept["found_now"] != "yes"]
    heads = ["family", "loops", "right at first try", f"by the {len(CHECKS)} checks of today"]
    return "\n\n".join(
        [
            markdown(heads, lines),
            paragraphs(
                f"""Of {len(faults)} faults the right check found {len(kept)} at the first try. Today's checks find
                {len(kept) - len(lost)} of these {len(kept)}, and {(faults["found_now"] == "yes").sum()} of all."""
            ),
        ]
    )


def _loop(text: str) -> str:
    if text not in LOOPS:
        raise ArgumentTypeError(f"must be a loop of benchmarks/zoo/loops.toml; got {text[:40]!r}")
    return text


def _repeats(options: Namespace, name: str) -> int:
    return 1 if options.quick or name in FAULTS else REPEATS


EXPERIMENT = Experiment(
    name="audit_zoo",
    about=__doc__,
    flags=[
        flag("--sound", action="store_true", help="the sound loops"),
        flag("--quick", action="store_true", help="each loop once"),
        flag("--loops", nargs="+", action=Several, type=_loop, default=[], metavar="NAME"),
    ],
    folder=lambda options: RESULTS / ("audit_zoo_sound" if options.sound else "audit_zoo"),
    key=("loop", "repeat"),
    fields=("finds", "found", "said", "violated", *CHECKS, "runs", "wall_s", "cpu_s"),
    settings={"false_alarm": FALSE_ALARM},
    check=one_thread,
    cells=lambda options: (
        {"loop": name, "repeat": repeat}
        for name in options.loops or (SOUND if options.sound else FAULTS)
        for repeat in range(_repeats(options, name))
    ),
    measure=lambda options, at: audit_row(LOOPS[at["loop"]], at["repeat"]),
    report=lambda options: 1 if _summary(options.out) else 0,
)
