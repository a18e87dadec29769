"""Random allocation (balls in bins) with Gaussian noise that is not small: certified brackets of delta(epsilon).

In each epoch of t steps every record takes part in exactly one step, which is uniformly random and independent of the
other records. Lengths are in units of the clip; s = `noise_multiplier`.

The computation is on evenly spaced grids of the density ratio and of its logarithm. It is sharp where no ratio is large
and delta is well above rounding errors. `mixture` tries it first, and then the method of `epoch`, which also serves
replace-one, little noise, and other releases in the same history.

Pair of one epoch. P = (1/t) sum_i N(e_i, s^2 I_t) with the record is compared with Q = N(0, s^2 I_t) without it; e_i is
the i-th unit vector. The density ratio at the outputs x_1, ..., x_t is S = (1/t) sum_i Y_i with
Y_i = exp((2 x_i - 1)/(2 s^2)), which are independent with mean 1 under Q (Feldman and Shenfeld, "Privacy
amplification by random allocation", arXiv 2502.08202; "Efficient privacy loss accounting for subsampling and random
allocation", arXiv 2602.17284). It dominates every adaptive use: there Y_i has a shift of norm at most 1, chosen from
the outputs before i, so given these it is log-normal with mean 1 and no more variance: smaller in convex order.
Replace the Y_i by independent ones with shift 1 from the last to the first: E_Q f(S) can only rise for every convex
f, and f = (S - a)_+ and (1 - a S)_+ give the divergences of the two directions. Data with constant
contributions attain it. If only the first r steps of an epoch are released, S = 1 - r/t + (1/t) sum_{i<=r} Y_i.
A longer epoch is smaller in convex order, so that t may be any lower bound on the epoch's length.
Pairs of epochs compose adaptively (Zhu, Dong and Wang 2022, Theorem 10).

A history of several such runs composes in the same way. A run with epochs of one step is plain Gaussian noise; the
full batches and fixed orders of a history are given as such a run.

Upper end. Each Y_i is spread to the two neighbouring points of the grid of multiples of h so that its mean is kept,
which makes it larger in convex order. The law of the sum of t of them is a power of a Fourier transform. Then each atom
of the ratio S is split between two neighbouring ratios e^{jH} so that its masses under P and Q are kept, which gives a
law that dominates too. Composition of epochs is again a power. To delta are added the probability of the tails that are
cut off (by exact normal tails, then by Chernoff's bound on the laws that are transformed) and the rounding errors of
the transforms.

Lower end. The cell numbers floor(Y_i/h) are a function of the output. So are their sums K over an epoch, and the sums
over epochs of log(ratio of K)/H, rounded, all modulo the transforms' lengths. For every set A of such sums
delta >= P(A) - e^epsilon Q(A); both probabilities are computed by themselves, and rounding errors are subtracted. No
tail is cut off.

Cell masses are 4-point Gauss-Legendre sums over pieces at most s/50 wide, with a relative error below `FOUR_ERROR`
each, hence a factor of at most 1 +- FOUR_ERROR for every step. Density ratios have the relative error `_RATIO_ERROR`,
which counts as a shift of epsilon.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.grids.convolution import chernoff, compose, transform
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum
from dpzero_theory.privacy.certified.laws.cells import FOUR_ERROR, FOUR_POINTS, FOUR_WEIGHTS
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, delta_from_gdp

_LEAST_NOISE_OF_CELLS = 0.5
"""The least noise multiplier for which the errors of the cells' masses are proved. With less noise the upper end is the
bound without amplification: as if the record's step of each epoch were known."""

_RATIO_ERROR = 1e-13
"""A bound on the relative rounding error of a density ratio."""
_LOG_CUT_OFF = math.log(1e-14)
"""The log of the probability of each tail that is cut off; these probabilities are added to the upper end of delta."""
_FINEST = 4e-3
"""The spacing of the grids: of ratios, in standard deviations of a step's ratio, and of losses, in standard deviations
of the total loss."""
_LONGEST_GRID = 2**19
"""About the most points of a grid of ratios or losses with the spacing `_FINEST`; if more would be needed the spacing
is wider."""
_LONGEST_SUM = 2**18
"""About the most points of a grid for a sum of many ratios or losses, whose spacing may be wider against the deviation
of one of them."""
_WIDEST_SPACING = 0.05
"""If a grid of ratios with `_LONGEST_GRID` points has a spacing above this share of the ratio's standard deviation, it
is too coarse, and another method is used."""
_MOST_GRID_POINTS = 2**21
"""If a grid would need more points than this, OverflowError is raised."""


@dataclass(frozen=True)
class Allocated:
    """`steps` releases with random allocation, of which the first begins an epoch.

    noise_multiplier: s, the noise over the clip.
    epoch: a lower bound on the number of steps of an epoch.
    taken: the number of steps of an epoch that the record is in.
    """

    noise_multiplier: float
    epoch: int
    steps: int
    taken: int = 1

    @property
    def epochs(self) -> int:
        """The number of epochs that the releases begin; the record is in at most `taken` batches of each."""
        return -(-self.steps // self.epoch)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The run's epochs as (steps that are released, number of such epochs), first the whole ones, then the last if
        it is cut."""
        whole, rest = divmod(self.steps, self.epoch)
        return [part for part in ((self.epoch, whole), (rest, 1)) if all(part)]

    @property
    def plain_gdp(self) -> float:
        """The mu of Gaussian DP of the run, for `taken` = 1, if it were known which step of each epoch the record is
        in."""
        return math.sqrt(self.epochs) / self.noise_multiplier


def distinct(runs: Sequence[Allocated]) -> dict[tuple[float, int, int], int]:
    """How many epochs of each kind several runs have; a kind is (noise multiplier, steps of the epoch, steps that are
    released)."""
    kinds: dict[tuple[float, int, int], int] = {}
    for run in runs:
        for released, count in run.parts:
            kind = run.noise_multiplier, run.epoch, released
            kinds[kind] = kinds.get(kind, 0) + count
    return kinds


@dataclass(frozen=True)
class _Law:
    """A law on the integers first, first + 1, ..., with its masses.

    error: a bound on the sum of the masses' errors and of the mass that is cut off.
    """

    first: int
    mass: Array
    error: float


@dataclass(frozen=True)
class _Laws:
    """The laws of the sum over one epoch of the steps' density ratios Y_i, on a grid with this `spacing`: under P, with
    the record, and under Q, without it.

    Y_i = exp((2 x_i - 1)/(2 s^2)) for the output x_i of step i and the noise s.
    upper: the two laws for the upper end of delta, in which P's mass at each point is Q's times the density ratio
    there.
    lower: the two laws for the lower end of delta, each computed by itself.
    """

    upper: tuple[_Law, _Law]
    lower: tuple[_Law, _Law]
    spacing: float


def light(run: Allocated, resolution: float = _FINEST) -> bool:
    """Whether the grid of density ratios on which `allocation_delta` computes is fine enough for a run.

    It is not if little noise makes some ratios so large that a fine grid would need too many points. resolution: as in
    `allocation_delta`; a larger one allows fewer points.
    """
    s = run.noise_multiplier
    if s < _LEAST_NOISE_OF_CELLS:
        return False
    high = 1 - s * float(ndtri(math.exp(_LOG_CUT_OFF) / (4 * min(run.epoch, run.steps) * run.epochs)))
    deviation = math.sqrt(math.expm1(1 / s**2))
    return 2 * math.exp((2 * high - 1) / (2 * s * s)) < _WIDEST_SPACING * deviation * _longest(resolution)


def _longest(resolution: float) -> float:
    """About the most points of a grid with this resolution: `_LONGEST_GRID`, or fewer if `resolution` is not the
    finest."""
    return _LONGEST_GRID * min(_FINEST / resolution, 1.0)


def _cells(s: float, h: float, low: float, high: float) -> tuple[int, Array, Array, Array]:
    """The laws of the density ratio Y = exp((2 x - 1)/(2 s^2)) of one step, on cells [kh, (k+1)h) of its value.

    s: the noise multiplier. h: the width of a cell. low, high: the range of outputs x that is split. It returns the
    first k; the masses of the cells under N(0, s^2) and under N(1, s^2), where the first and the last cell also hold
    all outputs below `low` and above `high`; and the law under N(0, s^2) with each mass split between the ends of its
    cell, without the outputs beyond.
    """
    half = 1 / (2 * s * s)
    first = math.floor(math.exp(low / s**2 - half) / h)
    last = math.floor(math.exp(high / s**2 - half) / h)
    inner = s * s * np.log(np.arange(first + 1, last + 1) * h) + 0.5
    edges = np.maximum.accumulate(np.clip(np.concatenate([[low], inner, [high]]), low, high))
    parts = np.maximum(np.ceil(np.diff(edges) * 50 / s), 1).astype(np.int64)
    index = np.repeat(np.arange(last - first + 1), parts)
    width = np.repeat(np.diff(edges) / parts, parts)
    within = np.arange(len(index)) - np.repeat(np.cumsum(parts) - parts, parts)
    left = np.repeat(edges[:-1], parts) + within * width
    count = last - first + 1
    q, p, spread = np.zeros(count), np.zeros(count), np.zeros(count + 1)
    for node, weight in zip(FOUR_POINTS, FOUR_WEIGHTS, strict=True):
        x = left + width * (1 + node) / 2
        scale = weight * width / (2 * s * math.sqrt(2 * math.pi))
        mass = scale * np.exp(-((x / s) ** 2) / 2)
        share = np.clip(np.exp((2 * x - 1) * half) / h - (index + first), 0.0, 1.0)
        q += np.bincount(index, mass, count)
        p += np.bincount(index, scale * np.exp(-(((x - 1) / s) ** 2) / 2), count)
        spread += np.bincount(index, mass * (1 - share), count + 1)
        spread += np.bincount(index + 1, mass * share, count + 1)
    q[0] += ndtr(low / s)
    p[0] += ndtr((low - 1) / s)
    q[-1] += ndtr(-high / s)
    p[-1] += ndtr((1 - high) / s)
    return first, q, p, spread


def _size(length: int) -> int:
    """The length of the Fourier transform, a power of two, for a grid of `length` points."""
    if not 1 <= length <= _MOST_GRID_POINTS:
        raise OverflowError("a grid would need too many points")
    return max(1 << (length + 1).bit_length(), 64)


def _count(index: NDArray[np.int64], mass: Array, length: int) -> Array:
    """The total mass at each of 0, ..., length - 1, where mass[i] is at the number index[i]."""
    return np.asarray(np.bincount(index, mass, length), dtype=np.float64)


def _epoch(s: float, t: int, released: int, resolution: float, log_tail: float) -> _Laws:
    """The laws of the sum of the steps' density ratios Y_i over the first `released` of an epoch's t steps.

    s: the noise multiplier. resolution: the spacing of the grid, in standard deviations of Y, if that needs few enough
    points. log_tail: the log of the probability of each tail that is cut off.
    """
    # Outputs more than z standard deviations s of the noise from both means are cut off.
    z = -float(ndtri(math.exp(log_tail) / (4 * released)))
    low, high = -s * z, 1 + s * z
    deviation = math.sqrt(math.expm1(1 / s**2))
    largest = math.exp((2 * high - 1) / (2 * s * s))
    longest = _longest(resolution)
    h = deviation * max(resolution, 24 * math.sqrt(released) / _LONGEST_SUM)
    h = max(h, 2 * largest / longest)
    first, q, p, spread = _cells(s, h, low, high)
    points = np.arange(first, first + len(spread), dtype=np.float64)
    biased = spread * points * h
    log_spread, log_biased = log_law(spread), log_law(biased)
    centre = float(np.sum(points * spread))
    offsets = points - centre
    fastest = 60 * h / (deviation * math.sqrt(released))
    rates = np.geomspace(min(fastest / 60, 20 / len(points)), fastest, 16)

    def above(rate: float) -> float:
        return log_sum(log_biased, rate, offsets) + (released - 1) * log_sum(log_spread, rate, offsets)

    def below(rate: float) -> float:
        return released * log_sum(log_spread, -rate, offsets)

    end = released * centre + chernoff(above, rates, log_tail)
    begin = released * centre - chernoff(below, rates, log_tail)
    start = max(math.floor(begin), released * first)
    size = _size(min(math.ceil(end), released * int(points[-1])) - start + 1)
    part = released / t
    cut = 3 * math.exp(log_tail)
    laws: list[tuple[_Law, _Law]] = []
    for base_law, other_law, tail in ((spread, biased, cut), (q, p, 0.0)):
        base, other = transform(base_law, first, size), transform(other_law, first, size)
        under_q, error_q = compose([(base, released)], start)
        under_p, error_p = compose([(base, released - 1), (part * other + (1 - part) * base, 1)], start)
        laws.append((_Law(start, under_p, error_p + tail), _Law(start, under_q, error_q + tail)))
    return _Laws(laws[0], laws[1], h)


def _on_loss_grid(laws: _Laws, t: int, released: int, width: float, floor: int) -> list[_Law]:
    """The four laws (upper P, upper Q, lower P, lower Q) of an epoch, moved from the grid of ratios to the grid of
    losses jH.

    P is with the record, Q without it; H = `width` and j >= floor. The epoch has t steps, of which the first `released`
    are released.
    """
    rest = 1 - released / t
    grid = laws.upper[0].first + np.arange(len(laws.upper[0].mass), dtype=np.float64)
    ratio = rest + grid * laws.spacing / t
    inside = ratio > math.exp(floor * width) * (1 + 1e-9)
    position = np.log(np.where(inside, ratio, 1.0)) / width
    below = np.floor(position).astype(np.int64)
    # `share` is the part of Q's mass that moves to the higher ratio, so that P's and Q's masses are both kept.
    share = np.clip(np.expm1((position - below) * width) / math.expm1(width), 0.0, 1.0)
    to_high = np.clip(share * np.exp((below + 1 - position) * width), 0.0, 1.0)
    count = int(below[inside].max()) - floor + 2
    upper = []
    for law, high in ((laws.upper[0], to_high), (laws.upper[1], share)):
        mass = _count((below - floor)[inside], (law.mass * (1 - high))[inside], count)
        mass += _count((below - floor)[inside] + 1, (law.mass * high)[inside], count)
        outside = float(np.sum(law.mass[~inside]))
        upper.append(_Law(floor, mass, law.error + outside))
    middle = np.log(np.maximum(rest + (grid + released / 2) * laws.spacing / t, math.exp(floor * width))) / width
    index = np.minimum(np.rint(middle).astype(np.int64) - floor, count - 1)
    return upper + [_Law(floor, _count(index, law.mass, count), law.error) for law in laws.lower]


@dataclass(frozen=True)
class _Composed:
    """Four laws of the total privacy loss, on multiples of `width`: under P and under Q, first for the upper end of
    delta.

    P is with the record, Q without it. The third and the fourth are those under P and under Q for the lower end.
    rounding: a bound on the relative error of the masses. shift: a bound on the absolute error of the losses.
    """

    width: float
    laws: tuple[_Law, ...]
    rounding: float
    shift: float


@lru_cache(maxsize=4)
def _composed(runs: tuple[Allocated, ...], resolution: float) -> _Composed:
    """The laws of the total privacy loss of all runs; `resolution` is the least spacing of the grids, in standard
    deviations of a step's density ratio and of the total loss."""
    kinds = distinct(runs)
    total = sum(kinds.values())
    log_tail = _LOG_CUT_OFF - math.log(total)
    found = [
        (_epoch(noise, epoch, released, resolution, log_tail), epoch, released, count)
        for (noise, epoch, released), count in kinds.items()
    ]
    # `variance` is the sum of the variances of all epochs' density ratios.
    variance = math.fsum(
        count * min(math.expm1(1 / noise**2) * released / epoch**2, 1.0)
        for (noise, epoch, released), count in kinds.items()
    )
    width = math.sqrt(variance) * max(resolution / math.sqrt(total), 24 / _LONGEST_SUM)
    gridded = []
    for laws, t, released, count in found:
        least = 1 - released / t + laws.upper[0].first * laws.spacing / t
        floor = math.floor(math.log(max(least, 1e-12)) / width) - 1
        gridded.append((_on_loss_grid(laws, t, released, width, floor), count))
    logs = [[log_law(law.mass) for law in four[:2]] for four, _ in gridded]
    points = [four[0].first + np.arange(len(four[0].mass), dtype=np.float64) for four, _ in gridded]
    fastest = 60 * width / math.sqrt(variance)
    rates = np.geomspace(min(fastest / 60, 20 / max(map(len, points))), fastest, 16)

    def moment(rate: float, which: int) -> float:
        return math.fsum(
            count * log_sum(log[which], rate, at) for (_, count), log, at in zip(gridded, logs, points, strict=True)
        )

    end = math.ceil(chernoff(lambda rate: moment(rate, 0), rates, _LOG_CUT_OFF))
    start = -math.ceil(chernoff(lambda rate: moment(-rate, 1), rates, _LOG_CUT_OFF))
    size = _size(end - start + 1)
    composed = []
    for which in range(4):
        spectra = [(transform(four[which].mass, four[which].first, size), count) for four, count in gridded]
        mass, error = compose(spectra, start)
        each = sum(count * four[which].error for four, count in gridded)
        tail = 2 * math.exp(_LOG_CUT_OFF) if which < 2 else 0.0
        composed.append(_Law(start, mass, error + each * math.exp(each) + tail))
    # Every sum over a grid has at most `terms` terms, which bounds its rounding error.
    terms = max(len(laws.upper[0].mass) for laws, *_ in found)
    steps = sum(run.steps for run in runs)
    return _Composed(
        width, tuple(composed), math.expm1(steps * FOUR_ERROR + total * terms * 2.0**-52), total * _RATIO_ERROR
    )


def _upper(epsilon: float, losses: Array, law: _Law, composed: _Composed) -> float:
    """An upper bound on delta(epsilon): the mean of (1 - e^{epsilon - loss})_+ under `law`, plus all errors.

    losses: the losses at which `law` has its masses. composed: the result of `_composed`, whose `rounding` and `shift`
    are the bounds on the errors of masses and losses.
    """
    beyond = losses > epsilon - composed.shift
    gain = -np.expm1(epsilon - composed.shift - losses[beyond])
    gained = float(np.sum(law.mass[beyond] * gain)) * (1 + composed.rounding) * math.exp(composed.shift)
    return min(gained * (1 + 1e-12) + law.error * (1 + composed.rounding), 1.0)


def _lower(epsilon: float, first: _Law, second: _Law, composed: _Composed) -> float:
    """A lower bound on delta(epsilon): the largest P(A) - e^epsilon Q(A) over some events A, minus all errors.

    The events are that the total loss is at or above a point of the grid. first, second: the laws under P and under Q.
    composed: the result of `_composed`, whose `rounding` is the bound on the masses' relative errors.
    """
    scale = math.exp(min(epsilon, 700.0))
    gain = (1 - composed.rounding) * first.mass - scale * (1 + composed.rounding) * second.mass
    best = float(np.max(np.cumsum(gain[::-1])))
    slack = len(gain) * 2.0**-52 * float(np.sum(gain[gain > 0]))
    return max(best - slack - first.error - scale * second.error, 0.0)


def allocation_delta(epsilon: float, runs: Sequence[Allocated], *, resolution: float = _FINEST) -> Bracket:
    """Certified bracket of the smallest delta of a history of random allocations: the larger of both directions.

    They are (P, Q), with the record under P, and (Q, P).

    Args:
        epsilon: epsilon >= 0.
        runs: the random allocations, at least one, each to one step of an epoch (`taken` is not looked at). If a noise
            multiplier is below 0.5, the upper end is the delta without amplification: as if the record's step of each
            epoch were known. So it is if a grid would need too many points.
        resolution: the least spacing of both grids, in (0, 0.1], in standard deviations of a step's density ratio and
            of the total loss; a larger one takes less time.

    Returns:
        A bracket: the exact delta is between `lower` and `upper`; `value` is an estimate.

    Raises:
        ValueError: an argument outside its range.
    """
    eps = check.real("epsilon", epsilon, at_least=0)
    checked = tuple(
        Allocated(
            check.real("noise_multiplier", run.noise_multiplier, above=0),
            check.integer("epoch", run.epoch, at_most=10**9),
            check.integer("steps", run.steps, at_most=10**12),
        )
        for run in runs
    )
    if not checked:
        raise ValueError("runs must have one run at least; got none")
    width = check.real("resolution", resolution, above=0, at_most=0.1)
    # `fixed` is the delta if the record's step of each epoch were known. The history is a mixture over these steps, so
    # that by joint convexity its delta is at most `fixed`.
    gdp = math.hypot(*(run.plain_gdp for run in checked))
    fixed = min(float(delta_from_gdp(eps, gdp)) * (1 + GDP_ACCURACY), 1.0)
    single = max(largest_output(eps, run) for run in checked)
    if min(run.noise_multiplier for run in checked) < _LEAST_NOISE_OF_CELLS:
        return _answer(single, fixed, fixed)
    try:
        composed = _composed(checked, width)
    except OverflowError:
        return _answer(single, fixed, fixed)
    p, q, low_p, low_q = composed.laws
    losses = composed.width * (p.first + np.arange(len(p.mass), dtype=np.float64))
    backward = [_Law(0, law.mass[::-1], law.error) for law in (low_q, low_p)]
    lower = max(_lower(eps, low_p, low_q, composed), _lower(eps, backward[0], backward[1], composed), single)
    upper = max(_upper(eps, losses, p, composed), _upper(eps, -losses, q, composed))
    # A grid with the spacing h adds h^2/6 to the loss's variance for the upper end and takes h^2/12 from it for the
    # lower end, so that delta is about a third of the way from the lower to the upper end.
    return _answer(lower, min(lower + (upper - lower) / 3, fixed), min(upper, fixed))


def largest_output(epsilon: float, run: Allocated) -> float:
    """A lower bound on delta(epsilon) of a run of random allocation.

    It is P(A) - e^epsilon Q(A), bounded from below, for the event A that some output of the first epoch is above a
    level.
    """
    s, t, released = run.noise_multiplier, run.epoch, min(run.steps, run.epoch)
    c = 0.5 + s * s * (epsilon + math.log(t))
    present = released / t * float(ndtr((1 - c) / s))
    absent = released * math.exp(min(epsilon, 700.0) + float(log_ndtr(-c / s)))
    return max(present - absent - 1e-12 * (present + absent), 0.0) if epsilon <= 700 else 0.0


def _answer(lower: float, value: float, upper: float) -> Bracket:
    return Bracket(lower, value, max(upper, 5e-324), "random allocation")
