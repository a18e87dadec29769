"""`Law`, the distribution of one release's privacy loss, and `Cost`, the privacy cost of many releases.

A release is what one private step publishes. Its privacy loss at an output is L = log dP/dQ, where P and Q are the
distributions of the output on two neighbouring data sets. A pair of distributions dominates another one if its
delta(epsilon) is at least as large at every epsilon. A `Law` provides a pair that dominates (P, Q), for upper bounds,
and a pair that (P, Q) dominates, for lower bounds.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.special import ndtr

from dpzero_theory.check import Array

_Number = TypeVar("_Number", float, Array)
Span = tuple[float, float]  # a pair (a, b) for the losses above a and up to b
EVERY: Span = (-math.inf, math.inf)
UNIT = 2.0**-53  # the largest relative error of one rounding to a 64-bit float, the unit of error bounds
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)  # log of sqrt(2 pi), the constant of the normal density
CDF_ERROR = 4e-15
"""The relative error of scipy's normal probability ndtr(z), at a z that is rounded itself, is at most CDF_ERROR (1 +
min(z, 0)^2/3), which is 36 + 12 min(z, 0)^2 units of 2^-53. It is measured, not proved: at 40,000 points from -37.5 to
39 scipy 1.17 differed from mpmath by at most 4.3 (1 + z^2) units for z < 0 and 1.8 units for z >= 0. A relative error
of 2 units in z adds at most 2 (1 + z^2) units for z < 0 and 0.6 for z >= 0, since |z| phi(z)/ndtr(z), with phi the
density, is at most 1 + z^2 and 0.3."""


def log_law(law: Array) -> Array:
    """Returns the natural logarithm of each entry >= 0 of an array; the log of 0 is -inf, without a warning."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law), dtype=np.float64)


def log_moments(log_weight: Array, rates: Array, points: Array) -> Array:
    """Returns the log of the moment E e^{rate X} for each rate of the array `rates`, without overflow. X takes the
    values `points` with probabilities whose logs are `log_weight`."""
    terms = rates[:, None] * points + log_weight
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))


def sketched(values: Array, mass: Array, most: int = 1600) -> tuple[Array, Array]:
    """Shortens a discrete distribution to at most about `most` values by merging neighbouring ones into their mean.
    `values` are in rising order and `mass` are their probabilities. Returns the new values and probabilities; a shorter
    distribution is returned unchanged. Likely values are merged less. The result is only accurate enough to choose
    tilts and grid ranges, where an error affects no bound."""
    if len(values) <= most:
        return values, mass
    share = np.sqrt(np.sqrt(mass))
    at = np.cumsum(share / np.sum(share) + 1 / len(mass)) * (most / 2)
    starts = np.flatnonzero(np.diff(np.floor(at), prepend=-1.0))
    total = np.add.reduceat(mass, starts)
    seen = total > 0
    return np.add.reduceat(values * mass, starts)[seen] / total[seen], total[seen]


def log_mixed(weight: float, level: Array) -> Array:
    """Returns log(1 - weight + weight e^level) for each entry of `level`, without overflow: the log density ratio of a
    mixture in which the share `weight` in (0, 1] has the log density ratio `level`, the rest 0. The relative error is
    small where the result is near 0."""
    if weight == 1:
        return level
    more = weight * np.expm1(np.minimum(level, 700.0))
    found: Array = np.log1p(np.maximum(more, -0.5))
    far = (more < -0.5) | (level > 700)
    found[far] = np.logaddexp(math.log1p(-weight), math.log(weight) + level[far])
    return found


def normal_mass(low: Array, high: Array) -> tuple[Array, Array]:
    """Returns two arrays: the probabilities that a standard normal variable is between `low` and `high` >= low, entry
    by entry, and bounds on their absolute errors. Entries may be infinite."""
    side = high > -low
    first, second = np.where(side, -high, low), np.where(side, -low, high)
    top = ndtr(second)
    return top - ndtr(first), CDF_ERROR * (1 + np.clip(second, -40.0, 0.0) ** 2 / 3) * top


_SECANTS, _AIMED = 6, 5
"""In the search `crossing`, after its first `_SECANTS` calls of the function, an outward step is at least twice as long
as the last. In its first `_AIMED` calls steps may be below the accuracy `share`, for a value in the range `aim`."""
TILTS = np.geomspace(1e-3, 1e5, 56)  # values of tau > 0 among which the best is sought, to bound delta (`log_c`)


def log_c(tau: _Number) -> _Number:
    """Returns the log of c(tau) = max over y > 0 of (1 - e^{-y}) e^{-tau y} for tau > 0, which is in Chernoff's bound
    on delta: with L the loss, delta(epsilon) = E_P (1 - e^{epsilon - L})_+ <= c(tau) e^{-tau epsilon} E_P e^{tau L}."""
    found: _Number = -tau * np.log1p(1 / tau) - np.log1p(tau)
    return found


def chernoff_epsilon(sketches: Iterable[tuple[int, Array, Array]], delta: float) -> float:
    """Returns about the epsilon >= 0 at which Chernoff's bound on delta of a composition equals `delta` in (0, 1). It
    is only a start for searches, so its error affects no bound. `sketches` holds, for each law, the number of its
    releases, an array of its losses and an array of the logs of their probabilities."""
    moments = sum(count * log_moments(log_mass, TILTS, loss) for count, loss, log_mass in sketches)
    return max(float(np.min((moments + log_c(TILTS) - math.log(delta)) / TILTS)), 0.0)


def crossed(bound: Callable[[float], float], target: float, near: float, slope: float, way: int) -> float:
    """Returns an epsilon >= 0 at which `bound`, a falling function from epsilon to a bound on delta, crosses the delta
    `target` > 0, to a relative 1e-11. With `way` 1 the bound is at most the target at the returned epsilon, which is
    infinite if there is none. With `way` -1 the bound is above the target there, or 0 is returned. The search begins at
    the epsilon `near` >= 0. `slope` > 0 is about how fast -log(bound) rises with epsilon there."""
    low, high, x, before, gap = -1.0, math.inf, near, math.nan, math.nan
    for _ in range(60):
        last, gap = gap, math.log(max(bound(x), 5e-324) / target)
        low, high = (x, high) if gap > 0 else (low, x)
        if (x - before) * (gap - last) < 0:
            slope = (last - gap) / (x - before)
        before, x = x, min(max(x + gap / slope, 0.0), 4 * x + 1)
        if before == 0 >= gap or abs(x - before) <= 1e-11 * x:
            break
        if not low < x < high:  # a secant leaves the bracket where the bound jumps: halve it
            x = (low + high) / 2
    x, step = before, way * 1e-11 * max(before, 1e-11)
    while (x > 0 or way > 0) and x < math.inf and (bound(x) > target) == (way > 0):
        x, step = max(x + step, 0.0), 2 * step
    return x


def crossing(
    excess: Callable[[float], float],
    guess: float,
    *,
    least: float = 1e-300,
    most: float = 1e300,
    rising: bool = False,
    share: float = 0.0,
    whole: bool = False,
    slope: float = 5,
    aim: tuple[float, float] | None = None,
) -> tuple[float | None, float | None]:
    """Brackets the x > 0 at which a monotone function changes from above 0 to at most 0, with few calls of it.

    The search goes outward from a guess, then by secants in log x between the two ends that it has.

    Args:
        excess: the function, such as the amount by which a run with x misses a target. Its values may be infinite.
        guess: where the search begins; it is clipped to [least, most], and rounded if `whole`.
        least, most: the range of x.
        rising: True if the function rises, so that small x have values of at most 0; False if it falls.
        share: the search ends once its two ends differ by at most this relative amount, or for 0 once no float lies
            between them; in any case after 100 calls.
        whole: True to try integers only; then the search ends at two neighbouring integers.
        slope: about how much the function changes while x changes by a factor e; it sets the first step.
        aim: values (a, b), a <= b, or None. The search tries points for a value in [a, b], and ends if it meets one.

    Returns:
        A pair (missed, met): the tried x nearest to the change with a value above 0, and the nearest one with a value
        of at most 0. One of them is None if all values that were met are on the same side.
    """
    way = -1 if rising else 1
    # For each side of the change (False: above 0) the nearest x so far: `way` times its log, and the value there.
    ends: dict[bool, tuple[float, float]] = {}
    points: dict[bool, float] = {}
    x = min(max(round(guess) if whole else guess, least), most)
    step, last, widths = share, None, [math.inf] * 3
    middle = sum(aim) / 2 if aim else 0.0
    for tried in range(100):
        value = excess(x)
        side, here = value <= 0, way * math.log(x)
        if aim and aim[0] <= value <= aim[1]:
            points[side] = x
            break
        aimed = aim is not None and tried < _AIMED and math.isfinite(value)
        rate = 0.0  # how fast the function changes from the last point on this side
        if len(ends) < 2 and side in ends and math.isfinite(value - ends[side][1]):
            rate = abs((value - ends[side][1]) / (here - ends[side][0]))
        if aimed:
            slope = min(max(rate or slope, slope / 4), 4 * slope)
            outer = min(abs(value - middle) / slope, 1.5)
        elif rate > 0:
            # The secant through the last two points, a little beyond the root.
            outer = min(max(1.2 * abs(value) / rate, share if tried < _SECANTS else 2 * step), 16 * step)
        else:
            outer = max(2 * step, min(1.1 * abs(value) / slope, 1.5))
        ends[side], points[side] = (here, value), x
        if len(ends) < 2:
            step = max(outer, 1e-15 if aimed else share, 1e-15)
            bound = most if (way > 0) != side else least
            if x == bound:
                break
            x = x * math.exp((-1 if side else 1) * way * step)
            x = (math.floor(x) if x < points[side] else math.ceil(x)) if whole else x
            x = min(max(x, least), most)
            continue
        (start, above), (end, below) = ends[False], ends[True]
        if end - start <= share or (whole and abs(points[True] - points[False]) <= 1):
            break
        if side is last:  # two in a row on one side: halve the other end's value, so that the next passes the root
            ends[not side] = (ends[not side][0], ends[not side][1] / 2)
        last = side
        halving = end - start > 0.5 * widths[-3] or not math.isfinite(above - below)
        widths.append(end - start)
        at = 0.5 if halving else (above - middle) / (above - below)
        room = min(share, end - start) / (50 if aimed else 2)
        x = math.exp(way * min(max(start + at * (end - start), start + room), end - room))
        if whole:
            x = min(max(round(x), min(points.values()) + 1), max(points.values()) - 1)
        elif not min(points.values()) < x < max(points.values()):
            break
    return points.get(False), points.get(True)


@dataclass(frozen=True)
class Cells:
    """The probabilities of one release's privacy losses on the grid k H, for integers k and a width H. P's are
    multiplied by e^{tau k H} for some tau >= 0, and Q's by e^{(1 + tau) k H}; all are divided by e^{log_scale}, so that
    they are floats. Entry i of each array is for k = first + i.

    Attributes:
        first: the smallest k.
        upper: P's probabilities for a pair that dominates the release once all its losses are raised by `slip`: its
            delta is then at least that of the release at every epsilon.
        p, q: P's and Q's probabilities of the outputs with losses in [(k - 1/2) H, (k + 1/2) H).
        slip: a bound on the absolute error of the losses at which outputs were divided into cells.
        error: a bound on the relative error of every entry.
        log_scale: the log of the number by which all entries were divided.
    """

    first: int
    upper: Array
    p: Array
    q: Array
    slip: float
    error: float
    log_scale: float


class Law:
    """The distribution under P of one release's privacy loss log dP/dQ, where P and Q are the distributions of its
    output on two neighbouring data sets, in one order.

    Methods leave out outputs more than `z` standard deviations of the noise beyond the means, and callers add their
    probability. A law without a standard deviation leaves out its largest losses, of probability at most Phi(-z) under
    P, with Phi the normal distribution function. Subclasses define `largest`, `sketch` and `cells`, or only `refined`
    if they choose among other laws.

    Attributes:
        infinite: a bound on the probability under P of an infinite loss; `cells` leaves these outputs out.
    """

    infinite: float

    def refined(self, points: int, z: float) -> "Law":
        """Returns the law to use instead of this one on a grid of `points` total losses, for outputs up to `z` standard
        deviations of the noise beyond their means. Most laws return themselves. A law that is slow to compute returns
        one that bounds the delta of the release from the same side, above or below, and for few points more roughly."""
        return self

    def like(self) -> "tuple[Law, int]":
        """Returns a law that is quick to compute, and a number of its releases that cost about as much as one release
        of this law. It only guesses where to search, so its error affects no bound."""
        return self, 1

    def largest(self, z: float) -> float:
        """Returns an upper bound on the finite losses of outputs up to `z` standard deviations beyond the means."""
        raise NotImplementedError

    def sketch(self, z: float) -> tuple[Array, Array]:
        """Returns a rough discrete form of the distribution: an array of losses, in any order, and an array of the logs
        of their probabilities under P, which sum to about 1. Outputs up to `z` standard deviations of the noise beyond
        the means are divided into cells, each represented by its middle. The result only serves to choose tilts and
        grids, so its errors affect no bound."""
        raise NotImplementedError

    def cells(self, z: float, tau: float, width: float, lowest: float, span: Span = EVERY) -> Cells:
        """Returns the probabilities of the losses on a grid, as `Cells`. A loss between two grid points is split
        between both in `upper`, so that delta cannot fall, and goes to the nearest one in `p` and `q`.

        Args:
            z: outputs more than z standard deviations of the noise beyond the means and infinite losses are left out.
            tau: the tilt >= 0: P's probabilities are multiplied by e^{tau loss}, Q's by e^{(1 + tau) loss}.
            width: the grid has the losses k `width`, for integers k; > 0.
            lowest: losses below this number are raised to it.
            span: a pair (a, b); only losses above a and up to b are counted. An output near the common end of two spans
                is in exactly one of them.

        Raises:
            OverflowError: the grid needs too many cells; for laws with finitely many outcomes, more than 2^20.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ByChance(Law):
    """The law of a release whose kind is chosen at random, independently of the protected record. Its cost also holds
    for an observer who sees the kind. `kinds` is a tuple of pairs (upper bound on the probability of a kind, in (0, 1];
    `Law` of the loss of that kind)."""

    kinds: tuple[tuple[float, Law], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "infinite", math.fsum(chance * law.infinite for chance, law in self.kinds))

    def largest(self, z: float) -> float:
        return max(law.largest(z) for _, law in self.kinds)

    def sketch(self, z: float) -> tuple[Array, Array]:
        found = [(law.sketch(z), math.log(chance)) for chance, law in self.kinds]
        return np.concatenate([one[0] for one, _ in found]), np.concatenate([one[1] + log for one, log in found])

    def cells(self, z: float, tau: float, width: float, lowest: float, span: Span = EVERY) -> Cells:
        kinds = [(math.log(chance), law.cells(z, tau, width, lowest, span)) for chance, law in self.kinds]
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


Parts = tuple[tuple[Law, int], ...]  # a composition: pairs of a law of one release and the number of such releases
_Directions = tuple[Parts, Parts]
"""Two compositions, one for each order of two neighbouring data sets: the protected record is in the data set with
distribution P in the first one, and in the data set with distribution Q in the second one."""


@dataclass(frozen=True)
class Cost:
    """The privacy cost of a number of steps. The cost of several steps is the sum of their costs; the function of the
    data that a step releases may depend on earlier outputs, but not its noise, its batches or the number of steps.

    Each step is counted in one of three forms: as a `Law`; as a Gaussian release without sampling, which is exactly
    mu-GDP; or by a zCDP bound. Upper bounds on delta and epsilon follow from `above`, squares[0], `zcdp` and `ratio`,
    lower bounds from `below`, squares[1] and `ratio`. P and Q are the distributions of what is released from two
    neighbouring data sets.

    Attributes:
        above: two compositions (tuples of pairs: a `Law`, the number of releases with it), whose delta is at least that
            of the steps: with the protected record in the data set of P, and in that of Q.
        below: two such compositions whose delta is at most that of the steps on some data sets; both () if unknown.
        squares: two sums of mu^2 of Gaussian releases without sampling, which are in neither `above` nor `below`: for
            upper and for lower bounds. The first is infinite for steps without a known upper bound.
        ratio: G >= 0 such that the true probabilities of events are within a factor e^G of those of the laws.
        pure: an upper and a lower bound on the epsilon of all steps at delta = 0; (infinity, 0) if unknown.
        zcdp: the sums of rho and of xi of steps of which only this is known: their Renyi divergence of every order a >
            1 is at most xi + rho a.
        unamplified: mu^2 of Gaussian releases without sampling that cost no less than the steps; infinite if unknown.
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
        """Returns the exact cost of `count` >= 1 releases with the same `Law`; some data sets attain it, so upper and
        lower bounds follow from it. `first` is the law with the protected record in the data set of P, and `second`
        with it in the data set of Q; None means that both are equal."""
        made: _Directions = (((first, count),), ((second or first, count),))
        return cls(made, made)

    @classmethod
    def plain(cls, mu: float) -> "Cost":
        """Returns the cost of Gaussian releases without sampling that together are exactly mu-GDP, mu > 0."""
        return cls(squares=(mu * mu, mu * mu), unamplified=mu * mu)

    def bounding(self, below: "Cost | None" = None) -> "Cost":
        """Returns a cost with this one's upper bounds and its bounds on epsilon at delta = 0, and with the lower bounds
        of `below`, a cost that some data sets attain; lower bounds of 0 if `below` is None."""
        other = below or NOTHING
        return replace(self, below=other.below, squares=(self.squares[0], other.squares[1]))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            above=(self.above[0] + other.above[0], self.above[1] + other.above[1]),
            below=(self.below[0] + other.below[0], self.below[1] + other.below[1]),
            squares=(_sum_above(self.squares[0], other.squares[0]), self.squares[1] + other.squares[1]),
            ratio=self.ratio + other.ratio,
            pure=(_sum_above(self.pure[0], other.pure[0]), self.pure[1] + other.pure[1]),
            zcdp=(_sum_above(self.zcdp[0], other.zcdp[0]), _sum_above(self.zcdp[1], other.zcdp[1])),
            unamplified=_sum_above(self.unamplified, other.unamplified),
        )

    @property
    def closed(self) -> bool:
        """True if upper bounds have a closed form, as all steps are Gaussian releases without sampling."""
        return self.squares[0] < math.inf and not (any(self.above) or any(self.zcdp))


def _sum_above(one: float, other: float) -> float:
    return math.nextafter(one + other, math.inf) if one and other else one + other


NOTHING = Cost(pure=(0.0, 0.0), unamplified=0.0)  # the cost of no steps
UNKNOWN = Cost(squares=(math.inf, 0.0))  # the cost of steps without a known upper bound, with lower bounds 0
