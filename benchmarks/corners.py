"""Questions to the accountant at random settings over the whole range that is promised, timed and checked.

The settings are log-uniform: up to 10^7 steps, sample rates from 1e-7 to 1, delta from 0.1 to 1e-30, epsilon from 1e-3
to 200. They were drawn once; from then on the committed rows hold them, and a run asks them again. In the first preset,
`calibrated`, the noise is calibrated under add-remove and replace-one. In the second, `more`, every sampling takes
part, with every relation and Laplace noise; and epsilon is asked of groups of 2 to 50 records and of histories of two
kinds.
"""

from argparse import Namespace
from typing import Any

import mpmath

from benchmarks.independent import independent_delta
from benchmarks.kit.asked import asked_again, remake
from benchmarks.kit.experiment import presets
from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.rows import read_rows
from benchmarks.kit.timing import least_timed, timed
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.group import group_epsilon
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.sampling import sampling_of
from dpzero_theory.privacy.step import Step, step_of

_CHECKED = 5
"""Every _CHECKED-th setting is checked by an independent evaluation, which takes up to a hundred times as long as
the accountant's answer."""
SECONDS = 8.0
"""The processor seconds after which a question of `more`, or an independent evaluation, is given up."""
OF_SETTING = ("setting", "steps", "sample_rate", "epsilon", "delta", "sampling", "relation")
FIELDS = (
    *("noise_multiplier", "noise_lower", "width", "seconds", "cpu_seconds", "method"),
    *("delta_lower", "delta_upper", "meets_target"),
    *("independent", "independent_low", "independent_high", "contained"),
)
MORE_OF_SETTING = (
    *("setting", "kind", "relation", "steps", "sample_rate", "epsilon", "delta", "size"),
    *("sampling", "given_noise", "other_sampling", "other_rate", "other_noise"),
)
MORE_FIELDS = ("upper", "lower", "width", "cpu_seconds", "method", "too_long")


def _independent(unit: Step, epsilon: float) -> tuple[str, float, float]:
    """Return the name of an independent method, and the lower and upper end of its value of delta(epsilon) of the
    releases `unit`, by the method's own estimate of its error. For full batches it is the closed form with 50 digits;
    for sampled batches it is `independent_delta`, except for batches of a fixed size. The value is for the order of the
    two neighbouring data sets that has the larger delta. If no method applies, or its error is more than 1e-4 of the
    value, the name is "" and both ends are 0."""
    cost = unit.cost()
    with mpmath.workdps(50):
        if cost.closed:
            gdp = mpmath.sqrt(mpmath.mpf(cost.squares[0]))
            value = mpmath.ncdf(gdp / 2 - epsilon / gdp) - mpmath.exp(epsilon) * mpmath.ncdf(-gdp / 2 - epsilon / gdp)
            return "50 digits", float(value) * (1 - 1e-12), float(value) * (1 + 1e-12)
    pair = cost.above[0][0][0]
    if not isinstance(pair, Gaussian) or pair.kind == "fixed-size":
        return "", 0.0, 0.0
    try:
        with limited(SECONDS, processor=True):
            value, error = independent_delta(pair.kind, pair.rate, pair.noise, unit.steps, epsilon)
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
        unit = step_of(found.upper, steps, **batches)
        spent = delta_of_history([unit], epsilon)
        name, low, high = _independent(unit, epsilon)
        row |= {"delta_lower": spent.lower, "delta_upper": spent.upper, "meets_target": spent.upper <= delta}
        if name:
            row |= {"independent": name, "independent_low": low, "independent_high": high}
            row |= {"contained": low <= spent.upper and high >= spent.lower}
    return setting | row


def _parts(row: dict[str, Any], noise: float) -> list[Step]:
    """Return the releases of a setting, given its row: those of its sampling with the noise multiplier `noise`, and,
    for a history of two kinds, as many of the row's other sampling with the row's other noise."""
    laplace = row["kind"].endswith("laplace")
    mechanism = "laplace" if laplace and not row["other_sampling"] else "gaussian"
    first = sampling_of(row["sampling"], row["sample_rate"])
    made = [step_of(noise, row["steps"], sampling=first, relation=row["relation"], mechanism=mechanism)]
    if row["other_sampling"]:
        other = sampling_of(row["other_sampling"], row["other_rate"])
        law = "laplace" if laplace else "gaussian"
        noise = row["other_noise"]
        made.append(step_of(noise, row["steps"], sampling=other, relation=row["relation"], mechanism=law))
    return made


def more_answer(setting: dict[str, Any]) -> dict[str, Any]:
    """Calibrate the noise of a setting, or ask for epsilon of its history, and return the row."""
    row = dict(setting)

    def ask() -> Bracket:
        if row["size"] > 1:
            return group_epsilon(_parts(row, row["given_noise"]), row["delta"], size=row["size"])
        if row["given_noise"]:
            return epsilon_of_history(_parts(row, row["given_noise"]), row["delta"])
        unit = _parts(row, 1e6)[0]
        target = {"target_epsilon": row["epsilon"], "target_delta": row["delta"], "steps": row["steps"]}
        words = {"sampling": unit.sampling, "relation": row["relation"], "mechanism": unit.mechanism}
        return calibrate_noise_multiplier(**target, **words)

    try:
        with limited(SECONDS, processor=True):
            known = timed(ask)
    except TooLong:
        return row | {"cpu_seconds": SECONDS, "too_long": True, "status": "ok"}
    except Exception as error:  # the experiment counts exceptions of every type
        return row | {"status": f"{type(error).__name__}: {error}".splitlines()[0][:150]}
    found = known.found
    width = found.upper / found.lower - 1 if found.lower > 0 else (1e9 if found.upper > 0 else 0.0)
    row |= {"upper": found.upper, "lower": found.lower, "width": width, "method": found.method}
    return row | {"cpu_seconds": known.cpu_seconds, "too_long": False, "status": "ok"}


def _report(options: Namespace) -> None:
    """Print how many settings raised an exception, how many were answered in time, and how many checks failed."""
    rows = read_rows(options.out, failed=True)
    good = rows[rows["status"] == "ok"]
    print(f"{len(rows)} settings, {len(rows) - len(good)} exceptions")
    print(f"{(good['cpu_seconds'] <= 1).mean():.1%} within 1 s, {(good['cpu_seconds'] <= 5).mean():.1%} within 5 s")
    for name in {"contained", "meets_target"} & set(good):
        checked = good[name].dropna().astype(str)
        print(f"{name}: {int((checked == 'True').sum())} of {len(checked)}")


EACH = {
    "calibrated": ("accounting_corners", OF_SETTING, answer, FIELDS),
    "more": ("accounting_corners_more", MORE_OF_SETTING, more_answer, MORE_FIELDS),
}
"""By preset: the folder of the rows, the columns of a setting, the function that answers it, and its columns."""
# a multiplier is known to about 1e-10, and delta moves up to a thousand times as much; a width is a small difference
REMAKES = {
    folder: remake(asked, answer, ("seconds", "cpu_seconds", "width"), 1e-6)
    for folder, asked, answer, _ in EACH.values()
}
EXPERIMENT = presets(
    "corners",
    __doc__,
    {
        name: asked_again("corners", folder, None, asked, answer, fields, _report)
        for name, (folder, asked, answer, fields) in EACH.items()
    },
)
