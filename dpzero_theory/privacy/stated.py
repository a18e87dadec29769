"""Steps of other mechanisms whose privacy is known: (epsilon, delta)-private, zCDP and RDP steps, mixtures of
Gaussians, randomised response, and steps with a privacy-loss distribution of the user's own.

    history = [*our_steps, approximate(0.5, 1e-6, relation="add-remove"), randomised_response(4, 0.7, steps=10)]
    epsilon_of_history(history, delta=1e-5)

Their privacy losses are composed with all others, so the history costs less than the sum of the parts' epsilons. No
noise of these laws is drawn here: they say what somebody else's step cost. Each step has a record in it (full batches),
and each may depend on what was released before.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.concentrated import LEAST_RHO, MOST_RHO
from dpzero_theory.privacy.laws.finite import FinitePair
from dpzero_theory.privacy.laws.law import UNKNOWN, Cost
from dpzero_theory.privacy.laws.shifts import LEAST_NOISE, MOST_IN_GROUP, MOST_NOISE, mixture_pairs
from dpzero_theory.privacy.mechanism import MECHANISMS, MOST_COMPOSED, Made, Mechanism
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FullBatch, Poisson
from dpzero_theory.privacy.step import Step

_LARGEST_EPSILON = 100.0
"""The largest epsilon of one step that a user may state."""
_MOST_ORDERS, _LARGEST_ORDER, _LARGEST_DIVERGENCE = 1000, 1e4, 1e4
"""The most orders of a curve of Renyi divergences, the largest order, and the largest divergence of one step."""
_TOTAL_ERROR, _ERROR = 1e-9, 1e-13
"""The absolute amount by which the probabilities that a user gives may sum to more than 1, and those of a mixture also
to less than 1; and a bound on the relative rounding error of one of them."""
_KNOWN: dict[str, "Stated"] = {}
"""The mechanisms that were stated in this process, by their names."""


class Stated(Mechanism):
    """A mechanism of which only its cost is known.

    Args:
        name: its name, which begins with its family and a colon.
        numbers: what was stated.
        known: the cost of equal steps with it, for data sets that differ in one record.
        relation: the only relation for which it is known, or None.
    """

    noise = "stated"
    lattice = False
    exactness = "not drawn: a statement of what another mechanism's step costs"
    coordinates = 1
    samplings = ("full",)

    def __init__(
        self, name: str, numbers: tuple[Any, ...], known: Callable[[Made], Cost], relation: Relation | None = None
    ) -> None:
        self.name, self.numbers, self._known, self._relation = name, numbers, known, relation
        self.family = name.partition(":")[0]

    def require(self, step: Made) -> None:
        super().require(step)
        check.integer("steps", step.steps, at_most=MOST_COMPOSED)
        if self._relation not in (None, step.relation):
            raise ValueError(f"relation must be {self._relation} with {self.family}; got {step.relation}")

    def cost(self, step: Made, size: int = 1, n: int | None = None) -> Cost:
        return self._known(step) if size == 1 else UNKNOWN

    def scale(self, noise_multiplier: float, levels: int) -> float:
        raise ValueError(f"mechanism must be one that is drawn; got {self.name}, which is only accounted")

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        raise ValueError(f"mechanism must be one that is drawn; got {self.name}, which is only accounted")


def _named(family: str) -> None:
    def member(arguments: str) -> Mechanism:
        name = f"{family}:{arguments}"
        if name not in _KNOWN:
            raise ValueError(f"mechanism must be stated in this process, by privacy.stated; got {name!r}")
        return _KNOWN[name]

    MECHANISMS.register_family(family, member, listed=False)


for _family in ("approximate", "zcdp", "rdp", "gaussian-mixture", "randomised-response", "own"):
    _named(_family)


def _stated(law: Stated, steps: int, relation: str) -> Step:
    known = _KNOWN.setdefault(law.name, law)
    if not all(np.array_equal(one, other) for one, other in zip(known.numbers, law.numbers, strict=True)):
        name = law.name.partition(":")[2]
        raise ValueError(f"name must stand for one distribution in a process; got {name!r} with another one")
    return Step(1.0, FullBatch(), Relation(relation), law.name, steps=steps)


def _words(*parts: tuple[float, ...]) -> str:
    return ";".join(",".join(map(repr, part)) for part in parts)


def _pair(loss: float, high: float, low: float, *, none: float = 0.0, infinite: float = 0.0) -> FinitePair:
    """A pair of laws with the losses `loss` and -loss, 0 and infinity, the same in both directions.

    high, low: the probabilities of `loss` and of -loss under the first law. none: that of the loss 0. infinite: that of
    the loss infinity, which the pair of laws for lower bounds leaves out.
    """
    if loss == 0:
        losses, p, q = [0.0], [high + low + none], [high + low + none]
    else:
        losses, p, q = [-loss, 0.0, loss], [low, none, high], [high, none, low]
        if not none:
            losses, p, q = losses[::2], p[::2], q[::2]
    up, down = 1 + 1e-15, 1 - 1e-15
    above = np.nextafter(np.array(losses), np.inf) if loss else np.zeros(1)
    return FinitePair(above, np.array(p) * up, infinite, np.array(p) * down, np.array(q))


def approximate(epsilon: float, delta: float = 0.0, *, steps: int = 1, relation: str) -> Step:
    """Return steps that are each (epsilon, delta)-private, of any mechanism, as part of a history.

    Args:
        epsilon: of one step, in [0, 100].
        delta: of one step, in [0, 1); not 0 where epsilon is.
        steps: their number, >= 1.
        relation: which data sets are neighbours in that statement; it must be the history's.

    Returns:
        Steps whose cost is exact for the costliest such mechanism (randomised response with a part that shows
        everything), so for no mechanism more. Lower ends leave the shown part out.

    Raises:
        ValueError: an argument outside its range.
    """
    e, d = (
        check.real("epsilon", epsilon, at_least=0, at_most=_LARGEST_EPSILON),
        check.real("delta", delta, at_least=0, below=1),
    )
    if e == d == 0:
        raise ValueError("epsilon or delta must be positive; got 0 and 0, a step that shows nothing")
    # Losses infinity and minus infinity with probability d each, and e and -e, which share the rest in the ratio e^e to
    # 1 (Kairouz, Oh and Viswanath, arXiv 1311.0776).
    less = math.exp(-e)
    pair = _pair(e, (1 - d) / (1 + less), (1 - d) * less / (1 + less), infinite=d)

    def known(step: Made) -> Cost:
        return replace(Cost.of(pair, count=step.steps), pure=(math.inf if d else step.steps * e, 0.0))

    return _stated(Stated("approximate:" + _words((e, d)), (e, d), known), steps, relation)


def concentrated(rho: float, xi: float = 0.0, *, steps: int = 1, relation: str) -> Step:
    """Return steps of which zero-concentrated differential privacy is known, as part of a history.

    Args:
        rho: of one step, in [1e-9, 100]: the Renyi divergence of every order a > 1 is at most xi + rho a.
        xi: of one step, in [0, 100].
        steps: their number, >= 1. rho and xi of all zCDP steps of a history add up, to a rho of at most 100.
        relation: which data sets are neighbours in that statement; it must be the history's.

    Returns:
        Steps whose cost is a bound that holds for every such mechanism (Canonne, Kamath and Steinke, arXiv 2004.00010,
        proposition 12); that of Gaussian noise, for instance, is smaller. Lower ends count these steps as nothing.

    Raises:
        ValueError: an argument outside its range.
    """
    r = check.real("rho", rho, at_least=LEAST_RHO, at_most=MOST_RHO)
    x = check.real("xi", xi, at_least=0, at_most=_LARGEST_EPSILON)
    law = Stated("zcdp:" + _words((r, x)), (r, x), lambda step: Cost(zcdp=(step.steps * r, step.steps * x)))
    return _stated(law, steps, relation)


def renyi(orders: Sequence[float], divergences: Sequence[float], *, steps: int = 1, relation: str) -> Step:
    """Return steps of which Renyi differential privacy is known at some orders, as part of a history.

    Args:
        orders: the orders a, rising, in (1, 10^4], at most 1,000.
        divergences: for each order an upper bound on the Renyi divergence of one step, in (0, 10^4], between any two
            neighbouring data sets in both directions.
        steps: their number, >= 1. The divergences of equal order of all such steps of a history add up; between two
            orders, (a - 1) times the divergence is taken from the straight line between them, an upper bound.
        relation: which data sets are neighbours in that statement; it must be the history's.

    Returns:
        Steps whose cost is a bound that holds for every such mechanism (Canonne, Kamath and Steinke, arXiv 2004.00010,
        proposition 12). Lower ends count these steps as nothing.

    Raises:
        ValueError: an argument outside its range.
    """
    if not 1 <= len(orders) <= _MOST_ORDERS:
        raise ValueError(f"orders must be from 1 to {_MOST_ORDERS:,} numbers; got {len(orders)}")
    if len(orders) != len(divergences):
        raise ValueError(f"divergences must be as many as the {len(orders)} orders; got {len(divergences)}")
    a = [check.real("orders", order, above=1, at_most=_LARGEST_ORDER) for order in orders]
    if any(second <= first for first, second in pairwise(a)):
        raise ValueError(f"orders must rise; got {', '.join(f'{order:g}' for order in a)}")
    costs = [check.real("divergences", cost, above=0, at_most=_LARGEST_DIVERGENCE) for cost in divergences]
    # The divergence rises with the order, so that a bound at a larger order holds at the smaller ones too.
    curve = tuple(zip(a, list(accumulate(reversed(costs), min))[::-1], strict=True))

    def known(step: Made) -> Cost:
        return Cost(renyi=(tuple((order - 1, step.steps * (order - 1) * cost) for order, cost in curve),))

    return _stated(Stated("rdp:" + _words(*curve), curve, known), steps, relation)


def gaussian_mixture(
    standard_deviation: float,
    sensitivities: Sequence[float],
    probabilities: Sequence[float],
    *,
    steps: int = 1,
    relation: str,
) -> Step:
    """Return steps with Gaussian noise on a sum that one record moves by a random distance, as part of a history.

    Such steps are, for instance, those of correlated noise with sampled batches (Choquette-Choo et al., arXiv
    2310.15526), and dp-accounting's MixtureOfGaussiansDpEvent.

    Args:
        standard_deviation: s > 0 of the noise, in the unit of `sensitivities`; from 0.2 to 10^4 times the largest one.
        sensitivities: the distances c_j >= 0 by which the record moves the sum, at most 2,000 values, one above 0.
        probabilities: those of the distances, as many, with the sum 1. The draw is secret and independent of the data.
        steps: their number, >= 1, with independent draws.
        relation: which data sets are neighbours; it must be the history's. Under add-remove and zero-out the sum is not
            moved without the record; under replace-one the two records move it in opposite directions.

    Returns:
        Steps whose cost is exact: records that always pull in one direction attain it. A single distance is a full
        batch with Gaussian noise, and one beside 0 a Poisson batch, and such steps are returned.

    Raises:
        ValueError: an argument outside its range.
    """
    at = check.real_array("sensitivities", np.asarray(sensitivities, dtype=float), at_least=0)
    p = check.real_array("probabilities", np.asarray(probabilities, dtype=float), at_least=0, at_most=1)
    if at.ndim != 1 or at.shape != p.shape or not len(at):
        raise ValueError(f"sensitivities and probabilities must be equally many numbers; got {at.shape}, {p.shape}")
    if not abs((total := math.fsum(p)) - 1) <= _TOTAL_ERROR:
        raise ValueError(f"probabilities must sum to 1; got {total!r}")
    chance: dict[float, float] = {}
    for each, share in zip(at.tolist(), p.tolist(), strict=True):
        if share > 0:
            chance[each] = chance.get(each, 0.0) + share / total
    shifts = tuple(sorted(chance.items()))
    largest = shifts[-1][0]
    if not largest > 0:
        raise ValueError("sensitivities must be above 0 for some probability; got a step that shows nothing")
    if len(shifts) > MOST_IN_GROUP:
        raise ValueError(f"sensitivities must be at most {MOST_IN_GROUP} values; got {len(shifts)}")
    least, most = LEAST_NOISE * largest, MOST_NOISE * largest
    s = check.real("standard_deviation", standard_deviation, at_least=least, at_most=most)
    if len(shifts) == 1 or (len(shifts) == 2 and shifts[0][0] == 0):
        drawn = Poisson(shifts[-1][1]) if len(shifts) > 1 else FullBatch()
        return Step(s / largest, drawn, Relation(relation), steps=steps)

    def known(step: Made) -> Cost:
        law = tuple((each / largest, math.log(share)) for each, share in shifts)
        return Cost.of(*mixture_pairs(s / largest, law, replaced=step.relation.replaces), count=step.steps)

    return _stated(Stated("gaussian-mixture:" + _words((s,), *shifts), ((s,), *shifts), known), steps, relation)


def randomised_response(categories: int, truth: float, *, steps: int = 1) -> Step:
    """Return answers by randomised response, as part of a history with the relation replace-one.

    Args:
        categories: k >= 2, from which a record's answer is.
        truth: the probability of the record's own category, in (1/k, 1). Each other one has (1 - truth)/(k - 1).
        steps: how often each record answers, with new randomness, >= 1.

    Returns:
        Steps whose cost is exact.

    Raises:
        ValueError: an argument outside its range.
    """
    k = check.integer("categories", categories, at_least=2, at_most=10**9)
    own = check.real("truth", truth, above=1 / k, below=1)
    other, e = (1 - own) / (k - 1), math.log(own) - math.log1p(-own) + math.log(k - 1)
    pair = _pair(e, own, other, none=(k - 2) * other)

    def known(step: Made) -> Cost:
        return replace(Cost.of(pair, count=step.steps), pure=(step.steps * e, 0.0))

    law = Stated("randomised-response:" + _words((k, own)), (k, own), known, Relation.REPLACE_ONE)
    return _stated(law, steps, str(Relation.REPLACE_ONE))


def own_distribution(name: str, losses: ArrayLike, probabilities: ArrayLike, *, steps: int = 1, relation: str) -> Step:
    """Return steps with a privacy-loss distribution of your own, as part of a history.

    Args:
        name: a name without spaces. Within a process one name stands for one distribution.
        losses: the values l of the privacy loss log(P/Q) of a pair (P, Q) that dominates one step, in [-100, 100].
        probabilities: those of these losses under P, above 0, as many as `losses`. They sum to at most 1; what they
            lack has an infinite loss. Under Q the loss l has the probability p e^-l; these sum to at most 1 too, and
            what they lack has an infinite loss in the other direction.
        steps: their number, >= 1.
        relation: which data sets are neighbours; it must be the history's. The pair is for one order of the two, and
            (Q, P) for the other.

    Returns:
        Steps whose lower ends are 0, because a pair that dominates need not be attained.

    Raises:
        ValueError: an argument outside its range; a name that already stands for another distribution.
    """
    if not isinstance(name, str) or not name or " " in name:
        raise ValueError(f"name must be a name without spaces; got {name!r}")
    reach = {"at_least": -_LARGEST_EPSILON, "at_most": _LARGEST_EPSILON}
    loss = check.real_array("losses", np.asarray(losses, dtype=float), **reach)
    p = check.real_array("probabilities", np.asarray(probabilities, dtype=float), above=0, at_most=1)
    if loss.ndim != 1 or loss.shape != p.shape or not len(loss):
        raise ValueError(f"losses and probabilities must be equally many numbers; got {loss.shape} and {p.shape}")
    order = np.argsort(loss, kind="stable")
    loss, p = loss[order], p[order]
    q = p * np.exp(-loss)
    for law, total in (("P", math.fsum(p)), ("Q", math.fsum(q))):
        if not total <= 1 + _TOTAL_ERROR:
            raise ValueError(f"probabilities must sum to at most 1 under {law}; got {total!r}")

    def one(at: Array, mass: Array) -> FinitePair:
        lost, nothing = max(1 - math.fsum(mass), 0.0), np.ones(1)
        return FinitePair(np.nextafter(at, np.inf), mass * (1 + _ERROR), lost, nothing, nothing)

    first, second = one(loss, p), one(-loss[::-1], q[::-1])
    known = Stated(f"own:{name}", (loss, p), lambda step: Cost.of(first, second, count=step.steps))
    return _stated(known, steps, relation)
