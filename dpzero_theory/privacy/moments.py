"""Upper bounds on delta and epsilon by exponential moments of the privacy loss: not sharp, but they exist for every
history.

With K(t) = log E e^{t L}, where L is the total privacy loss and the expectation is under P, the law of the releases
from one of two neighbouring data sets, delta(epsilon) <= c(t) e^{K(t) - t epsilon} for every t > 0, with the c of
`arithmetic.log_c`. So epsilon(delta) <= (K(t) + log c(t) - log delta)/t. These bounds are used where delta is so small
that rounding hides it from the sharper methods, and beside steps of which only zCDP is known.
"""

import math
from collections.abc import Callable, Sequence

from scipy.optimize import minimize_scalar

from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.laws.arithmetic import log_c
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import OneOf
from dpzero_theory.privacy.composition import Composition

_LOG_T = (math.log(1e-9), math.log(1e13))
"""Natural logarithms of the smallest and the largest order t of a moment E e^{t L} of the privacy loss L that is
tried."""
_CUMULANT_ROUNDING = 1e-9
"""A bound on the relative error of K(t), the log moment of a composition. It is a sum of log moments with relative
errors of about 1e-12."""


def moment_delta(composition: Composition, epsilon: float) -> float:
    """An upper bound on delta of the composition at `epsilon` >= 0, the least one by moments E e^{t L} of the privacy
    loss L over orders t. It is above 0 and at most 1."""

    def upper(log_moment: Callable[[float], float], lost: float) -> float:
        exponent = _least(lambda t: log_moment(t) + log_c(t) - t * epsilon, composition.orders)
        return min(math.exp(min(exponent, 0.0)) + lost + 5e-324, 1.0)

    return _worst(composition, upper)


def moment_epsilon(composition: Composition, delta: float) -> float:
    """An upper bound on epsilon of the composition at `delta` > 0, the least one by moments of the privacy loss. It is
    infinite if the loss may be infinite with the probability `delta`."""

    def upper(log_moment: Callable[[float], float], lost: float) -> float:
        if delta <= lost:
            return math.inf
        level = math.log(delta - lost)
        return max(_least(lambda t: (log_moment(t) + log_c(t) - level) / t, composition.orders), 0.0)

    return _worst(composition, upper)


def _worst(composition: Composition, upper: Callable[[Callable[[float], float], float], float]) -> float:
    """The larger of the values of `upper` for the two directions in which neighbours are compared, for a composition.

    upper: a function of two arguments, the log moment t -> K(t) of one direction and a bound on the probability of an
    infinite privacy loss there; it returns an upper bound on delta or epsilon for this direction.
    """

    def log_moment(t: float, index: int) -> float:
        sampled = composition.log_moment(t, index, lambda pair: _bounds(pair, t))[1]
        return (sampled + composition.gdp**2 * t * (t + 1) / 2) * (1 + _CUMULANT_ROUNDING)

    return max(upper(lambda t, index=index: log_moment(t, index), composition.lost[index]) for index in (0, 1))  # type: ignore[misc]


def _least(value: Callable[[float], float], orders: Sequence[float]) -> float:
    """Return a value of the function at some t > 0 that is about its least one. orders: values of t that are tried too,
    as the function may have a kink there."""
    found = minimize_scalar(
        lambda log_t: value(math.exp(log_t)), bounds=_LOG_T, method="bounded", options={"xatol": 1e-3}
    )
    return min([float(found.fun), *map(value, orders)])


def _bounds(pair: Pair | OneOf, t: float) -> tuple[float, float]:
    """A lower and an upper bound on the log moment K(t) = log E_P e^(t L) of one release, from its dominating pair; L
    is the privacy loss.

    The upper bound is at most that of a release whose batch holds every record.
    """
    whole = pair.shift**2 * t * (t + 1) / 2
    try:
        value, error = cumulant(pair, t)
    except OverflowError:
        return 0.0, whole
    return 0.0, min(max(value + error, 0.0), whole) if math.isfinite(value + error) else whole
