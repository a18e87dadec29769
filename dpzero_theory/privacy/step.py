"""One step of a private loop as a value, and histories of such steps.

    step = Step(noise=12.5, sampling=Poisson(1 / 16), relation="add-remove")
    history = step * 10_000 + Step(noise=20, sampling=FullBatch(), relation="add-remove") * 10

The accountant, the calibration, the ledger and the audit know a run only through such values. Files and command lines
describe a step in words and numbers (`poisson` and 0.0625 for `Poisson(1 / 16)`), from which `Release` makes the step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

from dpzero_theory import check
from dpzero_theory.privacy.cost import Cost
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Sampling, sampling_of

MOST_STEPS = 10**12
"""The largest number of equal steps that one `Release` may have."""


@dataclass(frozen=True)
class Step:
    """One step of a private loop, which releases the sum of a batch's clipped contributions plus noise.

    `step * T` is a history of T such steps.

    Args:
        noise: noise multiplier s > 0: the parameter of the noise on the sum, divided by the per-record clip C. The
            parameter is the standard deviation for Gaussian laws and the scale b for Laplace. The multiplier does not
            depend on the relation, although with replace-one the sum changes by up to 2 C.
        sampling: how the batch is drawn, a value such as `Poisson(1 / 16)` or `FullBatch()`.
        relation: which data sets are neighbours, a `Relation` or its name; there is no default.
        mechanism: the noise law, a name of `mechanism.MECHANISMS`. `discrete-gaussian:M` and `discrete-laplace:M` are
            noise on integers, where the clip is M units. `discrete-gaussian` stands for a clip of 2^28 units or more,
            and `laplace` for one of 2^30 units or more, or for noise that is a real number.
        coordinates: K >= 1, how many numbers of a record are released; the vector of them is clipped to L2 norm C.

    Raises:
        ValueError: a field outside its range, or a relation or noise law for which the accountant knows no bound with
            that sampling, such as add-remove with a fixed order of batches.
    """

    noise: float
    sampling: Sampling
    relation: Relation
    mechanism: str = "gaussian"
    coordinates: int = 1

    if TYPE_CHECKING:

        def __init__(
            self,
            noise: float,
            sampling: Sampling,
            relation: Relation | str,
            mechanism: str = "gaussian",
            coordinates: int = 1,
        ) -> None: ...

    def __post_init__(self) -> None:
        law = MECHANISMS[self.mechanism]
        if not isinstance(self.sampling, Sampling):
            example = "a value such as Poisson(1/16) or FullBatch()"
            raise ValueError(f"sampling must be {example}; got {check.shown(self.sampling)}")
        numbers = check.integer("coordinates", self.coordinates)
        law.require(self.sampling.word, numbers)
        relation = Relation.of(self.relation)
        self.sampling.require(relation)
        object.__setattr__(self, "noise", check.real("noise", self.noise, above=0))
        object.__setattr__(self, "relation", relation)
        object.__setattr__(self, "mechanism", law.name)
        object.__setattr__(self, "coordinates", numbers)

    def __mul__(self, steps: int) -> "History":
        return History((Release.of(self, steps),))

    __rmul__ = __mul__

    def __add__(self, other: "Step | History") -> "History":
        return self * 1 + other


class Drawing(TypedDict):
    """How batches are drawn and which data sets are neighbours, as keyword arguments.

    sampling: a name of `sampling.SAMPLINGS` with its arguments, such as `poisson` or `random-allocation:2`, or a
    `Sampling`. relation: the name of a `Relation`. Both must be given.
    """

    sampling: Required[str | Sampling]
    relation: Required[str]


class Kind(Drawing, total=False):
    """What a step is apart from its noise and its sample rate, as keyword arguments.

    They are sampling and relation of `Drawing`, and optionally mechanism (the noise law's name, by default `gaussian`)
    and coordinates (K >= 1 numbers released of a record, by default 1).
    """

    mechanism: str
    coordinates: int


class Words(Kind, total=False):
    """What a step is apart from its noise, as keyword arguments: those of `Kind`, and sample_rate.

    sample_rate is q in (0, 1], the (expected) number of records in a batch divided by the number of all records. It may
    be left out with full batches, where it is 1, and where `sampling` is a `Sampling`, which has its own rate.
    """

    sample_rate: float | None


def step_of(noise_multiplier: float, words: Words) -> Step:
    """The step with this noise multiplier s > 0 that the keyword arguments `words` describe.

    Raises ValueError, which names the argument at fault.
    """
    check.settings(words, Words.__annotations__, Words.__required_keys__)
    noise, drawn = check.real("noise_multiplier", noise_multiplier, above=0), words["sampling"]
    if not isinstance(drawn, Sampling):
        drawn = sampling_of(drawn, words.get("sample_rate"))
    relation = Relation.of(words["relation"])
    return Step(noise, drawn, relation, words.get("mechanism", "gaussian"), words.get("coordinates", 1))


@dataclass(frozen=True, init=False)
class Release:
    """A number of equal steps, a part of a history. It is made from the words by which files and command lines describe
    a step.

    With random-allocation, cyclic-poisson and fixed-order, batches follow a schedule, and these are its first `steps`
    steps. Each `Release` of a history starts the schedule anew, so that one record may be used in a step of each. A
    schedule that goes on, also after a run was resumed, is therefore one `Release` with all its steps, and a
    `ledger.Ledger` counts so.

    Args:
        noise_multiplier: s > 0, the parameter of the noise on a batch's sum, over the clip (`Step.noise`).
        steps: the number of steps, >= 1.
        words: sampling, relation, sample_rate, mechanism and coordinates, as of `Words`.

    Raises:
        ValueError: an argument outside its range, a relation or noise law that `Step` refuses with that sampling, or
            noise too small for the accountant to bound so many steps.
    """

    step: Step
    steps: int

    def __init__(self, noise_multiplier: float, steps: int, **words: Unpack[Words]) -> None:
        self._set(step_of(noise_multiplier, words), steps)

    @classmethod
    def of(cls, step: Step, steps: int) -> "Release":
        """The release of `steps` >= 1 steps equal to `step`. Raises ValueError for a number of steps outside its
        range."""
        release = object.__new__(cls)
        release._set(step, steps)
        return release

    def _set(self, step: Step, steps: int) -> None:
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "steps", check.integer("steps", steps, at_most=MOST_STEPS))
        MECHANISMS[step.mechanism].require_noise(step, self.steps)

    def with_noise(self, noise_multiplier: float) -> "Release":
        """The same steps with another noise multiplier > 0, which the caller has checked."""
        step, release = object.__new__(Step), object.__new__(Release)
        vars(step).update(vars(self.step), noise=noise_multiplier)
        vars(release).update(step=step, steps=self.steps)
        return release

    def with_steps(self, steps: int) -> "Release":
        """The same step made `steps` times instead. Raises ValueError for a number outside its range."""
        return Release.of(self.step, steps)

    def drawn_as(self, sampling: Sampling) -> "Release":
        """The same number of steps with batches drawn as `sampling` says. Raises ValueError where such steps are not
        accounted."""
        return Release.of(replace(self.step, sampling=sampling), self.steps)

    @property
    def noise_multiplier(self) -> float:
        return self.step.noise

    @property
    def sampling(self) -> str:
        """The word for how batches are drawn, such as `poisson`. The sampling as a value is `step.sampling`."""
        return self.step.sampling.word

    @property
    def sample_rate(self) -> float:
        return self.step.sampling.sample_rate

    @property
    def relation(self) -> Relation:
        return self.step.relation

    @property
    def mechanism(self) -> str:
        return self.step.mechanism

    @property
    def coordinates(self) -> int:
        return self.step.coordinates

    @property
    def sensitivity(self) -> int:
        """The largest change that one record of the batch can make to the batch's sum between neighbours, in clips: 2
        under replace-one, else 1."""
        return self.relation.sensitivity

    @property
    def cost(self) -> Cost:
        """What these steps cost."""
        return MECHANISMS[self.step.mechanism].cost(self.step, self.steps)

    def group_cost(self, size: int, n: int | None) -> Cost | None:
        """What these steps cost data sets that differ in up to `size` of n records; None if it is not known."""
        return MECHANISMS[self.step.mechanism].group_cost(self.step, self.steps, size, n)


class History(Sequence[Release]):
    """The steps that were made on the same records, in order. What a step asks of the records may depend on what the
    steps before it released; its noise, its batches and the number of steps may not (`filter.Filter` is for those).

    Histories are added with `+` and repeated with `*`. Equal steps that follow one another are counted together, except
    where the sampling follows a schedule (epochs, turns). There each part of a history, a `Release`, starts a schedule
    of its own, so that `step * 100 + step * 100` is two runs of 100 steps and `step * 200` is one run of 200.
    """

    def __init__(self, parts: Iterable[Release] = ()) -> None:
        merged: list[Release] = []
        for part in parts:
            if merged and merged[-1].step == part.step and not part.step.sampling.scheduled:
                part = Release.of(part.step, merged.pop().steps + part.steps)
            merged.append(part)
        self._parts = tuple(merged)

    @property
    def steps(self) -> int:
        """The number of steps in the whole history."""
        return sum(part.steps for part in self._parts)

    def __getitem__(self, index: int) -> Release:  # type: ignore[override]  # a history has no slices
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)

    def __add__(self, other: "Step | History") -> "History":
        return History((*self, *releases_of(other)))

    def __radd__(self, other: Step) -> "History":
        return History((*releases_of(other), *self))

    def __mul__(self, times: int) -> "History":
        count = check.integer("times", times)
        if len(self) == 1 and not self[0].step.sampling.scheduled:
            return History((self[0].with_steps(self[0].steps * count),))
        return History(self._parts * count)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    def __repr__(self) -> str:
        return " + ".join(f"{part.step} * {part.steps}" for part in self._parts) or "History()"


Steps = Step | Release | History | Iterable["Step | Release | History"]
"""The types that functions take as a history. They are a step, a release, a history, or an iterable of these, in
order."""


def releases_of(history: Steps) -> tuple[Release, ...]:
    """The releases that make up a history, which may have any form of `Steps`. Raises ValueError for anything else."""
    if isinstance(history, Release):
        return (history,)
    if isinstance(history, Step):
        return (Release.of(history, 1),)
    if isinstance(history, History):
        return tuple(history)
    if isinstance(history, Iterable) and not isinstance(history, str | bytes | Mapping):
        return tuple(part for given in history for part in releases_of(given))
    rule = "history must be steps, such as step * 1000, or a sequence of them"
    raise ValueError(f"{rule}; got {check.shown(history)}")
