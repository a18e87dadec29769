"""delta(epsilon) of histories whose releases are, with a chance, of another kind (`composition.Mixed`).

A step of truncated Poisson batches (at most B of n records) is, with chance w, one in which B or more of the other
records are drawn. It is then dominated by a step with fixed-size batches of the same rate, and else it is a Poisson
step (derivation.md, section 10). Which it is does not depend on the record, so it may be told to everyone. The number
of truncated steps of T is binomial, and with more of them delta is no smaller, so that

    delta <= sum over k of (r_{k-1} - r_k) delta_k,      r_k >= P(more than j_k steps are truncated),  r_{-1} = 1.

Here delta_k is that of j_k fixed-size steps and T - j_k Poisson ones, and j_k rises (Abel summation); the last r_K is
added. With several such parts the event is that each has at most j_k truncated steps.
"""

import math
import operator
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.composition import Composition

_NEAR, _FAR, _LIKELY = 0.6, 0.1, 0.01
"""Each r_k is at most _NEAR times the one before while that exceeds _LIKELY, else at most _FAR times it."""
_LEFT = 1e-7
"""The last r_k is at most this share of delta."""
_EXCESS = 3e-4
"""The sum counts several numbers of truncated steps as the largest of them if that adds at most this share of delta."""
_LEAST_CHANCE = 1e-280
"""A probability that is left out of the sum and added to it."""


def told(composition: Composition) -> Iterator[tuple[float, Composition]]:
    """Pairs of r_k and the composition of delta_k, for k = 0, 1, ..., until r_k is next to nothing."""
    mixed, rest = composition.mixed, 1.0
    while rest > _LEAST_CHANCE:
        tail = (_NEAR if rest > _LIKELY else _FAR) * rest / len(mixed)
        counts = [part.least(tail) for part in mixed]
        rest = sum(part.more(count) for part, count in zip(mixed, counts, strict=True))
        yield rest, composition.told(counts)


def mixed_delta(composition: Composition, epsilon: float, of: Callable[[Composition, float], Bracket]) -> Bracket:
    """delta(epsilon) of a composition with mixed parts, from `of`, which answers for one without.

    The lower end is that of what data attain at every release.
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
        # of the numbers from one end to the next each counts as the latter
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
