"""Compositions of releases: dominating pairs of one release, of which some are of one of several kinds by chance."""

import math
from dataclasses import dataclass

from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Pair


@dataclass(frozen=True)
class OneOf:
    """A dominating pair of one release that is of one of several kinds by chance, where an observer knows of which.

    With the chances w_k and the pairs (P_k, Q_k), P is the law of a kind k, which has the probability w_k, and of an
    output by P_k; Q is that of such a kind and an output by Q_k. So the privacy loss is that of the pair k with
    probability w_k.

    kinds: an upper bound on w_k, in (0, 1], and the pair (P_k, Q_k), for each k. listed: for each k None, or a pair
    with finitely many outcomes that dominates a release of this kind too, and costs less than (P_k, Q_k). Grids take
    the listed pairs, all other bounds the pairs in `kinds`.
    """

    kinds: tuple[tuple[float, Pair], ...]
    listed: tuple[FinitePair | None, ...]

    @property
    def infinite(self) -> float:
        """An upper bound on the probability that a release has an infinite privacy loss, by its listed pairs."""
        return math.fsum(chance * law.infinite for (chance, _), law in zip(self.kinds, self.listed, strict=True) if law)

    @property
    def largest_loss(self) -> float:
        """The largest privacy loss of all kinds."""
        return max(pair.largest_loss for _, pair in self.kinds)

    @property
    def shift(self) -> float:
        """The largest `Pair.shift` of all kinds."""
        return max(pair.shift for _, pair in self.kinds)

    @property
    def sample_rate(self) -> float:
        """An upper bound on the probability that the batch holds a given record."""
        return min(math.fsum(chance * pair.sample_rate for chance, pair in self.kinds), 1.0)


Parts = tuple[tuple[Pair | OneOf, int], ...]
"""A composition of releases: the dominating pair of one release of each kind, with the number of such releases."""
PlainParts = tuple[tuple[Pair, int], ...]
"""A composition in which no release is of one of several kinds by chance."""


def expected(parts: Parts) -> PlainParts:
    """The releases `parts`, where those that are of one of several kinds by chance are of each kind as often as is
    expected, rounded. It is no bound; estimates and searches begin with it."""
    found: list[tuple[Pair, int]] = []
    for pair, steps in parts:
        counts = [(kind, round(chance * steps)) for chance, kind in pair.kinds]
        likeliest = max(pair.kinds, key=lambda each: each[0])[1]
        found += [(kind, count) for kind, count in counts if count] or [(likeliest, steps)]
    return tuple(found)
