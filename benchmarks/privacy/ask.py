"""Calibrate, then ask: random settings of every sampling, relation and mechanism.

At each setting the noise is calibrated for a target (epsilon, delta). Whoever then asks for epsilon at the target's
delta, or for delta at the target's epsilon, must be told no more than the target. The settings are log-uniform: up to
10^6 steps, sample rates from 1e-9 to 1, epsilon from 1e-3 to 50, delta from 1e-12 to 1e-2; every registered sampling
and mechanism takes part. Discrete noise, on lattices with 1 to 2^28 integers to a clip, is also held against direct
sums over its outputs.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.rows import read_rows
from benchmarks.kit.timing import timed
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, sampling_of
from dpzero_theory.privacy.step import Release

SEED = 20_261_123
COUNT = 2000
LATTICES = 200
SECONDS = 8.0
"""The processor seconds after which a setting is given up; its row says then that it took too long."""
_SELDOM = ("random-allocation", "truncated-poisson")
"""The samplings that are drawn a quarter as often as the others, because a question to the accountant about them
takes seconds."""
_MOST_LEVELS = 28
_CHUNK, _MOST_TERMS = 2**20, 2**27
_LOUD = 1e6
"""A noise multiplier so large that every mechanism's cost can be computed."""
_NEEDED = 1.01
"""A random setting is used only if the probability that a record is in any batch is above this multiple of delta.
Otherwise the setting would need no noise."""

_Draw = np.random.Generator
ARGUMENTS: dict[str, Callable[[_Draw, float], tuple[str, float]]] = {
    "": lambda rng, q: ("", q),
    "[:K]": lambda rng, q: _allocation(rng, q),
    ":B": lambda rng, q: _cyclic(rng, q),
    ":B/n": lambda rng, q: _truncated(rng, q),
}
"""For each form of argument that a sampling may declare, a function of a random generator and a sample rate. It returns
the random text that follows the sampling's name (":4096", for example) and the sample rate to use with it."""


def _allocation(rng: _Draw, q: float) -> tuple[str, float]:
    taken = int(rng.integers(1, 5))
    epoch = max(round(taken / q), taken)
    return ("" if taken == 1 else f":{taken}"), taken / epoch


def _cyclic(rng: _Draw, q: float) -> tuple[str, float]:
    groups = int(10 ** rng.uniform(0, min(3.0, -math.log10(q))))
    return f":{groups}", min(q, 1 / groups)


def _truncated(rng: _Draw, q: float) -> tuple[str, float]:
    """Return the text ":B/n" that follows the name of truncated Poisson sampling, with a largest batch B and n records,
    and the sample rate. n is random, from 10 to 10^8, and B is the mean batch size plus 0 to 8 times its square root,
    at most n. `q` is the wanted sample rate, which is moved into the range from 0.01/n to 1 - 1/n."""
    n = int(10 ** rng.uniform(1, 8))
    rate = min(max(q, 0.01 / n), 1 - 1 / n)
    batch = n * rate + rng.uniform(0, 8) * math.sqrt(n * rate)
    return f":{min(math.ceil(batch), n)}/{n}", rate


def _mechanism(name: str, rng: _Draw) -> str:
    """Return the text that names a mechanism to the accountant: `name`, followed for discrete noise by ":" and a random
    power of two from 1 to 4,096, the number of lattice points per clip."""
    return f"{name}:{2 ** int(rng.integers(0, 13))}" if name in MECHANISMS.families else name


def settings(count: int) -> list[dict[str, Any]]:
    """Draw `count` random settings. One that the accountant does not support, or that needs no noise, is drawn
    again."""
    rng = np.random.default_rng(SEED)
    found: list[dict[str, Any]] = []
    laws = [*MECHANISMS, *(name for name in MECHANISMS.families if name not in MECHANISMS)]
    kinds = [kind for kind in SAMPLINGS.values() for _ in range(1 if kind.name in _SELDOM else 4)]
    while len(found) < count:
        kind = kinds[int(rng.integers(len(kinds)))]
        arguments, rate = ARGUMENTS[kind.arguments](rng, float(10 ** rng.uniform(-9, 0)))
        row: dict[str, Any] = {
            "steps": int(10 ** rng.uniform(0, 6)),
            "sample_rate": 1.0 if kind.name == "full" else rate,
            "epsilon": float(10 ** rng.uniform(-3, math.log10(50))),
            "delta": float(10 ** rng.uniform(-12, -2)),
            "sampling": f"{kind.name}{arguments}",
            "relation": str(list(Relation)[int(rng.integers(len(Relation)))]),
            "mechanism": _mechanism(laws[int(rng.integers(len(laws)))], rng),
        }
        try:
            release = _release(row, _LOUD)
        except ValueError:
            continue
        if release.step.sampling.chance(release.steps)[0] > _NEEDED * row["delta"]:
            found.append({"setting": len(found) + 1} | row)
    return found


def _batches(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("relation", "mechanism")} | {
        "sampling": sampling_of(row["sampling"], row["sample_rate"])
    }


def _release(row: dict[str, Any], noise: float) -> Release:
    return Release(noise, row["steps"], **_batches(row))


def answer(setting: dict[str, Any]) -> dict[str, Any]:
    """Calibrate the noise at a setting, ask for epsilon and delta with that noise, and return the row.

    `exception` is the type and message of an exception, or "none"; `too_long` says whether the setting took more than
    `SECONDS` of processor time.
    """
    row = dict(setting)
    goal = {"target_epsilon": row["epsilon"], "target_delta": row["delta"]}
    try:
        with limited(SECONDS, processor=True):
            known = timed(lambda: calibrate_noise_multiplier(**goal, steps=row["steps"], **_batches(row)))
            noise = known.found.value
            row |= {"noise_multiplier": noise, "noise_lower": known.found.lower, "seconds": known.cpu_seconds}
            asked = timed(lambda: epsilon_of_history(_release(row, noise), row["delta"]).upper)
            delta = delta_of_history(_release(row, noise), row["epsilon"]).upper
            excess = max(asked.found / row["epsilon"] - 1, delta / row["delta"] - 1)
            row |= {"epsilon_answered": asked.found, "delta_answered": delta, "ask_seconds": asked.cpu_seconds}
            row |= {"excess": excess, "exception": "none", "too_long": False}
    except TooLong:
        row |= {"exception": "none", "too_long": True}
    except Exception as error:  # the experiment counts exceptions of every type
        row |= {"exception": f"{type(error).__name__}: {error}".splitlines()[0][:120], "too_long": False}
    return row | {"status": "ok"}


FIELDS = (
    *("steps", "sample_rate", "epsilon", "delta", "sampling", "relation", "mechanism"),
    *("noise_multiplier", "noise_lower", "epsilon_answered", "delta_answered", "excess"),
    *("seconds", "ask_seconds", "exception", "too_long"),
)


def report(out: Path) -> None:
    """Print how many settings raised an exception, how many were told a cost above their target, and quantiles of the
    times, from the rows in the folder `out`."""
    rows = read_rows(out)
    asked = rows[rows["excess"].notna()]
    failed = rows[rows["exception"] != "none"]
    print(f"{len(rows)} settings, {len(failed)} exceptions, {int(rows['too_long'].sum())} longer than {SECONDS:g} s")
    print(f"{int((asked['excess'] > 0).sum())} calibrated multipliers cost more than asked, of {len(asked)}")
    quantiles = ", ".join(f"{share:.0%} {asked['seconds'].quantile(share):.2g}" for share in (0.5, 0.9, 0.99, 1.0))
    print(f"processor seconds of a calibration: {quantiles}")


OF_LATTICE = ("setting", "mechanism", "relation", "noise_multiplier", "epsilon_share")


def lattices(count: int) -> list[dict[str, Any]]:
    """Draw `count` settings of one release with a full batch and discrete noise, with 1 to 2^28 lattice points per
    clip."""
    rng = np.random.default_rng(SEED + 1)
    found: list[dict[str, Any]] = []
    for number in range(count):
        power = (0.0, float(_MOST_LEVELS))[number] if number < 2 else rng.uniform(0, _MOST_LEVELS)
        found.append(
            {
                "setting": number + 1,
                "mechanism": f"{_LATTICE_LAWS[number % len(_LATTICE_LAWS)]}:{round(2**power)}",
                "relation": str(list(Relation)[int(rng.integers(len(Relation)))]),
                "noise_multiplier": float(10 ** rng.uniform(-1, 1)),
                "epsilon_share": float(rng.uniform(0.02, 0.98)),
            }
        )
    return found


_LATTICE_LAWS = tuple(name for name in MECHANISMS.families if MECHANISMS[f"{name}:1"].lattice)


def _above(law: str, first: int, scale: float) -> float:
    """Return the sum over the integers x >= first of e^{-|x|/scale} if `law` is "laplace", or of e^{-(x/scale)^2/2} if
    it is "gaussian".

    Terms beyond 80 times `scale` (Laplace) or 40 times it (Gaussian) are left out. Up to `_MOST_TERMS` terms are added
    one by one. Of more terms, a Laplace tail is summed as a geometric series, and a Gaussian one is replaced by the
    integral from half an integer before `first`, whose relative error is at most 1/(24 scale^2) where the sum matters.
    """
    last = math.ceil((80 if law == "laplace" else 40) * scale) + max(first, 0)
    if last - first <= _MOST_TERMS:
        starts = range(first, last + 1, _CHUNK)
        return math.fsum(
            float(np.sum(_mass(law, np.arange(start, min(start + _CHUNK, last + 1), dtype=np.float64) / scale)))
            for start in starts
        )
    if law != "laplace":
        return math.sqrt(2 * math.pi) * scale * float(ndtr((0.5 - first) / scale))
    if first > 0:
        return math.exp(-first / scale) / -math.expm1(-1 / scale)
    return 2 * _above(law, 1, scale) + 1 - _above(law, 1 - first, scale)


def _mass(law: str, x: Array) -> Array:
    return np.exp(-np.abs(x)) if law == "laplace" else np.exp(-0.5 * x * x)


def direct_delta(law: str, shift: int, scale: float, epsilon: float) -> tuple[float, float]:
    """Return delta(epsilon) of one release with discrete noise of this `scale`, and an estimate of its absolute error,
    which is that of rounding. A record shifts the released integer by `shift` > 0; scale is in units of the lattice.

    delta is the sum over the integers k of max(0, P(k - shift) - e^epsilon P(k)), where P is the discrete law
    ("laplace" or "gaussian"). The ratio of the two probabilities rises in k, so the terms are positive from one integer
    on.
    """
    middle = epsilon * scale if law == "laplace" else epsilon * scale**2 / shift
    first = math.floor((shift + middle) / 2 if law == "laplace" else middle + shift / 2) + 1
    whole = 2 * _above(law, 1, scale) + 1
    gained, lost = (_above(law, first - by, scale) / whole for by in (shift, 0))
    return gained - math.exp(epsilon) * lost, 1e-11 * gained


def lattice_answer(setting: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a setting with discrete noise: the accountant's bracket of delta of one release, the direct
    sum, and whether the bracket contains it."""
    row, law = dict(setting), MECHANISMS[setting["mechanism"]]
    levels, noise = int(setting["mechanism"].partition(":")[2]), setting["noise_multiplier"]
    shift, scale = Relation.of(setting["relation"]).sensitivity * levels, noise * levels
    mu = shift / scale
    epsilon = setting["epsilon_share"] * (mu if law.noise == "laplace" else 3 * mu + mu * mu / 2)
    release = Release(noise, 1, sampling="full", relation=setting["relation"], mechanism=setting["mechanism"])
    found = delta_of_history(release, epsilon)
    direct, error = direct_delta(law.noise, shift, scale, epsilon)
    contained = found.lower <= direct + error and direct - error <= found.upper
    row |= {"levels": levels, "epsilon": epsilon, "delta_lower": found.lower, "delta_upper": found.upper}
    return row | {"direct": direct, "error": error, "contained": contained, "status": "ok"}


LATTICE_FIELDS = (
    *("mechanism", "levels", "relation", "noise_multiplier", "epsilon_share", "epsilon"),
    *("delta_lower", "delta_upper", "direct", "error", "contained"),
)


def report_lattices(out: Path) -> None:
    """Print how many direct sums lie in the accountant's bracket, from the rows in the folder `out`."""
    found = read_rows(out)
    print(f"{len(found)} releases on lattices, {int(found['contained'].sum())} direct sums in their bracket")
