"""One step of a private loop as a value, and histories of such steps.

    step = Step(noise=12.5, sampling=Poisson(1 / 16), relation="add-remove")
    history = step * 10_000 + Step(noise=20, sampling=FullBatch(), relation="add-remove") * 10

Accountant, calibration, plan, ledger and audit read nothing else. Files and command lines spell a step in words
(`poisson` and 0.0625 for `Poisson(1 / 16)`); `Release` reads and gives those words.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Required, TypedDict, Unpack

from dpzero_theory import check
from dpzero_theory.privacy.composition import Composition, Part
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Sampling, sampling_of

MOST_STEPS = 10**12
"""The largest number of equal steps."""


@dataclass(frozen=True)
class Step:
    """One release: the sum of a batch's clipped contributions plus noise. `step * T` is a history of T of them.

    Args:
        noise: noise multiplier s > 0, the parameter of the noise on the sum over the per-record clip C: its standard
            deviation over C for the Gaussian laws, b/C for Laplace. It is the same number for every relation; with
            replace-one the sum changes by up to 2 C.
        sampling: how the batch is drawn, a value such as `Poisson(1 / 16)` or `FullBatch()`.
        relation: which data sets are neighbours, a `Relation` or its name; there is no default.
        mechanism: the noise law, a name of `mechanism.MECHANISMS`. Noise on integers is `discrete-gaussian:M` or
            `discrete-laplace:M`, M of them to a clip; `discrete-gaussian` has 2^28 of them or more, `laplace` 2^30 or
            more, or real numbers.
        coordinates: K >= 1, how many numbers of a record are released, clipped jointly in L2 norm.

    Raises:
        ValueError: a field outside its range, or a relation or noise law that is not accounted with that sampling.
    """

    noise: float
    sampling: Sampling
    relation: Relation
    mechanism: str = "gaussian"
    coordinates: int = 1

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
    """How batches are drawn and which data sets are neighbours, in words.

    sampling: a name of `sampling.SAMPLINGS` with its arguments, such as `poisson` or `random-allocation:2`, or a
    `Sampling`. relation: the name of a `Relation`. Neither has a default.
    """

    sampling: Required[str | Sampling]
    relation: Required[str]


class Kind(Drawing, total=False):
    """A step but for its noise and its sample rate, in words: `Drawing`, and mechanism and coordinates as of `Step`."""

    mechanism: str
    coordinates: int


class Words(Kind, total=False):
    """A step but for its noise, in words: `Kind`, and sample_rate q in (0, 1], the (expected) batch over n.

    With full batches sample_rate is 1 and may be left out, and so may it where `sampling` is a value, which knows it.
    """

    sample_rate: float | None


def step_of(noise_multiplier: float, words: Words) -> Step:
    """The step that a noise multiplier and words stand for. Raises ValueError naming the word."""
    check.settings(words, Words.__annotations__, Words.__required_keys__)
    noise, drawn = check.real("noise_multiplier", noise_multiplier, above=0), words["sampling"]
    if not isinstance(drawn, Sampling):
        drawn = sampling_of(drawn, words.get("sample_rate"))
    relation = Relation.of(words["relation"])
    return Step(noise, drawn, relation, words.get("mechanism", "gaussian"), words.get("coordinates", 1))


@dataclass(frozen=True, init=False)
class Release:
    """`steps` equal steps: a part of a history. It is made of words, as files and command lines spell a step.

    Where the sampling is a schedule (random-allocation, cyclic-poisson, fixed-order) they are its first T steps: each
    `Release` of a history begins it anew, and two of one step may both be the same record's. A schedule that goes on,
    that of a run which was resumed too, is one `Release` with all its steps; a `ledger.Ledger` counts so.

    Args:
        noise_multiplier: `Step.noise`.
        steps: T >= 1, how many.
        words: sampling, relation, sample_rate, mechanism and coordinates, as of `Words`.

    Raises:
        ValueError: as `Step`, naming these arguments, and for noise so little that so many steps are not accounted.
    """

    step: Step
    steps: int

    def __init__(self, noise_multiplier: float, steps: int, **words: Unpack[Words]) -> None:
        self._set(step_of(noise_multiplier, words), steps)

    @classmethod
    def of(cls, step: Step, steps: int) -> "Release":
        """A number of equal steps. Raises ValueError."""
        found = object.__new__(cls)
        found._set(step, steps)
        return found

    def _set(self, step: Step, steps: int) -> None:
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "steps", check.integer("steps", steps, at_most=MOST_STEPS))
        MECHANISMS[step.mechanism].require_noise(self)

    def with_noise(self, noise_multiplier: float) -> "Release":
        """The same releases with another noise multiplier > 0, which is not checked again."""
        step, found = object.__new__(Step), object.__new__(Release)
        vars(step).update(vars(self.step), noise=noise_multiplier)
        vars(found).update(step=step, steps=self.steps)
        return found

    def with_steps(self, steps: int) -> "Release":
        """The same step another number of times. Raises ValueError."""
        return Release.of(self.step, steps)

    def drawn_as(self, sampling: Sampling) -> "Release":
        """The same number of steps with batches drawn in another way. Raises ValueError."""
        return Release.of(replace(self.step, sampling=sampling), self.steps)

    @property
    def noise_multiplier(self) -> float:
        return self.step.noise

    @property
    def sampling(self) -> str:
        """The word for how batches are drawn; the value is `step.sampling`."""
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
        """The largest change of the sum of a batch that holds the record, in clips."""
        return self.relation.sensitivity

    @cached_property
    def part(self) -> Part:
        """What these releases add to a composition where their noise is Gaussian."""
        return self.step.sampling.part(self.noise_multiplier, self.steps, self.relation)

    @property
    def composition(self) -> Composition:
        """These releases alone, where their noise is Gaussian."""
        return Composition((self.part,), self.relation is Relation.REPLACE_ONE)

    @property
    def batches(self) -> tuple[float, int]:
        """The sample rate of the batches that may hold a given record, and the number of such batches."""
        return self.part.batches or (self.sample_rate, self.steps)


class History(Sequence[Release]):
    """What was released, in order: steps that were made one after another, adaptively, on the same records.

    Histories are added with `+` and repeated with `*`. Equal steps that follow one another are counted together, except
    where the sampling is a schedule (epochs, turns): there each part of a history begins a schedule of its own, so that
    `step * 100 + step * 100` is two runs of 100 steps and `step * 200` one of 200.
    """

    def __init__(self, parts: Iterable[Release] = ()) -> None:
        found: list[Release] = []
        for part in parts:
            if found and found[-1].step == part.step and not part.step.sampling.scheduled:
                part = Release.of(part.step, found.pop().steps + part.steps)
            found.append(part)
        self._parts = tuple(found)

    @property
    def steps(self) -> int:
        """How many steps it has in all."""
        return sum(part.steps for part in self._parts)

    def __getitem__(self, index: int) -> Release:  # type: ignore[override]  # no slices
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
"""What functions take as a history: a step, releases, a history, or several of them in a row."""


def releases_of(history: Steps) -> tuple[Release, ...]:
    """The parts of a history, in whichever form it is given. Raises ValueError for anything else."""
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
