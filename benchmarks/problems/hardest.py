"""A limit to how small a certificate can be: the problem of a convex family on which Algorithm 2 does worst.

The family is that of `benchmarks.problems.worst_case`. Along one coordinate the loss has a constant slope, which lasts
as long as the run; some samples slope the other way, so that clipping keeps as little of the slope as possible. Further
coordinates are curved and hold the noise of the steps. In the limit T -> infinity with S = alpha T and nu = alpha
sigma^2/K fixed and Gaussian directions, the mean over the run of ||grad F_S||^2 is at least

    G^2 (1 - (pi/2)^(1/2) (S nu)^(1/2)/D) + N/(1 + 3 N/(2 rho^2)) - o(1),      N = (nu/2) (r ell - G/w).

G is the slope, w the width over which it levels off at its end, and D = S drift(G) its length, where drift(G) is how
fast a run moves down it after clipping; rho is the largest gradient of a curved coordinate. Proof, with the terms in
o(1), and what is simulated instead: dpzero_theory/theory/sharp/proof.md, section 9.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpzero_theory import check
from dpzero_theory.bisection import halved
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.projection import Projection
from dpzero_theory.theory.sharp.smallest import ScaledRun

_OPPOSED = np.linspace(0.0, 1.0, 101)  # The backward slopes that are tried, as shares of the forward slope


@dataclass(frozen=True, kw_only=True)
class Hardest:
    """The problem on which Algorithm 2 does worst at given parameters, in the problem's units.

    It is sought in the family of `benchmarks.problems.worst_case`, whose names the attributes have: one coordinate has
    a constant slope, and further ones are curved.

    Attributes:
        share: the share of the samples whose loss slopes forward, which is the way that the run moves.
        forward, backward: the slopes of the samples that slope forward, and of the others.
        slope: G, the mean slope over all samples.
        drift: the most that a step moves down the slope on average, divided by alpha.
        width: w, the width over which the slope levels off at its end.
        start: the distance of the run's start from the point where the slope has levelled off.
        curved, curvature: the number of curved coordinates, and the curvature of each.
        saturation: rho, the largest gradient of a curved coordinate.
        bound: the value that a lower bound on the mean over the run of ||grad F_S||^2 tends to as T -> infinity.
            The vanishing term o(1) is left out, so at a finite number of steps it is an estimate and bounds nothing.
    """

    share: float
    forward: float
    backward: float
    slope: float
    drift: float
    width: float
    start: float
    curved: int
    curvature: float
    saturation: float
    bound: float


def hardest(
    problem: Problem,
    *,
    step_size: float,
    steps: int,
    clip: float,
    noise_std: float,
    directions_per_step: int = 1,
    saturation: float = 0.2,
    coordinates: int | None = None,
    lengthened: float = 0.0,
) -> Hardest:
    """The problem (see `Hardest`) with the steepest slope that lasts as long as a run with these parameters.

    Args:
        problem: the L, ell, r and gap that the returned problem has.
        step_size: alpha > 0.
        steps: T >= 1, the number of steps.
        clip: C > 0, of the norm of a sample's K finite differences.
        noise_std: sigma, the standard deviation of the noise on each coordinate of the average.
        directions_per_step: K >= 1, the number of directions in a step.
        saturation: rho/L in (0, 1), with rho the largest gradient of a curved coordinate.
        coordinates: the number of curved coordinates, over which the curvature r ell - G/w is spread evenly. It is what
            the bound r ell on the trace of the Hessian H leaves beside the end of the slope, where the slope G levels
            off over the width w. None for as few coordinates as ||H|| <= ell allows.
        lengthened: the slope is made longer by so many standard deviations of the run's last point, at the same gap.

    Raises:
        PreconditionError: the gap is not below that of a slope of about L which lasts as long as the run.
    """
    p = problem
    p.require_lipschitz("the family of hardest problems")
    at = ScaledRun.of(
        p,
        step_size=step_size,
        steps=steps,
        clip=clip,
        smoothing=0.0,
        noise_std=noise_std,
        directions_per_step=directions_per_step,
        difference="exact",
    )
    k, c, gap, path = at.directions, at.clip, at.gap, at.alpha * at.steps
    rho, longer = saturation, lengthened
    variance = at.alpha * (noise_std / p.lipschitz) ** 2 / k
    law = Projection(k, math.inf)
    forward = math.sqrt(1 - rho * rho)
    width = forward

    def kept(h: np.ndarray) -> np.ndarray:
        """E[min(h v, c) v] for each h: what clipping at c leaves of a gradient of norm h; v has the law `law`."""
        safe = np.maximum(h, 1e-12)
        values: np.ndarray = safe * (1 - law.excess(c / safe, (1, 1))[0])
        return values

    opposed = _OPPOSED * forward
    outer = np.sqrt(opposed * opposed + rho * rho)
    against = opposed * kept(outer) / outer
    ahead = float(kept(np.array([forward]))[0])

    def drifts(slope: float) -> np.ndarray:
        share = (slope + opposed) / (forward + opposed)
        values: np.ndarray = share * ahead - (1 - share) * against
        return values

    def needed(slope: float) -> float:
        """The gap F_S(x_0) - F_S^* of the problem whose slope is G = `slope` and lasts as long as the run."""
        length = path * max(float(drifts(slope).min()), 0.0) + longer * math.sqrt(path * variance)
        return slope * (length + width / 2)

    check.precondition(needed(forward) > gap, "the gap must be below that of a slope of L as long as the run")
    slope, _ = halved(lambda slope: needed(slope) <= gap, 0.0, forward, 60)
    drift_at = drifts(slope)
    i = int(np.argmin(drift_at))
    drift = float(drift_at[i])
    trace = p.r - slope / width
    curved = max(1, math.ceil(trace)) if coordinates is None else coordinates
    noise = variance / 2 * trace
    length = path * max(drift, 0.0) + longer * math.sqrt(path * variance)
    lost = min(1.0, math.sqrt(math.pi / 2 * path * variance) / length) if longer == 0 and length > 0 else 0.0
    length_unit = p.lipschitz / p.smoothness
    return Hardest(
        share=float((slope + opposed[i]) / (forward + opposed[i])),
        forward=forward * p.lipschitz,
        backward=float(opposed[i]) * p.lipschitz,
        slope=slope * p.lipschitz,
        drift=drift * p.lipschitz,
        width=width * length_unit,
        start=(length + width) * length_unit,
        curved=curved,
        curvature=trace / curved * p.smoothness,
        saturation=rho * p.lipschitz,
        bound=(slope * slope * (1 - lost) + noise / (1 + 1.5 * noise / (rho * rho))) * p.lipschitz**2,
    )
