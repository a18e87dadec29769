"""Random allocation, in which each record takes part in one random step of every epoch: epsilon's bracket, timed and
checked.

The settings are log-uniform: epochs of 2 to 10^4 steps, 1 to 1,000 epochs, noise multipliers from 0.5 to 10, delta from
1e-9 to 1e-4, both relations. The 16 corners of these ranges at delta = 1e-5 come first. If a setting has few enough
steps, delta is also estimated by sampling, at both ends of the bracket of epsilon. At the lower end the estimate must
not be below the delta that was asked for, and at the upper end not above it, by more than `ERRORS` standard errors. The
sampling is importance sampling: outputs are drawn from a density tilted towards those that make up delta, and weighted.
It shares no code with `dpzero_theory.privacy`.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from benchmarks.kit.rows import read_rows
from benchmarks.kit.timing import least_timed
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Release

Floats = NDArray[np.float64]

SEED = 20_261_123
COUNT = 116
WIDTH, SECONDS = 0.02, 2.0
"""The documentation's claim about every setting: the relative width of epsilon's bracket and the processor seconds
of an answer are at most these."""
ERRORS = 5.0
_DRAWS = 4e6
"""About how many normal numbers are drawn to estimate one delta (of one order of the neighbouring data sets)."""
_FEWEST, _MOST = 400, 20_000
"""The fewest and the most sampled runs for one estimate of delta. A setting that would get fewer from `_DRAWS`
numbers is not checked by sampling."""
_PILOT, _TRIES = 64, 20
"""In the search for a tilt under which the mean privacy loss is about epsilon, at most _TRIES tilts are tried, each
with _PILOT samples."""
_AT_ONCE = 1e6
_CELLS = 40
"""A density is tilted by a factor that is constant on each cell of the line; there are this many cells per standard
deviation of the noise."""
OF_SETTING = ("setting", "epoch", "epochs", "noise_multiplier", "relation", "delta")


def settings(count: int) -> list[dict[str, Any]]:
    """Return `count` settings: first the corners of their ranges, then random ones."""
    ends = itertools.product((2, 10**4), (1, 1000), (0.5, 10.0), ("add-remove", "replace-one"))
    found = [(*end, 1e-5) for end in ends]
    rng = np.random.default_rng(SEED)
    while len(found) < count:
        epoch, epochs = round(2 * 5000 ** rng.uniform()), round(1000 ** rng.uniform())
        noise, delta = float(0.5 * 20 ** rng.uniform()), float(10 ** rng.uniform(-9, -4))
        found.append((epoch, epochs, noise, ("add-remove", "replace-one")[int(rng.integers(2))], delta))
    return [dict(zip(OF_SETTING, (number, *one), strict=True)) for number, one in enumerate(found[:count], 1)]


class _Tilted:
    """The tilted law of a number x. Its density is that of N(mean, s^2), multiplied by e^{h(x)} and divided by a
    constant, of which `log_total` is the logarithm, so that it integrates to 1. h is a step function: `edges` are the
    ends of its pieces, from -infinity to infinity, and the argument `h` has its value on each piece."""

    def __init__(self, mean: float, s: float, edges: Floats, h: Floats) -> None:
        self.mean, self.s, self.h = mean, s, h
        z = (edges - mean) / s
        mass = np.where(z[1:] > 0, ndtr(-z[:-1]) - ndtr(-z[1:]), ndtr(z[1:]) - ndtr(z[:-1]))
        self.ends = z[:-1], z[1:]
        tilted = mass * np.exp(h - h.max())
        self.log_total = float(math.log(tilted.sum()) + h.max())
        self.below = np.cumsum(tilted / tilted.sum())

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Floats, Floats]:
        """Draw an array of numbers x from the tilted density. Returns it, and for each number the logarithm of its
        importance weight, which is the density of N(mean, s^2) over the tilted one. `shape` is that of both arrays."""
        cell = np.minimum(np.searchsorted(self.below, rng.random(shape)), len(self.h) - 1)
        low, high = (end[cell] for end in self.ends)
        right = low > 0
        low, high = np.where(right, -high, low), np.where(right, -low, high)
        z = ndtri(ndtr(low) + rng.random(shape) * (ndtr(high) - ndtr(low)))
        return self.mean + self.s * np.where(right, -z, z), self.log_total - self.h[cell]


@dataclass(frozen=True)
class _Question:
    """What is estimated: delta(epsilon) for `epochs` epochs of `epoch` steps with noise multiplier `s`, if one record
    is removed, added or replaced, as `direction` says."""

    s: float
    epoch: int
    epochs: int
    direction: str
    epsilon: float

    def laws(self, rate: float) -> tuple[_Tilted, _Tilted]:
        """Return the laws of a step's output, tilted by e^{rate l}: first for the step in which the record takes part,
        then for every other step.

        Here l is the privacy loss if only this output carried information. If privacy losses of a run would stay too
        small under such a tilt (direction "add" with few steps), l is minus the output instead.
        """
        inner = np.arange(-16 * self.s, 1 + 16 * self.s, self.s / _CELLS)
        edges = np.concatenate([[-np.inf], inner, [np.inf]])
        middle = np.concatenate([inner[:1], (inner[1:] + inner[:-1]) / 2, inner[-1:]])
        half, record = 1 / (2 * self.s**2), float(self.direction != "add")
        loss = np.log1p(np.expm1((2 * middle - 1) * half) / self.epoch)
        if self.direction == "replace":
            loss = loss - np.log1p(np.expm1((-2 * middle - 1) * half) / self.epoch)
        elif self.direction == "add":
            few = -self.epochs * self.epoch * math.log1p(-1 / self.epoch) < 1.5 * self.epsilon
            loss = -2 * half * middle if few else -loss
        return _Tilted(record, self.s, edges, rate * loss), _Tilted(0.0, self.s, edges, rate * loss)

    def draw(self, rate: float, rng: np.random.Generator, size: int) -> tuple[Floats, Floats]:
        """Draw `size` privacy losses of the whole run with each output tilted by `laws(rate)`. Returns them, and for
        each the logarithm of its importance weight: the density of its outputs under the law in which a mean of
        weighted values estimates an expectation, over the density that they were drawn from."""
        record, other = self.laws(rate)
        half = 1 / (2 * self.s**2)
        loss, log_weight = np.zeros(size), np.zeros(size)
        for _ in range(self.epochs):
            one, two = record.draw(rng, (size, 1)), other.draw(rng, (size, self.epoch - 1))
            x = np.concatenate([one[0], two[0]], axis=1)
            log_weight += one[1].sum(axis=1) + two[1].sum(axis=1)
            level = np.log(np.exp((2 * x - 1) * half).mean(axis=1))
            if self.direction == "replace":
                level -= np.log(np.exp((-2 * x - 1) * half).mean(axis=1))
            loss += -level if self.direction == "add" else level
        return loss, log_weight

    def rate(self, rng: np.random.Generator) -> float:
        """Return the strength of the tilt, the argument of `laws`, at which the mean privacy loss of a pilot sample is
        within 5% of epsilon, or the last one tried if none is. Any strength gives a valid estimate; this one makes its
        error small."""
        low, high, rate = 0.0, math.inf, 1.0
        for _ in range(_TRIES):
            mean = float(self.draw(rate, rng, _PILOT)[0].mean())
            if abs(mean - self.epsilon) < 0.05 * self.epsilon:
                break
            low, high = (rate, high) if mean < self.epsilon else (low, rate)
            if high < 1.02 * low:
                break
            rate = math.sqrt(low * high) if low > 0 and high < math.inf else (2.5 * rate if low > 0 else rate / 2.5)
        return rate


def sampled(
    noise: float, epoch: int, epochs: int, direction: str, epsilon: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Estimate delta(epsilon) of a whole run by importance sampling, and return it with its standard error. noise is
    the noise multiplier, epoch the number of steps of an epoch, epochs their number, and direction "remove", "add" or
    "replace", for what happens to a record."""
    question = _Question(noise, epoch, epochs, direction, epsilon)
    count, rate = int(min(max(_DRAWS / (epoch * epochs), _FEWEST), _MOST)), question.rate(rng)
    gains = []
    for first in range(0, count, rows := max(int(_AT_ONCE / epoch), 1)):
        loss, log_weight = question.draw(rate, rng, min(rows, count - first))
        gains.append(np.exp(log_weight) * np.maximum(-np.expm1(epsilon - loss), 0.0))
    gain = np.concatenate(gains)
    return float(gain.mean()), float(gain.std(ddof=1) / math.sqrt(len(gain)))


def _checked(row: Mapping[str, Any], lower: float, upper: float) -> dict[str, Any]:
    """Return the columns that check both ends of epsilon's bracket [lower, upper] by sampling. For each end, `sampled_`
    has the estimate of delta at that epsilon over the delta that was asked for, the larger one of both orders of the
    data sets, and `error_` has `ERRORS` standard errors of that ratio. `contained` says whether the ratio is at least 1
    at the lower end and at most 1 at the upper one, each up to that error."""
    rng = np.random.default_rng([SEED, row["setting"]])
    found: dict[str, Any] = {}
    for name, end in (("lower", lower), ("upper", upper)):
        directions = ("replace",) if row["relation"] == "replace-one" else ("remove", "add")
        answers = [sampled(row["noise_multiplier"], row["epoch"], row["epochs"], d, end, rng) for d in directions]
        delta, error = max(answers)
        found |= {f"sampled_{name}": delta / row["delta"], f"error_{name}": ERRORS * error / row["delta"]}
    inside = found["sampled_lower"] + found["error_lower"] >= 1 >= found["sampled_upper"] - found["error_upper"]
    return found | {"contained": bool(inside)}


def answer(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the accountant about a setting, estimate delta by sampling if that is possible, and return the row."""
    steps = setting["epoch"] * setting["epochs"]
    batches = {"sampling": "random-allocation", "relation": setting["relation"], "sample_rate": 1 / setting["epoch"]}
    release = Release(setting["noise_multiplier"], steps, **batches)
    found, seconds, cpu_seconds = least_timed(lambda: epsilon_of_history([release], setting["delta"]))
    row = dict(setting) | {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "epsilon_lower": found.lower,
        "epsilon": found.upper,
        "width": found.upper / found.lower - 1 if found.lower > 0 else 1e9,
        "status": "ok",
    }
    if _DRAWS / steps >= _FEWEST:
        row |= _checked(setting, found.lower, found.upper)
    return row


FIELDS = (
    *OF_SETTING[1:],
    *("epsilon_lower", "epsilon", "width", "seconds", "cpu_seconds"),
    *("sampled_lower", "error_lower", "sampled_upper", "error_upper", "contained"),
)


def report(out: Path) -> None:
    """Print the widest bracket, the longest time, and how many estimates of delta agree with their bracket, from the
    rows in the folder `out`."""
    rows = read_rows(out)
    checked = rows[rows["contained"].notna()]
    print(
        f"{len(rows)} settings: brackets of epsilon at most {100 * rows['width'].max():.2f}% wide (claim"
        f" {100 * WIDTH:g}%), at most {rows['cpu_seconds'].max():.2f} s of processor time (claim {SECONDS:g} s);"
        f" {int(checked['contained'].sum())} of {len(checked)} sampled brackets hold"
    )
