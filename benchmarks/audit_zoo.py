"""The conformance check on the zoo: every fault found by the right check, nothing found in sound loops.

    python -m benchmarks.audit_zoo [--sound] [--quick] [--loops NAME ...] [--out DIR]

A row is one audit of one loop (`benchmarks.zoo.catalogue`) by all checks of `dpzero_theory.audit`: the verdict of
each check, what it said, runs, seconds, and seconds of one processor. Loops with a fault are audited three times; with
`--sound` it is the sound ones, 20 times, each time with a probability of at most 1e-6 of any false alarm. Repeats have
other records, and other noise from the operating system. Exit status 1 where a fault is missed or a sound loop is
reported. `--quick` audits each loop once.
"""

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence

import torch

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.zoo import catalogue, libraries
from benchmarks.zoo.catalogue import Specimen, records
from dpzero_theory.audit.conformance import check, every
from dpzero_theory.cli import Parser, Several, output_folder

FAULTS, SOUND = RESULTS / "audit_zoo", RESULTS / "audit_zoo_sound"
FALSE_ALARM = 1e-6
_WORDS = {"held": "held", "violated": "VIOLATED", "could not be tested": "untested"}
ZOO = (*catalogue.FAULTS, *libraries.FAULTS, *catalogue.SOUND, *libraries.SOUND)
LOOPS = {specimen.name: specimen for specimen in ZOO}


def audit_row(specimen: Specimen, repeat: int = 0) -> dict[str, str | int | float]:
    """One audit: the verdict of each check by its name, the sentence of the check that is to find the fault."""
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


def _summary(folder: Results) -> int:
    """Print a line for each loop; the number of failures."""
    table, failures = read_rows(folder.folder), 0
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


def _parser() -> Parser:
    parser = Parser("benchmarks.audit_zoo", __doc__)
    parser.add_argument("--sound", action="store_true", help="the sound loops")
    parser.add_argument("--quick", action="store_true", help="each loop once")
    parser.add_argument("--loops", nargs="+", action=Several, type=_loop, default=[], metavar="NAME")
    parser.add_argument("--out", type=output_folder, help="benchmarks/results/audit_zoo, or audit_zoo_sound")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    names = [one.name for one in every()]
    loops = options.loops or [name for name in LOOPS if bool(LOOPS[name].finds) != options.sound]
    out = options.out or (SOUND if options.sound else FAULTS)
    results = Results(
        out,
        key=("loop", "repeat"),
        fields=("finds", "found", "said", "violated", *names, "runs", "wall_s", "cpu_s"),
        seeds=[],
        device="cpu",
        dtype="float64",
        settings={"false_alarm": FALSE_ALARM},
        figure="figures.audit",
    )
    with parser.opened("--out", results):
        for name in loops:
            for repeat in range(1 if options.quick else LOOPS[name].repeats):
                if not results.done(loop=name, repeat=repeat):
                    print(f"{name}, {repeat}: rows in {out}", file=sys.stderr, flush=True)
                    results.add([{"loop": name, "repeat": repeat, **audit_row(LOOPS[name], repeat)}])
    return 1 if _summary(results) else 0


if __name__ == "__main__":
    sys.exit(main())
