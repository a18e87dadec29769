"""Histories with truncated Poisson batches as mixtures of histories without.

A step of truncated Poisson batches (at most B of n records) is, with chance w, one in which B or more of the other
records are drawn; derivation.md, section 10, says that it is then dominated by a step with fixed-size batches of the
same rate, and else it is a Poisson step. That does not depend on the record, so it may be told to everyone. The number
of truncated steps of T is binomial, and with more of them delta is no smaller:

    delta <= sum over k of (r_{k-1} - r_k) delta_k,      r_k >= P(more than j_k steps are truncated),  r_{-1} = 1,

delta_k that of j_k fixed-size steps and T - j_k Poisson ones, j_k rising (Abel summation), and what is left, r_K, is
added. With several such releases the event is that each has j_k truncated steps at most.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from scipy.special import bdtrc

from dpzero_theory.bisection import last_integer
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.sampling import FixedSize, Poisson
from dpzero_theory.privacy.step import Release

_NEAR, _FAR, _LIKELY = 0.6, 0.1, 0.01
"""By how much r_k falls, at least, from one term to the next: while it is likely, and from there on."""
_LEFT = 1e-7
"""Share of delta that the last r_k may be."""
_EXCESS = 3e-4
"""Share of delta by which numbers from one that is asked for to the next may be counted too high."""
_LEAST = 1e-280
_BINOMIAL = 1e-9
"""Relative error of a binomial tail, with room."""


def truncated(releases: Sequence[Release]) -> bool:
    """Whether any step of the history may be truncated."""
    return any(r.terms.truncated > 0 for r in releases)


def _more(steps: int, chance: float, count: int) -> float:
    """P(more than `count` of `steps` happen), from above."""
    return min(float(bdtrc(count, steps, chance)) * (1 + _BINOMIAL), 1.0) if count < steps else 0.0


def _count(steps: int, chance: float, tail: float) -> int:
    """The least count with `_more` at most `tail`."""

    def excess(number: int) -> float:
        found = _more(steps, chance, number - 1)
        return math.log(tail / found) if found > 0 else math.inf

    return last_integer(excess, 1, steps + 1, steps * chance + 1) or 0


def histories(releases: Sequence[Release]) -> Iterator[tuple[float, list[Release]]]:
    """r_k and the history of delta_k, for k = 0, 1, ..., until r_k is nothing."""
    capped = [r for r in releases if r.terms.truncated > 0]
    plain = [r for r in releases if r.terms.truncated == 0]
    rest = 1.0
    while rest > _LEAST:
        found, tail = list(plain), (_NEAR if rest > _LIKELY else _FAR) * rest / len(capped)
        rest = 0.0
        for r in capped:
            chance = r.terms.truncated
            count = _count(r.steps, chance, tail)
            rest += _more(r.steps, chance, count)
            found += [r.drawn_as(FixedSize(r.sample_rate)).with_steps(count)] if count else []
            found += [r.drawn_as(Poisson(r.sample_rate)).with_steps(r.steps - count)] if count < r.steps else []
        yield rest, found


def delta(releases: Sequence[Release], epsilon: float, of: Callable[[Sequence[Release], float], Bracket]) -> Bracket:
    """delta(epsilon) of a history with truncated steps, from `of`, which answers for one without.

    The lower end is that of data whose other records add nothing: Poisson steps of the rate after truncation.
    """
    lower = of([attained(r) for r in releases], epsilon).lower
    rests: list[float] = []
    kept: list[list[Release]] = []
    for rest, history in histories(releases):
        rests.append(rest)
        kept.append(history)
        if rest <= _LEFT * lower:
            break
    known: dict[int, Bracket] = {}
    asked = {0, len(kept) - 1}
    while asked:
        known |= {k: of(kept[k], epsilon) for k in asked}
        ends = sorted(known)
        # of the numbers from one end to the next each counts as the latter
        shares = [one - other for one, other in pairwise([1.0, *(rests[k] for k in ends)])]
        tops = list(accumulate((known[k].upper for k in ends), max))
        upper = math.fsum(map(operator.mul, shares, tops))
        asked = {
            (a + b) // 2
            for (a, b), share, (low, high) in zip(pairwise(ends), shares[1:], pairwise(tops), strict=True)
            if b - a > 1 and share * (high - low) > _EXCESS * upper
        }
    value = math.fsum(share * known[k].value for share, k in zip(shares, ends, strict=True))
    upper = min((upper + rests[-1]) * (1 + 1e-12) + 5e-324, 1.0)
    lower = min(lower, upper)
    return Bracket(lower, min(max(value, lower), upper), upper, known[0].method)


def attained(release: Release) -> Release:
    """Poisson steps of the rate after truncation; a release without truncation as it is."""
    if release.terms.truncated == 0:
        return release
    return release.drawn_as(Poisson(release.terms.attained[0].sample_rate))
