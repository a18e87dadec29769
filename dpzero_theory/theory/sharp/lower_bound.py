"""How large a certificate must be: the member of a convex family on which Algorithm 2 does worst at given parameters.

The family is that of `benchmarks.problems.worst_case`: a slope that lasts as long as the run, of which clipping keeps
the least, and coordinates of curvature that hold the noise. In the limit T -> infinity with S = alpha T and nu = alpha
sigma^2/K fixed and Gaussian directions, the mean over the run of ||grad F_S||^2 is at least

    G^2 (1 - (pi/2)^(1/2) (S nu)^(1/2)/D) + N/(1 + 3 N/(2 rho^2)) - o(1),      N = (nu/2) (r ell - G/w).

G is the slope and w its width; D = S drift(G) is its length, where drift(G) is the most that clipping keeps of it; rho
is the gradient at which the curved coordinates saturate. o(1) includes the end term E psi(y_T)/S. Proof, and what is
simulated instead: dpzero_theory/theory/sharp/proof.md, section 9.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpzero_theory import check
from dpzero_theory.bisection import halved
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.projection import Projection
from dpzero_theory.theory.sharp.smallest import clip_share, relative_gap

_OPPOSED = np.linspace(0.0, 1.0, 101)  # Slopes of the samples that slope backward, as shares of the forward slope


@dataclass(frozen=True, kw_only=True)
class Hardest:
    """The worst member of the family for given parameters, in the problem's units.

    The names are those of `benchmarks.problems.worst_case`.

    Attributes:
        share: of the samples that slope forward.
        forward, backward: the slopes of the samples that slope forward, and of the others.
        slope: G.
        drift: what a step moves down the slope at most, over alpha.
        width: w, over which the slope ends.
        start: how far from there the run starts.
        curved, curvature: how many coordinates are curved, and how much.
        saturation: rho, the largest gradient of a curved coordinate.
        bound: the limit's lower bound on the mean over the run of ||grad F_S||^2, without its o(1).
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
    """The member of the family with the steepest slope that lasts as long as a run of these parameters.

    Args:
        problem: the member meets its L, ell, r and gap.
        step_size, steps, clip, noise_std, directions_per_step: alpha, T, C, sigma, K.
        saturation: rho/L in (0, 1).
        coordinates: over how many the curvature r ell - G/w is spread; by default as few as ||H|| <= ell allows.
        lengthened: by how many standard deviations of where the run ends the slope is longer, at the same gap.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: no slope lasts as long: the gap is too small for the run.
    """
    p = problem
    k = check.integer("directions_per_step", directions_per_step)
    t = check.integer("steps", steps)
    rho = check.real("saturation", saturation, above=0, below=1)
    longer = check.real("lengthened", lengthened, at_least=0)
    alpha = check.real("step_size", step_size, above=0) * p.smoothness
    variance = alpha * (check.real("noise_std", noise_std, at_least=0) / p.lipschitz) ** 2 / k
    c, gap, path = clip_share(clip, p, k), relative_gap(p), alpha * t
    law = Projection(k, math.inf)
    forward = math.sqrt(1 - rho * rho)
    width = forward

    def kept(h: np.ndarray) -> np.ndarray:
        """kappa(h) = E[min(h v, c) v]."""
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
        """The gap of a slope that lasts as long as the run."""
        length = path * max(float(drifts(slope).min()), 0.0) + longer * math.sqrt(path * variance)
        return slope * (length + width / 2)

    check.precondition(needed(forward) > gap, "the gap must be below that of a slope of L as long as the run")
    slope, _ = halved(lambda slope: needed(slope) <= gap, 0.0, forward, 60)
    drift_at = drifts(slope)
    i = int(np.argmin(drift_at))
    drift = float(drift_at[i])
    trace = p.r - slope / width
    curved = max(1, math.ceil(trace)) if coordinates is None else check.integer("coordinates", coordinates)
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
