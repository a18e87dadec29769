"""How released estimates of the gradient move the weights, and by which step sizes: post-processing, which costs no
privacy.

Step number t gives g_t, the mean over its K directions of (released average) u_k. Let alpha_t be the step size
(times a factor, for parameters of a group, `weights.groups`) and w the weight decay, decoupled as in AdamW. The weights
move by

    x_{t+1} = x_t - alpha_t (rule(g_0, ..., g_t) + w x_t)

where the rule is one of

    plain             g_t, as in the paper
    momentum:B        m_t = B m_{t-1} + g_t, m_{-1} = 0 (heavy ball, as torch.optim.SGD has it)
    adam:B1,B2        m_t/(1 - B1^(t+1)) / (sqrt(v_t/(1 - B2^(t+1))) + 1e-8) with m_t = B1 m_{t-1} + (1 - B1) g_t and
                      v_t = B2 v_{t-1} + (1 - B2) g_t^2 (Kingma and Ba 2015; in zeroth order MeZO, Malladi et al. 2023)

A rule is a function of released numbers alone. It is made of sums, products, quotients and square roots that are
rounded one by one, so that the transcript replays it bit for bit, on every processor. A further rule is a subclass and
one registration.

Step sizes along a run are alpha_t = step_size * factor(t, T) for releases t = 0..T-1.

    constant          1
    linear[:W]        falls linearly, (T - t)/(T - W) after W releases of warm-up
    cosine[:W]        falls as (1 + cos(pi (t - W)/(T - W)))/2 after W releases of warm-up

During the warm-up the factor rises linearly, (t + 1)/(W + 1); W >= 0 is 0 if left out. No schedule depends on the
records. A further one is one registration.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.registry import Registry

_LEAST = 1e-8
"""Added to the denominator of Adam, so that the quotient is finite; the constant of Kingma and Ba."""


class Update(ABC):
    """A rule by which released estimates of the gradient move the weights.

    Attributes:
        name: by which a `Plan` names the rule, with its parameters, such as momentum:0.9.
        kept: names of the numbers that the rule keeps beside each weight, which are 0 at first.
    """

    kept: tuple[str, ...] = ()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def direction(self, estimate: Tensor, kept: Sequence[Tensor], release: int) -> Tensor:
        """Return rule(g_0, ..., g_t) for t = `release`: the vector that, times -alpha, is added to the weights.

        Args:
            estimate: g_t, whose memory the result takes.
            kept: the numbers that the rule keeps beside the weights, in the order of their names; they are changed.
        """


class _Plain(Update):
    name = "plain"

    def direction(self, estimate: Tensor, kept: Sequence[Tensor], release: int) -> Tensor:
        return estimate


class _Momentum(Update):
    family = "momentum"
    kept = ("momentum",)

    def __init__(self, beta: float) -> None:
        self.beta = check.real("momentum", beta, at_least=0.0, below=1.0)

    @property
    def name(self) -> str:
        return f"{self.family}:{self.beta!r}"

    @classmethod
    def of(cls, text: str) -> "_Momentum":
        return cls(*_numbers(cls.family, text, 1))

    def direction(self, estimate: Tensor, kept: Sequence[Tensor], release: int) -> Tensor:
        return estimate.copy_(kept[0].mul_(self.beta).add_(estimate))


class _Adam(Update):
    family = "adam"
    kept = ("mean", "square")

    def __init__(self, first: float, second: float) -> None:
        self.first = check.real("adam's beta_1", first, at_least=0.0, below=1.0)
        self.second = check.real("adam's beta_2", second, at_least=0.0, below=1.0)

    @property
    def name(self) -> str:
        return f"{self.family}:{self.first!r},{self.second!r}"

    @classmethod
    def of(cls, text: str) -> "_Adam":
        return cls(*_numbers(cls.family, text, 2))

    def direction(self, estimate: Tensor, kept: Sequence[Tensor], release: int) -> Tensor:
        mean, square = kept
        mean.mul_(self.first).add_(estimate.mul(1 - self.first))
        square.mul_(self.second).add_(estimate.mul_(estimate).mul_(1 - self.second))
        size = _root(square.div(1 - _power(self.second, release + 1))).add_(_LEAST)
        return estimate.copy_(mean).div_(1 - _power(self.first, release + 1)).div_(size)


def _root(values: Tensor) -> Tensor:
    """Return the square roots, in the memory of `values`, each rounded once.

    On a processor torch takes them from a library whose last bit differs by processor, and often is wrong; numpy takes
    the processor's own instruction.
    """
    if values.device.type != "cpu":
        return values.sqrt_()
    held = values.numpy()
    np.sqrt(held, out=held)
    return values


@lru_cache(maxsize=8)
def _power(base: float, exponent: int) -> float:
    """Return base^exponent, rounded once from 40 digits: the last bit of the C library's power differs by processor."""
    with localcontext(Context(prec=40, Emin=MIN_EMIN, Emax=MAX_EMAX)):
        return float(Decimal(base) ** exponent)


def _numbers(family: str, text: str, count: int) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count or not all(map(math.isfinite, found)):
        form = ",".join("B" if count == 1 else f"B{index + 1}" for index in range(count))
        raise ValueError(f"update must be {family}:{form} with numbers in [0, 1); got {f'{family}:{text}'!r}")
    return found


UPDATES: Registry[Update] = Registry("update")
UPDATES.register(_Plain())
UPDATES.register_family(_Momentum.family, _Momentum.of)
UPDATES.register_family(_Adam.family, _Adam.of)

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
