"""delta(epsilon) of a composition of laws on a grid of losses, as certified brackets, and epsilon at a delta.

With Lambda the total privacy loss under P, delta(epsilon) = E_P (1 - e^{epsilon - Lambda})_+. Each law is put on the
multiples of a width H by `Law.cells`, once so that it dominates and once so that it is dominated. All are multiplied by
e^{tau loss}, which makes rounding errors small against delta, and composed by `fourier.compose`. One composition gives
the whole curve near one epsilon as sums beyond a point of the grid, so that epsilon at a delta takes no second one. The
width of the bracket falls as H^2. Every statement is derived in laws/derivation.md.
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
from dpzero_theory.privacy.laws.law import TILTS, UNIT, Law, Parts, Span, chernoff_epsilon, log_c, log_moments

LEAST_DELTA = 1e-30
"""No smaller delta is resolved."""
_LEFT_OUT = 1e-7
"""Outputs of about this probability, as a share of delta, are left out of the sums; it is added to the upper end."""
_FEWEST, _MOST = 2**12, 2**19
"""The fewest and the most points of a grid."""
_MOST_OF_ONE = 2**17
"""The most cells that the losses of one release fill."""
_REACH = 25.0
"""A composition tells of epsilon from this over 1 + tau below the epsilon for which it is made."""
_TAILS_APART, _TWICE = 2.0, 1e-5
"""Large losses are composed apart where that shortens the grid by the first factor. Runs with two of them have at most
the second number as a share of delta."""
_COARSE, _STUCK, _NOTHING = 0.05, 0.3, 0.9
_ROUGH_LAW = 0.1
"""The width of bounds counts as this share at least where their laws are rough ones."""
_FARTHEST, _HALVINGS = 1e7, 36
_FAR = 40.0
"""Of large losses those count that have e^-40 of the probability of all of them."""


@dataclass(frozen=True)
class _Sketch:
    """The rough law of the loss of a release: masses e^log_mass at `loss`, for `count` releases."""

    count: int
    loss: Array
    log_mass: Array

    def moments(self, rates: Array) -> Array:
        """The logs of E e^{rate L} of all the releases."""
        return self.count * log_moments(self.log_mass, rates, self.loss)

    def tilted(self, tau: float) -> Array:
        exponent = self.log_mass + tau * self.loss
        weights = np.exp(exponent - np.max(exponent))
        return np.asarray(weights / np.sum(weights))


def _tilted(sketches: Sequence[_Sketch], tau: float) -> list[tuple[Array, Array, int]]:
    """The losses, the weights and the number of each law, tilted."""
    return [(sketch.loss, sketch.tilted(tau), sketch.count) for sketch in sketches]


_NEARER = np.geomspace(0.75, 1.33, 9)


def _saddle(sketches: Sequence[_Sketch], value: Callable[[Array, Array], Array]) -> tuple[float, float]:
    """The tilt tau at which value(tau, log E e^{tau L}) is least, and the least value."""
    taus = TILTS
    for _ in range(2):
        found = value(taus, np.sum([sketch.moments(taus) for sketch in sketches], axis=0))
        best = int(np.argmin(found))
        taus, tau, least = taus[best] * _NEARER, float(taus[best]), float(found[best])
    return tau, least


@dataclass(frozen=True)
class _Upper:
    """Upper bounds on delta(epsilon), from the tilted law of the total loss of the laws that dominate.

    first: the first loss of the sums. known: no smaller epsilon is known. gained, lost: the sums of P's and Q's weights
    from each loss on, in units of e^log_scale. wrong: a bound on the error of delta in these units, at `centre`.
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
        """The bound at an epsilon, infinite where it is not known. No loss exceeds `most`."""
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
    """Lower bounds on delta(epsilon): the largest P(S >= k) - e^epsilon Q(S >= k) over integers k, S the sum of the
    numbers of the cells of the losses.

    kept, lost: for each k a lower bound on the first probability and an upper one on the second, times e^centre, both
    times e^-log_scale.
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


_Terms = list[tuple[int, _Upper, _Lower | None]]


@dataclass(frozen=True)
class _Composed:
    """Bounds on delta near one epsilon: sums of terms, each with the number of times that it counts.

    left: a bound on the probability of all outputs in none of the terms, which is part of the upper bound.
    """

    terms: _Terms
    left: float

    @property
    def tau(self) -> float:
        return max((one.tau for _, one, _ in self.terms), default=0.0)

    @property
    def known(self) -> float:
        """The smallest epsilon of which the upper bounds say anything."""
        return max((one.known for _, one, _ in self.terms), default=0.0)

    def upper(self, epsilon: float) -> float:
        total = math.fsum(n * one.delta(epsilon) for n, one, _ in self.terms)
        return min((total + self.left) * (1 + 4 * UNIT) + 5e-324, 1.0)

    def lower(self, epsilon: float) -> float:
        return math.fsum(n * one.delta(epsilon) for n, _, one in self.terms if one) * (1 - 4 * UNIT)


_Slices = Sequence[tuple[Law, int, Span]]


class _Grid:
    """The grid of total losses on which one term of a `_Composed` is computed: the tilt tau of the laws, the range and
    the width of the grid, and the cells of each law."""

    def __init__(self, slices: _Slices, epsilon: float, tau: float, points: int, log_folded: float) -> None:
        self.epsilon, self.tau, self.points = epsilon, tau, points
        self.sketches = [_Sketch(count, *law.sketch(span)) for law, count, span in slices]
        bottom, top, self.up, self.down = window(_tilted(self.sketches, tau), log_folded)
        lowest = bottom - top
        broadest = max(float(np.max(s.loss)) - max(float(np.min(s.loss)), lowest) for s in self.sketches)
        # The laws on the grid spread a little more than the rough ones.
        more = 0.01 * (top - bottom)
        self.bottom, top = bottom - more, top + more
        self.width = max((top - self.bottom) / points, broadest * max(1 / _MOST_OF_ONE, 4 / points))
        self.laws = [(law.cells(span, tau, self.width, lowest), count) for law, count, span in slices]
        self.relative = 1.1 * math.fsum(count * (c.error + 40 * UNIT) for c, count in self.laws)
        self.relative += 16 * UNIT * (tau * epsilon + (1 + tau) * (abs(top) + abs(bottom)) + 1)
        if self.relative > 0.1:
            raise OverflowError("rounding errors exceed the answer")

    def composed(self, masses: Sequence[Array], bottom: float) -> tuple[int, Array, float, float, float]:
        """Compose the weights masses[j] of law j. Returns the first integer, the weights, of total 1; the log of the
        factor that they lack; a bound on the Euclidean norm of their errors, and one on the part that is folded in from
        beyond the grid."""
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


def _reach(log_cut: float, steps: float) -> float:
    """The distance z with 2 steps Phi(-z) = e^log_cut."""
    return -float(ndtri_exp(log_cut - math.log(2 * steps)))


@dataclass(frozen=True)
class _Plan:
    """How one composition is put on a grid: which losses count, around which epsilon, and whether large ones apart."""

    parts: Parts
    delta: float
    """About delta at the epsilon in question."""
    points: int = _FEWEST
    rough: bool = False
    """Whether grids of more points have sharper laws."""

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.parts)

    def slices(self, log_cut: float) -> _Slices:
        z = _reach(log_cut, self.steps)
        return [(law, count, Span(z, z)) for law, count in self.parts]

    def refined(self, points: int) -> "_Plan":
        """The plan for a grid of so many points."""
        if not self.parts:
            return self
        z = _reach(math.log(self.delta * _LEFT_OUT), self.steps)
        parts = tuple((law.refined(points, z), count) for law, count in self.parts)
        return _Plan(parts, self.delta, points, points == _FEWEST and parts != self.parts)

    def sketches(self, log_cut: float) -> list[_Sketch]:
        return [_Sketch(count, *law.sketch(span)) for law, count, span in self.slices(log_cut)]

    @property
    def infinite(self) -> float:
        return math.fsum(count * law.infinite for law, count in self.parts)

    def composed(self, epsilon: float) -> _Composed:
        """The bounds on delta near `epsilon`."""
        points = self.points
        log_cut = math.log(self.delta * _LEFT_OUT)
        log_rare = 0.5 * math.log(self.delta * _TWICE)
        left = 2 * math.exp(log_cut) + self.infinite
        near, whole = self.sketches(log_rare), self.sketches(log_cut)

        def tilt(sketches: Sequence[_Sketch]) -> tuple[float, float]:
            return _saddle(sketches, lambda tau, moment: moment + log_c(tau) - tau * epsilon)

        (tau, log_most), (tau_near, _) = tilt(whole), tilt(near)
        if self._apart(tau, tau_near, whole, near):
            return self._large_apart(epsilon, points, log_rare, left)
        return _Composed([(1, *self._term(self.slices(log_cut), epsilon, tau, log_most, points))], left)

    def _apart(self, tau: float, tau_near: float, whole: Sequence[_Sketch], near: Sequence[_Sketch]) -> bool:
        folded = math.log(1e-10)
        try:
            long, short = (window(_tilted(s, t), folded) for t, s in ((tau, whole), (tau_near, near)))
        except OverflowError:
            return False
        return long[1] - long[0] > _TAILS_APART * (short[1] - short[0])

    def _term(
        self, slices: _Slices, epsilon: float, tau: float, log_most: float, points: int
    ) -> tuple[_Upper, _Lower | None]:
        most = math.fsum(count * law.largest(span) for law, count, span in slices)
        if most <= epsilon:
            # No total loss of this term exceeds epsilon, nor any larger one; of smaller ones nothing is said.
            nothing = np.zeros(0)
            return _Upper(epsilon, 0.0, 1.0, epsilon, most, nothing, nothing, 0.0, 0.0, 0.0), None
        log_folded = min(max(math.log(self.delta) - log_most - 18.0, -36.0), -12.0)
        try:
            grid = _Grid(slices, epsilon, tau, points, log_folded)
            return replace(grid.upper(), most=most), grid.lower()
        except OverflowError:
            return replace(self._moments(slices, epsilon), most=most), None

    def _moments(self, slices: _Slices, epsilon: float) -> _Upper:
        """An upper bound by Chernoff's bound on laws that dominate, where no grid holds their sum."""
        best: _Upper | None = None
        highest = [law.largest(span) for law, _, span in slices]
        for tau in np.geomspace(1.0, 1e5, 11):
            moment, slip, wrong = 0.0, 0.0, 0.0
            for (law, count, span), most in zip(slices, highest, strict=True):
                try:
                    cells = law.cells(span, float(tau), (abs(most) + 1e-9) / _FEWEST, -4 * abs(most))
                except OverflowError:
                    break
                total = float(np.sum(cells.upper))
                if not total > 1e-250:
                    break
                moment += count * (math.log(total) + cells.log_scale)
                slip, wrong = slip + count * cells.slip, wrong + 1.1 * count * (cells.error + 40 * UNIT)
            else:
                log_scale = moment + float(tau) * (slip * 1.01 - epsilon) + wrong + UNIT * 64 * float(tau) * epsilon
                if best is None or log_scale + log_c(float(tau)) < best.log_scale + math.log(best.wrong):
                    nothing, c = np.zeros(0), math.exp(log_c(float(tau)))
                    best = _Upper(epsilon, float(tau), 1.0, epsilon, -math.inf, nothing, nothing, c, 1e-12, log_scale)
        if best is None:
            raise OverflowError("a law that no tilt resolves")
        return best

    def _large_apart(self, epsilon: float, points: int, log_rare: float, left: float) -> _Composed:
        """delta as the sum over the sets of releases with a large loss: none, or one. Two or more have at most the
        probability e^{2 log_rare}/2."""
        z, far = _reach(log_rare, self.steps), _reach(log_rare - _FAR, self.steps)
        inside, outside = Span(z, far), Span(z, far, outside=True)
        terms: _Terms = []

        def add(times: int, slices: _Slices) -> None:
            sketches = [_Sketch(count, *law.sketch(span)) for law, count, span in slices]
            if any(not len(sketch.loss) for sketch in sketches):
                return
            tau, log_most = _saddle(sketches, lambda tau, moment: moment + log_c(tau) - tau * epsilon)
            terms.append((times, *self._term(slices, epsilon, tau, log_most, points)))

        add(1, [(law, count, inside) for law, count in self.parts])
        for k, (law, count) in enumerate(self.parts):
            rest = [(other, n - (j == k), inside) for j, (other, n) in enumerate(self.parts) if n > (j == k)]
            add(count, [(law, 1, outside), *rest])
        return _Composed(terms, left + math.exp(2 * log_rare) + 2 * math.exp(log_rare - _FAR))


_Make = Callable[[int], tuple[Bounds, bool]]
"""A function of the number of points of a grid. It returns bounds by such a grid, and whether they are those of rough
laws, which finer grids replace."""


def _largest(makes: Sequence[_Make], wanted: float, far: Callable[[Bounds], bool]) -> Bounds:
    """The bounds of the largest of some numbers.

    The grid gets finer until the width of the bounds is at most the share `wanted` of the upper end, or until more
    points do not help, or where `far` says that the bounds are of no interest. A number that certainly is not the
    largest is left at its first bounds; the bounds of rough laws are certain of nothing. Ends that are far apart say
    nothing: cells that are wide beside the losses of one of many releases give such ends.
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
    try:
        return make(points)
    except OverflowError:
        return Bounds(0.0, math.inf), False


def _width(bounds: Bounds) -> float:
    return (bounds.upper - bounds.lower) / bounds.upper if 0 < bounds.upper < math.inf else float(bounds.upper > 0)


@lru_cache(maxsize=256)
def _at(plan: _Plan, epsilon: float, lower_at: float) -> Bounds:
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
        compositions: the laws. Where some laws bound delta from above and others from below, each end has its search.
        epsilon: >= 0.
        least_at: the epsilon of the lower end, if it differs.
        near: a delta with which the caller compares the answer. Where delta is far from it the bounds are wide.
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
    """Chernoff's bound on delta(epsilon) by rough laws, from `LEAST_DELTA` to 0.1."""
    sketches = _Plan(parts, 1e-20).refined(_FEWEST).sketches(math.log(1e-20))
    log_delta = _saddle(sketches, lambda tau, moment: moment + log_c(tau) - tau * epsilon)[1]
    return math.exp(min(max(log_delta, math.log(LEAST_DELTA)), math.log(0.1)))


def epsilon_bounds(
    compositions: Sequence[Parts], delta: float, *, least_delta: float | None = None, wanted: float = 1e-4
) -> Bounds:
    """Bounds on the least epsilon >= 0 at which the delta(epsilon) of all compositions are at most `delta`.

    least_delta: the delta of the lower end, if it differs. The other arguments are those of `delta_bounds`.
    """
    makes = [_Root(parts, delta, least_delta or delta).bounds for parts in compositions]
    return _largest(makes, wanted, lambda _: False)


class _Root:
    """The epsilon of one composition at a delta, by finer and finer grids."""

    def __init__(self, parts: Parts, delta: float, least_delta: float) -> None:
        self.plan, self.delta, self.least_delta = _Plan(parts, delta), delta, least_delta
        self.at: float | None = None

    def _start(self) -> float:
        """A guess of epsilon, by Chernoff's bound on delta."""
        sketches = self.plan.refined(_FEWEST).sketches(math.log(self.delta * _LEFT_OUT))
        return 0.95 * chernoff_epsilon([(one.count, one.loss, one.log_mass) for one in sketches], self.delta)

    def bounds(self, points: int) -> tuple[Bounds, bool]:
        at, plan = max(self._start() if self.at is None else self.at, 0.0), self.plan.refined(points)
        for _ in range(8):
            found = plan.composed(at)
            upper = _root(found.upper, self.delta, at, below=False)
            # A root at the end of what is known is not one.
            known = upper > found.known * (1 + 1e-9)
            if known and (abs(upper - at) < 3 / (1 + found.tau) or upper > 1.2 * at + 0.01):
                break
            at = upper if known else 0.8 * upper
        lower = _root(found.lower, self.least_delta, min(upper, 1.2 * at + 0.01), below=True)
        self.at = upper if lower > 0.9 * upper or upper < at else at
        return Bounds(min(lower, upper), upper), plan.rough


def _root(delta: Callable[[float], float], target: float, near: float, *, below: bool) -> float:
    """The epsilon >= 0 at which a falling function, delta, is the target: the largest that is found with delta above
    it if `below`, else the smallest with delta at most it, infinite if there is none."""

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
