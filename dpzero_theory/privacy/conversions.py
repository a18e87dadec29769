"""The privacy of a history in two other notions: the trade-off curve of f-DP, and Renyi differential privacy.

The function delta(epsilon) determines the exact cost of a history, and the trade-off curve holds the same information.
Renyi divergences are for results that are stated in them. They hold less: whoever converts them back to (epsilon,
delta) needs more noise for the same guarantee.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history, gaussian_part
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.step import Steps

_MOMENT_ROUNDING = 1e-14
"""A bound on the rounding error of the upper end of a Renyi divergence, relative, from a few sums and logarithms."""
_LARGEST_LOG = 700.0
"""The largest logarithm whose exponential is taken: e^700 is a float, and is treated as infinite."""


def rdp_of_history(history: Steps, order: float) -> Bracket:
    """Renyi differential privacy: a bracket of the larger of the Renyi divergences D_a(P || Q) and D_a(Q || P).

    P and Q are the laws of what is released from two neighbouring data sets, and a is the order. D_a = (1/(a-1)) sum_j
    T_j K_j(a - 1) + a mu^2/2, where release j is made T_j times, K_j is the log moment of its privacy loss under P, and
    mu is that of the plain Gaussian releases (Mironov 2017). Quadrature and rounding errors are inside the bracket; so
    is G (2a - 1)/(a - 1) for noise whose density is within a factor e^G of a Gaussian one.

    Three samplings are bounded from above by others. Fixed-size batches under zero-out count as under replace-one. A
    truncated Poisson step is, with a probability that everyone is told, one with fixed-size batches. A
    random allocation counts as if its steps were known. For these the lower end is what some data attain, and may be
    far below the upper end, which is the one to rely on.

    Args:
        history: steps, such as `step * 1000`, all with one relation and Gaussian noise.
        order: a > 1.

    Raises:
        ValueError: an argument outside its range; an order so large, for the noise, that the divergence needs too many
            nodes.
    """
    a = check.real("order", order, above=1)
    tau = a - 1
    above, below, ratio = gaussian_part(history)
    apart = ratio * (2 * a - 1) / tau

    def bounds(pair: Pair) -> tuple[float, float]:
        """A lower and an upper bound on K(a - 1), the log moment of one release of this pair at the order a."""
        try:
            value, error = cumulant(pair, tau)
        except OverflowError:
            noise = f"noise {pair.noise:g} of its sensitivity"
            raise ValueError(f"order must be smaller for a divergence at {noise} to be known; got {a!r}") from None
        return max(value - error, 0.0), value + error

    lower = max(below.log_moment(tau, index, bounds)[0] for index in (0, 1)) / tau
    upper = max(above.log_moment(tau, index, bounds)[1] for index in (0, 1)) / tau
    lower = max(lower + a * below.plain**2 / 2 - apart, 0.0)
    upper = (upper + a * above.gdp**2 / 2 + apart) * (1 + _MOMENT_ROUNDING)
    return Bracket(min(lower, upper), upper, upper, "quadrature" if above.sampled else "closed form")


def trade_off(history: Steps, type_one: ArrayLike, *, points: int = 60) -> Array:
    """A certified lower bound on the trade-off function: no test of level a has a type II error below it.

    f(a) is the largest of 0 and, over all epsilon, of 1 - delta(epsilon) - e^epsilon a and of e^{-epsilon} (1 -
    delta(epsilon) - a) (Dong, Roth and Su, Proposition 2.12). Here epsilon takes `points` values and delta(epsilon) is
    its certified upper end: any values give a lower bound, and 60 give one close to the curve.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        type_one: levels a in [0, 1] of the test, any shape.
        points: the number of epsilons, at least 2.

    Returns:
        The bound at each level, in an array of the shape of `type_one`.

    Raises:
        ValueError: an argument outside its range.
    """
    a = check.real_array("type_one", type_one, at_least=0, at_most=1)
    count = check.integer("points", points, at_least=2)
    top = epsilon_of_history(history, 1e-12).upper
    best = np.zeros_like(a)
    for epsilon in np.concatenate([[0.0], np.geomspace(1e-3, 1.0, count - 1) * max(top, 1e-9)]):
        spent = delta_of_history(history, float(epsilon)).upper
        with np.errstate(divide="ignore"):
            best = np.maximum(best, 1 - spent - np.exp(np.minimum(np.log(a) + epsilon, _LARGEST_LOG)))
        best = np.maximum(best, math.exp(-epsilon) * (1 - spent - a))
    return best
