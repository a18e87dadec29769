"""The whole numbers that meet a privacy target: most steps, largest batch, fewest records.

Noise is `calibration.calibrate_noise_multiplier`; epsilon and delta are `accountant`'s. Each search asks the
accountant at one number after another (some ten times) and ends with neighbours: at the answer the certified delta
is at most the target, one further it is not.
"""

import math
from collections.abc import Callable
from typing import NoReturn, Unpack

from dpzero_theory import check
from dpzero_theory.bisection import last_integer
from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.group import group_delta, group_epsilon, group_excess
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FixedSize, Sampling, sampling_of
from dpzero_theory.privacy.step import MOST_STEPS, Kind, Release, Words

MOST_RECORDS = 10**15
_LEAST_FLOAT = 5e-324
_FAR_OFF = 2.0
"""A delta above this many times the target, or below its share of it, is far from the target."""


def most_steps(
    *,
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    group: int = 1,
    n: int | None = None,
    **words: Unpack[Words],
) -> Bracket:
    """The largest number T of releases that is (target_epsilon, target_delta)-DP.

    Args:
        target_epsilon: epsilon > 0.
        target_delta: 0 <= delta < 1, 0 only for noise that needs no delta.
        noise_multiplier: s > 0, as of `Step`.
        group: the number of records in which neighbours differ (`group.group_delta`).
        n: the number of all records, if it is known.
        words: sampling, relation, sample_rate, mechanism and coordinates, as of `step.Words`.

    Returns:
        A bracket of integers with value = lower, the safe side: `value` releases are certified to meet the target, and
        `upper + 1` are certified not to.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: one release does not meet the target, or 10^12 do.
    """

    unit = Release(noise_multiplier, 1, **words)
    goal = _Goal(target_epsilon, target_delta, group, unit.with_steps, lambda _: n)
    found = goal.largest(1, MOST_STEPS, _central_steps(unit, goal))
    if found is None:
        goal.refuse(1, "one step")
    check.precondition(
        found.value < MOST_STEPS, f"steps must have a largest number; got a target that {MOST_STEPS} steps meet"
    )
    return found


def largest_batch(
    *,
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    steps: int,
    n: int,
    group: int = 1,
    **kind: Unpack[Kind],
) -> Bracket:
    """The largest (expected) batch of n records with which `steps` releases are (target_epsilon, target_delta)-DP.

    Arguments and errors are those of `most_steps`, with n from 1 to 10^15 and without a sample rate. It returns a
    bracket of integers with value = lower, the safe side; the answer is n if full batches meet the target.
    PreconditionError means that a batch of one record does not.
    """
    records = check.integer("n", n, at_most=MOST_RECORDS)
    unit = Release(noise_multiplier, steps, **kind, sample_rate=1 / records)
    drawn = unit.step.sampling
    goal = _Goal(
        target_epsilon, target_delta, group, lambda batch: unit.drawn_as(drawn.at(batch / records)), lambda _: records
    )
    most = min(math.floor(records * drawn.most_rate + 1e-9), records - _kept_out(unit, group))
    found = goal.largest(1, max(most, 1), records * _central_rate(unit, goal))
    if found is None:
        goal.refuse(1, "a batch of 1")
    return found


def fewest_records(
    *,
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    steps: int,
    batch: int,
    group: int = 1,
    **kind: Unpack[Kind],
) -> Bracket:
    """The smallest n of which `steps` batches of `batch` records are (target_epsilon, target_delta)-DP.

    Arguments and errors are those of `most_steps`, without a sample rate. It returns a bracket of integers with value =
    upper, the safe side: `value` records are certified to meet the target, and `lower - 1` are certified not to, or are
    fewer than a batch. PreconditionError means that 10^15 records do not meet the target.
    """
    size, drawn = check.integer("batch", batch, at_most=MOST_RECORDS), _drawn(kind)
    most = drawn.most_rate
    unit = Release(noise_multiplier, steps, **kind, sample_rate=most / 2)
    goal = _Goal(target_epsilon, target_delta, group, lambda n: unit.drawn_as(drawn.at(size / n)), lambda n: n)
    first = max(math.ceil(size / most - 1e-9), size + _kept_out(unit, group), goal.group)
    found = goal.smallest(first, MOST_RECORDS, size / _central_rate(unit, goal))
    if found is None:
        goal.refuse(MOST_RECORDS, f"{MOST_RECORDS} records")
    return found


def _drawn(kind: Kind) -> Sampling:
    """The sampling, at an arbitrary rate."""
    word = kind["sampling"]
    return word if isinstance(word, Sampling) else sampling_of(word, 1 / MOST_RECORDS)


def _kept_out(unit: Release, group: int) -> int:
    """The number of records that a fixed-size batch must leave out, so that a group of them can be missing."""
    fixed = isinstance(unit.step.sampling, FixedSize) and unit.relation is Relation.ADD_REMOVE
    return check.integer("group", group) if fixed and group != 1 else 0


class _Goal:
    """A target, and what a whole number that is sought stands for.

    release: the releases that the number stands for. records: n for that number, if it is known.
    """

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        group: int,
        release: Callable[[int], Release],
        records: Callable[[int], int | None],
    ) -> None:
        self.epsilon = check.real("target_epsilon", target_epsilon, above=0)
        self.delta = check.real("target_delta", target_delta, at_least=0, below=1)
        self.group, self.release, self.records = check.integer("group", group), release, records
        self._found: dict[int, Bracket] = {}

    def excess(self, number: int, *, least: bool = False) -> float:
        """A number that is at most 0 if the upper end (with `least`, the lower end) of what the number costs meets
        the target."""
        if self.delta == 0:
            epsilon = group_epsilon([self.release(number)], 0.0, size=self.group, n=self.records(number))
            return (epsilon.lower if least else epsilon.upper) - self.epsilon
        if number not in self._found:
            self._found[number] = self._delta([self.release(number)], self.records(number))
        found = self._found[number].lower if least else self._found[number].upper
        return math.log(found / self.delta) if found > 0 else -math.inf

    def _delta(self, history: list[Release], n: int | None) -> Bracket:
        """The bracket of delta. Where delta is more than twice the target, or less than half of it, only the side of
        the target on which it lies is certain."""
        if self.group == 1:
            found = delta_of_history(history, self.epsilon, near=self.delta)
            if found.upper < self.delta / _FAR_OFF or found.lower > self.delta * _FAR_OFF:
                return found
        return group_delta(history, self.epsilon, size=self.group, n=n)

    def _met(self, number: int, way: int, first: int, most: int) -> int | None:
        """The nearest number to `number`, in the direction `way`, that meets the target by `group_excess`; None if
        it lies outside first, ..., most.

        It is `number` itself, or a few away, since another search answers there.
        """
        step = way
        while first <= number <= most:
            history, n = [self.release(number)], self.records(number)
            if group_excess(history, self.epsilon, self.delta, size=self.group, n=n) <= 0:
                return number
            number, step = number + step, 2 * step
        return None

    def refuse(self, number: int, rule: str) -> NoReturn:
        made, n = [self.release(number)], self.records(number)
        real = group_epsilon(made, self.delta, size=self.group, n=n).upper
        raise check.PreconditionError(f"{rule} must meet the target; got epsilon {real:.6g}, above {self.epsilon:g}")

    def largest(self, first: int, most: int, guess: float) -> Bracket | None:
        """The bracket of the largest number from first to most that meets the target; None if `first` does not."""
        last = last_integer(self.excess, first, most, guess)
        if last is None or (value := self._met(last, -1, first, most)) is None:
            return None
        upper: int | None = last
        if last < most and self.excess(last + 1, least=True) <= 0:
            upper = last_integer(lambda number: self.excess(number, least=True), last + 1, most, last + 1)
        return Bracket(value, value, upper or last, "search")

    def smallest(self, first: int, most: int, guess: float) -> Bracket | None:
        """The bracket of the smallest number from first to most that meets the target; None if `most` does not."""

        def missed(number: int, *, least: bool = False) -> float:
            """A number below 0 if `number` does not meet the target, and above 0 if it does, if only just."""
            return -self.excess(number, least=least) or _LEAST_FLOAT

        beyond = last_integer(missed, first, most, guess)
        if beyond == most:
            return None
        lower = first if beyond is None else beyond + 1
        if (value := self._met(lower, 1, first, most)) is None:
            return None
        if beyond is not None and missed(beyond, least=True) > 0:
            below = last_integer(lambda number: missed(number, least=True), first, beyond, beyond)
            lower = first if below is None else below + 1
        return Bracket(lower, value, value, "search")


def _central_steps(unit: Release, goal: _Goal) -> float:
    """A guess of the number of such releases that meets the target, by the central limit: mu^2 = T q^2 (e^(1/s^2) -
    1)."""
    if goal.delta == 0 or unit.mechanism == "laplace":
        return goal.epsilon * unit.noise_multiplier / (unit.sensitivity * unit.sample_rate)
    gdp = float(gdp_from_epsilon(goal.epsilon, goal.delta))
    loss = min((unit.sensitivity / unit.noise_multiplier) ** 2, 600.0)
    each = loss if unit.part.plain else unit.sample_rate**2 * math.expm1(loss)
    return min(gdp * gdp / each / goal.group**2, MOST_STEPS)


def _central_rate(unit: Release, goal: _Goal) -> float:
    """A guess, at least 1e-15, of the sample rate at which the unit's number of releases meets the target."""
    rate = unit.sample_rate * math.sqrt(_central_steps(unit, goal) / unit.steps)
    return min(max(rate, 1 / MOST_RECORDS), 1.0)
