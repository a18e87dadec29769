"""Empirical lower bounds on epsilon and mu, proved by how well an attacker guesses which records a run was given.

A mechanism under audit is a function of signs. Canary i is one of two records, chosen by signs[i] = +1 or -1. The
mechanism runs once and returns a score for each canary, larger where it believes the sign is +1. Where a canary's two
values are two records, the bounds are for the replace-one relation; where they are 'the record or nothing', for
add-remove. Scores may be computed from everything that is public (directions, iterates, all other records), but not
from the signs.

Each bound exceeds the truth with probability at most 1 - confidence. There are two kinds:

- `epsilon` at a given delta: a mechanism that is (epsilon, delta)-DP for a smaller epsilon would have been guessed this
  well with probability at most 1 - confidence. Nothing is assumed of the mechanism.
- `gdp`: the same for mu in mu-GDP. It can refute a claim of mu-GDP, which is what full-batch algorithms in this package
  claim. It is not converted to an epsilon: that would be valid only where the trade-off curve is Gaussian.

**One run** (m canaries with fair independent signs, exactly r guesses, v of them right). After Steinke, Nasr and
Jagielski 2023. With q = e^epsilon/(1 + e^epsilon) and f(v) = P[Binomial(r, q) >= v], an (epsilon, delta)-DP mechanism
has P[V >= v] <= f(v) + m delta/(1 + e^epsilon), where V is the number of right guesses. Proof. Given the scores, reveal
the signs in order. If each guessed sign agreed with its guess with probability at most q, given the earlier ones, then
the law of V would lie below the binomial, which is their Theorem 5.1. Where that probability is larger by eta_i, P[V >=
v] gains at most eta_i. Given the earlier signs, (epsilon, delta)-DP says P[E, sign b] <= e^epsilon P[E, sign -b] +
delta/2 for every event E of the scores. Take for E the scores that guess b where b has posterior above q, and sum over
b = +-1: E[eta_i] <= delta/(1 + e^epsilon). (Their own delta term, 2 m delta max_i (f(v - i) - f(v))/i, takes the gains
to be independent of V and is too small for some mechanisms: `tests/audit/test_bounds.py` has one for m = 2.)

**One run, f-DP** (after Mahloujifar, Melis and Chaudhuri 2024). Let p_i = P[V = i], and let F(x) = 1 - f(x) be the most
power of a test at level x. Fix canary j and the other signs. The event 'j is guessed right and V >= i', with j's sign
flipped in the data, becomes 'j is guessed wrong and V >= i - 1'. So f-DP, summed over j and with Jensen's inequality
for the concave F, gives R_i <= F(H_{i-1}), where R_i = sum_{k >= i} k p_k/m, H_i = sum_{k >= i} (r - k) p_k/m and R_i +
H_i = (r/m) P[V >= i]. Suppose P[V >= v] >= beta. Putting beta on V = v gives the smallest R_v. Going down, i = v, ...,
1, take the least mass that H_{i-1} >= F^-1(R_i) allows and put it on i - 1. That keeps both R_i and P[V >= i] at their
smallest, by induction on R_i - R*_i >= max(0, i/(r - i) (H_i - H*_i)), where * marks the values of this greedy choice.
If it needs more than probability 1 in the end, then P[V >= v] < beta.

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

_LARGEST_BOUND = 60.0
"""The largest value up to which lower bounds from one run, on epsilon or on mu, are searched for.

Where this value is refuted too, it is the bound.
"""


class OneRun(NamedTuple):
    """The result of a one-run audit: how many guesses of canaries' signs were right, and what that proves.

    Args:
        canaries: m, the number of canaries.
        guesses: r, for how many of them a sign was guessed.
        correct: v, how many of the guesses were right.
        epsilon: the lower bound on epsilon, at the delta of the audit.
        gdp: the lower bound on mu in mu-GDP.
    """

    canaries: int
    guesses: int
    correct: int
    epsilon: float
    gdp: float


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


def one_run(
    mechanism: Mechanism,
    *,
    canaries: int,
    guesses: int,
    delta: float,
    confidence: float,
    rng: np.random.Generator,
) -> OneRun:
    """Audit a mechanism by a single run with many canaries.

    Args:
        mechanism: the mechanism; it is called once with m random signs, and returns m scores, larger where it believes
            a sign to be +1.
        canaries: m >= 1, the number of canaries.
        guesses: r, even, 2 <= r <= m, fixed beforehand. The r/2 highest scores are guessed +1 and the r/2 lowest -1;
            ties are broken by index.
        delta: for the bound on epsilon, 0 <= delta < 1.
        confidence: of each bound, in (0, 1).
        rng: draws the signs; the mechanism must not share it.

    Returns:
        The number of right guesses, and lower bounds on epsilon and mu.

    Raises:
        ValueError: an argument outside its range, or scores that are not m numbers.
    """
    m = integer("canaries", canaries)
    r = integer("guesses", guesses, at_least=2, at_most=m)
    if r % 2:
        raise ValueError(f"guesses must be even; got {r}")
    signs = 2 * rng.integers(0, 2, m) - 1
    order = np.argsort(_scores(mechanism(signs), m), kind="stable")
    correct = int((signs[order[-(r // 2) :]] == 1).sum() + (signs[order[: r // 2]] == -1).sum())
    return OneRun(
        canaries=m,
        guesses=r,
        correct=correct,
        epsilon=one_run_epsilon(correct, r, m, delta, confidence),
        gdp=one_run_gdp(correct, r, m, confidence),
    )


def one_run_p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability that an (epsilon, delta)-DP mechanism has `correct` or more right guesses.

    The mechanism is given m = canaries random signs, and r = guesses of them are guessed. The bound is P[Binomial(r, q)
    >= v] + m delta/(1 + e^epsilon) with v = correct and q = e^epsilon/(1 + e^epsilon), where v <= r <= m, epsilon >= 0
    and 0 <= delta < 1. The returned number is in [0, 1]. Raises ValueError.
    """
    m, r, v = _counts(correct, guesses, canaries)
    eps = real("epsilon", epsilon, at_least=0.0)
    dlt = real("delta", delta, at_least=0.0, below=1.0)
    return float(_p_values(v, r, m, np.array(eps), dlt))


def one_run_epsilon(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """A lower bound on epsilon: the largest epsilon with `one_run_p_value` <= 1 - confidence, or 0.

    Rejecting one epsilon rejects every smaller one, even one with a larger p-value, because a mechanism that is
    (epsilon, delta)-DP is so for every larger epsilon.

    Args:
        correct: how many guesses of signs were right.
        guesses: for how many canaries the sign was guessed.
        canaries: the number of canaries in the run.
        delta: the delta at which epsilon is bounded, 0 <= delta < 1.
        confidence: of the bound, in (0, 1).

    Raises:
        ValueError: an argument outside its range.
    """
    beta = _significance(confidence)
    m, r, v = _counts(correct, guesses, canaries)
    dlt = real("delta", delta, at_least=0.0, below=1.0)
    grid = np.linspace(0.0, _LARGEST_BOUND, 1201)
    rejected = np.flatnonzero(_p_values(v, r, m, grid, dlt) <= beta)
    if not rejected.size:
        return 0.0
    last = float(grid[rejected[-1]])
    return _largest(lambda eps: bool(_p_values(v, r, m, np.array(eps), dlt) <= beta), last, last + float(grid[1]))


def _p_values(v: int, r: int, m: int, epsilon: Array, delta: float) -> Array:
    tail = stats.binom.sf(v - 1, r, special.expit(epsilon))
    return np.minimum(1.0, tail + m * delta * special.expit(-epsilon))


def one_run_gdp(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """A lower bound on mu: the largest mu for which this many right guesses refute mu-GDP, or 0.

    It calls `refutes` with the curve y -> Phi(Phi^-1(y) - mu), where Phi is the standard normal distribution function.

    Args:
        correct: how many guesses of signs were right.
        guesses: for how many canaries the sign was guessed.
        canaries: the number of canaries in the run.
        confidence: of the bound, in (0, 1).

    Raises:
        ValueError: an argument outside its range.
    """
    beta = _significance(confidence)
    return _largest(
        lambda gdp: refutes(correct, guesses, canaries, lambda y: float(special.ndtr(special.ndtri(y) - gdp)), beta)
    )


def refutes(
    correct: int,
    guesses: int,
    canaries: int,
    level: Callable[[float], float],
    significance: float,
) -> bool:
    """Whether this many right guesses are too many for a mechanism that is f-DP, where f is a trade-off curve.

    They are too many if an f-DP mechanism has `correct` or more right guesses with probability below `significance`, by
    the recursion that the module's text derives.

    Args:
        correct: how many guesses of signs were right.
        guesses: for how many canaries the sign was guessed.
        canaries: the number of canaries in the run.
        level: a function y -> F^-1(y), the smallest level at which a test between neighbouring data sets has power y,
            for 0 <= y < 1. It must not decrease, and the trade-off curve f = 1 - F must be symmetric.
        significance: beta in (0, 1).

    Raises:
        ValueError: an argument outside its range.
    """
    m, r, v = _counts(correct, guesses, canaries)
    beta = real("significance", significance, above=0.0, below=1.0)
    right, wrong = beta * v / m, beta * (r - v) / m
    for i in range(v - 1, -1, -1):
        if right >= 1.0:
            return True
        needed = max(wrong, level(right))
        right += i / (r - i) * (needed - wrong)
        wrong = needed
    return right + wrong > r / m * (1 + 1e-12)


def attack(
    mechanism: Mechanism,
    *,
    runs: int,
    delta: float,
    confidence: float,
) -> Attack:
    """Audit a mechanism by a threshold test over many runs with one canary.

    Half of the runs choose the thresholds, one for each bound, and the other half gives the bounds. In each half the
    sign is +1 as often as -1.

    Args:
        mechanism: the mechanism; it is called with signs of shape (1,), and returns scores of shape (1,).
        runs: the number of runs, a multiple of 4, at least 40.
        delta: for the bound on epsilon, 0 <= delta < 1.
        confidence: of each bound, in (0, 1).

    Returns:
        The lower bounds on epsilon and mu.

    Raises:
        ValueError: an argument outside its range, or a score that is not a number.
    """
    total = integer("runs", runs, at_least=40)
    if total % 4:
        raise ValueError(f"runs must be a multiple of 4; got {total}")
    real("delta", delta, at_least=0.0, below=1.0)
    _significance(confidence)
    plus, minus = (
        np.array([float(_scores(mechanism(np.array([sign])), 1)[0]) for _ in range(total // 2)]) for sign in (1, -1)
    )
    return attack_of(plus, minus, delta=delta, confidence=confidence)


def attack_of(plus: Array, minus: Array, *, delta: float, confidence: float) -> Attack:
    """Compute the lower bounds of `attack` on epsilon and mu from the scores of runs that were made already.

    Args:
        plus, minus: the scores of the runs with sign +1, and of as many with sign -1, in the order of the runs; each an
            even number of scores, at least 20.
        delta: for the bound on epsilon, 0 <= delta < 1.
        confidence: of each bound, in (0, 1).

    Raises:
        ValueError: an argument outside its range, or a score that is not a number.
    """
    half, rest = divmod(integer("plus", np.size(plus), at_least=20), 2)
    if rest:
        raise ValueError(f"plus must have an even number of scores; got {np.size(plus)}")
    up, down = _scores(plus, 2 * half), _scores(minus, 2 * half)
    dlt, level = real("delta", delta, at_least=0.0, below=1.0), 1 - _significance(confidence) / 2
    thresholds = np.quantile(np.concatenate([up[:half], down[:half]]), np.linspace(0, 1, 102)[1:-1], method="nearest")

    def rates(part: slice) -> tuple[Array, Array]:
        """Returns upper bounds on the false-positive and the false-negative rate of each threshold.

        They are computed from the runs in `part`, a slice of the scores.
        """
        wrong = ((down[part, None] > thresholds).sum(axis=0), (up[part, None] <= thresholds).sum(axis=0))
        return _clopper_pearson(wrong[0], half, level), _clopper_pearson(wrong[1], half, level)

    tuned, tested = rates(slice(None, half)), rates(slice(half, None))

    def bound(measure: Callable[[Array, Array], Array]) -> float:
        return float(measure(*tested)[int(np.argmax(measure(*tuned)))])

    return Attack(runs=2 * half, epsilon=bound(lambda fp, fn: _epsilon_of(fp, fn, dlt)), gdp=bound(_gdp_of))


def attack_epsilon(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    delta: float,
    confidence: float,
) -> float:
    """A lower bound on epsilon from the errors of a fixed test between neighbouring data sets.

    The test misjudged false_positives of `negatives` runs with sign -1, and false_negatives of `positives` runs with
    sign +1. At the given delta the bound is the larger of log((1 - delta - FN)/FP) and log((1 - delta - FP)/FN), or 0,
    where FP and FN are upper Clopper-Pearson bounds on the two error rates, each at confidence (1 + confidence)/2.
    Raises ValueError.
    """
    fp, fn = _error_rates(false_positives, negatives, false_negatives, positives, confidence)
    return float(_epsilon_of(fp, fn, real("delta", delta, at_least=0.0, below=1.0)))


def attack_gdp(false_positives: int, negatives: int, false_negatives: int, positives: int, confidence: float) -> float:
    """A lower bound on mu from the errors of a fixed test between neighbouring data sets.

    The test misjudged false_positives of `negatives` runs with sign -1, and false_negatives of `positives` runs with
    sign +1. The bound is Phi^-1(1 - FP) - Phi^-1(FN), or 0 where that is negative, where FP and FN are upper
    Clopper-Pearson bounds on the two error rates, each at confidence (1 + confidence)/2. A negative value proves
    nothing, because the opposite test need not have error rates below 1 - FP and 1 - FN. Raises ValueError.
    """
    return float(_gdp_of(*_error_rates(false_positives, negatives, false_negatives, positives, confidence)))


def _epsilon_of(fp: Array, fn: Array, delta: float) -> Array:
    ratios = np.stack([(1 - delta - fn) / fp, (1 - delta - fp) / fn])
    return np.asarray(np.log(np.maximum(ratios, 1.0)).max(axis=0))


def _gdp_of(fp: Array, fn: Array) -> Array:
    return np.asarray(np.maximum(0.0, -special.ndtri(fp) - special.ndtri(fn)))


def _error_rates(
    false_positives: int, negatives: int, false_negatives: int, positives: int, confidence: float
) -> tuple[Array, Array]:
    level = 1 - _significance(confidence) / 2
    n, p = integer("negatives", negatives), integer("positives", positives)
    fp = integer("false_positives", false_positives, at_least=0, at_most=n)
    fn = integer("false_negatives", false_negatives, at_least=0, at_most=p)
    return _clopper_pearson(np.array(fp), n, level), _clopper_pearson(np.array(fn), p, level)


def _clopper_pearson(hits: NDArray[np.int64], trials: int, level: float) -> Array:
    """An upper bound on the rate of a kind of event of which `hits` were seen in `trials` trials.

    It is the bound of Clopper and Pearson, which is below the rate with probability at most 1 - level; hits may be an
    array.
    """
    return np.where(hits == trials, 1.0, special.betaincinv(hits + 1, np.maximum(trials - hits, 1), level))


def _counts(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    m = integer("canaries", canaries)
    r = integer("guesses", guesses, at_most=m)
    return m, r, integer("correct", correct, at_least=0, at_most=r)


def _significance(confidence: float) -> float:
    return 1 - real("confidence", confidence, above=0.0, below=1.0)


def _scores(scores: Array, m: int) -> Array:
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (m,) or np.isnan(values).any():
        raise ValueError(f"scores must be {m} numbers, none NaN; got shape {values.shape}")
    return values


def _largest(rejected: Callable[[float], bool], low: float = 0.0, high: float = _LARGEST_BOUND) -> float:
    """Returns the largest number of [low, high] for which the condition `rejected` holds, at most 1e-9 too small.

    The condition must be true up to some number and false beyond it. Where it is false at `low` already, low is
    returned.
    """
    return halved(rejected, low, high, math.ceil(math.log2((high - low) / 1e-9)))[0]
