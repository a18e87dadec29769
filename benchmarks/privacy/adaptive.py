"""Steps chosen as one goes (`privacy.filter.Filter`): what the freedom costs, and adversaries that use it.

    python -m benchmarks.adaptive --preset cost        beside plans that are fixed beforehand
    python -m benchmarks.adaptive --preset policies    1,000 random policies, each simulated
    python -m benchmarks.adaptive --preset sharper     the best policy on each of 1,000 menus, against sharper filters

In a plan all steps are known beforehand. Where each step may be chosen after the earlier ones were seen, the budget has
room for fewer steps of the same noise, or for as many steps with more noise. `cost` finds both numbers for settings of
the field.

A policy chooses the noise of each next step, and when to stop, from the privacy loss so far, which is more than an
attacker can see. Its steps are full batches, whose losses are normal, and it spends until the filter has no room. The
mean of (1 - e^(epsilon - L))_+ over many runs, with L the loss when it stops, is the delta that the policy attains.

`sharper` is about `WorstFilter` and `GaussianFilter`. A menu has a few steps that the filter allows; the best policy
chooses among them by the loss so far, and stops when that is best. It is found by value iteration over the loss and the
steps that the budget has left. What it attains is given as a share of delta, beside what a plan of
the first step of the menu alone attains by the same computation, exactly 1 but for its error.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from benchmarks.kit.experiment import Cell, flag, numbered, presets
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from dpzero_theory.bisection import largest_integer, smallest_real
from dpzero_theory.check import Array
from dpzero_theory.cli import integer, output_folder
from dpzero_theory.privacy.accountant import upper_epsilon
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.filter import Filter, GaussianFilter, WorstFilter
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.sampling import FullBatch, Poisson
from dpzero_theory.privacy.step import Step

SEED = 20_261_125
SETTINGS = (
    # each setting is: number of records n, mean batch size, steps T, epsilon, delta
    (60_000, 256, 14_000, 3.0, 1e-5),
    (50_000, 4096, 1_000, 8.0, 1e-5),
    (1_000_000, 10_000, 5_000, 1.0, 1e-8),
    (1024, 64, 10_000, 2.0, 1e-5),
    (10_000, 10_000, 5_120, 2.0, 1e-6),
)
NAMES = ("n", "batch", "steps", "epsilon", "delta")
POLICIES, RUNS = 1000, 4000
EPSILON, DELTA = 1.0, 0.05
ERRORS = 6.0
"""A policy exceeds the budget if the delta that it attains is above `DELTA` by more than this many standard errors."""
_MOST_STEPS, _LEVELS = 40, 8


def settings(options: Namespace) -> Iterator[Cell]:
    """Yield the settings of `cost`."""
    for number, setting in enumerate(SETTINGS, start=1):
        yield {"setting": number, **dict(zip(NAMES, setting, strict=True))}


def cost(cell: Cell) -> dict[str, Any]:
    """Return the row of the setting `cell`: the noise multiplier of a plan that is fixed beforehand; that with which a
    filter has room for as many steps, at most a share 1e-4 above the least such and at most twice the plan's; and how
    many steps with the plan's noise the filter has room for."""
    n, batch, steps, epsilon, delta = (cell[name] for name in NAMES)
    sampling = FullBatch() if batch == n else Poisson(batch / n)
    target = {"target_epsilon": epsilon, "target_delta": delta, "steps": steps}
    planned = calibrate_noise_multiplier(**target, sampling=sampling, relation="add-remove").upper

    def fits(noise: float, count: int) -> bool:
        step = Step(noise, sampling, "add-remove")
        return Filter(epsilon, delta, planned=step).has_room(step * count)

    chosen = smallest_real(lambda noise: fits(noise, steps), planned, 2 * planned, 1e-4)
    room = largest_integer(lambda count: fits(planned, count), 1, steps)
    return cell | {"planned_noise": planned, "filter_noise": chosen, "filter_steps": room, "status": "ok"}


def policies(options: Namespace) -> Iterator[Cell]:
    """Yield the numbers of the policies."""
    for number in range(1, POLICIES + 1):
        yield {"setting": number}


@cache
def _budget() -> Filter:
    return Filter(EPSILON, DELTA, planned=Step(2.0, FullBatch(), "add-remove"))


def policy(cell: Cell) -> dict[str, Any]:
    """Return the row of the random policy with the number cell["setting"]: the delta that it attains in `RUNS` runs,
    the standard error, and whether delta exceeds DELTA by more than ERRORS standard errors.

    The squared mu of the next step is a random function of the loss so far, constant on each of `_LEVELS` ranges of it,
    and at most what is left. The policy stops where the loss exceeds a random number.
    """
    rng = np.random.default_rng((SEED, cell["setting"]))
    [t], [limit] = _budget().orders, _budget().limits
    each = t * (t + 1) / 2
    ends = np.sort(rng.uniform(-1.0, 2.0 * EPSILON, _LEVELS - 1))
    wanted = np.exp(rng.uniform(math.log(limit / each / 60), math.log(limit / each), _LEVELS))
    enough = EPSILON * rng.uniform(0.5, 3.0)
    loss, left, on = np.zeros(RUNS), np.full(RUNS, limit), np.ones(RUNS, dtype=bool)
    for _ in range(_MOST_STEPS):
        on &= (loss < enough) & (left > 1e-12)
        square = np.where(on, np.minimum(wanted[np.searchsorted(ends, loss)], left / each), 0.0)
        left -= each * square
        loss += square / 2 + np.sqrt(square) * rng.standard_normal(RUNS)
    gain = np.maximum(-np.expm1(np.minimum(EPSILON - loss, 0.0)), 0.0)
    error = float(gain.std() / math.sqrt(RUNS))
    attained = float(gain.mean())
    return cell | {"attained": attained, "error": error, "exceeds": attained - ERRORS * error > DELTA, "status": "ok"}


def menus(options: Namespace) -> Iterator[Cell]:
    """Yield the numbers of the menus."""
    for number in range(1, POLICIES + 1):
        yield {"setting": number}


def after(losses: Array, value: Array, step: Step) -> Array:
    """Return the mean of a function of the loss after one more step, for each loss before it, where the record is
    there: by a sum over the noise, and cubic interpolation in the loss. value: the function at `losses`."""
    q, s = step.sampling.sample_rate, step.noise
    noise = np.linspace(-8.5, 8.5, 201)
    weight = np.exp(-(noise**2) / 2)
    weight, found, spline = weight / weight.sum(), np.zeros(len(losses)), Akima1DInterpolator(losses, value)
    for share, mean in ((1 - q, 0.0), (q, 1.0)):
        if share:
            x = mean + s * noise
            loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * s * s)))
            found += share * (spline(np.clip(losses[:, None] + loss, losses[0], losses[-1])) @ weight)
    return found


def chosen(cell: Cell) -> dict[str, Any]:
    """Return the row of the menu with the number cell["setting"]: the filter, the budget, the steps and what the best
    policy attains."""
    rng = np.random.default_rng((SEED + 1, cell["setting"]))
    delta = float(10 ** rng.uniform(-5, -1.5))
    budget: GaussianFilter | WorstFilter
    if cell["setting"] % 2:
        epsilon, most = float(rng.uniform(0.5, 2.0)), 6
        budget = GaussianFilter(epsilon, delta)
        unit = float(gdp_from_epsilon(epsilon, delta)) ** 2 / most * (1 - 1e-9)
        sizes = sorted({1, *(int(size) for size in rng.integers(1, 5, 2))})
        menu = [(size, Step(1 / math.sqrt(size * unit), FullBatch(), "add-remove")) for size in sizes]
        spread, large = math.sqrt(most * unit), 0.0
    else:
        q, s, most = float(rng.uniform(0.05, 0.9)), float(rng.uniform(0.8, 4.0)), int(rng.integers(2, 5))
        worst = Step(s, Poisson(q), "add-remove")
        while not (epsilon := upper_epsilon(worst * most, delta).upper * (1 + 1e-9)) > 0:
            delta /= 10  # these steps cost no epsilon at that delta
        budget = WorstFilter(epsilon, delta, worst=worst)
        less = [Step(s * rng.uniform(1, 2), Poisson(q * rng.uniform(0.2, 1)), "add-remove") for _ in range(2)]
        menu = [(1, step) for step in (worst, *less)]
        spread, large = q * math.sqrt(most * math.expm1(1 / s**2)), 4.0 if s < 2 else 0.0
    for size, step in menu:
        full = step * (most // size)
        if not budget.has_room(full) or budget.has_room(full + menu[0][1] * (most % size + 1)):
            raise AssertionError(f"the budget has room for other steps than {full}")
    losses = np.linspace(-8 * spread, epsilon + max(8 * spread, large), 601)
    stop = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
    values = [stop]
    for left in range(1, most + 1):
        going_on = [after(losses, values[left - size], step) for size, step in menu if size <= left]
        values.append(np.maximum(stop, np.max(going_on, axis=0)))
    plan = stop
    for _ in range(most):
        plan = after(losses, plan, menu[0][1])
    return cell | {
        "filter": type(budget).__name__, "epsilon": epsilon, "delta": delta, "steps": most, "menu": len(menu),
        "plan": float(np.interp(0.0, losses, plan)) / delta,
        "attained": float(np.interp(0.0, losses, values[most])) / delta, "status": "ok",
    }  # fmt: skip


def table() -> str:
    """Return the table of docs/results/accounting.md."""
    rows = read_rows(RESULTS / "adaptive_cost")
    lines = []
    for row in rows.to_dict("records"):
        setting = f"{row['n']:,.0f}/{row['batch']:,.0f}/{row['steps']:,.0f}/{row['epsilon']:g}/{row['delta']:g}"
        more, room = row["filter_noise"] / row["planned_noise"] - 1, row["filter_steps"] / row["steps"]
        lines.append([setting, f"{row['planned_noise']:.4f}", f"{row['filter_noise']:.4f}"])
        lines[-1] += [f"{100 * more:.1f}%", f"{100 * room:.0f}%"]
    header = ["n/B/T/epsilon/delta", "noise of a plan", "noise of a filter for T steps", "more noise", "or steps left"]
    made = read_rows(RESULTS / "adaptive_policies")
    return (
        markdown(header, lines)
        + f"\n\n{int(made['exceeds'].sum())} of {len(made):,} random policies exceed delta = {DELTA:g}; the largest"
        + f" that one attains is {made['attained'].max():.3f} (standard error at most {made['error'].max():.4f}), the"
        + f" median {made['attained'].median():.3f}."
    )


EXPERIMENT = presets(
    "adaptive",
    __doc__,
    [
        flag("--out", type=output_folder, help="folder of the results (default: benchmarks/results/...)"),
        flag("--workers", type=integer(1, 256), default=2, help="processes"),
    ],
    {
        "cost": numbered(
            "adaptive_cost", settings, cost, (*NAMES, "planned_noise", "filter_noise", "filter_steps"), about=__doc__
        ),
        "sharper": numbered(
            "adaptive_sharper",
            menus,
            chosen,
            ("filter", "epsilon", "delta", "steps", "menu", "plan", "attained"),
            about=__doc__,
            seeds=[SEED + 1],
        ),
        "policies": numbered(
            "adaptive_policies", policies, policy, ("attained", "error", "exceeds"), about=__doc__, seeds=[SEED]
        ),
    },
)
