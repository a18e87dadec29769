"""delta(epsilon) of one release in closed form, as a bracket with its rounding errors inside.

For epsilon >= 0 the best event is a half-line of outputs, {L > epsilon}, and any half-line E gives the lower bound
P(E) - e^epsilon Q(E). If E contains {L > epsilon} and no loss below epsilon - r, that bound is too small by at most
(1 - e^-r) e^epsilon Q(E), so the sum of the two is an upper bound.
"""

import math

import numpy as np
from scipy.special import log_ndtr

from dpzero_theory.bisection import outward
from dpzero_theory.check import Array
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT
from dpzero_theory.privacy.certified.laws.pairs import Pair, inverse, losses, rounding

_MOST_LOG = 700.0
"""The largest log whose exponential is taken: e^700 is a float."""
METHOD = "one release"
"""The value of `Bracket.method` in the brackets that this module returns."""


def _loss(pair: Pair, x: float) -> tuple[float, float]:
    """The privacy loss of the pair at the output x, and a bound on its rounding error."""
    (branch,) = pair.branches
    at, width = np.array([x]), np.zeros(1)
    loss, _ = losses(pair, branch, at, width)
    error, _ = rounding(pair, branch, at, width)
    return float(loss[0]), float(error[0]) + 4 * UNIT * abs(float(loss[0]))


def single_delta(epsilon: float, pair: Pair) -> Bracket:
    """Certified bracket of delta(epsilon) of one release of a pair of kind remove, add or replace.

    Args:
        epsilon: epsilon >= 0, below the largest loss.
        pair: the dominating pair of the release.

    Raises:
        OverflowError: rounding errors leave the upper end at twice the lower end or more, or the output at which the
            loss is epsilon is not found.
    """
    (branch,) = pair.branches
    q, s, sign = pair.sample_rate, pair.noise, branch.a_slope
    with np.errstate(divide="ignore", invalid="ignore"):
        x = float(inverse(pair, branch, np.array([sign * epsilon]))[0])
    if not math.isfinite(x):
        raise OverflowError("no event")
    # x is moved outwards until the half-line beyond it certainly contains every output with a loss above epsilon.
    excess, move = math.inf, 4 * UNIT * max(abs(x), s)

    def contains(x: float) -> bool:
        nonlocal excess
        loss, error = _loss(pair, x)
        excess = epsilon - loss + error
        return loss + error <= epsilon

    farthest = x - sign * move * 2.0**60
    x = outward(contains, x, -sign * move, most=farthest)[1]
    if x == farthest:
        raise OverflowError("no event")

    def terms(of: tuple[tuple[float, float], ...]) -> tuple[Array, Array]:
        """The logs of the half-line's masses under weighted normal laws, and bounds on the relative errors of the
        masses.

        of: the logarithm of the weight, and the mean, of each law.
        """
        weights, means = np.array(of).T
        z = sign * (means - x) / s
        log_mass = weights + log_ndtr(z)
        return log_mass, UNIT * (32 + 8 * np.minimum(z, 0.0) ** 2 + 4 * np.abs(z) + 4 * np.abs(weights))

    keep, take = math.log1p(-q) if q < 1 else -math.inf, math.log(q)
    still = ((0.0, 0.0),)
    used = tuple(term for term in ((keep, 0.0), (take, 1.0)) if term[0] > -math.inf)
    other = tuple((weight, -mean) for weight, mean in used)
    first, second = {"remove": (used, still), "add": (still, used), "replace": (used, other)}[pair.kind]
    (log_p, p_error), (log_q, q_error) = terms(first), terms(second)
    log_q = log_q + epsilon
    top = float(np.max(log_p))
    p, q_mass = np.exp(log_p - top), np.exp(np.minimum(log_q - top, _MOST_LOG))
    spread = float(p @ p_error + q_mass @ (q_error + 8 * UNIT * (1 + epsilon + abs(top)))) + 16 * UNIT * float(p.sum())
    value = float(p.sum() - q_mass.sum())
    low, high = value - spread, value + spread - math.expm1(-excess) * 1.01 * float(q_mass.sum())
    if not (low > 0 and high < 2 * low):
        raise OverflowError("rounding errors exceed the answer")
    lower, upper = (math.exp(max(top + math.log(v), -800.0)) for v in (low, high))
    value = math.exp(top + math.log((low + high) / 2))
    return Bracket(lower * (1 - 1e-14), value, min(upper * (1 + 1e-14) + 5e-324, 1.0), METHOD)
