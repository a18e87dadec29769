"""What it costs to run a private mechanism a random number of times and release the best outcome only.

A run with an outcome and a score is repeated K times, where K has the geometric law with the mean m: P(K = k) = (1 -
1/m)^(k - 1)/m for k >= 1. Only the outcome with the highest score is released, neither K nor the other outcomes (Liu
and Talwar 2019; Papernot and Steinke 2022). Each run may first choose its settings at random from a public list. If one
run is (x, delta(x))-DP for every x >= 0, the release is (epsilon, delta)-DP for

    delta = m delta(e),    epsilon = e + 2 log(e^b + (m - 1) delta(b)),    any e, b >= 0.

Proof: laws/derivation.md, section 11. Ties of the score must be broken at random.
"""

import math
import random

from scipy.optimize import minimize_scalar

from dpzero_theory import check
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.step import Steps


def draw_runs(mean_runs: float, source: random.Random) -> int:
    """Draw the number K >= 1 of runs from the geometric law with the given mean.

    Args:
        mean_runs: the mean of K, from 1 to 10^4, else ValueError.
        source: must have secret random bits, as `random.SystemRandom()` has.
    """
    chance, number = 1 / check.real("mean_runs", mean_runs, at_least=1, at_most=1e4), 1
    while source.random() >= chance:
        number += 1
    return number


def selection_epsilon(history: Steps, delta: float, mean_runs: float) -> Bracket:
    """Return a bracket of the epsilon, at a given delta, of running a private mechanism a random number of times and
    releasing only the outcome with the highest score.

    The number of runs must be drawn by `draw_runs` and kept secret, and ties of the score must be broken at random.
    `risk.calibrate_risk(lambda run: selection_epsilon(run, delta, mean_runs), target, history)` finds the noise.

    Args:
        history: the history of one run. If its score is computed from private data, the release of the score is part of
            the history.
        delta: the delta of the whole selection, 0 < delta < 1. The delta of one run is chosen here.
        mean_runs: m, the mean of the number of runs, from 1 to 10^4.

    Returns:
        A bracket of the largest epsilon over all scores: `value` = `upper` is certified for every score. `lower` is the
        lower end of epsilon of one run, which selection by a random score costs; another score may cost less.

    Raises:
        ValueError: an argument outside its range.
    """
    m = check.real("mean_runs", mean_runs, at_least=1, at_most=1e4)
    target = check.real("delta", delta, above=0, below=1)
    least, one = (epsilon_of_history(history, part) for part in (target / m, target))

    def beyond(b: float) -> float:
        return 2 * (b + math.log1p((m - 1) * delta_of_history(history, b).upper * math.exp(-b)))

    most = least.upper
    best = minimize_scalar(beyond, bounds=(0.0, max(most, 1e-6)), method="bounded", options={"xatol": 1e-3})
    upper = (most + min(float(best.fun), beyond(0.0), beyond(most))) * (1 + 1e-12)
    return Bracket(one.lower, upper, upper, least.method)
