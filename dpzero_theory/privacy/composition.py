"""What releases with Gaussian noise add to a composition, as typed parts, and the composition of such parts.

A sampling says which part its releases are (`Sampling.part`):

- `PlainGaussian`: they cost at most as much as Gaussian noise on full batches;
- `Pairs`: every release has a dominating pair of Gaussian mixtures;
- `FinitePairs`: every release has a dominating pair of finite laws;
- `Epochs`: a random allocation, whose steps depend on one another within an epoch;
- `Mixed`: with a chance that everyone may know, a release is one of another part: truncated batches.

The parts of a history make one `Composition`, and only this module reads their fields. Two neighbouring data sets are
compared in two directions, with the index 0 and 1. P is the law of what is released from one of them, and Q that from
the other; in direction 0 the larger data set gives P. L is the privacy loss, the logarithm of the ratio of P to Q.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from scipy.special import bdtrc

from dpzero_theory.bisection import last_integer
from dpzero_theory.privacy.certified.allocations.allocation import Allocated
from dpzero_theory.privacy.certified.allocations.mixture import Finite, Mixture
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Pair, Parts

_BINOMIAL = 1e-9
"""More than the relative error of scipy's binomial tail."""
_MOMENT_ROUNDING = 1e-14
"""More than the rounding error of the logarithm of a sum of two exponentials."""

Cumulant = Callable[[Pair], tuple[float, float]]
"""A function from a pair to a lower and an upper bound on log E e^{t L} for one release, with the expectation under
P, at some t > 0."""


class Part:
    """Releases as a part of a composition."""

    @property
    def gdp(self) -> float | None:
        """The mu of plain Gaussian releases, mu-GDP together, that cost at least as much; None if none are known."""
        return None

    plain: ClassVar[bool] = False
    """Whether `gdp` is the answer, and not only a bound."""

    @property
    def batches(self) -> tuple[float, int] | None:
        """The sample rate of the batches that may hold a given record, and the number of them. None stands for the
        sampling's own rate and the number of steps."""
        return None

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        """A lower and an upper bound on log E e^{t L} in a direction, for all releases together; 0 for what `gdp`
        counts."""
        return 0.0, 0.0


@dataclass(frozen=True)
class PlainGaussian(Part):
    """Releases whose cost is that of one Gaussian release with sensitivity 1 and noise 1/mu, mu > 0."""

    mu: float
    plain = True

    @property
    def gdp(self) -> float:
        return self.mu


@dataclass(frozen=True)
class Pairs(Part):
    """Releases with a dominating pair of Gaussian mixtures.

    above: the dominating pair of one release in each direction, or one pair for both. below: pairs that some data set
    attains at every release, so that their composition costs at most as much; they equal `above` if that is tight.
    count: the number of releases. alone: pairs that are exact for a single release with nothing beside it; by default
    `above`.
    """

    above: tuple[Pair, ...]
    below: tuple[Pair, ...]
    count: int
    alone: tuple[Pair, ...] = ()

    @property
    def batches(self) -> tuple[float, int]:
        return self.above[0].sample_rate, self.count

    def of(self, index: int, *, attained: bool) -> tuple[Pair, int]:
        """The pair in a direction and the number of releases; with `attained` the pair of `below`."""
        pairs = self.below if attained else self.above
        return pairs[min(index, len(pairs) - 1)], self.count

    @property
    def single(self) -> "Pairs":
        """The same part, with the exact pairs if it is a single release."""
        return replace(self, above=self.alone, below=self.alone) if self.count == 1 and self.alone else self

    def times(self, count: int) -> "Pairs":
        return replace(self, count=count)

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        (low, _), (_, high) = (bounds(self.of(index, attained=attained)[0]) for attained in (True, False))
        return self.count * low, self.count * high


@dataclass(frozen=True)
class FinitePairs(Part):
    """Releases with pairs of finite laws, each of which bounds one release from above and from below.

    pairs: the pair in each direction. count: the number of releases. known: the same releases as `Pairs`, which are
    less sharp, if that is known. They are used where finite laws do not resolve a small delta.
    """

    pairs: tuple[FinitePair, FinitePair]
    count: int
    known: Pairs | None = None

    def of(self, index: int) -> tuple[FinitePair, int]:
        """The pair in a direction and the number of releases."""
        return self.pairs[index], self.count

    def times(self, count: int) -> "FinitePairs":
        return replace(self, count=count, known=self.known and self.known.times(count))

    @property
    def lost(self) -> tuple[float, float]:
        """For each direction an upper bound on the probability of an infinite loss that `log_moment` leaves out."""
        first, second = (0.0 if self.known else self.count * pair.infinite for pair in self.pairs)
        return first, second

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        if self.known:
            return self.known.log_moment(t, index, bounds)
        pair, count = self.of(index)
        return 0.0, count * log_sum(log_law(pair.mass), t, pair.loss)


@dataclass(frozen=True)
class Epochs(Part):
    """Random allocations: each record is in a few uniformly random steps of every epoch.

    run: the epochs. mu: that of plain Gaussian releases that cost at least as much.
    """

    run: Allocated
    mu: float

    @property
    def gdp(self) -> float:
        return self.mu


@dataclass(frozen=True)
class Mixed(Part):
    """Releases each of which is, with a chance that does not depend on the record, one of another part.

    An observer may know which releases those are. They must cost at least as much as the others.

    chance: an upper bound on the probability that a release is one of the other part. usual: a release that is not.
    otherwise: a release that is. below: pairs that some data set attains at every release. count: the number of
    releases.
    """

    chance: float
    usual: Pairs
    otherwise: Pairs | FinitePairs
    below: Pairs
    count: int

    @property
    def central(self) -> Pairs:
        """Pairs that cost about as much as all releases, for a first guess."""
        return self.usual.times(self.count) if self.count > 1 else self.attained

    @property
    def attained(self) -> Pairs:
        """All releases, as the pairs that data attain."""
        return self.below.times(self.count)

    def more(self, count: int) -> float:
        """An upper bound on the probability that more than `count` of the releases are otherwise."""
        if count >= self.count:
            return 0.0
        return min(float(bdtrc(count, self.count, self.chance)) * (1 + _BINOMIAL), 1.0)

    def least(self, tail: float) -> int:
        """The least count for which `more` is at most `tail`."""

        def excess(number: int) -> float:
            found = self.more(number - 1)
            return math.log(tail / found) if found > 0 else math.inf

        return last_integer(excess, 1, self.count + 1, self.count * self.chance + 1) or 0

    def told(self, count: int) -> tuple[Part, ...]:
        """The parts of the releases if it is known that `count` of them are otherwise."""
        both = (self.otherwise, count), (self.usual, self.count - count)
        return tuple(part.times(times) for part, times in both if times)

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        drawn, kept = (part.log_moment(t, index, bounds)[1] for part in (self.usual, self.otherwise))
        top = max(drawn, kept)
        mean = (1 - self.chance) * math.exp(drawn - top) + self.chance * math.exp(kept - top)
        return self.attained.log_moment(t, index, bounds)[0], self.count * (top + math.log(mean) + _MOMENT_ROUNDING)


@dataclass(frozen=True)
class Composition:
    """The parts of a history. Its releases are made one after another, each chosen from the outcomes of those
    before.

    replaced: whether neighbouring data sets replace a record, so that its contributions change their sign.
    """

    parts: tuple[Part, ...]
    replaced: bool = False

    @property
    def empty(self) -> bool:
        return not self.parts

    @property
    def plain(self) -> float:
        """The mu of the plain Gaussian releases together."""
        return math.hypot(*(part.mu for part in self.parts if isinstance(part, PlainGaussian)))

    @property
    def gdp(self) -> float:
        """The mu of the plain Gaussian releases, and of those that cost at least as much as the random allocations,
        together."""
        return math.hypot(*(part.gdp or 0.0 for part in self.parts))

    @property
    def sampled(self) -> bool:
        """Whether some part has a loss that `log_moment` counts."""
        return any(isinstance(part, Pairs | FinitePairs | Mixed) for part in self.parts)

    @property
    def batches(self) -> tuple[float, int] | None:
        """`Part.batches` of the only part."""
        return self.parts[0].batches if len(self.parts) == 1 else None

    @property
    def central(self) -> Parts:
        """Pairs with their numbers, in direction 0, that cost about as much as this composition's: for a first
        guess."""
        parts = (part.central if isinstance(part, Mixed) else part for part in self.parts)
        return replace(self, parts=tuple(parts)).directions()[0]

    @property
    def mixed(self) -> tuple[Mixed, ...]:
        """The parts of which it must be told first which releases are otherwise."""
        return tuple(part for part in self.parts if isinstance(part, Mixed))

    @cached_property
    def attained(self) -> "Composition":
        """The same composition with the mixed parts replaced by what data attain of them."""
        parts = (part.attained if isinstance(part, Mixed) else part for part in self.parts)
        return replace(self, parts=tuple(parts)) if self.mixed else self

    def told(self, counts: Sequence[int]) -> "Composition":
        """The composition if it is known how many releases of each mixed part are otherwise."""
        known = (each for part, count in zip(self.mixed, counts, strict=True) for each in part.told(count))
        return replace(self, parts=(*(part for part in self.parts if not isinstance(part, Mixed)), *known))

    def directions(self, *, attained: bool = False) -> tuple[Parts, ...]:
        """The pairs with their numbers, in each direction, or once if both are the same. Equal pairs are counted
        together.

        With `attained` they are the pairs that data attain at every release, whose delta is a lower bound.
        """
        made = [part for part in self.parts if isinstance(part, Pairs)]
        if len(self.parts) == 1:
            made = [part.single for part in made]
        found: list[Parts] = []
        for index in (0, 1):
            steps: dict[Pair, int] = {}
            for part in made:
                pair, count = part.of(index, attained=attained)
                steps[pair] = steps.get(pair, 0) + count
            if (parts := tuple(steps.items())) not in found:
                found.append(parts)
        return tuple(found)

    @property
    def mixture(self) -> Mixture | None:
        """The question for `allocations.mixture`, if there are random allocations or finite pairs; else None."""
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
        """Bounds on log E e^{t L} in a direction, for all parts but those that `gdp` counts, and without infinite
        losses."""
        low, high = zip((0.0, 0.0), *(part.log_moment(t, index, bounds) for part in self.parts), strict=True)
        return sum(low), sum(high)

    @property
    def lost(self) -> tuple[float, float]:
        """For each direction an upper bound on the probability of an infinite loss."""
        known = [part.lost for part in self.parts if isinstance(part, FinitePairs)]
        return math.fsum(first for first, _ in known), math.fsum(second for _, second in known)
