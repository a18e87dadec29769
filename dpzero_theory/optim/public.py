"""Measures on public records which smoothing, step size and micro-batch suit a private run, and how long it takes."""

import math
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES, Difference
from dpzero_theory.optim.engines.probe import rounding
from dpzero_theory.optim.files.transcript import Record
from dpzero_theory.optim.losses.evaluation import BatchSum, Evaluation, Losses
from dpzero_theory.optim.losses.isolation import rounded_by, visibility
from dpzero_theory.optim.losses.records import Collate, Data
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.run import watched
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.verdict import Descent
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.privacy.sampling import FullBatch

_CHOOSING, _READING, _PILOT = 60.0, 12.0, 8.0
"""The most seconds for choosing settings, for reading public records, and for one short run."""
_MOST, _FEW, _FEWEST_STEPS, _FEWEST_ROWS, _LEAST_ROWS = 256, 8, 30, 64, 16
"""The most public records that are read; how many of them choose the smoothing; the fewest steps of a short run, which
tries a step size on public records; the fewest records in it, if there are so many (it learns fewer by heart); and the
fewest if there is no time for three such runs."""
_WORST = 3.0  # The largest mean loss, in units of that at the start, after a short run whose step size may be chosen
_SURE = 3.0
"""A smoothing is large enough if the run need not warn even of this many times the rounding seen on public records."""
_COARSE = 0.1
"""The most by which halving a smoothing may change differences, as a share of their L2 norm. If rounding allows no such
smoothing, records are evaluated one by one, since a record's rounding then depends on no other record."""


class Falling(NamedTuple):
    """A step size as a function of the step's index: it falls linearly from `first` at step 0 to 0 at step `steps`."""

    first: float
    steps: int

    def __call__(self, step: int) -> float:
        return self.first * (1 - step / self.steps)

    def __repr__(self) -> str:
        return f"lambda step: {self.first:g} * (1 - step / {self.steps})"


def first_step_size(factor: float, steps: int, norm: float) -> float:
    """Return factor * sqrt(1000/steps) / norm^2, the step size of the first step in a run of `steps` steps. `factor` >
    0 is a number to be tuned, and `norm` the median L2 norm of a record's gradient."""
    return factor * math.sqrt(1000 / steps) / norm**2


class Public:
    """Settings and times of a private run, which are measured on public records when the object is made.

    Args:
        weights: the trainable weights of the module.
        records: the tuple (losses, data, collate): a function (module, batch) -> one loss for each record; the public
            records; and a function from a list of records to a batch (None: torch's default_collate).
        rule: the way to compute differences, an entry of `DIFFERENCES`.
        settings: a mapping with at least the settings smoothing, direction and directions_per_step of the run.
        began: the time at which the search for settings began, from `time.monotonic`.

    Attributes:
        count: the number of public records.
        smoothing: lambda, by how much the weights are shifted to measure how fast a loss changes; 0 for exact
            derivatives. Of the given value, a tenth and a hundredth of it, it is the first for which halving it changes
            these rates for 8 records by at most 1% in L2 norm, or else the one with the least change.
        norm: the median L2 norm of a record's gradient, in loss per length.
        micro_batch, at_once: how many records, and at how many of a step's shifted weights, one pass evaluates.
        once: how many seconds it takes to read a record, and to compute frozen layers' outputs that are kept.
        seconds: how many seconds the evaluation of one record at one shifted weight takes.
        gained: whether a short run of `factor` has lowered the loss of the public records on which it did not train.

    Raises ValueError for losses that are not finite, and PreconditionError if most of them do not change.
    """

    def __init__(
        self, weights: Weights, records: tuple[Losses, Data, Collate], rule: Difference, settings: Any, began: float
    ) -> None:
        self._weights, self._records, self._rule, self._began = weights, records, rule, began
        self._evaluation, self.count = Evaluation(*records), len(records[1])
        weights.guarded = False  # The start of the run refuses losses that read weights in unsupported ways
        rows, read = np.random.default_rng(0).permutation(self.count)[:_MOST], 0
        while read < len(rows) and (read < 2 * _FEW or time.monotonic() - began < _READING):
            self._say(f"read {read} of {len(rows)} public records")
            self._evaluation.batch(rows[read : read + _FEW])  # Also runs the frozen layers, whose outputs are kept
            read += _FEW
        self.gained = True
        self._rows, self.once = rows[:read], (time.monotonic() - began) / read
        start, width = time.monotonic(), settings["smoothing"] or 1e-2
        self._own = rule if rule.smoothing else DIFFERENCES["central"]
        self._changes: dict[float, float] = {}
        for tried in range(3):
            change = self._change(width / 10**tried)
            if change <= 0.01 or time.monotonic() - began > 1.5 * _READING:
                break
        self._width = width = min(self._changes, key=self._changes.__getitem__)
        self.seconds = (time.monotonic() - start) / (len(self._changes) * 10 * _FEW)
        some = self._rows[: max(_FEW, int(_PILOT / (9 * self.seconds)))]
        self._say("measuring gradients")
        differences, self._loss = self._slopes(width, some, 8)
        self.smoothing = width if rule.smoothing else 0.0
        self.norm = float(np.median(np.sqrt(np.mean(differences**2, axis=1))))
        variances = differences.var(axis=0, ddof=1) / len(differences)  # Of the means over the records, one a direction
        self._squared_mean = float(np.mean(differences.mean(axis=0) ** 2))
        self._squared_slope = max(self._squared_mean - float(np.mean(variances)), 0.0)
        flat = f"the losses of half of its records do not change at a smoothing of {width:g}"
        check.precondition(self.norm > 0, f"public_data must show a slope: {flat}")
        self._fit(settings)

    @property
    def said(self) -> str:
        """A text with the peak memory of this process so far, in GiB, of its GPU or, without a GPU, of the host."""
        return f"; peak memory so far {_peak():.1f} GiB"

    def _change(self, width: float) -> float:
        # Returns the relative change of a few records' differences when the smoothing `width` is halved; infinity if
        # the differences are 0
        one, half = (self._slopes(width / part, self._rows[:_FEW], 4)[0] for part in (1, 2))
        self._changes[width] = float(np.linalg.norm(one - half) / np.linalg.norm(half)) if half.any() else math.inf
        return self._changes[width]

    def _slopes(self, width: float, rows: Any, count: int) -> tuple[Array, float]:
        # Returns the differences of the public records with the indices `rows` along `count` directions, shape
        # (records, count), and the mean loss of these records over all shifted weights
        points = self._own.at(range(count), width)
        parts = [self._evaluation.batch(part) for part in np.array_split(rows, math.ceil(len(rows) / _FEW))]
        values = np.concatenate([self._evaluation.at(self._weights, points, part) for part in parts], axis=1)
        if not np.isfinite(values).all():
            raise ValueError(f"losses of public_data must be finite at a width of {width:g}; got others")
        return self._own.combine(values, width), float(values.mean())

    def smooth(self, plan: Plan) -> float | None:
        """Return a smoothing lambda for `plan`, in place of its own, so large that its run would not warn of rounding.
        Of such values tried so far, or else one new value, it is that whose halving changes the differences of 8 public
        records the least, in L2 norm. Returns None if the least change is above a tenth."""
        most = int(_PILOT / (20 * self.seconds))
        rows = self._rows[: max(_FEW, min(2 * self.micro_batch, most))]
        rounded = rounded_by(self._weights, *self._records, plan, rows, math.ceil(len(rows) / 2))
        least = plan.smoothing * visibility(_SURE * rounded, plan)
        if least > max(self._changes):
            self._change(short(1.07 * least, 2))  # Rounding to two digits may take away 5%
        found = {width: change for width, change in self._changes.items() if width >= least}
        best = min(found, key=found.__getitem__)
        return best if found[best] <= _COARSE else None

    def alone(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings for a run that evaluates records one by one: isolation="exact", micro_batch=1,
        points_at_once=self.at_once and smoothing=self.smoothing. Measures anew the attributes `seconds`, the time of
        one evaluation of a record, and, unless `settings` has points_at_once, `at_once`, how many shifted weights one
        pass evaluates. `settings` is a mapping with at least the run's direction and directions_per_step."""
        self._fit({**settings, "micro_batch": 1})
        return {"isolation": "exact", "micro_batch": 1, "points_at_once": self.at_once, "smoothing": self.smoothing}

    def _fit(self, settings: Mapping[str, Any]) -> None:
        points, weights = self._rule.at(range(settings["directions_per_step"]), self.smoothing), self._weights
        few, device = self._rows[:_FEW], weights.parameters[0].device
        batch = self._evaluation.batch(few)
        weights.directions = Directions(bytes(16), settings["direction"], settings.get("shape", ""))
        with _Largest() as largest:  # type: ignore[no-untyped-call]
            one = self._evaluation.at(weights, points[:2], batch)
        memory = torch.cuda.get_device_properties(device).total_memory >> 4 if device.type == "cuda" else 1 << 28
        fit = max(1, memory * len(few) // max(1, largest.bytes))
        self.micro_batch = settings.get("micro_batch", 1 << min(6, fit.bit_length() - 1))
        self.at_once = settings.get("points_at_once", min(len(points), max(1, fit // self.micro_batch)))
        if self.at_once > 1 and "points_at_once" not in settings:
            together = one + math.inf
            with suppress(Exception):  # Losses may raise any exception for several points in one pass
                together = self._evaluation.at(weights, points[:2], batch, 2)
            if not np.abs(together - one).max() <= rounding(float(torch.finfo(torch.float32).eps), one):
                self.at_once = 1
        some, start = self._rows[: self.micro_batch], time.monotonic()
        if self.seconds * len(some) * len(points) < _PILOT:
            self._evaluation.at(weights, points, self._evaluation.batch(some), self.at_once)
            self.seconds = (time.monotonic() - start) / (len(some) * len(points))

    def factor(self, guess: float, plan: Plan, plan_of: Callable[[int], Plan]) -> float | None:
        """Return the number f for which a short run on public records ends at the least loss.

        At step t of T a run has the step size f sqrt(1000/T) (1 - t/T)/norm^2, where norm is the median norm of a
        record's gradient. A short run has 30 to 300 steps, but at most as many as `plan`, the private run's, and the
        noise of plan_of(T), the plan with T steps for the same epsilon. Its loss is that of public records on which it
        does not train, infinite if it diverges or the mean loss more than triples. The first f is `guess`, the second
        what the first run's descent suggests. From the better one (the smaller if both diverge, or there is no time for
        the second) f goes up and down by factors of sqrt(10) while the loss falls. Returns None if there is no time for
        the first: no run begins that would end after a minute of choosing.
        """
        cost = self._rule.points(plan.directions_per_step) * self.seconds
        most = min(plan.steps, 10 * _FEWEST_STEPS)
        rows = self._rows[::2][: max(_FEWEST_ROWS, int(_PILOT / (cost * most)))]
        steps = min(most, max(_FEWEST_STEPS, int(_PILOT / (cost * len(rows)))))
        left = _CHOOSING - (time.monotonic() - self._began)
        if 3 * steps * cost * len(rows) > left:
            rows = rows[: max(_LEAST_ROWS, int(left / (3 * steps * cost)))]
        takes = steps * cost * len(rows)
        if takes > left:
            return None
        plan, before = plan_of(steps), self._weights.values()
        start = self._mean(self._losses(self._rows[1::2]))
        found: dict[int, tuple[float, float]] = {}

        def at(power: int) -> float:
            if power not in found and time.monotonic() - self._began + takes < _CHOOSING and abs(power) <= 6:
                self._say(f"short run {len(found) + 1} of at most 8")
                try:
                    found[power] = self._tried(plan, rows, first_step_size(guess * 10 ** (power / 2), steps, self.norm))
                finally:
                    self._weights.load_values(before)
            return found[power][0] if power in found else math.inf

        at(0)
        if not found:
            return None
        at(said := round(2 * math.log10(found[0][1])))
        best = min(found, key=lambda power: (at(power), power)) if said in found else min(said, 0)
        for way in (1, -1):
            while at(best + way) < at(best):
                best += way
        self.gained = min(loss for loss, _ in found.values()) < start
        return guess * 10 ** (best / 2)

    def gentle(self, guess: float, plan: Plan) -> float:
        """Return the f of the step sizes f sqrt(1000/T) (1 - t/T)/norm^2, t < T, that suits `plan`, without short runs.

        norm is the median norm of a record's gradient, and T the plan's number of steps. f is the largest of guess > 0,
        guess/sqrt(10), ..., guess/1000 for which the curvature of the mean loss L raises it, over all steps, by at most
        |L|/4 and by at most half of what the slopes lower it, or guess/1000. It is searched by bisection: a smaller f
        is taken to lose less. For at most three f, 16 public records are evaluated at the weights and 8 shifted ones.
        """
        batch = self._evaluation.batch(self._rows[:_LEAST_ROWS])
        released = math.hypot(plan.unit * plan.scale, math.sqrt(self._squared_mean))
        factors = [guess / 10 ** (power / 2) for power in range(7)]

        def suits(factor: float) -> bool:
            self._say("measuring curvature")
            # A sum over K random directions is sqrt(K) times as long as one, so alpha/K times it is alpha/sqrt(K)
            first = first_step_size(factor, plan.steps, self.norm)
            moved = first * released / math.sqrt(plan.directions_per_step)
            points = [(0, 0.0)] + [(number, side * moved) for number in range(4) for side in (1, -1)]
            means = self._evaluation.at(self._weights, points, batch).mean(axis=1)
            lost = float(means[1:].mean() - means[0]) * plan.steps / 3  # Sum of squares: T/3 times the first's
            gained = first * self._squared_slope * plan.steps / 2  # Sum of step sizes: T/2 times the first
            return lost <= min(abs(self._loss) / 4, gained / 2)

        return factors[bisect_left(factors[:-1], True, key=suits)]

    def _tried(self, plan: Plan, rows: Any, first: float) -> tuple[float, float]:
        # Makes a short run of the plan's steps on the public records with the numbers `rows` (an integer array), all in
        # each step, with the noise of the averages that `plan` releases and a step size that falls evenly from `first`
        # to 0. The caller puts the weights back. Returns a value to minimise, and a factor for `first` in the next try.
        # The value: the mean of l/(l + L), where l is the loss at the end of a record outside `rows` (every second one
        # that was read) and L the mean loss at the start. It is infinite if a loss is not finite, if their mean is
        # above 3 L (a run may be right more often and far too sure where it is wrong), or if the verdict is "diverges".
        # The factor: L over the descent (the first-order estimate of how far the loss fell), from 1/1000 to 1000, if
        # the verdict is "diverges" or "stands still" and the descent exceeds its error; otherwise 1. If L is not above
        # 0, as with rewards, the mean of l, with no regard to the verdict, and 1.
        release = plan.release.with_noise(plan.noise_multiplier * len(rows) / plan.expected_batch)
        falling = Falling(first, plan.steps)
        sizes = tuple(falling(step) for step in range(plan.steps))
        plan = replace(plan, n=len(rows), step=replace(release, sampling=FullBatch()), step_sizes=sizes)
        sums = BatchSum(plan, self._weights, self._evaluation, Ranks(), self.micro_batch, self.at_once)
        descent, noise = Descent(plan, self._loss if self._loss > 0 else 1.0), SeededNoise(0)
        for number in range(plan.steps):
            record = Record(number, tuple(plan.noisy(sums.total(number, rows), noise).tolist()))
            self._weights.move_(plan.moves(*record))
            descent.add(record)
        other, found = self._rows[1::2], descent.verdict
        word = found.word if self._loss > 0 else "learns"
        losses = self._losses(other)
        sound = np.isfinite(losses).all() and (self._loss <= 0 or losses.mean() <= _WORST * self._loss)
        loss = self._mean(losses) if sound and word != "diverges" else math.inf
        wrong = word in ("diverges", "stands still") and found.descent > found.error
        return loss, min(max(self._loss / found.descent, 1e-3), 1e3) if wrong else 1.0

    def _losses(self, rows: Any) -> Array:
        # The losses of the public records with the numbers `rows` at the present weights, shape (records,)
        batches = map(self._evaluation.batch, np.array_split(rows, math.ceil(len(rows) / self.micro_batch)))
        return np.concatenate([self._evaluation.at(self._weights, [(0, 0.0)], one)[0] for one in batches])

    def losses(self) -> Array:
        """Return the losses of the public records, of at most 256 of them, at the module's present weights."""
        found = self._losses(self._rows)
        self._weights.untrained.settle()
        return found

    def _mean(self, losses: Array) -> float:
        # Returns the mean of l/(l + L) over the losses l, where L is the mean loss before training; if L <= 0 the mean
        # of l. A short run memorises its few records and is too sure of others. That doubles the mean cross-entropy at
        # the best step size, but hardly changes how many answers are right, and l/(l + L) limits its effect.
        bounded = np.maximum(losses, 0.0)
        return float((bounded / (bounded + self._loss) if self._loss > 0 else losses).mean())

    def _say(self, what: str) -> None:
        if watched():
            bar = "#" * round(20 * min(1.0, (time.monotonic() - self._began) / _CHOOSING))
            print(f"\r[{bar:20}] choosing settings: {what:40}", end="", file=sys.stderr, flush=True)


# A context manager whose `bytes` is the size of the largest tensor that an operation in its block has returned. It says
# how many records can be evaluated at a time.
class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.bytes = max(
            self.bytes, *(leaf.nbytes for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)), 0
        )
        return result


def short(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")  # Rounds a setting: `auto` prints it in a program and uses the same value


def _peak() -> float:
    # The peak memory in GiB, of the GPU or without one of the process; 0 if unknown
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return 0.0
