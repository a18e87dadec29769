"""The privacy cost of running a private mechanism a random number of times and releasing only the best outcome.

Each run returns an outcome and a score. The number K of runs is geometric with mean m: P(K = k) = (1 - 1/m)^(k - 1)/m
for k >= 1. Only the outcome with the highest score is released, neither K nor the other outcomes (Liu and Talwar 2019;
Papernot and Steinke 2022). Each run may first choose its settings at random from a public list. If one run is (x,
delta(x))-DP for every x >= 0, the release is (epsilon, m delta(a))-DP for any a, b >= 0 with

    epsilon = a + 2 log(exp(b) + (m - 1) delta(b)).

The proof is in laws/derivation.md, section 11. Equal scores must be decided at random.
"""

import math
import random

from scipy.optimize import minimize_scalar

from dpzero_theory import check
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.step import Steps


def draw_runs(mean_runs: float, source: random.Random) -> int:
    """Draws the number K >= 1 of runs from the geometric distribution.

    Args:
        mean_runs: the mean of K, from 1 to 10^4, else ValueError.
        source: a generator of secret random bits, such as `random.SystemRandom()`.
    """
    chance, number = 1 / check.real("mean_runs", mean_runs, at_least=1, at_most=1e4), 1
    while source.random() >= chance:
        number += 1
    return number


def selection_epsilon(history: Steps, delta: float, mean_runs: float) -> Bracket:
    """Computes epsilon of running a private mechanism a random number of times and releasing only the best outcome.

    Draw the number of runs by `draw_runs` and keep it secret; decide equal scores at random. To find the noise for a
    target epsilon, call `risk.calibrate_risk(lambda run: selection_epsilon(run, delta, mean_runs), target, history)`.

    Args:
        history: the history of one run. If the score is computed from private data, include the release of the score.
        delta: the delta of the whole selection, 0 < delta < 1.
        mean_runs: the mean m of the number of runs, from 1 to 10^4.

    Returns:
        A `Bracket`: `value` equals `upper`, which holds for every score. `lower` is the lower bound on epsilon of a
        single run. A selection by random scores costs at least that; with another score it may cost less.

    Raises:
        ValueError: an argument is outside its range.
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
