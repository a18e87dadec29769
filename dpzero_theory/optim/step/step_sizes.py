"""Step sizes along a run: alpha_t = step_size * factor(t, T) for releases t = 0..T-1.

    constant          1
    linear[:W]        falls linearly, (T - t)/(T - W) after W releases of warm-up
    cosine[:W]        falls as (1 + cos(pi (t - W)/(T - W)))/2 after W releases of warm-up

During the warm-up the factor rises linearly, (t + 1)/(W + 1); W >= 0 is 0 if left out. No schedule depends on the
records. A further one is one registration.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpzero_theory import check
from dpzero_theory.registry import Registry

MOST_STEPS = 10**9
"""The largest number of releases in a plan."""
MOST_STEP_SIZES = 10**7
"""The largest number of releases with step sizes of their own, each of which a plan keeps."""

StepSize = float | Callable[[int], float]
"""The step size alpha >= 0, or a function from a release's number, 0 to T - 1, to it."""
Factor = Callable[[float], float]
"""A function from s to the factor of the step size, where s in [0, 1) is the number of releases made since the warm-up,
divided by how many there are after it in all."""


@dataclass(frozen=True)
class Schedule:
    """A schedule of step sizes.

    Attributes:
        name: by which arguments name it.
        falling: its factor after the warm-up.
        warm_up: W >= 0, the number of releases during which the factor rises linearly.
    """

    name: str
    falling: Factor
    warm_up: int = 0

    def factor(self, release: int, steps: int) -> float:
        """Return the factor alpha_t divided by the step size, for the release t of T = `steps` in all, 0 <= t < T.

        Raises ValueError unless the warm-up is shorter than the run, W < T.
        """
        check.integer("warm-up", self.warm_up, at_least=0, at_most=steps - 1)
        if release < self.warm_up:
            return (release + 1) / (self.warm_up + 1)
        return self.falling((release - self.warm_up) / (steps - self.warm_up))


def _family(name: str, falling: Factor) -> Callable[[str], Schedule]:
    def member(text: str) -> Schedule:
        if text and not text.isdecimal():
            raise ValueError(
                f"schedule must be {name} or {name}:W with W releases of warm-up; got {f'{name}:{text}'!r}"
            )
        return Schedule(name, falling, int(text or 0))

    return member


SCHEDULES: Registry[Schedule] = Registry("schedule")
SCHEDULES.register(Schedule("constant", lambda share: 1.0))
for _name, _falling in (
    ("linear", lambda share: 1 - share),
    ("cosine", lambda share: (1 + math.cos(math.pi * share)) / 2),
):
    SCHEDULES.register_family(_name, _family(_name, _falling))


def step_sizes(step_size: StepSize, steps: int, schedule: str = "constant") -> tuple[float, ...]:
    """Return the step sizes of a plan: a single one where step_size is a number and the schedule is `constant`, else
    one for each of the T releases, in order.

    Args:
        step_size: alpha >= 0, or a function of the release's number 0..T-1, which needs the schedule `constant`.
        steps: T.
        schedule: how a step size that is a number changes along the run, a name of `SCHEDULES`.

    Raises:
        ValueError: an argument outside its range.
    """
    count, found = check.integer("steps", steps, at_most=MOST_STEPS), SCHEDULES[schedule]
    constant = found.name == "constant"
    if callable(step_size) and not constant:
        raise ValueError(f"schedule must be constant where step_size is a function; got {schedule!r}")
    if not callable(step_size):
        alpha = check.real("step_size", step_size, at_least=0)
        if constant:
            return (alpha,)
        return step_sizes(lambda release: alpha * found.factor(release, count), count)
    check.integer("steps", steps, at_most=MOST_STEP_SIZES)  # the plan stores a step size for each step
    return tuple(check.real("step_size", step_size(t), at_least=0) for t in range(count))
