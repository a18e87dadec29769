"""Steps of other mechanisms whose privacy is known: (epsilon, delta)-private, zCDP and RDP steps, mixtures of
Gaussians, randomised response, and steps with a privacy-loss distribution of the user's own.

    history = [*our_steps, approximate(0.5, 1e-6, relation="add-remove"), randomised_response(4, 0.7, steps=10)]
    epsilon_of_history(history, delta=1e-5)

Their privacy losses are composed with all others, so the history costs less than the sum of the parts' epsilons. No
noise of these laws is drawn here: they say what somebody else's step cost.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.cost import Cost
from dpzero_theory.privacy.laws.concentrated import LEAST_RHO, MOST_RHO, Curve, log_moment
from dpzero_theory.privacy.laws.finite import FinitePair
from dpzero_theory.privacy.laws.shifts import LEAST_NOISE, MOST_IN_GROUP, MOST_NOISE, mixture_pairs
from dpzero_theory.privacy.mechanism import MECHANISMS, Made, Mechanism
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FullBatch, Poisson
from dpzero_theory.privacy.step import Release

_MOST_COMPOSED = 2**24
"""The largest number of equal steps with such a mechanism that the accountant composes."""
_LARGEST_EPSILON = 100.0
"""The largest epsilon of one step that a user may state."""
_NUMBER = r"[0-9.eE+-]+"
_MOST_STATED_ORDERS, _LARGEST_ORDER, _LARGEST_DIVERGENCE = 1000, 1e4, 1e4
"""The most orders of a curve of Renyi divergences, the largest order, and the largest divergence of one step."""
_TOTAL_ERROR, _ERROR = 1e-9, 1e-13
"""The absolute amount by which the probabilities that a user gives may sum to more than 1, and those of a mixture also
to less than 1; and a bound on the relative rounding error of one of them."""


class _Stated(Mechanism):
    """A mechanism with finitely many privacy losses, which are known. Its name is `family:NUMBER,NUMBER`."""

    family: str
    noise = "stated"
    lattice = False
    exactness = "not drawn: a statement of what another mechanism's step costs"
    coordinates = 1
    samplings = ("full",)

    def pair(self) -> FinitePair:
        """The pair of laws that dominates one step, the same in both directions unless a subclass defines `pairs`."""
        raise NotImplementedError

    def pairs(self) -> tuple[FinitePair, FinitePair]:
        """The pairs of laws that dominate one step, in the two directions."""
        one = self.pair()
        return one, one

    def pure(self) -> float:
        """The pure epsilon of one step, infinite if it has none."""
        raise NotImplementedError

    def require_noise(self, step: Made, steps: int) -> None:
        check.integer("steps", steps, at_most=_MOST_COMPOSED)

    def cost(self, step: Made, steps: int) -> Cost:
        return replace(Cost.of(*self.pairs(), count=steps), pure=(steps * self.pure(), 0.0))

    def scale(self, noise_multiplier: float, levels: int) -> float:
        raise ValueError(f"mechanism must be one that is drawn; got {self.name}, which is only accounted")

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        raise ValueError(f"mechanism must be one that is drawn; got {self.name}, which is only accounted")


class Approximate(_Stated):
    """A step that is (e, d)-private, and of which nothing else is known.

    The dominating pair has four outcomes: the losses infinity and minus infinity, each with probability d, and e and
    -e, which share the rest in the ratio e^e to 1 (Kairouz, Oh and Viswanath, arXiv 1311.0776).
    """

    family = "approximate"

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = check.real("epsilon", epsilon, at_least=0, at_most=_LARGEST_EPSILON)
        self.delta = check.real("delta", delta, at_least=0, below=1)
        if self.epsilon == self.delta == 0:
            raise ValueError("epsilon or delta must be positive; got 0 and 0, a step that shows nothing")
        self.name = f"{self.family}:{self.epsilon!r},{self.delta!r}"

    def pair(self) -> FinitePair:
        high = (1 - self.delta) / (1 + math.exp(-self.epsilon))
        low = (1 - self.delta) * math.exp(-self.epsilon) / (1 + math.exp(-self.epsilon))
        return _pair(self.epsilon, high, low, infinite=self.delta)

    def pure(self) -> float:
        return math.inf if self.delta else self.epsilon


class Zcdp(_Stated):
    """A step that is (xi, rho)-zCDP, and of which nothing else is known (`certified.laws.concentrated`).

    The cost of several such steps is that of one with the sums of their rho and of their xi.
    """

    family = "zcdp"

    def __init__(self, rho: float, xi: float) -> None:
        self.rho = check.real("rho", rho, at_least=LEAST_RHO, at_most=MOST_RHO)
        self.xi = check.real("xi", xi, at_least=0, at_most=_LARGEST_EPSILON)
        self.name = f"{self.family}:{self.rho!r},{self.xi!r}"

    def divergence(self, order: float) -> float:
        """An upper bound on the Renyi divergence of this order of one step."""
        return self.xi + order * self.rho

    def cost(self, step: Made, steps: int) -> Cost:
        return Cost(zcdp=(steps * self.rho, steps * self.xi))


class Renyi(_Stated):
    """A step whose Renyi divergences at some orders are known, and of which nothing else is known
    (`certified.laws.concentrated`).

    curve: pairs (order a, divergence of order a), by rising order. The divergences of several steps add up.
    """

    family = "rdp"

    def __init__(self, orders: Sequence[float], divergences: Sequence[float]) -> None:
        if not 1 <= len(orders) <= _MOST_STATED_ORDERS:
            raise ValueError(f"orders must be from 1 to {_MOST_STATED_ORDERS:,} numbers; got {len(orders)}")
        if len(orders) != len(divergences):
            raise ValueError(f"divergences must be as many as the {len(orders)} orders; got {len(divergences)}")
        a = [check.real("orders", order, above=1, at_most=_LARGEST_ORDER) for order in orders]
        if any(second <= first for first, second in pairwise(a)):
            raise ValueError(f"orders must rise; got {', '.join(f'{order:g}' for order in a)}")
        costs = [check.real("divergences", cost, above=0, at_most=_LARGEST_DIVERGENCE) for cost in divergences]
        # The divergence rises with the order, so that a bound at a larger order holds at the smaller ones too.
        least = list(accumulate(reversed(costs), min))[::-1]
        self.curve = tuple(zip(a, least, strict=True))
        self.name = f"{self.family}:{';'.join(f'{order!r},{cost!r}' for order, cost in self.curve)}"

    def moments(self, steps: int) -> Curve:
        """The log moments of `steps` steps, in the form of `certified.laws.concentrated`."""
        return tuple((order - 1, steps * (order - 1) * cost) for order, cost in self.curve)

    def divergence(self, order: float) -> float:
        """An upper bound on the Renyi divergence of this order of one step. Raises ValueError above the largest order
        that is known."""
        known = log_moment(self.moments(1), order - 1)
        if known == math.inf:
            raise ValueError(f"order must be at most {self.curve[-1][0]:g}, the largest that is stated; got {order!r}")
        return known / (order - 1)

    def cost(self, step: Made, steps: int) -> Cost:
        return Cost(renyi=(self.moments(steps),))


class GaussianMixture(_Stated):
    """A step with Gaussian noise on a sum that one record moves by a random distance, of a known law.

    With the record the output has the law sum_j p_j N(c_j, s^2), and without it N(0, s^2), for distances c_j >= 0. The
    same pair dominates vectors of norm c_j in any directions (`certified.laws.shifts`; Choquette-Choo et al., arXiv
    2310.15526, theorem 3.1). With replace-one both values of the record move the sum so, in opposite directions.
    """

    family = "gaussian-mixture"

    def __init__(self, noise: float, shifts: Sequence[float], probabilities: Sequence[float]) -> None:
        at = check.real_array("sensitivities", np.asarray(shifts, dtype=float), at_least=0)
        p = check.real_array("probabilities", np.asarray(probabilities, dtype=float), at_least=0, at_most=1)
        if at.ndim != 1 or at.shape != p.shape or not len(at):
            raise ValueError(f"sensitivities and probabilities must be equally many numbers; got {at.shape}, {p.shape}")
        if not abs((total := math.fsum(p)) - 1) <= _TOTAL_ERROR:
            raise ValueError(f"probabilities must sum to 1; got {total!r}")
        chance: dict[float, float] = {}
        for each, share in zip(at.tolist(), p.tolist(), strict=True):
            if share > 0:
                chance[each] = chance.get(each, 0.0) + share / total
        self.shifts = tuple(sorted(chance.items()))
        largest = self.shifts[-1][0]
        if not largest > 0:
            raise ValueError("sensitivities must be above 0 for some probability; got a step that shows nothing")
        if len(self.shifts) > MOST_IN_GROUP:
            raise ValueError(f"sensitivities must be at most {MOST_IN_GROUP} values; got {len(self.shifts)}")
        least, most = LEAST_NOISE * largest, MOST_NOISE * largest
        self.scatter = check.real("standard_deviation", noise, at_least=least, at_most=most)
        parts = (f"{each!r},{share!r}" for each, share in self.shifts)
        self.name = f"{self.family}:{self.scatter!r};{';'.join(parts)}"

    @property
    def square(self) -> float:
        """The square of mu of Gaussian DP of the step if the record always moved the sum by the largest distance, and
        the neighbouring data set by 0."""
        return (self.shifts[-1][0] / self.scatter) ** 2

    def cost(self, step: Made, steps: int) -> Cost:
        largest = self.shifts[-1][0]
        law = tuple((each / largest, math.log(share)) for each, share in self.shifts)
        return Cost.of(*mixture_pairs(self.scatter / largest, law, replaced=step.relation.replaces), count=steps)


class Randomised(_Stated):
    """Randomised response: of k categories the true one with probability `truth`, else another one, each as likely.

    The dominating pair of two records in different categories has the losses e, 0 and -e with e = log(truth (k - 1)/(1
    - truth)).
    """

    family = "randomised-response"

    def __init__(self, categories: int, truth: float) -> None:
        self.categories = check.integer("categories", categories, at_least=2, at_most=10**9)
        self.truth = check.real("truth", truth, above=1 / self.categories, below=1)
        self.name = f"{self.family}:{self.categories},{self.truth!r}"

    @property
    def random(self) -> float:
        """The probability p with which the answer is drawn from all k categories alike: truth = 1 - p + p/k."""
        return (1 - self.truth) * self.categories / (self.categories - 1)

    def pair(self) -> FinitePair:
        other = (1 - self.truth) / (self.categories - 1)
        return _pair(self.pure(), self.truth, other, none=(self.categories - 2) * other)

    def require_noise(self, step: Made, steps: int) -> None:
        super().require_noise(step, steps)
        if step.relation is not Relation.REPLACE_ONE:
            raise ValueError(f"relation must be replace-one with {self.family}; got {step.relation}")

    def pure(self) -> float:
        return math.log(self.truth) - math.log1p(-self.truth) + math.log(self.categories - 1)


class Own(_Stated):
    """A step with a dominating pair (P, Q) of which the user knows the law of the privacy loss, under a name.

    Under Q an output of the loss l and the probability p has the probability p e^-l. What the probabilities under P, or
    those under Q, lack to 1 counts as an infinite loss in the direction in which that law comes first.
    """

    family = "own"

    def __init__(self, name: str, losses: Array, probabilities: Array) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise ValueError(f"name must be 1 to 64 letters, digits, _, . or -; got {name!r}")
        loss = check.real_array("losses", losses, at_least=-_LARGEST_EPSILON, at_most=_LARGEST_EPSILON)
        p = check.real_array("probabilities", probabilities, above=0, at_most=1)
        if loss.ndim != 1 or loss.shape != p.shape or not len(loss):
            raise ValueError(f"losses and probabilities must be equally many numbers; got {loss.shape} and {p.shape}")
        order = np.argsort(loss, kind="stable")
        self.loss, self.first = loss[order], p[order]
        self.second = self.first * np.exp(-self.loss)
        for law, total in (("P", math.fsum(self.first)), ("Q", math.fsum(self.second))):
            if not total <= 1 + _TOTAL_ERROR:
                raise ValueError(f"probabilities must sum to at most 1 under {law}; got {total!r}")
        self.name = f"{self.family}:{name}"

    def pairs(self) -> tuple[FinitePair, FinitePair]:
        lost = [max(1 - math.fsum(law), 0.0) for law in (self.first, self.second)]
        nothing = np.ones(1)
        return (
            FinitePair(np.nextafter(self.loss, np.inf), self.first * (1 + _ERROR), lost[0], nothing, nothing),
            FinitePair(
                np.nextafter(-self.loss[::-1], np.inf), self.second[::-1] * (1 + _ERROR), lost[1], nothing, nothing
            ),
        )

    def pure(self) -> float:
        return math.inf


_OWN: dict[str, Own] = {}
"""The distributions that `own_distribution` was given in this process, by the part of their name after the colon."""


def _pair(loss: float, high: float, low: float, *, none: float = 0.0, infinite: float = 0.0) -> FinitePair:
    """A pair of laws with the losses `loss` and -loss, 0 and infinity, the same in both directions.

    high, low: the probabilities of `loss` and of -loss under the first law. none: that of the loss 0. infinite: that of
    the loss infinity, which the pair of laws for lower bounds leaves out.
    """
    up, down = (1 + 1e-15), (1 - 1e-15)
    if loss == 0:
        return FinitePair(
            np.array([0.0]), np.array([(high + low + none) * up]), infinite, *(np.array([high + low + none]),) * 2
        )
    losses, p, q = [-loss, loss], [low, high], [high, low]
    if none:
        losses, p, q = [-loss, 0.0, loss], [low, none, high], [high, none, low]
    above = np.nextafter(np.array(losses), np.inf)
    return FinitePair(above, np.array(p) * up, infinite, np.array(p) * down, np.array(q))


def _named(law: type[Approximate] | type[Randomised] | type[Zcdp], arguments: str) -> Mechanism:
    """The mechanism of the class `law` for the text after the colon of its name, which is two numbers with a comma
    between them. Raises ValueError for another text, or numbers outside their ranges."""
    if not re.fullmatch(f"{_NUMBER},{_NUMBER}", arguments):
        raise ValueError(f"mechanism must be {law.family}:NUMBER,NUMBER; got {arguments!r}")
    first, second = arguments.split(",")
    try:
        return law(int(first) if law is Randomised else float(first), float(second))  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"mechanism must be {law.family} with its numbers; got {arguments!r} ({error})") from None


for _law in (Approximate, Randomised, Zcdp):
    MECHANISMS.register_family(_law.family, partial(_named, _law), listed=False)


def _mixture(arguments: str) -> Mechanism:
    """The mechanism `GaussianMixture` for the text after the colon of its name. Raises ValueError for a text that is
    not such a name's."""
    if not re.fullmatch(f"{_NUMBER}(;{_NUMBER},{_NUMBER})+", arguments):
        rule = f"mechanism must be {GaussianMixture.family}:S;C,P;C,P... with sensitivities C and probabilities P"
        raise ValueError(f"{rule}; got {arguments!r}")
    noise, *parts = arguments.split(";")
    try:
        shifts, probabilities = zip(*((float(x) for x in part.split(",")) for part in parts), strict=True)
        return GaussianMixture(float(noise), shifts, probabilities)
    except ValueError as error:
        raise ValueError(f"mechanism must be {GaussianMixture.family} with its numbers; {error}") from None


MECHANISMS.register_family(GaussianMixture.family, _mixture, listed=False)


def _renyi(arguments: str) -> Mechanism:
    """The mechanism `Renyi` for the text after the colon of its name. Raises ValueError for a text that is not such a
    name's."""
    if not re.fullmatch(f"{_NUMBER},{_NUMBER}(;{_NUMBER},{_NUMBER})*", arguments):
        raise ValueError(f"mechanism must be {Renyi.family}:A,D;A,D... with orders and divergences; got {arguments!r}")
    try:
        orders, divergences = zip(*(map(float, part.split(",")) for part in arguments.split(";")), strict=True)
        return Renyi(orders, divergences)
    except ValueError as error:
        raise ValueError(f"mechanism must be {Renyi.family} with its numbers; {error}") from None


MECHANISMS.register_family(Renyi.family, _renyi, listed=False)


def _own(name: str) -> Mechanism:
    if name not in _OWN:
        raise ValueError(
            f"mechanism must be own:NAME of a distribution that `own_distribution` was given; got {name!r}"
        )
    return _OWN[name]


MECHANISMS.register_family(Own.family, _own, listed=False)


def approximate(epsilon: float, delta: float = 0.0, *, steps: int = 1, relation: str) -> Release:
    """Return steps that are each (epsilon, delta)-private, of any mechanism, as part of a history.

    Args:
        epsilon: of one step, in [0, 100].
        delta: of one step, in [0, 1); not 0 where epsilon is.
        steps: their number, >= 1; each may depend on what was released before.
        relation: which data sets are neighbours in that statement; it must be the history's.

    Returns:
        A release with all records in each step. What it costs is exact for the costliest such mechanism (randomised
        response with a part that shows everything), so for no mechanism more; the lower end of a bracket leaves the
        shown part out.

    Raises:
        ValueError: an argument outside its range.
    """
    return _release(Approximate(epsilon, delta), steps, relation)


def concentrated(rho: float, xi: float = 0.0, *, steps: int = 1, relation: str) -> Release:
    """Return steps of which zero-concentrated differential privacy is known, as part of a history.

    Args:
        rho: of one step, in [1e-9, 100]: the Renyi divergence of every order a > 1 is at most xi + rho a.
        xi: of one step, in [0, 100].
        steps: their number, >= 1; each may depend on what was released before. rho and xi of all zCDP steps of a
            history add up, to a rho of at most 100.
        relation: which data sets are neighbours in that statement; it must be the history's.

    Returns:
        A release with all records in each step. Its cost is a bound that holds for every such mechanism (Canonne,
        Kamath and Steinke, arXiv 2004.00010, proposition 12); that of Gaussian noise, for instance, is smaller. The
        lower end of a bracket counts these steps as nothing.

    Raises:
        ValueError: an argument outside its range.
    """
    return _release(Zcdp(rho, xi), steps, relation)


def renyi(orders: Sequence[float], divergences: Sequence[float], *, steps: int = 1, relation: str) -> Release:
    """Return steps of which Renyi differential privacy is known at some orders, as part of a history.

    Args:
        orders: the orders a, rising, in (1, 10^4], at most 1,000.
        divergences: for each order an upper bound on the Renyi divergence of one step, in (0, 10^4], between any two
            neighbouring data sets in both directions.
        steps: their number, >= 1; each may depend on what was released before. The divergences of equal order of all
            such steps of a history add up; between two orders, (a - 1) times the divergence is taken from the straight
            line between them, which is an upper bound.
        relation: which data sets are neighbours in that statement; it must be the history's.

    Returns:
        A release with all records in each step. Its cost is a bound that holds for every such mechanism (Canonne,
        Kamath and Steinke, arXiv 2004.00010, proposition 12), and it composes with other steps by a pair of laws that
        dominates all such mechanisms. The lower end of a bracket counts these steps as nothing.

    Raises:
        ValueError: an argument outside its range.
    """
    return _release(Renyi(orders, divergences), steps, relation)


def gaussian_mixture(
    standard_deviation: float,
    sensitivities: Sequence[float],
    probabilities: Sequence[float],
    *,
    steps: int = 1,
    relation: str,
) -> Release:
    """Return steps with Gaussian noise on a sum that one record moves by a random distance, as part of a history.

    Such steps are, for instance, those of correlated noise with sampled batches (Choquette-Choo et al., arXiv
    2310.15526), and dp-accounting's MixtureOfGaussiansDpEvent.

    Args:
        standard_deviation: s > 0 of the noise, in the unit of `sensitivities`; from 0.2 to 10^4 times the largest one.
        sensitivities: the distances c_j >= 0 by which the record moves the sum, at most 2,000 values, one above 0.
        probabilities: those of the distances, as many, with the sum 1. The draw is secret and independent of the data.
        steps: their number, >= 1, with independent draws; each may depend on what was released before.
        relation: which data sets are neighbours; it must be the history's. Under add-remove and zero-out the sum is not
            moved without the record; under replace-one the two records move it in opposite directions.

    Returns:
        A release. Its cost is exact: records that always pull in one direction attain it. A single distance is a full
        batch with Gaussian noise, and one beside 0 a Poisson batch, and such a release is returned.

    Raises:
        ValueError: an argument outside its range.
    """
    law = GaussianMixture(standard_deviation, sensitivities, probabilities)
    (least, _), *more = law.shifts
    if len(more) > 1 or (more and least > 0):
        return _release(law, steps, relation)
    largest, chance = law.shifts[-1]
    drawn = Poisson(chance) if more else FullBatch()
    return Release(law.scatter / largest, steps, sampling=drawn, relation=relation)


def randomised_response(categories: int, truth: float, *, steps: int = 1) -> Release:
    """Return answers by randomised response, as part of a history with the relation replace-one.

    Args:
        categories: k >= 2, from which a record's answer is.
        truth: the probability of the record's own category, in (1/k, 1). Each other one has (1 - truth)/(k - 1).
        steps: how often each record answers, with new randomness, >= 1.

    Returns:
        A release; its cost is exact.

    Raises:
        ValueError: an argument outside its range.
    """
    return _release(Randomised(categories, truth), steps, str(Relation.REPLACE_ONE))


def own_distribution(
    name: str, losses: ArrayLike, probabilities: ArrayLike, *, steps: int = 1, relation: str
) -> Release:
    """Return steps with a privacy-loss distribution of your own, as part of a history.

    Args:
        name: of 1 to 64 letters, digits, "_", "." or "-". Within a process one name stands for one distribution.
        losses: the values l of the privacy loss log(P/Q) of a pair (P, Q) that dominates one step, in [-100, 100].
        probabilities: those of these losses under P, above 0, as many as `losses`. They sum to at most 1; what they
            lack has an infinite loss. Under Q the loss l has the probability p e^-l; these sum to at most 1 too, and
            what they lack has an infinite loss in the other direction.
        steps: their number, >= 1; each may depend on what was released before.
        relation: which data sets are neighbours; it must be the history's. The pair is for one order of the two, and
            (Q, P) for the other.

    Returns:
        A release with all records in each step. The lower end of its cost is 0, because a pair that dominates need not
        be attained.

    Raises:
        ValueError: an argument outside its range; a name that already stands for another distribution.
    """
    law = Own(name, np.asarray(losses, dtype=float), np.asarray(probabilities, dtype=float))
    known = _OWN.setdefault(name, law)
    if not (np.array_equal(known.loss, law.loss) and np.array_equal(known.first, law.first)):
        raise ValueError(f"name must stand for one distribution in a process; got {name!r} with another one")
    return _release(known, steps, relation)


def _release(law: Mechanism, steps: int, relation: str) -> Release:
    return Release(1.0, steps, sampling=FullBatch(), relation=relation, mechanism=law.name)
