"""Lower bounds on epsilon, from an attacker's guesses about which records a training run was given.

In a run with m canaries, a fair random sign decides for each canary which of two records the run is given. The attacker
knows all that is public and all other records, and guesses r of the signs. The bounds are for the replace-one relation
if the two values of a canary are records, and for add-remove if one of them is no record. Independent runs with one
canary each count as one run with all their canaries.
"""

import math

import numpy as np
from scipy import special, stats

from dpzero_theory.bisection import halved
from dpzero_theory.check import integer, real

_LARGEST, _GRID = 60.0, 1201  # Lower bounds are searched for from 0 to 60, on 1201 points and then between two of them

# After Steinke, Nasr and Jagielski 2023. Let V of r guesses about m signs be right, q = e^epsilon/(1 + e^epsilon) and
# f(v) = P[Binomial(r, q) >= v]. An (epsilon, delta)-DP mechanism has P[V >= v] <= f(v) + m delta/(1 + e^epsilon).
# Proof. Given what the attacker sees, reveal the signs in order. If each guess were right with probability at most q,
# given the earlier signs, V would be stochastically below the binomial (their Theorem 5.1). Where it is q + eta_i for
# sign i, P[V >= v] gains at most eta_i. By (epsilon, delta)-DP, P[E, sign is b] <= e^epsilon P[E, sign is -b] + delta/2
# for b = +-1 and every event E. With E the event that b is guessed and has posterior above q, the sum over b gives
# E[eta_i] <= delta/(1 + e^epsilon). (Their own delta term, 2 m delta max_i (f(v - i) - f(v))/i, is too small for some
# mechanisms: `tests/audit/test_bounds.py` has one for m = 2.)


def one_run_p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of `correct` or more right guesses about a run that is (epsilon,
    delta)-DP.

    For each canary, a fair random sign decides which of two records the run is given. An attacker guesses signs.

    Args:
        correct: the number of right guesses, from 0 to `guesses`.
        guesses: the number of signs that are guessed, from 1 to `canaries`, fixed before the run.
        canaries: the number of canaries in the run, at least 1.
        epsilon, delta: epsilon >= 0 and 0 <= delta < 1.

    Raises:
        ValueError: an argument is outside its range.
    """
    m = integer("canaries", canaries)
    r = integer("guesses", guesses, at_most=m)
    v = integer("correct", correct, at_least=0, at_most=r)
    eps = real("epsilon", epsilon, at_least=0.0)
    tail = stats.binom.sf(v - 1, r, special.expit(eps))
    return float(min(1.0, tail + m * real("delta", delta, at_least=0.0, below=1.0) * special.expit(-eps)))


def one_run_epsilon(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Return a lower bound on the epsilon of a training loop, from the number of right guesses about one of its runs.

    For each canary, a fair random sign decides which of two records the run is given. An attacker guesses signs. The
    bound is the largest epsilon in [0, 60] for which `one_run_p_value` is at most 1 - confidence, or 0. It exceeds the
    true epsilon with probability at most 1 - confidence.

    Args:
        correct: the number of right guesses, from 0 to `guesses`.
        guesses: the number of signs that are guessed, from 1 to `canaries`, fixed before the run.
        canaries: the number of canaries in the run, at least 1.
        delta: the delta of the loop's claim, 0 <= delta < 1.
        confidence: the probability with which the bound holds, in (0, 1).

    Raises:
        ValueError: an argument is outside its range.
    """
    beta = 1 - real("confidence", confidence, above=0.0, below=1.0)

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(correct, guesses, canaries, epsilon, delta) <= beta

    # If an epsilon is rejected, all smaller ones are too, even those whose own p-value is above beta, since a mechanism
    # that is DP with a smaller epsilon is DP with this one
    found = [float(epsilon) for epsilon in np.linspace(0.0, _LARGEST, _GRID) if rejected(float(epsilon))]
    if not found:
        return 0.0
    width = _LARGEST / (_GRID - 1)
    return halved(rejected, found[-1], found[-1] + width, math.ceil(math.log2(width / 1e-9)))[0]
