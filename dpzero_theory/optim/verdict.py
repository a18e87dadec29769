"""Estimates, from what a run has released, whether it learns, stands still or diverges.

A step moves the weights by -alpha z u along a direction u, where alpha is the step size and z the released average
along u: the true derivative of the mean loss along u plus noise of variance s^2. To first order in alpha, the step
lowers the mean loss by alpha times the square of the true derivative. An unbiased estimate of this is alpha (z^2 -
s^2); with K directions it is the mean over them. The sum over the steps is the run's *descent*. If it is far less than
the loss before training, the weights hardly move. A loss cannot fall by much more than its value. So a descent far
above the loss before training, or one that does not slow down in the second half of the run, means too long steps.

Everything here is public: the released numbers, the plan, and a guess of the loss before training that must not come
from the private records.
"""

import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpzero_theory.check import real
from dpzero_theory.optim.files.transcript import Record
from dpzero_theory.optim.plan import Plan

LOSS_AT_START = 2.0
"""The assumed mean loss before training if no guess is given, in nats, a cross-entropy of some seven equal classes."""
_STILL, _SOON, _LATE, _HALF, _MOST = 0.03, 2.0, 5.0, 0.5, 15.0
"""Limits for a run's descent, a first-order estimate of how far its steps lower the mean loss, in units of the loss at
the start. Below the first the run stands still. Before its end a run diverges above a limit that rises evenly, over the
steps, from the second number to the third, since a run that learns may gain and lose in turn at the loss that it has
reached. At its end it has diverged if the second half of the steps has a descent above the fourth, as steps that are
not too long have slowed down by then, or all steps have one above the fifth (`benchmarks/results/llm_verdicts`)."""
_CHANCE = 1e-6
"""The chance, over all but the last step of a run that does not diverge, that noise makes its verdict "diverges"."""


class Verdict(NamedTuple):
    """What the released numbers of a run say about its training.

    Attributes:
        word: "learns", "stands still", "diverges", or "hidden" if the noise hides which of these is true.
        descent: the estimated decrease of the mean loss, to first order in the step size, in the unit of the loss.
        error: two standard deviations of this estimate.
        remedy: what to change, in words; "" if the run learns.
    """

    word: str
    descent: float
    error: float
    remedy: str

    def __str__(self) -> str:
        found = f"{self.word}: to first order the steps lower the mean loss by {self.descent:.3g} +- {self.error:.2g}"
        return f"{found}; {self.remedy}" if self.remedy else found


class Descent:
    """Sums up a run's *descent*: how far its steps lower the mean loss to first order in the step size, estimated from
    the noisy sums they release. No loss falls by much more than its value, so a large descent means too long steps. The
    property `verdict` says what the descent means, and has its value and error, in the unit of the loss.

    Args:
        plan: the plan of the run.
        loss_at_start: about what the mean loss is before training, above 0: a public guess, such as the logarithm of
            the number of classes. A run "stands still" if its descent is below 3% of the guess. Before the last step it
            "diverges" if its descent is above a multiple of the guess that rises linearly, over the steps, from 2 to 5.
            After the last step it "diverges" if the descent of all steps is above 15 times, or that of the second half
            above 0.5 times the guess. Each limit has a margin for the noise.
        records: the steps already made, with their noisy sums.
    """

    def __init__(self, plan: Plan, loss_at_start: float = LOSS_AT_START, records: Iterable[Record] = ()) -> None:
        self._plan = plan
        self._start = real("loss_at_start", loss_at_start, above=0)
        self._made, self._warned = 0, False
        self._sum = self._variance = self._noise_variance = self._peak = 0.0
        self._half = (0.0, 0.0)  # The estimate and its variance after half of the steps
        noise = plan.unit * plan.scale
        laplace = plan.law is not None and plan.law.noise == "laplace"
        self._second = noise**2 * (2 if laplace else 1)  # The variance of the noise on a released average
        self._fourth = noise**4 * (20 if laplace else 2)  # The variance of the square of this noise
        # The s^2 in `_chance`: for Gaussian noise its variance. For Laplace noise of scale b, whose square has no
        # exponential moment, b^2 log(draws/_CHANCE)^2: no square in the run is larger, but for the probability _CHANCE
        draws = plan.steps * plan.directions_per_step
        self._tail = noise**2 * (math.log(draws / _CHANCE) ** 2 if laplace else 1)
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add a step, given by its `Record` of noisy sums: its estimate of how far it lowers the mean loss enters the
        descent, and the variance of this estimate the descent's error."""
        squares = (np.array(record.sums, dtype=np.float64) * self._plan.unit) ** 2
        alpha, excess = self._plan.step_size(record.release), squares - self._second
        self._made += 1
        self._sum += alpha * float(excess.mean())
        # For a number h and noise e, the variance of (h + e)^2 is that of e^2 plus 4 h^2 times that of e
        spread = self._fourth + 4 * excess * self._second
        self._variance += (alpha / len(squares)) ** 2 * float(spread.sum())
        self._noise_variance += alpha**2 / len(squares) * self._fourth
        self._peak = max(self._peak, alpha / len(squares) * self._tail)
        if self._made == self._plan.steps // 2:
            self._half = (self._sum, self._variance)

    def watch(self, record: Record) -> None:
        """Add what one step has released. Warn, once and with a remedy, as soon as the run diverges."""
        self.add(record)
        if not self._warned and self._made < self._plan.steps and (found := self.verdict).word == "diverges":
            self._warned = True
            warnings.warn(f"after {self._made} of {self._plan.steps} steps the run {found}", stacklevel=3)

    def _overshoots(self) -> bool:
        if self._made == self._plan.steps:  # At the end: less three standard deviations of the noise
            fell, variance = self._half
            late = self._sum - fell - 3 * _deviation(self._variance - variance)
            return late > _HALF * self._start or self._sum - 3 * _deviation(self._variance) > _MOST * self._start
        limit = (_SOON + (_LATE - _SOON) * self._made / self._plan.steps) * self._start
        return self._sum > limit + self._chance(limit)

    def _chance(self, descent: float) -> float:
        # How far noise lifts the sum of the steps' estimates above the true `descent` at most, but for the probability
        # `_CHANCE`, of which each step has an equal share. Let h be a true difference along one of a step's K
        # directions, e Gaussian noise of variance s^2, alpha the step size, and a = alpha s^2/K. For t < 1/(2 a), log E
        # exp(t (alpha/K) ((h + e)^2 - s^2)) is at most t (alpha/K) h^2 + t^2 (a^2 + 2 a (alpha/K) h^2)/(1 - 2 a t). So
        # the sum is sub-gamma, with Bernstein's tail. For Laplace noise the s^2 in a bounds all squares (`_tail`).
        share = math.log(self._plan.steps / _CHANCE)
        spread = self._noise_variance / 2 + 2 * self._peak * descent
        return 2 * math.sqrt(spread * share) + 2 * self._peak * share

    def __str__(self) -> str:
        return str(self.verdict)

    @property
    def verdict(self) -> Verdict:
        """Whether the run learns, stands still or diverges after the steps so far, or that noise hides this."""
        if not self._made:
            return Verdict("hidden", 0.0, 0.0, "no step has been made")
        found, error, start = self._sum, 2 * _deviation(self._variance), self._start
        if self._overshoots():
            rule = f"too far for a loss of about {start:g}: divide step_size by about {_short(max(found / start, 2))}"
            return Verdict("diverges", found, error, rule)
        if found + error < _STILL * start:
            more = "raise step_size"
            if found > error:  # The descent is a first-order estimate, which holds for small steps
                more = f"multiply step_size by about {_short(min(start / found, 10))}"
            return Verdict("stands still", found, error, f"{more}, or make more steps")
        if found < error:
            rule = "take a smaller clip, larger batches, fewer weights or more epsilon"
            return Verdict("hidden", found, error, rule)
        return Verdict("learns", found, error, "")


def _deviation(variance: float) -> float:
    return math.sqrt(max(variance, 0.0))  # An unbiased estimate of a variance can be negative


def _short(factor: float) -> str:
    return f"{float(f'{factor:.1g}'):g}"
