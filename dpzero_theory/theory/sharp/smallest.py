"""The smallest bound of the sharpened theorem over its parameters, for `certificate.prescribe`.

Gradients are in units of L, lengths in units of L/ell and losses in units of L^2/ell. The notation is that of
`certificate`; y is the square root of the bound.
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
STEPS_SHARE = 0.05  # Without a cap, T is the smallest number of steps whose bound is at most this share above the best
SMALLEST_GDP, LARGEST_GDP = 1e-50, 1e50  # Float64 has no room for searches beyond this range of mu.
_SMALLEST_CLIP, _LARGEST_CLIP = 0.02, 15.0  # The first grid has clips c = C/(L sqrt(K)) in this range.
_LARGEST_OF_MOMENT = 1e6
"""The largest c = C/(L sqrt(K)) on the first grid if only a moment of gradients is bounded. Gradients may then be
arbitrarily long, and the best clip can be far larger."""
_NEVER_CLIPS = 1e10
"""A larger clip c = C/(L sqrt(K)) is replaced by this one, which has the same effect: the length that is clipped
exceeds it never, or with a probability below exp(-10^19)."""


@dataclass(frozen=True)
class Terms:
    """The coefficients of the sharpened theorem's inequality q y^2 - p y <= K, for y^2 = E||grad F_S(x_tau)||^2:

    q = kept - alpha quadratic/2, p = first + alpha second, K = gap/(alpha T) + alpha constant/2

    for T steps of any size alpha. F_S is the mean loss, and tau is uniform on 0, ..., T - 1. `first` comes from what
    clipping and smoothing take from a gradient, `quadratic`, `second` and `constant` from the curvature along a step,
    its noise included. K is not the number of directions, L = ell = 1, and the fields are arrays of one shape with an
    entry for each clip."""

    kept: Array
    quadratic: Array
    first: Array
    second: Array
    constant: Array

    @classmethod
    def of(cls, k: Constants, p: Problem, e: float, variance: Array | float, rate: float) -> Self:
        """Make the coefficients kept, quadratic, first, second and constant of the sharpened theorem's inequality q y^2
        - p y <= gap/(alpha T) + alpha constant/2, with q = kept - alpha quadratic/2 and p = first + alpha second, which
        bounds y^2 = E||grad F_S(x_tau)||^2 over T steps of size alpha with given clips.

        Args:
            k: what `constants_of` returns for the clips and the law of the directions.
            p: the problem, of which r and n are used.
            e: ell lambda/2 in units of L, for the smoothing lambda.
            variance: in units of L^2, sigma^2 over the number of directions, for noise of standard deviation sigma on
                each number of a step; one number, or one for each clip.
            rate: the Poisson sampling rate, 1 for full batches.
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
        """Return the coefficients q, p and K of the theorem's inequality q y^2 - p y <= K, and its largest root y.

        y, infinite if q <= 0, bounds the square root of E||grad F_S(x_tau)||^2, tau uniform on 0, ..., T - 1, in units
        of L, the bound on samples' gradients; F_S is the mean loss. K is not the number of directions. All five fields
        of this object must be arrays of one entry, for one clip. For T steps `gap_per_step` is (F_S(x_0) - inf F_S)/T,
        in units of L^2/ell with the smoothness ell, and `alpha` is the step size, in units of 1/ell."""
        with np.errstate(over="ignore"):
            q = float((self.kept - alpha / 2 * self.quadratic).item())
            p = float((self.first + alpha * self.second).item())
            floor = float((np.float64(gap_per_step) / alpha + alpha / 2 * self.constant).item())
        return q, p, floor, (p + math.sqrt(p * p + 4 * q * floor)) / (2 * q) if q > 0 else math.inf


def constants_of(problem: Problem, clip: ArrayLike, direction: str, directions_per_step: int) -> Constants:
    """Return the constants of a step at the clips c = C/(A sqrt(K)), for whichever bound on gradients the problem has.

    A is `Problem.gradient_unit`. `clip` is c > 0, a number or an array, `direction` the name of the law of the
    directions and `directions_per_step` K. Raises ValueError for an argument outside its range, and PreconditionError
    for a law or a K that the sharpened theorem (`certificate`) does not cover."""
    p = problem
    k = constants(clip, p.d, p.r, direction, p.sample_rank, directions_per_step, p.layer_rank)
    if not math.isinf(p.lipschitz):
        return k
    return without_lipschitz(k, check.real_array("clip", clip, above=0), p, direction, directions_per_step)


def _smallest_root(terms: Terms, gap_per_step: float) -> Array:
    """Return for each clip the root of the smallest bound on E||grad F_S(x_tau)||^2 over all step sizes, in units of L
    and rounded up, where tau is a random one of a run's T steps. `terms` has the bound's coefficients at each clip;
    `gap_per_step` is (F_S(x_0) - inf F_S)/T, in units of L^2/ell."""
    # For fixed y the condition q y^2 - p y >= K is quadratic in the step size alpha (q, p and K, which
    # is not the number of directions, are as in `Terms`). Some alpha meets it if and only if kept y - first >= sqrt(2
    # (gap/T) Q(y))/y, where Q(y) = quadratic y^2 + 2 second y + constant. The left side rises in y and the right side
    # falls, so that the least such y is found by bisection.
    a = 2 * gap_per_step
    # The upper end of the interval is at least the root: each of the three terms of 2 gap/T Q(y)/y^2 is at most a third
    # of the left side squared there, since kept <= 1.
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
    """What a search for parameters is free to choose from, as keyword arguments.

    Attributes:
        max_steps: a cap on the steps T; None, the default of all three caps, is no cap.
        max_evaluations: a cap on n K T, the differences of single samples.
        max_points: a cap on the evaluations of single samples' losses, which are n T 2 K with central differences and n
            T (K + 1) with forward and exact ones.
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
    """The options of a search for parameters, with their defaults; the fields are the entries of `SearchOptions`."""

    max_steps: int | None = None
    max_evaluations: int | None = None
    max_points: int | None = None
    direction: str = "sphere"
    directions_per_step: int | str = 1
    difference: str = "central"

    def steps(self, n: int, directions: int) -> int | None:
        """Return the largest number of steps T that the caps allow with full batches of n samples; None without a cap.

        The caps are the fields `max_steps`, <= 10^15, `max_evaluations` and `max_points` (`SearchOptions`), integers >=
        1. `directions` is K. Raises ValueError for another cap, and PreconditionError if a cap allows no step."""
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
        """Return the best K, the number of directions a step, among the rounded 2^(j/4), j >= 0, and the largest K.

        The largest K is 2^16, or less if the law of the directions or one step within the caps allows less. With
        `max_evaluations` or `max_points` (see `SearchOptions`), K T is capped; as K grows the bound then falls and
        rises again, and the search goes downhill from K = 1. Else the bound only falls, and the smallest K is returned
        whose value is at most (1 + share) times the value of the largest K.

        Args:
            problem: with the direction law "frame", K is at most its d.
            batch: the (expected) number of samples in a step.
            smallest: a function of K that returns the smallest bound for this K, or its square root.
            share: how much above the smallest value a smaller K may be, as a share of that value, without a cap.
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
        """Return the largest K, not necessarily whole, with which one step on `batch` samples keeps to the caps.

        The caps are the fields `max_evaluations`, on the differences of single samples, K `batch` in a step, and
        `max_points`, on the losses of single samples, 2 K `batch` with central and (K + 1) `batch` with other
        differences. K is below 1 if not even one direction is allowed, and None without a cap of these two."""
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
    """A run's parameters for one problem in units where L = ell = 1; L stands for `Problem.gradient_unit`.

    Attributes:
        gap: (F_S(x_0) - F_S^*) ell/L^2, how far the mean loss is above its minimum at the start.
        alpha: the step size, times ell.
        steps: T.
        clip: c = C/(L sqrt(K)) for the run's clip C, at most 1e10, beyond which nothing is clipped.
        error: e = ell lambda/2 over L, for the smoothing lambda; 0 with a difference rule that shifts no weights.
        variance: sigma^2/K over L^2, for noise of standard deviation sigma on each of a step's K averages.
        direction, directions: the name of the law of the directions, and K, their number in a step.
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
        """Remove the units from the parameters of a run, the entries of `Run`, for the problem p.

        Raises ValueError for a parameter outside its range, or a smoothing that does not fit the difference rule.
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
    """The smallest bound on E||grad F_S(x_tau)||^2, tau uniform on 0, ..., T - 1, over the step size alpha and the clip
    C, for smoothing lambda -> 0, one problem and one K, the number of directions a step.

    The best alpha has a closed form; the best C = c L sqrt(K), L being `Problem.gradient_unit`, is sought on a grid.

    Args:
        problem: the constants.
        direction: the name of a law that `constants.law_of` knows, such as "sphere" or "low-rank:4".
        directions: K.

    Attributes:
        clips: the first grid of clips c.
        constants: the constants of `constants_of` at these clips.
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
        if directions > 1:  # The norm of K scalars of a unit gradient, over sqrt(K), concentrates near 1.
            near = 1 + np.linspace(-3, 14, 60) / math.sqrt(directions)
            self.clips = np.union1d(self.clips, near[(near > _SMALLEST_CLIP) & (near < largest)])
        self.constants = constants_of(problem, self.clips, direction, directions)

    def values(
        self, steps: int, variance: float, rate: float, clips: Array | None = None, k: Constants | None = None
    ) -> tuple[Array, Array]:
        """Return for each clip the square root of the smallest bound on the mean squared gradient, and its step size.

        Args:
            steps, variance, rate: the number of steps; sigma^2/C^2 for the clip C and the noise's standard deviation
                sigma, on each of a step's K averages; and the Poisson sampling rate, which is 1 for full batches.
            clips, k: the clips c = C/(L sqrt(K)) and the constants of `constants_of` at them, given together; if both
                are None, the attributes `clips` and `constants`.

        Returns:
            Two arrays of the shape of the clips, in units of L and of 1/ell. Where rounding hides the best step size,
            the bound is infinite and the step size meaningless.
        """
        clips, k = self.clips if clips is None else clips, self.constants if k is None else k
        terms = Terms.of(k, self.problem, 0.0, variance * clips * clips, rate)
        gap_per_step = self.problem.relative_gap / steps
        y = _smallest_root(terms, gap_per_step)
        spare = y * (terms.kept * y - terms.first)
        lost = spare <= 0  # This is so only by rounding, where `first`, the bias of clipping, is nearly all of kept y.
        return np.where(lost, math.inf, y), 2 * gap_per_step / np.where(lost, 1.0, spare)

    def best(self, steps: int, variance: float, rate: float) -> tuple[float, float]:
        """Return the clip c = C/(L sqrt(K)) and the step size, in units of 1/ell, with the smallest bound on the mean
        squared gradient for the number `steps` of steps. `variance` is sigma^2/C^2, for noise of standard deviation
        sigma on each of a step's K averages, and `rate` the Poisson sampling rate, 1 for full batches."""
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
        """Return the square root, in units of L, of the smallest bound on the mean squared gradient over the clips in
        `clips`, for full batches and a number of steps T -> infinity. `unit` is sigma/(C sqrt(T)) for the clip C and
        noise of standard deviation sigma on each of a step's K averages; at equal privacy it is the same for every T.
        """
        free = np.zeros_like(self.clips)
        k = self.constants
        terms = Terms(k.kept, free, k.bias, free, self.problem.r * (unit * self.clips) ** 2)
        return float(_smallest_root(terms, self.problem.relative_gap).min())

    def enough_steps(self, unit: float, share: float) -> int:
        """Return nearly the fewest steps T whose bound is at most (1 + share) times the bound for T -> infinity.

        Bounds are on the mean squared gradient, for full batches, the smallest over the clips in `clips`. T exceeds the
        fewest steps by at most 0.1%. If the fewest steps are not below 10^15, that number is returned, whose bound may
        be larger.

        Args:
            unit: sigma/(C sqrt(T)) for the clip C and noise of standard deviation sigma on each of a step's K averages;
                at equal privacy it is the same for every T.
            share: how much above the limit the bound may be, > 0, as a share of the limit.
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
