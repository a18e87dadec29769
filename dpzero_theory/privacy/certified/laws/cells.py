"""The privacy loss of one release on a grid of losses with spacing H: a law that dominates the release, and one that it
dominates.

The line of outputs x is cut where the loss crosses the multiples of H/2, and the masses of P and Q on every piece are
computed with a bound on their error. The statements are derived in derivation.md, section 5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.arithmetic import LOG_SQRT_2PI, UNIT
from dpzero_theory.privacy.certified.laws.pairs import Branch, Pair, inverse, losses, rounding

FOUR_POINTS, FOUR_WEIGHTS = np.polynomial.legendre.leggauss(4)
"""The 4 nodes and weights on [-1, 1] of the Gauss-Legendre rule by which the mass of a short interval of outputs is
computed."""
FOUR_ERROR = 1e-13
"""A bound on the relative error of the 4-point Gauss-Legendre rule for normal densities, on the intervals used, which
are at most 1/50 of a standard deviation long (derivation.md, section 5)."""
_MOST_PIECES = 2**21
"""The most pieces into which the outputs of one branch (`pairs.Branch`) are cut. A grid that needs more is refused with
OverflowError: its arrays would take about a hundred megabytes."""
_MOST_FROM_ZERO = 2**50
"""The largest absolute loss, in units of H/2, for which a grid is made; the rounding error of a larger 64-bit float is
not small against H/2, and OverflowError is raised."""


@dataclass(frozen=True)
class Cells:
    """Tilted weights of one release at the losses k H, k = first, first + 1, ..., where H is the grid's spacing.

    Tilted by tau means that the weight at k H is multiplied by e^{tau k H}, and a weight of Q by e^{k H} more. The
    weights are given without a factor e^{log_scale}.

    dominating: P's weights of a law that dominates the release; its losses are too large by at most `slip`.
    nearest_p, nearest_q: P's and Q's masses of the outputs with losses in [(k - 1/2) H, (k + 1/2) H).
    slip: a bound on the absolute error of the losses at which the line of outputs was cut.
    error: a bound on the relative error of every weight.
    log_scale: the log of the factor of all weights, which is kept apart so that none overflows.
    """

    first: int
    dominating: Array
    nearest_p: Array
    nearest_q: Array
    slip: float
    error: float
    log_scale: float


@dataclass(frozen=True)
class Span:
    """A range of outputs of one release; distances are in standard deviations s of the noise.

    The means are 0 and 1, those of the noisy sum without the record and with it. The range begins at the distance `far`
    below the mean on the side of small losses, and ends at the distance `near` past the mean on the side of large
    losses. With `outside` it is instead the range of large losses from the distance `near` to the distance `far` past
    that mean, without the atom at loss 0. Each of N(0, s^2) and N(1, s^2) has at most the mass Phi(-near) past `near`,
    and at most Phi(-far) past `far`.
    """

    near: float
    far: float
    outside: bool = False

    def interval(self, pair: Pair, branch: Branch) -> tuple[float, float]:
        """The range (low, high) of outputs x on one branch of the pair; low = high if the branch has none of them."""
        s, rising = pair.noise, branch.a_slope > 0
        if self.outside:
            if branch.start > -math.inf and not rising:
                return branch.start, branch.start
            low, high = (1 + s * self.near, 1 + s * self.far) if rising else (-s * self.far, -s * self.near)
        else:
            low, high = (-s * self.far, 1 + s * self.near) if rising else (-s * self.near, 1 + s * self.far)
        return max(low, branch.start), max(high, branch.start)


@dataclass(frozen=True)
class _Nodes:
    """Nodes of a quadrature rule over the outputs, each with its loss and the log of P's mass near it.

    half: for each node the number of the half cell that its loss is in: in [half H/2, (half + 1) H/2) for the grid's
    spacing H, up to an error of at most `slip`. The losses of nodes in the lowest half cell may also be below it.
    error: a bound on the relative error of the masses e^log_mass.
    """

    half: NDArray[np.int64]
    loss: Array
    log_mass: Array
    slip: float
    error: float


def _nodes(pair: Pair, branch: Branch, width: float, span: Span, lowest: float) -> _Nodes:
    s, sign = pair.noise, branch.a_slope
    low, high = span.interval(pair, branch)
    both = np.array([low, high])
    ends, _ = losses(pair, branch, both, np.zeros(2))
    ends_error, _ = rounding(pair, branch, both, np.zeros(2))
    first, last = (math.floor(v / (width / 2)) for v in sign * ends)
    bottom = math.floor(lowest / (width / 2))
    first, last = (max(first, bottom), last) if sign > 0 else (first, min(last, -1 - bottom))
    if last - first > _MOST_PIECES:
        raise OverflowError("too many cells")
    if max(abs(first), abs(last)) > _MOST_FROM_ZERO:
        raise OverflowError("losses that are all but one value")
    levels = np.arange(first + 1, last + 1) * (width / 2)
    inner = np.clip(inverse(pair, branch, levels), low, high)
    at_inner, _ = losses(pair, branch, inner, np.zeros(len(inner)))
    inner_error, _ = rounding(pair, branch, inner, np.zeros(len(inner)))
    slip = float(np.max(np.abs(sign * at_inner - levels) + inner_error, initial=float(np.max(ends_error))))
    edges = np.maximum.accumulate(np.concatenate([[low], inner, [high]]))
    widest = s / max(50.0, 3.2 * ((max(-low, high) + 1) / s + 2))
    pieces = np.ceil(np.diff(edges) / widest).astype(np.int64)
    if pieces.sum() > _MOST_PIECES:
        raise OverflowError("too many nodes")
    half = np.repeat(np.arange(len(pieces)), pieces)
    length = np.repeat(np.diff(edges) / np.maximum(pieces, 1), pieces)
    left = edges[half] + (np.arange(len(half)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
    x = (left[:, None] + length[:, None] * (1 + FOUR_POINTS) / 2).ravel()
    log_width = np.log((length[:, None] * FOUR_WEIGHTS / (2 * s)).ravel()) - LOG_SQRT_2PI
    loss, log_mass = losses(pair, branch, x, log_width)
    loss_error, mass_error = rounding(pair, branch, x, log_width)
    half = np.repeat(half, len(FOUR_POINTS)) + first
    return _Nodes(
        half if sign > 0 else -1 - half,
        loss,
        log_mass,
        max(slip, float(np.max(loss_error))) + 4 * UNIT * float(np.max(np.abs(loss))),
        FOUR_ERROR + float(np.max(mass_error)) + 4 * UNIT * int(pieces.max()),
    )


def blended(kinds: Sequence[tuple[float, Cells]]) -> Cells:
    """The laws of one release that is of one of several kinds by chance (`parts.OneOf`): for each kind its chance and
    its laws, all on one grid with one tilt."""
    first = min(one.first for _, one in kinds)
    count = max(one.first + len(one.dominating) for _, one in kinds) - first
    log_scale = max(math.log(chance) + one.log_scale for chance, one in kinds)
    total = {name: np.zeros(count) for name in ("dominating", "nearest_p", "nearest_q")}
    for chance, one in kinds:
        factor = math.exp(math.log(chance) + one.log_scale - log_scale)
        for name, law in total.items():
            law[one.first - first :][: len(one.dominating)] += factor * getattr(one, name)
    slip, error = (max(getattr(one, name) for _, one in kinds) for name in ("slip", "error"))
    error += UNIT * (16 + 4 * max(abs(one.log_scale - log_scale) + abs(math.log(chance)) for chance, one in kinds))
    return Cells(first, **total, slip=slip, error=error, log_scale=log_scale)


def cells(pair: Pair, tau: float, width: float, span: Span, lowest: float) -> Cells:
    """The laws of the loss of one release of a pair, on the grid with spacing H = `width`, tilted by tau > 0.

    One of them dominates the release, and one is dominated by it (`Cells`). Only the outputs in `span` count. Outputs
    with losses below `lowest` count as if their loss were `lowest`: that only raises delta of the dominating law, and
    in the dominated law they are one event.

    Raises:
        OverflowError: more than two million pieces would be needed, or cells so narrow that rounding blurs the losses.
    """
    used = [branch for branch in pair.branches if len(set(span.interval(pair, branch))) == 2]
    nodes = [_nodes(pair, branch, width, span, lowest) for branch in used]
    half, loss, log_mass = (np.concatenate([getattr(n, name) for n in nodes]) for name in ("half", "loss", "log_mass"))
    first = min(int(half.min()) >> 1, 0)
    count = max(int(half.max()) + 1 >> 1, 0) - first + 2
    largest = width * max(abs(first), first + count)
    slip = max(n.slip for n in nodes)
    error = max(n.error for n in nodes) + slip + UNIT * (16 + 8 * (1 + tau) * largest)

    def log_masses(cell: NDArray[np.int64], *, raised: bool) -> tuple[Array, Array]:
        base = cell * width
        log_p = log_mass + tau * base
        return log_p, log_p + base - (np.maximum(loss, base) if raised else loss)

    below, nearest = half >> 1, (half + 1) >> 1
    logs_below, logs_nearest = log_masses(below, raised=True), log_masses(nearest, raised=False)
    log_scale = float(max(np.max(logs) for logs in (*logs_below, *logs_nearest)))

    def masses(cell: NDArray[np.int64], logs: tuple[Array, Array]) -> tuple[Array, Array]:
        found = [np.bincount(cell - first, np.exp(log - log_scale), count).astype(np.float64) for log in logs]
        for law in found:
            law[-first] += 0.0 if span.outside else pair.atom * math.exp(-log_scale)
        return found[0], found[1]

    # A cell is an interval of losses [k H, (k + 1) H), H = `width`. `up` is the mass of a cell that moves to its upper
    # end, and the rest moves to its lower end, so that both P's and Q's masses are kept. `slack` makes `up` a little
    # larger, for rounding errors, which is the safe side for a law that has to dominate.
    p, q = masses(below, logs_below)
    slack = 1.01 * (2 * error + 4 * UNIT * (1 + largest))
    up = np.minimum((np.maximum(p - q, 0.0) + slack * p) / -math.expm1(-width), p)
    dominating = p - up
    dominating[1:] += up[:-1] * math.exp(tau * width)
    return Cells(first, dominating, *masses(nearest, logs_nearest), slip, error, log_scale)
