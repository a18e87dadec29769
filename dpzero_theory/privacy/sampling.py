"""How a step's batch is drawn: for each way what it does to privacy and, where a run can draw so, the sampler.

A batch is used by one release: the sum of the clipped contributions of its records plus noise. `Sampling.terms` says
what T such releases with Gaussian noise add to a composition; a sampling whose batches a run can draw has `draw`, or
`drawer` where they depend on one another. Their randomness must be secret (amplification holds for batches that an
observer cannot know). A further sampling is a subclass and one call of `SAMPLINGS.register`.
"""

import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
from scipy.special import bdtrc

from dpzero_theory import check
from dpzero_theory.privacy.certified.allocation import Run
from dpzero_theory.privacy.certified.pairs import Pair
from dpzero_theory.privacy.certified.zeroed import LEAST_NOISE, zeroed_pairs
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.schedule import Allocation, Indices, Turns
from dpzero_theory.privacy.terms import Terms
from dpzero_theory.registry import Registry

_BINOMIAL = 1e-9
"""Relative error of a binomial tail, with room."""


class Sampling(ABC):
    """One way to draw batches; q is `sample_rate`, the (expected) batch over n."""

    name: str
    runnable: ClassVar[bool] = False
    lasting: ClassVar[bool] = False
    """Whether batches depend on one another, so that they come from a secret that a run keeps."""
    most_rate: float = 1.0
    """The largest q."""

    def rate(self, sample_rate: object) -> float:
        """q as a number in (0, 1]. Raises ValueError."""
        return check.real("sample_rate", sample_rate, above=0, at_most=1)

    def require(self, relation: Relation, sample_rate: float) -> None:
        """Raise ValueError unless a relation's neighbours are accounted for batches drawn so."""
        return

    def terms(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        """What `steps` releases add. noise_multiplier: of the noise on the sum, over the clip."""
        if sample_rate == 1:
            return Terms(gdp=math.sqrt(steps) * relation.sensitivity / noise_multiplier)
        return self._sampled(noise_multiplier, steps, sample_rate, relation)

    @abstractmethod
    def _sampled(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        """`terms` for q < 1."""

    def chance(self, steps: int, sample_rate: float) -> tuple[float, str]:
        """The probability that a given record is in any of the batches, and its formula."""
        reached = 1.0 if sample_rate == 1 else -math.expm1(steps * math.log1p(-sample_rate))
        return reached, "1 - (1 - sample_rate)^steps"

    def note(self, relation: Relation) -> str:
        """What a reader must know about a certificate for q < 1; empty where there is nothing."""
        return ""

    def meaning(self, n: int, sample_rate: float) -> str:
        """How batches are drawn, for a reader of a privacy statement; empty where the name says it."""
        return ""

    def batch_size(self, n: int, sample_rate: float) -> int | None:
        """Records in every batch, None where it is random. Raises ValueError for a q that gives no such batch."""
        return None

    def draw(self, source: random.Random, n: int, sample_rate: float) -> Indices:
        """The records of one batch. Only where `runnable`, and not `lasting`."""
        raise NotImplementedError(f"batches of sampling {self.name} cannot be drawn")

    def drawer(self, source: random.Random, secret: bytes, n: int, sample_rate: float) -> Callable[[int], Indices]:
        """The batch of each release, by its number: what lasts from the secret, what does not from the source."""
        return lambda release: self.draw(source, n, sample_rate)


class _Full(Sampling):
    """Every record."""

    name = "full"
    runnable = True

    def rate(self, sample_rate: object) -> float:
        rate = 1.0 if sample_rate is None else super().rate(sample_rate)
        if rate != 1:
            raise ValueError(f"sample_rate must be 1 with sampling full; got {rate!r}")
        return rate

    def _sampled(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        raise AssertionError("full batches have sample_rate 1")

    def meaning(self, n: int, sample_rate: float) -> str:
        return "all records in every step"

    def batch_size(self, n: int, sample_rate: float) -> int:
        return n

    def draw(self, source: random.Random, n: int, sample_rate: float) -> Indices:
        return np.arange(n)


class _Poisson(Sampling):
    """Each record independently with probability q (rounded down to a multiple of 2^-64 in `draw`)."""

    name = "poisson"
    runnable = True

    def _sampled(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        kinds = ("replace",) if relation is Relation.REPLACE_ONE else ("remove", "add")
        pairs = tuple(Pair(kind, sample_rate, noise_multiplier) for kind in kinds)
        return Terms(pairs=pairs, attained=pairs)

    def meaning(self, n: int, sample_rate: float) -> str:
        return f"each record in each step independently with probability {sample_rate:g}; batches are secret"

    def draw(self, source: random.Random, n: int, sample_rate: float) -> Indices:
        if sample_rate == 1:
            return np.arange(n)
        words = np.frombuffer(source.randbytes(8 * n), dtype=np.uint64)
        return np.flatnonzero(words < np.uint64(int(sample_rate * 2.0**64)))


class TruncatedPoisson(_Poisson):
    """Poisson batches of which B records, drawn uniformly, are kept where there are more: what fits in memory.

    Its name says B and n, the number of records (with add-remove, of the larger data set): truncated-poisson:B/n.
    """

    family: ClassVar[str] = "truncated-poisson"

    def __init__(self, largest: int, n: int) -> None:
        self.largest = check.integer("largest batch", largest)
        self.n = check.integer("n", n, at_most=10**15)
        self.name = f"{self.family}:{self.largest}/{self.n}"
        self.most_rate = (self.n - 1) / self.n

    @classmethod
    def of(cls, arguments: str) -> "TruncatedPoisson":
        """From B/n. Raises ValueError."""
        found = re.fullmatch(r"(\d{1,16})/(\d{1,16})", arguments)
        if found is None:
            raise ValueError(f"sampling must be {cls.family}:B/n, B the largest batch of n records; got {arguments!r}")
        return cls(*map(int, found.groups()))

    def rate(self, sample_rate: object) -> float:
        return check.real("sample_rate", sample_rate, above=0, below=1)

    def _chances(self, q: float) -> tuple[float, float]:
        """(w, q'): of B or more batch records beside a given one, from above; of that one to be used, from below."""
        if self.largest >= self.n:
            return 0.0, q
        full = min(float(bdtrc(self.largest - 1, self.n - 1, q)) * (1 + _BINOMIAL), 1.0)
        used = q * (1 - full) + self.largest / self.n * float(bdtrc(self.largest, self.n, q))
        return full, used * (1 - _BINOMIAL)

    def terms(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        plain = super().terms(noise_multiplier, steps, sample_rate, relation)
        full, used = self._chances(sample_rate)
        if full == 0:
            return plain
        return replace(
            plain,
            attained=super().terms(noise_multiplier, steps, used, relation).pairs,
            truncated=full,
        )

    def chance(self, steps: int, sample_rate: float) -> tuple[float, str]:
        return super().chance(steps, self._chances(sample_rate)[1])[0], "1 - (1 - q')^steps, q' after truncation,"

    def note(self, relation: Relation) -> str:
        return (
            f"truncated Poisson: at most {self.largest} of {self.n} records; the upper end also holds for whoever sees"
            " which steps are truncated, the lower end is attained by data"
        )

    def meaning(self, n: int, sample_rate: float) -> str:
        return f"{super().meaning(n, sample_rate)}; of more than {self.largest} records so many are kept at random"

    def batch_size(self, n: int | None, sample_rate: float) -> None:
        if n != self.n:
            raise ValueError(f"n must be {self.n} with sampling {self.name}; got {n}")

    def draw(self, source: random.Random, n: int, sample_rate: float) -> Indices:
        self.batch_size(n, sample_rate)
        batch = super().draw(source, n, sample_rate)
        if len(batch) <= self.largest:
            return batch
        return np.sort(np.array(source.sample(batch.tolist(), self.largest), dtype=np.int64))


class CyclicPoisson(_Poisson):
    """B groups of records that take turns: step i draws from group i mod B alone, each record with probability B q.

    A record's group does not depend on the other records, and may be known. Its name says B: cyclic-poisson:B.
    """

    family: ClassVar[str] = "cyclic-poisson"
    lasting = True

    def __init__(self, groups: int) -> None:
        self.groups = check.integer("groups", groups)
        self.name, self.most_rate = f"{self.family}:{self.groups}", 1 / self.groups

    @classmethod
    def of(cls, arguments: str) -> "CyclicPoisson":
        """From B. Raises ValueError."""
        if not re.fullmatch(r"[1-9]\d{0,11}", arguments):
            raise ValueError(f"sampling must be {cls.family}:B, B >= 1 groups that take turns; got {arguments!r}")
        return cls(int(arguments))

    def rate(self, sample_rate: object) -> float:
        return check.real("sample_rate", sample_rate, above=0, at_most=self.most_rate)

    def terms(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        turns, rate = -(-steps // self.groups), min(self.groups * sample_rate, 1.0)
        found = super().terms(noise_multiplier, turns, rate, relation)
        return replace(found, releases=turns if found.pairs else 0)

    def chance(self, steps: int, sample_rate: float) -> tuple[float, str]:
        turns = -(-steps // self.groups)
        return super().chance(turns, min(self.groups * sample_rate, 1.0))[0], "1 - (1 - B sample_rate)^ceil(steps/B)"

    def note(self, relation: Relation) -> str:
        return (
            f"cyclic Poisson: a record is drawn in one step of {self.groups} at most; certified for whoever knows its"
            " group, which does not depend on other records"
        )

    def meaning(self, n: int, sample_rate: float) -> str:
        rate = self.groups * sample_rate
        return f"{self.groups} groups, of random records, take turns; each of the group's with probability {rate:g}"

    draw = Sampling.draw

    def drawer(self, source: random.Random, secret: bytes, n: int, sample_rate: float) -> Callable[[int], Indices]:
        rate = min(self.groups * sample_rate, 1.0)
        return Turns(secret, n, self.groups, lambda members: _Poisson.draw(self, source, members, rate))


class _FixedSize(Sampling):
    """A uniformly random set of q n records, without replacement."""

    name = "fixed-size"
    runnable = True

    def _sampled(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        if relation is Relation.ZERO_OUT and noise_multiplier >= LEAST_NOISE:
            return Terms(finite=zeroed_pairs(noise_multiplier, sample_rate))
        # a batch that loses a record gets another in its place; one whose record counts as zero does not
        noise = noise_multiplier if relation is Relation.ZERO_OUT else noise_multiplier / 2
        attained = tuple(Pair(kind, sample_rate, noise) for kind in ("remove", "add"))
        if relation is Relation.ADD_REMOVE:
            return Terms(pairs=attained, attained=attained)
        return Terms(pairs=(Pair("fixed-size", sample_rate, noise_multiplier / 2),), attained=attained)

    def note(self, relation: Relation) -> str:
        if relation is Relation.ADD_REMOVE:
            return ""
        held = "the upper end is certified for every adaptive use; the lower end is attained by data"
        return f"fixed-size, {relation}: {held}; the exact number is in between"

    def meaning(self, n: int, sample_rate: float) -> str:
        batch = self.batch_size(n, sample_rate)
        return f"{batch} records of n in each step, uniformly without replacement; batches are secret"

    def batch_size(self, n: int, sample_rate: float) -> int:
        size = round(sample_rate * n)
        if size < 1 or abs(size - sample_rate * n) > 1e-9:
            rule = "sample_rate * n must be an integer >= 1 with sampling fixed-size"
            raise ValueError(f"{rule}; got {sample_rate!r} * {n}")
        return size

    def draw(self, source: random.Random, n: int, sample_rate: float) -> Indices:
        return np.sort(np.array(source.sample(range(n), self.batch_size(n, sample_rate)), dtype=np.int64))


class _FixedOrder(Sampling):
    """Any order that does not depend on the data, each record at most once an epoch: shuffled or ordered epochs."""

    name = "fixed-order"

    def require(self, relation: Relation, sample_rate: float) -> None:
        if relation is Relation.ADD_REMOVE and sample_rate < 1:
            raise ValueError(
                f"relation must be replace-one or zero-out with sampling {self.name} (without a record the later ones"
                f" change batches); got {str(relation)!r}"
            )

    def _sampled(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        return Terms(gdp=math.sqrt(passes(steps, sample_rate)) * relation.sensitivity / noise_multiplier)

    def chance(self, steps: int, sample_rate: float) -> tuple[float, str]:
        return 1.0, "1"

    def note(self, relation: Relation) -> str:
        return "fixed order: no amplification; each record is in ceil(steps / floor(1/q)) batches at most"


class RandomAllocation(_FixedOrder):
    """Each record in K uniformly random steps of every epoch of floor(K/q), independently of the other records.

    Its name says K where that is not 1 (balls in bins): random-allocation:K.
    """

    family: ClassVar[str] = "random-allocation"
    runnable = lasting = True

    def __init__(self, taken: int = 1) -> None:
        self.taken = taken
        self.name = self.family if taken == 1 else f"{self.family}:{taken}"

    @classmethod
    def of(cls, arguments: str) -> "RandomAllocation":
        """From K, 1 if it is left out. Raises ValueError."""
        if not re.fullmatch(r"([1-9]\d{0,5})?", arguments):
            raise ValueError(f"sampling must be {cls.family}:K, K >= 1 steps of an epoch; got {arguments!r}")
        return cls(int(arguments or 1))

    def require(self, relation: Relation, sample_rate: float) -> None:
        """Every relation: no record's place depends on another's."""

    def _sampled(self, noise_multiplier: float, steps: int, sample_rate: float, relation: Relation) -> Terms:
        epoch = _epoch(sample_rate / self.taken)
        whole, rest = divmod(steps, epoch)
        used = whole * self.taken + min(rest, self.taken)
        run = Run(noise_multiplier, epoch, steps, self.taken) if epoch > self.taken else None
        return Terms(gdp=math.sqrt(used) * relation.sensitivity / noise_multiplier, run=run)

    def chance(self, steps: int, sample_rate: float) -> tuple[float, str]:
        epoch = _epoch(sample_rate / self.taken)
        if self.taken == 1:
            return min(steps / epoch, 1.0), "steps * sample_rate"
        unused = math.prod(max(1 - steps / (epoch - i), 0.0) for i in range(min(self.taken, epoch)))
        return 1 - unused, "the chance of a step in the first epoch,"

    def note(self, relation: Relation) -> str:
        if self.taken > 1:
            return (
                f"random allocation: each record in {self.taken} uniformly random steps of each epoch of"
                f" floor({self.taken}/q), independently of the other records; the upper end is certified, the lower end"
                " too, the exact number is in between"
            )
        return (
            "random allocation: certified for epochs of floor(1/q) steps or more, from the first release on, each"
            " record in one uniformly random step of each epoch, independently of the other records"
        )

    def meaning(self, n: int, sample_rate: float) -> str:
        steps = _epoch(sample_rate / self.taken)
        return f"each record in {self.taken} of every {steps} steps, uniformly at random; batches are secret"

    def batch_size(self, n: int, sample_rate: float) -> None:
        """None; an epoch must have a whole number of steps, so that a batch has q n records on average."""
        steps = self.taken / sample_rate
        if abs(steps - round(steps)) > 1e-9 * steps:
            least, most = (n * self.taken / count for count in (math.ceil(steps), math.floor(steps)))
            rule = f"expected_batch must be {self.taken} n over a whole number of steps with sampling {self.name}"
            raise ValueError(f"{rule}, as {least:.10g} or {most:.10g}; got {sample_rate * n:.10g}")

    def drawer(self, source: random.Random, secret: bytes, n: int, sample_rate: float) -> Callable[[int], Indices]:
        return Allocation(secret, n, _epoch(sample_rate / self.taken), self.taken)


def passes(steps: int, sample_rate: float) -> int:
    """Most batches with a given record, once an epoch at most: ceil(T/floor(1/q)), fewer if incomplete ones count."""
    return -(-steps // _epoch(sample_rate))


def _epoch(sample_rate: float) -> int:
    """floor(1/q); 1/q within 1e-12 of an integer counts as that integer."""
    return math.floor((1 + 1e-12) / sample_rate)


SAMPLINGS: Registry[Sampling] = Registry("sampling")
for _sampling in (_Full(), _Poisson(), _FixedSize(), RandomAllocation(), _FixedOrder()):
    SAMPLINGS.register(_sampling)
for _family in (TruncatedPoisson, CyclicPoisson, RandomAllocation):
    SAMPLINGS.register_family(_family.family, _family.of)


def runnable() -> tuple[str, ...]:
    """The names of those whose batches a run can draw."""
    return tuple(name for name, sampling in SAMPLINGS.items() if sampling.runnable)


def drawn(name: object) -> Sampling:
    """The sampling of that name, whose batches a run can draw. Raises ValueError for any other."""
    found = SAMPLINGS[name] if isinstance(name, str) and ":" in name else None
    return found if found and found.runnable else SAMPLINGS[check.choice("sampling", name, runnable())]
