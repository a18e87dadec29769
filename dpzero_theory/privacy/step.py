"""One step of a private loop as a value, and histories of such steps.

    step = Step(noise=12.5, sampling=Poisson(1 / 16), relation="add-remove")
    history = step * 10_000 + Step(noise=20, sampling=FullBatch(), relation="add-remove") * 10

The accountant, the calibration, the ledger and the audit know a run only through such values. Files and command lines
describe a step in words and numbers (`poisson` and 0.0625 for `Poisson(1 / 16)`), from which `step_of` makes it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Required, Self, TypedDict, Unpack

from dpzero_theory import check
from dpzero_theory.privacy.laws.law import Cost
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Sampling, sampling_of

MOST_STEPS = 10**12  # the largest number of equal steps


@dataclass(frozen=True)
class Step:
    """One step of a private loop, which releases the sum of a batch's clipped contributions plus noise; or several
    equal ones.

    `step * T` is a history of one `Step` with steps = T; of T copies, if `step` has steps > 1. With random-allocation,
    cyclic-poisson and fixed-order, batches follow a schedule, whose first `steps` steps a `Step` stands for. Each one
    and each copy in a history starts it anew. So describe a schedule that goes on, even if resumed, by one `Step`.

    Args:
        noise: noise multiplier s > 0: the parameter of the noise on the sum, divided by the per-record clip C. The
            parameter is the standard deviation for Gaussian laws (nearly, on integers) and the scale b for Laplace. The
            multiplier does not depend on the relation, although with replace-one the sum changes by up to 2 C.
        sampling: how the batch is drawn, a value such as `Poisson(1 / 16)` or `FullBatch()`.
        relation: which data sets are neighbours, a `Relation` or its name; there is no default.
        mechanism: the noise law, a name of `mechanism.MECHANISMS`. `discrete-gaussian:M` and `discrete-laplace:M` are
            noise on integers, where the clip is M units. `discrete-gaussian` stands for a clip of 2^28 units or more,
            and `laplace` for a clip of 2^30 units or more, or for continuous Laplace noise.
        coordinates: K >= 1, how many numbers of a record are released; the vector of them is clipped to L2 norm C.
        steps: how many equal steps these are, from 1 to 10^12.

    Raises:
        ValueError: a field outside its range; a combination for which the accountant knows no bound, such as add-remove
            with a fixed order of batches; or noise too small for so many steps.
    """

    noise: float
    sampling: Sampling
    relation: Relation
    mechanism: str = "gaussian"
    coordinates: int = 1
    steps: int = 1

    if TYPE_CHECKING:

        def __init__(
            self,
            noise: float,
            sampling: Sampling,
            relation: Relation | str,
            mechanism: str = "gaussian",
            coordinates: int = 1,
            steps: int = 1,
        ) -> None: ...

    def __post_init__(self) -> None:
        law = MECHANISMS[self.mechanism]
        if not isinstance(self.sampling, Sampling):
            example = "a value such as Poisson(1/16) or FullBatch()"
            raise ValueError(f"sampling must be {example}; got {check.shown(self.sampling)}")
        set_ = object.__setattr__
        set_(self, "coordinates", check.integer("coordinates", self.coordinates))
        set_(self, "relation", Relation(self.relation))
        set_(self, "mechanism", law.name)
        set_(self, "noise", check.real("noise", self.noise, above=0))
        set_(self, "steps", check.integer("steps", self.steps, at_most=MOST_STEPS))
        law.require(self)
        self.sampling.require(self.relation)

    def __mul__(self, steps: int) -> "History":
        count = check.integer("steps", steps)
        return History([replace(self, steps=count)]) if self.steps == 1 else History([self]) * count

    __rmul__ = __mul__

    def __add__(self, other: "Step | History") -> "History":
        return History((self, *steps_of(other)))

    def with_noise(self, noise: float) -> Self:
        """Return the same steps with another noise multiplier > 0, which is not checked."""
        step = object.__new__(type(self))
        vars(step).update(vars(self), noise=noise)
        return step

    def cost(self, size: int = 1, n: int | None = None) -> Cost:
        """The privacy cost of these steps; infinite if no bound is known.

        Args:
            size: the largest number of records in which the compared data sets differ, >= 1.
            n: the number of records of the larger data set, or None for a cost that holds for any number.
        """
        return MECHANISMS[self.mechanism].cost(self, size, n)


class Words(TypedDict, total=False):
    """The keyword arguments of `step_of`, which describe a step apart from its noise. The first two must be given.

    Attributes:
        sampling: a name of `sampling.SAMPLINGS` with its arguments, as `random-allocation:2`, or a `Sampling`.
        relation: the name of a `Relation`.
        mechanism: the noise law, a name of `mechanism.MECHANISMS`, by default `gaussian`.
        coordinates: K >= 1, how many numbers of a record are released, by default 1.
        sample_rate: q in (0, 1], the (expected) number of records in a batch over the number of all records. It may be
            left out with full batches, where it is 1, and where `sampling` is a `Sampling`, which has its own rate.
    """

    sampling: Required[str | Sampling]
    relation: Required[str]
    mechanism: str
    coordinates: int
    sample_rate: float | None


def step_of(noise_multiplier: float, steps: int = 1, **words: Unpack[Words]) -> Step:
    """Return equal steps from the words that describe one of them.

    Args:
        noise_multiplier: s > 0, the parameter of the noise on a batch's sum, over the clip (`Step.noise`).
        steps: the number of steps, >= 1.
        words: sampling, relation, mechanism, coordinates and sample_rate, which `Words` explains.

    Raises:
        ValueError: an unknown, missing or wrong argument, which the message names, or what `Step` refuses.
    """
    check.settings(words, Words.__annotations__, Words.__required_keys__)
    noise, drawn = check.real("noise_multiplier", noise_multiplier, above=0), words["sampling"]
    if not isinstance(drawn, Sampling):
        drawn = sampling_of(drawn, words.get("sample_rate"))
    kind = words["relation"], words.get("mechanism", "gaussian"), words.get("coordinates", 1)
    return Step(noise, drawn, *kind, steps)


class History(Sequence[Step]):
    """The steps `parts` that were made on the same records, in order.

    The function that a step sums over the records may depend on what the steps before it released. The noise, the
    sampling and the number of steps may not; `filter.Filter` accounts for steps where they do.

    Histories are added with `+` and repeated with `*`. Equal steps that follow one another are counted together, except
    where the sampling follows a schedule (epochs, turns). There each part of a history starts a schedule of its own, so
    that `step * 100 + step * 100` is two runs of 100 steps and `step * 200` is one run of 200.
    """

    def __init__(self, parts: Iterable[Step] = ()) -> None:
        merged: list[Step] = []
        for part in parts:
            if merged and not part.sampling.scheduled and replace(merged[-1], steps=part.steps) == part:
                part = replace(part, steps=part.steps + merged.pop().steps)
            merged.append(part)
        self._parts = tuple(merged)

    @property
    def steps(self) -> int:
        """The number of steps in the whole history."""
        return sum(part.steps for part in self._parts)

    def __getitem__(self, index: int) -> Step:  # type: ignore[override]  # a history has no slices
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)

    def __add__(self, other: "Step | History") -> "History":
        return History((*self, *steps_of(other)))

    def __radd__(self, other: Step) -> "History":
        return History((*steps_of(other), *self))

    def __mul__(self, times: int) -> "History":
        count = check.integer("steps", times)
        if len(self) == 1 and not self[0].sampling.scheduled:
            return History([replace(self[0], steps=self[0].steps * count)])
        return History(self._parts * count)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    def __repr__(self) -> str:
        return " + ".join(f"{replace(part, steps=1)} * {part.steps}" for part in self._parts) or "History()"


Steps = Step | History | Iterable["Step | History"]
"""What functions take as a history: a step, a history, or an iterable of steps and histories, in order."""


def steps_of(history: Steps) -> tuple[Step, ...]:
    """Return a history, a `Step`, a `History` or an iterable of these, as one tuple of steps. Raises ValueError for
    anything else."""
    if isinstance(history, Step):
        return (history,)
    if isinstance(history, History):
        return history._parts
    if isinstance(history, Iterable) and not isinstance(history, str | bytes | Mapping):
        return tuple(part for given in history for part in steps_of(given))
    rule = "history must be steps, such as step * 1000, or a sequence of them"
    raise ValueError(f"{rule}; got {check.shown(history)}")


def steps_in(epochs: float, n: int, batch: float) -> int:
    """Return the number of steps in which batches of (expected) size `batch` > 0 add up to `epochs` times n records.

    The number is rounded up to a whole one. Raises ValueError unless `epochs` is a finite number above 0.
    """
    exact = check.real("epochs", epochs, above=0) * n / batch
    return math.ceil(exact * (1 - 1e-12))  # a product that rounding has lifted above a whole number is that number
