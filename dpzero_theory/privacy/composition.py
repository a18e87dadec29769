"""What releases with Gaussian noise cost together: typed parts of a history, and their composition.

A sampling tells for its releases which of these parts they are (`Sampling.part`):

- `PlainGaussian`: releases that cost at most as much as Gaussian noise on full batches;
- `Pairs`: releases that each have a dominating pair of Gaussian mixtures;
- `FinitePairs`: releases that each have a dominating pair of laws with finitely many outcomes;
- `Epochs`: a random allocation, whose steps depend on one another within an epoch.

`by_chance` makes a part of releases each of which is of one of several kinds, by a chance that everyone may know, as
with truncated batches.

The parts of a history make one `Composition`, and only this module reads their fields. Two neighbouring data sets are
compared in two directions, numbered 0 and 1 (the argument `index`). P is the law of what is released from one of the
data sets, and Q that from the other; in direction 0 the larger data set gives P. L is the privacy loss, the logarithm
of the ratio of P to Q.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dpzero_theory.privacy.certified.allocations.allocation import Allocated
from dpzero_theory.privacy.certified.allocations.mixture import Finite, Mixture
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum
from dpzero_theory.privacy.certified.laws.concentrated import Curve, log_moment
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import OneOf, Parts

_UNKNOWN_MOMENT = 1e250
"""So much, times t, stands for the log moment of order t of a release where it is not known."""
Cumulant = Callable[[Pair | OneOf], tuple[float, float]]
"""A function from a dominating pair to a lower and an upper bound on log E e^{t L} of one release, at some fixed t > 0.

L is the pair's privacy loss, and the expectation is under the pair's first law P.
"""


class Part:
    """Releases of one kind, as a part of a `Composition`; what a subclass does not know has the default, which says
    nothing."""

    @property
    def gdp(self) -> float | None:
        """A mu for which these releases together are mu-GDP; None if none is known."""
        return None

    plain: ClassVar[bool] = False
    """Whether delta(epsilon) of the releases is exactly that of Gaussian noise with mu = `gdp`; else that is an upper
    bound."""

    def one_way(self, index: int) -> "Part":
        """The same releases, where neighbours are compared in direction `index` (0 or 1) only, if that is known."""
        return self

    @property
    def squares(self) -> tuple[float, float]:
        """Two bounds on mu^2: these releases are not mu-GDP for a mu below the first, and are for the second.

        For a mu below the first they are not mu^2/2-zCDP either. The second is mu^2 of full batches with the same
        change of the sum: sampling lowers neither mu nor rho, whose worst outputs are those of the rarest batches.
        """
        return 0.0, math.inf

    @property
    def batches(self) -> tuple[float, int] | None:
        """A pair: the sample rate of the batches that may hold a given record, and the number of those batches.

        None means the sampling's own rate, and as many batches as there are steps.
        """
        return None

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        """A lower and an upper bound on log E e^{t L} of all these releases together, where L is their privacy loss.

        t: > 0. index: the direction, 0 or 1, in which neighbours are compared. bounds: a function from one release's
        dominating pair to a lower and an upper bound on its log moment at this t. The result is (0, 0) for plain
        Gaussian releases and random allocations, whose cost `gdp` has.
        """
        return 0.0, 0.0


@dataclass(frozen=True)
class PlainGaussian(Part):
    """Releases that together cost exactly as much as one Gaussian release with sensitivity 1 and standard deviation
    1/mu, mu > 0."""

    mu: float
    plain = True

    @property
    def gdp(self) -> float:
        return self.mu

    @property
    def squares(self) -> tuple[float, float]:
        return self.mu**2, self.mu**2


@dataclass(frozen=True)
class Pairs(Part):
    """Releases that each have a dominating pair of Gaussian mixtures.

    above: the dominating pair of one release in each direction, or one pair for both. below: pairs that some data set
    attains at every release, so that their composition costs at most as much as the releases; they equal `above` if
    data attain that too. count: the number of releases. alone: pairs that are exact for a history of a single release;
    by default those of `above` are used.
    """

    above: tuple[Pair | OneOf, ...]
    below: tuple[Pair, ...]
    count: int
    alone: tuple[Pair | OneOf, ...] = ()

    @property
    def squares(self) -> tuple[float, float]:
        # With q < 1 the most telling outputs with one record come, under the other data set, from batches that hold
        # neither of the two records; so the first number is that of a distance of one clip.
        attained = max(1 / pair.noise for pair in self.below)
        return self.count * attained**2, self.count * max(pair.shift for pair in self.above) ** 2

    @property
    def batches(self) -> tuple[float, int]:
        return self.above[0].sample_rate, self.count

    def of(self, index: int, *, attained: bool) -> tuple[Pair | OneOf, int]:
        """The pair for direction `index` (0 or 1) and the number of releases: the pair of `below` if `attained`, else
        that of `above`."""
        pairs = self.below if attained else self.above
        return pairs[min(index, len(pairs) - 1)], self.count

    def one_way(self, index: int) -> "Pairs":
        above, below = self.of(index, attained=False)[0], self.below[min(index, len(self.below) - 1)]
        return Pairs((above,), (below,), self.count, alone=self.alone[index : index + 1] or self.alone[:1])

    @property
    def single(self) -> "Pairs":
        """The same part, where `above` is replaced by the sharper pairs `alone` if it is a single release."""
        return replace(self, above=self.alone) if self.count == 1 and self.alone else self

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        (low, _), (_, high) = (bounds(self.of(index, attained=attained)[0]) for attained in (True, False))
        return self.count * low, self.count * high


@dataclass(frozen=True)
class FinitePairs(Part):
    """Releases that each have a pair of laws with finitely many outcomes, which bounds their cost from above and from
    below.

    pairs: the pair in each of the two directions. count: the number of releases. known: the same releases as `Pairs`,
    if such pairs are known. Their upper bound on delta is larger. They serve for deltas so small that the finite laws'
    rounding errors or infinite losses exceed them.
    """

    pairs: tuple[FinitePair, FinitePair]
    count: int
    known: Pairs | None = None

    def of(self, index: int) -> tuple[FinitePair, int]:
        """The pair for direction `index` (0 or 1), and the number of releases."""
        return self.pairs[index], self.count

    def one_way(self, index: int) -> "FinitePairs":
        return replace(self, pairs=(self.pairs[index],) * 2, known=self.known and self.known.one_way(index))

    @property
    def squares(self) -> tuple[float, float]:
        return self.known.squares if self.known else super().squares

    @property
    def lost(self) -> tuple[float, float]:
        """For each of the two directions an upper bound on the probability that any of the releases has an infinite
        privacy loss, which `log_moment` leaves out."""
        first, second = (0.0 if self.known else self.count * pair.infinite for pair in self.pairs)
        return first, second

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        if self.known:
            return self.known.log_moment(t, index, bounds)
        pair, count = self.of(index)
        return 0.0, count * log_sum(log_law(pair.mass), t, pair.loss)


@dataclass(frozen=True)
class Concentrated(FinitePairs):
    """Releases of which only zero-concentrated differential privacy is known: the Renyi divergence of order a of all of
    them together is at most xi + rho a.

    pairs: those of `certified.laws.concentrated`. count: 1.
    """

    rho: float = 0.0
    xi: float = 0.0

    @property
    def lost(self) -> tuple[float, float]:
        return 0.0, 0.0

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        return 0.0, t * (self.xi + self.rho * (1 + t))


@dataclass(frozen=True)
class Curved(Concentrated):
    """Releases of which only Renyi divergences at some orders are known: those of all of them together are `curve`.

    pairs: those of `certified.laws.concentrated`. count: 1.
    """

    curve: Curve = ()

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        # Beyond the largest order the moment is not known. There a number stands for infinity that rises with t, so
        # that a search for the best t turns back.
        known = log_moment(self.curve, t)
        return 0.0, known if known < math.inf else _UNKNOWN_MOMENT * t


@dataclass(frozen=True)
class Epochs(Part):
    """Random allocations: each record is in a few uniformly random steps of every epoch.

    run: the epochs and their noise. mu: the releases together are mu-GDP.
    """

    run: Allocated
    mu: float

    @property
    def gdp(self) -> float:
        return self.mu

    @property
    def squares(self) -> tuple[float, float]:
        return min(self.run.plain_gdp, self.mu) ** 2, self.mu**2


def by_chance(kinds: Sequence[tuple[float, Pairs | FinitePairs]], below: Pairs, count: int) -> Pairs:
    """Releases each of which is of one of several kinds, by a chance that does not depend on the protected record. An
    observer may know of which kind a release is, and each is independent of the others.

    kinds: for each kind an upper bound on its chance, and one release of it; finite pairs must have `known`. below: one
    release, with pairs that some data set attains at every release. count: the number of releases. Raises ValueError if
    the chances sum to less than 1.
    """
    kinds = [(chance, part) for chance, part in kinds if chance != 0]
    chances = [chance for chance, _ in kinds]
    if not (math.fsum(chances) >= 1 and max(chances) <= 1):
        raise ValueError(f"kinds must have chances of at most 1 that sum to at least 1; got {chances}")

    def above(index: int, *, single: bool) -> OneOf:
        pairs, listed = list[Pair](), list[FinitePair | None]()
        for _, part in kinds:
            plain = part.known if isinstance(part, FinitePairs) else part
            pair = plain and (plain.single if single else plain).of(index, attained=False)[0]
            if not isinstance(pair, Pair):
                raise TypeError(f"kinds must have a pair of Gaussian mixtures each; got {part}")
            pairs.append(pair)
            listed.append(part.pairs[index] if isinstance(part, FinitePairs) else None)
        return OneOf(tuple(zip(chances, pairs, strict=True)), tuple(listed))

    several, one = ([above(index, single=single) for index in (0, 1)] for single in (False, True))
    return Pairs(tuple(dict.fromkeys(several)), below.below, count, alone=tuple(dict.fromkeys(one)))


@dataclass(frozen=True)
class Composition:
    """The parts of a history. Its releases are made one after another, and each may depend on the outcomes of those
    before.

    replaced: whether neighbouring data sets replace a record, so that its contributions may change their sign.
    """

    parts: tuple[Part, ...]
    replaced: bool = False

    @property
    def empty(self) -> bool:
        return not self.parts

    def one_way(self, index: int) -> "Composition":
        """The same releases, where neighbours are compared in direction `index` (0 or 1) only.

        Random allocations are still compared in both (`mixed_ways`).
        """
        return replace(self, parts=tuple(part.one_way(index) for part in self.parts))

    @property
    def mixed_ways(self) -> bool:
        """Whether `one_way` still compares some part in two directions that differ."""
        return not self.replaced and any(isinstance(part, Epochs) for part in self.parts)

    @property
    def plain(self) -> float:
        """The mu for which those parts that are plain Gaussian releases are together exactly mu-GDP, 0 without such
        parts. Other parts are not counted."""
        return math.hypot(*(part.mu for part in self.parts if isinstance(part, PlainGaussian)))

    @property
    def gdp(self) -> float:
        """The mu of plain Gaussian releases that cost at least as much as all parts for which such a mu is known.

        Those parts are the plain Gaussian releases and the random allocations.
        """
        return math.hypot(*(part.gdp or 0.0 for part in self.parts))

    @property
    def sampled(self) -> bool:
        """Whether some part has a privacy loss that `log_moment` counts, that is, one that `gdp` does not count."""
        return any(isinstance(part, Pairs | FinitePairs) for part in self.parts)

    @property
    def concentrated(self) -> bool:
        """Whether Renyi divergences, or zero-concentrated differential privacy, are all that is known of some part.

        A bound by exponential moments may then be sharper than the composition of pairs.
        """
        return any(isinstance(part, Concentrated) for part in self.parts)

    @property
    def orders(self) -> tuple[float, ...]:
        """The values t of the orders 1 + t at which Renyi divergences of some part are stated."""
        return tuple(t for part in self.parts if isinstance(part, Curved) for t, _ in part.curve)

    @property
    def central(self) -> Parts:
        """Dominating pairs (P, Q), each with its number of releases, whose delta is about that of all parts with such
        pairs. They are those of direction 0, in which the data set with the record gives P.

        They are no bound; a search begins with them.
        """
        return self.directions()[0]

    def directions(self, *, attained: bool = False) -> tuple[Parts, ...]:
        """The dominating pairs with their numbers of releases: one entry for each direction, or a single one if both
        are the same.

        Equal pairs are counted together. With `attained` the pairs are those that some data set attains at every
        release, so that delta of their composition is a lower bound on that of these parts; otherwise it is an upper
        bound. Only parts of the class `Pairs` are counted.
        """
        made = [part for part in self.parts if isinstance(part, Pairs)]
        if len(self.parts) == 1:
            made = [part.single for part in made]
        distinct: list[Parts] = []
        for index in (0, 1):
            steps: dict[Pair | OneOf, int] = {}
            for part in made:
                pair, count = part.of(index, attained=attained)
                steps[pair] = steps.get(pair, 0) + count
            if (parts := tuple(steps.items())) not in distinct:
                distinct.append(parts)
        return tuple(distinct)

    @property
    def mixture(self) -> Mixture | None:
        """A description of this composition for `allocations.mixture`, which computes delta on a grid of losses.

        It is None if no part is a random allocation or has pairs of laws with finitely many outcomes.
        """
        runs = tuple(part.run for part in self.parts if isinstance(part, Epochs))
        if not runs and not any(self._finite):
            return None
        return Mixture(
            runs, self.directions(), self.directions(attained=True), self.plain, self.replaced, finite=self._finite
        )

    @property
    def _finite(self) -> Finite:
        parts = [part for part in self.parts if isinstance(part, FinitePairs)]
        return tuple(tuple(part.of(index) for part in parts) for index in (0, 1))

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        """A lower and an upper bound on log E e^{t L}, where L is the privacy loss of all parts that `gdp` does not
        count.

        t: > 0. index: the direction, 0 or 1, in which neighbours are compared. bounds: a function from one release's
        dominating pair to a lower and an upper bound on its log moment at this t. Outcomes with infinite privacy loss
        are left out; `lost` bounds their probability.
        """
        low, high = zip((0.0, 0.0), *(part.log_moment(t, index, bounds) for part in self.parts), strict=True)
        return sum(low), sum(high)

    @property
    def lost(self) -> tuple[float, float]:
        """For each of the two directions an upper bound on the probability that any release has an infinite privacy
        loss."""
        known = [part.lost for part in self.parts if isinstance(part, FinitePairs)]
        return math.fsum(first for first, _ in known), math.fsum(second for _, second in known)
