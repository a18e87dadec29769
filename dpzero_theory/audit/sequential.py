"""A sequential audit of f-DP: pairs of runs until it is decided, at an error that holds whenever it stops.

The question is that of Kutta, Dunsche, Wei and Zikas (Sequential Auditing for f-Differential Privacy, arXiv
2602.06518): no number of runs has to be given, and the whole curve is tested. The method is betting. Let X and X' be
the outputs of a pair of runs on neighbouring data. Under (epsilon, delta)-DP every event S has

    E[W] <= 0,    W = 1{X in S} - e^epsilon 1{X' in S} - delta,

and mu-GDP is (epsilon, delta(epsilon; mu))-DP for every epsilon at once, in both directions. So for a stake
0 <= s < 1/(e^epsilon + delta) the wealth prod (1 + s W) is a non-negative supermartingale from 1, and so is the mean of
several over events, epsilons and stakes. By Ville's inequality it ever exceeds 1/level with probability at most
`level`, where the claim holds. Pairs must be independent; the events are fixed beforehand.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.gaussian import delta_from_gdp

_PLACES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
"""epsilon over mu^2: where the test at the log-likelihood ratio epsilon cuts, in units of the distance of the means."""
_CUTS = (-0.5, -0.25, -0.125, 0.0, 0.125, 0.25, 0.5, 1.0)
_STAKES = (0.08, 0.25, 0.5, 0.8)
_OUTCOMES = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
"""Whether the first score of a pair, and whether the second, is above a cut."""
_LARGEST = 40.0
"""Of an epsilon that is bet on."""
_EVERY = 32


class Betting:
    """The wealth of bets against mu-GDP. gdp: mu > 0.

    A score has mean +1/2 on the first data set and -1/2 on the second, where the claim is attained with standard
    deviation 1/mu; whatever its law is, the bets are fair. Raises ValueError.
    """

    def __init__(self, gdp: float) -> None:
        mu = check.real("gdp", gdp, above=0)
        epsilons = np.array(_PLACES) * mu * mu
        epsilons = epsilons[epsilons < _LARGEST]
        odds, stakes = (part.ravel() for part in np.meshgrid(np.exp(epsilons), _STAKES, indexing="ij"))
        self._odds, self._deltas = odds, np.repeat(delta_from_gdp(epsilons, mu), len(_STAKES))
        self._stakes = stakes / (self._odds + self._deltas)
        self._gains = np.log1p(self._stakes * (_OUTCOMES[:, :1] - self._odds * _OUTCOMES[:, 1:] - self._deltas))
        self._counts = np.zeros((2 * len(_CUTS), len(_OUTCOMES)))
        self.pairs = 0

    def see(self, scores: Array) -> Array:
        """New pairs of shape (pairs, 2), the scores of a run on the first and on the second data set.

        Returns the log of the wealth, the mean of all bets, after each of them. Raises ValueError for NaN.
        """
        pairs = np.asarray(scores, dtype=np.float64).reshape(-1, 2)
        if np.isnan(pairs).any():
            raise ValueError("scores must be numbers; got NaN")
        counts = self._counts + _counts(pairs)
        self._counts, self.pairs = (counts[-1] if len(counts) else self._counts), self.pairs + len(pairs)
        return self.wealth_of(counts)

    def wealth_of(self, counts: Array) -> Array:
        """Log of the mean of all bets, by how often each cut had each outcome, of shape (moments, cuts, outcomes)."""
        return _log_mean((counts @ self._gains).reshape(len(counts), -1))

    @property
    def log_wealth(self) -> float:
        """Of the mean of all bets; the claim is refuted at `level` once it exceeds log(1/level)."""
        return float(self.wealth_of(self._counts[None])[0])


def _counts(pairs: Array) -> Array:
    """How often each cut had each outcome, in both directions, after each pair: (pairs, cuts, outcomes)."""
    return np.cumsum(np.concatenate([_outcomes(pairs), _outcomes(-pairs[:, ::-1])], axis=1), axis=0)


def _outcomes(pairs: Array) -> Array:
    first, second = (pairs[:, k, None] > np.array(_CUTS) for k in (0, 1))
    return np.asarray((2 * first + second)[..., None] == np.arange(len(_OUTCOMES)), dtype=np.float64)


class Decision(NamedTuple):
    """refuted: whether the claim is. rounds: seen until then. wealth: its log after each round."""

    refuted: bool
    rounds: int
    wealth: list[float]


def decide(rounds: Iterable[Sequence[Array]], gdps: Sequence[float], level: float) -> Decision:
    """Bet until the claims are refuted at `level`, or there are no more rounds.

    Several games are played, the total wealth is their mean. A round has for each game the scores of its new pairs, of
    shape (pairs, 2); game k refutes gdps[k]-GDP. level: in (0, 1). Raises ValueError.
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
    """Of each row of logs."""
    top = logs.max(axis=1, initial=-math.inf)
    return np.asarray(top + np.log(np.exp(logs - top[:, None]).mean(axis=1)))


def lower_bound(scores: Array, level: float) -> float:
    """The last of the claims 0.02, 0.0206, ... of mu-GDP, each 3% above the one before, that are all refuted; else 0.

    scores: as `Betting.see` takes them, in order; the wealth is looked at after every 32nd and the last of them. Above
    the true mu with probability at most `level`: then the first claim that is not below the true one is refuted, which
    holds. Raises ValueError.
    """
    limit, found = -math.log(check.real("level", level, above=0, below=1)), 0.0
    pairs = np.asarray(scores, dtype=np.float64).reshape(-1, 2)
    if np.isnan(pairs).any():
        raise ValueError("scores must be numbers; got NaN")
    counts = _counts(pairs)[sorted({*range(_EVERY - 1, len(pairs), _EVERY), len(pairs) - 1})]
    for mu in np.geomspace(0.02, 0.02 * 1.03**199, 200):
        if Betting(float(mu)).wealth_of(counts).max() < limit:
            return found
        found = float(mu)
    return found
