"""What a training loop claims, and what whoever attacks it sees."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dpzero_theory import check
from dpzero_theory.privacy.gaussian import noise_std_of
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS
from dpzero_theory.privacy.step import Release

AVERAGES = ("mean", "sum")
SEEDS = ("public", "secret")
RECORDS = ("any", "finite")
HIDDEN = ("batches", "clean")
"""Outputs that are for the auditor alone."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The mechanism as its author states it.

    epsilon > 0, delta in [0, 1): of the whole run. relation: of `privacy.Relation`. sampling: of
    `privacy.sampling.SAMPLINGS`. n: records. batch: (expected) size, at most n. steps: T. noise_multiplier: standard
    deviation of the Gaussian noise on the sum of a batch, in clips. clip: C, what one record adds at most in L2 norm to
    that sum, all numbers of a step together. average: a release is that noised sum over `batch` (`mean`) or the noised
    sum itself (`sum`). coordinates: numbers a step releases. Raises ValueError in one line.
    """

    epsilon: float
    delta: float
    relation: str
    sampling: str
    n: int
    batch: float
    steps: int
    noise_multiplier: float
    clip: float
    average: str = "mean"

    def __post_init__(self) -> None:
        check.real("epsilon", self.epsilon, above=0)
        check.real("delta", self.delta, at_least=0, below=1)
        Relation.of(self.relation)
        check.choice("sampling", self.sampling, tuple(SAMPLINGS))
        check.integer("n", self.n)
        check.real("batch", self.batch, above=0, at_most=self.n)
        check.integer("steps", self.steps, at_most=10**9)
        check.real("noise_multiplier", self.noise_multiplier, above=0)
        check.real("clip", self.clip, above=0)
        check.choice("average", self.average, AVERAGES)
        if self.sampling == "full" and self.batch != self.n:
            raise ValueError(f"batch must be n = {self.n} with sampling full; got {self.batch:g}")

    @property
    def sample_rate(self) -> float:
        return self.batch / self.n

    def unit(self, batch: float | None = None) -> float:
        """What a contribution of one clip adds to a release, at the claim's (expected) batch or at another one."""
        return self.clip / (self.batch if batch is None else batch) if self.average == "mean" else self.clip

    def noise_std(self, batch: float | None = None) -> float:
        """The standard deviation of the noise on a release."""
        return noise_std_of(self.noise_multiplier, self.unit(batch), 1)

    def release(self, sampling: str | None = None) -> Release:
        """For the accountant, under this or another way to draw batches. Raises ValueError."""
        kind = sampling or self.sampling
        rate = 1.0 if kind == "full" else self.sample_rate
        return Release(self.noise_multiplier, self.steps, sampling=kind, relation=self.relation, sample_rate=rate)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class View:
    """What is not secret, beside what the loop returns and writes.

    Attributes:
        seed: `public` where the loop's seed may be known: it stands in a configuration file, is a default, or is a
            number small enough to be searched (torch keeps 32 bits). `secret` where it has the entropy of a key and is
            never shown.
        records: `finite` where something before the loop refuses NaN and infinity record by record, else `any`.
        hidden: names of outputs that nobody sees.
        names: the loop's names of settings, by ours, as in {"step_size": "lr"}.
    """

    seed: str = "public"
    records: str = "any"
    hidden: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check.choice("seed", self.seed, SEEDS)
        check.choice("records", self.records, RECORDS)

    def sees(self, name: str) -> bool:
        """Whether an output of this name is shown."""
        return name not in HIDDEN and name not in self.hidden
