"""Bounds on delta of many releases at an epsilon, or on epsilon at a delta, by discretising privacy losses on a grid.

With P and Q the distributions of all outputs on two neighbouring data sets, and Lambda = log(dP/dQ), delta(epsilon) =
E_P (1 - e^{epsilon - Lambda})_+. The distribution of each release's part of Lambda is put on the multiples of a width H
by `Law.cells`, once so that delta cannot fall and once so that it cannot rise. Probabilities are multiplied by e^{tau
loss} (tilted by tau), which makes rounding errors small relative to delta, and releases are composed once for all
epsilons near one, by `fourier.composed`. Bounds differ by a share that falls as H^2 (laws/derivation.md).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.bracket import Bounds
from dpzero_theory.privacy.laws.finite import Ends, FinitePair
from dpzero_theory.privacy.laws.fourier import composed, window
from dpzero_theory.privacy.laws.law import (
    TILTS,
    UNIT,
    Cells,
    Parts,
    Span,
    chernoff_epsilon,
    crossed,
    log_c,
    log_moments,
)

LEAST_DELTA = 1e-30  # the smallest delta that a grid tells from 0
_LEFT_OUT = 1e-7  # outputs with about this probability times delta are not summed but count as infinite losses
_FEWEST, _MOST, _MOST_ROUGH, _MOST_APART = 2**12, 2**19, 2**16, 2**17
"""Numbers of grid points: the fewest; the most; the most if bounds of a relative width of `_COARSE` are enough; and the
most for `_Apart`, which composes large losses separately."""
_MOST_OF_ONE = 2**17  # cells are so wide that one release's losses fill at most this many cells, to save memory
_MANY, _OMITTED, _OF_ONE, _SHORTER, _FEW = 4, 1e-6, 1e-5, 3.0, 30
"""Large losses are composed separately (`_Apart`) if the grid gets shorter by the factor `_SHORTER`. One release has a
large loss with probability at most `_OF_ONE`, and more than `_MANY` of all releases have one with about the probability
`_OMITTED` times delta. Losses of laws with at most `_FEW` releases all count as small, unless no law has more."""
_SELDOM, _KNOWN = 1e-9, 1e-3
"""In `_Apart`: losses so low that all releases together have one with probability `_SELDOM` are raised to the next one
up. For lower bounds a total of small losses is left out unless its probability is known to a relative `_KNOWN`."""
_BLOCKS, _MERGED = 256, 16  # errors are bounded for 256 blocks of outcomes (upper bounds) or 16 at a time (lower)
_NEAR_MOST = 20.0  # near the largest total loss the tilt is at most this over that loss
_REACH = 25.0  # a composition for one epsilon bounds delta from that epsilon minus this/(1 + tau) on
_COARSE, _STUCK, _NOTHING = 0.05, 0.3, 0.9
"""Relative widths of bounds: a caller who wants `_COARSE` or more gets at most `_MOST_ROUGH` points; after bounds of
`_NOTHING` or more the next grid has 16 times as many; below `_STUCK` the search ends once more points help little."""
_ROUGH_LAW = 0.1  # If a smaller relative width is wanted, no law takes its rough form (`Law.refined`).
_Sketches = Sequence[tuple[int, Array, Array]]
"""For each law of a composition: the number of its releases, its losses, and the logs of their probabilities under P,
as in `Law.sketch`."""
_Cut = Sequence[tuple[Cells, int]]  # for each law of a composition its cells and the number of its releases
_NEARER = np.geomspace(0.75, 1.33, 9)  # factors on the best one of `TILTS`, to look for a better tilt near it


def _tilted(sketches: _Sketches, tau: float) -> list[tuple[Array, Array, int]]:
    found = []
    for count, loss, log_mass in sketches:
        exponent = log_mass + tau * loss
        weights = np.exp(exponent - np.max(exponent))
        found.append((loss, weights / np.sum(weights), count))
    return found


def _saddle(sketches: _Sketches, epsilon: float) -> tuple[float, float]:
    # Returns the tilt tau with about the least Chernoff bound on delta(epsilon), and the log of this bound. A grid's
    # bounds are correct for every tau, and narrow for this one. `sketches` has each law's number of releases, losses
    # and logs of their probabilities.
    taus = TILTS
    for _ in range(2):
        moments = sum(count * log_moments(log_mass, taus, loss) for count, loss, log_mass in sketches)
        found = moments + log_c(taus) - taus * epsilon
        best = int(np.argmin(found))
        taus, tau, least = taus[best] * _NEARER, float(taus[best]), float(found[best])
    return tau, least


def _reach(parts: Parts, delta: float) -> float:
    # How many standard deviations beyond the means outputs matter (z of `Law.cells`): all releases together have
    # outputs farther away with about the probability `_LEFT_OUT` times `delta`.
    return -float(ndtri_exp(math.log(delta * _LEFT_OUT) - math.log(2 * sum(count for _, count in parts))))


def _offset(sketches: _Sketches, laws: _Cut, width: float, tau: float) -> float:
    # The mean total loss under the tilted laws, minus its mean if each loss is replaced by the centre of its cell. It
    # moves the grid for lower bounds to where the weights are; every offset is correct.
    offset = 0.0
    for (loss, weights, _), (c, count) in zip(_tilted(sketches, tau), laws, strict=True):
        at: Array = (c.first + np.arange(float(len(c.p)))) * width
        offset += count * float(np.sum(weights * loss) - np.sum(at * c.p) / np.sum(c.p))
    return offset


def _composed(
    laws: _Cut, kind: str, bottom: float, grid: tuple[float, int, float, float], fewer: int = 0
) -> tuple[int, Array, float, float, float]:
    # Composes one kind of weights of `laws`, "upper", "p" or "q" (`Cells`), without `fewer` releases of each law, on a
    # grid of total losses from `bottom` on. `grid` has its width, its number of points and the rates r > 0 of the
    # Chernoff bounds by E e^{r loss} and E e^{-r loss} on what is above and below it. Returns k of the first point k
    # width; the weights, tilted as the cells are and scaled to the sum 1; the log of what they were divided by; and
    # bounds on the Euclidean norm of the scaled weights' errors and on the scaled weight that is not on the grid.
    (width, points, *rates), ones, log_scale = grid, [], 0.0
    start = math.floor(bottom / width)
    for c, count in laws:
        if not (total := float(np.sum(getattr(c, kind)))) > 1e-250:
            raise OverflowError("a tilt at which a law underflows")
        if (n := max(count - fewer, 0)) > 0:
            ones.append((c.first, getattr(c, kind) / total, n))
            log_scale += n * (math.log(total) + c.log_scale)
    law, error, beyond = composed(ones or [(0, np.ones(1), 1)], width, start, points, *rates)
    return start, law, log_scale, error, beyond


class _Curve:
    """Bounds upper(x) and lower(x) on delta at every epsilon x >= 0, by one grid of `points` total losses. They are
    narrow near x = `epsilon`. `parts` are pairs (`Law` of one release's privacy loss, number of such releases). `delta`
    is a guess of delta at `epsilon`; a wrong guess makes bounds wide, not false. `ends` says which bounds the caller
    uses, "both", "lower" or "upper"; an unused one is trivial. Raises OverflowError if no such grid is accurate enough.

    Attributes:
        tau: probabilities were multiplied by e^{tau loss}, which makes rounding errors small relative to delta.
        known: the smallest epsilon at which `upper` may be below 1.
    """

    def __init__(self, parts: Parts, epsilon: float, delta: float, points: int, ends: Ends = "both") -> None:
        self._centre, self._points, self._ends, nothing = epsilon, points, ends, np.zeros(0)
        z = _reach(parts, delta)
        self._sketches = [(count, *law.sketch(z)) for law, count in parts]
        # The probability of outputs that the laws leave out, beyond z or with infinite losses, is added to the upper
        # end, as if their losses were infinite.
        self._left = 2 * delta * _LEFT_OUT + math.fsum(count * law.infinite for law, count in parts)
        self._most = math.fsum(count * law.largest(z) for law, count in parts)
        self.tau, self.known, self._first, self._wrong, self._log_scale = 0.0, self._most, epsilon, 0.0, 0.0
        self._gained = self._lost = self._kept = self._taken = nothing
        if self._most <= epsilon:  # no total loss exceeds epsilon, so delta is no more than what is left out
            self._width = 1.0
            return
        self.tau, log_most = _saddle(self._sketches, epsilon)
        try:
            self._compose(parts, z, math.log(delta) - log_most)
        except OverflowError:
            if epsilon < self._most / 2:  # only the largest total loss bounds delta
                self.known, self._wrong, self._relative, self._width = -math.inf, math.inf, 0.0, 1.0
                return
            # Near the largest total loss the best tilt leaves almost no other loss.
            self.tau = min(self.tau, _NEAR_MOST / self._most)
            self._compose(parts, z, 0.0)

    def _compose(self, parts: Parts, z: float, log_share: float) -> None:
        # Put the laws on a grid and compose them. `log_share` is about the log of delta over Chernoff's bound.
        epsilon, points = self._centre, self._points
        log_folded = min(max(log_share - 18.0, -36.0), -12.0)
        bottom, top, up, down = window(_tilted(self._sketches, self.tau), log_folded)
        lowest = bottom - top
        broadest = max(float(np.max(loss)) - max(float(np.min(loss)), lowest) for _, loss, _ in self._sketches)
        # The range comes from the laws' sketches. On the grid they spread a little more, so the range is widened.
        more = 0.01 * (top - bottom)
        bottom, top = bottom - more, top + more
        self._width = max((top - bottom) / points, broadest * max(1 / _MOST_OF_ONE, 4 / points))
        self._laws = [(law.cells(z, self.tau, self._width, lowest), count) for law, count in parts]
        self._composed = partial(_composed, self._laws, grid=(self._width, points, up, down))
        self._relative = 1.1 * math.fsum(count * (c.error + 40 * UNIT) for c, count in self._laws)
        self._relative += 16 * UNIT * (self.tau * epsilon + (1 + self.tau) * (abs(top) + abs(bottom)) + 1)
        if self._relative > 0.1:
            raise OverflowError("rounding errors exceed the answer")
        if self._ends == "lower":
            self.known = math.inf
        else:
            self._compose_above(bottom)
        # If the weights of a law underflow at this tilt there is no lower end, and 0 stands for it.
        if self._ends != "upper" and min(float(np.sum(mass)) for c, _ in self._laws for mass in (c.p, c.q)) >= 1e-250:
            self._compose_below(bottom)

    def upper(self, epsilon: float) -> float:
        beyond = epsilon - self._centre
        wrong = self._wrong * math.exp(min(-self.tau * beyond, 700.0))
        at, found = max(math.floor((epsilon - self._first) / self._width) + 1, 0), 0.0
        if at < len(self._gained):
            gained, lost = float(self._gained[at]), float(self._lost[at]) * math.exp(beyond)
            wrong += max(gained - lost, 0.0) * (1 + 1e-9) + 4 * UNIT * len(self._gained) * (gained + lost)
        if wrong > 0:
            found = math.exp(min(self._log_scale + math.log(wrong), 1.0)) * (1 + self._relative)
        found = min(found, -math.expm1(min(epsilon - self._most, 0.0)) * (1 + 4 * UNIT))
        return min((found + self._left) * (1 + 4 * UNIT) + 5e-324, 1.0) if epsilon >= self.known else 1.0

    def lower(self, epsilon: float) -> float:
        # The largest P(S >= k) - e^epsilon Q(S >= k) over integers k, with S the sum over the releases of the number of
        # the cell that holds the release's loss
        with np.errstate(over="ignore", invalid="ignore"):
            rise = math.exp(min(epsilon - self._centre, 700.0))
            best = float(np.max(self._kept - rise * self._taken, initial=0.0))
        return best * math.exp(min(self._log_below, 300.0)) if best > 0 else 0.0

    @np.errstate(over="ignore")
    def _compose_above(self, bottom: float) -> None:
        # Compose the laws that dominate, on a grid that begins at the loss `bottom`. For each loss of the grid
        # `_gained` becomes the sum of P's weights from this loss on, and `_lost` that of Q's weights times e^centre,
        # both in units of e^_log_scale; `centre` is the epsilon for which this object is made.
        tau, width, centre = self.tau, self._width, self._centre
        start, law, log_scale, error, tail = self._composed("upper", bottom)
        slip = 1.01 * math.fsum(count * c.slip for c, count in self._laws)
        # The laws dominate once their losses are raised by `slip` in total, so each loss in `beyond` is raised by that.
        skipped = max(math.floor((centre - _REACH / (1 + tau)) / width) - start, 0)
        law = law[skipped:]
        beyond = (start + skipped + np.arange(len(law))) * width + slip - centre
        weights = law * np.exp(np.minimum(-tau * beyond, 700.0))
        self._gained, self._lost = (np.cumsum(each[::-1])[::-1] for each in (weights, weights * np.exp(-beyond)))
        # The weight (1 - e^-y) e^{-tau y} of a loss y beyond epsilon is at most c(tau), and falls after its peak. So
        # its sum over the grid is at most c + 1/(H tau (tau + 1)), which bounds its Euclidean norm.
        c = math.exp(log_c(tau))
        self._wrong = 1.01 * (error * math.sqrt(c * (c + 1 / (width * tau * (1 + tau)))) + tail * c)
        self._first = float(beyond[0]) + centre if len(law) else centre
        self.known = self._first if skipped else -math.inf
        self._log_scale = log_scale - tau * centre + tau * slip

    @np.errstate(over="ignore", invalid="ignore")
    def _compose_below(self, bottom: float) -> None:
        # Compose the laws that are dominated, on a grid that begins at the loss `bottom`. S is the sum over the
        # releases of the number of the cell that holds the release's loss. For each integer k of the grid `_kept`
        # becomes a lower bound on P(S >= k), and `_taken` an upper bound on Q(S >= k) e^centre, both in units of
        # e^_log_below; `centre` is the epsilon for which this object is made.
        tau, width, centre = self.tau, self._width, self._centre
        offset = _offset(self._sketches, self._laws, width, tau)
        start, p, log_p, error_p, tail_p = self._composed("p", bottom - offset)
        _, q, log_q, error_q, _ = self._composed("q", bottom - offset)
        beyond = (start + np.arange(self._points)) * width + offset - centre
        near = beyond > -_REACH / (1 + tau)
        beyond = beyond[near]
        self._log_below = log_p + tau * (offset - centre)
        fall_p, log_fall = np.exp(-tau * beyond), log_q + (1 + tau) * offset - tau * centre - self._log_below
        fall_q = np.exp(np.minimum(log_fall - (1 + tau) * beyond, 700.0))
        kept, taken = (np.cumsum((mass[near] * fall)[::-1])[::-1] for mass, fall in ((p, fall_p), (q, fall_q)))
        # The factors `fall` shrink by e^{-rate width} from one point to the next, which bounds the norm of all factors
        # from one point on. Where `fall_q` is clipped it does not, but `_taken` is so large there that it is not used.
        left = np.arange(float(len(kept)), 0, -1)
        rounded, more = (
            error * fall * np.sqrt(np.minimum(left, -1 / math.expm1(-2 * rate * width)))
            for error, fall, rate in ((error_p, fall_p, tau), (error_q, fall_q, 1 + tau))
        )
        slack = 4 * UNIT * len(kept)
        self._kept = kept * (1 - self._relative - slack) - 1.01 * (rounded + tail_p * fall_p)
        self._taken = taken * (1 + self._relative + slack) + 1.01 * more


class _Apart:
    """Bounds upper(x) and lower(x) on delta at every epsilon x >= 0, narrow near x = `epsilon`, for releases that
    seldom have a large privacy loss: 5 of all have one with a probability of about 1e-6 delta. `parts` are pairs (`Law`
    of one release's loss, number of such releases), `delta` is a guess of delta at `epsilon`, and `ends` says which
    bounds the caller uses, "both", "lower" or "upper". The total of the small losses has a short range, so that
    `points` points make a fine grid of it. It is composed with 0, ..., 4 large losses, on wider cells with a tilt for
    each number, and the bounds are added up; more large losses count as infinite. Proofs are in laws/derivation.md,
    section 2. Raises OverflowError if no loss is large, or if the range does not get 3 times as short."""

    def __init__(self, parts: Parts, epsilon: float, delta: float, points: int, ends: Ends = "both") -> None:
        z, self._left = _reach(parts, delta), 2 * delta * _LEFT_OUT
        many = tuple((law, n) for law, n in parts if n > _FEW) or parts
        few = tuple(part for part in parts if part not in many)
        whole, rest = ([(n, *law.sketch(z)) for law, n in some] for some in (many, few))
        # Large losses are those above `cut`: `_MANY` + 1 of them have a probability that is small against delta.
        losses = np.concatenate([loss for _, loss, _ in whole])
        order, each = np.argsort(losses)[::-1], np.concatenate([n * np.exp(log_mass) for n, _, log_mass in whole])
        chance = np.cumsum(each[order])
        seldom = (math.factorial(_MANY + 1) * _OMITTED * delta) ** (1 / (_MANY + 1))
        seldom = min(seldom, _OF_ONE * min(n for _, n in many))
        cut, most = float(losses[order][np.sum(chance <= seldom) - 1]), max(law.largest(z) for law, _ in many)
        # The smallest losses are seldom, too, and lengthen the grid; raised to `least` they hardly change delta.
        below = int(np.sum(np.cumsum(each[order[::-1]]) <= _SELDOM))
        least = float(losses[order[::-1]][min(below, len(order) - 1)])
        small = [(n, np.maximum(loss, least)[loss <= cut], log_mass[loss <= cut]) for n, loss, log_mass in whole]
        large = [(loss[loss > cut], log_mass[loss > cut] + math.log(n)) for n, loss, log_mass in whole]
        one = (1, np.concatenate([loss for loss, _ in large]), np.concatenate([log_mass for _, log_mass in large]))
        if not (0 < cut < 0.9 * most and chance[0] <= seldom and all(len(loss) for _, loss, _ in small)):
            raise OverflowError("no loss is large")
        (tau, _), (near, _) = _saddle([*whole, *rest], epsilon), _saddle([*small, *rest], epsilon)
        spans = [window(_tilted(some, at), -23.0) for some, at in (([*whole, *rest], tau), (small, near))]
        if spans[0][1] - spans[0][0] < _SHORTER * (spans[1][1] - spans[1][0]):
            raise OverflowError("large losses do not lengthen the grid")
        far, _ = _saddle([*small, *rest, one], epsilon)
        rare, mass = _large(many, z, (cut, most), min(points, 2**14), self._left)
        # With one law of n releases, k large losses fall on k of them in n (n - 1) ... (n - k + 1)/k! ways. Here this
        # is over n^k, as `rare`, composed k times, has n times the probabilities of one release. Lower bounds add up
        # the terms of up to `sure` large losses, which leave out the small losses of so many releases.
        single, n = len(many) == 1, many[0][1]
        ways = [math.prod(1 - i / n * single for i in range(k)) / math.factorial(k) for k in range(_MANY + 1)]
        sure = _MANY if single and n > 250 * _MANY else 1
        none, some = (
            _total(many, small, z, at, points, (least, cut), delta=delta, without=fewer, ends=ends)
            for at, fewer in ((near, 0), (far, sure))
        )
        made = [((none, 1), *few), *(((some, 1), (rare, k), *few) for k in range(1, _MANY + 1))]
        size = points if few else max(points // 4, _FEWEST)
        self._terms = [_Curve(term, epsilon, delta, size, ends) for term in made]
        self._ways, self._sure = ways, ways[: sure + 1]
        self._left += mass ** (_MANY + 1) / math.factorial(_MANY + 1) + math.fsum(n * law.infinite for law, n in parts)
        self.tau, self.known = (max(getattr(one, name) for one in self._terms) for name in ("tau", "known"))

    def upper(self, epsilon: float) -> float:
        found = math.fsum(ways * one.upper(epsilon) for ways, one in zip(self._ways, self._terms, strict=True))
        return min((found + self._left) * (1 + 16 * UNIT), 1.0)

    def lower(self, epsilon: float) -> float:
        found = math.fsum(ways * one.lower(epsilon) for ways, one in zip(self._sure, self._terms, strict=False))
        return found * (1 - 16 * UNIT)


def _large(parts: Parts, z: float, span: tuple[float, float], count: int, left: float) -> tuple[FinitePair, float]:
    # Returns a `FinitePair` for the large losses, those in `span`, with about `count` outcomes, whose probabilities are
    # summed over all releases; and an upper bound on the expected number of large losses of all releases under P.
    # Outputs beyond `z` (`Law.cells`) are left out; `left` bounds their probability in all releases together.
    width = (span[1] - span[0]) / count
    found = [(law.cells(z, 0.0, width, 0.0, span), n) for law, n in parts]
    at = np.arange(max(c.first + len(c.upper) for c, _ in found))
    upper, p, q = (np.zeros(len(at)) for _ in range(3))
    for c, n in found:
        for law, one, wrong in ((upper, c.upper, c.error), (p, c.p, -c.error), (q, c.q, c.error)):
            law[c.first : c.first + len(one)] += n * math.exp(c.log_scale) * (1 + wrong) * one
    each = max(float(np.sum(c.upper)) * math.exp(c.log_scale) * (1 + c.error) for c, _ in found)
    each += left + max(law.infinite for law, _ in parts) + 1e-9
    if not (mass := float(np.sum(upper))) + each < 0.1:
        raise OverflowError("losses that are not seldom large")
    # A release has a large loss or a small one; upper bounds treat it as if a release with a large loss had a small one
    # too. By Jensen they stay upper bounds if large losses grow by `more` and their probabilities by the factor e^more.
    more = -math.log1p(-each)
    q *= np.exp(-at * width) * (1 + 4 * UNIT * (1 + span[1]))
    seen, known = upper > 0, (p > 0) & (q > 0)
    loss = np.asarray(at[seen] * width + max(c.slip for c, _ in found) + more, dtype=np.float64)
    return FinitePair(loss, upper[seen] * math.exp(more), 0.0, p[known], q[known]), mass * math.exp(more)


def _total(
    parts: Parts, small: _Sketches, z: float, tau: float, points: int, span: Span, *,
    delta: float, without: int, ends: Ends,
) -> FinitePair:  # fmt: skip
    # The law of the total of all small losses, those up to the upper end of `span`; losses below its lower end are
    # raised to it. The total is composed with the tilt `tau`, which the result no longer has, on a grid of `points`
    # points, chosen by the sketches `small` of the small losses. If some releases have a large loss in place of a small
    # one, `without` > 0: for lower bounds so many releases of each law are left out; for upper bounds one if there is a
    # single law, else none, as more releases only cost more.
    low, high, up, _ = window(_tilted(small, tau), min(math.log(delta), -16.0) - 20.0)
    least, _, _, down = window(_tilted(small, 0.0), -60.0)
    low = min(low, least)
    low, high = low - 0.01 * (high - low), high + 0.01 * (high - low)
    width = (high - low) / points
    laws = [(law.cells(z, tau, width, max(low - high, span[0]), (-math.inf, span[1])), n) for law, n in parts]
    relative = 1.1 * math.fsum(n * (c.error + 40 * UNIT) for c, n in laws)
    relative += 16 * UNIT * (1 + (1 + tau) * (abs(low) + abs(high)))
    if relative > 0.01:
        raise OverflowError("rounding errors exceed the answer")

    def composition(kind: str, bottom: float, at: float, fewer: int) -> tuple[Array, Array, Array, Array]:
        start, law, log_scale, error, beyond = _composed(laws, kind, bottom, (width, points, up, tau + down), fewer)
        loss: Array = (start + np.arange(float(points))) * width
        back = np.exp(np.minimum(log_scale - at * loss, 700.0))
        return loss, law * back, error * back, beyond * back

    def merged(_: Array, law: Array, error: Array, beyond: Array) -> tuple[Array, Array]:
        # Sums of `_MERGED` neighbours, and bounds on their errors
        wrong = 1.01 * (math.sqrt(_MERGED) * error + _MERGED * beyond)
        return law.reshape(-1, _MERGED).sum(axis=1), wrong[::_MERGED]

    offset = _offset(small, laws, width, tau)
    loss, mass, wrong, beyond = composition("upper", low, tau, int(without > 0 and len(parts) == 1))
    # The errors of a block of outcomes have at most the Euclidean norm `wrong`, so their sum is at most `wrong` times
    # the square root of the block's length. It is added at the block's largest loss.
    block = max(points // _BLOCKS, 1)
    mass[block - 1 :: block] += math.sqrt(block) * wrong[::block]
    mass = np.minimum(mass * (1 + relative), 1.0)
    mass[0] = min(mass[0] + 1.01 * beyond[0], 1.0)
    if not (infinite := 1.01 * float(beyond[-1])) < 1e-3 * delta:
        raise OverflowError("a grid whose cells are too wide")
    loss += 1.01 * math.fsum(n * c.slip for c, n in laws)
    if ends == "upper":
        return FinitePair(loss, mass, infinite, np.zeros(0), np.zeros(0))
    # Merging outcomes can only lower delta, and makes errors smaller. Merged ones with large errors are left out.
    p, less = merged(*composition("p", low - offset, tau, without))
    q, more = merged(*composition("q", low - offset, 1 + tau, without))
    seen = (_KNOWN * p > less) & (_KNOWN * q > more) & np.isfinite(q)
    p, q = (p - less) * (1 - relative), (q + more) * (1 + relative)
    back = [np.minimum(c.log_scale - tau * width * (c.first + np.arange(len(c.p))), 700.0) for c, _ in laws]
    kept = min(*(float(c.p @ np.exp(logs)) * (1 - relative) for (c, _), logs in zip(laws, back, strict=True)), 1.0)
    return FinitePair(loss, mass, infinite, p[seen] * kept ** (without * len(parts)), q[seen])


def _refined(parts: Parts, delta: float, points: int, wanted: float) -> Parts:
    # Some laws have a rough form for few points, which is not used if bounds of a small relative width are wanted.
    points, z = max(points, 2 * _FEWEST) if wanted < _ROUGH_LAW else points, _reach(parts, delta) if parts else 0.0
    return tuple((law.refined(points, z), count) for law, count in parts)


def _made(
    curve: "_Class", parts: Parts, epsilon: float, delta: float, points: int, ends: Ends
) -> "_Curve | _Apart | FinitePair":
    # One release with finitely many outcomes needs no grid: its law has the same methods.
    first, count = parts[0] if len(parts) == 1 else (None, 0)
    return first if count == 1 and isinstance(first, FinitePair) else curve(parts, epsilon, delta, points, ends)


_Class = Callable[..., _Curve | _Apart]  # one of these two classes
_Make = Callable[[int, _Class, Ends], Bounds]
"""A function of a number of grid points, a class (`_Curve` for one grid, `_Apart` for two) and the bounds that the
caller uses ("both", "lower" or "upper"). It returns `Bounds` computed on such grids."""


def _largest(makes: Sequence[_Make], wanted: float, ends: Ends, known: float, far: Callable[[Bounds], bool]) -> Bounds:
    """Returns bounds on the largest of several numbers. For each one a function of `makes` returns bounds computed with
    a number of grid points and a class: `_Curve` puts all losses on one grid, `_Apart` composes large losses
    separately. Grids get finer until upper - lower <= `wanted` * upper, until more points do not help the `ends` that
    the caller uses, or until `far(bounds)` is True: bounds are so far from what the caller compares them with that they
    need not be narrower. A number that is certainly below another one, or below `known`, keeps its first bounds."""
    if not makes:
        return Bounds(0.0, math.inf)
    found = [_tried(make, _FEWEST, _Curve, "both") for make in makes]

    def done(bounds: Bounds) -> bool:
        return _width(bounds) <= wanted or far(bounds) or bounds.upper <= max(known, *(one.lower for one in found))

    for k, make in enumerate(makes):
        bounds, points, most = found[k], _FEWEST, (_MOST if wanted < _COARSE else _MOST_ROUGH)
        width = _width(bounds)
        last: dict[_Class, Bounds] = {_Curve: bounds}
        curves: list[_Class] = [_Curve, _Apart]
        # Wide bounds do not end the search: a coarse grid gives them if its cells are wide against one release's losses
        while points < most and not done(bounds):
            # The width falls as the inverse square of the number of points, which says how many more are needed.
            share = 2 ** min(max(math.ceil(math.log2(width / wanted) / 2), 1), 6) if width < _NOTHING else 16
            finer = min(share, most // points)
            points, before, wide = points * finer, last, width
            last = {}
            # Whether a finer grid follows depends on both bounds. The finest one gives only those that are used.
            finest = len(curves) == 1 and points >= (_MOST if curves[0] is _Curve else 2 * _MOST_APART)
            needed: Ends = ends if finest else "both"
            for curve in curves:
                last[curve] = _tried(make, points if curve is _Curve else min(points // 2, _MOST_APART), curve, needed)
                bounds = bounds.within(last[curve])
                if done(bounds):
                    break
            found[k], width = bounds, _width(bounds)
            # Only the class with the narrower bounds is used for finer grids, while it improves.
            curves = [min(last, key=lambda one: _lacking(last[one], ends))]
            settled = before.get(curves[0]) and not _gained(before[curves[0]], last[curves[0]], ends, finer) > wanted
            if finest or settled or (width > 0.7 * wide and wide < _STUCK):
                break
    upper = max(one.upper for one in found)
    return Bounds(min(max(one.lower for one in found), upper), upper)


def _lacking(bounds: Bounds, ends: Ends) -> tuple[float, float]:
    # A pair that sorts better bounds first: their width, then minus the lower bound if only that is used, or the upper
    return min(_width(bounds), _NOTHING), -bounds.lower if ends == "lower" else bounds.upper


def _gained(coarse: Bounds, fine: Bounds, ends: Ends, finer: int) -> float:
    # About 5 times the relative error of the bounds `fine`, or more. The bounds `coarse` are those with 1/`finer` of
    # the points. Errors fall as the inverse square of the number of points, so the bounds changed by finer^2 - 1 times
    # the error, of which 15 are relied on. The result is at least 1/3 while an end that is used says nothing.
    gains = []
    if ends != "lower":
        gains.append(1 - fine.upper / coarse.upper if fine.upper < _NOTHING else 1.0)
    if ends != "upper":
        gains.append(1 - coarse.lower / fine.lower if fine.lower > 0 else 1.0)
    return max(gains) * 5 / min(finer**2 - 1, 15)


def _tried(make: _Make, points: int, curve: _Class, ends: Ends) -> Bounds:
    try:
        return make(points, curve, ends)
    except OverflowError:
        return Bounds(0.0, math.inf)


def _width(bounds: Bounds) -> float:  # as a share of the upper end; 1 if that is infinite
    return (bounds.upper - bounds.lower) / bounds.upper if 0 < bounds.upper < math.inf else float(bounds.upper > 0)


@lru_cache(maxsize=256)
def _at(parts: Parts, epsilon: float, lower_at: float, delta: float, points: int, curve: _Class, ends: Ends) -> Bounds:
    # `delta` is a guess of delta at `epsilon`; a wrong guess makes the bounds wide, not false.
    found = _made(curve, parts, epsilon, delta, points, ends)
    return Bounds(found.lower(lower_at), found.upper(epsilon))


def delta_bounds(
    compositions: Sequence[Parts],
    epsilon: float,
    *,
    lower_at: float | None = None,
    near: float | None = None,
    wanted: float = 1e-3,
    ends: Ends = "both",
    known: float = 0.0,
) -> Bounds:
    """Returns bounds on the largest delta of several compositions, such as those for (P, Q) and for (Q, P).

    Args:
        compositions: tuples of pairs (`Law` of one release's privacy loss, number of such releases). If some laws bound
            delta from above and others from below, call this function once for each bound.
        epsilon: the epsilon >= 0 of the upper bound.
        lower_at: the epsilon of the lower bound, or None for `epsilon`. A larger one serves callers whose steps have
            the laws' probabilities only up to a factor e^G: then a lower bound is e^-G times that at epsilon + 2 G.
        near: a delta with which the caller compares the answer, or None. Bounds far from it may be wide.
        wanted: the search for narrower bounds ends at this relative width, or when more work hardly helps.
        ends: the bounds that the caller uses, "both", "lower" or "upper"; an unused one may be wide.
        known: a delta with which the caller takes the maximum; bounds below it stay wide.
    """
    lower_epsilon = epsilon if lower_at is None else lower_at

    def make(parts: Parts) -> _Make:
        guess = near

        def bounds(points: int, curve: _Class, needed: Ends) -> Bounds:
            nonlocal guess
            guess = guess or _guess(parts, epsilon)
            found, last = Bounds(0.0, 0.0), math.inf
            # With a much too large guess, outputs left out would count more than delta: try a smaller one.
            while found.upper < 1e-2 * last and guess < last:
                last, laws = guess, _refined(parts, guess, points, wanted)
                found = _at(laws, epsilon, lower_epsilon, guess, points, curve, needed)
                if near is None:
                    guess = max(min(guess, found.upper), LEAST_DELTA)
            return found

        return bounds

    def far(found: Bounds) -> bool:
        return found.upper <= 100 * LEAST_DELTA if near is None else found.upper < near / 3 or found.lower > 3 * near

    found = _largest([make(parts) for parts in compositions], wanted, ends, known, far)
    return Bounds(found.lower, min(found.upper, 1.0))


def _guess(parts: Parts, epsilon: float) -> float:
    # About delta, by Chernoff's bound for rough forms of the laws (`Law.like`, `Law.sketch`). It only serves to choose
    # a grid, so its error does not affect any bound.
    tiny = 1e-20 / _LEFT_OUT
    alike = [(law.like(), count) for law, count in parts]
    laws = _refined(tuple((law, n * count) for (law, n), count in alike), tiny, _FEWEST, _ROUGH_LAW)
    log_delta = _saddle([(count, *law.sketch(_reach(parts, tiny))) for law, count in laws], epsilon)[1]
    return math.exp(min(max(log_delta, math.log(LEAST_DELTA)), math.log(0.1)))


def epsilon_bounds(
    compositions: Sequence[Parts],
    delta: float,
    *,
    lower_at: float | None = None,
    wanted: float = 1e-4,
    ends: Ends = "both",
    known: float = 0.0,
) -> Bounds:
    """Returns bounds on the smallest epsilon >= 0 at which every composition has a delta of at most `delta`.

    Args:
        compositions: tuples of pairs (`Law` of one release's privacy loss, number of such releases).
        delta: the delta in [1e-30, 1) of the upper bound, which is infinite if no such epsilon is known.
        lower_at: the delta >= `delta` of the lower bound, or None for `delta`. A larger one serves callers whose steps
            have the laws' probabilities only up to a factor.
        wanted, ends, known: as in `delta_bounds`, for epsilon.
    """
    makes = [_root(parts, delta, lower_at or delta, wanted) for parts in compositions]
    return _largest(makes, wanted, ends, known, lambda _: False)


def _root(parts: Parts, delta: float, lower_at: float, wanted: float) -> _Make:
    # Bounds on epsilon: from above at `delta`, and from below at the delta `lower_at` >= `delta`.
    start: float | None = None

    def bounds(points: int, made: _Class, ends: Ends) -> Bounds:
        nonlocal start
        if start is None:
            laws, z = _refined(parts, delta, _FEWEST, wanted), _reach(parts, delta)
            start = 0.95 * chernoff_epsilon([(count, *law.sketch(z)) for law, count in laws], delta)
        laws, at = _refined(parts, delta, points, wanted), start
        for _ in range(8):
            # The upper bound on epsilon is always computed, as the search for the lower one begins at it.
            curve = _made(made, laws, at, delta, points, "upper" if ends == "upper" else "both")
            if curve.known > 0 and curve.upper(curve.known) <= delta:  # the root is below its epsilons
                upper, at = curve.known, 0.8 * curve.known
                continue
            upper = crossed(curve.upper, delta, at, 1 + curve.tau, way=1)
            if abs(upper - at) < min(3 / (1 + curve.tau), 0.3 * at) or upper > 1.2 * at + 0.01:
                break
            at = upper
        lower = crossed(curve.lower, lower_at, min(upper, 1.2 * at + 0.01), 1 + curve.tau, way=-1)
        middle = math.sqrt(lower * upper) if lower > 0 and upper < math.inf else at
        start = upper if lower > 0.5 * upper else middle
        return Bounds(min(lower, upper), upper)

    return bounds
