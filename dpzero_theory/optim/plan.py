"""The `Plan` of a training run: all its settings, which are public. No file is read or written here.

A run has T steps. Each step draws K random directions u, vectors with one coordinate for each trained weight, and a
batch of records. A record's *differences* are K numbers: the rates at which its loss changes along the directions. The
step clips every record's differences, sums them over the batch, adds noise, and publishes the K noisy sums. This
publication is the step's *release*. The weights then move along the directions.
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
"""The largest scale parameter (for Gaussian noise the standard deviation) of the integer noise that is added to a sum
of integers. With it the noise, including its tails, still fits into 64 bits."""
_MOST_STEPS = 10**9
"""The largest number of steps in a plan."""
_MOST_STEP_SIZES = 10**7
"""The largest number of steps in a plan whose step size is given as a function."""
_StepSize = float | Callable[[int], float]
"""A step size alpha >= 0 for all steps, or a function from the index of a step, counted from 0, to its alpha."""


class Target(TypedDict, total=False):
    """Keyword arguments of `Plan.for_target`, whose docstring describes them. Only its argument n is not among them."""

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
"""The names of the arguments that `Plan.for_target` always requires. It also requires one of steps and epochs."""


@dataclass(frozen=True)
class Plan:
    """The public settings of a training run of T steps on n records.

    A record's K differences in a step are the rates at which its loss changes along the step's K random directions. A
    step clips them, sums them over a batch, adds noise, and moves the weights along the directions.

    Attributes:
        step: how the accountant sees one step, for example Step(1.5, Poisson(0.01), "add-remove", "discrete-gaussian"):
            the noise multiplier, the way in which batches are drawn, the neighbouring relation and the law of the
            noise. The noise multiplier is the noise's parameter (Gaussian: standard deviation, Laplace: scale) divided
            by `clip`. With the algorithm "dpzero" the law must be "discrete-gaussian" or "laplace". The plan sets the
            step's `coordinates` to directions_per_step. With "mezo", not private, it is only a `Sampling`.
        n: the number of records, >= 1.
        steps: T, from 1 to 10^9.
        clip: C, the largest L2 norm of the vector of one record's K differences, in loss per length; longer vectors are
            shortened to it. 0 with "mezo", which does not clip.
        smoothing: lambda > 0, the distance by which the weights are shifted along a direction to measure a difference;
            0 if `difference` is "exact".
        step_sizes: alpha >= 0, a tuple of one number for all steps, or of T numbers, one for each step.
        algorithm: the name of the algorithm, "dpzero" or "mezo".
        direction: the distribution of the random directions: "rademacher" (random signs), "gaussian", "sphere"
            (uniform), "low-rank" or "low-rank:RANK" (on a weight matrix, a sum of RANK outer products of sign vectors).
        directions_per_step: K, from 1 to 2^16.
        difference: how a record's differences are computed: "central" or "forward" finite differences, or "exact" ones.
        shape: a text, returned by `losses.shaping.public_shape`, that makes directions longer along some weights than
            along others; "" for directions that treat all weights alike.

    Raises:
        ValueError: a value is outside its range; `step` is a `Step` with "mezo", or none with "dpzero"; or `step`,
            `step_sizes`, `smoothing` or `shape` does not fit the other settings.
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
        # Converts numpy's numbers to Python's, because a run's file stores the plan as JSON.
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
        """Return the plan that is (target_epsilon, target_delta)-DP with the least noise.

        Args:
            n: the number of records, >= 1.
            target: the keyword arguments below. Exactly one of steps and epochs must be given. The arguments whose
                description names a default may be left out, and all others must be given.
            target_epsilon: epsilon > 0 of all T steps together.
            target_delta: delta of all T steps together, 0 < delta < 1; with noise="laplace" also 0.
            steps: T, the number of steps, from 1 to 10^9.
            epochs: the number of passes over the records, > 0: T is epochs * n / expected_batch, rounded up.
            expected_batch: the expected number of records in a batch, in (0, n]: n for full batches, any number for
                Poisson batches, an integer for batches of fixed size, and k n/m for "random-allocation:k" with epochs
                of m steps. The classes in `privacy.sampling` describe other samplings.
            clip: C > 0, the largest L2 norm of the vector of one record's K differences (the rates at which its loss
                changes along the step's K directions); longer vectors are shortened to it.
            step_size: alpha >= 0, or a function that takes the index of a step, 0 to T - 1, and returns its alpha. A
                step moves the weights by -alpha times the mean, over its K directions u, of (noisy average of the
                records' clipped differences along u) times u. The step size must not depend on the records.
            smoothing: lambda > 0, the distance by which the weights are shifted along a direction to measure a
                difference; 0 with difference="exact".
            relation: which data sets are neighbours. They differ in one record, which has another value in one of them
                ("replace-one"), is missing from one ("add-remove"), or contributes nothing in one ("zero-out").
            sampling: how batches are drawn, a `Sampling` or its name: "full"; "poisson"; "truncated-poisson:B/n", such
                as "truncated-poisson:64/1000" for n = 1000 (Poisson batches of at most B records); "cyclic-poisson:B"
                (B groups of records take turns); "fixed-size"; or "random-allocation:k" (each record is in k random
                steps of every m; "random-allocation" means k = 1), where m follows from expected_batch.
            algorithm: the name of a private algorithm in `step.algorithm.ALGORITHMS`; by default "dpzero".
            noise: "gaussian", the default, or "laplace", with which target_delta may be 0.
            direction: the distribution of the random directions: "rademacher" (random signs, the default), "gaussian",
                "sphere" or "low-rank:RANK" (on a weight matrix, a sum of RANK outer products of sign vectors).
            directions_per_step: K, the number of directions in a step, from 1 to 2^16; by default 1.
            difference: how a record's differences are computed: "central" (the default) or "forward" finite
                differences, or "exact" derivatives.
            shape: a text, returned by `losses.shaping.public_shape` for public records, that makes directions longer
                along some weights than along others; by default "", which treats all weights alike. It cannot be
                combined with the direction "sphere".

        Raises:
            ValueError: an argument is unknown, missing or outside its range; arguments do not fit together; or the
                target needs more noise than a plan can have.
            PreconditionError: there is no least noise, because any noise, however little, meets the target: the
                probability that a given record is used at all is at most delta.
        """
        check.settings(target, Target.__annotations__, REQUIRED)
        given: Any = {"algorithm": "dpzero", "noise": "gaussian", **target}
        for name, known in (("algorithm", ALGORITHMS), ("direction", DIRECTIONS), ("difference", DIFFERENCES)):
            if not isinstance(given.get(name, ""), str):  # A list, for example, is no key of a mapping.
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
        # A plan with the most noise is made first: it refuses bad settings before the calibration, which takes seconds.
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
        """Return the plan of a run with the parameters that a theorem prescribes. Raises ValueError if no plan can have
        the prescribed algorithm (such as "dpgd-0th") or one of the prescribed values."""
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
        """Return a plan for MeZO: the steps of DPZero without clipping and without noise. It is not private.

        A batch has expected_batch of the n records on average, drawn as `sampling` says, such as "full", "poisson" or
        "fixed-size". step_size is alpha >= 0, or a function from the index of a step, 0 to `steps` - 1, to its alpha.
        `settings` are attributes of `Plan`: smoothing, which is required, direction, directions_per_step, difference
        and shape. Raises ValueError for an argument outside its range, and TypeError for an unknown or missing one.
        """
        sizes, batches = _step_sizes(step_size, steps), sampling_of_run(sampling, _rate(n, expected_batch))
        return cls(batches, n=n, steps=steps, clip=0.0, step_sizes=sizes, algorithm="mezo", **settings)

    def __getstate__(self) -> dict[str, Any]:
        # Leaves cached properties out of pickles; the process that loads the plan computes them again.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def rule(self) -> Algorithm:
        """The `Algorithm` that the plan names. It turns the records' differences into the sums that a step releases."""
        return ALGORITHMS[self.algorithm]

    @cached_property
    def difference_rule(self) -> Difference:
        """The `Difference` that the plan names. It computes how fast a record's loss changes along each direction of a
        step, from losses at shifted weights or, with the name "exact", as a derivative."""
        return DIFFERENCES[self.difference]

    @property
    def sampling(self) -> Sampling:
        """How batches are drawn from the n records, a `Sampling` such as `Poisson(0.01)`."""
        return self.step.sampling if isinstance(self.step, Step) else self.step

    @property
    def relation(self) -> str:
        """The name of the neighbouring relation, such as "add-remove"; "" for the algorithm "mezo", not private."""
        return str(self.step.relation) if isinstance(self.step, Step) else ""

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of Gaussian noise, or scale b of Laplace noise, on the sum over a batch, divided by
        the clip; 0 for the algorithm "mezo", which adds no noise."""
        return self.step.noise if isinstance(self.step, Step) else 0.0

    @cached_property
    def law(self) -> Mechanism | None:
        """The distribution of the noise on the sums that a step releases; None for "mezo", which adds no noise."""
        return MECHANISMS[self.step.mechanism] if isinstance(self.step, Step) else None

    @cached_property
    def scale(self) -> int:
        """The standard deviation of Gaussian noise, or scale b of Laplace noise, on a sum that a step releases, in
        units of clip / 2^30, rounded up to an integer; 0 for the algorithm "mezo", which adds no noise."""
        return int(self.law.scale(self.noise_multiplier, self.rule.levels)) if self.law else 0

    @cached_property
    def row(self) -> struct.Struct:
        """The binary format in which the run's file stores the K numbers that a step releases, K little-endian int64,
        or K little-endian float64 for the algorithm "mezo"."""
        return struct.Struct(f"<{self.directions_per_step}{'q' if self.rule.levels else 'd'}")

    @cached_property
    def expected_batch(self) -> float:
        """The expected number of records in a batch. It, and not the batch's size, divides sums over a batch."""
        return self.sampling.sample_rate * self.n

    @cached_property
    def unit(self) -> float:
        """The unit of a released number as an average of differences, in loss per length. It is clip / levels /
        `expected_batch`, where levels is 2^30 for "dpzero". A released number is the noisy sum over a batch of the
        records' clipped differences along one direction, an integer. For "mezo" the numbers are no integers, and the
        unit is 1 / `expected_batch`."""
        return self.rule.unit(self.clip) / self.expected_batch

    def step_size(self, release: int) -> float:
        """Return the step size alpha of the step with the index `release`, counted from 0."""
        return self.step_sizes[release if len(self.step_sizes) > 1 else 0]

    def noisy(self, total: Sums, source: NoiseSource) -> Sums:
        """Return the K numbers that a step releases: the sums `total`, shape (K,), plus noise from `source`.

        `total` are the sums of the records' clipped differences along the K directions, integers in units of clip /
        2^30. Call this once for each step, with the sums over the step's whole batch and never over a part of it. The
        result is a new array. With the algorithm "mezo", which does not clip, round or add noise, it is `total` itself.
        """
        return total if self.law is None else total + self.law.draw(source, self.scale, total.shape)

    def moves(self, release: int, sums: Iterable[float]) -> list[tuple[int, float]]:
        """Return how a step moves the weights along its K directions u, as K pairs (number of u, amount).

        The weights change by the sum of amount * u over the pairs. Directions are numbered over the whole run: a step
        has the numbers release * K to release * K + K - 1. An amount is -alpha / K times `unit` * sum, the average of
        the records' differences along u, noise included, where alpha is the step's size.

        Args:
            release: the index of the step, from 0.
            sums: the K numbers that the step released, its noisy sums.
        """
        k = self.directions_per_step
        amount = -self.step_size(release) / k * self.unit
        return [(release * k + index, amount * float(total)) for index, total in enumerate(sums)]

    @property
    def release(self) -> Step:
        """One step as the accountant sees it, the attribute `step`. Raises ValueError for "mezo", not private."""
        _private_algorithm(self.algorithm)
        assert isinstance(self.step, Step)
        return self.step

    def epsilon(self, delta: float) -> Bracket:
        """Return bounds on the least epsilon for which all steps of the plan together are (epsilon, delta)-DP. The
        upper bound is the one that may be claimed. Raises ValueError for the algorithm "mezo", which is not private,
        and unless 0 < delta < 1 (with Laplace noise 0 <= delta < 1)."""
        return epsilon_of_history(replace(self.release, steps=self.steps), delta)

    @property
    def settings(self) -> dict[str, Any]:
        """The plan as a dictionary of values that JSON can hold. Its keys are the names of the attributes, with the
        attribute `step` replaced by "noise", "relation", "sampling", "sample_rate" (the expected share of the records
        in a batch) and "noise_multiplier"."""
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
        """Return the plan from which the property `settings` made the dictionary `found`. Raises ValueError, TypeError
        or KeyError if `found` is not such a dictionary."""
        values = dict(check.entries("the plan", found, _SETTINGS))
        take = values.pop
        step: Any = sampling_of_run(take("sampling"), take("sample_rate"))
        noise, relation, multiplier = take("noise"), take("relation"), take("noise_multiplier")
        if ALGORITHMS[values["algorithm"]].private:
            step = Step(multiplier, step, relation, ALGORITHMS[values["algorithm"]].law(noise).name)
        return cls(step, **{**values, "step_sizes": tuple(values["step_sizes"])})

    def require_same(self, other: "Plan", of: str = "the run that is resumed") -> None:
        """Raise ValueError if a setting of this plan differs from the setting of the plan `other` by more than
        rounding. The message names the first such setting, and describes `other` by the text `of`."""
        others = other.settings
        for name, mine in self.settings.items():
            begun = others[name]
            # A later version may find less noise, and the last bit of a step size depends on the processor.
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
"""The keys of `Plan.settings`, with the types of their values."""


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
