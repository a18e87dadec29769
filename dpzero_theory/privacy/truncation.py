"""delta(epsilon) of histories each of whose releases is of one of two kinds, by chance (`composition.Mixed`).

A step of truncated Poisson batches (at most B of n records) is, with probability w, one in which B or more of the other
records are drawn. It is then dominated by a step with fixed-size batches of the same rate, and otherwise it is a
Poisson step (derivation.md, section 10). Which of the two it is does not depend on the record, so everyone may know it.
The number of truncated steps among T is binomial, and with more of them delta is no smaller, so that

    delta <= sum over k of (r_{k-1} - r_k) delta_k,      r_k >= P(more than j_k steps are truncated),  r_{-1} = 1.

Here delta_k is that of j_k fixed-size steps and T - j_k Poisson ones, and j_k rises with k (Abel summation). The last
r_k, for which delta is taken as 1, is added. With several such parts the event is that each has at most j_k truncated
steps.
"""

import math
import operator
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.composition import Composition

_NEAR, _FAR, _LIKELY = 0.6, 0.1, 0.01
"""The probability r_k that more steps are truncated is at most _NEAR times the one before while that exceeds _LIKELY,
and then at most _FAR times it."""
_LEFT = 1e-7
"""The sum ends where the remaining probability r_k is at most this share of delta."""
_EXCESS = 3e-4
"""Several numbers of truncated steps are counted as the largest of them if that adds at most this share of delta."""
_LEAST_CHANCE = 1e-280
"""The sum ends at the latest where the remaining probability, which is added to it, is at most this."""


def told(composition: Composition) -> Iterator[tuple[float, Composition]]:
    """For k = 0, 1, ...: the probability r_k, and the composition whose delta is delta_k.

    r_k bounds the probability that some mixed part has more truncated steps than that composition takes for granted.
    The last r_k is at most 1e-280.
    """
    mixed, rest = composition.mixed, 1.0
    while rest > _LEAST_CHANCE:
        tail = (_NEAR if rest > _LIKELY else _FAR) * rest / len(mixed)
        counts = [part.least(tail) for part in mixed]
        rest = sum(part.more(count) for part, count in zip(mixed, counts, strict=True))
        yield rest, composition.told(counts)


def mixed_delta(composition: Composition, epsilon: float, of: Callable[[Composition, float], Bracket]) -> Bracket:
    """The bracket of delta(epsilon) for a composition with mixed parts, whose releases are of one of two kinds by
    chance.

    of: a function that gives the bracket of delta for a composition without mixed parts, at an epsilon. The lower end
    is delta of pairs of laws that data attain at every release. The upper end is the sum, over numbers of releases of
    the second kind, of their probability times delta with so many.
    """
    lower = of(composition.attained, epsilon).lower
    rests: list[float] = []
    kept: list[Composition] = []
    for rest, known in told(composition):
        rests.append(rest)
        kept.append(known)
        if rest <= _LEFT * lower:
            break
    answers: dict[int, Bracket] = {}
    asked = {0, len(kept) - 1}
    while asked:
        answers |= {k: of(kept[k], epsilon) for k in asked}
        ends = sorted(answers)
        # Every number of truncated steps between two of the evaluated ones counts as the larger of these.
        shares = [one - other for one, other in pairwise([1.0, *(rests[k] for k in ends)])]
        tops = list(accumulate((answers[k].upper for k in ends), max))
        upper = math.fsum(map(operator.mul, shares, tops))
        asked = {
            (a + b) // 2
            for (a, b), share, (low, high) in zip(pairwise(ends), shares[1:], pairwise(tops), strict=True)
            if b - a > 1 and share * (high - low) > _EXCESS * upper
        }
    value = math.fsum(share * answers[k].value for share, k in zip(shares, ends, strict=True))
    upper = min((upper + rests[-1]) * (1 + 1e-12) + 5e-324, 1.0)
    lower = min(lower, upper)
    return Bracket(lower, min(max(value, lower), upper), upper, answers[0].method)
