"""Finds one of noise multiplier, epsilon, delta, steps, batch size and number of records from the other five."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from dpzero_theory import check
from dpzero_theory.privacy.accountant import Group, delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrated, settled
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.laws.law import crossing
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import MOST_STEPS, Step, step_of

_MOST_RECORDS = 10**15  # the largest number n of records that is tried; one over it is the least sample rate


def solved(sought: str, *, group: int = 1, **given: Any) -> Bracket:
    """Finds one of six numbers, `sought`, from the other five.

        solved("steps", epsilon=2, delta=1e-5, noise_multiplier=12.5, n=1024, batch=64,
               sampling="poisson", relation="add-remove")

    Args:
        sought: "epsilon", "delta", "noise_multiplier", "steps", "batch" or "n".
        group: the number of records in which neighbouring data sets may differ. Use 1, or the largest number of records
            of one user to protect users.
        given: the other five numbers, and keywords as in `step.Words`: `sampling` (a name such as "poisson"),
            `relation` (such as "add-remove"), and optionally `mechanism` (by default "gaussian") and `coordinates` (by
            default 1). `batch` is the (expected) number of records in a batch, and `n` the number of all records. With
            full batches both may be None.

    Returns:
        A `Bracket`; its `value` is the number to use. For "epsilon", "delta" and "noise_multiplier" it equals `upper`.
        For "steps" and "batch" it is the largest whole number with which the run is certainly (epsilon, delta)-DP, and
        with more than `upper` the run certainly is not. For "n" it is the smallest such number, and with fewer than
        `lower` records the run is not (epsilon, delta)-DP, or a batch does not fit. The largest batch is n if full
        batches meet the target.

    Raises:
        ValueError: a number is outside its range, or there is no answer.
        PreconditionError: no number of steps, batch or n meets the target, or 10^12 steps do.
    """
    names, group = ("epsilon", "delta", "noise_multiplier", "steps", "batch", "n"), check.integer("group", group)
    epsilon, delta, noise, steps, batch, n = (given.pop(name, None) for name in names)
    if sought in ("batch", "n"):
        n = n if sought == "n" else check.integer("n", n, at_most=_MOST_RECORDS)
        batch = batch if sought == "batch" else check.integer("batch", batch, at_most=_MOST_RECORDS)
    rate = 1 / _MOST_RECORDS if sought in ("batch", "n") else None if None in (n, batch) else batch / n
    some = {"noise_multiplier": (1e6, steps), "steps": (noise, 1)}
    unit = step_of(*some.get(sought, (noise, steps)), **given, sample_rate=rate)
    if sought == "noise_multiplier":
        return calibrated(unit, epsilon, delta, group, n)
    if sought == "epsilon":
        return epsilon_of_history(unit, delta, group=group, n=n)
    if sought == "delta":
        found = delta_of_history(unit, epsilon, group=group, n=n)

        def beyond(delta: float) -> float:
            if not 1e-30 <= delta < 1:  # no epsilon is certified there
                return 0.0
            return float(epsilon_of_history(unit, delta, group=group, n=n).upper / epsilon - 1)

        # The search of `epsilon_of_history` has an error of its own, so delta is raised until the certified epsilon at
        # this delta is at most `epsilon`.
        return settled(found, beyond) if epsilon > 0 else replace(found, value=found.upper)

    epsilon, delta = check.real("epsilon", epsilon, above=0), check.real("delta", delta, at_least=0, below=1)
    # Refilled batches keep their size when a group is removed only if enough other records are left.
    kept = group if group > 1 and unit.sampling.refilled and unit.relation is Relation.ADD_REMOVE else 0
    most_rate, about = unit.sampling.most_rate, _about_steps(unit, epsilon, delta, group)
    about_rate = min(unit.sampling.sample_rate * math.sqrt(about / unit.steps), 1.0)
    search = partial(_whole, epsilon=epsilon, delta=delta)
    if sought == "steps":
        found = search(lambda count: Group(replace(unit, steps=count), group, n), 1, MOST_STEPS, about, "one step")
        rule = f"steps must have a largest number; got a target that {MOST_STEPS} steps meet"
        check.precondition(found.value < MOST_STEPS, rule)
        return found

    def drawn(batch: int, n: int) -> Group:
        return Group(replace(unit, sampling=replace(unit.sampling, sample_rate=batch / n)), group, n)

    if sought == "batch":
        most = max(min(math.floor(n * most_rate + 1e-9), n - kept), 1)
        return search(lambda size: drawn(size, n), 1, most, n * about_rate, "a batch of 1")
    first = max(math.ceil(batch / most_rate - 1e-9), batch + kept, group)
    rule = f"{_MOST_RECORDS} records"
    return search(lambda n: drawn(batch, n), first, _MOST_RECORDS, batch / about_rate, rule, rising=False)


def _whole(
    asked: Callable[[int], Group], first: int, most: int, guess: float, cheapest: str, *,
    epsilon: float, delta: float, rising: bool = True,
) -> Bracket:  # fmt: skip
    # The bracket of the largest whole number with which a run meets the target if its cost rises with the number
    # (`rising`), else of the smallest one; `value` certainly meets it. `asked` returns the privacy of the run with a
    # number. If all numbers up to `most` meet the target (else: from `first` on), both ends are that number.
    deltas = cache(lambda number: asked(number).delta(epsilon))

    def missed_by(number: float, *, least: bool = False) -> float:
        # Above 0 if the run costs more than the target: its epsilon minus the target's if the target's delta is 0, else
        # the log of its delta over the target's. `least` takes the lower end of the cost, else the upper one counts.
        run = asked(int(number))
        found = run.epsilon(0.0) if delta == 0 else deltas(int(number))
        end = found.lower if least else found.upper
        if delta == 0:
            return end - epsilon
        gap = math.log(end / delta) if end > 0 else -math.inf
        # The search for epsilon has an error of its own, so the certified epsilon must meet the target too.
        return gap if least or gap > 0 or (more := run.excess(epsilon, delta)) <= 0 else more

    missed, met = crossing(missed_by, guess, least=first, most=most, rising=rising, whole=True)
    if met is None:
        real = asked(first if rising else most).epsilon(delta, ends="upper").upper
        raise check.PreconditionError(f"{cheapest} must meet the target; got epsilon {real:.6g}, above {epsilon:g}")
    other: float | None = met
    if missed is not None and missed_by(missed, least=True) <= 0:
        least, largest = (missed, most) if rising else (first, missed)
        at_least = partial(missed_by, least=True)
        other = crossing(at_least, missed, least=least, most=largest, rising=rising, whole=True)[1]
    value, end = int(met), int(other or met)
    return Bracket(min(value, end), value, max(value, end), "search")


def _about_steps(step: Step, epsilon: float, delta: float, group: int) -> float:
    # Searches begin at this number of steps, so its error affects no answer. By the central limit theorem it solves
    # mu^2 = T q^2 (e^(1/s^2) - 1) for T, with s the noise over the sensitivity. Where the target is met by pure
    # epsilons, so many of them add up to it.
    rate, change = step.sampling.sample_rate, step.relation.sensitivity / step.noise
    if delta == 0 or step.mechanism == "laplace":
        return epsilon / (change * rate)
    gdp, loss = float(gdp_from_epsilon(epsilon, delta)), min(change**2, 600.0)
    return gdp * gdp / (loss if step.cost().closed else rate**2 * math.expm1(loss)) / group**2
