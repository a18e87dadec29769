"""One question to the accountant: of noise, epsilon, delta, steps, batch and n five are given, and the sixth is sought.

Here are the searches for whole numbers: most steps, largest batch, fewest records. Each asks the accountant at some ten
numbers and ends with two neighbouring ones: at the answer the certified delta is at most the target, and at the next
number it is not. The least noise for a target is found by `calibration.calibrate_noise_multiplier`, and epsilon and
delta of a history by `accountant`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Unpack

from dpzero_theory import check
from dpzero_theory.bisection import outward
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier, crossing, settled
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.group import Group, group_delta, group_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Sampling, sampling_of
from dpzero_theory.privacy.step import MOST_STEPS, Kind, Step, Words, step_of

MOST_RECORDS = 10**15


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
        target_delta: 0 <= delta < 1, and 0 only for noise that needs no delta.
        noise_multiplier: s > 0, the parameter of the noise on a batch's sum, over the clip.
        group: the number of records in which neighbouring data sets may differ, 1 unless whole users are protected.
        n: the number of all records, or None if it is not known. It matters for groups and for samplings that are made
            for one n.
        words: sampling, relation, sample_rate, mechanism and coordinates, as of `step.Words`.

    Returns:
        A bracket of integers with value = lower, the safe end: `value` releases are certified to meet the target, and
        `upper + 1` are certified not to.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: one release does not meet the target, or 10^12 do.
    """

    unit = step_of(noise_multiplier, 1, **words)
    goal = _Goal(target_epsilon, target_delta, group, lambda count: replace(unit, steps=count), lambda _: n)
    bracket = goal.bracket(1, MOST_STEPS, _central_steps(unit, goal), rising=True)
    if bracket is None:
        goal.refuse(1, "one step")
    check.precondition(
        bracket.value < MOST_STEPS, f"steps must have a largest number; got a target that {MOST_STEPS} steps meet"
    )
    return bracket


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

    Args:
        target_epsilon: epsilon > 0.
        target_delta: 0 <= delta < 1, and 0 only for noise that needs no delta.
        noise_multiplier: s > 0, the parameter of the noise on a batch's sum, over the clip.
        steps: T >= 1.
        n: the number of all records, from 1 to 10^15.
        group: the number of records in which neighbouring data sets may differ, 1 unless whole users are protected.
        kind: sampling, relation, mechanism and coordinates, as of `step.Kind`.

    Returns:
        A bracket of integers with value = lower, the safe end: a batch of `value` records is certified to meet the
        target, and one of `upper + 1` is certified not to, unless `upper` is the largest possible batch. The answer is
        n if full batches meet the target.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: even a batch of one record does not meet the target.
    """
    records = check.integer("n", n, at_most=MOST_RECORDS)
    unit = step_of(noise_multiplier, steps, **kind, sample_rate=1 / records)
    drawn = unit.sampling
    goal = _Goal(
        target_epsilon,
        target_delta,
        group,
        lambda batch: replace(unit, sampling=drawn.at(batch / records)),
        lambda _: records,
    )
    most = min(math.floor(records * drawn.most_rate + 1e-9), records - _kept_out(unit, group))
    bracket = goal.bracket(1, max(most, 1), records * _central_rate(unit, goal), rising=True)
    if bracket is None:
        goal.refuse(1, "a batch of 1")
    return bracket


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
    """The smallest number n of records for which `steps` batches of `batch` records are (target_epsilon,
    target_delta)-DP.

    Args:
        target_epsilon: epsilon > 0.
        target_delta: 0 <= delta < 1, and 0 only for noise that needs no delta.
        noise_multiplier: s > 0, the parameter of the noise on a batch's sum, over the clip.
        steps: T >= 1.
        batch: the (expected) number of records in a batch.
        group: the number of records in which neighbouring data sets may differ, 1 unless whole users are protected.
        kind: sampling, relation, mechanism and coordinates, as of `step.Kind`.

    Returns:
        A bracket of integers with value = upper, the safe end: `value` records are certified to meet the target, and
        `lower - 1` are certified not to, or are fewer than a batch needs.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: 10^15 records do not meet the target.
    """
    size, drawn = check.integer("batch", batch, at_most=MOST_RECORDS), _drawn(kind)
    most = drawn.most_rate
    unit = step_of(noise_multiplier, steps, **kind, sample_rate=most / 2)
    goal = _Goal(target_epsilon, target_delta, group, lambda n: replace(unit, sampling=drawn.at(size / n)), lambda n: n)
    first = max(math.ceil(size / most - 1e-9), size + _kept_out(unit, group), goal.group)
    bracket = goal.bracket(first, MOST_RECORDS, size / _central_rate(unit, goal), rising=False)
    if bracket is None:
        goal.refuse(MOST_RECORDS, f"{MOST_RECORDS} records")
    return bracket


def _drawn(kind: Kind) -> Sampling:
    """The sampling that the keyword arguments `kind` name, at the placeholder rate 1e-15 if they give only a word."""
    word = kind["sampling"]
    return word if isinstance(word, Sampling) else sampling_of(word, 1 / MOST_RECORDS)


def _kept_out(unit: Step, group: int) -> int:
    """How many of all records a batch must leave out, so that it can keep its size if a group of records is removed
    from the data.

    It is 0 unless batches are refilled (`Sampling.refilled`). unit: one of the releases. group: the number of records
    in which neighbours may differ.
    """
    fixed = unit.sampling.refilled and unit.relation is Relation.ADD_REMOVE
    return check.integer("group", group) if fixed and group != 1 else 0


class _Goal:
    """A privacy target, and what the whole number that is sought means for the run.

    target_epsilon, target_delta, group: the target, and the number of records in which neighbours may differ. release:
    a function from the whole number that is sought (of steps, or of records) to the releases of the run. records: a
    function from it to the number n of records, or to None if n is not known.
    """

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        group: int,
        release: Callable[[int], Step],
        records: Callable[[int], int | None],
    ) -> None:
        self.epsilon = check.real("target_epsilon", target_epsilon, above=0)
        self.delta = check.real("target_delta", target_delta, at_least=0, below=1)
        self.group, self.release, self.records = check.integer("group", group), release, records
        self._found: dict[int, Bracket] = {}

    def excess(self, whole: float, *, least: bool = False) -> float:
        """A measure of how far the cost of a run with the number `whole` is from the target: at most 0 if it is met.

        The cost is the upper end of its bracket, or the lower end with `least`. The measure is log(delta over its
        target), or, for a target delta of 0, epsilon minus its target.
        """
        number = int(whole)
        if self.delta == 0:
            epsilon = group_epsilon([self.release(number)], 0.0, size=self.group, n=self.records(number))
            return (epsilon.lower if least else epsilon.upper) - self.epsilon
        if number not in self._found:
            self._found[number] = self._delta([self.release(number)], self.records(number))
        delta = self._found[number].lower if least else self._found[number].upper
        return math.log(delta / self.delta) if delta > 0 else -math.inf

    def _delta(self, history: list[Step], n: int | None) -> Bracket:
        """The bracket of delta of the history at the target epsilon. n: the number of records, or None.

        Where delta is more than twice its target, or less than half of it, only the side of the target on which it lies
        is certain.
        """
        return group_delta(history, self.epsilon, size=self.group, n=n)

    def _met(self, number: int, way: int, first: int, most: int) -> int | None:
        """The number nearest to `number` that meets the target by `Group.excess`, in the direction `way` (1 upwards, -1
        downwards).

        It is `number` itself or a few away: `Group.excess` also searches for epsilon, and this search has an error of
        its own. It is None if no such number is found from `first` to `most`.
        """

        def meets(number: int) -> bool:
            history, n = [self.release(number)], self.records(number)
            return Group(history, self.group, n).excess(self.epsilon, self.delta) <= 0

        none = most + 1 if way > 0 else first - 1
        found = outward(meets, number, way, most=none)[1]
        return None if found == none else found

    def refuse(self, number: int, rule: str) -> NoReturn:
        made, n = [self.release(number)], self.records(number)
        real = group_epsilon(made, self.delta, size=self.group, n=n).upper
        raise check.PreconditionError(f"{rule} must meet the target; got epsilon {real:.6g}, above {self.epsilon:g}")

    def bracket(self, first: int, most: int, guess: float, *, rising: bool) -> Bracket | None:
        """The bracket of the outermost whole number from `first` to `most` that meets the target; None if none does.

        guess: where the search begins. rising: whether the cost rises with the number, so that the largest is sought.
        """
        missed, met = crossing(self.excess, guess, least=first, most=most, rising=rising, whole=True)
        if met is None or (value := self._met(int(met), -1 if rising else 1, first, most)) is None:
            return None
        other: float | None = met
        if missed is not None and self.excess(int(missed), least=True) <= 0:
            ends = (missed, most) if rising else (first, missed)
            excess = partial(self.excess, least=True)
            other = crossing(excess, missed, least=ends[0], most=ends[1], rising=rising, whole=True)[1]
        return Bracket(min(value, int(other or met)), value, max(value, int(other or met)), "search")


def _central_steps(unit: Step, goal: _Goal) -> float:
    """A guess of how many releases like `unit` meet the goal, from mu^2 = T q^2 (e^(1/s^2) - 1), the central limit
    theorem.

    Here T is the number of releases, q the sample rate, s the noise over the sensitivity, and mu that of Gaussian DP at
    the target. For Laplace noise, and at delta = 0, it is about the number whose pure epsilons add up to the target.
    """
    if goal.delta == 0 or unit.mechanism == "laplace":
        return goal.epsilon * unit.noise / (unit.relation.sensitivity * unit.sampling.sample_rate)
    gdp = float(gdp_from_epsilon(goal.epsilon, goal.delta))
    loss = min((unit.relation.sensitivity / unit.noise) ** 2, 600.0)
    each = loss if unit.cost().closed else unit.sampling.sample_rate**2 * math.expm1(loss)
    return min(gdp * gdp / each / goal.group**2, MOST_STEPS)


def _central_rate(unit: Step, goal: _Goal) -> float:
    """A guess, between 1e-15 and 1, of the sample rate at which as many releases as `unit` has meet the goal."""
    rate = unit.sampling.sample_rate * math.sqrt(_central_steps(unit, goal) / unit.steps)
    return min(max(rate, 1 / MOST_RECORDS), 1.0)


def solved(sought: str, *, group: int = 1, **given: Any) -> Bracket:
    """The bracket of one of six numbers, from the other five; its `value` is the end that is safe for privacy.

    Args:
        sought: `epsilon`, `delta`, `noise_multiplier`, `steps`, `batch` or `n`.
        group: the number of records in which neighbours may differ, 1 unless whole users are protected.
        given: the other five of these numbers (n or batch may be None where they do not matter), and `sampling` and
            `relation`, as of `step.Kind`.

    Raises:
        ValueError: a number outside its range, or one for which there is no answer.
    """
    drawn: Kind = {"sampling": given["sampling"], "relation": given["relation"]}
    target: Any = {"target_epsilon": given.get("epsilon"), "target_delta": given.get("delta"), "group": group, **drawn}
    sizes: Any = (given.get(name) for name in ("n", "batch", "noise_multiplier", "steps"))
    n, batch, noise, steps = sizes
    rate = None if n is None or batch is None else batch / n
    match sought:
        case "noise_multiplier":
            return calibrate_noise_multiplier(**target, steps=steps, sample_rate=rate, n=n)
        case "steps":
            return most_steps(**target, noise_multiplier=noise, sample_rate=rate, n=n)
        case "batch":
            return largest_batch(**target, noise_multiplier=noise, steps=steps, n=n)
        case "n":
            return fewest_records(**target, noise_multiplier=noise, steps=steps, batch=batch)
    history = step_of(noise, steps, **drawn, sample_rate=rate)
    if sought == "epsilon":
        return group_epsilon(history, given["delta"], size=group, n=n)
    epsilon = given["epsilon"]

    def beyond(delta: float) -> float:
        return group_epsilon(history, delta, size=group, n=n).upper / epsilon - 1 if 0 < delta < 1 else 0.0

    bracket = group_delta(history, epsilon, size=group, n=n)
    # `group_epsilon` searches for itself: at this delta it answers at most `epsilon`.
    return settled(bracket, beyond) if epsilon > 0 else replace(bracket, value=bracket.upper)
