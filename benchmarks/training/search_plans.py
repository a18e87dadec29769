"""The plans of a search over settings that is paid for as a whole: the same noise for all settings."""

from collections.abc import Sequence
from typing import Any, TypedDict

from dpzero_theory import check
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.selection import Runs, calibrate_selection, selection_epsilon
from dpzero_theory.privacy.step import Release

_TRIES = 4
"""How often the plans are made at most, each time with more noise, until the search as a whole meets its target."""


class Setting(TypedDict, total=False):
    """One of the settings that a search compares: some of the arguments of `Plan.for_target` that do not change what a
    run costs. Those left out are common to all settings."""

    clip: float
    step_size: float
    smoothing: float
    direction: str


def plans_of_search(
    n: int, settings: Sequence[Setting], runs: Runs | None, target: Target
) -> tuple[tuple[Plan, ...], float]:
    """Return a plan for each setting, all with the same noise, and an upper bound on epsilon of the whole search.

    n: the number of private records. settings: those that are compared. runs: the law of the number of runs; None runs
    each setting once. target: the budget of the whole search, and the settings that all runs have. Raises ValueError
    for an argument outside its range, and PreconditionError where the budget cannot be met.
    """
    total, delta = target["target_epsilon"], target["target_delta"]
    first: Target = {**target, **settings[0]}
    known = Plan.for_target(n=n, **first)  # raises for settings of which no run can be made
    if known.noise != "gaussian":
        raise ValueError(f"noise must be gaussian in a search; got {known.noise!r}")
    times = 1 if runs is not None else len(settings)
    unit = known.settings.release(known.steps)
    drawn: dict[str, Any] = {
        "target_epsilon": total,
        "target_delta": delta,
        "steps": times * known.steps,
        "sampling": known.sampling,
        "relation": known.relation,
        "sample_rate": known.sample_rate,
        "coordinates": unit.coordinates,
    }
    if runs is None:
        noise = calibrate_noise_multiplier(**drawn, mechanism=unit.mechanism).value
    else:
        noise = calibrate_selection(runs, **drawn).value
    one = epsilon_of_history([unit.with_noise(noise)], delta).upper
    for _ in range(_TRIES):
        plans = []
        for setting in settings:
            arguments: Target = {**target, **setting, "target_epsilon": one}
            plans.append(Plan.for_target(n=n, **arguments))
        spent = max(_cost(plan.settings.release(times * plan.steps), delta, runs) for plan in plans)
        if spent <= total:
            break
        # Rounding to a lattice can leave the plans' noise a little too small for `total`. Then epsilon of one run is
        # lowered by twice the share that is missing, and the plans are made again.
        one *= (total / spent) ** 2
    check.precondition(
        spent <= total, f"target_epsilon must be met by the search; got {total!r}, which costs {spent!r}"
    )
    return tuple(plans), spent


def _cost(release: Release, delta: float, runs: Runs | None) -> float:
    history = [release]
    return (epsilon_of_history(history, delta) if runs is None else selection_epsilon(history, delta, runs)).upper
