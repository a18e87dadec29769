"""What a run does, in numbers that may be published: how releases are made and how they move the weights."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from dpzero_theory import check
from dpzero_theory.optim.sampler import SAMPLINGS
from dpzero_theory.privacy.gaussian import RELATIONS
from dpzero_theory.privacy.releases import Settings
from dpzero_theory.sphere import DIRECTIONS

__all__ = ["ALGORITHMS", "NOISES", "Plan", "step_sizes"]

ALGORITHMS = ("dpzero", "dpgd-0th", "mezo")
"""Algorithm 2 of the paper; Algorithm 1; the first without clip and noise, which is not private."""
NOISES = ("gaussian", "laplace", "none")


@dataclass(frozen=True)
class Plan:
    """The public settings of a run. Raises ValueError for values that do not fit together.

    algorithm: one of `ALGORITHMS`. noise: one of `NOISES`; `none` exactly for mezo, `laplace` only for dpzero.
    relation: one of `RELATIONS`, empty for mezo. sampling, n, sample_rate: as in `sampler.Batches`. steps: T >= 1,
    releases in all. clip: C > 0, of a record's K differences in L2 norm (of its difference times u for dpgd-0th), 0
    for mezo. noise_multiplier: > 0, of the sum over the clip, as `privacy.releases.Settings` (Laplace: as
    `privacy.laplace`), 0 for mezo. levels: integers between 0 and C; scale: parameter of the noise on that lattice;
    both 0 where noise is not discrete. smoothing: lambda > 0. step_sizes: alpha >= 0, one for all steps or one each.
    direction: one of `sphere.DIRECTIONS`, for dpgd-0th one with ||u|| = sqrt(d) always. directions_per_step:
    K >= 1, 1 for laplace and dpgd-0th.
    """

    algorithm: str
    noise: str
    relation: str
    sampling: str
    n: int
    sample_rate: float
    steps: int
    clip: float
    noise_multiplier: float
    levels: int
    scale: int
    smoothing: float
    step_sizes: tuple[float, ...]
    direction: str
    directions_per_step: int

    def __post_init__(self) -> None:
        check.choice("algorithm", self.algorithm, ALGORITHMS)
        check.choice("noise", self.noise, ("none",) if self.algorithm == "mezo" else NOISES[:2])
        check.choice("sampling", self.sampling, SAMPLINGS)
        check.integer("n", self.n)
        check.real("sample_rate", self.sample_rate, above=0, at_most=1)
        check.integer("steps", self.steps, at_most=2**32)
        check.real("smoothing", self.smoothing, above=0)
        usable = [name for name, law in DIRECTIONS.items() if law.fixed_norm or self.algorithm != "dpgd-0th"]
        check.choice("direction", self.direction, usable)
        several = self.noise != "laplace" and self.algorithm != "dpgd-0th"
        check.integer("directions_per_step", self.directions_per_step, at_most=2**16 if several else 1)
        if self.noise == "laplace":
            check.choice("algorithm", self.algorithm, ("dpzero",))
        if self.private:
            check.choice("relation", self.relation, RELATIONS)
            check.real("clip", self.clip, above=0)
            check.real("noise_multiplier", self.noise_multiplier, above=0)
        if len(self.step_sizes) not in (1, self.steps):
            raise ValueError(f"step_sizes must be 1 or steps = {self.steps} numbers; got {len(self.step_sizes)}")
        for alpha in self.step_sizes:
            check.real("step_size", alpha, at_least=0)

    @property
    def private(self) -> bool:
        return self.algorithm != "mezo"

    @property
    def scalars(self) -> int:
        """How many numbers a release has that replay the step: none where the noise is a vector."""
        return 0 if self.algorithm == "dpgd-0th" else self.directions_per_step

    @property
    def discrete(self) -> bool:
        """Whether they are integers; else float64."""
        return self.algorithm == "dpzero"

    @property
    def expected_batch(self) -> float:
        """q n, the denominator of every average."""
        return self.sample_rate * self.n

    @property
    def unit(self) -> float:
        """What 1 in a sum stands for in the average."""
        return (self.clip / self.levels if self.discrete else 1.0) / self.expected_batch

    def step_size(self, release: int) -> float:
        return self.step_sizes[release if len(self.step_sizes) > 1 else 0]

    def moves(self, release: int, sums: Iterable[float]) -> list[tuple[int, float]]:
        """How the sums of a release move the weights, for `Weights.move_`: -alpha/K times each average, along u."""
        k = self.directions_per_step
        factor = -self.step_size(release) / k * self.unit
        return [(release * k + index, factor * float(total)) for index, total in enumerate(sums)]

    def settings(self) -> Settings:
        """What the ledger holds for each release."""
        return Settings(
            n=self.n,
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            clip=self.clip,
            relation=self.relation,
            sampling=self.sampling,
            mechanism=self.noise,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        values = json.loads(text)
        return cls(**{**values, "step_sizes": tuple(values["step_sizes"])})

    def require_same(self, other: "Plan") -> None:
        """Raise ValueError naming the first setting that differs from `other`, the plan that was begun.

        The noise may differ by 1e-6 of itself, which is what another version's calibration might change.
        """
        for field in fields(self):
            mine, begun = getattr(self, field.name), getattr(other, field.name)
            if mine != begun and not (
                field.name in ("noise_multiplier", "scale") and math.isclose(mine, begun, rel_tol=1e-6)
            ):
                shown = (f"{v!r:.60}" for v in (begun, mine))
                raise ValueError("{} must be that of the run that is resumed, {}; got {}".format(field.name, *shown))


def step_sizes(step_size: object, steps: int) -> tuple[float, ...]:
    """A number, or a function of the release's number 0..T-1, as the values of a plan. Raises ValueError."""
    if callable(step_size):
        return tuple(check.real("step_size", step_size(t), at_least=0) for t in range(steps))
    return (check.real("step_size", step_size, at_least=0),)
