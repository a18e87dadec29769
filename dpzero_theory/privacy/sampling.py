"""How a step's batch is drawn, as values such as `Poisson(1/16)` or `RandomAllocation(1/16, taken=2)`.

A value knows its sample rate q, which is the (expected) number of records in a batch over the number n of all records,
and the other parameters of its law. `Sampling.cost` tells the accountant what T steps with such batches cost, and
`Sampling.draw` or `Sampling.drawer` draws batches where a run can use them. The batches must stay secret: amplification
by sampling holds only for batches that an observer does not know.

In files and on command lines a sampling is a word and a rate, as in `poisson` and 0.0625, or `random-allocation:2` and
a rate; `sampling_of` reads them. A new sampling is a subclass of `Sampling` and one call of `SAMPLINGS.register`.
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

_LEAST_GROUP_NOISE = 0.03  # in clips, over the number of records of a group with Poisson batches; less has no bound
_LEAST_FULL = 1e-290
"""Probabilities that a truncated batch is full are computed down to this; smaller ones are replaced by it. The error of
scipy's binomial tails that is allowed for is measured, not proved: at most an eighth of it at 31,000 random tails of up
to 10^12 trials, against sums of terms with proved bounds."""


@dataclass(frozen=True)
class Sampling:
    """One way to draw batches.

    A subclass has a `name`, the method `amplified` and, if runs can draw its batches, `draw` or `drawer`.

    Args:
        sample_rate: q in (0, 1], the (expected) number of records in a batch over the number n of records. Other fields
            of a subclass are whole numbers from 1 on.

    Attributes:
        name: the name of this kind of sampling in files and on command lines, such as "cyclic-poisson".
        arguments: the form of what follows `name` there, such as ":B" in cyclic-poisson:B; "" if nothing does. Square
            brackets mark an optional text.
        most_whole: the largest value of a field that is a whole number.
        runnable: whether this package's training runs can draw such batches, and not only account for them.
        lasting: whether batches depend on one another, so that a run draws them from a secret that is stored with it.
        scheduled: whether batches follow a schedule from its beginning, so that T steps and then T steps that start
            anew are not the same as 2 T steps.
        refilled: whether a batch keeps its size when a record is missing, because another one takes its place.
        told: what the method `note` says of answers: a format string with the fields {self} (the sampling), {relation}.
        explained: what the method `meaning` says of how batches are drawn: a format string with the fields {self} and
            {batch} (records in a batch).
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
        """Return the sampling that the word NAME:ARGUMENTS stands for. `arguments` is the text after the colon (whole
        numbers with slashes between them) or "", and `sample_rate` is q, or None for full batches. Raises ValueError
        for arguments or a rate that the sampling cannot have."""
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
        """The text NAME or NAME:ARGUMENTS for this sampling in files and on command lines, without the rate."""
        values = [getattr(self, one.name) for one in self._whole() if getattr(self, one.name) != one.default]
        return self.name + (":" + "/".join(map(str, values)) if values else "")

    @property
    def most_rate(self) -> float:
        """The largest sample rate that this sampling can have."""
        return 1.0

    @property
    def records(self) -> int | None:
        """The number of records from which its batches must be drawn, or None if any number will do."""
        return None

    def at(self, sample_rate: float) -> Self:
        """Return the same sampling with another sample rate. Raises ValueError for a rate that it cannot have."""
        return replace(self, sample_rate=sample_rate)

    def require(self, relation: Relation) -> None:
        """Raise ValueError if the accountant knows no bound for this sampling under `relation`."""

    def largest_change(self, relation: Relation) -> int:
        """The L2 sensitivity, 1 or 2 in units of C, of the sum over a batch of contributions that are clipped to the
        norm C, under `relation`."""
        # In a refilled batch another record takes the place of a missing one, and both change the sum.
        refilled = self.refilled and self.sample_rate < 1 and relation is Relation.ADD_REMOVE
        return 2 if refilled else relation.sensitivity

    def cost(self, noise: float, steps: int, relation: Relation, size: int = 1, n: int | None = None) -> Cost:
        """The privacy cost of releases with Gaussian noise and such batches; infinite if no bound is known.

        Args:
            noise: the standard deviation of the noise on the sum of a batch, over the clip.
            steps: the number of releases.
            relation: which data sets are neighbours.
            size: the largest number of records in which the compared data sets differ.
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
        """The privacy cost of `steps` releases with these batches, q < 1, for data sets that differ in one record.
        Every subclass has this method, which `cost` calls. `noise` is the standard deviation of the Gaussian noise on
        the sum of a batch, over the clip, and `relation` says which data sets are neighbours."""
        raise NotImplementedError(f"sampling {self.word} does not say what it costs")

    def group_amplified(self, noise: float, steps: int, relation: Relation, size: int, n: int | None) -> Cost:
        """The privacy cost of `steps` releases with these batches, q < 1, for data sets that differ in up to `size` >=
        2 records, the larger of which has n (None: any number); infinite if no bound is known. `noise` is the standard
        deviation of the Gaussian noise on the sum of a batch, over the clip, and `relation` says which data sets are
        neighbours."""
        return UNKNOWN

    def least_sought(self, relation: Relation) -> float:
        """The least noise multiplier that calibration tries under `relation`, as with less it takes over 5 s; or 0."""
        return 0.0

    def uses(self, steps: int) -> int:
        """The largest number of batches, of the first `steps` ones, that one record can be in."""
        return steps

    def chance(self, steps: int) -> float:
        """The probability that at least one of the first `steps` batches uses a given record, or a lower bound on it;
        the largest such probability if it differs between records."""
        return 1.0 if self.sample_rate == 1 else -math.expm1(steps * math.log1p(-self.sample_rate))

    def note(self, relation: Relation) -> str:
        """A sentence to show with the accountant's answers for this sampling at q < 1 under `relation`, or ""."""
        return self.told.format(self=self, relation=relation)

    def meaning(self, n: int) -> str:
        """A clause for a privacy statement on how batches are drawn from n records, or ""."""
        return self.explained.format(self=self, batch=round(self.sample_rate * n))

    def batch_size(self, n: int) -> int | None:
        """The number of records in every batch drawn from n records, or None if that number is random. Raises
        ValueError if no such batches exist for n, for instance if q n is no whole number for batches of fixed size."""
        return None

    def draw(self, source: random.Random, n: int) -> Indices:
        """Draw one batch from n records, with random bits from `source`; return the indices of its records. Raises
        NotImplementedError if batches cannot be drawn, or not one without the others (`drawer` draws those)."""
        raise NotImplementedError(f"batches of sampling {self.word} cannot be drawn")

    def drawer(self, source: random.Random, secret: bytes, n: int) -> Callable[[int], Indices]:
        """Return a function from the index of a release, from 0 on, to the indices of its batch's records out of n.
        Batches that are independent of one another come from random bits of `source`. Others follow from the 32 bytes
        `secret`, which must be the same in every process that continues the run. Raises NotImplementedError, here or at
        the first batch, if batches cannot be drawn."""
        return lambda release: self.draw(source, n)


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every record is in every batch. The `sample_rate` must be 1, its default."""

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
    """Each record is in a batch independently with probability q = `sample_rate`, in (0, 1]. For drawing, q is rounded
    down to a multiple of 2^-64."""

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
    """Poisson batches with a limit on their size, such as what fits in memory.

    Of a batch with more than `largest` records, `largest` are used, chosen uniformly at random. In files and on command
    lines such batches are called truncated-poisson:B/n, with B for `largest`.

    Args:
        sample_rate: the probability with which each record is drawn, in (0, 1).
        largest: the most records in a batch, >= 1.
        n: the number of all records, of the larger data set under add-remove. If n is the number of your records, the
            guarantee covers a record that leaves; a record that joins is covered only if n is that number plus 1.
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
        """Bounds on probabilities about one given record and one batch, from which records are left out at random if
        more than `largest` are drawn. The batch is called full if `largest` or more other records are drawn. Returned
        are upper bounds on the probability that it is full, that it is not, and that it uses the record (draws it and
        does not leave it out) given that it is full; and a lower bound on the probability that it uses the record, full
        or not."""
        q, largest, n = self.sample_rate, self.largest, self.n
        if largest >= n:
            return 0.0, 1.0, q, q
        # `full` is P(M >= B) and `usual` is P(M < B) for the number M of others that are drawn. `kept` is q E[B/(M
        # + 1); M >= B], which is B/n P(M' > B) for the number M' of all n records that are drawn.
        full, usual = float(betainc(largest, n - largest, q)), float(betaincc(largest, n - largest, q))
        kept = largest / n * float(betainc(largest + 1, n - largest, q))
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
    """The records are in B groups that take turns: step i draws each record of group i mod B independently with
    probability B q, where q = `sample_rate` is at most 1/B.

    The group of a record does not depend on the other records, and may be known. In files and on command lines such
    batches are called cyclic-poisson:B.

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
    """A batch is a uniformly random set of q n of the n records, without replacement, where q = `sample_rate`. Drawing
    raises ValueError if q n is not a whole number."""

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
        return self.at(min(size * self.sample_rate, 1.0)).cost(noise / size, steps, relation).bounding()

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
    """Ordered epochs of floor(1/q) batches of q n of the n records, where q = `sample_rate`. Each record is in at most
    one batch of an epoch, in an order that does not depend on the data. It may be known, and the same in every epoch,
    so that sampling does not amplify privacy. Such batches are only accounted for: this package's runs cannot draw
    them."""

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
    """Shuffled epochs: in every epoch the records are put into a new, secret, uniformly random order, and floor(1/q)
    batches of q n records each, a whole number, are taken in that order, where q = `sample_rate`; the rest are left
    out. No amplification by the secrecy of the order is proved for every adaptive use, so the upper bound on the cost
    is that of a known order; the lower bound is 0. This package's runs cannot draw such batches."""

    name = "shuffled"
    told = (
        "shuffled: the upper end counts no amplification, because none is proved for batches of one size; the lower end"
        " is 0"
    )

    def amplified(self, noise: float, steps: int, relation: Relation) -> Cost:
        return super().amplified(noise, steps, relation).bounding()

    def chance(self, steps: int) -> float:
        return min(steps, _epoch(self.sample_rate)) * self.sample_rate

    def batch_size(self, n: int) -> int:
        return FixedSize(self.sample_rate).batch_size(n)


_LONG_BLOCK = 2000  # Blocks of so many steps or more are accounted as if none had one step more than the others.


@dataclass(frozen=True)
class RandomAllocation(Sampling):
    """Each record is in `taken` uniformly random steps of every epoch, independently of the other records.

    An epoch has floor(taken/q) steps, so a batch has q n of n records on average if taken/q is a whole number, as runs
    require, and otherwise more. In files and on command lines such batches are called random-allocation, or
    random-allocation:K for taken = K > 1. With K = 1 the scheme is also known as balls in bins.

    Args:
        sample_rate: q in (0, 1]; sums over a batch are divided by q n.
        taken: the number K >= 1 of steps of an epoch in which a record is used.
    """

    taken: int = 1
    name, arguments, most_whole = "random-allocation", "[:K]", 10**6
    explained = "each record in {self.taken} of every {self.epoch} steps, uniformly at random; batches are secret"
    runnable = lasting = scheduled = True
    told = "random allocation: each record in {self.taken} random steps of each epoch, independently of other records"

    @property
    def epoch(self) -> int:
        """The number of steps of one epoch, floor(taken/q), for a record in `taken` of them and q = `sample_rate`."""
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

    def note(self, relation: Relation) -> str:
        said = "; both ends are certified, the exact number is in between" if self.taken > 1 else ""
        return super().note(relation) + said

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
    """The sampling that `word` stands for: a name in `SAMPLINGS` with its arguments, as `poisson` or
    `random-allocation:2`. The `sample_rate` is q in (0, 1], or None with full batches only. Raises ValueError for an
    unknown word or a rate that the sampling cannot have."""
    name, _, arguments = word.partition(":") if isinstance(word, str) else (word, "", "")
    return SAMPLINGS[name].of(arguments, sample_rate)


def sampling_of_run(word: str | Sampling, sample_rate: float | None) -> Sampling:
    """The sampling of a training run, from a `Sampling` or from a word such as `poisson` or `random-allocation:2`, and
    from `sample_rate`, the expected batch size over the number of records, or None with full batches only. Raises
    ValueError for batches that runs cannot draw, or a `Sampling` with another rate (by more than 1e-9 of it)."""
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
