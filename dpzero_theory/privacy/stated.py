"""Steps of other mechanisms of which only a privacy guarantee is known, as parts of a history.

    history = [*our_steps, approximate(0.5, 1e-6, relation="add-remove"), concentrated(0.1, relation="add-remove")]
    epsilon_of_history(history, delta=1e-5)

The privacy losses of all steps are composed, so the history costs less than the sum of the steps' epsilons. Such steps
can be accounted for but not run: this package draws no noise for them. Each step uses every record (full batches), and
may depend on earlier outputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpzero_theory import check
from dpzero_theory.privacy.laws.concentrated import LEAST_RHO, MOST_RHO
from dpzero_theory.privacy.laws.finite import partitioned
from dpzero_theory.privacy.laws.law import UNKNOWN, Cost
from dpzero_theory.privacy.laws.shifts import LEAST_NOISE, MOST_IN_GROUP, MOST_NOISE, NormalNoise, shifted_pairs
from dpzero_theory.privacy.mechanism import MECHANISMS, MOST_COMPOSED, Mechanism, StepLike
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FullBatch, Poisson
from dpzero_theory.privacy.step import Step

_LARGEST_EPSILON = 100.0  # the largest epsilon of one step that a user may state
_TOTAL_ERROR = 1e-9  # the sum of a mixture's probabilities may be off by this; they are then scaled to the sum 1


class _Stated(Mechanism):
    # A mechanism of which only the cost is known: `known` returns the cost of equal steps, for one record.
    noise = "stated"
    lattice = False
    exactness = "not drawn: a statement of what another mechanism's step costs"
    coordinates = 1
    samplings = ("full",)

    def __init__(self, name: str, known: Callable[[StepLike], Cost]) -> None:
        self.name, self._known = name, known

    def require(self, step: StepLike) -> None:
        super().require(step)
        check.integer("steps", step.steps, at_most=MOST_COMPOSED)

    def cost(self, step: StepLike, size: int = 1, n: int | None = None) -> Cost:
        return self._known(step) if size == 1 else UNKNOWN


def _registered(family: str, numbers: Any, known: Callable[[StepLike], Cost], count: int, relation: str) -> Step:
    # The mechanism's name is the family and its numbers, such as zcdp:0.1,0.0 for `concentrated(0.1, 0.0)`. `known`
    # takes equal steps and returns their cost for data sets that differ in one record.
    name = f"{family}:{','.join(map(repr, numbers))}".replace(" ", "")
    MECHANISMS.keep(_Stated(name, known))
    return Step(1.0, FullBatch(), Relation(relation), name, steps=count)


def approximate(epsilon: float, delta: float = 0.0, *, steps: int = 1, relation: str) -> Step:
    """Returns steps that are each (epsilon, delta)-private, by any mechanism, as part of a history.

    Args:
        epsilon: the epsilon of one step, in [0, 100].
        delta: the delta of one step, in [0, 1); above 0 if epsilon is 0.
        steps: the number of steps, >= 1.
        relation: which data sets are neighbours in that guarantee, such as "add-remove"; the history must have it too.

    Returns:
        A `Step` whose upper bounds are those of the costliest such mechanism, which reveals everything with probability
        delta and is randomised response otherwise. Its lower bounds ignore the first case.

    Raises:
        ValueError: an argument is outside its range.
    """
    e = check.real("epsilon", epsilon, at_least=0, at_most=_LARGEST_EPSILON)
    d = check.real("delta", delta, at_least=0, below=1)
    if e == d == 0:
        raise ValueError("epsilon or delta must be positive; got 0 and 0, a step that shows nothing")
    # The costliest such mechanism has an infinite loss with probability delta, and else the losses epsilon and -epsilon
    # with probabilities in the ratio e^epsilon to 1 (Kairouz, Oh and Viswanath, arXiv 1311.0776). Its pair is the same
    # for both orders of neighbouring data sets.
    p = np.array([(1 - d) / (1 + math.exp(e)), (1 - d) / (1 + math.exp(-e)), d])
    losses, q = np.array([-e, e, math.inf]), np.array([p[1], p[0], 0.0])
    losses[:2] += 1e-15 * e
    pair = partitioned(p, q, np.full(3, -math.inf), losses, 2e-15 * p, 2e-15 * q)

    def known(step: StepLike) -> Cost:
        return replace(Cost.of(pair, count=step.steps), pure=(math.inf if d else step.steps * e, 0.0))

    return _registered("approximate", (e, d), known, steps, relation)


def concentrated(rho: float, xi: float = 0.0, *, steps: int = 1, relation: str) -> Step:
    """Returns steps that are each zero-concentrated differentially private (zCDP), as part of a history.

    Args:
        rho: in [1e-9, 100]: the Renyi divergence of one step is at most xi + rho a at every order a > 1.
        xi: the constant of that bound, in [0, 100].
        steps: the number of steps, >= 1. The rho of all zCDP steps of a history may add up to at most 100.
        relation: which data sets are neighbours in that guarantee, such as "add-remove"; the history must have it too.

    Returns:
        A `Step` whose upper bounds hold for every such mechanism (Canonne, Kamath and Steinke, arXiv 2004.00010,
        proposition 12). Particular ones, such as Gaussian noise, cost less. Lower bounds count these steps as free.

    Raises:
        ValueError: an argument is outside its range.
    """
    r = check.real("rho", rho, at_least=LEAST_RHO, at_most=MOST_RHO)
    x = check.real("xi", xi, at_least=0, at_most=_LARGEST_EPSILON)
    return _registered("zcdp", (r, x), lambda step: Cost(zcdp=(step.steps * r, step.steps * x)), steps, relation)


def gaussian_mixture(
    standard_deviation: float,
    sensitivities: Sequence[float],
    probabilities: Sequence[float],
    *,
    steps: int = 1,
    relation: str,
) -> Step:
    """Returns steps with Gaussian noise on a sum that one record moves by a random distance, as part of a history.

    Examples are steps of correlated noise with sampled batches (Choquette-Choo et al., arXiv 2310.15526) and
    dp-accounting's MixtureOfGaussiansDpEvent.

    Args:
        standard_deviation: of the noise, in the unit of `sensitivities`; from 0.2 to 10^4 times the largest of them.
        sensitivities: the distances >= 0 by which the record may move the sum, at most 2,000 values, one above 0.
        probabilities: the probability of each distance; they sum to 1. The drawn one is secret and does not depend on
            the data.
        steps: the number of steps, >= 1, with independent draws.
        relation: which data sets are neighbours, such as "add-remove"; the history must have it too. Under "add-remove"
            and "zero-out" the sum is not moved without the record; under "replace-one" the record's two values move it
            in opposite directions.

    Returns:
        A `Step` whose cost is exact: some records attain it. With a single distance it is an ordinary step with full
        batches, and with one distance besides 0 an ordinary step with Poisson batches.

    Raises:
        ValueError: an argument is outside its range.
    """
    at = check.real_array("sensitivities", np.asarray(sensitivities, dtype=float), at_least=0)
    p = check.real_array("probabilities", np.asarray(probabilities, dtype=float), at_least=0, at_most=1)
    if at.ndim != 1 or at.shape != p.shape or not len(at):
        raise ValueError(f"sensitivities and probabilities must be equally many numbers; got {at.shape}, {p.shape}")
    if not abs((total := math.fsum(p)) - 1) <= _TOTAL_ERROR:
        raise ValueError(f"probabilities must sum to 1; got {total!r}")
    moves, places = np.unique(at[p > 0], return_inverse=True)
    chances = np.bincount(places, p[p > 0] / total)
    largest = float(moves[-1])
    if not largest > 0:
        raise ValueError("sensitivities must be above 0 for some probability; got a step that shows nothing")
    if len(moves) > MOST_IN_GROUP:
        raise ValueError(f"sensitivities must be at most {MOST_IN_GROUP} values; got {len(moves)}")
    least, most = LEAST_NOISE * largest, MOST_NOISE * largest
    s = check.real("standard_deviation", standard_deviation, at_least=least, at_most=most)
    if len(moves) == 1 or (len(moves) == 2 and moves[0] == 0):
        drawn = Poisson(float(chances[-1])) if len(moves) > 1 else FullBatch()
        return Step(s / largest, drawn, Relation(relation), steps=steps)
    shifts = tuple(zip((moves / largest).tolist(), np.log(chances).tolist(), strict=True))

    def known(step: StepLike) -> Cost:
        pairs = shifted_pairs(NormalNoise(s / largest), shifts, replaced=step.relation.replaces)
        return Cost.of(*pairs, count=step.steps)

    return _registered("gaussian-mixture", (s, moves.tolist(), chances.tolist()), known, steps, relation)
