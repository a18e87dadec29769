"""The public settings of a run: how its releases are made and how they move the weights.

A record's difference is how fast its loss changes along a random direction (`dpzero_theory.difference`). A release is
what one step publishes: for each of its K directions the sum of the clipped differences over a batch, with noise. No
file is read or written here.
"""

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Required, TypedDict, Unpack

import numpy as np

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES, Difference
from dpzero_theory.optim.shape import Shape
from dpzero_theory.optim.step.algorithm import ALGORITHMS, Algorithm, Sums
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrated
from dpzero_theory.privacy.mechanism import MECHANISMS, Mechanism
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.sampling import Sampling, sampling_of_run
from dpzero_theory.privacy.step import Step, steps_in
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.theory.problem import Prescription

_MOST_SCALE = 2**56
"""The largest parameter `scale` of the discrete noise on integers. With it the noise, its tail included, still fits
into 64 bits."""
_MOST_STEPS = 10**9
"""The largest number of releases in a plan."""
_MOST_STEP_SIZES = 10**7
"""The largest number of releases in a plan that has a step size for each of them."""
_StepSize = float | Callable[[int], float]
"""The step size alpha >= 0, or a function from a release's number, counted from 0, to it."""


class Target(TypedDict, total=False):
    """The keyword arguments of `Plan.for_target` but n, the number of records; it describes them."""

    sampling: str | Sampling
    relation: str
    target_epsilon: Required[float]
    target_delta: Required[float]
    steps: int
    epochs: float
    expected_batch: float
    clip: float
    step_size: _StepSize
    smoothing: float
    algorithm: str
    noise: str
    direction: str
    directions_per_step: int
    difference: str
    shape: str


REQUIRED = (
    "sampling", "relation", "target_epsilon", "target_delta", "expected_batch", "clip", "step_size", "smoothing",
)  # fmt: skip
"""The settings of `Target` that have no default, beside steps or epochs; `optim.auto` chooses most of them."""


@dataclass(frozen=True)
class Plan:
    """The public settings of a run.

    Attributes:
        step: one release as the accountant counts it, as Step(1.5, Poisson(0.01), "add-remove", "discrete-gaussian").
            Its noise is the parameter (Gaussian: standard deviation) of the noise on the sum over a batch, in units of
            the clip; its mechanism, for dpzero, "discrete-gaussian" or "laplace", as sums are integers in units of
            clip/2^30. Its `coordinates` become directions_per_step. For `mezo`, not private, the `Sampling` alone.
        n: the number of records.
        steps: T, the number of releases in all, from 1 to 10^9.
        clip: C, the L2 norm to which a record's K differences are clipped, together; 0 for mezo, which does not clip.
            A difference is a rate: a change of loss over lambda or 2 lambda, or a derivative along a direction.
        smoothing: lambda > 0, how far a difference shifts the weights; 0 with difference="exact".
        step_sizes: alpha >= 0, as a tuple of one number for all steps, or of T numbers, one for each.
        algorithm: the name of the update rule, `dpzero` or `mezo`.
        direction: the law of the random directions: "rademacher", "gaussian", "sphere", "low-rank" or "low-rank:RANK".
        directions_per_step: K, from 1 to 2^16.
        difference: the name of the rule for differences, `central`, `forward` or `exact`.
        shape: how much longer directions are along one weight than along another, a text that
            `losses.shaping.public_shape` returned; "" for directions that treat all weights alike.

    Raises:
        ValueError: a value outside its range, a `Step` for mezo or none for another algorithm, a mechanism that is not
            the algorithm's, or coordinates, step sizes or a smoothing that do not fit the other settings.
    """

    step: Step | Sampling
    n: int
    steps: int
    clip: float
    smoothing: float
    step_sizes: tuple[float, ...]
    algorithm: str = "dpzero"
    direction: str = "rademacher"
    directions_per_step: int = 1
    difference: str = "central"
    shape: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        rule = self.rule
        DIFFERENCES[self.difference].checked(self.smoothing)
        rule.require(self.direction, self.directions_per_step)
        if self.shape != "":
            Shape(self.shape, self.direction)
        if rule.private != isinstance(self.step, Step):
            kind = "Step" if rule.private else "Sampling"
            raise ValueError(f"step must be a {kind} for {self.algorithm}; got {check.shown(self.step)}")
        if len(self.step_sizes) not in (1, self.steps):
            raise ValueError(f"step_sizes must be 1 or steps = {self.steps} numbers; got {len(self.step_sizes)}")
        # Numpy's numbers become Python's, since a run's file keeps the plan as JSON, which has no others.
        for name, value in {
            "n": check.integer("n", self.n),
            "steps": check.integer("steps", self.steps, at_most=_MOST_STEPS),
            "directions_per_step": int(self.directions_per_step),
            "clip": check.real("clip", self.clip, at_least=0),
            "smoothing": check.real("smoothing", self.smoothing, at_least=0),
            "step_sizes": tuple(check.real("step_size", alpha, at_least=0) for alpha in self.step_sizes),
        }.items():
            object.__setattr__(self, name, value)
        self.sampling.batch_size(self.n)
        if isinstance(self.step, Step):
            law = rule.law(MECHANISMS[self.step.mechanism].noise)
            check.choice("mechanism of step", self.step.mechanism, (law.name,))
            check.integer("directions_per_step", self.directions_per_step, at_most=law.coordinates)
            numbers, given = self.directions_per_step, self.step.coordinates
            if given not in (1, numbers):
                raise ValueError(f"coordinates of step must be {numbers}, as a release has, or left out; got {given}")
            object.__setattr__(self, "step", replace(self.step, coordinates=numbers))
            check.real("noise_multiplier", self.step.noise, above=0, at_most=_MOST_SCALE / rule.levels)
            replace(self.step, steps=self.steps)  # A Step refuses too little noise for so many steps.

    @classmethod
    def for_target(cls, *, n: int, **target: Unpack[Target]) -> "Plan":
        """The plan that is (target_epsilon, target_delta)-DP with the least noise.

        Args:
            n: the number of records.
            target: the following settings. Those from target_epsilon to sampling must be given, but of steps and epochs
                only one; the others have defaults.
            target_epsilon: epsilon > 0.
            target_delta: 0 < delta < 1 (Laplace: also 0, for pure target_epsilon).
            steps: T >= 1.
            epochs: above 0, the passes over the records: a step is expected_batch / n of one, and T is rounded up.
            expected_batch: q n, the expected number of records in a batch, where q is the sample rate: n for full
                batches, any number in (0, n] for Poisson batches, an integer for fixed-size ones, k n/m for
                random-allocation:k with epochs of m steps; for others see their classes in `privacy.sampling`.
            clip: C > 0, the L2 norm to which a record's K differences are clipped, together.
            step_size: alpha >= 0, or a function of the release's number, 0 to T - 1, that returns it. A release moves
                the weights by -alpha times the mean over its K directions u of (released average along u) u. The step
                size must not depend on the records.
            smoothing: lambda > 0, how far a difference shifts the weights along u; 0 with difference="exact".
            relation: which data sets are neighbours. One record has another value in one of them (`replace-one`), is
                missing (`add-remove`), or adds nothing (`zero-out`).
            sampling: how batches are drawn, a `Sampling` or its name: "full", "poisson", "truncated-poisson:B/n" (at
                most B), "cyclic-poisson:B" (B groups take turns), "fixed-size", or "random-allocation:k" (each record
                in k random steps of every m; ":k" is left out for 1), where m follows from expected_batch.
            algorithm: the name of a private algorithm in `step.algorithm.ALGORITHMS`; `dpzero` if left out.
            noise: `gaussian` (the default), or `laplace`, which has a pure epsilon too.
            direction: a name of `sphere.DIRECTIONS`, or `low-rank:RANK`; `rademacher`, random signs, if left out.
            directions_per_step: K, from 1 to 2^16; 1 if left out.
            difference: `central` (the default), `forward` or `exact` (`dpzero_theory.difference`).
            shape: how much longer directions are along one weight than along another, a text that
                `losses.shaping.public_shape` returned for public records; "" (the default) for none. Not with the
                direction `sphere`.

        Raises:
            ValueError: an argument that is unknown, missing or outside its range, arguments that do not fit together
                (as in `Plan`), or a target that needs more noise than a plan can have.
            PreconditionError: every noise, however little, meets the target, since a record is used at all with
                probability at most delta (`dpzero_theory.calibrate`); there is then no least noise.
        """
        check.settings(target, Target.__annotations__, REQUIRED)
        given: Any = {"algorithm": "dpzero", "noise": "gaussian", **target}
        for name, known in (("algorithm", ALGORITHMS), ("direction", DIRECTIONS), ("difference", DIFFERENCES)):
            if not isinstance(given.get(name, ""), str):  # A list, for example, cannot be looked up.
                check.choice(name, given[name], tuple(known))
        take = given.pop
        if ("steps" in given) == ("epochs" in given):
            raise ValueError(
                f"steps or epochs must be given, and not both; got {'both' if 'steps' in given else 'none'}"
            )
        if "epochs" in given:
            given["steps"] = steps_in(take("epochs"), n, check.real("expected_batch", given["expected_batch"], above=0))
        rule = _private_algorithm(given["algorithm"])
        law = rule.law(take("noise"))
        goal, delta = check.real("target_epsilon", take("target_epsilon"), above=0), take("target_delta")
        batches = sampling_of_run(take("sampling"), _rate(n, take("expected_batch")))
        alphas = _step_sizes(take("step_size"), given["steps"])
        # A plan with the most noise is made first, so that what does not fit is refused before seconds of calibration.
        most = _MOST_SCALE / rule.levels
        check.real("clip", given["clip"], above=0)
        found = cls(Step(most, batches, take("relation"), law.name), n=n, step_sizes=alphas, **given)
        try:
            noise = calibrated(replace(found.release, steps=found.steps), goal, delta).upper
        except ArithmeticError as error:
            raise ValueError(f"target_epsilon must be within the accountant's reach; got {goal:g}") from error
        if not noise <= most:
            raise ValueError(f"target_epsilon must be met with a noise multiplier <= {most:g}; got {goal:g}: {noise:g}")
        return replace(found, step=replace(found.release, noise=noise))

    @classmethod
    def from_prescription(cls, prescription: Prescription) -> "Plan":
        """Return the plan of a run with the parameters that a theorem prescribes (`theory.problem.Prescription`).

        Raises ValueError if the prescribed algorithm is not one of a `Plan`, such as dpgd-0th, or a prescribed value is
        outside a plan's range.
        """
        p = prescription
        noise = check.real("noise_multiplier", p.noise_multiplier, above=0)
        law = _private_algorithm(p.algorithm).law("gaussian")
        same = ("n", "steps", "clip", "smoothing", "algorithm", "direction", "directions_per_step", "difference")
        return cls(
            Step(noise, sampling_of_run(p.sampling, p.sample_rate), p.relation, law.name),
            step_sizes=(p.step_size,),
            **{name: getattr(p, name) for name in same},
        )

    @classmethod
    def without_privacy(
        cls, *, n: int, expected_batch: float, sampling: str, step_size: _StepSize, steps: int, **settings: Any
    ) -> "Plan":
        """Return the plan of MeZO: the same step as DPZero's without clip and without noise, which is not private.

        The arguments are those of `for_target` with the same names. `settings` must have smoothing, and may have
        direction, directions_per_step, difference and shape. Raises ValueError for an argument outside its range, and
        TypeError for one that is unknown or missing.
        """
        sizes, batches = _step_sizes(step_size, steps), sampling_of_run(sampling, _rate(n, expected_batch))
        return cls(batches, n=n, steps=steps, clip=0.0, step_sizes=sizes, algorithm="mezo", **settings)

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are not pickled, since the process that loads the plan can compute them again.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def rule(self) -> Algorithm:
        """The plan's algorithm: how a record's differences become what is summed."""
        return ALGORITHMS[self.algorithm]

    @cached_property
    def difference_rule(self) -> Difference:
        """The rule by which a record's K differences are computed: from its losses at shifted weights or, for the exact
        rule, as derivatives."""
        return DIFFERENCES[self.difference]

    @property
    def sampling(self) -> Sampling:
        """The sampling: how batches are drawn from the n records."""
        return self.step.sampling if isinstance(self.step, Step) else self.step

    @property
    def relation(self) -> str:
        """Which data sets are neighbours, such as "add-remove"; empty for mezo, which is not private."""
        return str(self.step.relation) if isinstance(self.step, Step) else ""

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise on a batch's sum (for Laplace noise its scale b), divided by the clip; 0
        for mezo."""
        return self.step.noise if isinstance(self.step, Step) else 0.0

    @cached_property
    def law(self) -> Mechanism | None:
        """The law of the noise; None if there is no noise, as for `mezo`."""
        return MECHANISMS[self.step.mechanism] if isinstance(self.step, Step) else None

    @cached_property
    def scale(self) -> int:
        """The parameter of the discrete noise (sigma of a Gaussian, b of a Laplace law) that is added to the sum of
        integers over a batch, rounded up to an integer; 0 for mezo."""
        return int(self.law.scale(self.noise_multiplier, self.rule.levels)) if self.law else 0

    @cached_property
    def row(self) -> struct.Struct:
        """The format of the K sums of a release in the run's file: little-endian int64, or float64 for `mezo`."""
        return struct.Struct(f"<{self.directions_per_step}{'q' if self.rule.levels else 'd'}")

    @cached_property
    def expected_batch(self) -> float:
        """The expected number of records in a batch, by which the sum over a batch is divided."""
        return self.sampling.sample_rate * self.n

    @cached_property
    def unit(self) -> float:
        """What 1 in a released sum adds to the released average, which is the sum of the records' clipped differences
        (rates of change of their losses) with noise, divided by `expected_batch`: so the released sum, an integer for
        private algorithms, times this number is the released average. It is `Algorithm.unit` over `expected_batch`."""
        return self.rule.unit(self.clip) / self.expected_batch

    def step_size(self, release: int) -> float:
        """Return the step size of the release with this number, counted from 0."""
        return self.step_sizes[release if len(self.step_sizes) > 1 else 0]

    def noisy(self, total: Sums, source: NoiseSource) -> Sums:
        """Return `total`, a step's K sums over the whole batch, shape (K,), with noise from `source`; mezo: without.

        Call this once a step, and never with the sums over a part of the batch.
        """
        return total if self.law is None else total + self.law.draw(source, self.scale, total.shape)

    def moves(self, release: int, sums: Iterable[float]) -> list[tuple[int, float]]:
        """Return how a release moves the weights, as pairs (number of a direction u, amount): they change by the sum
        over the pairs of amount * u, which is -alpha times the mean over the K directions of (sum * `unit`) u.

        Directions are numbered through the whole run, from release * K on. `release` is the release's number, from 0,
        and `sums` are its K released sums.
        """
        k = self.directions_per_step
        amount = -self.step_size(release) / k * self.unit
        return [(release * k + index, amount * float(total)) for index, total in enumerate(sums)]

    @property
    def release(self) -> Step:
        """One release of the plan as the accountant counts it: the attribute `step`, which is then a `Step`. Raises
        ValueError for mezo, which is not private and whose `step` is a `Sampling`."""
        _private_algorithm(self.algorithm)
        assert isinstance(self.step, Step)
        return self.step

    def epsilon(self, delta: float) -> Bracket:
        """Return bounds of the least epsilon for which all releases of the plan together are (epsilon, delta)-DP.

        The upper one is safe to state. Raises ValueError unless 0 < delta < 1 (Laplace: 0 <= delta), and for mezo.
        """
        return epsilon_of_history(replace(self.release, steps=self.steps), delta)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as values that JSON has, by the names of the arguments of `for_target`, but with sample_rate in
        the place of expected_batch, and noise_multiplier in the place of target_epsilon and target_delta."""
        of_step = {
            "algorithm": self.algorithm,
            "noise": self.law.noise if self.law else "none",
            "relation": self.relation,
            "sampling": self.sampling.word,
            "n": self.n,
            "sample_rate": self.sampling.sample_rate,
            "steps": self.steps,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
        }
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "step"}
        return of_step | rest | {"step_sizes": list(self.step_sizes)}

    @classmethod
    def from_settings(cls, found: dict[str, Any]) -> "Plan":
        """Return the plan whose attribute `settings` is the dictionary `found`. Raises ValueError, TypeError or
        KeyError for anything else."""
        values = dict(check.entries("the plan", found, _SETTINGS))
        take = values.pop
        step: Any = sampling_of_run(take("sampling"), take("sample_rate"))
        noise, relation, multiplier = take("noise"), take("relation"), take("noise_multiplier")
        if ALGORITHMS[values["algorithm"]].private:
            step = Step(multiplier, step, relation, ALGORITHMS[values["algorithm"]].law(noise).name)
        return cls(step, **{**values, "step_sizes": tuple(values["step_sizes"])})

    def require_same(self, other: "Plan", of: str = "the run that is resumed") -> None:
        """Raise ValueError, naming the first setting that differs by more than rounding, unless this plan is `other`.

        `of` says in the message whose plan `other` is.
        """
        others = other.settings
        for name, mine in self.settings.items():
            begun = others[name]
            # Another version may calibrate the noise more closely, and a step size's last bit depend on the processor.
            near = name == "noise_multiplier" and math.isclose(mine, begun, rel_tol=1e-6)
            near = near or (
                name == "step_sizes" and len(mine) == len(begun) and np.allclose(mine, begun, 0, 1e-12 * max(begun))
            )
            if mine != begun and not near:
                raise ValueError(f"{name} must be that of {of}, {begun!r:.60}; got {mine!r:.60}")


_SETTINGS: dict[str, type] = {
    **{"noise": str, "relation": str, "sampling": str, "sample_rate": float, "noise_multiplier": float},
    **check.types_of(Plan),
    "step_sizes": list,
}
"""The settings of a plan by the names that users give them, with their types (`Plan.settings`)."""


def _private_algorithm(algorithm: str) -> Algorithm:
    rule = ALGORITHMS[algorithm]
    if not rule.private:
        raise ValueError(f"algorithm must be one that is private; got {algorithm!r}")
    return rule


def _rate(n: int, expected_batch: float) -> float:
    count = check.integer("n", n)
    return check.real("expected_batch", expected_batch, above=0.0, at_most=float(count)) / count


def _step_sizes(step_size: _StepSize, steps: int) -> tuple[float, ...]:
    if not callable(step_size):
        return (check.real("step_size", step_size, at_least=0),)
    count = check.integer("steps", steps, at_most=_MOST_STEP_SIZES)
    return tuple(check.real("step_size", step_size(release), at_least=0) for release in range(count))
