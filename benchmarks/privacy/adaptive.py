"""Steps chosen as one goes (`privacy.filter.Filter`): what the freedom costs, and adversaries that use it.

    python -m benchmarks.adaptive --preset cost        beside plans that are fixed beforehand
    python -m benchmarks.adaptive --preset policies    1,000 random policies, each simulated

In a plan all steps are known beforehand. Where each step may be chosen after the earlier ones were seen, the budget has
room for fewer steps of the same noise, or for as many steps with more noise. `cost` finds both numbers for settings of
the field.

A policy chooses the noise of each next step, and when to stop, from the privacy loss so far, which is more than an
attacker can see. Its steps are full batches, whose losses are normal, and it spends until the filter has no room. The
mean of (1 - e^(epsilon - L))_+ over many runs, with L the loss when it stops, is the delta that the policy attains.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, flag, numbered, presets
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from dpzero_theory.bisection import largest_integer, smallest_real
from dpzero_theory.cli import integer, output_folder
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.filter import Filter
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
        "policies": numbered(
            "adaptive_policies", policies, policy, ("attained", "error", "exceeds"), about=__doc__, seeds=[SEED]
        ),
    },
)
