"""Questions to the accountant at random settings over the whole range that is promised, timed and checked.

The settings are log-uniform: up to 10^7 steps, sample rates from 1e-7 to 1, delta from 0.1 to 1e-30, epsilon from 1e-3
to 200. In the first preset, `corners`, the noise is calibrated, for every sampling that has a dominating pair, under
add-remove and replace-one. In the second, `corners_more`, every sampling takes part, with every relation, and with
Laplace noise where that is accounted; and epsilon is asked of groups of 2 to 50 records and of histories of two kinds.
Every fourth of its settings has all its numbers at an end of their ranges.
"""

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.rows import read_rows
from benchmarks.kit.timing import least_timed, timed
from benchmarks.privacy.ask import ARGUMENTS
from benchmarks.privacy.independent import independent_delta
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.group import group_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, sampling_of
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
    releases `unit`, by the method's own estimate of its error. For full batches it is the closed form with 50 digits;
    for sampled batches it is `independent_delta`, except for batches of a fixed size. The value is for the order of the
    two neighbouring data sets that has the larger delta. If no method applies, or its error is more than 1e-4 of the
    value, the name is "" and both ends are 0."""
    parts = unit.composition.directions()
    with mpmath.workdps(50):
        if not parts[0]:
            gdp = mpmath.mpf(unit.part.gdp) * mpmath.sqrt(1)
            value = mpmath.ncdf(gdp / 2 - epsilon / gdp) - mpmath.exp(epsilon) * mpmath.ncdf(-gdp / 2 - epsilon / gdp)
            return "50 digits", float(value) * (1 - 1e-12), float(value) * (1 + 1e-12)
    pair = parts[0][0][0]
    if not isinstance(pair, Pair) or pair.kind == "fixed-size":
        return "", 0.0, 0.0
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


MORE_SEED = 20_261_125
MORE_COUNT = 525
MORE_SECONDS = 8.0
"""The processor seconds after which a question of `corners_more` is given up; its row says then that it took too
long."""
_AT_THE_ENDS = 4
"""Every _AT_THE_ENDS-th setting of each kind of `corners_more` has each of its numbers at one end of its range."""
_ALLOCATED = "random-allocation:K"
_PLANS = (
    *("full", "fixed-order", "poisson", "fixed-size", "cyclic-poisson", "truncated-poisson", "random-allocation"),
    *(_ALLOCATED, "full, laplace", "poisson, laplace"),
)
_HISTORIES = (
    *("group: full", "group: poisson", "group: cyclic-poisson", "group: fixed-size", "group: poisson, laplace"),
    *("poisson + full", "poisson + random-allocation", "fixed-size + cyclic-poisson", "full + random-allocation:K"),
    "poisson + full, laplace",
)
KINDS = (*_PLANS, *_HISTORIES)
"""What the settings of `corners_more` are about, in turn: first what noise is calibrated for, then the histories whose
epsilon is asked."""
_MOST_GROUP = 50
_TARGETS = 0.05, 10.0
"""The noise of a history whose epsilon is asked is such that by the central limit theorem it costs about as much as
mu-GDP with mu between these."""
MORE_OF_SETTING = (
    *("setting", "kind", "relation", "steps", "sample_rate", "epsilon", "delta", "size"),
    *("sampling", "given_noise", "other_sampling", "other_rate", "other_noise"),
)
MORE_FIELDS = (*MORE_OF_SETTING[1:], "upper", "lower", "width", "cpu_seconds", "method", "too_long")


def _uniform(rng: np.random.Generator, number: int, low: float, high: float) -> float:
    """Return a random number, uniform between `low` and `high`. If the setting with this number is one of those at the
    ends of all ranges, it is one of the two ends instead. Callers that want a log-uniform value pass exponents."""
    ends = number // len(KINDS) % _AT_THE_ENDS == 0
    at = float(rng.integers(2)) if ends else rng.uniform()
    return float(low + at * (high - low))


def _drawn(rng: np.random.Generator, number: int, name: str) -> tuple[str, float]:
    """Return a random sampling as the word that stands for it in this package, and its sample rate. `name` is that of a
    registered sampling, perhaps with what follows a comma, which is ignored. `number` is the setting's, as in
    `_uniform`."""
    name = name.partition(",")[0]
    rate = 10 ** _uniform(rng, number, -7, 0)
    if name == "full":
        return name, 1.0
    if name in ("random-allocation", _ALLOCATED):
        taken = 1 if name == "random-allocation" else int(rng.integers(2, 9))
        epoch = max(round(taken / rate), taken + 1)
        return f"random-allocation{f':{taken}' if taken > 1 else ''}", taken / epoch
    arguments, rate = ARGUMENTS[SAMPLINGS[name].arguments](rng, min(rate, 1 - 1e-9))
    return f"{name}{arguments}", rate


def _parts(row: dict[str, Any], noise: float) -> list[Release]:
    """Return the releases of a setting, given its row: those of its sampling with the noise multiplier `noise`, and,
    for a history of two kinds, as many of the row's other sampling with the row's other noise."""
    laplace = row["kind"].endswith("laplace")
    mechanism = "laplace" if laplace and not row["other_sampling"] else "gaussian"
    first = sampling_of(row["sampling"], row["sample_rate"])
    made = [Release(noise, row["steps"], sampling=first, relation=row["relation"], mechanism=mechanism)]
    if row["other_sampling"]:
        other = sampling_of(row["other_sampling"], row["other_rate"])
        law = "laplace" if laplace else "gaussian"
        noise = row["other_noise"]
        made.append(Release(noise, row["steps"], sampling=other, relation=row["relation"], mechanism=law))
    return made


def more_settings(count: int) -> list[dict[str, Any]]:
    """Draw the `count` settings of `corners_more`. One that is not accounted, or that needs no noise, is drawn
    again."""
    rng = np.random.default_rng(MORE_SEED)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        number = len(found) + 1
        kind = KINDS[number % len(KINDS)]
        sampling, *others = kind.removeprefix("group: ").split(" + ")
        word, rate = _drawn(rng, number, sampling)
        row: dict[str, Any] = {
            "setting": number,
            "kind": kind,
            "relation": str(list(Relation)[int(rng.integers(len(Relation)))]),
            "steps": int(10 ** _uniform(rng, number, 0, 7)),
            "sample_rate": rate,
            "epsilon": float(10 ** _uniform(rng, number, -3, math.log10(200))),
            "delta": float(10 ** _uniform(rng, number, -30, -1)),
            "size": int(rng.integers(2, _MOST_GROUP + 1)) if kind.startswith("group") else 1,
            "sampling": word,
            "given_noise": 0.0,
            "other_sampling": "",
            "other_rate": 0.0,
            "other_noise": 0.0,
        }
        if kind in _HISTORIES:
            mu = math.exp(_uniform(rng, number, *map(math.log, _TARGETS)))
            row |= {"epsilon": 0.0, "given_noise": row["size"] * _central(mu, rate, row["steps"])}
            if others:
                word, rate = _drawn(rng, number, others[0])
                row |= {"other_sampling": word, "other_rate": rate, "other_noise": _central(mu, rate, row["steps"])}
        try:
            used = max(part.step.sampling.chance(part.steps)[0] for part in _parts(row, row["given_noise"] or 1e6))
        except ValueError:
            continue
        if used > 1.0001 * row["delta"]:
            found.append(row)
    return found


def _central(mu: float, rate: float, steps: int) -> float:
    """Return the noise multiplier s with mu = q sqrt(T (e^{1/s^2} - 1)), q = `rate` and T = `steps`: the one for which
    the central limit theorem of Gaussian differential privacy gives Poisson batches this `mu`."""
    return 1 / math.sqrt(math.log1p((mu / rate) ** 2 / steps))


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
        words = {"sampling": unit.step.sampling, "relation": row["relation"], "mechanism": unit.mechanism}
        return calibrate_noise_multiplier(**target, **words)

    try:
        with limited(MORE_SECONDS, processor=True):
            known = timed(ask)
    except TooLong:
        return row | {"cpu_seconds": MORE_SECONDS, "too_long": True, "status": "ok"}
    except Exception as error:  # the experiment counts exceptions of every type
        return row | {"status": f"{type(error).__name__}: {error}".splitlines()[0][:150]}
    found = known.found
    width = found.upper / found.lower - 1 if found.lower > 0 else (1e9 if found.upper > 0 else 0.0)
    row |= {"upper": found.upper, "lower": found.lower, "width": width, "method": found.method}
    return row | {"cpu_seconds": known.cpu_seconds, "too_long": False, "status": "ok"}


def more_report(out: Path) -> None:
    """Print how many settings raised an exception, and quantiles of time and width, from the rows in the folder
    `out`."""
    rows = read_rows(out, failed=True)
    good = rows[rows["status"] == "ok"]
    late = int(good["too_long"].astype(bool).sum())
    print(f"{len(rows)} settings, {len(rows) - len(good)} exceptions, {late} longer than {MORE_SECONDS:g} s")
    print(f"{(good['cpu_seconds'] <= 1).mean():.1%} within 1 s, {(good['cpu_seconds'] <= 5).mean():.1%} within 5 s")


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
