"""One step of a private training loop as a value, and histories of such steps.

    step = Step(noise=12.5, sampling=Poisson(1 / 16), relation="add-remove")
    history = step * 10_000 + Step(noise=20, sampling=FullBatch(), relation="add-remove") * 10

`step_of` makes a step from the words and numbers of a file or a command line, such as `poisson` and 0.0625.
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
    """One step of a private training loop, or several equal ones. A step releases the sum of a batch's clipped
    per-record contributions plus noise.

    `step * T` is a `History` of T such steps. With the samplings random-allocation, cyclic-poisson and fixed-order,
    batches follow a schedule. A `Step` stands for the first `steps` steps of a new schedule, also if it is repeated in
    a history. So describe a schedule that goes on, even in a resumed run, by a single `Step`.

    Args:
        noise: the noise multiplier s > 0: the parameter of the noise on the sum, divided by the per-record clip C. The
            parameter is the standard deviation for Gaussian laws (nearly, on integers) and the scale b for Laplace. It
            does not depend on the relation, although under "replace-one" the sum can change by 2 C.
        sampling: how the batch is drawn, a value such as `Poisson(1 / 16)` or `FullBatch()`.
        relation: which data sets are neighbours, a `Relation` or its name; there is no default.
        mechanism: the noise law, a name in `mechanism.MECHANISMS`. "discrete-gaussian:M" and "discrete-laplace:M" are
            noise on integers, where the clip is M integers. "discrete-gaussian" stands for a clip of at least 2^28
            integers. "laplace" stands for continuous Laplace noise, and for a clip of at least 2^30 integers.
        coordinates: the number K >= 1 of values per record, whose vector is clipped to L2 norm C.
        steps: how many equal steps these are, from 1 to 10^12.

    Raises:
        ValueError: a field is outside its range; the accountant knows no bound for the combination, such as
            "add-remove" with a fixed order of batches; or the noise is too small for so many steps.
    """

    noise: float
    sampling: Sampling
    relation: Relation
    mechanism: str = "gaussian"
    coordinates: int = 1
    steps: int = 1

    if TYPE_CHECKING:

        def __init__(
            self, noise: float, sampling: Sampling, relation: Relation | str, mechanism: str = "gaussian",
            coordinates: int = 1, steps: int = 1,
        ) -> None: ...  # fmt: skip

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
        """Returns a copy of these steps with the noise multiplier `noise` > 0, which is not checked."""
        step = object.__new__(type(self))
        vars(step).update(vars(self), noise=noise)
        return step

    def cost(self, size: int = 1, n: int | None = None) -> Cost:
        """Returns the privacy cost of these steps; an infinite cost if no bound is known.

        Args:
            size: the number of records in which the compared data sets may differ, >= 1.
            n: the number of records of the larger data set, or None for a cost that holds for any number.
        """
        return MECHANISMS[self.mechanism].cost(self, size, n)


class Words(TypedDict, total=False):
    """The keyword arguments of `step_of`, which describe a step without its noise; the first two are required.

    Attributes:
        sampling: a name in `sampling.SAMPLINGS` with its arguments, such as "random-allocation:2", or a `Sampling`.
        relation: the name of a `Relation`.
        mechanism: the noise law, a name in `mechanism.MECHANISMS`; by default "gaussian".
        coordinates: the number K >= 1 of values per record that are released; by default 1.
        sample_rate: q in (0, 1], the (expected) number of records in a batch over the number of all records. Leave it
            out for full batches, where it is 1, or if `sampling` is a `Sampling`, which has its own rate.
    """

    sampling: Required[str | Sampling]
    relation: Required[str]
    mechanism: str
    coordinates: int
    sample_rate: float | None


def step_of(noise_multiplier: float, steps: int = 1, **words: Unpack[Words]) -> Step:
    """Makes a `Step` from words and numbers, such as those of a file or a command line.

    Args:
        noise_multiplier: s > 0, the parameter of the noise on a batch's sum, divided by the clip (`Step.noise`).
        steps: the number of equal steps, >= 1.
        words: the arguments sampling, relation, mechanism, coordinates and sample_rate, as `Words` describes them.

    Raises:
        ValueError: an argument is unknown, missing or wrong; the message names it.
    """
    check.settings(words, Words.__annotations__, Words.__required_keys__)
    noise, drawn = check.real("noise_multiplier", noise_multiplier, above=0), words["sampling"]
    if not isinstance(drawn, Sampling):
        drawn = sampling_of(drawn, words.get("sample_rate"))
    kind = words["relation"], words.get("mechanism", "gaussian"), words.get("coordinates", 1)
    return Step(noise, drawn, *kind, steps)


class History(Sequence[Step]):
    """An immutable sequence of the steps `parts` that were made on the same records, in order.

    The function that a step sums over the records may depend on the outputs of earlier steps. The noise, the sampling
    and the number of steps may not; use `filter.Filter` for steps where they do.

    Histories are added with `+` and repeated with `*`. Equal neighbouring steps are merged into one `Step`, unless
    their batches follow a schedule, as with random allocation. Such steps are not merged, because each one starts a new
    schedule: `step * 100 + step * 100` is two runs of 100 steps, and `step * 200` is one run of 200.
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
        """The total number of steps."""
        return sum(part.steps for part in self._parts)

    def __getitem__(self, index: int) -> Step:  # type: ignore[override]  # a history has no slices
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)

    def __add__(self, other: "Step | History") -> "History":
        return History((*self, *steps_of(other)))

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
"""The type of histories as functions take them: a `Step`, a `History`, or an iterable of these, in order."""


def steps_of(history: Steps) -> tuple[Step, ...]:
    """Returns a history, given as a `Step`, a `History` or an iterable of these, as a flat tuple of steps. Raises
    ValueError for anything else."""
    if isinstance(history, Step):
        return (history,)
    if isinstance(history, History):
        return history._parts
    if isinstance(history, Iterable) and not isinstance(history, str | bytes | Mapping):
        return tuple(part for given in history for part in steps_of(given))
    rule = "history must be steps, such as step * 1000, or a sequence of them"
    raise ValueError(f"{rule}; got {check.shown(history)}")


def steps_in(epochs: float, n: int, batch: float) -> int:
    """Returns the number of steps that `epochs` passes over `n` records take with (expected) batch size `batch` > 0,
    rounded up to a whole number. Raises ValueError unless `epochs` is a finite number above 0."""
    exact = check.real("epochs", epochs, above=0) * n / batch
    return math.ceil(exact * (1 - 1e-12))  # a product that rounding has lifted above a whole number is that number
