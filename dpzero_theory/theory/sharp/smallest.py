"""The smallest bound of the sharpened theorem over its parameters, for `certificate.prescribe`.

Gradients are in units of L, lengths in units of L/ell and losses in units of L^2/ell. The notation is that of
`certificate`; y is the square root of the bound.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.bisection import halved, outward
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.theory.problem import Prescription, Problem, Run
from dpzero_theory.theory.sharp.constants import Constants, constants, law_of
from dpzero_theory.theory.sharp.moments import by_excess, by_moment

MOST_DIRECTIONS = 2**16  # The largest K that is tried, which is the most that a run takes
MOST_STEPS = 10**15  # The largest number of steps T that a search for parameters tries, or that a cap may be
SMOOTHING_SHARE = 0.01  # The smoothing lambda is the largest that raises the bound by at most about this share of it
STEPS_SHARE = 0.05  # Without a cap, T is the smallest number of steps whose bound is at most this share above the best
SMALLEST, LARGEST = 1e-150, 1e150
"""The smallest and the largest value that the sharpened results accept for each of L, ell and gap ell/L^2. Beyond these
their numbers overflow or underflow in float64."""
SMALLEST_GDP, LARGEST_GDP = 1e-50, 1e50  # The range of mu for which a sharpened result is minimised in float64
_SMALLEST_CLIP, _LARGEST_CLIP = 0.02, 15.0  # The range of clips c = C/(L sqrt(K)) on the first grid
_LARGEST_OF_MOMENT = 1e6
"""The largest c = C/(L sqrt(K)) on the first grid if only a moment of gradients is bounded: their norms then are not,
and the best clip can be far larger."""
_NEVER_CLIPS = 1e10
"""Larger clips c = C/(L sqrt(K)) are replaced by this one, with the same effect: a projection exceeds either of them
never, or with a probability below exp(-10^19)."""


@dataclass(frozen=True)
class Terms:
    """The coefficients from which the q, p and K of `certificate` are computed for any step size alpha:

    q = kept - alpha quadratic/2, p = first + alpha second, K = gap/(alpha T) + alpha constant/2.
    """

    kept: Array
    quadratic: Array
    first: Array
    second: Array
    constant: Array


def constants_of(problem: Problem, clip: ArrayLike, direction: str, directions_per_step: int) -> Constants:
    """The constants of a step at the clips c = C/(A sqrt(K)), for whichever bound on gradients the problem has.

    A is `Problem.gradient_unit`, the unit in which gradients are measured.

    Args:
        problem: d, r, sample_rank and the bound on gradients are used.
        clip: c > 0, a number or an array.
        direction: law of the directions, one of `constants.LAWS`.
        directions_per_step: K >= 1, the number of directions in a step.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a direction law that the theorem does not cover; more directions than a frame has.
    """
    p = problem
    k = constants(clip, p.d, p.r, direction, p.sample_rank, directions_per_step, p.layer_rank)
    c = check.real_array("clip", clip, above=0)
    if p.gradient_moment is not None:
        return by_moment(k, c, p, direction, directions_per_step)
    return k if p.mean_excess is None else by_excess(k, c, p.r, p.mean_excess[1] / p.mean_excess[0])


def step_terms(k: Constants, p: Problem, e: float, variance: Array | float, rate: float) -> Terms:
    """The coefficients of the bound from k, the constants of clipping and the directions, and from the problem p.

    e: ell lambda/2 in units of L, for the smoothing lambda. variance: sigma^2/K in units of L^2, for the noise. rate:
        the Poisson sampling rate, 1 for full batches.
    """
    smooth = e * k.smooth_second
    with np.errstate(over="ignore"):
        batch = 0.0 if rate == 1 else (1 - rate) / (rate * p.n) * (k.sampled + smooth) ** 2
        return Terms(
            kept=k.kept,
            quadratic=k.quadratic,
            first=k.bias + e * k.smooth_first,
            second=k.cross + smooth * k.spread,
            constant=(k.excess + smooth) ** 2 + p.r * variance + batch,
        )


def relative_gap(p: Problem) -> float:
    """gap ell/L^2 of the problem p, the gap without its unit, where L is `Problem.gradient_unit`.

    ValueError is raised if that number, L or ell is outside [SMALLEST, LARGEST].
    """
    unit = p.gradient_unit
    name = "lipschitz" if unit == p.lipschitz else "unit of gradients"
    gap = p.gap / unit * (p.smoothness / unit)
    check.real(f"gap smoothness/{name}^2", gap, at_least=SMALLEST, at_most=LARGEST)
    check.real(name, unit, at_least=SMALLEST, at_most=LARGEST)
    check.real("smoothness", p.smoothness, at_least=SMALLEST, at_most=LARGEST)
    return gap


def root_at(terms: Terms, gap_per_step: float, alpha: float) -> tuple[float, float, float, float]:
    """The q, p and K of `certificate` at the step size alpha, and y, the square root of the bound.

    K is the constant term, not the number of directions. y is the largest y >= 0 with q y^2 - p y <= K, infinite where
    q <= 0. terms: the coefficients from which they are computed, for one clip. gap_per_step: gap/T.
    """
    with np.errstate(over="ignore"):
        q = float((terms.kept - alpha / 2 * terms.quadratic).item())
        p = float((terms.first + alpha * terms.second).item())
        floor = float((np.float64(gap_per_step) / alpha + alpha / 2 * terms.constant).item())
    return q, p, floor, (p + math.sqrt(p * p + 4 * q * floor)) / (2 * q) if q > 0 else math.inf


def _smallest_root(terms: Terms, gap_per_step: float) -> Array:
    """The square root y of the bound, minimised over the step size alpha and rounded up, for each clip in `terms`.

    It is the root of kept y - first = sqrt(2 gap/T Q(y))/y, where gap/T is `gap_per_step`, and
    Q(y) = quadratic y^2 + 2 second y + constant; kept, first, quadratic, second and constant are the fields of `terms`.
    For fixed y the bound's condition q y^2 - p y >= K, with the q, p and K that `Terms` states as functions of alpha,
    is quadratic in alpha and has a solution exactly when the left side of the equation is at least the right one. The
    left side rises in y and the right one falls, so that y is found by bisection. At the upper end of the interval that
    is bisected, each of the three terms of 2 gap/T Q(y)/y^2 is at most a third of the left side squared (kept <= 1).
    """
    a = 2 * gap_per_step
    spare = np.sqrt(3 * a * terms.quadratic)
    spare = np.maximum(spare, np.cbrt(6 * a * terms.second))
    spare = np.maximum(spare, (3 * a * terms.constant) ** 0.25)
    low, high = terms.first / terms.kept, (terms.first + spare) / terms.kept

    return halved(
        lambda y: np.logical_not(
            terms.kept * y - terms.first >= np.sqrt(a * (terms.quadratic + (2 * terms.second + terms.constant / y) / y))
        ),
        low,
        high,
        52,
    )[1]


def number_of_directions(
    problem: Problem, direction: str, most: float | None, smallest: Callable[[int], float], share: float = 0.0
) -> int:
    """The K with the smallest bound among about 2^(j/4), j = 0, 1, ...

    If `most` is given, the product of K and T is capped; as K grows the bound then falls and rises again, and the
    search goes downhill from K = 1. Without `most` the bound only falls, and the smallest K is returned whose value is
    at most (1 + share) times that of the largest K.

    Args:
        problem, direction: for the direction law `frame` K is at most the dimension d.
        most: the largest K that the evaluations allow, None without a cap on them.
        smallest: a function of K that returns the smallest bound for this K, or its square root; `share` is a share of
            what it returns.
        share: how much above the smallest value a smaller K may be, as a share of that value, where `most` is None.
    """
    last = min(float(MOST_DIRECTIONS), law_of(direction).most(problem.d), math.inf if most is None else max(most, 1.0))
    ratios = range(1 + math.floor(4 * math.log2(last)))
    grid = sorted({round(2 ** (j / 4)) for j in ratios} | {math.floor(last)})
    if most is None:
        target = (1 + share) * smallest(grid[-1])
        return grid[bisect.bisect_left(grid, True, key=lambda k: smallest(k) <= target)]
    return grid[downhill(lambda i: smallest(grid[i]), 0, len(grid), 4)]


def downhill(value: Callable[[int], float], start: int, count: int, jump: int) -> int:
    """An index from 0 to count - 1 whose neighbours have no smaller value, found downhill from the index `start`.

    value: the function of the index; it is asked again and again, so that it should remember its answers. jump: the
    first distance between indices that are compared, which is halved where neither neighbour has a smaller value.
    """
    i = start
    while jump:
        ahead = [j for j in (i + jump, i - jump) if 0 <= j < count and value(j) < value(i)]
        if ahead:
            i = ahead[0]
        else:
            jump //= 2
    return i


class SearchOptions(TypedDict, total=False):
    """What a search for parameters is free to choose from, as keyword arguments.

    max_steps: a cap on the steps T; None, the default of all three caps, is no cap.
    max_evaluations: a cap on n K T, the differences of single samples.
    max_points: a cap on the evaluations of single samples' losses, by which difference rules compare: on n T 2 K with
        central differences, on n T (K + 1) with forward and exact ones.
    direction: the law of the directions, a name in `constants.LAWS`; by default "sphere".
    directions_per_step: K >= 1, or "best" to search for it; by default 1.
    difference: how a change of loss along a direction is found, "central" (the default), "forward" or "exact".
    """

    max_steps: int | None
    max_evaluations: int | None
    max_points: int | None
    direction: str
    directions_per_step: int | str
    difference: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a search for parameters is free to choose from; the attributes are those of `SearchOptions`."""

    max_steps: int | None = None
    max_evaluations: int | None = None
    max_points: int | None = None
    direction: str = "sphere"
    directions_per_step: int | str = 1
    difference: str = "central"

    def steps(self, n: int, directions: int) -> int | None:
        """The largest number of steps T that the caps allow in full batches of n records; None without a cap.

        Raises ValueError for a cap outside its range, PreconditionError where a cap allows no step. `directions` is K.
        """
        points = DIFFERENCES[self.difference].points(directions)
        caps = []
        if self.max_steps is not None:
            caps.append(check.integer("max_steps", self.max_steps, at_most=MOST_STEPS))
        rule = f"{self.difference} differences, directions_per_step = {directions}"
        for name, cap, step, words in (
            ("max_evaluations", self.max_evaluations, n * directions, "n directions_per_step is required (full batch)"),
            ("max_points", self.max_points, n * points, f"{points} n is required (full batch, {rule})"),
        ):
            if cap is not None:
                most = check.integer(name, cap)
                check.precondition(most >= step, f"{name} >= {words}; got {most} below {step}")
                caps.append(min(most // step, MOST_STEPS))
        return min(caps) if caps else None

    def most_directions(self, batch: float) -> float | None:
        """The largest K, not necessarily whole, with which one step on `batch` records keeps to the caps.

        It is below 1 where not even one direction is allowed, and None without a cap on evaluations or points.
        """
        caps: list[float] = []
        if self.max_evaluations is not None:
            caps.append(check.integer("max_evaluations", self.max_evaluations) / batch)
        if self.max_points is not None:
            points = check.integer("max_points", self.max_points) / batch
            of_rule = DIFFERENCES[self.difference].points
            caps.append(bisect.bisect_right(range(1, MOST_DIRECTIONS + 1), points, key=of_rule))
        return min(caps) if caps else None


@dataclass(frozen=True, kw_only=True)
class ScaledRun:
    """A run's parameters for one problem without their units, L = ell = 1, where L is `Problem.gradient_unit`.

    Attributes:
        gap: gap ell/L^2.
        alpha: the step size, times ell.
        steps: T.
        clip: c = C/(L sqrt(K)), at most `_NEVER_CLIPS`, beyond which nothing is clipped.
        error: e = ell lambda/2 over L; 0 with a rule that shifts no weights.
        variance: sigma^2/K over L^2.
        direction, directions: the law of the directions, and K.
    """

    gap: float
    alpha: float
    steps: int
    clip: float
    error: float
    variance: float
    direction: str
    directions: int

    @classmethod
    def of(cls, p: Problem, **run: Unpack[Run]) -> Self:
        """Checks the parameters of a run, and removes their units.

        Raises ValueError for a parameter outside its range, and for a smoothing that does not fit the difference rule.
        """
        directions = check.integer("directions_per_step", run.get("directions_per_step", 1))
        unit, gap = p.gradient_unit, relative_gap(p)
        share = check.real("clip", run["clip"], above=0) / unit / math.sqrt(directions)
        if math.isinf(p.lipschitz):  # some gradients may always be clipped
            share = check.real("clip over the unit of gradients", share, at_least=SMALLEST, at_most=_NEVER_CLIPS)
        else:
            name = "clip/(lipschitz sqrt(directions_per_step))"
            share = check.real(name, min(share, _NEVER_CLIPS), at_least=SMALLEST)
        error, difference = 0.0, run.get("difference", "central")
        if DIFFERENCES[difference].smoothing:
            smoothing = check.real("smoothing", run["smoothing"], above=0) * (p.smoothness / unit)
            error = check.real("smoothing smoothness/lipschitz", smoothing, above=0, at_most=LARGEST) / 2
        elif check.real("smoothing", run["smoothing"]) != 0:
            rule = f"0 with {difference} differences, which shift no weights"
            raise ValueError(f"smoothing must be {rule}; got {run['smoothing']!r}")
        alpha = check.real("step_size", run["step_size"], above=0) * p.smoothness
        noise = check.real("noise_std", run["noise_std"], at_least=0) / unit
        return cls(
            gap=gap,
            alpha=check.real("step_size smoothness", alpha, at_least=SMALLEST, at_most=LARGEST),
            steps=check.integer("steps", run["steps"]),
            clip=share,
            error=error,
            variance=noise * noise / directions,
            direction=run.get("direction", "sphere"),
            directions=directions,
        )


class SmallestBound:
    """The smallest bound over the step size alpha and the clip C for smoothing lambda -> 0, one problem and one K.

    problem: the constants. direction: the law of the directions, one of `constants.LAWS`. directions: K.

    The best alpha has a closed form; the best C = c L sqrt(K) is sought on a grid that is refined three times. With
    K > 1 the grid of c is denser near 1, where the norm of K scalars of a unit gradient concentrates.
    """

    def __init__(self, problem: Problem, direction: str, directions: int = 1) -> None:
        self.problem = problem
        self.direction = direction
        self.directions = directions
        if problem.gradient_moment is None:
            largest, points = min(law_of(direction).largest(problem.d, directions), _LARGEST_CLIP), 40
        else:  # gradients may be arbitrarily long, so that the bias falls only as a power of the clip
            largest, points = _LARGEST_OF_MOMENT, 100
        self.clips = np.geomspace(_SMALLEST_CLIP, largest, points)
        if directions > 1:
            near = 1 + np.linspace(-3, 14, 60) / math.sqrt(directions)
            self.clips = np.union1d(self.clips, near[(near > _SMALLEST_CLIP) & (near < largest)])
        self.constants = constants_of(problem, self.clips, direction, directions)

    def values(
        self, steps: int, variance: float, rate: float, clips: Array | None = None, k: Constants | None = None
    ) -> tuple[Array, Array]:
        """The square root of the smallest bound over the step size, and the step size alpha that has it, at each clip.

        steps: T. variance: sigma^2/C^2. rate: of Poisson sampling, 1 for full batches. clips: the clips, and k their
        constants; by default the first grid.
        """
        clips, k = self.clips if clips is None else clips, self.constants if k is None else k
        terms = step_terms(k, self.problem, 0.0, variance * clips * clips, rate)
        gap_per_step = relative_gap(self.problem) / steps
        y = _smallest_root(terms, gap_per_step)
        spare = y * (terms.kept * y - terms.first)
        lost = spare <= 0  # only by rounding, where `first`, the bias of clipping, is nearly all of kept y
        return np.where(lost, math.inf, y), 2 * gap_per_step / np.where(lost, 1.0, spare)

    def best(self, steps: int, variance: float, rate: float) -> tuple[float, float]:
        """The clip c = C/(L sqrt(K)) and the step size, in units of 1/ell, with the smallest bound.

        steps: T. variance: sigma^2/C^2. rate: of Poisson sampling, 1 for full batches.
        """
        clips, k = self.clips, self.constants
        for _ in range(3):
            y, _ = self.values(steps, variance, rate, clips, k)
            i = int(np.argmin(y))
            clips = np.geomspace(clips[max(i - 1, 0)], clips[min(i + 1, len(clips) - 1)], 17)
            k = constants_of(self.problem, clips, self.direction, self.directions)
        y, alpha = self.values(steps, variance, rate, clips, k)
        i = int(np.argmin(y))
        return float(clips[i]), float(alpha[i])

    def limit(self, unit: float) -> float:
        """The square root of the smallest bound on the first grid of clips, for full batches and T -> infinity.

        unit: sigma/(C sqrt(T)), which stays the same as T grows.
        """
        free = np.zeros_like(self.clips)
        k = self.constants
        terms = Terms(k.kept, free, k.bias, free, self.problem.r * (unit * self.clips) ** 2)
        return float(_smallest_root(terms, relative_gap(self.problem)).min())

    def enough_steps(self, unit: float, share: float) -> int:
        """A number of steps T whose bound is at most (1 + share) times the bound for T -> infinity, and at most 0.1%
        above the smallest such T; or `MOST_STEPS`, if no smaller T has such a bound.

        unit: sigma/(C sqrt(T)), the same for every T.
        """
        target = math.sqrt(1 + share) * self.limit(unit)

        low, high = outward(
            lambda steps: not self.values(steps, unit * unit * steps, 1.0)[0].min() > target,
            *(1, 3),
            growth=4,
            most=MOST_STEPS,
        )
        return halved(
            lambda steps: self.values(steps, unit * unit * steps, 1.0)[0].min() > target,
            low,
            high,
            middle=lambda low, high: low if high - low <= max(1, high // 1000) else (low + high) // 2,
        )[1]


def searched(
    p: Problem, run: Run, bound: float, gdp: float, relation: Relation, *, notes: tuple[str, ...] = (), **more: Any
) -> Prescription:
    """The prescription of the parameters that a search found, with their certificate as its bound.

    Args:
        p: the problem.
        run: all parameters of the run.
        bound: the certified bound, infinite where there is none.
        gdp, relation: mu of the whole run, and which data sets are neighbours; they are only recorded.
        notes: remarks. One about derivatives comes first where the difference rule is exact.
        more: further fields of `Prescription`: id, guarantee, trivial_bound, evaluations and, if sampled, batches.
    """
    if not DIFFERENCES[run["difference"]].smoothing:
        notes = ("exact derivatives need losses that can be differentiated forwards; an error rate has none", *notes)
    return Prescription(
        **run,
        algorithm="dpzero",
        n=p.n,
        relation=relation,
        gdp=gdp,
        T=float(run["steps"]),
        bound=bound,
        bound_at_steps=bound,
        notes=notes,
        **more,
    )
