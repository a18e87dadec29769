"""What may be shown of a run while it goes: released numbers, step sizes, and the time that is left.

run.run(Progress(run))
"""

import math
import sys
import time
from datetime import timedelta

from dpzero_theory.check import real
from dpzero_theory.optim.files.transcript import Record
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.run import Run


def described(plan: Plan, record: Record) -> dict[str, float]:
    """Return the numbers of a release that may be shown, by name.

    Args:
        plan: the plan of the run.
        record: the release.

    Returns:
        `step_size`; and unless the release is a vector `released`, the root mean square of the K released averages,
        noise included.
    """
    found = {"step_size": plan.step_size(record.release)}
    if record.sums:
        found["released"] = plan.unit * math.hypot(*map(float, record.sums)) / math.sqrt(len(record.sums))
    return found


class Progress:
    """A callback of `Run.run` that writes a line to standard error from time to time, and at the end.

    Args:
        run: the run.
        every: how many seconds there are at least between two lines, a number >= 0.
    """

    def __init__(self, run: Run, *, every: float = 5.0) -> None:
        self._run, self._every = run, real("every", every, at_least=0.0)
        self._begun = self._told = time.monotonic()
        self._made = 0

    def __call__(self, record: Record) -> None:
        self._made += 1
        now, left, total = time.monotonic(), self._run.releases_left, self._run.plan.steps
        if left and now < self._told + self._every:
            return
        self._told = now
        told = described(self._run.plan, record).items()
        words = "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in told)
        until = timedelta(seconds=round((now - self._begun) / self._made * left))
        print(f"release {total - left} of {total}  {words}  {until} left", file=sys.stderr, flush=True)
