"""Searches for the step size, clip and numbers of steps and directions with the smallest bound of `certificate`.

Gradients are in units of `Problem.gradient_unit` (L), lengths in units of L/ell and losses in units of L^2/ell, where
ell is `Problem.smoothness`.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.bisection import halved, outward
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.theory.problem import LARGEST, SMALLEST, Problem, Run
from dpzero_theory.theory.sharp.constants import Constants, constants, law_of
from dpzero_theory.theory.sharp.moments import without_lipschitz

MOST_DIRECTIONS = 2**16  # The largest K, number of directions a step, that is tried; no run takes more
MOST_STEPS = 10**15  # The largest number of steps T that a search tries, and the largest value of a cap on it
SMOOTHING_SHARE = 0.01  # The smoothing lambda is the largest that raises the bound by at most about this share of it
STEPS_SHARE = 0.05  # Without a limit, T is the fewest steps whose bound is at most this share above the best
SMALLEST_GDP, LARGEST_GDP = 1e-50, 1e50  # Float64 has no room for searches beyond this range of mu.
_SMALLEST_CLIP, _LARGEST_CLIP = 0.02, 15.0  # The first grid has clips c = C/(L sqrt(K)) in this range.
_LARGEST_OF_MOMENT = 1e6  # The first grid's largest c for a `gradient_moment`, where single gradients may be long
_NEVER_CLIPS = 1e10  # Larger clips c = C/(L sqrt(K)) are replaced by this one, which as good as never clips either.


@dataclass(frozen=True)
class Terms:
    """Coefficients of the inequality q y^2 - p y <= M that bounds the root mean square gradient y of a run.

    For T steps of size alpha, q = kept - alpha quadratic/2, p = first + alpha second and M = gap/(alpha T) + alpha
    constant/2, where gap is how far the mean loss F_S is above its infimum at the start. y^2 is E||grad F_S(x_tau)||^2,
    where x_tau are the weights before a uniformly random step. Units are such that `Problem.gradient_unit` and
    `Problem.smoothness` are 1. The fields are arrays of one shape, with an entry for each clip.
    """

    kept: Array
    quadratic: Array
    first: Array
    second: Array
    constant: Array

    @classmethod
    def of(cls, k: Constants, p: Problem, e: float, variance: Array | float, rate: float) -> Self:
        """Compute, for several clips, the coefficients in (kept - alpha quadratic/2) y^2 - (first + alpha second) y <=
        gap/(alpha T) + alpha constant/2, which bounds the root mean square gradient y of T steps of size alpha.

        Args:
            k: what `constants_of` returns for the clips and the distribution of the directions.
            p: the problem, of which `r` and `n` are used.
            e: half the smoothing, times `Problem.smoothness`, divided by `Problem.gradient_unit`.
            variance: sigma^2/(K L^2) for K directions in a step and noise of standard deviation sigma on the average
                for each of them, where L is `Problem.gradient_unit`; one number, or an array with one for each clip.
            rate: the probability with which a sample is in a step's batch; 1 if every step uses all samples.
        """
        smooth = e * k.smooth_second
        with np.errstate(over="ignore"):
            batch = 0.0 if rate == 1 else (1 - rate) / (rate * p.n) * (k.sampled + smooth) ** 2
            return cls(
                kept=k.kept,
                quadratic=k.quadratic,
                first=k.bias + e * k.smooth_first,
                second=k.cross + smooth * k.spread,
                constant=(k.excess + smooth) ** 2 + p.r * variance + batch,
            )

    def root(self, gap_per_step: float, alpha: float) -> tuple[float, float, float, float]:
        """Return (q, p, M, y) for one clip: the numbers of the inequality q y^2 - p y <= M, and the largest y that
        satisfies it.

        All fields must be arrays of one entry. `gap_per_step` is `Problem.relative_gap` divided by the number of steps,
        and `alpha` the step size times `Problem.smoothness`. y bounds the root mean square gradient of the run in units
        of `Problem.gradient_unit`; it is infinite if q <= 0.
        """
        with np.errstate(over="ignore"):
            q = float((self.kept - alpha / 2 * self.quadratic).item())
            p = float((self.first + alpha * self.second).item())
            floor = float((np.float64(gap_per_step) / alpha + alpha / 2 * self.constant).item())
        return q, p, floor, (p + math.sqrt(p * p + 4 * q * floor)) / (2 * q) if q > 0 else math.inf


def constants_of(problem: Problem, clip: ArrayLike, direction: str, directions_per_step: int) -> Constants:
    """Return the `Constants` with which `certificate` bounds a step, for a problem that has exactly one of `lipschitz`,
    `gradient_moment` and `mean_excess`.

    Raises ValueError for an argument outside its range, and PreconditionError for directions that are not covered.

    Args:
        problem: the constants of the problem.
        clip: one or several numbers C/(A sqrt(K)) > 0, where C clips the norm of a sample's K finite differences and A
            is `Problem.gradient_unit`.
        direction: the name of the distribution of the directions, such as "sphere".
        directions_per_step: K >= 1.
    """
    p = problem
    k = constants(clip, p.d, p.r, direction, p.sample_rank, directions_per_step, p.layer_rank)
    if not math.isinf(p.lipschitz):
        return k
    return without_lipschitz(k, check.real_array("clip", clip, above=0), p, direction, directions_per_step)


def _smallest_root(terms: Terms, gap_per_step: float) -> Array:
    # Returns for each clip the smallest bound y on the root mean square gradient over all step sizes alpha, rounded up.
    # For fixed y the condition q y^2 - p y >= M, with q, p and M as in `Terms`, is quadratic in alpha. Some alpha meets
    # it if and only if kept y - first >= sqrt(2 (gap/T) (quadratic + 2 second/y + constant/y^2)), where gap/T is
    # `gap_per_step`. The left side rises in y and the right side falls, so that bisection finds the least such y.
    a = 2 * gap_per_step
    # At y = `high` the left side is `spare`, and its square is at least three times each of the three terms under the
    # root, since y >= spare for kept <= 1. So the condition holds there.
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


class SearchOptions(TypedDict, total=False):
    """Keyword arguments that limit the parameters among which a function such as `certificate.prescribe` searches.

    n is the number of samples, T the number of steps and K the number of directions in a step.

    Attributes:
        max_steps: an upper limit on T. For each of the three limits None, the default, means no limit.
        max_evaluations: an upper limit on n K T, the number of finite differences of single samples in the whole run.
        max_points: an upper limit on the number of evaluations of single samples' losses in the whole run: 2 n K T for
            "central" differences, n (K + 1) T for "forward" and "exact" ones.
        direction: the distribution of the directions: "sphere" (the default), "gaussian", "rademacher", "frame"
            (orthogonal ones) or "low-rank:RANK" (RANK outer products for each weight matrix).
        directions_per_step: K >= 1, or "best" to search for K too; by default 1.
        difference: how the derivative of a loss along a direction is estimated: "central" (the default), "forward" or
            "exact" (automatic differentiation).
    """

    max_steps: int | None
    max_evaluations: int | None
    max_points: int | None
    direction: str
    directions_per_step: int | str
    difference: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """The keyword arguments of `SearchOptions`, with their defaults filled in. `max_evaluations` limits the
    finite differences of single samples in the whole run, and `max_points` the evaluations of their losses."""

    max_steps: int | None = None
    max_evaluations: int | None = None
    max_points: int | None = None
    direction: str = "sphere"
    directions_per_step: int | str = 1
    difference: str = "central"

    def steps(self, n: int, directions: int) -> int | None:
        """Return the largest number of steps T <= 10^15 within the limits; None if all three are None.

        `max_steps` limits T; `max_evaluations` limits n K T, the number of finite differences of single samples, where
        K is `directions`; `max_points` limits the number of evaluations of single samples' losses, 2 n K T for
        "central" differences and n (K + 1) T for others. Raises ValueError if a limit is not an integer >= 1 or
        `max_steps` is above 10^15, and PreconditionError if not even one step is allowed.
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

    def best_directions(
        self, problem: Problem, batch: float, smallest: Callable[[int], float], share: float = 0.0
    ) -> int:
        """Return the number K of directions in a step with about the smallest bound, of the form round(2^(j/4)) or the
        largest allowed K.

        K is at most 2^16, the limit of `direction`, and what one step within the limits allows. If `max_evaluations` or
        `max_points` is given, a local search from K = 1 follows falling values of `smallest`. Otherwise `smallest` must
        fall as K grows, and the smallest K is returned whose value is at most (1 + share) times the value at the
        largest K.

        Args:
            problem: the problem; with direction "frame", K is at most its d.
            batch: the expected number of samples in a step.
            smallest: a function of K that returns the value to minimise.
            share: the allowed excess over the smallest value, as a fraction of it.
        """
        most = self.most_directions(batch)
        capped = math.inf if most is None else max(most, 1.0)
        last = min(float(MOST_DIRECTIONS), law_of(self.direction).most(problem.d), capped)
        ratios = range(1 + math.floor(4 * math.log2(last)))
        grid = sorted({round(2 ** (j / 4)) for j in ratios} | {math.floor(last)})
        if most is None:
            target = (1 + share) * smallest(grid[-1])
            return grid[bisect.bisect_left(grid, True, key=lambda k: smallest(k) <= target)]
        i, jump = 0, 4
        while jump:
            near = [j for j in (i + jump, i - jump) if 0 <= j < len(grid) and smallest(grid[j]) < smallest(grid[i])]
            i, jump = (near[0], jump) if near else (i, jump // 2)
        return grid[i]

    def most_directions(self, batch: float) -> float | None:
        """Return the largest number K of directions with which one step on `batch` samples stays within the limits.

        `max_evaluations` limits `batch` K, and `max_points` limits 2 `batch` K for "central" differences and `batch` (K
        + 1) for others. The result may be a fraction, is below 1 if not even one direction is allowed, and None if
        neither limit is given. `batch` is the expected number of samples in a step.
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
    """The parameters of a run, in units in which `Problem.gradient_unit` (L) and `Problem.smoothness` (ell) are 1.

    Attributes:
        gap: `Problem.relative_gap`.
        alpha: the step size times ell.
        steps: the number of steps.
        clip: C/(L sqrt(K)) for the clip C and K directions in a step, at most 1e10. A larger one, which clips nothing,
            is replaced by 1e10 if the problem has `lipschitz`, and refused otherwise.
        error: half the smoothing, times ell/L; 0 for difference "exact".
        variance: sigma^2/(K L^2) for noise of standard deviation sigma on the average for each direction.
        direction: the name of the distribution of the directions.
        directions: K.
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
        """Remove the units from `run`, the parameters of a run, for the problem p.

        Raises ValueError if a parameter is outside its range, or if the smoothing does not fit the kind of difference.
        """
        directions = check.integer("directions_per_step", run.get("directions_per_step", 1))
        unit, gap = p.gradient_unit, p.relative_gap
        share = check.real("clip", run["clip"], above=0) / unit / math.sqrt(directions)
        if math.isinf(p.lipschitz):  # Without L any clip may shorten some gradients, so a large one is not replaced.
            share = check.real("clip over the unit of gradients", share, at_least=SMALLEST, at_most=_NEVER_CLIPS)
        else:
            name = "clip/(lipschitz sqrt(directions_per_step))"
            share = check.real(name, min(share, _NEVER_CLIPS), at_least=SMALLEST)
        error, difference = 0.0, DIFFERENCES[run.get("difference", "central")]
        if difference.smoothing:
            smoothing = check.real("smoothing", run["smoothing"], above=0) * (p.smoothness / unit)
            error = check.real("smoothing smoothness/lipschitz", smoothing, above=0, at_most=LARGEST) / 2
        else:
            difference.checked(run["smoothing"])
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
    """The smallest bound on the mean squared gradient over the step size and the clip C, for smoothing near 0.

    The bound is that of `certificate`. The best step size has a closed form. The best clip is found on a grid of c =
    C/(L sqrt(K)), where L is `Problem.gradient_unit` and K the number of directions in a step.

    Args:
        problem: the constants.
        direction: the name of the distribution of the directions, such as "sphere" or "low-rank:4".
        directions: K.

    Attributes:
        clips: the grid of c with which a search for the best clip begins.
        constants: what `constants_of` returns at these c.
    """

    def __init__(self, problem: Problem, direction: str, directions: int = 1) -> None:
        self.problem = problem
        self.direction = direction
        self.directions = directions
        if problem.gradient_moment is None:
            largest, points = min(law_of(direction).largest(problem.d, directions), _LARGEST_CLIP), 40
        else:  # Gradients may be arbitrarily long, so that the bias falls only as a power of the clip.
            largest, points = _LARGEST_OF_MOMENT, 100
        self.clips = np.geomspace(_SMALLEST_CLIP, largest, points)
        if directions > 1:  # ||U'g||/sqrt(K), which is clipped, is near 1 for unit gradients g: a finer grid there
            near = 1 + np.linspace(-3, 14, 60) / math.sqrt(directions)
            self.clips = np.union1d(self.clips, near[(near > _SMALLEST_CLIP) & (near < largest)])
        self.constants = constants_of(problem, self.clips, direction, directions)

    def values(
        self, steps: int, variance: float, rate: float, clips: Array | None = None, k: Constants | None = None
    ) -> tuple[Array, Array]:
        """Return for each clip the smallest bound on the root mean square gradient over step sizes, and its step size.

        Args:
            steps: the number of steps.
            variance: (sigma/C)^2 for the clip C and noise of standard deviation sigma on the average for each
                direction.
            rate: the probability with which a sample is in a step's batch; 1 if every step uses all samples.
            clips, k: clips as C/(L sqrt(K)), where L is `Problem.gradient_unit`, and what `constants_of` returns at
                them; by default the attributes `clips` and `constants`.

        Returns:
            Two arrays with the shape of the clips: the bounds in units of `Problem.gradient_unit`, and the step sizes
            times `Problem.smoothness`. If rounding hides the best step size, the bound is infinite and the step size
            meaningless.
        """
        clips, k = self.clips if clips is None else clips, self.constants if k is None else k
        terms = Terms.of(k, self.problem, 0.0, variance * clips * clips, rate)
        gap_per_step = self.problem.relative_gap / steps
        y = _smallest_root(terms, gap_per_step)
        spare = y * (terms.kept * y - terms.first)
        lost = spare <= 0  # This is so only by rounding, where `first`, the bias of clipping, is nearly all of kept y.
        return np.where(lost, math.inf, y), 2 * gap_per_step / np.where(lost, 1.0, spare)

    def best(self, steps: int, variance: float, rate: float) -> tuple[float, float]:
        """Return the clip and the step size with the smallest bound on the mean squared gradient.

        Args:
            steps: the number of steps.
            variance: (sigma/C)^2 for the clip C and noise of standard deviation sigma on the average for each
                direction.
            rate: the probability with which a sample is in a step's batch; 1 if every step uses all samples.

        Returns:
            The clip C as C/(L sqrt(K)), where L is `Problem.gradient_unit` and K the number of directions in a step,
            and the step size times `Problem.smoothness`.
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
        """Return the smallest bound on the root mean square gradient for infinitely many steps, over the grid of clips
        in the attribute `clips`.

        The result is in units of `Problem.gradient_unit`. `unit` is sigma/(C sqrt(T)) for T steps that all use every
        sample, with the clip C and noise of standard deviation sigma on the average for each direction; at a given
        privacy level it is the same for every T.
        """
        free = np.zeros_like(self.clips)
        k = self.constants
        terms = Terms(k.kept, free, k.bias, free, self.problem.r * (unit * self.clips) ** 2)
        return float(_smallest_root(terms, self.problem.relative_gap).min())

    def enough_steps(self, unit: float, share: float) -> int:
        """Return the smallest number of steps, or one at most 0.1% larger, whose bound on the mean squared gradient is
        at most (1 + share) times the bound for infinitely many steps; 10^15 if 10^15 steps are not enough.

        Args:
            unit: sigma/(C sqrt(T)) for T steps that all use every sample, with the clip C and noise of standard
                deviation sigma on the average for each direction. At a given privacy level it is the same for every T.
            share: the allowed excess over the bound for infinitely many steps, > 0, as a fraction of that bound.
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
