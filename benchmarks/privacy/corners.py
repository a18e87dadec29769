"""Calibration at random settings over the whole range that is promised, timed and checked.

The settings are log-uniform: up to 10^7 steps, sample rates from 1e-7 to 1, delta from 0.1 to 1e-30, epsilon from 1e-3
to 200. Every sampling that has a dominating pair takes part, with both relations. Random allocation has a preset of its
own.
"""

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.rows import read_rows
from benchmarks.kit.timing import least_timed
from benchmarks.privacy.independent import independent_delta
from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.step import Release

SEED = 20_261_122
COUNT = 1000
_CHECKED = 5
"""Every _CHECKED-th setting is checked by an independent evaluation, which takes up to a hundred times as long as
the accountant's answer."""
_SECONDS = 8.0
"""The processor seconds after which an independent evaluation is given up."""
_SAMPLINGS = ("poisson", "poisson", "fixed-size", "fixed-size", "full", "fixed-order")


def settings(count: int) -> list[dict[str, Any]]:
    """Draw `count` random settings. One that needs no noise at all is drawn again."""
    rng = np.random.default_rng(SEED)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        steps = int(10 ** rng.uniform(0, 7))
        rate = float(10 ** rng.uniform(-7, 0))
        epsilon = float(10 ** rng.uniform(-3, math.log10(200)))
        delta = float(10 ** rng.uniform(-30, -1))
        sampling = _SAMPLINGS[int(rng.integers(len(_SAMPLINGS)))]
        relation = ("add-remove", "replace-one")[int(rng.integers(2))]
        if sampling == "fixed-order":
            # in a fixed order, removing a record would move the others to other batches, so add-remove does not apply
            relation = "replace-one"
        if sampling == "full":
            rate = 1.0
        if -math.expm1(steps * math.log1p(-min(rate, 1 - 1e-12))) > 1.0001 * delta:
            row = {"steps": steps, "sample_rate": rate, "epsilon": epsilon, "delta": delta}
            found.append({"setting": len(found) + 1} | row | {"sampling": sampling, "relation": relation})
    return found


def _independent(unit: Release, epsilon: float) -> tuple[str, float, float]:
    """Return the name of an independent method, and the lower and upper end of its value of delta(epsilon) of the
    releases `unit`. The value is for the order of the two neighbouring data sets that has the larger delta. If no
    method applies, the name is empty."""
    parts = unit.composition.directions()
    with mpmath.workdps(50):
        if not parts[0]:
            gdp = mpmath.mpf(unit.part.gdp) * mpmath.sqrt(1)
            value = mpmath.ncdf(gdp / 2 - epsilon / gdp) - mpmath.exp(epsilon) * mpmath.ncdf(-gdp / 2 - epsilon / gdp)
            return "50 digits", float(value) * (1 - 1e-12), float(value) * (1 + 1e-12)
    if any(pair.kind == "fixed-size" for part in parts for pair, _ in part):
        return "", 0.0, 0.0
    pair = parts[0][0][0]
    try:
        with limited(_SECONDS, processor=True):
            value, error = independent_delta(pair.kind, pair.sample_rate, pair.noise, unit.steps, epsilon)
    except (OverflowError, TooLong, ValueError, ZeroDivisionError):
        return "", 0.0, 0.0
    if not (error < 1e-4 and value > 0):
        return "", 0.0, 0.0
    return "80-bit sums", value * (1 - 2 * error - 1e-15), value * (1 + 2 * error + 1e-15)


def answer(setting: dict[str, Any]) -> dict[str, Any]:
    """Calibrate the noise at a setting, check the result independently if the setting's number is a multiple of
    `_CHECKED`, and return the row."""
    rate, steps, epsilon, delta = (setting[name] for name in ("sample_rate", "steps", "epsilon", "delta"))
    batches = {"sampling": setting["sampling"], "relation": setting["relation"], "sample_rate": rate}

    def ask() -> Bracket:
        return calibrate_noise_multiplier(target_epsilon=epsilon, target_delta=delta, steps=steps, **batches)

    try:
        found, seconds, cpu_seconds = least_timed(ask)
    except Exception as error:  # the experiment counts exceptions of every type
        return setting | {"status": f"{type(error).__name__}: {error}".splitlines()[0][:100]}
    row = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "method": found.method,
        "noise_multiplier": found.upper,
        "noise_lower": found.lower,
        "width": found.upper / found.lower - 1 if found.lower > 0 else 1e9,
        "status": "ok",
    }
    if setting["setting"] % _CHECKED == 0:
        unit = Release(found.upper, steps, **batches)
        spent = delta_of_history([unit], epsilon)
        name, low, high = _independent(unit, epsilon)
        row |= {"delta_lower": spent.lower, "delta_upper": spent.upper, "meets_target": spent.upper <= delta}
        if name:
            row |= {"independent": name, "independent_low": low, "independent_high": high}
            row |= {"contained": low <= spent.upper and high >= spent.lower}
    return setting | row


FIELDS = (
    *("steps", "sample_rate", "epsilon", "delta", "sampling", "relation"),
    *("noise_multiplier", "noise_lower", "width", "seconds", "cpu_seconds", "method"),
    *("delta_lower", "delta_upper", "meets_target"),
    *("independent", "independent_low", "independent_high", "contained"),
)


def report(out: Path) -> None:
    """Print how many settings raised an exception, quantiles of time and width, and how many checks failed, from the
    rows in the folder `out`."""
    rows = read_rows(out, failed=True)
    good = rows[rows["status"] == "ok"]
    print(f"{len(rows)} settings, {len(rows) - len(good)} exceptions")
    for name, limits in (("cpu_seconds", (1.0, 5.0)), ("width", (1e-3,))):
        at = ", ".join(f"{share:.0%} {good[name].quantile(share):.2g}" for share in (0.5, 0.9, 0.99, 1.0))
        within = ", ".join(f"{(good[name] <= limit).mean():.1%} within {limit:g}" for limit in limits)
        print(f"{name}: {at}; {within}")
    checked = good[good["contained"].notna()]
    wrong = checked[checked["contained"].astype(str) != "True"]
    print(f"{len(checked)} brackets against an independent value, {len(wrong)} of them wrong")

    over = good[good["meets_target"].notna() & (good["meets_target"].astype(str) != "True")]
    print(f"{len(over)} calibrated multipliers beyond their target")
