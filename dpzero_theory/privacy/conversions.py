"""Converts the privacy of a history to other notions: Renyi DP and the trade-off function of f-DP.

Renyi DP holds less information than delta(epsilon): converted back to (epsilon, delta), it gives a larger epsilon. The
trade-off function holds the same information. To add a zCDP statement about another mechanism to a history, use
`stated.concentrated`. A mu-GDP mechanism is a full-batch step with noise multiplier 1/mu (2/mu under replace-one).
"""

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import Group, delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bounds, Bracket
from dpzero_theory.privacy.laws.gaussian import Gaussian as GaussianLaw
from dpzero_theory.privacy.mechanism import MECHANISMS, DiscreteGaussian, Gaussian
from dpzero_theory.privacy.step import Steps, steps_of

_MOMENT_ROUNDING = 1e-14  # a bound on the relative rounding error that sums and logs add to a Renyi divergence
_LARGEST_LOG = 700.0  # the largest log whose exponential is taken: e^700 is a float, and a larger one changes nothing


def rdp_of_history(history: Steps, order: float) -> Bracket:
    """Computes the Renyi differential privacy of a history: the larger one of D_a(P || Q) and D_a(Q || P).

    D_a is the Renyi divergence of order a, and P and Q are the distributions of what is released from two neighbouring
    data sets. Let the Gaussian releases without sampling together be mu-GDP, and let each other release be made T_j
    times, with K_j(t) = log E_P e^(t L) for its privacy loss L. Then D_a = (1/(a-1)) sum_j T_j K_j(a - 1) + a mu^2/2
    (Mironov 2017). The result includes quadrature and rounding errors. For discrete Gaussian noise, whose probabilities
    differ by a factor of at most e^G from those of rounded continuous noise (G is about 1e-12), G (2a - 1)/(a - 1) is
    added to the upper and subtracted from the lower end. A step that is stated to be (xi, rho)-zCDP
    (`stated.concentrated`) adds xi + rho a to the upper end, and 0 to the lower one.

    Args:
        history: steps such as `step * 1000`, all with one relation. Noise must be continuous or discrete Gaussian, and
            the sampling full, poisson, cyclic-poisson, fixed-order, shuffled or fixed-size (not under "zero-out"); or
            steps are stated to be zCDP. Shuffled batches add 0 to the lower end.
        order: a > 1.

    Returns:
        A `Bracket` with value = upper; the exact divergence lies between `lower` and `upper`.

    Raises:
        ValueError: an argument is outside its range; steps are of another kind or have several relations; or the order
            is so large, for this noise, that the divergence needs too many quadrature nodes.
    """
    a = check.real("order", order, above=1)
    made = steps_of(history)
    run = Group(made)
    lower, upper = np.zeros(2), np.zeros(2)
    for release in made:
        law, known = MECHANISMS[release.mechanism], release.cost()
        if any(known.zcdp):
            upper += known.zcdp[1] + a * known.zcdp[0]
            continue
        cost = law.compared(release) if isinstance(law, DiscreteGaussian) else known
        laws = [part for parts in (*cost.above, *cost.below) for part, _ in parts]
        known_law = isinstance(law, Gaussian | DiscreteGaussian)
        if not (known_law and all(isinstance(part, GaussianLaw) for part in laws)):
            rule = "history must have Gaussian noise and batches whose divergences are known"
            raise ValueError(f"{rule}; got sampling {release.sampling.word} and mechanism {release.mechanism}")
        apart = cost.ratio * (2 * a - 1) / (a - 1)
        for way, (total, parts, end) in itertools.product((0, 1), ((lower, cost.below, 0), (upper, cost.above, 1))):
            known_moments = [(part, count) for part, count in parts[way] if isinstance(part, GaussianLaw)]
            try:
                moment = math.fsum(count * part.log_moment(a - 1)[end] for part, count in known_moments)
            except OverflowError:
                rule = f"order must be smaller for a divergence at noise {release.noise:g} to be known"
                raise ValueError(f"{rule}; got {a!r}") from None
            total[way] += a * cost.squares[1 - end] / 2 + (2 * end - 1) * apart + moment / (a - 1)
    high = float(upper.max()) * (1 + _MOMENT_ROUNDING)
    low = min(max(float(lower.max()) * (1 - _MOMENT_ROUNDING), 0.0), high)
    return run.bracket(Bounds(low, high))


def trade_off(history: Steps, type_one: ArrayLike) -> Array:
    """Returns a lower bound on the trade-off function f of a history. An attack that tells two neighbouring data sets
    apart, with type I error a, has a type II error of at least f(a).

    The bound is the largest of 0, 1 - delta(epsilon) - e^epsilon a, and e^-epsilon (1 - delta(epsilon) - a) over 60
    values of epsilon, with upper bounds on delta(epsilon) (Dong, Roth and Su, Proposition 2.12). It is close to f.

    Args:
        history: steps such as `step * 1000`, all with one relation.
        type_one: type I errors a in [0, 1], an array of any shape.

    Returns:
        The lower bound on f(a) at each a, in an array of the shape of `type_one`.

    Raises:
        ValueError: an argument is outside its range, the steps have several relations, or delta of the history is above
            1e-12 at every epsilon, as for an (epsilon, delta)-private step with a larger delta.
    """
    a = check.real_array("type_one", type_one, at_least=0, at_most=1)
    top = epsilon_of_history(history, 1e-12).upper
    best = np.zeros_like(a)
    for epsilon in np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 59) * max(top, 1e-9)]):
        spent = delta_of_history(history, float(epsilon)).upper
        with np.errstate(divide="ignore"):
            best = np.maximum(best, 1 - spent - np.exp(np.minimum(np.log(a) + epsilon, _LARGEST_LOG)))
        best = np.maximum(best, math.exp(-epsilon) * (1 - spent - a))
    return best
