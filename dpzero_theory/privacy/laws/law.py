"""A law: what one release costs, as weights on a grid of privacy losses; and the cost of many releases.

The privacy loss of an output is L = log dP/dQ, with P and Q the laws of what a release shows of two neighbouring data
sets. A `Law` bounds one release from both sides on every grid: by a pair of laws that dominates (P, Q), so that it
costs no less, and by one that (P, Q) dominates. What steps cost is a `Cost`: laws with counts, in a form in which the
costs of different steps add up.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.special import ndtr

from dpzero_theory.check import Array

_Number = TypeVar("_Number", float, Array)
UNIT = 2.0**-53
"""The largest relative error of one rounding to a 64-bit float; error bounds count roundings in this unit."""
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
"""Log of sqrt(2 pi), the constant of the normal density."""
CDF_ERROR = 4e-15
"""Bounds the relative error of scipy's normal probability ndtr(z) for a rounded z: CDF_ERROR (1 + min(z, 0)^2/3).

That is 36 + 12 z^2 units of 2^-53. It is measured, not proved: against mpmath `ndtr` erred by at most 3.4 (1 + z^2)
units at 18,000 points from -38 to 9. The rounding of z, by 2 units of its size, adds 2 z^2.
"""


def log_law(law: Array) -> Array:
    """The natural logarithms of the masses in `law`; the log of a mass of 0 is -inf."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law), dtype=np.float64)


def log_moments(log_weight: Array, rates: Array, points: Array) -> Array:
    """The log of E e^{rate X} for each of the `rates`, where X has the values `points` with probabilities e^log_weight.
    It is computed without overflow."""
    terms = rates[:, None] * points + log_weight
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))


def sketched(values: Array, mass: Array) -> tuple[Array, Array]:
    """Join neighbouring values, so that about 1600 of them are left, and return them with their masses. A shorter law
    is returned as it is."""
    if len(values) > 1600:
        starts = np.arange(0, len(values), -(-len(values) // 1600))
        total, moment = np.add.reduceat(mass, starts), np.add.reduceat(mass * values, starts)
        seen = total > 0
        return moment[seen] / total[seen], total[seen]
    return values, mass


def log_mixed(weight: float, level: Array) -> Array:
    """The log of 1 - weight + weight e^level for each entry of `level`, without overflow, and with a small relative
    error where it is near 0.

    `weight` is in (0, 1].
    """
    if weight == 1:
        return level
    more = weight * np.expm1(np.minimum(level, 700.0))
    near = np.abs(more) < 0.5
    far = np.logaddexp(math.log1p(-weight), math.log(weight) + level)
    return np.asarray(np.where(near, np.log1p(np.where(near, more, 0.0)), far))


def normal_mass(low: Array, high: Array) -> tuple[Array, Array]:
    """The probability that a standard normal variable is between `low` and `high`, and a bound on its absolute error,
    for each entry of the two arrays."""
    side = high > -low
    first, second = np.where(side, -high, low), np.where(side, -low, high)
    top = ndtr(second)
    return top - ndtr(first), CDF_ERROR * (1 + np.clip(second, -40.0, 0.0) ** 2 / 3) * top


TILTS = np.geomspace(1e-3, 1e5, 56)
"""The tilts tau among which the best one is sought."""


def log_c(tau: _Number) -> _Number:
    """The log of c(tau) = max over y > 0 of (1 - e^{-y}) e^{-tau y}, tau > 0.

    So delta(epsilon) = E_P (1 - e^{epsilon - L})_+ <= c(tau) e^{-tau epsilon} E_P e^{tau L} for the privacy loss L.
    """
    found: _Number = -tau * np.log1p(1 / tau) - np.log1p(tau)
    return found


def chernoff_epsilon(sketches: Iterable[tuple[int, Array, Array]], delta: float) -> float:
    """About the epsilon >= 0 at which Chernoff's bound on delta(epsilon) is `delta`, in (0, 1). `sketches` has for each
    law the number of its releases and the two arrays of `Law.sketch`."""
    moments = sum(count * log_moments(log_mass, TILTS, loss) for count, loss, log_mass in sketches)
    return max(float(np.min((moments + log_c(TILTS) - math.log(delta)) / TILTS)), 0.0)


def crossed(bound: Callable[[float], float], target: float, near: float, slope: float, way: int) -> float:
    """An epsilon >= 0 at which a bound on delta crosses a target, up to 1e-11 of itself, rounded to a side.

    Args:
        bound: the bound on delta, a falling function of epsilon.
        target: the delta that is crossed.
        near: where the search begins.
        slope: about how fast -log(bound) rises there.
        way: 1 to return an epsilon at which the bound is at most the target, infinite if there is none; -1 for one at
            which it is above the target, or 0 if there is none.
    """
    low, high, x, before, gap = -1.0, math.inf, near, math.nan, math.nan
    for _ in range(60):
        last, gap = gap, math.log(max(bound(x), 5e-324) / target)
        low, high = (x, high) if gap > 0 else (low, x)
        if (x - before) * (gap - last) < 0:
            slope = (last - gap) / (x - before)
        before, x = x, min(max(x + gap / slope, 0.0), 4 * x + 1)
        if before == 0 >= gap or abs(x - before) <= 1e-11 * x:
            break
        if not low < x < high:  # where the bound jumps, secants do not help
            x = (low + high) / 2
    x, step = before, way * 1e-11 * max(before, 1e-11)
    while (x > 0 or way > 0) and x < math.inf and (bound(x) > target) == (way > 0):
        x, step = max(x + step, 0.0), 2 * step
    return x


@dataclass(frozen=True)
class Cells:
    """The weights of one release at the losses k H, k = first, first + 1, ..., on a grid of width H.

    They are tilted by tau: P's weights are multiplied by e^{tau k H}, and Q's by e^{(1 + tau) k H}. All are divided by
    e^{log_scale}.

    Attributes:
        first: the first k.
        upper: P's weights of a pair of laws that dominates the release. Its losses are too large by at most `slip`.
        p, q: P's and Q's weights of the outputs with losses in [(k - 1/2) H, (k + 1/2) H).
        slip: a bound on the absolute error of the losses at which the outputs were cut.
        error: a bound on the relative error of every weight.
    """

    first: int
    upper: Array
    p: Array
    q: Array
    slip: float
    error: float
    log_scale: float


class Law:
    """The law of the privacy loss of one release, for one order of two neighbouring data sets.

    Outputs count up to z standard deviations of the noise from the means. A law without standard deviations leaves out
    the largest losses, of the probability Phi(-z). A class that only stands for other laws has `refined` alone, which
    the grid calls first.

    Attributes:
        infinite: a bound on the probability under P of an infinite loss; `cells` leaves these outputs out.
    """

    infinite: float

    def refined(self, points: int, z: float) -> "Law":
        """Return the law to use for a grid of so many points, with outputs up to `z`. Some laws take long to compute
        precisely, and coarse grids do without."""
        return self

    def largest(self, z: float) -> float:
        """An upper bound on the finite losses of the outputs up to `z`."""
        raise NotImplementedError

    def sketch(self, z: float) -> tuple[Array, Array]:
        """Return about the losses and the logs of their probabilities, of the outputs up to `z`. They only choose tilts
        and grids."""
        raise NotImplementedError

    def cells(self, z: float, tau: float, width: float, lowest: float) -> Cells:
        """Return the weights on a grid.

        Args:
            z: outputs count up to so many standard deviations from the means.
            tau: the tilt, > 0.
            width: the width H of the grid.
            lowest: smaller losses count as this one.

        Raises:
            OverflowError: the grid needs too many cells.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ByChance(Law):
    """A release of one of several kinds, by a chance that does not depend on the protected record.

    An observer may know of which kind a release is: its loss is the loss of the kind.

    Args:
        kinds: for each kind an upper bound on its chance, and its law.
    """

    kinds: tuple[tuple[float, Law], ...]

    def __post_init__(self) -> None:
        chances = [chance for chance, _ in self.kinds]
        if not (math.fsum(chances) >= 1 and max(chances) <= 1):
            raise ValueError(f"kinds must have chances of at most 1 that sum to at least 1; got {chances}")
        object.__setattr__(self, "infinite", math.fsum(chance * law.infinite for chance, law in self.kinds))

    def largest(self, z: float) -> float:
        return max(law.largest(z) for _, law in self.kinds)

    def sketch(self, z: float) -> tuple[Array, Array]:
        found = [(law.sketch(z), math.log(chance)) for chance, law in self.kinds]
        return np.concatenate([one[0] for one, _ in found]), np.concatenate([one[1] + log for one, log in found])

    def cells(self, z: float, tau: float, width: float, lowest: float) -> Cells:
        kinds = [(math.log(chance), law.cells(z, tau, width, lowest)) for chance, law in self.kinds]
        first = min(one.first for _, one in kinds)
        count = max(one.first + len(one.upper) for _, one in kinds) - first
        log_scale = max(log + one.log_scale for log, one in kinds)
        total = {name: np.zeros(count) for name in ("upper", "p", "q")}
        for log, one in kinds:
            factor = math.exp(log + one.log_scale - log_scale)
            for name, law in total.items():
                law[one.first - first :][: len(one.upper)] += factor * getattr(one, name)
        spread = max(abs(log + one.log_scale - log_scale) - log for log, one in kinds)
        error = max(one.error for _, one in kinds) + UNIT * (16 + 4 * spread)
        return Cells(first, **total, slip=max(one.slip for _, one in kinds), error=error, log_scale=log_scale)


Parts = tuple[tuple[Law, int], ...]
"""A composition: the law of one release of each kind, with the number of such releases."""
_Directions = tuple[Parts, Parts]
"""Compositions for the two orders of neighbouring data sets: first with the record under P, then with the record under
Q."""


@dataclass(frozen=True)
class Cost:
    """What a number of steps cost. Costs are added with `+`.

    What a step asks of the data may depend on earlier releases. Its noise, its batches and the number of steps may not.

    Attributes:
        above: laws that dominate the steps, for upper ends.
        below: laws that some data attain, for lower ends; empty if none are known.
        squares: mu^2 of plain Gaussian releases that are in neither: for upper ends, and for lower ends.
        ratio: G >= 0 such that probabilities of events are within a factor e^G of those of the laws.
        pure: upper and lower bounds on the pure epsilon (at delta = 0) of all steps; infinity and 0 if there is none.
        zcdp: the sums of rho and of xi of steps that are only known to be zCDP: their Renyi divergence of order a is at
            most xi + rho a.
        unamplified: mu^2 of plain Gaussian releases that cost at least what all steps do; infinite if none are known.
    """

    above: _Directions = ((), ())
    below: _Directions = ((), ())
    squares: tuple[float, float] = (0.0, 0.0)
    ratio: float = 0.0
    pure: tuple[float, float] = (math.inf, 0.0)
    zcdp: tuple[float, float] = (0.0, 0.0)
    unamplified: float = math.inf

    @classmethod
    def of(cls, first: Law, second: Law | None = None, *, count: int) -> "Cost":
        """The cost of `count` releases with these laws in the two directions, which data attain. If `second` is None,
        both directions have the first law."""
        made: _Directions = (((first, count),), ((second or first, count),))
        return cls(made, made)

    @classmethod
    def plain(cls, mu: float) -> "Cost":
        """The cost of releases that are exactly mu-GDP."""
        return cls(squares=(mu * mu, mu * mu), unamplified=mu * mu)

    def bounding(self, below: "Cost | None" = None) -> "Cost":
        """The same cost as an upper bound only; the lower ends are those of `below`, or 0 if it is None."""
        other = below or NOTHING
        return replace(self, below=other.below, squares=(self.squares[0], other.squares[1]))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            above=(self.above[0] + other.above[0], self.above[1] + other.above[1]),
            below=(self.below[0] + other.below[0], self.below[1] + other.below[1]),
            squares=(_up(self.squares[0], other.squares[0]), self.squares[1] + other.squares[1]),
            ratio=self.ratio + other.ratio,
            pure=(_up(self.pure[0], other.pure[0]), self.pure[1] + other.pure[1]),
            zcdp=(_up(self.zcdp[0], other.zcdp[0]), _up(self.zcdp[1], other.zcdp[1])),
            unamplified=_up(self.unamplified, other.unamplified),
        )

    @property
    def closed(self) -> bool:
        """Whether plain Gaussian releases are all that is composed."""
        return self.squares[0] < math.inf and not (any(self.above) or any(self.zcdp))


def _up(one: float, other: float) -> float:
    """The sum of two numbers, rounded up."""
    return math.nextafter(one + other, math.inf) if one and other else one + other


NOTHING = Cost(pure=(0.0, 0.0), unamplified=0.0)
"""The cost of no steps."""
UNKNOWN = Cost(squares=(math.inf, 0.0))
"""The cost of steps of which no upper bound is known."""
