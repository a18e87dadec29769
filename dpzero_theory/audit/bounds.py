"""Empirical lower bounds on epsilon and mu, proved by how well an attacker guesses which records a run was given.

A mechanism under audit is a function of signs. Canary i is one of two records, chosen by signs[i] = +1 or -1. The
mechanism runs once and returns a score for each canary, larger where it believes the sign is +1. Where a canary's two
values are two records, the bounds are for the replace-one relation; where they are 'the record or nothing', for
add-remove. Scores may be computed from everything that is public (directions, iterates, all other records), but not
from the signs. Each bound exceeds the truth with probability at most 1 - confidence.

**One run** (m canaries with fair independent signs, exactly r guesses, v of them right). After Steinke, Nasr and
Jagielski 2023. With q = e^epsilon/(1 + e^epsilon) and f(v) = P[Binomial(r, q) >= v], an (epsilon, delta)-DP mechanism
has P[V >= v] <= f(v) + m delta/(1 + e^epsilon), where V is the number of right guesses. Proof. Given the scores, reveal
the signs in order. If each guessed sign agreed with its guess with probability at most q, given the earlier ones, then
the law of V would lie below the binomial, which is their Theorem 5.1. Where that probability is larger by eta_i, P[V >=
v] gains at most eta_i. Given the earlier signs, (epsilon, delta)-DP says P[E, sign b] <= e^epsilon P[E, sign -b] +
delta/2 for every event E of the scores. Take for E the scores that guess b where b has posterior above q, and sum over
b = +-1: E[eta_i] <= delta/(1 + e^epsilon). (Their own delta term, 2 m delta max_i (f(v - i) - f(v))/i, takes the gains
to be independent of V and is too small for some mechanisms: `tests/audit/test_bounds.py` has one for m = 2.)

**Attack** (many runs with one canary). Clopper-Pearson bounds on the rates of false positives and false negatives of a
threshold test. (epsilon, delta)-DP ties them by FP e^epsilon + FN >= 1 - delta, and mu-GDP by mu >= z(1 - FP) - z(FN),
where z is the normal quantile. The threshold is chosen on other runs than the bound.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dpzero_theory.bisection import halved
from dpzero_theory.check import Array, integer, real

Mechanism = Callable[[NDArray[np.int64]], Array]
"""A mechanism under audit, which makes one run for each call.

It takes signs, an array of shape (m,) with entries +1 and -1, one for each of m canaries, and returns scores of shape
(m,).
"""
_LARGEST, _GRID = 60.0, 1201
"""Lower bounds from one run are searched for from 0 to 60, on so many points and then between two of them."""


class Attack(NamedTuple):
    """The lower bounds that a threshold test proved over many runs, at the confidence that the audit was asked for.

    Args:
        runs: the number of runs that the audit made, on both of the two neighbouring data sets together.
        epsilon: the lower bound on epsilon, at the delta of the audit.
        gdp: the lower bound on mu in mu-GDP.
    """

    runs: int
    epsilon: float
    gdp: float


def one_run_p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability that an (epsilon, delta)-DP mechanism has `correct` or more right guesses.

    Args:
        correct: v <= r, how many guesses of signs were right.
        guesses: r <= m, for how many canaries the sign was guessed, fixed beforehand.
        canaries: m >= 1, the number of canaries in the run, each with a fair random sign.
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
    """A lower bound on epsilon by one run: the largest epsilon with a p-value of at most 1 - confidence, or 0.

    Rejecting one epsilon rejects every smaller one, even one with a larger p-value, because a mechanism that is
    (epsilon, delta)-DP is so for every larger epsilon.

    Args:
        correct, guesses, canaries, delta: as for `one_run_p_value`.
        confidence: of the bound, in (0, 1).

    Raises:
        ValueError: an argument outside its range.
    """
    beta = 1 - real("confidence", confidence, above=0.0, below=1.0)

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(correct, guesses, canaries, epsilon, delta) <= beta

    found = [float(epsilon) for epsilon in np.linspace(0.0, _LARGEST, _GRID) if rejected(float(epsilon))]
    if not found:
        return 0.0
    width = _LARGEST / (_GRID - 1)
    return halved(rejected, found[-1], found[-1] + width, math.ceil(math.log2(width / 1e-9)))[0]


def attack(mechanism: Mechanism, *, runs: int, delta: float, confidence: float) -> Attack:
    """Audit a mechanism by a threshold test over many runs with one canary.

    Half of the runs choose the thresholds, one for each bound, and the other half gives the bounds. In each half the
    sign is +1 as often as -1.

    Args:
        mechanism: the mechanism; it is called with signs of shape (1,), and returns scores of shape (1,).
        runs: the number of runs, a multiple of 4, at least 40.
        delta: for the bound on epsilon, 0 <= delta < 1.
        confidence: of each bound, in (0, 1).

    Raises:
        ValueError: an argument outside its range, or a score that is not a number.
    """
    total = integer("runs", runs, at_least=40)
    if total % 4:
        raise ValueError(f"runs must be a multiple of 4; got {total}")
    dlt = real("delta", delta, at_least=0.0, below=1.0)
    level = 1 - (1 - real("confidence", confidence, above=0.0, below=1.0)) / 2
    up, down = (np.array([_score(mechanism, sign) for _ in range(total // 2)]) for sign in (1, -1))
    half = total // 4
    thresholds = np.quantile(np.concatenate([up[:half], down[:half]]), np.linspace(0, 1, 102)[1:-1], method="nearest")

    def rates(part: slice) -> tuple[Array, Array]:
        """Return upper bounds on the false-positive and the false-negative rate of each threshold, from some runs."""
        false_positives = (down[part, None] > thresholds).sum(axis=0)
        false_negatives = (up[part, None] <= thresholds).sum(axis=0)
        return clopper_pearson(false_positives, half, level), clopper_pearson(false_negatives, half, level)

    tuned, tested = rates(slice(None, half)), rates(slice(half, None))

    def bound(measure: Callable[[Array, Array], Array]) -> float:
        return float(measure(*tested)[int(np.argmax(measure(*tuned)))])

    def epsilon_of(fp: Array, fn: Array) -> Array:
        ratios = np.stack([(1 - dlt - fn) / fp, (1 - dlt - fp) / fn])
        return np.asarray(np.log(np.maximum(ratios, 1.0)).max(axis=0))

    def gdp_of(fp: Array, fn: Array) -> Array:
        return np.asarray(np.maximum(0.0, -special.ndtri(fp) - special.ndtri(fn)))

    return Attack(runs=total, epsilon=bound(epsilon_of), gdp=bound(gdp_of))


def clopper_pearson(hits: NDArray[np.int64], trials: int, level: float) -> Array:
    """An upper bound on the rate of a kind of event of which `hits` were seen in `trials` independent trials.

    It is below the rate with probability at most 1 - level; hits may be an array.
    """
    return np.where(hits == trials, 1.0, special.betaincinv(hits + 1, np.maximum(trials - hits, 1), level))


def _score(mechanism: Mechanism, sign: int) -> float:
    values = np.asarray(mechanism(np.array([sign])), dtype=np.float64)
    if values.shape != (1,) or np.isnan(values).any():
        raise ValueError(f"scores must be 1 number, not NaN; got shape {values.shape}")
    return float(values[0])
