"""The privacy of a history in other notions: the trade-off curve of f-DP, and Renyi DP.

The function delta(epsilon) determines the exact cost of a history, and the trade-off curve holds the same information.
Renyi DP is for results that are stated in it. It holds less: whoever converts it back to (epsilon, delta) needs more
noise for the same guarantee. A zCDP statement about another mechanism becomes part of a history by
`stated.concentrated`. A mu-GDP release is a step with full batches and noise multiplier 1/mu under add-remove (2/mu
under replace-one).
"""

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import cost_of, delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.laws.gaussian import Gaussian as GaussianLaw
from dpzero_theory.privacy.mechanism import MECHANISMS, DiscreteGaussian, Gaussian
from dpzero_theory.privacy.step import Steps, steps_of

_MOMENT_ROUNDING = 1e-14  # a bound on the relative rounding error that sums and logs add to a Renyi divergence
_LARGEST_LOG = 700.0  # the largest log whose exponential is taken: e^700 is a float, and a larger one changes nothing


def rdp_of_history(history: Steps, order: float) -> Bracket:
    """Renyi differential privacy: a bracket of the larger of the Renyi divergences D_a(P || Q) and D_a(Q || P).

    P and Q are the laws of what is released from two neighbouring data sets, and a is the order. D_a = (1/(a-1)) sum_j
    T_j K_j(a - 1) + a mu^2/2, where the first term is for releases from random batches: release j is made T_j times,
    and K_j(t) = log E_P e^(t L) for its privacy loss L. The second term is for all other Gaussian releases, which are
    together mu-GDP (Mironov 2017). The bracket includes quadrature and rounding errors. Discrete Gaussian noise has the
    probabilities of rounded continuous noise up to a factor e^G, with G at most about 1e-12 (`Cost.ratio`); therefore G
    (2a - 1)/(a - 1) is added to the upper end and subtracted from the lower one. A step that is only stated to be (xi,
    rho)-zCDP (`stated.concentrated`) adds xi + rho a to the upper end, and 0 to the lower one.

    Args:
        history: steps, such as `step * 1000`, all with one relation. Noise must be continuous or discrete Gaussian, and
            the sampling full, poisson, cyclic-poisson, fixed-order, shuffled or fixed-size (not under zero-out); or
            steps are stated to be zCDP. Shuffled batches count as 0 in the lower end.
        order: a > 1.

    Returns:
        A bracket with value = upper, which is certified.

    Raises:
        ValueError: an argument outside its range; steps of other kinds than those above, or of several relations; an
            order so large, for the noise, that the divergence needs too many quadrature nodes.
    """
    a = check.real("order", order, above=1)
    made = steps_of(history)
    cost_of(made)
    lower, upper = np.zeros(2), np.zeros(2)
    closed = True
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
        closed &= cost.closed
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
    return Bracket(low, high, high, "closed form" if closed else "grid")


def trade_off(history: Steps, type_one: ArrayLike, *, points: int = 60) -> Array:
    """A certified lower bound on the trade-off function f: no test of level a that tells two neighbouring data sets
    apart by what is released has a type II error below f(a).

    f(a) is the largest of 0 and, over all epsilon, of 1 - delta(epsilon) - e^epsilon a and of e^{-epsilon} (1 -
    delta(epsilon) - a) (Dong, Roth and Su, Proposition 2.12). Here epsilon takes `points` values and delta(epsilon) is
    its certified upper end: any values give a lower bound, and 60 give one close to the curve.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        type_one: levels a in [0, 1] of the test, the probabilities of its type I error, any shape.
        points: the number of values of epsilon, at least 2; more take longer and raise the bound a little.

    Returns:
        The bound at each level, in an array of the shape of `type_one`.

    Raises:
        ValueError: an argument outside its range, steps with several relations, or a history whose delta is above 1e-12
            at every epsilon, such as an (epsilon, delta)-private step with a larger delta.
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
