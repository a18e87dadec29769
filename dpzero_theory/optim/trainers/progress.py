"""What a run may tell of itself while it goes: released numbers, step size, epsilon, and how long it will take.

run.run(Progress(run))
"""

import math
import sys
import time

from dpzero_theory.check import real
from dpzero_theory.optim.files.transcript import Record
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.run import Run


def described(plan: Plan, record: Record) -> dict[str, float]:
    """`step_size` alpha, and `released`: the root mean square of the K averages released, noise included.

    Nothing of the second where a release is a vector.
    """
    found = {"step_size": plan.step_size(record.release)}
    if record.sums:
        found["released"] = plan.unit * math.hypot(*map(float, record.sums)) / math.sqrt(len(record.sums))
    return found


class Progress:
    """A callback of `Run.run` that writes a line to standard error now and then, and one at the end.

    every: seconds >= 0 between lines. On rank 0 alone, if made there alone.
    """

    def __init__(self, run: Run, *, every: float = 5.0) -> None:
        self._run, self._every = run, real("every", every, at_least=0.0)
        self._begun = self._told = time.monotonic()
        self._made = 0

    def __call__(self, record: Record) -> None:
        self._made += 1
        now, left = time.monotonic(), self._run.releases_left
        if left and now < self._told + self._every:
            return
        self._told = now
        total = self._run.plan.steps
        told = described(self._run.plan, record).items()
        words = "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in told)
        seconds = (now - self._begun) / self._made * left
        print(f"release {total - left} of {total}  {words}  {_clock(seconds)} left", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
