"""Tests of the lower bounds and of the exact p-values, against linear programs, enumeration and simulation."""

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import combinations, product

import numpy as np
import pytest
from scipy import optimize, stats

from dpzero_theory.audit import exact
from dpzero_theory.audit.bounds import one_run_epsilon, one_run_p_value
from dpzero_theory.privacy.gaussian import delta_from_gdp

Budget = tuple[float, float]


def most_right_guesses(m: int, r: int, least: int, budgets: list[Budget]) -> float:
    """Returns the largest P[V >= least] of all mechanisms that are (epsilon, delta)-DP for all `budgets`.

    V is the number of right guesses when r of m signs are guessed. It is the value of a linear program: a mechanism is
    its law of guess vectors (r of m coordinates guessed) for each of the 2^m sign vectors, and the divergences are
    linear with one slack variable per outcome.
    """
    signs = list(product((-1, 1), repeat=m))
    guesses = [
        tuple(dict(zip(chosen, values, strict=True)).get(j, 0) for j in range(m))
        for chosen in combinations(range(m), r)
        for values in product((-1, 1), repeat=r)
    ]
    law = {(s, g): k for k, (s, g) in enumerate(product(signs, guesses))}
    flips = [(s, tuple(-v if j == i else v for j, v in enumerate(s))) for s in signs for i in range(m)]
    size = len(law) + len(flips) * len(budgets) * len(guesses)
    count = len(flips) * len(budgets)
    above, below = np.zeros((count * (len(guesses) + 1), size)), np.zeros(count * (len(guesses) + 1))
    row, slack = 0, len(law)
    for (s, flipped), (epsilon, delta) in product(flips, budgets):
        for g in guesses:
            above[row, [law[s, g], law[flipped, g], slack]] = 1.0, -math.exp(epsilon), -1.0
            row, slack = row + 1, slack + 1
        above[row, slack - len(guesses) : slack] = 1.0
        below[row] = delta
        row += 1
    total = np.zeros((len(signs), size))
    for (s, _), k in law.items():
        total[signs.index(s), k] = 1.0
    objective = np.zeros(size)
    for (s, g), k in law.items():
        if sum(a == b for a, b in zip(s, g, strict=True)) >= least:
            objective[k] = -1 / len(signs)
    found = optimize.linprog(objective, A_ub=above, b_ub=below, A_eq=total, b_eq=np.ones(len(signs)))
    assert found.success
    assert found.fun is not None
    return float(-found.fun)


GAUSSIAN: list[Budget] = [(float(e), float(delta_from_gdp(e, 0.8))) for e in (0.0, 0.3, 0.7, 1.2, 2.0, 3.0)]


@pytest.mark.parametrize("budgets", [[(0.7, 0.0)], [(0.5, 0.1)], [(2.0, 0.02)], GAUSSIAN], ids=str)
@pytest.mark.parametrize(("m", "r"), [(1, 1), (2, 2), (2, 1), (3, 3), (3, 2)])
def test_no_mechanism_beats_the_one_run_bounds(m: int, r: int, budgets: list[Budget]) -> None:
    for least in range(1, r + 1):
        best = most_right_guesses(m, r, least, budgets)
        for epsilon, delta in budgets:
            assert best <= one_run_p_value(least, r, m, epsilon, delta) + 1e-7


def test_the_bound_is_attained_by_one_canary() -> None:
    assert one_run_p_value(1, 1, 1, 0.7, 0.0) == pytest.approx(most_right_guesses(1, 1, 1, [(0.7, 0.0)]), abs=1e-7)


def test_the_published_delta_term_is_too_small() -> None:
    """The published bound of one-run audits is too small for a mechanism on two signs that is checked by hand.

    The mechanism is randomised response that turns probability t of 'both wrong' into 'both right'. It is (epsilon,
    delta)-DP for t = delta/(1 + e^epsilon), and is right at least once more often than f(1) + 2 m delta (f(0) - f(1)),
    the bound of Steinke, Nasr and Jagielski's Theorem 5.2.
    """
    epsilon, delta = 2.0, 0.02
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    t = delta / (1 + math.exp(epsilon))
    law = {(1, 1): q * q + t, (1, -1): q * (1 - q), (-1, 1): q * (1 - q), (-1, -1): (1 - q) ** 2 - t}
    assert math.fsum(law.values()) == pytest.approx(1)
    flipped = {(a, b): law[-a, b] for a, b in law}
    assert sum(max(law[o] - math.exp(epsilon) * flipped[o], 0) for o in law) <= delta + 1e-15
    right_once = 1 - law[-1, -1]
    published = 1 - (1 - q) ** 2 + 2 * 2 * delta * (1 - q) ** 2
    assert right_once > published + 1e-3
    assert right_once <= most_right_guesses(2, 2, 1, [(epsilon, delta)]) + 1e-9
    assert right_once <= one_run_p_value(1, 2, 2, epsilon, delta)


def test_the_p_value_without_delta_is_a_binomial_tail() -> None:
    for r, v, epsilon in [(10, 9, 0.5), (20, 17, 1.0), (30, 1, 0.0), (5, 0, 1.0)]:
        q = math.exp(epsilon) / (1 + math.exp(epsilon))
        tail = sum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(v, r + 1))
        assert one_run_p_value(v, r, 40, epsilon, 0.0) == pytest.approx(tail, rel=1e-12)
    assert one_run_p_value(5, 5, 40, 1.0, 0.5) == 1.0


def test_one_run_epsilon_is_right_and_tight_for_randomised_response() -> None:
    """The bound on epsilon is wrong about as often as its confidence allows for randomised response.

    Each sign is reported truthfully with probability e^epsilon/(1 + e^epsilon), so the number of right guesses is
    exactly binomial. The bound grows with that number, so it is above epsilon from some number on.
    """
    for m, epsilon in [(100, 0.5), (400, 1.5)]:
        least = bisect_left(range(m + 1), True, key=lambda v: one_run_epsilon(v, m, m, 0.0, 0.95) > epsilon)
        assert 0.02 < stats.binom.sf(least - 1, m, 1 / (1 + math.exp(-epsilon))) <= 0.05


def test_a_rejected_epsilon_rejects_the_smaller_ones() -> None:
    """Where one epsilon is rejected, so is every smaller one, whatever its own p-value.

    With m delta/2 above 1 - confidence, epsilon = 0 itself has too large a p-value, but a larger epsilon is rejected.
    """
    assert one_run_p_value(300, 300, 300, 0.0, 1e-3) > 0.05
    found = one_run_epsilon(300, 300, 300, 1e-3, 0.95)
    assert one_run_p_value(300, 300, 300, found, 1e-3) <= 0.05 < one_run_p_value(300, 300, 300, found + 1e-6, 1e-3)
    assert 2 < found < one_run_epsilon(300, 300, 300, 0.0, 0.95)


def test_few_right_guesses_prove_nothing() -> None:
    assert one_run_epsilon(3, 100, 100, 0.0, 0.95) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_run_p_value(5, 4, 10, 1.0, 0.0), "correct must be"),
        (lambda: one_run_p_value(3, 11, 10, 1.0, 0.0), "guesses must be"),
        (lambda: one_run_p_value(3, 4, 10, math.nan, 0.0), "epsilon must be"),
        (lambda: one_run_epsilon(3, 4, 10, 1.0, 0.9), "delta must be"),
        (lambda: one_run_epsilon(3, 4, 10, 0.0, 1.0), "confidence must be"),
    ],
)
def test_bad_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_binomial_is_twice_the_smaller_tail_summed_by_hand() -> None:
    law = [stats.binom.pmf(k, 9, 0.3) for k in range(10)]
    for k in range(10):
        expected = min(1.0, 2 * min(sum(law[: k + 1]), sum(law[k:])))
        assert exact.binomial(k, 9, 0.3) == pytest.approx(expected, rel=1e-10)


def test_dispersion_by_summing_every_outcome() -> None:
    pmf = np.array([0.1, 0.4, 0.3, 0.2])
    centre = round(float(np.arange(4) @ pmf))
    law: dict[int, float] = {}
    for counts in product(range(4), repeat=3):
        size = sum((c - centre) ** 2 for c in counts)
        law[size] = law.get(size, 0.0) + float(np.prod(pmf[list(counts)]))
    for counts in ((2, 2, 2), (0, 3, 1), (0, 0, 0)):
        seen = sum((c - centre) ** 2 for c in counts)
        lower = sum(p for size, p in law.items() if size <= seen)
        upper = sum(p for size, p in law.items() if size >= seen)
        assert exact.dispersion(np.array(counts), pmf) == pytest.approx(min(1.0, 2 * min(lower, upper)), rel=1e-9)


def test_dispersion_sees_batches_of_one_size_and_not_poisson_ones() -> None:
    """The p-value of `dispersion` is seldom small for true samples and very small for batches of one size.

    Of 150 true samples, 4 or more below 1e-3 has probability 2e-5.
    """
    rng, pmf = np.random.default_rng(1), stats.binom.pmf(np.arange(49), 48, 0.25)
    small = [exact.dispersion(rng.binomial(48, 0.25, 30), pmf) for _ in range(150)]
    assert sum(p < 1e-3 for p in small) < 4
    assert exact.dispersion(np.full(30, 12), pmf) < 1e-12


def test_overlaps_by_enumeration() -> None:
    pmf = np.array([0.5, 0.25, 0.25])
    sums = [sum(pair) for pair in product(range(3), repeat=2) for _ in range(1)]
    weights = [float(pmf[a] * pmf[b]) for a, b in product(range(3), repeat=2)]
    lower = sum(w for s, w in zip(sums, weights, strict=True) if s <= 1)
    upper = sum(w for s, w in zip(sums, weights, strict=True) if s >= 1)
    assert exact.overlaps(1, 2, pmf) == pytest.approx(min(1.0, 2 * min(lower, upper)))


def test_correlation_is_the_t_test_without_a_mean() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=40), rng.uniform(size=40)
    r = a @ b / np.sqrt((a @ a) * (b @ b))
    t = abs(r) * np.sqrt(39 / (1 - r * r))
    assert exact.correlation(a, b) == pytest.approx(2 * stats.t.sf(t, 39), rel=1e-9)
    assert exact.correlation(a, a) < 1e-100
    assert exact.correlation(np.zeros(5), np.ones(5)) == 1.0
