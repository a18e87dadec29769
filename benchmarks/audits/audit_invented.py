"""The conformance check on loops that were written from the tutorial alone by someone who had not seen the checks.

    python -m benchmarks.audit_invented [--loops NAME ...] [--out DIR]

A row is one loop of `benchmarks.zoo.invented`: its fault, the check that ought to find it, other checks that rightly
may, what the audit reported at the first try (the checks were frozen before the loops were read, and the audit was
mended only later), and what the audit reports now. A loop is judged by the checks that are violated: "yes" if one of
those that may find its fault is among them, "wrong reason" if only others are, "no" if none is. For a sound loop "yes"
means that nothing is violated.
"""

import csv
import inspect
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, paragraphs
from benchmarks.zoo import invented
from benchmarks.zoo.catalogue import Specimen, records
from benchmarks.zoo.invented.catalogue import FAMILIES, LOOPS
from dpzero_theory.audit.conformance import check
from dpzero_theory.cli import Several

FOLDER = RESULTS / "audit_invented"
FALSE_ALARM = 1e-6

MENDED = {
    "allocation_by_permutation": "batches under random allocation are tested",
    "bucketed_by_length": "unequal overlaps of fixed-size batches are tested",
    "empty_batch_without_noise": "empty batches are looked at",
    "norm_without_root": "records just above the clip are tried",
    "published_seeds_tell_the_secret": "a secret seed in an output is found",
    "secret_seed_printed": "a secret seed in a print is found",
    "prints_bad_records": "records with NaN are tried where logs are compared",
    "exits_on_nan_loss": "a record with NaN that ends a run is reported",
    "svrg_anchor_without_noise": "not mended: found where releases are returned, not by a trajectory",
    "prints_throughput": "clocks tick regularly, so that rates per second tell the sizes of batches",
    "delta_above_one_over_n": "not mended: a warning only",
}
"""What was changed in the audit for each loop whose fault was not found at the first try."""


@cache
def first_try() -> dict[str, list[str]]:
    """Return the checks that each loop violated when the frozen audit (commit ef8b0fb1) saw it for the first time, at
    the default settings of `check`, on records drawn from a generator with the seed 11. A first try cannot be made
    again. Where the audit itself failed, none are named; the file's last column has the error."""
    with Path(invented.__file__).with_name("first_try.csv").open(newline="") as file:
        return {row["loop"]: row["violated"].split() for row in csv.DictReader(file)}


def judged(specimen: Specimen, violated: Collection[str]) -> str:
    """Return "yes", "no" or "wrong reason": whether an audit that found the checks `violated` is right about the loop.

    For a sound loop it is "yes" if none is violated, else "no". For a loop with a fault it is "yes" if one of the
    checks that may find it is violated (`finds` and `also` of the specimen), "wrong reason" if only others are, and
    "no" if none is."""
    if not specimen.finds or not violated:
        return "yes" if bool(specimen.finds) == bool(violated) else "no"
    return "wrong reason" if {specimen.finds, *specimen.also}.isdisjoint(violated) else "yes"


def row(name: str) -> dict[str, Any]:
    """Audit one loop by all checks and return its row."""
    family, specimen = LOOPS[name]
    claim, begun = specimen.claimed(), time.process_time()
    loop = specimen.make()
    report = check(
        loop,
        records(claim.n),
        claim,
        specimen.view,
        specimen.all_settings,
        runs=specimen.runs,
        false_alarm=FALSE_ALARM,
    )
    before = first_try()[name]
    fault = (inspect.getdoc(loop) or "").partition("\n\n")[0]
    return {
        "sound": "no" if specimen.finds else "yes",
        "family": family,
        "fault": " ".join(fault.split()) if specimen.finds else "",
        "finds": specimen.finds,
        "also": " ".join(specimen.also),
        "first_try_violated": " ".join(before),
        "first_try_right": judged(specimen, before),
        "violated_now": " ".join(report.violations),
        "found_now": judged(specimen, report.violations),
        "runs": report.runs,
        "cpu_s": round(time.process_time() - begun, 2),
    }


def table() -> str:
    """Return a table by family of how many faults the first try found, and the loops that it judged wrongly."""
    seen = {name: judged(specimen, first_try()[name]) for name, (_, specimen) in LOOPS.items()}
    rows = read_rows(FOLDER).set_index("loop")
    now = dict(rows["found_now"].items())
    seconds = rows.loc[[name for name in now if str(name).startswith("torch_")], "cpu_s"]
    lines = []
    for family, specimens in FAMILIES.items():
        names = [specimen.name for specimen in specimens]
        again = f"{sum(now[name] == 'yes' for name in names)} of {len(names)}"
        counts = [str(sum(seen[name] == answer for name in names)) for answer in ("yes", "wrong reason", "no")]
        lines.append(
            [family if family != "sound" else "sound (nothing may be reported)", str(len(names)), *counts, again]
        )
    faults = [name for name, (_, specimen) in LOOPS.items() if specimen.finds]
    found = sum(seen[name] == "yes" for name in faults)
    alarms = [f"`{name}`" for name in seen if name not in faults and seen[name] != "yes"]
    missed = [[f"`{name}`", seen[name], MENDED[name]] for name in faults if seen[name] != "yes"]
    return "\n\n".join(
        [
            paragraphs(
                f"""At the first try the right check found {found} of {len(faults)} faults. Of {len(seen) - len(faults)}
                sound loops {len(alarms)} was reported wrongly ({", ".join(alarms)})."""
            ),
            markdown(["family", "loops", "right at first try", "for another reason", "not right", "right now"], lines),
            markdown(["not found at first try", "found", "since then"], missed),
            paragraphs(
                f"""At the default settings an audit of the {len(seconds)} loops in torch among them takes
                {seconds.median():.0f} s of one core in the median, and at most {seconds.max():.0f} s."""
            ),
        ]
    )


def _loop(text: str) -> str:
    if text not in LOOPS:
        raise ArgumentTypeError(f"must be a loop of benchmarks.zoo.invented; got {text[:40]!r}")
    return text


def _report(options: Namespace) -> None:
    print(read_rows(options.out)[["loop", "finds", "first_try_right", "found_now", "violated_now"]].to_string())


EXPERIMENT = Experiment(
    name="audit_invented",
    about=__doc__,
    flags=[flag("--loops", nargs="+", action=Several, type=_loop, default=[], metavar="NAME", help="only these loops")],
    key=("loop",),
    fields=(
        "sound",
        "family",
        "fault",
        "finds",
        "also",
        "first_try_violated",
        "first_try_right",
        "violated_now",
        "found_now",
        "runs",
        "cpu_s",
    ),
    settings={"false_alarm": FALSE_ALARM},
    check=one_thread,
    cells=lambda options: ({"loop": name} for name in options.loops or LOOPS),
    begun=lambda at: at["loop"],
    measure=lambda options, at: row(at["loop"]),
    report=_report,
)
