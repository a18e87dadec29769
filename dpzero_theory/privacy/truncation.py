"""delta(epsilon) of histories each of whose releases is of one of two kinds, by chance (`composition.Mixed`).

A step of truncated Poisson batches (at most B of n records) is, with probability w, one in which B or more of the other
records are drawn. It then costs at most as much as a step with fixed-size batches of the rate q' with which the record
is drawn and kept in such a step; otherwise it is a Poisson step of rate q (derivation.md, section 10). A step with
fixed-size batches of rate q costs at least as much as either. Which of the two kinds a step is does not depend on the
record, so everyone may know it. The number N of truncated steps among T is binomial. With j_0 < j_1 < ...

    delta <= P(N > j_last) + P(N < l) + sum over k of (r_{k-1} - r_k) max(delta_0, ..., delta_k),

    r_k >= P(N > j_k),    r_{-1} = 1.

Here delta_k is that of the steps if j_{k-1} < N <= j_k: one more than j_{k-1} fixed-size steps at rate q', then steps
of either kind, as fixed-size steps at rate q, and T - j_k Poisson steps. For k = 0 the number j_{k-1} + 1 is replaced
by l, below which N is hardly ever. The maximum over the delta_k before does not fall in k, so upper bounds on the
tails suffice (Abel summation). With several such parts N is a vector: the event of k is that each of its numbers is at
least that part's l and at most that part's j_k, and all numbers between these count as steps of either kind.
"""

import math
from collections.abc import Callable
from itertools import accumulate, pairwise

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.composition import Composition

_SLOWLY, _FAR, _LIKELY = 0.97, 0.1, 0.01
"""The bound r_k on the probability that more than j_k steps are truncated is at most _SLOWLY times r_{k-1} while
r_{k-1} exceeds _LIKELY, and then at most _FAR times it."""
_LEFT = 1e-7
"""The sum over numbers of truncated steps ends where the remaining probability r_k is at most this share of a lower
bound on delta."""
EXCESS = 1e-3
"""Several numbers of truncated steps are counted together if that adds at most this share of delta."""
LEAST_CHANCE = 1e-280
"""The sum over numbers of truncated steps ends at the latest where the remaining probability, which is added to the
upper end of delta, is at most this."""


def numbers(composition: Composition, left: float) -> tuple[list[int], list[tuple[float, list[int]]]]:
    """The numbers of truncated steps (those in which a batch was cut to its largest size) at which the sum of
    `mixed_delta` over them is cut.

    left: a probability. The first result has one number l for each mixed part: that some part has fewer truncated steps
    has at most the probability `left`. The second is, for k = 0, 1, ..., the bound r_k on the probability that some
    part has more truncated steps than its number j_k, and those numbers. The last r_k is at most `left`.
    """
    mixed, rest = composition.mixed, 1.0
    kept: list[tuple[float, list[int]]] = []
    if len(mixed) == 1:
        tail = left
        while tail < _SLOWLY:
            count = mixed[0].fewest(tail)
            if not kept or count > kept[-1][1][0]:
                kept.append((mixed[0].more(count), [count]))
            tail = min(tail / _FAR, tail + 1 - _SLOWLY)
        rest = kept[-1][0]
    while rest > left:
        tail = (_SLOWLY if rest > _LIKELY else _FAR) * rest / len(mixed)
        counts = [part.least(tail) for part in mixed]
        rest = sum(part.more(count) for part, count in zip(mixed, counts, strict=True))
        if not kept or counts != kept[-1][1]:
            kept.append((rest, counts))
    return [part.fewest(left / len(mixed)) for part in mixed], kept


def mixed_delta(
    composition: Composition,
    epsilon: float,
    of: Callable[[Composition, float, float, float | None], Bracket],
    excess: float = EXCESS,
) -> Bracket:
    """The bracket of delta(epsilon) for a composition with mixed parts, whose releases are of one of two kinds by
    chance.

    of: a function that gives the bracket of delta for a composition without mixed parts, at an epsilon. Its third
    argument is a delta; where the upper end of the bracket is below that, its lower end may be any lower bound. Its
    last one is a delta too, or None: an error of a small share of that does not matter. excess: several numbers of
    truncated steps are counted together if that adds at most this share of delta.

    The lower end of the result is delta of pairs of laws that data attain at every release. The upper end is the sum,
    over numbers of releases of the second kind, of their probability times a bound on delta with so many.
    """
    attained = of(composition.attained, epsilon, 0.0, None)
    left = max(_LEFT * attained.lower, LEAST_CHANCE)
    least, kept = numbers(composition, left)

    def bound(first: int, last: int) -> Bracket:
        """The bracket of delta if the numbers of truncated steps are at most those of the cut with index `last`, and
        not all at most those of the cut `first` (for -1: at least `least`)."""
        fewest = least if first < 0 or len(least) > 1 else [kept[first][1][0] + 1]
        # A bracket below `small` need not be narrow: times the bound on the probability that some part has more
        # truncated steps than the number of the cut `first`, it adds at most 1e-4 of the lower end of delta to the sum.
        small = EXCESS / 10 * attained.lower / (1.0 if first < 0 else kept[first][0])
        return of(composition.told(fewest, kept[last][1]), epsilon, min(small, 1.0), attained.lower or None)

    def share(first: int, last: int) -> float:
        return (1.0 if first < 0 else kept[first][0]) - kept[last][0]

    # The sum over numbers of truncated steps is cut at those in `kept`. A block (first, last, bracket) is the part of
    # the sum beyond the cut with index `first`, up to the one with index `last`. Blocks are in order and leave no gap.
    blocks = [(first, last, bound(first, last)) for first, last in pairwise(sorted({-1, 0, len(kept) - 1}))]
    while True:
        tops = list(accumulate((found.upper for _, _, found in blocks), max))
        upper = math.fsum(share(first, last) * top for (first, last, _), top in zip(blocks, tops, strict=True))
        halved: list[tuple[int, int, Bracket]] = []
        for (first, last, found), before, top in zip(blocks, [0.0, *tops], tops, strict=False):
            # This block's bound also counts for later blocks, up to the next one with a larger bound.
            chance = math.fsum(share(*block[:2]) for block, other in zip(blocks, tops, strict=True) if other == top)
            if last - first > 1 and chance * (top - before) > excess * upper:
                middle = (first + last) // 2
                halved += [(first, middle, bound(first, middle)), (middle, last, bound(middle, last))]
            else:
                halved.append((first, last, found))
        if len(halved) == len(blocks):
            break
        blocks = halved
    value = math.fsum(share(first, last) * found.value for first, last, found in blocks)
    upper = min((upper + kept[-1][0] + left) * (1 + 1e-12) + 5e-324, 1.0)
    lower = min(attained.lower, upper)
    return Bracket(lower, min(max(value, lower), upper), upper, blocks[0][2].method)
