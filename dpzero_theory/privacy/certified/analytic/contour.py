"""delta(epsilon) of a composition of subsampled Gaussian releases, with a certified bracket.

With L the privacy loss under P, M(z) = E_P exp(z L) its moment, and z = tau + i t on a contour with tau > 0,

    delta(epsilon) = (1/2 pi) Integral  prod_j M_j(z)^{T_j} exp(-z epsilon) / (z (z + 1)) dt,

where the pair j is released T_j times. The integral is a trapezoid sum over nodes in t at the saddle tau, and each M(z)
a sum over nodes in the output x (`quadrature.build`). derivation.md derives the formula and every error: aliases of the
trapezoid rule (the error of its finite step; it has two parts, called the first and the second alias), truncation in t,
quadrature in x, and rounding. All of them are inside the bracket that is returned.

Few releases, and records that are seldom in a batch, need too many nodes; `grid` answers such questions.
"""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.analytic.characteristic import log_blend, log_far, log_near
from dpzero_theory.privacy.certified.analytic.decay import Decay
from dpzero_theory.privacy.certified.analytic.quadrature import Contour
from dpzero_theory.privacy.certified.analytic.tilting import Blend, Tilted, blend_error, glanced, saddle, tilt_all
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT, log_c
from dpzero_theory.privacy.certified.laws.parts import Parts

_ERROR_SHARE, _ERROR_SHARE_OF_FEW, _STEPS_OF_FEW = 1e-14, 1e-11, 50
"""The error of delta for which nodes are chosen, as a share of an estimate of delta. The first number is for more than
`_STEPS_OF_FEW` releases, the second for fewer, whose characteristic function decays so slowly that each further digit
takes many nodes."""
_COARSEST = 1e-3
"""Whatever error the caller allows, nodes are chosen for at most this share of an estimate of delta."""
_REAL_NODES = 400
"""For this many nodes in the frequency t, the first ones, the integral over outputs x runs on the real line. For later
ones it runs on parallel lines of complex outputs, where fewer nodes in x suffice."""
_MOST_ESTIMATED = 4000
"""The most nodes in the frequency t that `delta_estimate` uses; if they do not suffice it returns None."""
_LOG_ESTIMATED = -23.0
"""The log of the relative quadrature error that `delta_estimate` allows in a pair's characteristic function, after it
is raised to the number of releases."""
_MAX_NODES = 3_000_000
"""The most nodes in the frequency t that `delta_bracket` uses; they take a second or more of one core."""
_HALVINGS = 30
"""How often the shift is halved in the search for a bound on the second alias (`Nodes.shift`), before it gives up."""
_REAL_LINE = 1000.0
"""The largest frequency t at which pairs with two branches (the kind `fixed-size`) are evaluated; for these the
integral over outputs stays on the real line, which takes the more nodes the larger t is."""
_FEW_LISTED = 1e-5
"""The most releases of kinds that are known better by finitely many outcomes, on average and as a share of delta."""
_LOOKS_FOR_END = 40
"""A search for the last node tries this many values of t, and then as many again between the two that enclose it."""


def delta_bracket(
    epsilon: float,
    parts: Parts,
    gdp: float = 0.0,
    *,
    contour: float | None = None,
    budget: float = 1e9,
    log_error: float = -math.inf,
) -> Bracket:
    """Certified bracket of delta(epsilon) for the composition of `parts` (pair, steps) and a `gdp`-GDP mechanism.

    Args:
        epsilon: epsilon >= 0.
        parts: at least one pair with sample_rate < 1, and its number of steps.
        gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none).
        contour: tau, the real part of the line of the integral, such as that of a nearby question; None seeks the
            saddle.
        budget: the largest number of pairs of a node in the frequency t and a node in the output x.
        log_error: the natural log of an absolute error of delta that may be made. The error for which nodes are chosen
            is e^log_error, but at most 1e-3 of delta and at least 1e-14 of it (1e-11 for 50 releases or fewer); -inf
            asks for that least one.

    Raises:
        OverflowError: more nodes than `budget` are needed, no nodes are found, or rounding errors exceed the answer.
    """
    nodes = affordable(epsilon, parts, gdp, contour=contour, budget=budget, log_error=log_error)
    tau, t = nodes.tau, nodes.t
    summand = _summand(epsilon, parts, gdp, nodes, budget)
    z = np.asarray(tau + 1j * t, dtype=np.complex128)
    terms = np.asarray(np.exp(summand.exponent) / (z * (z + 1)), dtype=np.complex128)
    terms[0] /= 2
    size = np.abs(terms)
    total = nodes.step / math.pi * float(np.sum(terms.real))
    with np.errstate(over="ignore"):
        grown = np.expm1(np.minimum(summand.relative, 700.0))
        rounding = nodes.step / math.pi * float(np.sum(size * grown) + 64 * UNIT * np.sum(size))
    last = float(t[-1])
    log_tail = nodes.log_tail - math.log(math.pi * last)
    spread = (rounding + math.exp(log_tail)) * 1.001
    low = total - spread - _aliases(nodes, summand.log_scale) * 1.001
    high = total + spread
    scale_error = math.expm1(min(summand.common, 1.0))
    if not (math.isfinite(low) and math.isfinite(high)) or summand.common > 1:
        raise OverflowError("rounding errors exceed the answer")
    scale = math.exp(summand.log_scale)
    lower = max(scale * low * (1 - scale_error if low > 0 else 1 + scale_error), 0.0)
    upper = min(scale * high * (1 + scale_error) + 5e-324, 1.0)
    _require_few_listed(parts, upper)
    middle = max(total, low, 1e-300)
    value = min(max(scale * middle, lower), upper)
    return Bracket(lower, value, upper, "contour")


@dataclass(frozen=True)
class Nodes:
    """The nodes t = 0, step, ..., count step of the sum over z = tau + i t, and the parameters of its error bounds.

    Attributes:
        tau: the real part of every z.
        size: about the number of nodes in the output x, over all pairs.
        step: the distance of neighbouring nodes in t.
        period: 2 pi over the step, the period of the trapezoid rule's aliases.
        shift, log_second: the second alias is bounded by Chernoff's bound on delta at tau + shift, whose log is at most
            log_second.
        log_tail: a bound on the log of the absolute characteristic function at the last node and beyond.
        ends: the indices at which the blocks of nodes end; the first block is summed on the real line of outputs, the
            later ones, each twice as long, on shifted lines.
        log_tolerance: the natural log of the quadrature error in x that is aimed at, as a share of M(tau) for one
            release.
    """

    tau: float
    size: int
    step: float
    period: float
    shift: float
    log_second: float
    log_tail: float
    ends: list[int]
    log_tolerance: float

    @property
    def count(self) -> int:
        """The index of the last node, which is the number of nodes minus 1."""
        return self.ends[-1]

    @property
    def t(self) -> Array:
        """The values of the frequency t at the nodes."""
        return np.asarray(self.step * np.arange(self.count + 1.0))


def affordable(
    epsilon: float,
    parts: Parts,
    gdp: float,
    *,
    contour: float | None = None,
    budget: float = 1e9,
    log_error: float = -math.inf,
) -> Nodes:
    """The nodes with which `delta_bracket` integrates for delta(epsilon), if they are few enough.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none). contour: tau, the real part of the line z = tau + i t
    of the integral, or None to seek one. budget: the largest number of pairs of a node in the frequency t and a node in
    the output x. log_error: the natural log of an absolute error of delta that may be made. The error for which nodes
    are chosen is e^log_error, but at most 1e-3 of delta and at least 1e-14 of it (1e-11 for 50 releases or fewer); -inf
    asks for that least one.

    Raises:
        OverflowError: the nodes are more than `budget` allows, or no nodes are found (a moment needs too many nodes in
            x, or the integral falls too slowly in t).
    """
    nodes = _planned(epsilon, tuple(parts), gdp, contour, log_error)
    if nodes is None or nodes.count * nodes.size > budget:
        raise OverflowError("too many nodes")
    return nodes


@lru_cache(maxsize=8)
def _planned(epsilon: float, parts: Parts, gdp: float, contour: float | None, log_error: float) -> Nodes | None:
    """The nodes that `_plan` finds for delta(epsilon), or None where it raises OverflowError.

    The arguments are those of `_plan`, `parts` as a tuple.
    """
    with suppress(OverflowError):
        return _plan(epsilon, parts, gdp, contour, log_error)
    return None


def _plan(epsilon: float, parts: Parts, gdp: float, contour: float | None, log_error: float) -> Nodes:
    """The nodes with which delta(epsilon) is summed up to a small error. Raises OverflowError if a moment needs too
    many nodes in x, or the integral falls too slowly in t.

    The error aimed at is the larger of a small share of delta (`_ERROR_SHARE`, `_ERROR_SHARE_OF_FEW`), and of
    e^{log_error}, an absolute error, but no more than the share `_COARSEST` of delta.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none). contour: tau, the real part of the line z = tau + i t
    of the integral, or None to seek one. log_error: a natural log, or -inf.
    """
    _require_few_listed(parts)
    tau = contour or saddle(epsilon, parts, gdp)
    steps_total = sum(steps for _, steps in parts)
    log_tolerance = math.log(1e-13 / steps_total)
    tilted = tilt_all(parts, tau, log_tolerance)
    variance = math.fsum(p.steps * p.variance for p in tilted) + gdp**2
    log_scale = math.fsum(p.steps * p.cumulant for p in tilted) + gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
    if not variance > 0:
        raise OverflowError("a tilted loss that is one value")
    # `estimate` (of delta) and `target` (the largest error of delta) are in units of exp(log_scale), the integrand's
    # numerator at t = 0.
    estimate = 1 / (tau * (1 + tau) * math.sqrt(2 * math.pi * (variance + 1 / tau**2 + 1 / (1 + tau) ** 2)))
    target = (_ERROR_SHARE if steps_total > _STEPS_OF_FEW else _ERROR_SHARE_OF_FEW) * estimate
    target = max(target, math.exp(min(log_error - log_scale, math.log(_COARSEST * estimate))))

    decay = Decay(tilted, tau, gdp)
    period = float(np.logaddexp(0, -log_scale - math.log(target))) / tau
    shift, log_second = _second_alias(epsilon, parts, gdp, tau, variance, log_scale + math.log(target), log_tolerance)
    period = max(period, float(np.logaddexp(0, log_second - log_scale - math.log(target))) / shift)
    step = 2 * math.pi / period
    stop, log_tail = _truncate(decay, target, step, _MAX_NODES * step)
    count = math.ceil(stop / step)
    ends = [count if count <= _REAL_NODES else (_REAL_NODES if steps_total > 50 else 64)]
    while ends[-1] < count:
        ends.append(min(2 * ends[-1], count))
    return Nodes(
        tau, sum(len(p.law.loss) for p in decay.parts), step, period, shift, log_second, log_tail, ends, log_tolerance
    )


@dataclass(frozen=True)
class _Summand:
    """The numerator prod_j M_j(z)^{T_j} exp(-z epsilon) of the integrand for delta(epsilon), at the nodes z = tau + i
    t.

    M_j is the moment of the loss of one release of pair j, and T_j the number of its releases.
    log_scale: the log of the numerator at t = 0.
    exponent: the log of the numerator at each node, minus log_scale.
    relative: bounds on the relative errors of exp(exponent).
    common: a bound on the relative error of exp(log_scale).
    """

    exponent: NDArray[np.complex128]
    relative: Array
    log_scale: float
    common: float


def _summand(epsilon: float, parts: Parts, gdp: float, nodes: Nodes, budget: float) -> _Summand:
    tau, t, ends, square = nodes.tau, nodes.t, nodes.ends, gdp**2
    near = Contour(tau, 0.0, ends[0] * nodes.step)
    tilted = tilt_all(parts, tau, nodes.log_tolerance, near)
    log_scale = math.fsum(p.steps * p.cumulant for p in tilted) + square * tau * (tau + 1) / 2 - tau * epsilon
    exponent = np.zeros(len(t), dtype=np.complex128)
    relative = np.zeros(len(t))
    drift = square * (tau + 0.5) - epsilon
    drift_error = 4 * UNIT * (square * (tau + 0.5) + epsilon)
    common = 0.0

    def of_kind(part: Tilted) -> tuple[NDArray[np.complex128], Array]:
        """The log of the kind's chi(t) e^{-i t mean}, and a bound on the relative error of chi(t), at every node t."""
        quadrature = math.exp(part.law.quadrature_error(near) - part.cumulant)
        # The last block, usually the longest, is summed first: OverflowError then comes early if the budget is short.
        blocks = [
            log_far(part, tau, t[begin + 1 : end + 1], nodes.log_tolerance, budget)
            for begin, end in reversed(list(itertools.pairwise(ends)))
        ]
        blocks.append(log_near(part, t[: ends[0] + 1], quadrature))
        log_chi, error = (np.concatenate(column[::-1]) for column in zip(*blocks, strict=True))
        return log_chi, error

    for whole in tilted:
        log_chi, error = log_blend(whole, tau, t, [of_kind(part) for part in whole.kinds])
        exponent += whole.steps * log_chi
        relative += whole.steps * (np.log1p(error) + 8 * UNIT * np.abs(log_chi))
        drift += whole.steps * whole.mean
        drift_error += 4 * UNIT * whole.steps * abs(whole.mean)
        common += whole.steps * blend_error(whole, tau) + 8 * UNIT * abs(whole.steps * whole.cumulant)
    exponent += -square * t**2 / 2 + 1j * t * drift
    relative += t * drift_error + 8 * UNIT * (2 + square * t**2)
    common += 8 * UNIT * (tau * epsilon + square * tau * (tau + 1) + 1)
    return _Summand(exponent, relative, log_scale, common)


def _aliases(nodes: Nodes, log_scale: float) -> float:
    """A bound on the sum of both aliases (errors of the trapezoid rule's finite step) for these nodes, divided by
    exp(log_scale)."""
    period, tau, shift = nodes.period, nodes.tau, nodes.shift
    first = math.exp(min(-log_scale - period * tau, 700.0)) / -math.expm1(-period * tau)
    return first + math.exp(nodes.log_second - log_scale - period * shift) / -math.expm1(-period * shift)


def _log_alias_moment(epsilon: float, tilted: Sequence[Blend], gdp: float, tau: float) -> float:
    """The log of Chernoff's bound on delta(epsilon), c(tau) prod_j M_j(tau)^{T_j} e^{-tau epsilon}.

    tilted: the laws of the pairs j, tilted by tau, with the logs of their moments M_j(tau) and their numbers T_j of
    releases. gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none). c is
    `arithmetic.log_c`, without the log.
    """
    return log_c(tau) + gdp**2 * tau * (tau + 1) / 2 - tau * epsilon + math.fsum(p.steps * p.cumulant for p in tilted)


def _alias_room(tilted: Sequence[Blend], tau: float) -> float:
    """A bound on the absolute amount by which quadrature and rounding errors make the result of `_log_alias_moment` too
    small.

    tilted: the laws of the pairs, tilted by tau.
    """
    room = 0.0
    for whole in tilted:
        errors = 0.0
        for share, part in zip(whole.shares, whole.kinds, strict=True):
            quadrature = part.law.quadrature_error(Contour(tau)) - part.cumulant
            errors += share * (math.exp(min(quadrature, 700.0)) + 1e-12 * abs(part.cumulant))
        room += whole.steps * errors + 1e-6
    return room


def _require_few_listed(parts: Parts, delta: float = 1.0) -> None:
    """Raise OverflowError if releases of kinds that are known better by finitely many outcomes may matter for `delta`.

    On a contour they count by pairs that only dominate those outcomes, which costs at most the probability that there
    is any such release. Grids have the outcomes.
    """
    chances = [
        steps * chance
        for pair, steps in parts
        for (chance, _), listed in zip(pair.kinds, pair.listed, strict=True)
        if listed is not None
    ]
    if math.fsum(chances) > _FEW_LISTED * delta:
        raise OverflowError("pairs with finitely many outcomes")


def delta_estimate(
    epsilon: float, parts: Parts, gdp: float = 0.0, *, contour: float | None = None
) -> tuple[float, float] | None:
    """An estimate of log delta(epsilon) and the tau of its contour, several times faster than `delta_bracket`.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none). contour: tau, the real part of the line z = tau + i t
    of the integral, or None to seek one. The estimate has no error bound; it guides root searches whose answers
    `delta_bracket` then certifies. None is returned if 4,000 nodes in t do not suffice, or if the sum is so small that
    rounding errors may dominate it. Raises OverflowError if a moment needs too many nodes in x.
    """
    _require_few_listed(parts)
    tau = contour or saddle(epsilon, parts, gdp)
    steps_total = sum(steps for _, steps in parts)
    tilted = tilt_all(parts, tau, math.log(1e-13 / steps_total))
    variance = math.fsum(p.steps * p.variance for p in tilted) + gdp**2
    log_scale = math.fsum(p.steps * p.cumulant for p in tilted) + gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
    scale = math.sqrt(variance)
    target = 1e-16 / (tau * (1 + tau) * math.sqrt(2 * math.pi * (variance + 1 / tau**2 + 1 / (1 + tau) ** 2)))
    period = max(float(np.logaddexp(0, -log_scale - math.log(target))) / tau, 16 * scale, 30 / (tau + 0.5))
    if 16 * scale < 30 / (tau + 0.5):  # the trapezoid rule's second alias may matter here
        log_target = log_scale + math.log(target)
        shift, log_second = _alias_shift(epsilon, parts, gdp, tau, variance, log_target)
        period = max(period, float(np.logaddexp(0, log_second - log_target)) / shift)
    step = 2 * math.pi / period
    stop = 9 / scale
    while stop <= _MOST_ESTIMATED * step:
        t: Array = step * np.arange(math.ceil(stop / step) + 1.0)
        if stop > 9 / scale:
            near = Contour(tau, 0.0, float(t[-1]))
            tilted = tilt_all(parts, tau, _LOG_ESTIMATED - math.log(max(steps for _, steps in parts)), near)
        exponent = -(gdp**2) * t**2 / 2 + 1j * t * (gdp**2 * (tau + 0.5) - epsilon)
        for whole in tilted:
            kinds = [log_near(part, t, 0.0) for part in whole.kinds]
            exponent = exponent + whole.steps * (log_blend(whole, tau, t, kinds)[0] + 1j * t * whole.mean)
        z = tau + 1j * t
        terms = np.exp(exponent) / (z * (z + 1))
        terms[0] /= 2
        total = float(np.sum(terms.real))
        if not step / math.pi * total > 1e6 * target:
            return None
        if abs(terms[-1]) < 1e-9 * total:
            log_delta = log_scale + math.log(step / math.pi * total)
            _require_few_listed(parts, math.exp(min(log_delta, 0.0)))
            return log_delta, tau
        stop *= 3
    return None


def _alias_shift(
    epsilon: float, parts: Parts, gdp: float, tau: float, variance: float, log_target: float
) -> tuple[float, float]:
    """The shift with which the bound on the second alias (`Nodes.shift`) allows about the largest step in t.

    epsilon, parts, gdp: the question whose delta is sought, with the pairs and their numbers of releases. tau: the real
    part of the contour. variance: that of the tilted total loss. log_target: the natural log of the absolute error of
    delta that the second alias may make. It returns the shift, and about the log of Chernoff's bound at tau + shift.
    """
    best = (math.inf, 0.0, 0.0)
    shift = min(7 / math.sqrt(variance), tau + 0.5)
    for _ in range(_HALVINGS):
        log_moment = _log_alias_moment(epsilon, glanced(parts, tau + shift), gdp, tau + shift)
        period = float(np.logaddexp(0, log_moment - log_target)) / shift
        if period > best[0]:
            break
        best = (period, shift, log_moment)
        if log_moment < log_target + 50:
            break
        shift /= 2
    return best[1], best[2]


def _second_alias(
    epsilon: float,
    parts: Parts,
    gdp: float,
    tau: float,
    variance: float,
    log_target: float,
    log_tolerance: float,
) -> tuple[float, float]:
    """A shift > 0, and the log of an upper bound on delta(epsilon) by moments at tau + shift, which bounds the second
    alias.

    The shift is that of `_alias_shift`, or a smaller one if the moment at tau + shift would need too many nodes. parts:
    the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of the
    full-batch releases in the same composition (0 for none). variance: that of the tilted total loss. log_target: the
    natural log of the absolute error of delta that the second alias may make. log_tolerance: the natural log of the
    quadrature error aimed at in the moment of one release, as a share of that moment. Raises OverflowError if the
    moment needs too many nodes at every shift that is tried.
    """
    shift, _ = _alias_shift(epsilon, parts, gdp, tau, variance, log_target)
    for _ in range(_HALVINGS):
        with suppress(OverflowError):
            tilted = tilt_all(parts, tau + shift, log_tolerance)
            room = _alias_room(tilted, tau + shift)
            return shift, _log_alias_moment(epsilon, tilted, gdp, tau + shift) + room
        shift /= 2
    raise OverflowError("no moment beyond tau")


def _truncate(decay: Decay, target: float, step: float, limit: float) -> tuple[float, float]:
    """The t of the last node, and a bound on the log of the absolute characteristic function from there on.

    It is the first of some values of t for which the rest of the integral for delta is proved to be less than `target`.
    decay: bounds on the characteristic function. step: the distance of the nodes.

    Raises:
        OverflowError: no such t is found up to `limit`.
    """

    def first(grid: Array, log_chi: Array) -> tuple[float, float]:
        enough = log_chi <= math.log(target) + np.log(math.pi * grid)
        at = int(np.argmax(enough))
        return (float(grid[at]), float(log_chi[at])) if enough.any() else (math.inf, 0.0)

    last = first(decay.t, decay.coarse)
    if last[0] > _REAL_NODES * step:
        last = first(decay.t, decay.fine)
    last = max(last[0], step), last[1]
    if last[0] <= _REAL_NODES * step:
        return last
    partial = any(part.law.pair.partial for part in decay.parts)
    if not partial and any(len(part.law.pair.branches) > 1 for part in decay.parts):
        limit = min(limit, max(_REAL_LINE, 2 * _REAL_NODES * step))
    if limit > _REAL_NODES * step and not partial:
        grid = np.geomspace(_REAL_NODES * step, limit, _LOOKS_FOR_END)
        shifted = first(grid, decay.shifted(grid))
        before = grid[grid < shifted[0]]
        if shifted[0] < math.inf and len(before) > 0:
            grid = np.geomspace(before[-1], shifted[0], _LOOKS_FOR_END)
            shifted = first(grid, decay.shifted(grid))
        last = min(last, shifted)
    if last[0] > limit:
        raise OverflowError("too many nodes")
    return last
