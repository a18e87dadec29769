"""Empirical lower bounds on epsilon, proved by how well an attacker guesses which records a run was given.

A run has m canaries. Canary i is one of two records, chosen by a fair random sign; the attacker guesses the signs of r
canaries, from everything that is public (directions, iterates, all other records) but the signs. If a canary's two
values are two records, the bounds are for the replace-one relation; if they are a record and no record, for add-remove.
Independent runs with one canary each count as one run with all the canaries. A bound exceeds the true epsilon with
probability at most 1 - confidence.

After Steinke, Nasr and Jagielski 2023. Let v of the r guesses be right. With q = e^epsilon/(1 + e^epsilon) and f(v) =
P[Binomial(r, q) >= v], an (epsilon, delta)-DP mechanism has P[V >= v] <= f(v) + m delta/(1 + e^epsilon), where V is the
number of right guesses. Proof. Given the scores, reveal the signs in order. If each guessed sign agreed with its guess
with probability at most q, given the earlier ones, then the law of V would lie below the binomial, which is their
Theorem 5.1. Where that probability is larger by eta_i, P[V >= v] gains at most eta_i. Given the earlier signs,
(epsilon, delta)-DP says P[E, sign b] <= e^epsilon P[E, sign -b] + delta/2 for every event E of the scores. Take for E
the scores that guess b where b has posterior above q, and sum over b = +-1: E[eta_i] <= delta/(1 + e^epsilon). (Their
own delta term, 2 m delta max_i (f(v - i) - f(v))/i, takes the gains to be independent of V and is too small for some
mechanisms: `tests/audit/test_bounds.py` has one for m = 2.)
"""

import math

import numpy as np
from scipy import special, stats

from dpzero_theory.bisection import halved
from dpzero_theory.check import integer, real

_LARGEST, _GRID = 60.0, 1201  # Lower bounds are searched for from 0 to 60, on 1201 points and then between two of them


def one_run_p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of `correct` or more right guesses about an (epsilon, delta)-DP run.

    A fair random sign decides for each canary which of two records the run is given. An attacker guesses such signs.

    Args:
        correct: the number of right guesses, from 0 to `guesses`.
        guesses: for how many canaries the sign is guessed, from 1 to `canaries`; fixed before the run.
        canaries: the number of canaries in the run, at least 1.
        epsilon, delta: epsilon >= 0 and 0 <= delta < 1.

    Raises:
        ValueError: an argument outside its range.
    """
    m = integer("canaries", canaries)
    r = integer("guesses", guesses, at_most=m)
    v = integer("correct", correct, at_least=0, at_most=r)
    eps = real("epsilon", epsilon, at_least=0.0)
    tail = stats.binom.sf(v - 1, r, special.expit(eps))
    return float(min(1.0, tail + m * real("delta", delta, at_least=0.0, below=1.0) * special.expit(-eps)))


def one_run_epsilon(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Return a lower bound on the epsilon of a loop, proved by how many guesses about one of its runs are right.

    It is the largest epsilon, up to 60, for which `correct` or more right guesses have probability 1 - confidence at
    most (`one_run_p_value`), or 0. It exceeds the true epsilon with probability at most 1 - confidence.

    Args:
        correct: the number of right guesses, from 0 to `guesses`.
        guesses: for how many canaries (records chosen by a fair random sign) the sign is guessed; fixed before the run.
        canaries: the number of canaries in the run, at least `guesses`.
        delta: the delta of the claim, 0 <= delta < 1.
        confidence: the probability with which the bound holds, in (0, 1).

    Raises:
        ValueError: an argument outside its range.
    """
    beta = 1 - real("confidence", confidence, above=0.0, below=1.0)

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(correct, guesses, canaries, epsilon, delta) <= beta

    # A mechanism that is (epsilon, delta)-DP is so for every larger epsilon too. So if an epsilon is rejected, every
    # smaller one is wrong as well, even one whose own p-value is above beta
    found = [float(epsilon) for epsilon in np.linspace(0.0, _LARGEST, _GRID) if rejected(float(epsilon))]
    if not found:
        return 0.0
    width = _LARGEST / (_GRID - 1)
    return halved(rejected, found[-1], found[-1] + width, math.ceil(math.log2(width / 1e-9)))[0]
