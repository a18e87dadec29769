"""What would run on cards that are not here, in 10, 40 and 400 minutes.  python -m benchmarks.gpu.plans

A row for each card, time and job, in order: the estimate, when it begins, or why it is left out. As printed by
`python -m benchmarks.gpu --minutes M --dry-run --card NAME --data DIR --model DIR`. Nothing is measured, so the rows
are made anew each time; a test holds the committed ones to what the code says today.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.cards import known
from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.schedule import planned
from benchmarks.kit.rows import RESULTS, Results, discard
from dpzero_theory.cli import Parser, output_folder

__all__ = ["CARDS", "MINUTES", "main", "plans"]

CARDS = ("h200", "a100-40gb", "rtx-4090")
MINUTES = (10, 40, 400)
GIVEN = {"data": "DIR", "model": "DIR"}
KEY = ("card", "minutes", "place")
FIELDS = ("job", "estimate_s", "memory_gib", "start_s", "why_not")


def plans() -> Iterator[dict[str, Any]]:
    """The rows."""
    for card in CARDS:
        for minutes in MINUTES:
            entries = planned(JOBS, known()[card], 60.0 * minutes, GIVEN)
            for place, entry in enumerate(entries, start=1):
                row: dict[str, Any] = {"card": card, "minutes": minutes, "place": place, "job": entry.job.name}
                row |= {"estimate_s": round(entry.seconds, 1), "memory_gib": round(entry.job.memory_gib, 1)}
                yield row | ({"why_not": entry.why} if entry.why else {"start_s": round(entry.start, 1)})


def _parser() -> Parser:
    parser = Parser("benchmarks.gpu.plans", __doc__)
    parser.add_argument("--out", type=output_folder, default=RESULTS / "gpu_plans")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the rows."""
    parser = _parser()
    folder = Path(parser.parse_args(argv).out)
    discard(folder)
    with parser.opened("--out", Results(folder, key=KEY, fields=FIELDS, seeds=[], device="", dtype="")) as results:
        results.add(plans())
    return 0


if __name__ == "__main__":
    sys.exit(main())
