"""delta(epsilon) of a composition of laws on a grid of losses, as certified brackets, and epsilon at a delta.

With Lambda the total privacy loss under P, delta(epsilon) = E_P (1 - e^{epsilon - Lambda})_+. Each law is put on the
multiples of a width H by `Law.cells`, once so that it dominates and once so that it is dominated. All are multiplied by
e^{tau loss}, which makes rounding errors small against delta (they are then called tilted by tau), and composed by
`fourier.composed`. One composition gives the whole curve near one epsilon as sums beyond a point of the grid, so that
epsilon at a delta takes no second one. The width of the bracket falls as H^2. Every statement is derived in
laws/derivation.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtri_exp

from dpzero_theory.bisection import halved, outward
from dpzero_theory.check import Array
from dpzero_theory.privacy.bracket import Bounds
from dpzero_theory.privacy.laws.fourier import composed, window
from dpzero_theory.privacy.laws.law import TILTS, UNIT, Parts, chernoff_epsilon, log_c, log_moments

LEAST_DELTA = 1e-30
"""The smallest delta that a grid tells from 0."""
_LEFT_OUT = 1e-7
"""Outputs of about this probability, as a share of delta, are left out of the sums; it is added to the upper end."""
_FEWEST, _MOST = 2**12, 2**19
"""The fewest and the most points of a grid."""
_MOST_OF_ONE = 2**17
"""The most cells that the losses of one release fill."""
_REACH = 25.0
"""A composition that is made for one epsilon knows delta from this over 1 + tau below that epsilon on."""
_COARSE, _STUCK, _NOTHING = 0.05, 0.3, 0.9
"""Bounds that may be wider than this share take grids of at most 2^14 points. Where bounds are narrower than `_STUCK`
and more points narrow them little, no more are tried. Where they are wider than `_NOTHING` they say nothing, and 16
times as many points are tried next."""
_ROUGH_LAW = 0.1
"""The width of bounds counts as this share at least where their laws are rough ones."""
_FARTHEST, _HALVINGS = 1e7, 36
"""The largest epsilon that is searched for; and the number of halvings after which a search for an epsilon ends."""


@dataclass(frozen=True)
class _Sketch:
    """About the law of the privacy loss of one release: probabilities e^log_mass at the values `loss`, for `count` such
    releases. It only chooses tilts and grids, so that its errors make no bound wrong."""

    count: int
    loss: Array
    log_mass: Array

    def moments(self, rates: Array) -> Array:
        """The logs of E e^{rate L} for the total loss L of all the releases, at each rate."""
        return self.count * log_moments(self.log_mass, rates, self.loss)

    def tilted(self, tau: float) -> Array:
        """The probabilities multiplied by e^{tau loss}, with the sum 1."""
        exponent = self.log_mass + tau * self.loss
        weights = np.exp(exponent - np.max(exponent))
        return np.asarray(weights / np.sum(weights))


def _tilted(sketches: Sequence[_Sketch], tau: float) -> list[tuple[Array, Array, int]]:
    """The losses, the tilted probabilities and the number of releases of each law, as `fourier.window` takes them."""
    return [(sketch.loss, sketch.tilted(tau), sketch.count) for sketch in sketches]


_NEARER = np.geomspace(0.75, 1.33, 9)
"""Factors between neighbouring values of `TILTS`, for a second and finer look."""


def _saddle(sketches: Sequence[_Sketch], value: Callable[[Array, Array], Array]) -> tuple[float, float]:
    """Minimise a function of the tilt tau and of log E e^{tau L}, where L is the total loss of all laws. Returns the
    best tau and the minimum."""
    taus = TILTS
    for _ in range(2):
        found = value(taus, np.sum([sketch.moments(taus) for sketch in sketches], axis=0))
        best = int(np.argmin(found))
        taus, tau, least = taus[best] * _NEARER, float(taus[best]), float(found[best])
    return tau, least


@dataclass(frozen=True)
class _Upper:
    """Upper bounds on delta(epsilon), from the tilted law of the total loss of the laws that dominate.

    Attributes:
        centre: the epsilon for which they were made.
        tau: the tilt.
        width: the width of the grid.
        first: the first loss of the sums.
        known: the smallest epsilon with a bound.
        gained, lost: the sums of P's and of Q's weights from each loss on, in units of e^log_scale.
        wrong: a bound on the absolute error of delta in these units, at `centre`.
        relative: a bound on the relative error besides.
        most: the largest total loss.
    """

    centre: float
    tau: float
    width: float
    first: float
    known: float
    gained: Array
    lost: Array
    wrong: float
    relative: float
    log_scale: float
    most: float = math.inf

    def delta(self, epsilon: float) -> float:
        """The bound at an epsilon; infinite where there is none."""
        return min(self._delta(epsilon), max(-math.expm1(epsilon - self.most) * (1 + 4 * UNIT), 0.0))

    def _delta(self, epsilon: float) -> float:
        beyond = epsilon - self.centre
        wrong = self.wrong * math.exp(min(-self.tau * beyond, 700.0))
        at = max(math.floor((epsilon - self.first) / self.width) + 1, 0)
        if epsilon < self.known:
            return math.inf
        if at < len(self.gained):
            gained, lost = float(self.gained[at]), float(self.lost[at]) * math.exp(beyond)
            wrong += max(gained - lost, 0.0) * (1 + 1e-9) + 4 * UNIT * len(self.gained) * (gained + lost)
        return math.exp(min(self.log_scale + math.log(wrong), 1.0)) * (1 + self.relative) if wrong > 0 else 0.0


@dataclass(frozen=True)
class _Lower:
    """Lower bounds on delta(epsilon): the largest P(S >= k) - e^epsilon Q(S >= k) over integers k, with S the sum of
    the numbers of the cells in which the losses are.

    Attributes:
        centre: the epsilon for which they were made.
        kept, lost: for each k a lower bound on the first probability, and an upper one on the second times e^centre,
            both times e^-log_scale.
    """

    centre: float
    kept: Array
    lost: Array
    log_scale: float

    def delta(self, epsilon: float) -> float:
        if not len(self.kept):
            return 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            best = float(np.max(self.kept - math.exp(min(epsilon - self.centre, 700.0)) * self.lost))
        return best * math.exp(min(self.log_scale, 300.0)) if best > 0 else 0.0


@dataclass(frozen=True)
class _Composed:
    """Bounds on delta near one epsilon. `left` bounds the probability of all outputs of which neither bound knows."""

    above: _Upper
    below: _Lower | None
    left: float

    def upper(self, epsilon: float) -> float:
        return min((self.above.delta(epsilon) + self.left) * (1 + 4 * UNIT) + 5e-324, 1.0)

    def lower(self, epsilon: float) -> float:
        return self.below.delta(epsilon) if self.below else 0.0


class _Grid:
    """The grid of total losses of one composition: its range and width, and the cells of each law.

    Args:
        parts: the laws with their counts.
        z: how far from the means outputs count, as in `Law.cells`.
        sketches: those of the laws.
        epsilon: where the bounds on delta are to be good.
        tau: the tilt.
        points: the number of points of the grid.
        log_folded: the log of about the share of the tilted total loss that lies beyond the grid.

    Raises:
        OverflowError: no such grid is accurate enough.
    """

    def __init__(
        self,
        parts: Parts,
        z: float,
        sketches: list[_Sketch],
        epsilon: float,
        tau: float,
        points: int,
        log_folded: float,
    ) -> None:
        self.epsilon, self.tau, self.points, self.sketches = epsilon, tau, points, sketches
        bottom, top, self.up, self.down = window(_tilted(self.sketches, tau), log_folded)
        lowest = bottom - top
        broadest = max(float(np.max(s.loss)) - max(float(np.min(s.loss)), lowest) for s in self.sketches)
        # The laws on the grid spread a little more than the rough ones.
        more = 0.01 * (top - bottom)
        self.bottom, top = bottom - more, top + more
        self.width = max((top - self.bottom) / points, broadest * max(1 / _MOST_OF_ONE, 4 / points))
        self.laws = [(law.cells(z, tau, self.width, lowest), count) for law, count in parts]
        self.relative = 1.1 * math.fsum(count * (c.error + 40 * UNIT) for c, count in self.laws)
        self.relative += 16 * UNIT * (tau * epsilon + (1 + tau) * (abs(top) + abs(bottom)) + 1)
        if self.relative > 0.1:
            raise OverflowError("rounding errors exceed the answer")

    def composed(self, masses: Sequence[Array], bottom: float) -> tuple[int, Array, float, float, float]:
        """Compose weights of the laws.

        Args:
            masses: the weights of each law, of any total above 1e-250.
            bottom: the least loss of the grid.

        Returns:
            The number of the grid's first point; the weights of the composition, with the sum 1; the log of the factor
            by which they were divided; a bound on the Euclidean norm of their errors; and one on the weight that comes
            from beyond the grid.
        """
        start = math.floor(bottom / self.width)
        totals = [float(np.sum(mass)) for mass in masses]
        if not min(totals) > 1e-250:
            raise OverflowError("a tilt at which a law underflows")
        ones = [(c.first, mass / total, n) for (c, n), mass, total in zip(self.laws, masses, totals, strict=True)]
        law, error, beyond = composed(ones, self.width, start, self.points, self.up, self.down)
        log_scale = math.fsum(n * (math.log(t) + c.log_scale) for (c, n), t in zip(self.laws, totals, strict=True))
        return start, law, log_scale, error, beyond

    @np.errstate(over="ignore")
    def upper(self) -> _Upper:
        """Compose the laws that dominate."""
        tau, width = self.tau, self.width
        centre = self.epsilon
        start, law, log_scale, error, tail = self.composed([c.upper for c, _ in self.laws], self.bottom)
        slip = 1.01 * math.fsum(count * c.slip for c, count in self.laws)
        # The losses are larger by at most `slip`: so is the first one that counts.
        skipped = max(math.floor((centre - _REACH / (1 + tau)) / width) - start, 0)
        law = law[skipped:]
        beyond = (start + skipped + np.arange(len(law))) * width + slip - centre
        weights = law * np.exp(np.minimum(-tau * beyond, 700.0))
        gained, lost = (np.cumsum(each[::-1])[::-1] for each in (weights, weights * np.exp(-beyond)))
        # The weight (1 - e^-y) e^{-tau y} of a loss y beyond epsilon is at most c(tau), and falls after its peak. So
        # its sum over the grid is at most c + 1/(H tau (tau + 1)), which bounds its Euclidean norm.
        c = math.exp(log_c(tau))
        wrong = 1.01 * (error * math.sqrt(c * (c + 1 / (width * tau * (1 + tau)))) + tail * c)
        first = float(beyond[0]) + centre if len(law) else centre
        known = first if skipped else -math.inf
        return _Upper(
            centre, tau, width, first, known, gained, lost, wrong, self.relative, log_scale - tau * centre + tau * slip
        )

    @np.errstate(over="ignore", invalid="ignore")
    def lower(self) -> _Lower:
        """Compose the laws that are dominated."""
        tau, width, centre = self.tau, self.width, self.epsilon
        # a law that underflows at this tilt says nothing of the lower end
        if min(float(np.sum(mass)) for c, _ in self.laws for mass in (c.p, c.q)) < 1e-250:
            return _Lower(centre, np.zeros(0), np.zeros(0), 0.0)
        # the mean total loss, under the tilted laws, less its mean when each loss is replaced by the centre of its cell
        offset = 0.0
        for sketch, (c, count) in zip(self.sketches, self.laws, strict=True):
            at: Array = (c.first + np.arange(float(len(c.p)))) * width
            offset += count * float(np.sum(sketch.tilted(tau) * sketch.loss) - np.sum(at * c.p) / np.sum(c.p))
        (start, p, log_p, error_p, tail_p), (_, q, log_q, error_q, _) = (
            self.composed(masses, self.bottom - offset)
            for masses in ([c.p for c, _ in self.laws], [c.q for c, _ in self.laws])
        )
        beyond = (start + np.arange(self.points)) * width + offset - centre
        near = beyond > -_REACH / (1 + tau)
        if not near.any():
            return _Lower(centre, np.zeros(0), np.zeros(0), 0.0)
        beyond = beyond[near]
        log_scale = log_p + tau * (offset - centre)
        fall_p = np.exp(-tau * beyond)
        fall_q = np.exp(np.minimum(log_q + (1 + tau) * offset - tau * centre - log_scale - (1 + tau) * beyond, 700.0))
        kept, lost = (np.cumsum((mass[near] * fall)[::-1])[::-1] for mass, fall in ((p, fall_p), (q, fall_q)))
        rounded, more = (
            error * np.hypot.accumulate(fall[::-1])[::-1] for error, fall in ((error_p, fall_p), (error_q, fall_q))
        )
        slack = 4 * UNIT * len(kept)
        kept = kept * (1 - self.relative - slack) - 1.01 * (rounded + tail_p * fall_p)
        lost = lost * (1 + self.relative + slack) + 1.01 * more
        return _Lower(centre, kept, lost, log_scale)


@dataclass(frozen=True)
class _Plan:
    """A composition that is to be put on a grid.

    Attributes:
        parts: the laws with their counts.
        delta: about delta at the epsilon in question.
        points: the number of points of the grid.
        rough: whether a finer grid has other laws with narrower bounds.
    """

    parts: Parts
    delta: float
    """About delta at the epsilon in question."""
    points: int = _FEWEST
    rough: bool = False
    """Whether grids of more points have sharper laws."""

    @property
    def z(self) -> float:
        """The distance from the means, in standard deviations of the noise, up to which outputs count: those of all
        steps that are farther away have the probability `delta` times `_LEFT_OUT`."""
        return -float(ndtri_exp(math.log(self.delta * _LEFT_OUT) - math.log(2 * sum(n for _, n in self.parts))))

    def refined(self, points: int) -> "_Plan":
        """Return the plan for a grid of so many points, with the laws that suit it."""
        if not self.parts:
            return self
        parts = tuple((law.refined(points, self.z), count) for law, count in self.parts)
        return _Plan(parts, self.delta, points, points == _FEWEST and parts != self.parts)

    def sketches(self) -> list[_Sketch]:
        return [_Sketch(count, *law.sketch(self.z)) for law, count in self.parts]

    def composed(self, epsilon: float) -> _Composed:
        """Return bounds on delta near `epsilon`. Raises OverflowError if there are none."""
        z, sketches = self.z, self.sketches()
        left = 2 * self.delta * _LEFT_OUT + math.fsum(count * law.infinite for law, count in self.parts)
        most = math.fsum(count * law.largest(z) for law, count in self.parts)
        if most <= epsilon:
            # No total loss exceeds epsilon, nor any larger epsilon; of smaller ones nothing is said.
            nothing = np.zeros(0)
            above = _Upper(epsilon, 0.0, 1.0, epsilon, most, nothing, nothing, 0.0, 0.0, 0.0)
            return _Composed(above, None, left)
        tau, log_most = _saddle(sketches, lambda tau, moment: moment + log_c(tau) - tau * epsilon)
        log_folded = min(max(math.log(self.delta) - log_most - 18.0, -36.0), -12.0)
        grid = _Grid(self.parts, z, sketches, epsilon, tau, self.points, log_folded)
        return _Composed(replace(grid.upper(), most=most), grid.lower(), left)


_Make = Callable[[int], tuple[Bounds, bool]]
"""A function of the number of points of a grid. It returns bounds by such a grid, and whether a finer grid has other
laws with narrower bounds."""


def _largest(makes: Sequence[_Make], wanted: float, far: Callable[[Bounds], bool]) -> Bounds:
    """Bounds on the largest of some numbers, each of which a finer grid tells better.

    Grids get finer until the bounds are narrow enough, or until more points do not help. A number that certainly is not
    the largest keeps its first bounds. Bounds that are far apart do not stop the search: cells that are wide beside the
    losses of one of many releases give such bounds.

    Args:
        makes: for each number the function that bounds it.
        wanted: the width of the bounds, as a share of the upper end, at which the search ends.
        far: a function that says whether the caller does not care for narrower bounds.
    """
    if not makes:
        return Bounds(0.0, math.inf)
    found = []
    for make in makes:
        bounds, rough = _tried(make, _FEWEST)
        found.append((bounds, rough, max(_width(bounds), _ROUGH_LAW * rough)))
    for k, make in enumerate(makes):
        (bounds, rough, width), points, most = found[k], _FEWEST, (_MOST if wanted < _COARSE else 2**14)
        while width > wanted and not far(bounds):
            said, before = width < _NOTHING, width
            known = max((other.lower for other, still_rough, _ in found if not still_rough), default=0.0)
            if bounds.upper <= known or points >= (most if said else _MOST):
                break
            # The width falls as the square of the number of points.
            share = 2 ** min(max(math.ceil(math.log2(width / wanted) / 2), 1), 6) if said else 16
            points *= min(share, _MOST // points)
            better, _ = _tried(make, points)
            bounds = better if rough else bounds.within(better)
            rough, width = False, _width(bounds)
            found[k] = bounds, rough, width
            if width > 0.7 * before and before < _STUCK:
                break
    upper = max(one[0].upper for one in found)
    return Bounds(min(max(one[0].lower for one in found), upper), upper)


def _tried(make: _Make, points: int) -> tuple[Bounds, bool]:
    """Bounds by a grid of so many points, as `make` returns them; from 0 to infinity where the grid fails."""
    try:
        return make(points)
    except OverflowError:
        return Bounds(0.0, math.inf), False


def _width(bounds: Bounds) -> float:
    """The width of the bounds as a share of the upper end."""
    return (bounds.upper - bounds.lower) / bounds.upper if 0 < bounds.upper < math.inf else float(bounds.upper > 0)


@lru_cache(maxsize=256)
def _at(plan: _Plan, epsilon: float, lower_at: float) -> Bounds:
    """Bounds on delta by a plan: from above at `epsilon`, from below at `lower_at`."""
    found = plan.composed(epsilon)
    return Bounds(found.lower(lower_at), found.upper(epsilon))


def delta_bounds(
    compositions: Sequence[Parts],
    epsilon: float,
    *,
    least_at: float | None = None,
    near: float | None = None,
    wanted: float = 1e-3,
) -> Bounds:
    """Bounds on the largest delta(epsilon) of some compositions, such as those in two directions.

    Args:
        compositions: the laws with their counts. Where some laws bound delta from above and others from below, each end
            takes a call of its own.
        epsilon: >= 0.
        least_at: the epsilon of the lower end, if it differs.
        near: a delta with which the caller compares the answer. Bounds that are far from it may be wide.
        wanted: the relative width at which no more points are tried.
    """
    lower_at = epsilon if least_at is None else least_at

    def make(parts: Parts) -> _Make:
        guess = near

        def bounds(points: int) -> tuple[Bounds, bool]:
            nonlocal guess
            guess = guess or _guess(parts, epsilon)
            plan = _Plan(parts, guess).refined(points)
            found = _at(plan, epsilon, lower_at)
            if near is None:
                guess = max(min(guess, found.upper), LEAST_DELTA)
            return found, plan.rough

        return bounds

    def far(found: Bounds) -> bool:
        if near is None:
            return found.upper <= 100 * LEAST_DELTA
        return found.upper < near / 3 or found.lower > 3 * near

    found = _largest([make(parts) for parts in compositions], wanted, far)
    return Bounds(found.lower, min(found.upper, 1.0))


def _guess(parts: Parts, epsilon: float) -> float:
    """Chernoff's bound on delta(epsilon) by sketches of the laws, from `LEAST_DELTA` to 0.1."""
    sketches = _Plan(parts, 1e-20 / _LEFT_OUT).refined(_FEWEST).sketches()
    log_delta = _saddle(sketches, lambda tau, moment: moment + log_c(tau) - tau * epsilon)[1]
    return math.exp(min(max(log_delta, math.log(LEAST_DELTA)), math.log(0.1)))


def epsilon_bounds(
    compositions: Sequence[Parts], delta: float, *, least_delta: float | None = None, wanted: float = 1e-4
) -> Bounds:
    """Bounds on the least epsilon >= 0 at which the delta(epsilon) of all compositions are at most `delta`.

    Args:
        compositions: the laws with their counts, as in `delta_bounds`.
        delta: the delta of the upper end, from 1e-30 to below 1.
        least_delta: the delta of the lower end, if it differs.
        wanted: the relative width at which no more points are tried.
    """
    makes = [_Root(parts, delta, least_delta or delta).bounds for parts in compositions]
    return _largest(makes, wanted, lambda _: False)


class _Root:
    """The search for the epsilon at which delta of one composition is `delta` (for the lower end `least_delta`), by
    finer and finer grids."""

    def __init__(self, parts: Parts, delta: float, least_delta: float) -> None:
        self.plan, self.delta, self.least_delta = _Plan(parts, delta), delta, least_delta
        self.at: float | None = None

    def _start(self) -> float:
        """A guess of epsilon, by Chernoff's bound on delta."""
        sketches = self.plan.refined(_FEWEST).sketches()
        return 0.95 * chernoff_epsilon([(one.count, one.loss, one.log_mass) for one in sketches], self.delta)

    def bounds(self, points: int) -> tuple[Bounds, bool]:
        """Bounds on the epsilon by a grid of so many points, and whether a finer grid has laws with narrower bounds."""
        at, plan = max(self._start() if self.at is None else self.at, 0.0), self.plan.refined(points)
        for _ in range(8):
            found = plan.composed(at)
            upper = _root(found.upper, self.delta, at, below=False)
            # A root at the end of what is known is not one.
            known = upper > found.above.known * (1 + 1e-9)
            if known and (abs(upper - at) < 3 / (1 + found.above.tau) or upper > 1.2 * at + 0.01):
                break
            at = upper if known else 0.8 * upper
        lower = _root(found.lower, self.least_delta, min(upper, 1.2 * at + 0.01), below=True)
        self.at = upper if lower > 0.9 * upper or upper < at else at
        return Bounds(min(lower, upper), upper), plan.rough


def _root(delta: Callable[[float], float], target: float, near: float, *, below: bool) -> float:
    """The epsilon >= 0 at which a falling function, delta, crosses the target, rounded to a side.

    Args:
        delta: the function.
        target: the delta that is crossed.
        near: where the search begins.
        below: whether to return the largest epsilon that is found with delta above the target; else the smallest with
            delta at most the target, infinite if there is none.
    """

    def over(epsilon: float) -> bool:
        return delta(epsilon) > target

    step = 1e-3 * max(near, 1e-3)
    if over(near):
        low, high = outward(lambda x: not over(x), near + step, step, growth=4, most=_FARTHEST)
        low = max(low if low < high else near, near)
        if high == _FARTHEST and over(high):
            return low if below else math.inf
    else:
        high, low = outward(over, max(near - step, 0.0), -step, growth=4, most=0.0)
        high = min(high if high > low else near, near)
        if low == 0 and not over(0.0):
            return 0.0
    return halved(over, low, high, _HALVINGS)[0 if below else 1]
