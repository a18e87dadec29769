"""The ways to draw a step's batch, as values such as `Poisson(1/16)` or `RandomAllocation(1/16, taken=2)`.

The sample rate q of a value is the (expected) number of records in a batch over the number n of all records. Batches
must stay secret: sampling amplifies privacy only if an observer does not know the batches.

In files and on command lines a sampling is a word and a rate, such as `poisson` and 0.0625, or `random-allocation:2`
and a rate; `sampling_of` reads them. To add a sampling, write a subclass of `Sampling` and call `SAMPLINGS.register`.
"""

import itertools
import math
import random
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import betainc, betaincc

from dpzero_theory import check
from dpzero_theory.privacy.laws.epoch import LEAST_EPOCH_NOISE, Epoch
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import UNIT, UNKNOWN, ByChance, Cost, Law, Parts
from dpzero_theory.privacy.laws.shifts import (
    LEAST_NOISE,
    LEAST_ZEROED,
    MOST_IN_GROUP,
    MOST_NOISE,
    MOST_ZEROED,
    NormalNoise,
    any_drawn,
    binomial_shifts,
    shifted_pairs,
    zeroed_pairs,
)
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.schedule import Indices, allocation, groups
from dpzero_theory.registry import Registry

_LEAST_GROUP_NOISE = 0.03  # for k records in Poisson batches no bound is known if the noise is below this times k clips
_LEAST_FULL = 1e-290  # a smaller upper bound on the probability that a truncated batch is full is replaced by this


@dataclass(frozen=True)
class Sampling:
    """The base class of the ways to draw batches.

    A subclass defines `name`, and `amplified`, which computes costs. If training runs can draw its batches it also
    defines `draw`, or, if they depend on one another, `drawer`. Its fields but `sample_rate` are whole numbers >= 1.

    Args:
        sample_rate: q in (0, 1], the (expected) number of records in a batch over the number n of all records.

    Attributes:
        name: the name of this kind of sampling in files and on command lines, such as "cyclic-poisson".
        arguments: the form of the text after the name, such as ":B" for "cyclic-poisson:B", with optional parts in
            square brackets; "" if nothing follows.
        most_whole: the largest allowed value of the fields that are whole numbers.
        runnable: True if this package's training runs can draw such batches, False if they are only accounted for.
        lasting: True if batches depend on one another, so that a run draws them from a secret that is stored with it.
        scheduled: True if batches follow a schedule with a beginning, so that 2 T steps differ from T steps made twice.
        refilled: True if a batch keeps its size when a record is missing, because another record takes its place.
        told: the sentence that `note` returns, a format string with the fields {self} (the sampling) and {relation}.
        explained: the clause that `meaning` returns, a format string with {self} and {batch} (the records in a batch).
    """

    sample_rate: float
    name: ClassVar[str]
    arguments: ClassVar[str] = ""
    most_whole: ClassVar[int] = 10**15
    runnable: ClassVar[bool] = False
    lasting: ClassVar[bool] = False
    scheduled: ClassVar[bool] = False
    refilled: ClassVar[bool] = False
    told: ClassVar[str] = ""
    explained: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for one in self._whole():
            value = check.integer(one.name, getattr(self, one.name), at_most=self.most_whole)
            object.__setattr__(self, one.name, value)
        object.__setattr__(self, "sample_rate", self._rate(self.sample_rate))

    def _rate(self, sample_rate: object) -> float:
        return check.real("sample_rate", sample_rate, above=0, at_most=self.most_rate)

    @classmethod
    def _whole(cls) -> list[Field[Any]]:
        return [one for one in fields(cls) if one.name != "sample_rate"]

    @classmethod
    def of(cls, arguments: str, sample_rate: float | None) -> Self:
        """Returns the sampling that the text NAME:ARGUMENTS stands for. `arguments` is the text after the colon, whole
        numbers with slashes between them, or "". `sample_rate` is q, or None for full batches. Raises ValueError for
        arguments or a rate that this sampling cannot have."""
        given, known = arguments.split("/") if arguments else [], cls._whole()
        least = sum(one.default is MISSING for one in known)
        if not (least <= len(given) <= len(known) and all(re.fullmatch(r"[1-9]\d{0,15}", each) for each in given)):
            form = "with whole numbers from 1 on" if known else "without ':'"
            rule = f"sampling must be {cls.name}{cls.arguments}, {form}"
            raise ValueError(f"{rule}; got {cls.name + ':' + arguments!r}")
        rate = 1.0 if sample_rate is None and cls is FullBatch else sample_rate
        return cls(rate, *map(int, given))  # type: ignore[arg-type]  # _rate refuses None

    @property
    def word(self) -> str:
        """The text NAME or NAME:ARGUMENTS for this sampling in files and on command lines, without its rate."""
        values = [getattr(self, one.name) for one in self._whole() if getattr(self, one.name) != one.default]
        return self.name + (":" + "/".join(map(str, values)) if values else "")

    @property
    def most_rate(self) -> float:
        """The largest allowed sample rate."""
        return 1.0

    @property
    def records(self) -> int | None:
        """The number of records from which batches must be drawn, or None if any number is allowed."""
        return None

    def require(self, relation: Relation) -> None:
        """Raises ValueError if the accountant knows no bound for this sampling under `relation`."""

    def largest_change(self, relation: Relation) -> int:
        """Returns the L2 sensitivity, in units of the clip, of the sum of a batch's clipped contributions under
        `relation`: 1 or 2."""
        # In a refilled batch another record takes the place of a missing one, and both change the sum.
        refilled = self.refilled and self.sample_rate < 1 and relation is Relation.ADD_REMOVE
        return 2 if refilled else relation.sensitivity

    def cost(self, noise: float, steps: int, relation: Relation, size: int = 1, n: int | None = None) -> Cost:
        """Returns the privacy cost of releases with Gaussian noise and these batches; infinite if no bound is known.

        Args:
            noise: the standard deviation of the noise on the sum of a batch, divided by the clip.
            steps: the number of releases.
            relation: which data sets are neighbours.
            size: the number of records in which the compared data sets may differ.
            n: the number of records of the larger data set, or None for a cost that holds for any number.
        """
        # An observer who knows the batches sees plain Gaussian releases. Extra knowledge can only cost more (joint
        # convexity), so this is an upper bound.
        known = Cost.plain(math.sqrt(self.uses(steps)) * size * self.largest_change(relation) / noise)
        if self.sample_rate == 1:
            return known
        if size == 1:
            return replace(self.amplified(noise, steps, relation), unamplified=known.unamplified)
        return self.group_amplified(noise, steps, relation, size, n)

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        """Returns the privacy cost of `steps` releases with these batches, at a sample rate below 1, for data sets that
        differ in one record. Each subclass implements it, and `cost` calls it. `noise` is the standard deviation of the
        Gaussian noise on the sum of a batch, divided by the clip. `relation` says which data sets are neighbours."""
        raise NotImplementedError(f"sampling {self.word} does not say what it costs")

    def group_amplified(self, noise: float, steps: int, relation: Relation, size: int, n: int | None) -> Cost:
        """Returns the privacy cost of `steps` releases with these batches, at a sample rate below 1, for data sets that
        differ in up to `size` >= 2 records; an infinite cost if no bound is known. `n` is the number of records of the
        larger data set, or None for any number. `noise` is the standard deviation of the Gaussian noise on the sum of a
        batch, divided by the clip. `relation` says which data sets are neighbours."""
        return UNKNOWN

    def least_sought(self, relation: Relation) -> float:
        """Returns the smallest noise multiplier that calibration tries under `relation`, or 0 for no limit. With a
        smaller one the accountant takes over 5 seconds."""
        return 0.0

    def uses(self, steps: int) -> int:
        """Returns the largest number of batches, among the first `steps`, that can contain the same record."""
        return steps

    def chance(self, steps: int) -> float:
        """Returns the probability, or a lower bound on it, that a given record is in at least one of the first `steps`
        batches. If records differ in it, the largest such probability is returned."""
        return 1.0 if self.sample_rate == 1 else -math.expm1(steps * math.log1p(-self.sample_rate))

    def note(self, relation: Relation) -> str:
        """Returns a sentence on privacy answers for this sampling at a rate below 1 under `relation`, or ""."""
        return self.told.format(self=self, relation=relation)

    def meaning(self, n: int) -> str:
        """Returns a clause for privacy statements on how batches are drawn from `n` records, or ""."""
        return self.explained.format(self=self, batch=round(self.sample_rate * n))

    def batch_size(self, n: int) -> int | None:
        """Returns the number of records in every batch drawn from `n` records, or None if it is random. Raises
        ValueError if no such batches of `n` records exist, such as a fixed size q n that is not whole."""
        return None

    def draw(self, source: random.Random, n: int) -> Indices:
        """Draws one batch from `n` records with random bits of `source`, and returns its record indices in ascending
        order. Raises NotImplementedError if such batches cannot be drawn, or can be drawn only by `drawer`."""
        raise NotImplementedError(f"batches of sampling {self.word} cannot be drawn")

    def drawer(self, source: random.Random, secret: bytes, n: int) -> Callable[[int], Indices]:
        """Returns a function from the number of a step, counted from 0, to the ascending record indices of its batch.
        `n` is the number of all records. Independent batches are drawn with random bits of `source`. Batches that
        depend on one another are computed from the 32 bytes `secret`, which must be the same in every process that
        continues the run. Raises NotImplementedError, here or at the first batch, if they cannot be drawn."""
        return lambda release: self.draw(source, n)


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every record is in every batch. `sample_rate` must be 1, its default."""

    sample_rate: float = 1.0
    name = "full"
    explained = "all records in every step"
    runnable = True

    def _rate(self, sample_rate: object) -> float:
        rate = super()._rate(sample_rate)
        if rate != 1:
            raise ValueError(f"sample_rate must be 1 with sampling full; got {rate!r}")
        return rate

    def batch_size(self, n: int) -> int:
        return n

    def draw(self, source: random.Random, n: int) -> Indices:
        return np.arange(n)


@dataclass(frozen=True)
class Poisson(Sampling):
    """Each record is in a batch independently with probability q = `sample_rate`, in (0, 1]. Batches are drawn with q
    rounded down to a multiple of 2^-64."""

    name = "poisson"
    explained = "each record in each step independently with probability {self.sample_rate:g}; batches are secret"
    runnable = True

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        kinds = ("replace",) if relation is Relation.REPLACE_ONE else ("remove", "add")
        return Cost.of(*(Gaussian(kind, self.sample_rate, noise) for kind in kinds), count=steps)

    def group_amplified(self, noise: float, steps: int, relation: Relation, size: int, n: int | None) -> Cost:
        if LEAST_NOISE <= noise <= MOST_NOISE and size <= MOST_IN_GROUP:
            shifts = binomial_shifts(self.sample_rate, size)
            pairs = shifted_pairs(NormalNoise(noise), shifts, replaced=relation.replaces)
            return Cost.of(*pairs, count=steps)
        if noise < _LEAST_GROUP_NOISE * size:
            return UNKNOWN
        # One record that moves the sum by `size` clips whenever a record of the group is drawn costs as much or more.
        any_of_them = Poisson(any_drawn(self.sample_rate, size))
        return any_of_them.cost(noise / size, steps, relation).bounding(self.amplified(noise, steps, relation))

    def draw(self, source: random.Random, n: int) -> Indices:
        return _independent(source, n, self.sample_rate)


def _independent(source: random.Random, n: int, q: float) -> Indices:
    # Each of the records 0, ..., n - 1 with probability q, rounded down to a multiple of 2^-64
    if q == 1:
        return np.arange(n)
    words = np.frombuffer(source.randbytes(8 * n), dtype=np.uint64)
    return np.flatnonzero(words < np.uint64(int(q * 2.0**64)))


@dataclass(frozen=True)
class TruncatedPoisson(Poisson):
    """Poisson batches with a largest size, such as what fits in memory.

    If a batch would have more than `largest` records, `largest` of them are chosen uniformly at random. The name in
    files and on command lines is truncated-poisson:B/n, with B for `largest`.

    Args:
        sample_rate: the probability with which each record is drawn, in (0, 1).
        largest: the most records in a batch, >= 1.
        n: the number of all records; under "add-remove", of the larger data set. If n is the number of your records, a
            record that leaves is protected. To protect also one that joins, set n to your number of records plus 1.
    """

    largest: int
    n: int
    name, arguments, most_whole = "truncated-poisson", ":B/n", 10**12
    explained = Poisson.explained + "; of more than {self.largest} records so many are kept at random"
    told = (
        "truncated Poisson: at most {self.largest} of {self.n} records; the upper end also holds for whoever sees which"
        " steps are truncated, the lower end is attained by data"
    )

    def largest_change(self, relation: Relation) -> int:
        # In a full batch another record takes the place of a missing one, and both change the sum.
        return 2 if relation is Relation.ADD_REMOVE else relation.sensitivity

    @property
    def most_rate(self) -> float:
        return (self.n - 1) / self.n

    def _rate(self, sample_rate: object) -> float:
        return check.real("sample_rate", sample_rate, above=0, below=1)

    def _chances(self) -> tuple[float, float, float, float]:
        """Returns four bounds on probabilities for one given record and one batch. A batch is called full if `largest`
        or more other records are drawn. The first three are upper bounds on the probability that the batch is full,
        that it is not full, and that the record is in the batch given that it is full. The fourth is a lower bound on
        the probability that the record is in the batch."""
        q, largest, n = self.sample_rate, self.largest, self.n
        if largest >= n:
            return 0.0, 1.0, q, q
        # With B = `largest` and M other records drawn, `full` is P(M >= B), `usual` is P(M < B), and `kept` is q E[B/(M
        # + 1); M >= B], which is B/n P(M' > B) for the number M' of all n records that are drawn.
        full, usual = float(betainc(largest, n - largest, q)), float(betaincc(largest, n - largest, q))
        kept = largest / n * float(betainc(largest + 1, n - largest, q))
        # A bound on the relative error of scipy's binomial tails, measured, not proved: at 31,000 random tails of up to
        # 10^12 trials the error was at most an eighth of this.
        error = min(1e-11 + 4e-16 * n, 1e-6)
        more, less = 1 + error, 1 - error
        if full * more <= _LEAST_FULL:
            return _LEAST_FULL, 1.0, q, math.nextafter(q, 0)
        full_most, usual_most = min(full * more, 1 - usual * less + UNIT), min(usual * more, 1 - full * less + UNIT)
        used = (q * usual + kept) * less * (1 - 4 * UNIT)
        return full_most, usual_most, min(kept * more / (full * less) * (1 + 4 * UNIT), q), used

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        if self.largest >= self.n:
            return super().amplified(noise, steps, relation)
        full, usual, when_full, used = self._chances()
        kinds = Poisson(self.sample_rate), FixedSize(when_full)
        drawn, otherwise = (one.amplified(noise, 1, relation) for one in kinds)
        first, second = (
            ByChance(tuple((w, cost.above[k][0][0]) for w, cost in ((usual, drawn), (full, otherwise)) if w > 0))
            for k in (0, 1)
        )
        return Cost.of(first, second, count=steps).bounding(Poisson(used).amplified(noise, steps, relation))

    def group_amplified(self, noise: float, steps: int, relation: Relation, size: int, n: int | None) -> Cost:
        return UNKNOWN

    @property
    def records(self) -> int:
        return self.n

    def chance(self, steps: int) -> float:
        return Poisson(self._chances()[3]).chance(steps)

    def batch_size(self, n: int | None) -> None:
        if n != self.n:
            raise ValueError(f"n must be {self.n} with sampling {self.word}; got {n}")

    def draw(self, source: random.Random, n: int) -> Indices:
        self.batch_size(n)
        batch = super().draw(source, n)
        if len(batch) <= self.largest:
            return batch
        return np.sort(np.array(source.sample(batch.tolist(), self.largest), dtype=np.int64))


@dataclass(frozen=True)
class CyclicPoisson(Sampling):
    """Records are divided into B groups that take turns: step i draws each record of group i mod B independently with
    probability B q, where q = `sample_rate`.

    A record's group does not depend on other records, and may be publicly known. Its name in files is cyclic-poisson:B.

    Args:
        sample_rate: q in (0, 1/B].
        groups: the number B >= 1 of groups.
    """

    groups: int
    name, arguments = "cyclic-poisson", ":B"
    explained = (
        "{self.groups} groups, of random records, take turns; each of the group's with probability {self._turn:g}"
    )
    told = (
        "cyclic Poisson: a record is drawn in one step of {self.groups} at most; certified for whoever knows its group,"
        " which does not depend on other records"
    )
    runnable = lasting = scheduled = True

    @property
    def most_rate(self) -> float:
        return 1 / self.groups

    @property
    def _turn(self) -> float:  # the probability with which a record is drawn when its group has its turn
        return min(self.groups * self.sample_rate, 1.0)

    def cost(self, noise: float, steps: int, relation: Relation, size: int = 1, n: int | None = None) -> Cost:
        found = Poisson(self._turn).cost(noise, self.uses(steps), relation, size)
        # Some data have exactly this cost if all `size` records are in one group, which needs so many records.
        return found.bounding() if n is not None and size > 1 and size * self.groups > n else found

    def uses(self, steps: int) -> int:
        return -(-steps // self.groups)

    def chance(self, steps: int) -> float:
        return Poisson(self._turn).chance(self.uses(steps))  # the first group has the most turns

    def drawer(self, source: random.Random, secret: bytes, n: int) -> Callable[[int], Indices]:
        group = groups(secret, n, self.groups)

        def batch(release: int) -> Indices:
            members = np.flatnonzero(group == release % self.groups)
            return members[_independent(source, len(members), self._turn)]

        return batch


@dataclass(frozen=True)
class FixedSize(Sampling):
    """A batch is a uniformly random set of q n of the n records, where q = `sample_rate`. Drawing raises ValueError if
    q n is not a whole number."""

    name = "fixed-size"
    explained = "{batch} records of n in each step, uniformly without replacement; batches are secret"
    runnable = refilled = True
    told = (
        "fixed-size, {relation}: the upper end is certified for every adaptive use; the lower end is attained by data;"
        " the exact number is in between"
    )

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        q = self.sample_rate
        # With zero-out the batch's sum changes by at most one clip. With add-remove and replace-one it changes by up to
        # two, since another record takes the place of the one that is removed or replaced.
        moved = noise if relation is Relation.ZERO_OUT else noise / 2
        attained = Cost.of(*(Gaussian(kind, q, moved) for kind in ("remove", "add")), count=steps)
        if relation is Relation.ADD_REMOVE:
            return attained
        if not relation.replaces and LEAST_ZEROED <= noise <= q * MOST_ZEROED:
            return Cost.of(*zeroed_pairs(noise, q), count=steps)
        return Cost.of(Gaussian("fixed-size", q, noise / 2), count=steps).bounding(attained)

    def group_amplified(self, noise: float, steps: int, relation: Relation, size: int, n: int | None) -> Cost:
        if relation is Relation.ADD_REMOVE:  # a bound is known only for changing one record after another
            return UNKNOWN
        return (
            replace(self, sample_rate=min(size * self.sample_rate, 1.0)).cost(noise / size, steps, relation).bounding()
        )

    def note(self, relation: Relation) -> str:
        return "" if relation is Relation.ADD_REMOVE else super().note(relation)

    def batch_size(self, n: int) -> int:
        size = round(self.sample_rate * n)
        if size < 1 or abs(size - self.sample_rate * n) > 1e-9:
            rule = "sample_rate * n must be an integer >= 1 with sampling fixed-size"
            raise ValueError(f"{rule}; got {self.sample_rate!r} * {n}")
        return size

    def draw(self, source: random.Random, n: int) -> Indices:
        return np.sort(np.array(source.sample(range(n), self.batch_size(n)), dtype=np.int64))


@dataclass(frozen=True)
class FixedOrder(Sampling):
    """Epochs of floor(1/q) batches of q n of the n records each, where q = `sample_rate`, in an order that does not
    depend on the data. Each record is in at most one batch of an epoch. The order may be public and the same in every
    epoch, so this sampling does not amplify privacy. Such batches are accounted for, but runs cannot draw them."""

    name = "fixed-order"
    scheduled = True
    told = "fixed order: no amplification; each record is in ceil(steps / floor(1/q)) batches at most"

    def require(self, relation: Relation) -> None:
        if relation is Relation.ADD_REMOVE and self.sample_rate < 1:
            raise ValueError(
                f"relation must be replace-one or zero-out with sampling {self.name} (without a record the later ones"
                f" change batches); got {str(relation)!r}"
            )

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        return Cost.plain(math.sqrt(self.uses(steps)) * relation.sensitivity / noise)

    def group_amplified(self, noise: float, steps: int, relation: Relation, size: int, n: int | None) -> Cost:
        found = self.amplified(noise / size, steps, relation)
        fits = n is None or size <= math.floor(self.sample_rate * n + 1e-9)
        return found if fits else found.bounding()

    def uses(self, steps: int) -> int:
        return -(-steps // _epoch(self.sample_rate))

    def chance(self, steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Shuffled(FixedOrder):
    """Epochs of floor(1/q) batches of q n of the n records each, where q = `sample_rate`, taken in a secret order that
    is uniformly random and new in every epoch; leftover records are omitted. No amplification by the secret order is
    proved if steps depend on earlier outputs, so the upper bound on the cost is that of a known order. The lower bound
    is 0. This package's training runs cannot draw such batches."""

    name = "shuffled"
    told = (
        "shuffled: the upper end counts no amplification, because none is proved for batches of one size; the lower end"
        " is 0"
    )

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        return super().amplified(noise, steps, relation).bounding()

    def chance(self, steps: int) -> float:
        return min(steps, _epoch(self.sample_rate)) * self.sample_rate


_LONG_BLOCK = 2000  # Blocks of so many steps or more are accounted as if none had one step more than the others.


@dataclass(frozen=True)
class RandomAllocation(Sampling):
    """Each record is in `taken` uniformly random steps of every epoch, independently of the other records; with `taken`
    = 1 this is also known as balls in bins.

    An epoch has floor(taken/q) steps. A batch has q n of n records on average if taken/q is a whole number, as training
    runs require, and more otherwise. The name in files and on command lines is random-allocation, or
    random-allocation:K for `taken` = K > 1.

    Args:
        sample_rate: q in (0, 1]; sums over a batch are divided by q n.
        taken: the number K >= 1 of batches of an epoch that contain a given record.
    """

    taken: int = 1
    name, arguments, most_whole = "random-allocation", "[:K]", 10**6
    explained = "each record in {self.taken} of every {self.epoch} steps, uniformly at random; batches are secret"
    runnable = lasting = scheduled = True
    told = "random allocation: each record in {self.taken} random steps of each epoch, independently of other records"

    @property
    def epoch(self) -> int:
        """The number of steps of one epoch, floor(taken/q) with q = `sample_rate`."""
        return _epoch(self.sample_rate / self.taken)

    def least_sought(self, relation: Relation) -> float:
        return (0.35 if relation.replaces else 0.2) if self.epoch > 100 else 0.0

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        epoch, taken, replaced = self.epoch, self.taken, relation.replaces
        if epoch <= taken or noise < LEAST_EPOCH_NOISE:
            known = Cost.plain(math.sqrt(self.uses(steps)) * relation.sensitivity / noise)
            return known if epoch <= taken else known.bounding()
        whole, rest = divmod(steps, epoch)
        parts = [(released, count) for released, count in ((epoch, whole), (rest, 1)) if released and count]
        # An observer who is told a random partition of the steps into `taken` blocks, each with one step of the record,
        # sees an epoch in each block (derivation.md, section 7). Extra knowledge only costs more: upper bounds.
        size, longer = divmod(epoch, taken)
        if size >= _LONG_BLOCK:
            longer = 0  # A block with one step more costs less, but here hardly any less: count it as shorter
        blocks = [(length, count) for length, count in ((size, taken - longer), (size + 1, longer)) if count]
        total = whole + bool(rest)

        def laws(way: int) -> tuple[Parts, Parts]:
            above: list[tuple[Law, int]] = []
            for (length, count), (released, number) in itertools.product(blocks, parts):
                if length > 1:
                    law = Epoch(noise, length, min(released, length), replaced, way, 1, "upper", total * taken)
                    above.append((law, count * number))
            return tuple(above), tuple((Epoch(noise, epoch, r, replaced, way, taken), m) for r, m in parts)

        forward, backward = (laws(way) for way in (0, int(not replaced)))
        alone = sum(count for length, count in blocks if length == 1) * sum(number for _, number in parts)
        squares = alone * (relation.sensitivity / noise) ** 2, 0.0
        return Cost((forward[0], backward[0]), (forward[1], backward[1]), squares)

    def uses(self, steps: int) -> int:
        whole, rest = divmod(steps, self.epoch)
        return whole * self.taken + min(rest, self.taken)

    def chance(self, steps: int) -> float:  # only the first epoch matters, since after it every record was used
        if self.taken == 1:
            return min(steps / self.epoch, 1.0)
        return 1 - math.prod(max(1 - steps / (self.epoch - i), 0.0) for i in range(min(self.taken, self.epoch)))

    def batch_size(self, n: int) -> None:
        # A batch has q n records on average only if an epoch has exactly taken/q steps.
        steps = self.taken / self.sample_rate
        if abs(steps - round(steps)) > 1e-9 * steps:
            least, most = (n * self.taken / count for count in (math.ceil(steps), math.floor(steps)))
            rule = f"expected_batch must be {self.taken} n over a whole number of steps with sampling {self.word}"
            raise ValueError(f"{rule}, as {least:.10g} or {most:.10g}; got {self.sample_rate * n:.10g}")

    def drawer(self, source: random.Random, secret: bytes, n: int) -> Callable[[int], Indices]:
        return allocation(secret, n, self.epoch, self.taken)


def _epoch(sample_rate: float) -> int:  # floor(1/q), where a 1/q just below an integer counts as that integer
    return math.floor((1 + 1e-12) / sample_rate)


SAMPLINGS: Registry[type[Sampling]] = Registry("sampling")
for _kind in (FullBatch, Poisson, FixedSize, RandomAllocation, FixedOrder, Shuffled, TruncatedPoisson, CyclicPoisson):
    SAMPLINGS.register(_kind)


def sampling_of(word: str, sample_rate: float | None) -> Sampling:
    """Returns the sampling that `word` stands for: a name in `SAMPLINGS` and its arguments, such as "poisson" or
    "random-allocation:2". `sample_rate` is q in (0, 1], or None for full batches only. Raises ValueError for an unknown
    word or a rate that the sampling cannot have."""
    name, _, arguments = word.partition(":") if isinstance(word, str) else (word, "", "")
    return SAMPLINGS[name].of(arguments, sample_rate)


def sampling_of_run(word: str | Sampling, sample_rate: float | None) -> Sampling:
    """Returns the sampling of a training run. `word` is a `Sampling` or a text such as "poisson" or
    "random-allocation:2". `sample_rate` is the expected batch size over the number of records, or None for full
    batches, or for a `Sampling`, which has its own rate. Raises ValueError for batches that training runs cannot draw,
    or if the rate of a `Sampling` differs from `sample_rate` by more than a relative 1e-9."""
    if isinstance(word, Sampling):
        if sample_rate is not None and not math.isclose(word.sample_rate, sample_rate, rel_tol=1e-9):
            rule = f"sampling must have the rate of expected_batch over n, {sample_rate:.10g}, or be a name"
            raise ValueError(f"{rule}, {word.word!r}; got {word!r}")
        return sampling_of_run(word.word, sample_rate)
    name = word.partition(":")[0] if isinstance(word, str) else ""
    if not (name in SAMPLINGS and SAMPLINGS[name].runnable):
        runnable = [each for each, kind in SAMPLINGS.items() if kind.runnable and not kind.arguments.startswith(":")]
        check.choice("sampling", word, runnable)
    return sampling_of(word, sample_rate)
