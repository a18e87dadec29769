"""delta(epsilon) of histories with random allocations, or with releases that are accounted for by finite pairs of laws.

Releases with Laplace noise are an example of the latter. If a history has only random allocations and plain Gaussian
releases and the relation is not replace-one, the module `allocation` is tried first. In all other cases one grid of
losses is used: the finite pairs of the epochs (module `epoch`), the other finite pairs and the dominating pairs of the
other releases become laws on that grid, and their Fourier transforms are multiplied.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.allocations.allocation import (
    Allocated,
    allocation_delta,
    distinct,
    largest_output,
    light,
)
from dpzero_theory.privacy.certified.allocations.epoch import epoch_pairs
from dpzero_theory.privacy.certified.allocations.modulus import coefficient_delta
from dpzero_theory.privacy.certified.allocations.subset import subset_pairs, told
from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.crossing import Curve
from dpzero_theory.privacy.certified.grids.grid import grid_delta_beside
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum
from dpzero_theory.privacy.certified.laws.finite import Ends, FinitePair, product
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import OneOf, Parts
from dpzero_theory.privacy.certified.laws.sketch import reach_of, rough_epsilon
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, delta_from_gdp

Finite = tuple[tuple[tuple[FinitePair, int], ...], ...]
"""For each of the two directions (P, Q) and (Q, P), pairs of laws with finitely many outcomes, and their numbers of
releases."""
NO_FINITE: Finite = ((), ())
"""The value of `Mixture.finite` for a history without pairs of laws with finitely many outcomes."""

APART: tuple[Ends, Ends] = "upper", "lower"
_LEFT_OUT_SHARE = 1e-4
"""Outputs with this probability, as a share of delta, are left out of the grid; it is added to the bracket's upper
end."""
_NARROW = 0.03
"""If a bracket of delta by the module `allocation` has at most this relative width, upper/lower - 1, no other method is
tried."""
_RESOLVED = 1e-8
"""The least target delta for which the module `allocation` is tried: its rounding errors do not shrink with delta."""
_GUESSED = 5.0
"""A first estimate of delta of a history with random allocations may be too large; divided by this it is the guess of
delta. If delta is below the guess by more than this factor, it is computed once more with the better guess."""
_FAR_FROM_TARGET = 10.0
"""A search is content with any bracket that puts delta more than this factor above or below its target."""
_LEAST_DELTA = 1e-280
"""If delta is below this, no grid is tried, and the upper end of its bracket is the bound without amplification by
allocation."""
_SHARE, _TRIES, _COARSE_MISS = 0.3, 8, 0.1
"""`Curve.share`, `Curve.tries` and `Curve.miss` of a search for noise with random allocations, in which an evaluation
takes long and the error of an estimate of log delta is about the third number."""
_FEWEST_POINTS, _MOST_POINTS = 2**14, 2**18
"""The fewest and the most points of the grid of losses."""


@dataclass(frozen=True)
class Mixture:
    """A history of random allocations, releases with dominating pairs, finite pairs, and a `gdp`-GDP mechanism.

    A finite pair is a pair of laws with finitely many outcomes. P is the law of what is released with the record, and Q
    that without it or with another one.

    Attributes:
        runs: the random allocations.
        parts: the composition of the releases' dominating pairs, for upper ends: one, or one for each of the directions
            (P, Q) and (Q, P).
        attained: compositions, as in `parts`, of pairs that some data sets attain, for lower ends.
        gdp: mu of the plain Gaussian releases, 0 for none.
        replaced: whether the relation is replace-one, so that the record's contributions change their sign and the two
            directions of a random allocation are the same; else the record is there or not.
        finite: the finite pairs.
    """

    runs: tuple[Allocated, ...]
    parts: tuple[Parts, ...]
    attained: tuple[Parts, ...]
    gdp: float
    replaced: bool
    finite: Finite = NO_FINITE


@dataclass(frozen=True)
class Accuracy:
    """How fine the grids are on which delta is computed.

    ratio: the spacing h of the grid of density ratios in the module `signed`.
    resolution: the argument of `allocation.allocation_delta`, a spacing of grids in standard deviations.
    points: the number of points of the grid of losses, over the square root of the number of releases.
    work: the most additions of two weights of laws on that grid; where more would be needed, the spacing is larger than
    `ratio`.
    sums: the number of grid points for the sum of an epoch's losses in `subset.subset_pairs`.
    """

    ratio: float
    resolution: float
    points: int = 450
    work: float = math.inf
    sums: int = 2**14


_MOST_WORK, _LESS_WORK, _LITTLE_WORK = 2.5e7, 6e6, 1e7
"""The most additions of two weights of laws on a grid: for an answer, where they take about 0.4 s of one core; for the
lower end of a noise multiplier; and for estimates, whose grids are coarser."""
FINE, ROUGH = Accuracy(0.06, 4e-3, work=_MOST_WORK), Accuracy(0.15, 1e-2, 100)
COARSE, GUESS = Accuracy(0.15, 1e-2, work=_LITTLE_WORK, sums=2**12), Accuracy(0.3, 1e-2, work=_LITTLE_WORK, sums=2**12)
"""How fine grids are for answers (FINE), for estimates in a root search with random allocations (COARSE), for estimates
in one with finite pairs alone (ROUGH), and for a first guess of delta with random allocations (GUESS)."""


@lru_cache(maxsize=8)
def _epochs(runs: tuple[Allocated, ...], replaced: bool, reach: float, ratio: float, work: float, ends: Ends) -> Finite:
    """For each direction the pairs of laws with finitely many outcomes of all epochs of `runs`, with the numbers of
    epochs.

    replaced: whether neighbours replace a record. reach: outputs farther than this many standard deviations from their
    means are left out. ratio: the spacing of the grid of density ratios. work: the most additions of two weights of
    laws on that grid. ends: which ends of the bracket the pairs are for.
    """
    if not runs:
        return NO_FINITE
    near = min(reach, 4 + reach / math.sqrt(sum(run.epochs for run in runs)))
    directions: tuple[list[tuple[FinitePair, int]], ...] = ([], [])
    kinds = distinct(runs)
    how = {"reach": reach, "near": near, "ratio": ratio, "work": work / len(kinds)}
    for (noise, epoch, released), count in kinds.items():
        pairs = epoch_pairs(noise, epoch, released, replaced=replaced, ends=ends, **how)
        for direction, pair in zip(directions, pairs, strict=True):
            direction.append((pair, count))
    return tuple(map(tuple, directions))


def _on_grid(
    epsilon: float,
    mixture: Mixture,
    delta: float,
    accuracy: Accuracy,
    ends: Ends = "both",
    directions: Sequence[int] = (0, 1),
    *,
    guided: bool = False,
) -> Bracket:
    """The bracket of delta(epsilon) of the history `mixture` on a grid of losses: the larger of those of `directions`.

    directions: 0 is (P, Q), with the record under P, and 1 is (Q, P). delta: a rough delta; outputs whose probability
    is the share `_LEFT_OUT_SHARE` of it are left out. accuracy: how fine the grid is. ends: which ends of the bracket
    are wanted. guided: whether the other end is needed too, as an estimate that is no bound.
    """
    steps = max(math.fsum(run.steps for run in mixture.runs), 1)
    log_cut = math.log(delta) + math.log(_LEFT_OUT_SHARE)
    reach = math.ceil(2 * reach_of(log_cut, steps)) / 2
    epochs = _epochs(mixture.runs, mixture.replaced, reach, accuracy.ratio, accuracy.work, ends)
    lower = value = upper = 0.0
    equal = mixture.finite[0] == mixture.finite[1] and (mixture.replaced or not mixture.runs)
    for index in directions[: 1 if equal and len(mixture.parts) == len(mixture.attained) == 1 else 2]:
        others, below = (each[min(index, len(each) - 1)] for each in (mixture.parts, mixture.attained))
        listed = None if epochs[index] or others or mixture.gdp else product(mixture.finite[index])
        if listed is not None:
            known = listed.delta(epsilon)
            lower, value, upper = map(max, (lower, value, upper), known)
            continue
        own = [(pair.trimmed(math.exp(log_cut) / count), count) for pair, count in mixture.finite[index]]
        finite = (*epochs[index], *own)
        try:
            told = others if ends != "lower" else below
            needed: Ends = "both" if guided else "upper" if ends == "both" and below != others else ends
            bracket = _composed(epsilon, finite, told, mixture.gdp, log_cut, accuracy, needed)
        except OverflowError:
            most = _chernoff(epsilon, finite, others, mixture.gdp)
            bracket = _bracket(0.0, most, most)
        upper = max(upper, bracket.upper)
        if below != others and ends == "both":
            bracket = _composed(epsilon, finite, below, mixture.gdp, log_cut, accuracy, "lower")
        lower, value = max(lower, bracket.lower), max(value, bracket.value)
    return _bracket(lower, value, upper)


def _composed(
    epsilon: float,
    finite: Sequence[tuple[FinitePair, int]],
    parts: Parts,
    gdp: float,
    log_cut: float,
    accuracy: Accuracy,
    ends: Ends,
) -> Bracket:
    """The bracket of delta(epsilon) on a grid of losses for pairs that all have one direction.

    The direction is (P, Q), with the record under P, or (Q, P); it is that of the pairs given. Without a grid the
    bracket is found where gdp = 0 and either no total loss exceeds epsilon or there is one release only, that of a
    finite pair.

    finite: pairs of laws with finitely many outcomes, with their numbers of releases.
    parts: the dominating pairs of the other releases, with their numbers.
    gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none).
    log_cut: outputs of `parts` with about the probability e^{log_cut} are left out of the sums; twice that probability
        is added to the upper end.
    accuracy: how fine the grid is.
    ends: which ends of the bracket are wanted; the other one may be 0 or 1.
    """
    everything: list[tuple[Pair | OneOf | FinitePair, int]] = [*finite, *parts]
    if gdp == 0 and math.fsum(count * pair.largest_loss for pair, count in everything) * (1 + 1e-12) <= epsilon:
        return _bracket(0.0, 0.0, min(math.fsum(count * pair.infinite for pair, count in finite), 1.0))
    steps = sum(count for _, count in everything)
    if steps == 1 and gdp == 0 and finite:
        return _bracket(*finite[0][0].delta(epsilon))
    points = min(max(2 ** math.ceil(math.log2(accuracy.points * math.sqrt(steps))), _FEWEST_POINTS), _MOST_POINTS)
    return grid_delta_beside(epsilon, finite, parts, gdp, log_cut, points=points, ends=ends)


def _bracket(lower: float, value: float, upper: float) -> Bracket:
    """The bracket from `lower` to `upper` with the estimate `value`, which is first moved between them."""
    return Bracket(lower, min(max(value, lower), upper), upper, "random allocation")


def _far(bracket: Bracket, target: float) -> bool:
    """Whether delta is certainly more than 10 times smaller or more than 10 times larger than `target`.

    A search then needs to know only which of the two holds. bracket: that of delta.
    """
    return bracket.upper < target / _FAR_FROM_TARGET or bracket.lower > target * _FAR_FROM_TARGET


def mixture_delta(
    epsilon: float, mixture: Mixture, *, target: float | None = None, accuracy: Accuracy = FINE, ends: Ends = "both"
) -> Bracket:
    """Certified bracket of delta(epsilon) of a history, the larger of both directions in which neighbours are compared.

    Args:
        epsilon: epsilon >= 0.
        mixture: the history, with at least one random allocation or one pair of laws with finitely many outcomes.
        target: the delta whose epsilon or noise the caller searches for, or None if delta itself is wanted. With a
            target the probability that is left out is small against `target`, and not against delta. So where delta is
            more than 10 times larger or smaller, the upper end may be many times the lower end; both still hold.
        accuracy: how fine the grids are.
        ends: which ends of the bracket are wanted; the other one may be 0 or 1.
    """
    if not mixture.runs:
        return replace(_delta(epsilon, mixture, target, accuracy, ends), method="grid")
    if ends == "both":
        above, below = (mixture_delta(epsilon, mixture, target=target, accuracy=accuracy, ends=end) for end in APART)
        return _bracket(min(max(above.lower, below.lower), above.upper), above.value, above.upper)
    if all(run.taken == 1 for run in mixture.runs):
        return _delta(epsilon, mixture, target, accuracy, ends)
    if ends == "lower":
        dominated = _below(mixture, accuracy.sums)
        return mixture_delta(epsilon, dominated, target=target, accuracy=accuracy, ends="lower")
    bracket = mixture_delta(epsilon, _above(mixture), target=target, accuracy=accuracy, ends="upper")
    upper = _of_one_epoch(epsilon, mixture, bracket.upper, target, accuracy)
    return _bracket(0.0, bracket.value, upper)


def _of_one_epoch(epsilon: float, mixture: Mixture, upper: float, target: float | None, accuracy: Accuracy) -> float:
    """The smaller of `upper` and, for some histories, another upper bound on delta(epsilon) of the history `mixture`.

    The other bound is known if the history is one epoch and the record is there or not. Then
    `modulus.coefficient_delta` bounds the direction (P, Q), with the record under P, and the random allocations to one
    step which dominate the epoch bound the other direction. target: the delta that a search is for, or None. accuracy:
    how fine the grids are.
    """
    run, told = mixture.runs[0], _above(mixture)
    alone = not any((*mixture.parts, *mixture.finite, mixture.gdp)) and [one.epochs for one in mixture.runs] == [1]
    if not alone or mixture.replaced or not told.runs or upper < _LEAST_DELTA:
        return upper
    with contextlib.suppress(OverflowError):
        removed = coefficient_delta(epsilon, run.noise_multiplier, run.epoch, run.taken)
        if removed < upper:
            return min(upper, max(removed, _on_grid(epsilon, told, target or upper, accuracy, "upper", (1,)).upper))
    return upper


def _above(mixture: Mixture) -> Mixture:
    """A history that dominates `mixture` and in which the record takes part in one step of an epoch only.

    Each random allocation to more than one step (`Allocated.taken` > 1) is replaced by those of `subset.told`. One
    whose epochs have a single step is the same as full batches, and its mu is added to `gdp`.
    """
    runs = [each for run in mixture.runs for each in (told(run) if run.taken > 1 else [run])]
    sensitivity = 2 if mixture.replaced else 1
    known = [sensitivity * run.plain_gdp for run in runs if run.epoch == 1]
    return replace(mixture, runs=tuple(run for run in runs if run.epoch > 1), gdp=math.hypot(mixture.gdp, *known))


def _below(mixture: Mixture, points: int) -> Mixture:
    """A history that `mixture` dominates, for lower ends of delta. points: as in `subset.subset_pairs`.

    Each random allocation to more than one step (`Allocated.taken` > 1) is replaced by the finite pairs of
    `subset.subset_pairs`, and the dominating pairs of `parts` by those that data attain.
    """
    directions: tuple[list[tuple[FinitePair, int]], ...] = tuple(list(each) for each in mixture.finite)
    for run in mixture.runs:
        if run.taken > 1:
            for released, count in run.parts:
                kind = run.noise_multiplier, run.epoch, run.taken, released
                pairs = subset_pairs(*kind, replaced=mixture.replaced, points=points)
                for direction, pair in zip(directions, pairs, strict=True):
                    direction.append((pair, count))
    plain = tuple(run for run in mixture.runs if run.taken == 1)
    return replace(mixture, runs=plain, parts=mixture.attained, finite=tuple(map(tuple, directions)))


def _delta(epsilon: float, mixture: Mixture, target: float | None, accuracy: Accuracy, ends: Ends) -> Bracket:
    """The bracket of delta(epsilon) of the history `mixture`, in which a record is in one step of each epoch.

    target: the delta that a search is for, or None. accuracy: how fine the grids are. ends: which ends of the bracket
    are wanted; where a method does not know the other one, it is 0 or 1.
    """
    lower, upper = max((0.0, *(largest_output(epsilon, run) for run in set(mixture.runs) if not mixture.replaced))), 1.0
    plain = not any(mixture.parts) and not any(mixture.finite)
    full = Allocated(1 / mixture.gdp, 1, 1) if mixture.gdp > 0 else None
    if plain:
        known = math.hypot(mixture.gdp, *((2 if mixture.replaced else 1) * run.plain_gdp for run in mixture.runs))
        upper = min(float(delta_from_gdp(epsilon, known)) * (1 + GDP_ACCURACY) + 5e-324, 1.0)
    resolved = target is None or (target >= _RESOLVED and epsilon < math.log(target) + 25)
    if plain and not mixture.replaced and resolved and all(light(run, accuracy.resolution) for run in mixture.runs):
        runs = (*mixture.runs, full) if full else mixture.runs
        bracket = allocation_delta(epsilon, runs, resolution=accuracy.resolution)
        if bracket.upper <= (1 + _NARROW) * bracket.lower or (target and _far(bracket, target)):
            return bracket
        lower, upper = max(lower, bracket.lower), min(upper, bracket.upper)
    if upper < _LEAST_DELTA:
        return _bracket(lower, upper, upper)
    guess = target or max(lower, min(upper, 1e-6))
    tried = GUESS if mixture.runs and not target else accuracy
    try:
        while True:
            bracket = _on_grid(epsilon, mixture, guess, tried, ends, guided=not target)
            if tried is accuracy:
                lower, upper = _within(bracket, lower, upper, ends)
            if target or bracket.lower > guess / 10:
                break
            guess = bracket.lower or guess**4
            if guess < _LEAST_DELTA:
                break
        # If the upper end is far above the guess, perhaps outputs so improbable were kept that the grid, which reaches
        # as far as they do, became too coarse.
        while not target and min(upper, bracket.upper) > 10 * max(guess, _LEAST_DELTA):
            guess = min(upper, bracket.upper)
            bracket = _on_grid(epsilon, mixture, guess, tried, ends, guided=True)
            if tried is accuracy:
                lower, upper = _within(bracket, lower, upper, ends)
            if min(upper, bracket.upper) > guess / 2:
                break
        if tried is not accuracy:
            guess = max(min(bracket.value, upper) / _GUESSED, _LEAST_DELTA)
            bracket = _on_grid(epsilon, mixture, guess, accuracy, ends)
            lower, upper = _within(bracket, lower, upper, ends)
            if _LEAST_DELTA < bracket.value < guess / _GUESSED:
                bracket = _on_grid(epsilon, mixture, bracket.value, accuracy, ends)
                lower, upper = _within(bracket, lower, upper, ends)
        return _bracket(lower, bracket.value, upper)
    except OverflowError:
        if not mixture.runs:
            directions = zip(mixture.finite, (mixture.parts[0], mixture.parts[-1]), strict=True)
            upper = min(upper, max(_chernoff(epsilon, *each, mixture.gdp) for each in directions))
        return _bracket(lower, upper, upper)


def _within(bracket: Bracket, lower: float, upper: float, ends: Ends) -> tuple[float, float]:
    """The larger of two lower ends and the smaller of two upper ends; of those of `bracket` only the wanted `ends`
    count."""
    low, high = (bracket.lower if ends != "upper" else 0.0), (bracket.upper if ends != "lower" else 1.0)
    return max(lower, low), min(upper, high)


def _chernoff(epsilon: float, finite: Sequence[tuple[FinitePair, int]], parts: Parts, gdp: float) -> float:
    """An upper bound on delta(epsilon) of one direction, (P, Q) or (Q, P): the least of Chernoff's bounds at several
    tilts.

    finite, parts: the finite pairs and the dominating pairs of single releases, each with its number of releases. gdp:
    the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none).
    """
    best = 0.0
    for tau in np.geomspace(1.0, 4.0**10, 11):
        total = gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
        with contextlib.suppress(OverflowError):
            for pair, count in parts:
                total += count * sum(cumulant(pair, float(tau)))
            total += math.fsum(count * log_sum(log_law(one.mass), float(tau), one.loss) for one, count in finite)
            best = min(best, total)
    infinite = math.fsum(count * one.infinite for one, count in finite)
    return min((math.exp(best) + infinite) * (1 + 1e-9) + 5e-324, 1.0)


def mixture_curve(
    at: Callable[[float], tuple[float, Mixture]], target: float, *, rough: Accuracy = FINE, end: Ends = "upper"
) -> Curve:
    """Delta as a function of a number x, for a search of the x at which delta is `target`.

    at: a function from x to an epsilon and a history with random allocations. If epsilon is sought, x is epsilon and
    the history is always the same; if noise is sought, x is the noise multiplier and epsilon is always the same.
    target: the delta that is sought, near which the certified bracket is narrow. rough: how fine the grids are on which
    the curve's quick estimates, which are no bounds, are computed. It is `ROUGH` for a history without random
    allocations. With them each end of delta's bracket is computed by itself, and only where it is wanted. end: the end
    of which the estimates are.
    """

    def known(x: float, ends: Ends, accuracy: Accuracy = FINE) -> Bracket:
        return mixture_delta(*at(x), target=target, accuracy=accuracy, ends=ends)

    if rough is ROUGH:
        return Curve(lambda x, _: known(x, "both"), lambda x, _: (known(x, "both", rough).log_value, None))
    less = replace(FINE, work=_LESS_WORK) if rough is COARSE else FINE
    curve = Curve(
        bracket=lambda x, _: known(x, "upper"),
        estimate=lambda x, _: (known(x, end, rough).log_value, None),
        nearby=lambda x, tau, _: replace(known(x, "lower", less), upper=1.0),
    )
    if rough is COARSE:
        curve = replace(curve, share=_SHARE, tries=_TRIES, miss=_COARSE_MISS if end == "upper" else curve.miss)
    return curve


def rough_start(mixture: Mixture, target: float) -> tuple[float, float]:
    """A guess of the epsilon at which delta of the history `mixture` is `target`, and of the slope d log delta / d log
    epsilon there.

    A search starts there; the errors of both are not bounded.
    """
    variance = mixture.gdp**2
    for run in mixture.runs:
        square = min(run.noise_multiplier**-2, 4.0)
        spread = 4 * math.sinh(square) if mixture.replaced else math.expm1(square)
        variance += run.epochs * run.taken**2 * spread / run.epoch
    for pair, count in mixture.finite[0]:
        total = float(np.sum(pair.mass))
        mean = float(pair.mass @ pair.loss) / total
        variance += count * float(pair.mass @ (pair.loss - mean) ** 2) / total
    return rough_epsilon(target, mixture.parts[0] if mixture.parts else (), math.sqrt(variance))
