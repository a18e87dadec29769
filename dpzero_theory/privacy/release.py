"""What was released: enough to account for it, and to account for it again.

A history is a sequence of `Release`, each T releases of one kind; `accountant` says what it costs.
"""

from copy import copy
from dataclasses import dataclass
from functools import cached_property

from dpzero_theory import check
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS
from dpzero_theory.privacy.terms import Terms

MOST_STEPS = 10**12


@dataclass(frozen=True, init=False)
class Release:
    """T releases of one kind: each the sum of a batch's clipped contributions plus noise, adaptively.

    noise_multiplier: s > 0, the parameter of the noise on the sum over the per-record clip C: its standard deviation
    over C for the Gaussian laws (with replace-one the sum changes by up to 2 C), b/C for Laplace. steps: T >= 1.
    relation: a value of `relation.Relation`. sampling: a name of `sampling.SAMPLINGS`. sample_rate: q in (0, 1], the
    (expected) batch over n; with full batches it is 1 and may be left out. mechanism: a name of
    `mechanism.MECHANISMS`. coordinates: K >= 1, numbers of a record that are clipped jointly, in L2 norm.

    Raises ValueError for a field outside its range, and for a mechanism or a relation that is not accounted with that
    sampling.
    """

    noise_multiplier: float
    steps: int
    sampling: str
    relation: Relation
    sample_rate: float
    mechanism: str
    coordinates: int

    def __init__(
        self,
        noise_multiplier: float,
        steps: int,
        *,
        sampling: str,
        relation: str,
        sample_rate: float | None = None,
        mechanism: str = "gaussian",
        coordinates: int = 1,
    ) -> None:
        law, kind = MECHANISMS[mechanism], SAMPLINGS[sampling]
        numbers = check.integer("coordinates", coordinates)
        law.require(kind.name, numbers)
        neighbours, rate = Relation.of(relation), kind.rate(sample_rate)
        kind.require(neighbours, rate)
        found = {
            "noise_multiplier": check.real("noise_multiplier", noise_multiplier, above=0),
            "steps": check.integer("steps", steps, at_most=MOST_STEPS),
            "sampling": kind.name,
            "relation": neighbours,
            "sample_rate": rate,
            "mechanism": law.name,
            "coordinates": numbers,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def with_noise(self, noise_multiplier: float) -> "Release":
        """The same releases with another noise multiplier > 0, which is not checked again."""
        other = copy(self)
        vars(other).pop("terms", None)
        object.__setattr__(other, "noise_multiplier", noise_multiplier)
        return other

    @property
    def sensitivity(self) -> int:
        """Largest change of the sum of a batch that holds the record, in clips."""
        return self.relation.sensitivity

    @cached_property
    def terms(self) -> Terms:
        """What these releases add to a composition where their noise is Gaussian."""
        sampling = SAMPLINGS[self.sampling]
        return sampling.terms(self.noise_multiplier, self.steps, self.sample_rate, self.relation)
