"""Dominating pairs (P, Q) of one Gaussian release with sampled batches, for each neighbouring relation and sampling.

Lengths are in units of the clip, s is the standard deviation of the noise, and q is the probability that a record is in
the batch. A(x) = 1 - q + q exp((2x - 1)/(2 s^2)) is the density of (1-q) N(0, s^2) + q N(1, s^2) over that of N(0,
s^2), and B(x) = A(-x). A pair dominates the release if its delta is at least as large at every epsilon.

    kind         P                             loss L(x)        where
    remove       (1-q) N(0,s^2) + q N(1,s^2)   log A            Poisson batches (Zhu, Dong and Wang 2022, Theorem 11);
    add          N(0,s^2)                      -log A           fixed-size batches under add-remove, with s/2 for s
    replace      (1-q) N(0,s^2) + q N(1,s^2)   log A - log B    Poisson batches under replace-one
    fixed-size   on two half-lines x > 1/2,    those of         fixed-size batches under replace-one, with s/2 for s
                 as for remove and add         remove and add

The rest of P's mass for fixed-size, `Gaussian.atom`, has the loss 0. Proofs are in derivation.md, sections 3 and 5.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.law import EVERY, LOG_SQRT_2PI, UNIT, Cells, Law, Span, log_mixed

_RULES = {count: np.polynomial.legendre.leggauss(count) for count in (2, 4)}  # Gauss-Legendre rules on [-1, 1]
_POINTS, _WEIGHTS = _RULES[4]  # their nodes and weights
_RULE_ERROR = 1e-13
"""A bound on the relative error of the rules `_RULES` for the probabilities of the intervals that `Gaussian._nodes`
makes (derivation.md, section 3)."""
_MOST_PIECES = 2**19  # the largest number of pieces into which a line of outputs is cut
_MOST_FROM_ZERO = 2**50
"""The largest absolute loss, in half cells of the grid; rounding may move a larger one by over 1/8 of a half cell."""
_SKETCHED = 1600  # the number of outputs of a sketch (`Law.sketch`) on each line or half-line
_TO_MOMENT, _LARGEST_MOMENT = 250, 1e6
"""`Gaussian.log_moment` cuts the line of outputs into `_TO_MOMENT` pieces per standard deviation of the noise, each
integrated by itself. It returns no log moment above `_LARGEST_MOMENT`."""


@dataclass(frozen=True)
class _Branch:
    # Outputs x > `start` on which P and the privacy loss L have one formula each: P(dx) = N(0, s^2)(dx) A(x)^a and L =
    # up log A(x) - down log A(-x), with A(x) = 1 - q + q exp((2x - 1)/(2 s^2))
    a: float  # 1 if the record is in the data set with law P, else 0
    up: float  # 1 or -1
    down: float  # 1 if L has the second term, else 0
    start: float  # -inf for the whole line


_BRANCHES = {
    "remove": (_Branch(1.0, 1.0, 0.0, -math.inf),),
    "add": (_Branch(0.0, -1.0, 0.0, -math.inf),),
    "replace": (_Branch(1.0, 1.0, 1.0, -math.inf),),
    "fixed-size": (_Branch(1.0, 1.0, 0.0, 0.5), _Branch(0.0, -1.0, 0.0, 0.5)),
}
"""For each `Gaussian.kind` the line of outputs x, or the two half-lines x > `start`, on which P has the density A(x)^a
to N(0, s^2) and the loss is up log A(x) - down log A(-x): the numbers a, up, down and `start`."""


@dataclass(frozen=True)
class Gaussian(Law):
    """A pair (P, Q) that dominates one release with Gaussian noise and sampled batches: its delta is at least that of
    the release at every epsilon.

    Args:
        kind: "remove" if the record is present under P and absent under Q, and "add" for the reverse, both also for
            fixed-size batches under add-remove; "replace" if it has another value under Q; "fixed-size" for replace-one
            with fixed-size batches.
        rate: the sample rate q in (0, 1].
        noise: the standard deviation s > 0 of the noise in units of the clip; in units of two clips for fixed-size
            batches under add-remove and replace-one, where another record takes the place of the protected one.
    """

    kind: str
    rate: float
    noise: float
    infinite = 0.0

    @property
    def branches(self) -> tuple[_Branch, ...]:
        """The line, or the two half-lines, of outputs on each of which the loss has one formula. Other methods take one
        of them as `branch`."""
        return _BRANCHES[self.kind]

    def largest(self, z: float) -> float:
        most = max(float(np.max(self.losses(branch, np.array(self._ends(branch, z)))[0])) for branch in self.branches)
        return most + 1e-9 * abs(most)

    @property
    def atom(self) -> float:
        """The probability that the loss is exactly 0, which is positive for kind "fixed-size" only."""
        return (1 - self.rate) * math.erf(0.5 / (math.sqrt(2) * self.noise)) if self.kind == "fixed-size" else 0.0

    def log_mixture(self, x: Array) -> Array:
        """Returns log A(x) = log(1 - q + q exp((2x - 1)/(2 s^2))) at the outputs `x`, in the unit of s = `noise`, which
        is one or two clips; q is `rate`. A is the density of an output with the record, which moves its mean by 1 with
        probability q, over the density without the record. The relative error of log A is small where it is near 0,
        and its absolute error elsewhere."""
        return log_mixed(self.rate, np.asarray((2 * x - 1) / (2 * self.noise**2)))

    def losses(self, branch: _Branch, x: Array) -> tuple[Array, Array]:
        """Returns two arrays for the outputs `x`: their privacy losses, and log A(x) as `log_mixture` returns it.
        `branch`, an entry of `branches`, is the line or half-line of outputs that holds `x` and has one formula."""
        log_a = self.log_mixture(x)
        return branch.up * log_a - (branch.down * self.log_mixture(-x) if branch.down else 0.0), log_a

    def rounding(self, branch: _Branch, x: Array, log_a: Array) -> tuple[Array, Array]:
        """Returns two arrays of bounds on the absolute rounding errors of what `losses` returns for outputs `x` of
        `branch`, an entry of `branches`: of the privacy losses, and of `log_a`, the values of `log_mixture`."""
        s, q = self.noise, self.rate
        keep = math.log1p(-q) if q < 1 else 0.0

        def error(y: Array, log_a: Array) -> Array:
            u, size = (2 * y - 1) / (2 * s * s), np.abs(log_a)
            posterior = np.exp(np.minimum(math.log(q) + u - log_a, 0.0))
            coarse = np.where(size > 0.4, -keep * (1 - posterior) - math.log(q) * posterior, 0.0)
            return np.asarray(16 * UNIT * (size + (1 + np.abs(u)) * posterior + coarse))

        one = error(x, log_a)
        return one + error(-x, self.log_mixture(-x)) if branch.down else one, one

    def _most_rounding(self, ends: Array) -> float:
        # A bound on the rounding error of log A(x) at all x between the two `ends`, in rising order: log A and the
        # chance that the record is in the batch, given x, rise with x, and of |u| one of the ends has the most.
        u, log_a, log_q = (2 * ends - 1) / (2 * self.noise**2), self.log_mixture(ends), math.log(self.rate)
        most, chance = float(np.max(np.abs(log_a))), math.exp(min(log_q + float(u[1] - log_a[1]), 0.0))
        coarse = max(-log_q, -math.log1p(-self.rate) if self.rate < 1 else 0.0) if most > 0.39 else 0.0
        return 16.1 * UNIT * (most + (1 + float(np.max(np.abs(u)))) * chance + coarse)

    def inverse(self, branch: _Branch, level: Array) -> Array:
        """Returns about the outputs x of `branch`, an entry of `branches`, at which the privacy loss is `level`, or
        -`level` where the loss falls with x: on the line of "add" and the second half-line of "fixed-size". It only
        chooses where outputs are divided: callers compute the loss at x, so that its error affects no bound."""
        q, square = self.rate, self.noise**2
        if q == 1:
            return np.asarray(square * level / 2 if branch.down else square * level + 0.5)
        if not branch.down:
            with np.errstate(divide="ignore"):
                near = np.log(np.maximum(q + np.expm1(np.minimum(level, 1.0)), 0.0))
            far = level + np.log1p(-(1 - q) * np.exp(-np.maximum(level, 1.0)))
            return np.asarray(square * (np.where(level > 1, far, near) - math.log(q)) + 0.5)
        size = np.abs(level)
        with np.errstate(divide="ignore"):
            log_sinh = size / 2 + np.log(-np.expm1(-size) / 2)
        log_w = math.log1p(-q) + log_sinh - math.log(q) + 1 / (2 * square)
        found = np.where(log_w > 18, log_w + math.log(2), np.arcsinh(np.exp(np.minimum(log_w, 18.0))))
        return np.asarray(square * (level / 2 + np.sign(level) * found))

    def _ends(self, branch: _Branch, z: float) -> tuple[float, float]:
        # The least and the largest output that count: z standard deviations below 0 and above 1, the outer means
        return max(-self.noise * z, branch.start), 1 + self.noise * z

    def sketch(self, z: float) -> tuple[Array, Array]:
        losses, logs = [], []
        for branch in self.branches:
            low, high = self._ends(branch, z)
            x = np.linspace(low, high, _SKETCHED + 1)[:-1] + (high - low) / (2 * _SKETCHED)
            loss, log_a = self.losses(branch, x)
            losses.append(loss)
            logs.append(-((x / self.noise) ** 2) / 2 + branch.a * log_a - LOG_SQRT_2PI)
            logs[-1] += math.log((high - low) / (self.noise * _SKETCHED))
        if self.atom > 0:
            losses.append(np.zeros(1))
            logs.append(np.log([self.atom]))
        return np.concatenate(losses), np.concatenate(logs)

    def _nodes(self, branch: _Branch, low: float, high: float, width: float, lowest: float) -> "_Nodes":
        # Cut the outputs from `low` to `high` where the loss crosses multiples of half the grid's `width`, and make
        # Gauss-Legendre nodes in each piece. Outputs with losses below `lowest` go into the piece of `lowest`.
        s, sign, half = self.noise, branch.up, width / 2
        ends = np.array([low, high])
        first, last = (math.floor(v / half) for v in sign * self.losses(branch, ends)[0])
        bottom = math.floor(lowest / half)
        first, last = (max(first, bottom), last) if sign > 0 else (first, min(last, -1 - bottom))
        if last - first > _MOST_PIECES:
            raise OverflowError("too many cells")
        if max(abs(first), abs(last)) > _MOST_FROM_ZERO:
            raise OverflowError("losses that are all but one value")
        # Any cuts are correct, because the distance between the loss at a cut and the multiple of half a cell is
        # measured: its maximum is the slip.
        levels = np.arange(first + 1, last + 1) * half
        inner = np.clip(self.inverse(branch, levels), low, high)
        log_error = self._most_rounding(ends)
        loss_error = log_error + (self._most_rounding(-ends[::-1]) if branch.down else 0.0)
        slip = float(np.max(np.abs(sign * self.losses(branch, inner)[0] - levels), initial=0.0)) + loss_error
        edges = np.maximum.accumulate(np.concatenate([[low], inner, [high]]))
        widest = s / max(50.0, 3.2 * ((max(-low, high) + 1) / s + 2))
        needed = np.ceil(np.diff(edges) / widest)
        if not needed.sum() <= _MOST_PIECES:
            raise OverflowError("too many nodes")
        pieces = needed.astype(np.int64)
        cell = np.repeat(np.arange(len(pieces)), pieces)
        length = np.repeat(np.diff(edges) / np.maximum(pieces, 1), pieces)
        left = edges[cell] + (np.arange(len(cell)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
        points, weights = _RULES[2 if float(np.max(length, initial=0.0)) < widest / 80 else 4]
        x = (left[:, None] + length[:, None] * (1 + points) / 2).ravel()
        log_width = np.log((length[:, None] * weights / (2 * s)).ravel()) - LOG_SQRT_2PI
        loss, log_a = self.losses(branch, x)
        square = (x / s) ** 2
        most, width_most, log_most = (float(np.max(np.abs(y))) for y in (square, log_width, log_a))
        mass_error = UNIT * (24 + 3 * most + 4 * width_most + 4 * branch.a * log_most)
        cell = np.repeat(cell, len(points)) + first
        return _Nodes(
            half=cell if sign > 0 else -1 - cell,
            loss=loss,
            log_mass=log_width - square / 2 + branch.a * log_a,
            slip=slip + 4 * UNIT * float(np.max(np.abs(loss))),
            error=_RULE_ERROR + mass_error + branch.a * log_error + 4 * UNIT * int(pieces.max()),
        )

    def log_moment(self, t: float) -> tuple[float, float]:
        """Returns a lower and an upper bound on log E_P e^{t L} for t > 0, where L is the privacy loss; divided by t,
        this is the Renyi divergence of order 1 + t. Raises OverflowError if it is large or needs too many pieces."""
        # The line of outputs is cut into pieces. An observer who sees only the piece of an output has a smaller moment
        # (Jensen): the lower bound. P's mass of each piece, split between the losses at its ends with Q's mass kept,
        # has a larger moment: the upper bound.
        s, q, far = self.noise, self.rate, 38.0
        low_sum, high_sum = -math.inf, -math.inf
        for branch in self.branches:
            low, high = -far * s, far * s + (1 + t if branch.up > 0 else 0)
            low = max(low, branch.start)
            if not (count := (high - low) / s * _TO_MOMENT) < _MOST_PIECES:
                raise OverflowError("a moment of outputs too far away")
            edges = np.linspace(low, high, math.ceil(count))
            length = np.diff(edges)
            x = edges[:-1, None] + length[:, None] * (1 + _POINTS) / 2
            loss, log_a = self.losses(branch, x.ravel())
            log_p = (-((x.ravel() / s) ** 2) / 2 + branch.a * log_a - LOG_SQRT_2PI).reshape(x.shape)
            log_p += np.log(length[:, None] * _WEIGHTS / (2 * s))
            top = log_p.max(axis=1)
            p = np.exp(log_p - top[:, None]).sum(axis=1)
            ends = self.losses(branch, edges)[0]
            least, most = (ends[:-1], ends[1:]) if branch.up > 0 else (ends[1:], ends[:-1])
            reduced = np.exp(log_p - top[:, None] + least[:, None] - loss.reshape(x.shape)).sum(axis=1)
            gap = np.maximum(most - least, 1e-300)
            share = np.clip((p - reduced) / -np.expm1(-gap) + 1e-12 * (p + p / gap * 1e-3), 0.0, p)
            top_p = top + np.log(p)
            low_sum = np.logaddexp(low_sum, np.logaddexp.reduce(top_p + t * (np.log(p) - np.log(reduced) + least)))
            split = np.log(np.maximum(p - share, 0.0) * np.exp(-t * gap) + share)
            high_sum = np.logaddexp(high_sum, np.logaddexp.reduce(top + split + t * most))
        if self.atom > 0:
            low_sum, high_sum = (float(np.logaddexp(end, math.log(self.atom))) for end in (low_sum, high_sum))
        # `tail` is the log of a bound on the moment of the outputs beyond the edges at either end; the 1 is for both
        # ends, as 2 < e. Beyond the last edge L <= (2 x - 1)/(2 s^2) - log(1 - q), and before the first one L is at
        # most its value there, or for `add` at most -log(1 - q). Callers have q < 1 for all kinds but `remove`.
        keep = -math.log1p(-q) if q < 1 and self.kind in ("replace", "add") else 0.0
        tail = t * keep + t * (t + 1) / (2 * s * s) + float(log_ndtr(-far))
        high_sum = float(np.logaddexp(high_sum, tail + 1))
        if not math.isfinite(high_sum) or high_sum > _LARGEST_MOMENT or tail > high_sum - 30:
            raise OverflowError("a moment beyond floating-point numbers")
        wrong = 3e-13 * (1 + t * 1e-2)
        return max(float(low_sum) - wrong, 0.0), high_sum + wrong

    def _between(self, branch: _Branch, z: float, span: Span) -> tuple[float, float]:
        # The least and the largest output with a loss in `span`, up to `z` standard deviations of the noise beyond the
        # means; if there is none the first is not below the second.
        sign, (low, high) = branch.up, self._ends(branch, z)
        cuts = [
            float(self.inverse(branch, np.array([sign * end]))[0]) if abs(end) < math.inf else sign * end
            for end in (span if sign > 0 else span[::-1])
        ]
        return max(low, cuts[0]), min(high, cuts[1])

    def cells(self, z: float, tau: float, width: float, lowest: float, span: Span = EVERY) -> Cells:
        between = [(branch, *self._between(branch, z, span)) for branch in self.branches]
        nodes = [self._nodes(branch, low, high, width, lowest) for branch, low, high in between if low < high]
        if not nodes:
            return Cells(0, np.zeros(1), np.zeros(1), np.zeros(1), 0.0, 0.0, 0.0)
        atom = self.atom if span[0] < 0 <= span[1] else 0.0
        half, loss, log_mass = (
            np.concatenate([getattr(n, name) for n in nodes]) for name in ("half", "loss", "log_mass")
        )
        first = min(int(half.min()) >> 1, 0)
        count = max(int(half.max()) + 1 >> 1, 0) - first + 2
        largest = width * max(abs(first), first + count)
        slip = max(n.slip for n in nodes)
        error = max(n.error for n in nodes) + slip + UNIT * (24 + 8 * (1 + tau) * largest)
        # Masses of half cells, each tilted as its lower end, from the one below the loss `first` H on: P's; Q's with
        # losses below `lowest` raised; and Q's
        base = half * (width / 2)
        log_p, low = log_mass + tau * base, np.flatnonzero(loss < base)
        log_low = log_p[low] + base[low] - loss[low]
        log_scale = max(float(np.max(log_p)), float(np.max(log_low, initial=-math.inf)))
        p_of, at = np.exp(log_p - log_scale), half - (2 * first - 1)
        held, more = 2 * count + 1, math.exp(tau * width / 2)
        p_by, raised = np.bincount(at, p_of, held), np.bincount(at, p_of * np.exp(np.minimum(base - loss, 0.0)), held)
        q_by = raised + np.bincount(at[low], np.exp(log_low - log_scale) - p_of[low], held)
        for law in (p_by, raised, q_by):
            law[1 - 2 * first] += atom * math.exp(-log_scale)
        # Of the mass p of a cell [k H, (k + 1) H), the part `up` moves to the upper end and the rest to the lower end.
        # P's and Q's masses stay the same, and dQ/dP is only spread out, which can only raise delta: the new pair is an
        # upper bound. `slack` covers rounding.
        p, q = p_by[1::2] + p_by[2::2] / more, raised[1::2] + raised[2::2] / (more * math.exp(width / 2))
        slack = 1.01 * (2 * error + 4 * UNIT * (1 + largest))
        up = np.minimum((np.maximum(p - q, 0.0) + slack * p) / -math.expm1(-width), p)
        upper = p - up
        upper[1:] += up[:-1] * math.exp(tau * width)
        near_p, near_q = p_by[1::2] + p_by[:-1:2] * more, q_by[1::2] + q_by[:-1:2] * (more * math.exp(width / 2))
        return Cells(first, upper, near_p, near_q, slip, error, log_scale)


@dataclass(frozen=True)
class _Nodes:
    # Nodes of a quadrature rule over a line or half-line of outputs (`_Branch`), one entry of each array a node

    half: NDArray[np.int64]  # the piece that holds the node: losses from half H/2 to (half + 1) H/2, H the grid's width
    loss: Array  # the loss at the node, at most `slip` outside the piece
    log_mass: Array  # the log of the probability under P for which the node stands
    slip: float
    error: float  # a bound on the relative error of that probability
