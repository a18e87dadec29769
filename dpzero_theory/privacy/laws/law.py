"""The law of one release's privacy loss, in a form that can be put on a grid; and the cost of many releases.

The privacy loss of an output is L = log dP/dQ, with P and Q the laws of what a release shows of two neighbouring data
sets. One pair of laws dominates another if its delta(epsilon) is at least as large at every epsilon. A `Law` bounds one
release on every grid by a pair that dominates (P, Q), for upper ends of a bracket, and by a pair that (P, Q) dominates,
for lower ends. A `Cost` says what steps cost, as laws with numbers of releases; costs are added.
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
min(z, 0)^2/3), which is 36 + 12 min(z, 0)^2 units of 2^-53. It is measured, not proved: at 40,000 points, from -37.5
(where ndtr gets near the least normal float) to 39, scipy 1.17 differed from mpmath by at most 4.3 (1 + z^2) units for
z < 0, the most near -1.3, and by at most 1.8 units for z >= 0. An error of 2 units in z, relative to z, adds at most 2
(1 + z^2) units for z < 0 and 0.6 for z >= 0, since |z| phi(z)/ndtr(z), with phi the density, is at most 1 + z^2 and
0.3."""


def log_law(law: Array) -> Array:
    """The natural logarithms of the entries >= 0 of an array; the log of 0 is -inf, without a warning."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(law), dtype=np.float64)


def log_moments(log_weight: Array, rates: Array, points: Array) -> Array:
    """The logs of the moments E e^{rate X} for an array of `rates`, without overflow. X has the values `points`, with
    probabilities whose logs are `log_weight`."""
    terms = rates[:, None] * points + log_weight
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))


def sketched(values: Array, mass: Array, most: int = 1600) -> tuple[Array, Array]:
    """Shorten a law, given by ordered values and their probabilities `mass`, to at most about `most` values, each the
    mean of neighbouring ones; a shorter law stays. Likely values stay apart, since many copies of them are added.
    Serves only to choose tilts and ranges of grids, so its errors do not affect any bound."""
    if len(values) <= most:
        return values, mass
    share = np.sqrt(np.sqrt(mass))
    at = np.cumsum(share / np.sum(share) + 1 / len(mass)) * (most / 2)
    starts = np.flatnonzero(np.diff(np.floor(at), prepend=-1.0))
    total = np.add.reduceat(mass, starts)
    seen = total > 0
    return np.add.reduceat(values * mass, starts)[seen] / total[seen], total[seen]


def log_mixed(weight: float, level: Array) -> Array:
    """The log of 1 - weight + weight e^level for each entry of `level`, without overflow: the log density ratio of a
    mixture, of which the share `weight` in (0, 1] has the log density ratio `level` and the rest has 0. Near 0 the
    relative error is small."""
    if weight == 1:
        return level
    more = weight * np.expm1(np.minimum(level, 700.0))
    near = np.abs(more) < 0.5
    far = np.logaddexp(math.log1p(-weight), math.log(weight) + level)
    return np.asarray(np.where(near, np.log1p(np.where(near, more, 0.0)), far))


def normal_mass(low: Array, high: Array) -> tuple[Array, Array]:
    """The probability that a standard normal variable is between `low` and `high` >= low, for each entry of the two
    arrays, and a bound on the absolute error of each. Entries may be infinite."""
    side = high > -low
    first, second = np.where(side, -high, low), np.where(side, -low, high)
    top = ndtr(second)
    return top - ndtr(first), CDF_ERROR * (1 + np.clip(second, -40.0, 0.0) ** 2 / 3) * top


_SECANTS, _AIMED = 6, 5
"""How many steps outward of `crossing` have lengths chosen by secants, each later one being at least twice the last;
and how many points are chosen for the values that its caller aims at."""
TILTS = np.geomspace(1e-3, 1e5, 56)  # values of tau > 0 among which the best is sought, to bound delta (`log_c`)


def log_c(tau: _Number) -> _Number:
    """The log of c(tau) = max over y > 0 of (1 - e^{-y}) e^{-tau y}, tau > 0, the constant of Chernoff's bound: with L
    the privacy loss, delta(epsilon) = E_P (1 - e^{epsilon - L})_+ <= c(tau) e^{-tau epsilon} E_P e^{tau L}."""
    found: _Number = -tau * np.log1p(1 / tau) - np.log1p(tau)
    return found


def chernoff_epsilon(sketches: Iterable[tuple[int, Array, Array]], delta: float) -> float:
    """About the epsilon >= 0 at which Chernoff's bound on the delta(epsilon) of a composition is `delta` in (0, 1).
    Searches begin there, so its error does not affect any bound. `sketches` has for each law its number of releases and
    an array of its losses and one of the logs of their probabilities."""
    moments = sum(count * log_moments(log_mass, TILTS, loss) for count, loss, log_mass in sketches)
    return max(float(np.min((moments + log_c(TILTS) - math.log(delta)) / TILTS)), 0.0)


def crossed(bound: Callable[[float], float], target: float, near: float, slope: float, way: int) -> float:
    """An epsilon >= 0 where `bound`, a bound on delta that falls with epsilon, crosses the delta `target` > 0, to a
    relative 1e-11. With `way` 1 the bound is at most the target at the returned epsilon, which is infinite if there is
    none; with `way` -1 the bound is above the target there, and 0 is returned if it never is. The search begins at the
    epsilon `near` >= 0, where -log(bound) rises about `slope` > 0 times as fast as epsilon."""
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
    """Narrow down the x > 0 at which a monotone function changes from above 0 to at most 0.

    The search goes outward from a guess, then by secants in log x between the two ends that it has. So it calls the
    function, which may take seconds, only a few times where the function is smooth and the guess is near.

    Args:
        excess: the function, such as the amount by which a run with x misses a target: x is good where it is at most 0.
            Its values may be infinite.
        guess: where the search begins; it is clipped to the range of x, and rounded with `whole`.
        least, most: the range of x.
        rising: whether the function rises, so that small x are good; otherwise large x are.
        share: the search ends once the two ends differ by at most this share of x; with 0, once no float lies between
            them. In any case it ends after 100 calls.
        whole: whether only integers are tried; then the search ends at two neighbouring integers.
        slope: about how much the function changes while x changes by a factor e; it chooses the first step.
        aim: two values (a, b) of the function, a <= b. A search that meets a value in [a, b] ends there at once, so
            that one call may do; the points that it tries are chosen for such a value.

    Returns:
        A pair (missed, met): the tried x nearest to the change with a value above 0, and the nearest with a value of at
        most 0. One of them is None if all values that were met have one sign, as in a range without a root.
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
        if side is last:  # twice on one side: the other end counts half, so that the next point falls beyond the root
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
    """The probabilities of one release's privacy losses, on the grid of the losses k H for integers k, of width H. They
    are tilted by tau >= 0, P's by the factor e^{tau k H} and Q's by e^{(1 + tau) k H}, and divided by e^{log_scale}, so
    that they are floats. Entry i of each array is the weight at k = first + i.

    Attributes:
        first: the least k.
        upper: P's weights of a pair of laws that dominates the release (its delta is at least the release's at every
            epsilon) once all its losses are raised by `slip`.
        p, q: P's and Q's weights of the outputs with losses in [(k - 1/2) H, (k + 1/2) H).
        slip: a bound on the absolute error of the losses at which the outputs were cut into cells.
        error: a bound on the relative error of every weight.
        log_scale: the log of the number by which all weights were divided.
    """

    first: int
    upper: Array
    p: Array
    q: Array
    slip: float
    error: float
    log_scale: float


class Law:
    """The law of the privacy loss log dP/dQ of one release under P, for one order (P, Q) of two neighbouring data sets.

    The methods leave out outputs more than `z` standard deviations of the noise beyond the means, and callers add the
    probability of those outputs. A law without a standard deviation leaves out the largest losses, which have at most
    the probability Phi(-z) under P, Phi being the normal distribution function. Subclasses define `largest`, `sketch`
    and `cells`, or only `refined` if they choose among other laws.

    Attributes:
        infinite: a bound on the probability under P of an infinite loss; `cells` leaves these outputs out.
    """

    infinite: float

    def refined(self, points: int, z: float) -> "Law":
        """The law to use in place of this one for a grid of `points` total losses, if outputs up to `z` standard
        deviations of the noise beyond their means count; most laws return themselves. A law that takes long to compute
        returns one that bounds delta from the same side as itself, above or below, and less narrowly for few points."""
        return self

    def like(self) -> "tuple[Law, int]":
        """A law that is quick to compute, and the number of its releases that cost about as much as one release of this
        law. It serves only to guess where to look, so its error does not affect any bound."""
        return self, 1

    def largest(self, z: float) -> float:
        """An upper bound on the finite losses of the outputs up to `z` standard deviations of the noise beyond the
        means."""
        raise NotImplementedError

    def sketch(self, z: float) -> tuple[Array, Array]:
        """A rough discrete form of the law: losses, in any order, and the logs of their probabilities under P, which
        sum to about 1, in arrays of one length. A law with densities takes the middle of each of many cells of outputs,
        up to `z` standard deviations of the noise beyond the means, and the cell's mass. They serve only to choose
        tilts and grids, so their errors do not affect any bound."""
        raise NotImplementedError

    def cells(self, z: float, tau: float, width: float, lowest: float, span: Span = EVERY) -> Cells:
        """The probabilities of the losses on the grid of the multiples of `width` > 0, tilted by `tau` >= 0: P's are
        multiplied by e^{tau loss}, and Q's by e^{(1 + tau) loss}. Left out are infinite losses and outputs more than
        `z` standard deviations of the noise beyond the means; losses below `lowest`, any number, are raised to it. Only
        losses in `span` count, a pair (a, b) for losses above a and up to b; an output near the common end of two spans
        is in exactly one. Raises OverflowError if the grid needs too many cells, for laws with finitely many outcomes
        more than 2^20."""
        raise NotImplementedError


@dataclass(frozen=True)
class ByChance(Law):
    """A release that is of one of several kinds, chosen at random with chances that do not depend on the protected
    record. The cost holds also for an observer who sees which kind was chosen. `kinds`, its only argument, is a tuple
    of pairs (an upper bound on the chance of a kind, in (0, 1]; the `Law` of its loss). Raises ValueError if the
    chances sum to less than 1, or one is above 1."""

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
"""Two compositions, one for each order of neighbouring data sets: the protected record is in the data set with law P in
the first one, and in the data set with law Q in the second one."""


@dataclass(frozen=True)
class Cost:
    """What a number of steps cost; the cost of several steps is the sum of their costs. What a step asks of the data
    may depend on earlier releases. Its noise, its batches and the number of steps may not. "Plain" Gaussian releases
    have no random batches: they are exactly mu-GDP (Gaussian differential privacy), and squares of mu add up.

    The upper end of delta or epsilon is that of `above`, squares[0] and `zcdp` composed, with `ratio` on top, and the
    lower end that of `below` and squares[1]. P and Q are the laws of what is released from two neighbouring data sets.

    Attributes:
        above: two compositions (pairs of a law and how many releases have it) that dominate the steps, with the
            protected record in the data set of P, and in that of Q.
        below: two that are dominated: on some data sets the steps cost at least as much. Both are () if none are known.
        squares: two sums of mu^2 of plain Gaussian releases, which are in neither `above` nor `below`, for the upper
            and for the lower end. The first is infinite for steps without a known upper bound.
        ratio: G >= 0 such that the true probabilities of events are within a factor e^G of those of the laws.
        pure: an upper and a lower bound on the pure epsilon of all steps (where delta is 0); (infinity, 0) if unknown.
        zcdp: the sums of rho and of xi of steps that are only known to be zCDP: the Renyi divergence of every order a >
            1 of what they release is at most xi + rho a.
        unamplified: mu^2 of plain Gaussian releases that cost at least what all these steps do; infinite if unknown.
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
        """The exact cost of `count` >= 1 releases with the same law: some data sets attain it, so it holds for both
        ends. `first` is the law with the protected record in the data set of P, and `second` the law with the record in
        the data set of Q; None if that is the first law too."""
        made: _Directions = (((first, count),), ((second or first, count),))
        return cls(made, made)

    @classmethod
    def plain(cls, mu: float) -> "Cost":
        """The cost of Gaussian releases without random batches that together are exactly mu-GDP, mu > 0."""
        return cls(squares=(mu * mu, mu * mu), unamplified=mu * mu)

    def bounding(self, below: "Cost | None" = None) -> "Cost":
        """A cost with this one's upper bounds and bounds on the pure epsilon, and with the lower ends of `below`, a
        cost that some data sets attain; lower ends of 0 if `below` is None."""
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
        """Whether upper bounds have a closed form, as all steps are Gaussian releases without random batches."""
        return self.squares[0] < math.inf and not (any(self.above) or any(self.zcdp))


def _sum_above(one: float, other: float) -> float:
    return math.nextafter(one + other, math.inf) if one and other else one + other


NOTHING = Cost(pure=(0.0, 0.0), unamplified=0.0)  # the cost of no steps
UNKNOWN = Cost(squares=(math.inf, 0.0))  # the cost of steps without a known upper bound; their lower ends are 0
