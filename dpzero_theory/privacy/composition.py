"""What releases with Gaussian noise add to a composition, as typed parts, and the composition of such parts.

A sampling says which part its releases are (`Sampling.part`):

- `PlainGaussian`: they cost at most as much as Gaussian noise on full batches;
- `Pairs`: every release has a dominating pair of Gaussian mixtures;
- `FinitePairs`: every release has a dominating pair of finite laws;
- `Epochs`: a random allocation, whose steps depend on one another within an epoch;
- `Mixed`: with a chance that everyone may know, a release is one of another part: truncated batches.

The parts of a history make one `Composition`, and only this module reads their fields. A relation between data sets has
two directions: in the first the larger data set is under P.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scipy.special import bdtrc

from dpzero_theory.bisection import last_integer
from dpzero_theory.privacy.certified.allocations.allocation import Allocated
from dpzero_theory.privacy.certified.allocations.mixture import Finite, Mixture
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Pair, Parts

_BINOMIAL = 1e-9
"""More than the relative error of scipy's binomial tail."""
_ROUNDING = 1e-14
"""More than the rounding error of the logarithm of a sum of two exponentials."""

Cumulant = Callable[[Pair], tuple[float, float]]
"""A lower and an upper bound on log E e^{t L}, L the loss of one release of a pair under P, for some t > 0."""


class Part:
    """Releases as a summand of a composition."""

    @property
    def gdp(self) -> float | None:
        """mu of mu-GDP where plain Gaussian releases are known that cost at least as much; else None."""
        return None

    @property
    def plain(self) -> bool:
        """Whether `gdp` is all there is to say."""
        return False

    @property
    def batches(self) -> tuple[float, int] | None:
        """The sample rate of the batches that may hold a given record, and their number; None for the release's own."""
        return None

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        """A lower and an upper bound on log E e^{t L} in a direction, L the loss of all releases but plain ones."""
        return 0.0, 0.0


@dataclass(frozen=True)
class PlainGaussian(Part):
    """Releases that cost at most as much as one Gaussian release with noise 1/mu of its sensitivity.

    mu: > 0.
    """

    mu: float

    @property
    def gdp(self) -> float:
        return self.mu

    @property
    def plain(self) -> bool:
        return True


@dataclass(frozen=True)
class Pairs(Part):
    """Releases with a dominating pair.

    above: the pair of one release for each direction, or one for both. below: pairs that some data set attains at every
    release, so that their composition costs at most as much; equal to `above` where that is tight. count: the number of
    releases. alone: the pairs that are exact for a single release and nothing else; by default `above`.
    """

    above: tuple[Pair, ...]
    below: tuple[Pair, ...]
    count: int
    alone: tuple[Pair, ...] = ()

    @property
    def batches(self) -> tuple[float, int]:
        return self.above[0].sample_rate, self.count

    def of(self, index: int, *, attained: bool) -> tuple[Pair, int]:
        """The pair that counts in a direction, and how often."""
        pairs = self.below if attained else self.above
        return pairs[min(index, len(pairs) - 1)], self.count

    @property
    def single(self) -> "Pairs":
        """The same with the pairs that are exact, if it is a single release."""
        return replace(self, above=self.alone, below=self.alone) if self.count == 1 and self.alone else self

    def times(self, count: int) -> "Pairs":
        return replace(self, count=count)

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        (low, _), (_, high) = (bounds(self.of(index, attained=attained)[0]) for attained in (True, False))
        return self.count * low, self.count * high


@dataclass(frozen=True)
class FinitePairs(Part):
    """Releases with finite pairs, which bound one release from above and below.

    pairs: that of each direction. count: the number of releases. known: the same releases by Gaussian mixtures, less
    sharp, where they are known.
    """

    pairs: tuple[FinitePair, FinitePair]
    count: int
    known: Pairs | None = None

    def of(self, index: int) -> tuple[FinitePair, int]:
        """The pair that counts in a direction, and how often."""
        return self.pairs[index], self.count

    def times(self, count: int) -> "FinitePairs":
        return replace(self, count=count, known=self.known and self.known.times(count))

    @property
    def lost(self) -> tuple[float, float]:
        """For each direction more than the probability of an infinite loss."""
        first, second = (0.0 if self.known else self.count * pair.infinite for pair in self.pairs)
        return first, second

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        if self.known:
            return self.known.log_moment(t, index, bounds)
        pair, count = self.of(index)
        return 0.0, count * log_sum(log_law(pair.mass), t, pair.loss)


@dataclass(frozen=True)
class Epochs(Part):
    """Random allocations: each record in a few uniformly random steps of every epoch.

    run: the epochs. mu: of plain Gaussian releases that cost at least as much.
    """

    run: Allocated
    mu: float

    @property
    def gdp(self) -> float:
        return self.mu


@dataclass(frozen=True)
class Mixed(Part):
    """Releases of which each is, with a chance that does not depend on the record, one of another part.

    Everyone may be told which releases these are, and each must cost at least as much as the others.

    chance: more than the probability of it. usual: one of the other releases. otherwise: one of these. below: pairs
    that data attain at every release. count: the number of releases.
    """

    chance: float
    usual: Pairs
    otherwise: Pairs | FinitePairs
    below: Pairs
    count: int

    @property
    def central(self) -> Pairs:
        """Pairs that cost about as much."""
        return self.usual.times(self.count) if self.count > 1 else self.attained

    @property
    def attained(self) -> Pairs:
        """All releases as what data attain."""
        return self.below.times(self.count)

    def more(self, count: int) -> float:
        """At least the probability that more than `count` of the releases are otherwise."""
        if count >= self.count:
            return 0.0
        return min(float(bdtrc(count, self.count, self.chance)) * (1 + _BINOMIAL), 1.0)

    def least(self, tail: float) -> int:
        """The least count of which `more` is at most `tail`."""

        def excess(number: int) -> float:
            found = self.more(number - 1)
            return math.log(tail / found) if found > 0 else math.inf

        return last_integer(excess, 1, self.count + 1, self.count * self.chance + 1) or 0

    def told(self, count: int) -> tuple[Part, ...]:
        """The releases where so many are known to be otherwise."""
        both = (self.otherwise, count), (self.usual, self.count - count)
        return tuple(part.times(times) for part, times in both if times)

    def log_moment(self, t: float, index: int, bounds: Cumulant) -> tuple[float, float]:
        drawn, kept = (part.log_moment(t, index, bounds)[1] for part in (self.usual, self.otherwise))
        top = max(drawn, kept)
        mean = (1 - self.chance) * math.exp(drawn - top) + self.chance * math.exp(kept - top)
        return self.attained.log_moment(t, index, bounds)[0], self.count * (top + math.log(mean) + _ROUNDING)


@dataclass(frozen=True)
class Composition:
    """The parts of a history, which are made one after another, each chosen from the outcomes of those before.

    replaced: whether the relation replaces a record, so that its contributions change their sign.
    """

    parts: tuple[Part, ...]
    replaced: bool = False

    @property
    def empty(self) -> bool:
        return not self.parts

    @property
    def plain(self) -> float:
        """mu of the plain Gaussian releases."""
        return math.hypot(*(part.mu for part in self.parts if isinstance(part, PlainGaussian)))

    @property
    def gdp(self) -> float:
        """mu of the plain Gaussian releases, and of those that cost at least as much as the random allocations."""
        return math.hypot(*(part.gdp or 0.0 for part in self.parts))

    @property
    def sampled(self) -> bool:
        """Whether any part has a loss that `log_moment` counts."""
        return any(isinstance(part, Pairs | FinitePairs | Mixed) for part in self.parts)

    @property
    def batches(self) -> tuple[float, int] | None:
        """As of a part, of the only one."""
        return self.parts[0].batches if len(self.parts) == 1 else None

    @property
    def central(self) -> Parts:
        """Pairs with their numbers, in one direction, that cost about as much as those of this composition."""
        parts = (part.central if isinstance(part, Mixed) else part for part in self.parts)
        return replace(self, parts=tuple(parts)).directions()[0]

    @property
    def mixed(self) -> tuple[Mixed, ...]:
        """The parts that must be told apart first."""
        return tuple(part for part in self.parts if isinstance(part, Mixed))

    @cached_property
    def attained(self) -> "Composition":
        """With what data attain of the mixed parts."""
        parts = (part.attained if isinstance(part, Mixed) else part for part in self.parts)
        return replace(self, parts=tuple(parts)) if self.mixed else self

    def told(self, counts: Sequence[int]) -> "Composition":
        """Where it is known how many releases of each mixed part are otherwise; these follow all others."""
        known = (each for part, count in zip(self.mixed, counts, strict=True) for each in part.told(count))
        return replace(self, parts=(*(part for part in self.parts if not isinstance(part, Mixed)), *known))

    def directions(self, *, attained: bool = False) -> tuple[Parts, ...]:
        """The pairs with their numbers, for each direction if these differ; equal pairs are merged.

        With `attained` the pairs that data attain at every release, whose delta is a lower bound.
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
        """The question for `allocations.mixture`, where there are random allocations or finite pairs; else None."""
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
        """Bounds on log E e^{t L} in a direction, L the loss of what `gdp` does not count, and not infinite."""
        low, high = zip((0.0, 0.0), *(part.log_moment(t, index, bounds) for part in self.parts), strict=True)
        return sum(low), sum(high)

    @property
    def lost(self) -> tuple[float, float]:
        """For each direction more than the probability of an infinite loss."""
        known = [part.lost for part in self.parts if isinstance(part, FinitePairs)]
        return math.fsum(first for first, _ in known), math.fsum(second for _, second in known)
