"""A sequential audit: pairs of runs until a claim is refuted, with an error probability that holds whenever it stops.

The question is that of Kutta, Dunsche, Wei and Zikas (Sequential Auditing for f-Differential Privacy, arXiv
2602.06518): no number of runs has to be fixed, and the whole trade-off curve is tested. The method is betting. Let X
and X' be the outputs of a pair of runs on neighbouring data. Under (epsilon, delta)-DP every event S has

    E[W] <= 0,    W = 1{X in S} - e^epsilon 1{X' in S} - delta,

and mu-GDP is (epsilon, delta(epsilon; mu))-DP for every epsilon at once, in both directions. So for a stake 0 <= s <
1/(e^epsilon + delta) the wealth prod (1 + s W) is a non-negative supermartingale that starts at 1, and so is the mean
of several such products over events, epsilons and stakes. By Ville's inequality the wealth ever exceeds 1/level with
probability at most `level` where the claim holds. Pairs must be independent, and the events are fixed beforehand.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.gaussian import delta_from_gdp

_EPSILONS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
"""The epsilons at which the audit bets, in units of mu^2, where mu-GDP is the claim under test.

In these units the threshold of the likelihood-ratio test at epsilon is epsilon/mu^2 times the distance of the two means
from their middle.
"""
_EVENTS = (-0.5, -0.25, -0.125, 0.0, 0.125, 0.25, 0.5, 1.0)
"""The thresholds of the bets. The event S that a bet is on is that a score exceeds one of them.

Scores have means +1/2 and -1/2 on the two data sets.
"""
_STAKES = (0.08, 0.25, 0.5, 0.8)
"""Stakes of the bets, as shares of the largest stake that keeps the wealth from falling below 0."""
_BOTH_SCORES = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
"""The four outcomes of a bet on a pair of scores, as rows of 0 (no) and 1 (yes).

The columns say whether the first score exceeds the threshold, and whether the second one does.
"""
_LARGEST_EPSILON = 40.0  # Bets are made at epsilons up to this value, so that e^epsilon is well within float64
_LOOK_EVERY = 32  # `lower_bound` compares the wealth with its limit once after so many pairs of runs


class Betting:
    """Bets against the claim of mu-GDP, and the wealth that they have gained.

    The bets are made for scores that have mean +1/2 on the first data set and -1/2 on the second one, and standard
    deviation 1/mu where the mechanism is exactly mu-GDP. But whatever the law of the scores, the wealth of the bets
    does not grow on average where the claim holds. The argument `gdp` is mu > 0; ValueError is raised for another
    value.

    Attributes:
        pairs: how many pairs of runs were seen.
    """

    def __init__(self, gdp: float) -> None:
        mu = check.real("gdp", gdp, above=0)
        epsilons = np.array(_EPSILONS) * mu * mu
        epsilons = epsilons[epsilons < _LARGEST_EPSILON]
        odds, stakes = (part.ravel() for part in np.meshgrid(np.exp(epsilons), _STAKES, indexing="ij"))
        self._odds, self._deltas = odds, np.repeat(delta_from_gdp(epsilons, mu), len(_STAKES))
        self._stakes = stakes / (self._odds + self._deltas)
        self._gains = np.log1p(self._stakes * (_BOTH_SCORES[:, :1] - self._odds * _BOTH_SCORES[:, 1:] - self._deltas))
        self._counts = np.zeros((2 * len(_EVENTS), len(_BOTH_SCORES)))
        self.pairs = 0

    def see(self, scores: Array) -> Array:
        """Bet on new pairs of scores, an array of shape (pairs, 2).

        The first score of a pair is that of a run on the first data set, the second that of a run on the second one.
        Returns, for each of the pairs, the logarithm of the wealth after it; the wealth is the mean over all bets.
        Raises ValueError for NaN.
        """
        pairs = np.asarray(scores, dtype=np.float64).reshape(-1, 2)
        if np.isnan(pairs).any():
            raise ValueError("scores must be numbers; got NaN")
        counts = self._counts + _counts(pairs)
        self._counts, self.pairs = (counts[-1] if len(counts) else self._counts), self.pairs + len(pairs)
        return self.wealth_of(counts)

    def wealth_of(self, counts: Array) -> Array:
        """Returns the logarithm of the wealth of the bets at several moments.

        `counts` says how often each of the four outcomes of `_BOTH_SCORES` had occurred for each threshold by that
        moment; it has the shape (moments, thresholds, outcomes).
        """
        return _log_mean((counts @ self._gains).reshape(len(counts), -1))

    @property
    def log_wealth(self) -> float:
        """The logarithm of the bets' present wealth.

        The claim is refuted at a significance level once this exceeds log(1/level).
        """
        return float(self.wealth_of(self._counts[None])[0])


def _counts(pairs: Array) -> Array:
    """Returns how often each of the four outcomes of a bet had occurred for each threshold after each pair of scores.

    `pairs` has the shape (pairs, 2) and the result (pairs, thresholds, outcomes). The second half of the thresholds is
    for the claim with the two data sets exchanged.
    """
    return np.cumsum(np.concatenate([_outcome_of(pairs), _outcome_of(-pairs[:, ::-1])], axis=1), axis=0)


def _outcome_of(pairs: Array) -> Array:
    first, second = (pairs[:, k, None] > np.array(_EVENTS) for k in (0, 1))
    return np.asarray((2 * first + second)[..., None] == np.arange(len(_BOTH_SCORES)), dtype=np.float64)


class Decision(NamedTuple):
    """The end of a sequential audit.

    Args:
        refuted: whether the claims are refuted.
        rounds: how many rounds of runs were bet on.
        wealth: the logarithm of the bets' wealth after each round.
    """

    refuted: bool
    rounds: int
    wealth: list[float]


def decide(rounds: Iterable[Sequence[Array]], gdps: Sequence[float], level: float) -> Decision:
    """Bet against claims of mu-GDP until they are refuted at `level`, or there are no more rounds of runs.

    Several games are played at once, each against one claim of mu-GDP. The wealth is the mean of the games' wealths.

    Args:
        rounds: for each round, and in it for each game, the scores of its new pairs of runs, of shape (pairs, 2).
        gdps: for each game the claimed mu.
        level: an upper bound, in (0, 1), on the probability of refuting claims that all hold.

    Returns:
        Whether the claims are refuted, the number of rounds, and the wealth after each.

    Raises:
        ValueError: an argument outside its range, or a score that is NaN.
    """
    limit = -math.log(check.real("level", level, above=0, below=1))
    games, wealth = [Betting(gdp) for gdp in gdps], list[float]()
    for scores in rounds:
        for game, pairs in zip(games, scores, strict=True):
            game.see(pairs)
        wealth.append(float(_log_mean(np.array([[game.log_wealth for game in games]]))[0]))
        if wealth[-1] >= limit:
            return Decision(True, len(wealth), wealth)
    return Decision(False, len(wealth), wealth)


def _log_mean(logs: Array) -> Array:
    """Returns, for each row of `logs`, the logarithm of the mean of exp(x) over the entries x of the row."""
    top = logs.max(axis=1, initial=-math.inf)
    return np.asarray(top + np.log(np.exp(logs - top[:, None]).mean(axis=1)))


def lower_bound(scores: Array, level: float) -> float:
    """A lower bound on mu that exceeds the true mu with probability at most `level`.

    The claims of mu-GDP for mu = 0.02, 0.0206, ..., each 3% above the one before, are tested in order. The last mu
    before the first that is not refuted is returned, or 0 where none is refuted. The bound exceeds the true mu only if
    the smallest tested mu above the truth, whose claim holds, is refuted; that has probability at most `level`.

    Args:
        scores: pairs of scores, of shape (pairs, 2), in the order of the runs: of a run on the first data set, and of
            one on the second. The wealth of the bets is compared with its limit after every 32nd pair, and after the
            last.
        level: in (0, 1).

    Raises:
        ValueError: a level outside its range, or a score that is NaN.
    """
    limit, refuted = -math.log(check.real("level", level, above=0, below=1)), 0.0
    pairs = np.asarray(scores, dtype=np.float64).reshape(-1, 2)
    if np.isnan(pairs).any():
        raise ValueError("scores must be numbers; got NaN")
    counts = _counts(pairs)[sorted({*range(_LOOK_EVERY - 1, len(pairs), _LOOK_EVERY), len(pairs) - 1})]
    for mu in np.geomspace(0.02, 0.02 * 1.03**199, 200):
        if Betting(float(mu)).wealth_of(counts).max() < limit:
            return refuted
        refuted = float(mu)
    return refuted
