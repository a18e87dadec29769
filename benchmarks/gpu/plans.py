"""What would run on cards that are not here, in 10, 40 and 400 minutes.  python -m benchmarks.gpu.plans

There is a row for each card (GPU), time and job, in the order in which jobs run: the estimated seconds, and when the
job begins or why it is left out. `python -m benchmarks.gpu --minutes M --dry-run --card NAME --data DIR --model DIR`
prints the same. Nothing is measured, so the rows are made anew each time; a test compares the committed rows with what
the code says today.
"""

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.cards import known
from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.planning import planned
from benchmarks.kit.experiment import Experiment

CARDS = ("h200", "a100-40gb", "rtx-4090")
MINUTES = (10, 40, 400)
GIVEN = {"data": "DIR", "model": "DIR"}


def plans() -> Iterator[dict[str, Any]]:
    """Yield the rows of all plans: one for each card in CARDS, time in MINUTES, and job."""
    for card in CARDS:
        for minutes in MINUTES:
            entries = planned(JOBS, known()[card], 60.0 * minutes, GIVEN)
            for place, entry in enumerate(entries, start=1):
                row: dict[str, Any] = {"card": card, "minutes": minutes, "place": place, "job": entry.job.name}
                row |= {"estimate_s": round(entry.seconds, 1), "memory_gib": round(entry.job.memory_gib, 1)}
                yield row | ({"why_not": entry.why} if entry.why else {"start_s": round(entry.start, 1)})


EXPERIMENT = Experiment(
    name="gpu.plans",
    about=__doc__,
    key=("card", "minutes", "place"),
    fields=("job", "estimate_s", "memory_gib", "start_s", "why_not"),
    measure=lambda options, cell: plans(),
    folder="gpu_plans",
    device="",
    dtype="",
    fresh=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
