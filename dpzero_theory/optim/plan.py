"""What a run does, in numbers that may be published: how releases are made and how they move the weights."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, NotRequired, Required, Unpack

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES, Difference, require_smoothing
from dpzero_theory.optim.step.algorithm import ALGORITHMS, Algorithm
from dpzero_theory.optim.step.contributions import Sums
from dpzero_theory.optim.step.step_sizes import MOST_STEPS, StepSize, step_sizes
from dpzero_theory.optim.step.update import UPDATES, Update
from dpzero_theory.optim.weights.groups import Given, Group, groups_of, require
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.ledger import Settings
from dpzero_theory.privacy.mechanism import Mechanism
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.sampling import Sampling, drawn
from dpzero_theory.privacy.step import Drawing, Step, Words
from dpzero_theory.privacy.stopping import ANY, claimed, looks_of, noise_to_stop
from dpzero_theory.theory.problem import Prescription

MOST_SCALE = 2**56
"""The largest parameter `scale` of the discrete noise on integers. With it the noise, its tail included, still fits
into 64 bits."""


class Target(Drawing, total=False):
    """The settings of a private run: the keyword arguments of `Plan.for_target`, which describes them, except n."""

    target_epsilon: Required[float]
    target_delta: Required[float]
    steps: Required[int]
    expected_batch: Required[float]
    clip: Required[Any]
    step_size: Required[StepSize]
    smoothing: Required[float]
    algorithm: NotRequired[str]
    noise: NotRequired[str]
    direction: NotRequired[str]
    directions_per_step: NotRequired[int]
    schedule: NotRequired[str]
    update: NotRequired[str]
    weight_decay: NotRequired[float]
    groups: NotRequired[Given]
    difference: NotRequired[str]
    stopping: NotRequired[str]


@dataclass(frozen=True)
class Plan:
    """The public settings of a run. Raises ValueError for values that do not fit together.

    Attributes:
        algorithm: a name of `step.algorithm.ALGORITHMS`.
        noise: the family of the noise, `gaussian` or `laplace`; `none` for mezo, and only there.
        relation: which data sets are neighbours, the name of a `Relation`; empty for mezo.
        sampling: how batches are drawn, a name such as `poisson`; one whose batches a run can draw.
        n: the number of records.
        sample_rate: q in (0, 1], the expected batch over n.
        steps: T >= 1, the number of releases in all.
        clip: C > 0, the largest L2 norm of a record's K differences (of its difference times u for dpgd-0th); 0 for
            mezo.
        noise_multiplier: the standard deviation of the noise on the sum of a batch (for Laplace noise its scale b),
            divided by C, > 0; 0 for mezo.
        levels: the integer that stands for C, where what a record contributes is rounded to integers; 0 where it is not
            rounded.
        scale: the parameter of the discrete noise on these integers, itself an integer; 0 where noise is not discrete.
            It is the standard deviation of discrete Gaussian noise, and the scale b of discrete Laplace noise.
        smoothing: lambda > 0, how far from the weights losses are evaluated; 0 where the difference is exact.
        step_sizes: alpha >= 0, one for all steps or one for each.
        direction: the law of the random directions u, a name of `sphere.DIRECTIONS`; for dpgd-0th one whose u always
            has the norm sqrt(d).
        directions_per_step: K >= 1; 1 for Laplace noise and dpgd-0th.
        update: how releases move the weights, a name of `step.update.UPDATES`; `plain` where a release is a vector.
        weight_decay: w >= 0, each step takes alpha w x off the weights x; 0 where a release is a vector.
        groups: parameters with step size and smoothing of their own, see `weights.groups`; none where a release is a
            vector.
        difference: how a record's change of loss along a direction is found, a name of
            `dpzero_theory.difference.DIFFERENCES`. It does not change what is private.
        stopping: whether the run may be stopped because of what it has released, `any`, `fixed` or `looks:M`
            (`privacy.stopping`), which decides what it claims.
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
    update: str = "plain"
    weight_decay: float = 0.0
    groups: tuple[Group, ...] = ()
    difference: str = "central"
    stopping: str = ANY

    def __post_init__(self) -> None:
        rule = self.rule
        looks_of(self.stopping)
        if rule.lattice:
            check.integer("levels", self.levels)
        law = self.law
        self.batches.batch_size(check.integer("n", self.n))
        check.integer("steps", self.steps, at_most=MOST_STEPS)
        require_smoothing(self.difference, self.smoothing)
        check.integer("scale", self.scale, at_least=0, at_most=MOST_SCALE)
        rule.require(self.direction, self.directions_per_step)
        if law is not None:
            check.integer("directions_per_step", self.directions_per_step, at_most=law.coordinates)
            check.real("noise_multiplier", self.noise_multiplier, above=0)
            if rule.lattice:
                check.integer("scale", self.scale, at_least=int(law.scale(self.noise_multiplier, self.levels)))
            self.settings.release(self.steps)
        if len(self.step_sizes) not in (1, self.steps):
            raise ValueError(f"step_sizes must be 1 or steps = {self.steps} numbers; got {len(self.step_sizes)}")
        for alpha in self.step_sizes:
            check.real("step_size", alpha, at_least=0)
        check.real("weight_decay", self.weight_decay, at_least=0)
        require(self.groups)
        if not ((UPDATES[self.update] and self.plain) or rule.replayable):
            raise ValueError(
                f"update must be plain, without weight decay and groups, for {self.algorithm}; got {self.update!r}"
            )
        self._make_plain()

    def _make_plain(self) -> None:
        """Turn numbers of other libraries, such as numpy's, into Python's, which a file can keep."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                object.__setattr__(self, field.name, check.integer(field.name, value, at_least=0))
            elif field.type is float:
                object.__setattr__(self, field.name, check.real(field.name, value, at_least=0))
        object.__setattr__(self, "step_sizes", tuple(map(float, self.step_sizes)))
        object.__setattr__(self, "groups", tuple((name, float(a), float(s)) for name, a, s in self.groups))

    @classmethod
    def for_target(
        cls,
        *,
        n: int,
        target_epsilon: float,
        target_delta: float,
        steps: int,
        expected_batch: float,
        clip: float,
        step_size: StepSize,
        smoothing: float,
        algorithm: str = "dpzero",
        noise: str = "gaussian",
        direction: str = "rademacher",
        directions_per_step: int = 1,
        schedule: str = "constant",
        update: str = "plain",
        weight_decay: float = 0.0,
        groups: Given | None = None,
        difference: str = "central",
        stopping: str = ANY,
        **drawing: Unpack[Drawing],
    ) -> "Plan":
        """The plan that is (target_epsilon, target_delta)-DP with the least noise.

        Args:
            n: the number of records.
            target_epsilon: epsilon > 0.
            target_delta: 0 < delta < 1 (Laplace: also 0, for pure target_epsilon).
            steps: T >= 1.
            expected_batch: q n. It is n for full batches, an integer for fixed-size ones, K n over an integer for
                random-allocation:K, and any number up to n for the others.
            clip: C > 0, the largest L2 norm of a record's K differences (for dpgd-0th, of its difference times u).
            step_size: alpha >= 0, or a function of the release's number 0..T-1. It must not depend on the records.
            smoothing: lambda > 0; 0 with difference="exact".
            relation: `replace-one`, `add-remove` or `zero-out`; there is no default.
            sampling: one of `privacy.sampling` whose batches a run can draw; there is no default.
            algorithm: `dpzero` (Algorithm 2) or `dpgd-0th` (Algorithm 1: no transcript to replay).
            noise: `gaussian`, or `laplace`, which has a pure epsilon too.
            direction: `rademacher`, `sphere` or `gaussian`.
            directions_per_step: K; a record's K differences are clipped jointly, and a step uses the mean.
            schedule: what becomes of step_size, if that is a number, along the run: a name of `step_sizes.SCHEDULES`.
            update: how releases move the weights: `plain`, `momentum:B` or `adam:B1,B2` (`step.update`).
            weight_decay: w >= 0, decoupled: each step takes alpha w x off the weights x.
            groups: a mapping from patterns of parameters' names to the factor of their step size, or to two factors, of
                step size and of smoothing; the first pattern that matches counts (`weights.groups`).
            difference: `central`, `forward` or `exact` (`dpzero_theory.difference`).
            stopping: `any`; `fixed` if the number of steps made will not depend on what they release; or `looks:M` for
                a look every M steps. A run that is stopped early claims epsilon of the plan, of the steps paid for, or
                that of a curve which is safe to stop at and ends at target_epsilon (`privacy.stopping`).

        Raises:
            ValueError: an argument outside its range, or arguments that do not fit together.
            PreconditionError: every noise, however little, meets the target, since a record is used at all with
                probability at most delta (`calibrate_noise_multiplier`); there is then no least noise.
        """
        rule = ALGORITHMS[algorithm]
        law = _law(rule, noise, rule.levels)
        if law is None:
            raise ValueError(f"algorithm must be one that is private; got {algorithm!r}")
        check.real("clip", clip, above=0.0)
        require_smoothing(difference, smoothing)
        rule.require(direction, directions_per_step)
        check.integer("directions_per_step", directions_per_step, at_most=law.coordinates)
        check.settings(drawing, Drawing.__annotations__, Drawing.__required_keys__)
        relation, batches = drawing["relation"], drawn(drawing["sampling"], _rate(n, expected_batch))
        batches.batch_size(n)
        alphas = step_sizes(step_size, steps, schedule)
        goal = check.real("target_epsilon", target_epsilon, above=0.0)
        words: Words = {
            "sampling": batches,
            "relation": relation,
            "mechanism": law.name,
            "coordinates": rule.coordinates(directions_per_step),
        }
        every = looks_of(stopping)
        try:
            if every and target_delta:
                multiplier = noise_to_stop(goal, target_delta, steps, every, **words)
            else:
                found = calibrate_noise_multiplier(target_epsilon=goal, target_delta=target_delta, steps=steps, **words)
                multiplier = found.upper
        except (ArithmeticError, ValueError) as error:
            if " must " in str(error):
                raise
            given = f"{goal:g} and {target_delta:g}"
            raise ValueError(
                f"target_epsilon and target_delta must be within the accountant's reach; got {given}"
            ) from error
        if rule.lattice and not multiplier * rule.levels <= MOST_SCALE:
            most = MOST_SCALE / rule.levels
            raise ValueError(
                f"target_epsilon must be met with a noise multiplier <= {most:g}; got {goal:g}: {multiplier:g}"
            )
        return cls(
            algorithm=algorithm,
            noise=noise,
            relation=relation,
            sampling=batches.word,
            n=int(n),
            sample_rate=batches.sample_rate,
            steps=int(steps),
            clip=clip,
            **_noise(rule, law, multiplier),
            smoothing=smoothing,
            step_sizes=alphas,
            direction=direction,
            directions_per_step=directions_per_step,
            update=UPDATES[update].name,
            weight_decay=weight_decay,
            groups=groups_of(groups),
            difference=difference,
            stopping=stopping,
        )

    @classmethod
    def from_prescription(cls, prescription: Prescription) -> "Plan":
        """The plan that runs a theorem's prescription, with exactly the parameters that it certifies.

        The plan's `epsilon` says what it costs at any delta. Raises ValueError for a prescription that cannot be run.
        """
        p = prescription
        if p.noise_ratio != 1:
            raise ValueError(f"noise_ratio must be 1, as the noise of a run is constant; got {p.noise_ratio!r}")
        rule = ALGORITHMS[p.algorithm]
        law = _law(rule, "gaussian", rule.levels)
        assert law is not None
        return cls(
            algorithm=p.algorithm,
            noise="gaussian",
            relation=p.relation,
            sampling=p.sampling,
            n=p.n,
            sample_rate=p.sample_rate,
            steps=p.steps,
            clip=p.clip,
            **_noise(rule, law, p.noise_multiplier),
            smoothing=p.smoothing,
            step_sizes=(p.step_size,),
            direction=p.direction,
            directions_per_step=p.directions_per_step,
            difference=p.difference,
        )

    @classmethod
    def without_privacy(
        cls,
        *,
        n: int,
        steps: int,
        expected_batch: float,
        step_size: StepSize,
        smoothing: float,
        sampling: str,
        direction: str = "rademacher",
        directions_per_step: int = 1,
        schedule: str = "constant",
        update: str = "plain",
        weight_decay: float = 0.0,
        groups: Given | None = None,
        difference: str = "central",
    ) -> "Plan":
        """Return the plan of MeZO: the same step as DPZero's without clip and without noise, which is not private.

        The arguments are those of `for_target` with the same names, which describes them; there is no budget, relation,
        clip or noise. sampling: the name of a sampling, such as `poisson`. Raises ValueError for an argument outside
        its range.
        """
        return cls(
            algorithm="mezo",
            noise="none",
            relation="",
            sampling=sampling,
            n=check.integer("n", n),
            sample_rate=_rate(n, expected_batch),
            steps=check.integer("steps", steps, at_most=MOST_STEPS),
            clip=0.0,
            **_noise(ALGORITHMS["mezo"], None, 0.0),
            smoothing=smoothing,
            step_sizes=step_sizes(step_size, steps, schedule),
            direction=direction,
            directions_per_step=directions_per_step,
            update=UPDATES[update].name,
            weight_decay=weight_decay,
            groups=groups_of(groups),
            difference=difference,
        )

    def __getstate__(self) -> dict[str, Any]:
        # what is cached is found again by the process that gets the plan
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def rule(self) -> Algorithm:
        """The plan's algorithm, which says what a record contributes to a sum and what is released of the sum."""
        return ALGORITHMS[self.algorithm]

    @cached_property
    def difference_rule(self) -> Difference:
        """The plan's difference rule: at which points a step evaluates the losses, and how a record's K differences
        follow from these losses."""
        return DIFFERENCES[self.difference]

    @cached_property
    def batches(self) -> Sampling:
        """The sampling, which draws the batches and says what they cost."""
        return drawn(self.sampling, self.sample_rate)

    @cached_property
    def law(self) -> Mechanism | None:
        """The law of the noise for the plan's number of levels; None where there is no noise."""
        return _law(self.rule, self.noise, self.levels)

    @cached_property
    def update_rule(self) -> Update:
        """The rule by which releases move the weights, such as momentum, without the step size and the weight decay."""
        return UPDATES[self.update]

    @cached_property
    def plain(self) -> bool:
        """Whether each step adds -alpha times the released estimate of the gradient to the weights, and nothing else:
        no momentum, no weight decay and no groups."""
        return self.update == "plain" and self.weight_decay == 0 and not self.groups

    @cached_property
    def scalars(self) -> int:
        """How many released numbers replay a step. That is K, the number of directions per step. It is 0 where a
        release is a vector, which the transcript does not keep."""
        return self.directions_per_step if self.rule.replayable else 0

    @cached_property
    def expected_batch(self) -> float:
        """q n, the expected number of records in a batch, by which the sum over a batch is divided."""
        return self.sample_rate * self.n

    @property
    def unit(self) -> float:
        """The number, in the unit loss over length, by which 1 more in a released sum raises the released average over
        a batch.

        It holds for an algorithm that releases K numbers.
        """
        return self._unit(0)

    def step_size(self, release: int) -> float:
        """Return the step size alpha of the release with this number, 0 to T - 1."""
        return self.step_sizes[release if len(self.step_sizes) > 1 else 0]

    def contributions(self, differences: Array, d: int, squared_norm: int = 0) -> Sums:
        """Return the sum of what the records of a micro-batch contribute to a release, shape (K,).

        Each record's differences are clipped and rounded to integers; for mezo they are neither.

        differences: of the records along the K directions, shape (batch, K). d: the number of trained weights.
        squared_norm: ||v||^2 of v, the vector of integers along the direction u (`Weights.squared_norm`); it is used
        only where a release is a vector.
        """
        return self.rule.contributions(differences, self.clip, self.levels, d, squared_norm)

    def noisy(self, total: Sums, source: NoiseSource) -> Sums:
        """Add noise to `total`, the sum over the whole batch or some of its coordinates, and return what is released.

        source: where the noise is drawn. Each coordinate of a step must be given to this method exactly once, and never
        the sum over a part of the batch.
        """
        return self.rule.release(total, self.law, self.scale, source)

    def moves(self, release: int, sums: Iterable[float]) -> list[tuple[int, float]]:
        """Return how a release moves the weights where the update is plain, as the argument of `Weights.move_`.

        These are pairs (number of a direction, -alpha/K times the released average along it). release: its number.
        sums: its K released sums.
        """
        return self._along(release, -self.step_size(release), sums)

    def estimates(self, release: int, sums: Iterable[float]) -> list[tuple[int, float]]:
        """Return the estimate of the gradient that a release gives.

        It is the sum of amount u over the pairs (number of a direction u, amount) that are returned, where an amount is
        1/K times the released average along u. release: its number. sums: its K released sums.
        """
        return self._along(release, 1.0, sums)

    def _along(self, release: int, factor: float, sums: Iterable[float]) -> list[tuple[int, float]]:
        k = self.directions_per_step
        amount = factor / k * self.unit
        return [(release * k + index, amount * float(total)) for index, total in enumerate(sums)]

    def vector_factor(self, release: int, squared_norm: int) -> float:
        """Return the number that 1 in a coordinate of a released vector adds to that coordinate of the weights.

        It is minus the step size alpha, times what 1 counts in the estimate of the gradient. The released vector is a
        sum over the batch times v, plus noise, where v is a vector of integers, a multiple of the release's direction u
        (`Directions.integers`). release: its number, which determines alpha. squared_norm: ||v||^2.
        """
        return -self.step_size(release) * self._unit(squared_norm)

    def _unit(self, squared_norm: int) -> float:
        return self.rule.unit(self.clip, self.levels, squared_norm) / self.expected_batch

    @cached_property
    def settings(self) -> Settings:
        """The settings that the ledger keeps of each release. Raises ValueError for a plan without noise.

        If the plan has fewer levels than the algorithm's own, the settings name the law of discrete noise for these
        levels, and their noise multiplier is scale/levels.
        """
        if self.law is None:
            raise ValueError(f"algorithm must be one that is private; got {self.algorithm!r}")
        runs = self.law is self.rule.law(self.noise)
        return Settings(
            n=self.n,
            noise_multiplier=self.noise_multiplier if runs else _rounded_down(self.scale, self.levels),
            clip=self.clip,
            relation=self.relation,
            sampling=self.batches,
            mechanism=self.law.name,
            coordinates=self.rule.coordinates(self.directions_per_step),
        )

    @property
    def step(self) -> Step:
        """One release of the run, as the accountant counts it. Raises ValueError for a plan without noise."""
        return self.settings.step

    def epsilon(self, delta: float) -> Bracket:
        """A bracket of the smallest epsilon for which all T releases of the plan are (epsilon, delta)-DP; its upper end
        is the safe one to state. delta: 0 < delta < 1, or 0 for Laplace noise. Raises ValueError for another delta, or
        a plan without noise."""
        return epsilon_of_history(self.step * self.steps, delta)

    def claimed(self, spent: int, delta: float) -> Bracket:
        """A bracket of the epsilon that a run of the plan may claim at `delta` when it has paid for `spent` releases.

        Its upper end is the one to state. It is that of the whole plan unless `stopping` says otherwise."""
        return claimed(self.step, spent, self.steps, delta, self.stopping)

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan that is written in a text of `to_json`. Raises ValueError for any other text, and TypeError
        where an entry of its "groups" is no list."""
        kinds = {**check.types_of(cls), "step_sizes": list, "groups": list}
        values = check.entries(
            "the plan", json.loads(text), kinds, ("update", "weight_decay", "groups", "difference", "stopping")
        )
        groups = tuple((pattern, step_size, smoothing) for pattern, step_size, smoothing in values.pop("groups", ()))
        if not all(isinstance(pattern, str) for pattern, *_ in groups):
            raise ValueError(f"groups must begin with patterns; got {check.shown(groups)}")
        return cls(**{**values, "step_sizes": tuple(values["step_sizes"]), "groups": groups})

    def require_same(self, other: "Plan", of: str = "the run that is resumed") -> None:
        """Raise ValueError, naming the first setting that differs, unless this plan is the same as `other`.

        of: a word for the message that says whose plan `other` is.

        The noise multiplier and the scale may differ by a relative 1e-6, as another version's calibration may be that
        much closer. Step sizes may differ by 1e-12 of the largest, since the last bit of a schedule's cosine depends on
        the processor.
        """
        for field in fields(self):
            mine, begun = getattr(self, field.name), getattr(other, field.name)
            if mine != begun and not (
                (field.name in ("noise_multiplier", "scale") and math.isclose(mine, begun, rel_tol=1e-6))
                or (field.name == "step_sizes" and _rounded(mine, begun))
            ):
                shown = (f"{v!r:.60}" for v in (begun, mine))
                raise ValueError("{} must be that of {}, {}; got {}".format(field.name, of, *shown))


def _rounded(mine: tuple[float, ...], begun: tuple[float, ...]) -> bool:
    room = 1e-12 * max(begun)
    return len(mine) == len(begun) and all(abs(a - b) <= room for a, b in zip(mine, begun, strict=True))


def _law(rule: Algorithm, noise: object, levels: int) -> Mechanism | None:
    """Return the law of the noise of a family, such as "gaussian", for an algorithm; None where there is no noise.

    rule: the algorithm. levels: the integer that stands for the clip. Raises ValueError for other families.
    """
    law = rule.law(noise)
    return law if law is None or not rule.lattice else law.on(int(levels))


def _rounded_down(scale: int, levels: int) -> float:
    """Return the largest floating-point number that is at most scale/levels."""
    found = scale / levels
    return found if Fraction(found) * levels <= scale else math.nextafter(found, 0.0)


def _noise(rule: Algorithm, law: Mechanism | None, multiplier: float) -> dict[str, Any]:
    """Return the fields of a plan that say how much noise there is: noise_multiplier, levels and scale.

    rule: the algorithm. law: that of the noise; None where there is none. multiplier: the noise multiplier.
    """
    scale = int(law.scale(multiplier, rule.levels)) if law is not None and rule.lattice else 0
    return {"noise_multiplier": multiplier, "levels": rule.levels, "scale": scale}


def _rate(n: int, expected_batch: float) -> float:
    count = check.integer("n", n)
    return check.real("expected_batch", expected_batch, above=0.0, at_most=float(count)) / count
