import math
from collections.abc import Callable
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from benchmarks.audits.audit import ALGORITHMS, ATTACK, Audited, AuditSetting, audit_row, flagged
from dpzero_theory.audit import bounds
from dpzero_theory.audit.bounds import (
    attack,
    attack_epsilon,
    attack_gdp,
    attack_of,
    one_run,
    one_run_epsilon,
    one_run_gdp,
    one_run_p_value,
    refutes,
)
from dpzero_theory.privacy.gaussian import delta_from_gdp, epsilon_from_gdp

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


def level_of(budgets: list[Budget]) -> Callable[[float], float]:
    """Returns the inverse F^-1 of the trade-off curve that the (epsilon, delta) budgets imply together."""

    def level(power: float) -> float:
        return max(
            max(0.0, (power - delta) * math.exp(-epsilon), 1 - delta - math.exp(epsilon) * (1 - power))
            for epsilon, delta in budgets
        )

    return level


def tail_bound(m: int, r: int, least: int, level: Callable[[float], float]) -> float:
    """Returns the smallest significance at which `refutes` refutes, found by bisection.

    The arguments are the number of signs m, of guesses r and of right guesses `least`, and the inverse `level` of the
    trade-off curve.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if refutes(least, r, m, level, middle) else (middle, high)
    return high


def echo(signs: NDArray[np.int64]) -> NDArray[np.float64]:
    return signs.astype(np.float64)


GAUSSIAN: list[Budget] = [(float(e), float(delta_from_gdp(e, 0.8))) for e in (0.0, 0.3, 0.7, 1.2, 2.0, 3.0)]


@pytest.mark.parametrize("budgets", [[(0.7, 0.0)], [(0.5, 0.1)], [(2.0, 0.02)], GAUSSIAN], ids=str)
@pytest.mark.parametrize(("m", "r"), [(1, 1), (2, 2), (2, 1), (3, 3), (3, 2)])
def test_no_mechanism_beats_the_one_run_bounds(m: int, r: int, budgets: list[Budget]) -> None:
    for least in range(1, r + 1):
        best = most_right_guesses(m, r, least, budgets)
        bound = tail_bound(m, r, least, level_of(budgets))
        assert best <= bound + 1e-7
        assert bound <= 2.5 * best  # The bound is not useless: at most 2.5 times the largest probability
        for epsilon, delta in budgets:
            assert best <= one_run_p_value(least, r, m, epsilon, delta) + 1e-7


def test_the_bounds_are_attained_by_one_canary() -> None:
    for budgets in ([(0.7, 0.0)], [(0.5, 0.1)]):
        best = most_right_guesses(1, 1, 1, budgets)
        assert best == pytest.approx(tail_bound(1, 1, 1, level_of(budgets)), abs=1e-7)
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
    exactly binomial.
    """
    for m, epsilon in [(100, 0.5), (400, 1.5)]:
        counts = np.arange(m + 1)
        above = np.array([one_run_epsilon(int(v), m, m, 0.0, 0.95) > epsilon for v in counts])
        wrong = float(stats.binom.pmf(counts, m, 1 / (1 + math.exp(-epsilon)))[above].sum())
        assert 0.02 < wrong <= 0.05


def test_one_run_gdp_is_right_for_independent_gaussian_canaries() -> None:
    """The bound on mu is wrong at most as often as its confidence allows for independent Gaussian canaries.

    Every sign is guessed, so the number of right guesses is binomial with accuracy Phi(mu/2). Counts of a probability
    below 1e-9 are not tried.
    """
    for m, gdp in [(50, 1.0), (300, 0.5), (300, 2.0)]:
        law = stats.binom.pmf(np.arange(m + 1), m, stats.norm.cdf(gdp / 2))
        wrong = sum(float(law[v]) for v in np.flatnonzero(law > 1e-9) if one_run_gdp(int(v), m, m, 0.95) > gdp)
        assert wrong <= 0.05 - m * 1e-9


@pytest.mark.parametrize("confidence", [0.1, 0.3, 0.49])
def test_one_run_gdp_of_a_single_canary_is_exact(confidence: float) -> None:
    """The bound on mu from one canary is the exact one.

    A sign is guessed right with probability at most Phi(mu/2), which is below the significance up to this mu.
    """
    assert one_run_gdp(1, 1, 1, confidence) == pytest.approx(2 * stats.norm.ppf(1 - confidence), rel=1e-6)


def gaussian_mechanism(gdp: float, rng: np.random.Generator) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    return lambda signs: gdp / 2 * signs + rng.normal(size=len(signs))


def test_one_run_bounds_hold_by_simulation_with_the_best_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """In simulated audits with the best guesses, the bounds seldom exceed the true epsilon and mu.

    Of 500 runs at the nominal rate of 5%, 37 or more above the truth has probability 0.8%. The bound for each count of
    right guesses is computed once.
    """
    for name in ("one_run_epsilon", "one_run_gdp"):
        monkeypatch.setattr(bounds, name, cache(getattr(bounds, name)))
    rng = np.random.default_rng(31)
    for gdp in (0.7, 2.0):
        truth = float(epsilon_from_gdp(gdp, 1e-4))
        mechanism = gaussian_mechanism(gdp, rng)
        found = [one_run(mechanism, canaries=200, guesses=20, delta=1e-4, confidence=0.95, rng=rng) for _ in range(500)]
        assert sum(audit.gdp > gdp for audit in found) < 37
        assert sum(audit.epsilon > truth for audit in found) < 37
        assert np.mean([audit.gdp for audit in found]) > gdp / 5
        assert np.mean([audit.epsilon for audit in found]) > 0.05


def test_clopper_pearson_bounds_agree_with_scipy() -> None:
    for fp, n, fn, p in [(3, 100, 40, 80), (0, 50, 1, 50), (50, 50, 10, 60)]:
        upper = [
            stats.binomtest(hits, trials, alternative="less").proportion_ci(0.975, "exact").high
            for hits, trials in ((fp, n), (fn, p))
        ]
        ratios = [(1 - 1e-3 - upper[1]) / upper[0], (1 - 1e-3 - upper[0]) / upper[1]]
        expected = max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)])
        assert attack_epsilon(fp, n, fn, p, 1e-3, 0.95) == pytest.approx(expected, rel=1e-9)
        gdp = max(0.0, stats.norm.isf(upper[0]) - stats.norm.ppf(upper[1])) if max(upper) < 1 else 0.0
        assert attack_gdp(fp, n, fn, p, 0.95) == pytest.approx(gdp, rel=1e-9)


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.6])
def test_attack_bounds_are_right_by_summing_every_outcome(threshold: float) -> None:
    gdp, n, delta = 1.0, 60, 0.01
    rates = stats.norm.sf(threshold + gdp / 2), stats.norm.cdf(threshold - gdp / 2)
    law = np.outer(*(stats.binom.pmf(np.arange(n + 1), n, rate) for rate in rates))
    truth = float(epsilon_from_gdp(gdp, delta))
    wrong = {"epsilon": 0.0, "gdp": 0.0}
    for fp, fn in np.ndindex(law.shape):
        wrong["epsilon"] += float(law[fp, fn]) * (attack_epsilon(fp, n, fn, n, delta, 0.95) > truth)
        wrong["gdp"] += float(law[fp, fn]) * (attack_gdp(fp, n, fn, n, 0.95) > gdp)
    assert wrong["epsilon"] <= 0.05
    assert wrong["gdp"] <= 0.05
    assert wrong["gdp"] > 1e-4


def test_a_bad_attack_proves_nothing() -> None:
    """An attack that is mostly wrong proves nothing, since large upper bounds on its error rates are no evidence.

    Reversing the sign of its guesses would claim a mu above 3 here.
    """
    assert attack_gdp(950, 1000, 950, 1000, 0.95) == 0.0
    assert attack_epsilon(950, 1000, 950, 1000, 0.0, 0.95) == 0.0
    assert attack_gdp(1000, 1000, 0, 1000, 0.95) == 0.0
    assert one_run_epsilon(3, 100, 100, 0.0, 0.95) == 0.0
    assert one_run_gdp(3, 100, 100, 0.95) == 0.0
    reversed_scores = attack(lambda signs: -echo(signs), runs=400, delta=0.0, confidence=0.95)
    assert (reversed_scores.epsilon, reversed_scores.gdp) == (0.0, 0.0)


def test_choosing_the_threshold_does_not_cost_validity() -> None:
    """Bounds stay valid although the threshold is chosen from the scores.

    Scores without information and a mechanism at its true mu are audited 400 times each; 31 or more bounds above the
    truth has probability 1%.
    """
    rng = np.random.default_rng(34)
    nothing, found = (
        [
            attack_of(*(rng.normal(sign * gdp / 2, size=runs // 2) for sign in (1, -1)), delta=0.0, confidence=0.95)
            for _ in range(400)
        ]
        for gdp, runs in ((0.0, 200), (1.0, 400))
    )
    assert sum(audit.epsilon > 0 for audit in nothing) < 31
    assert sum(audit.gdp > 0 for audit in nothing) < 31
    assert sum(audit.gdp > 1.0 for audit in found) < 31
    assert np.mean([audit.gdp for audit in found]) > 0.3


def test_attack_approaches_the_truth() -> None:
    rng = np.random.default_rng(35)
    found = attack(gaussian_mechanism(1.0, rng), runs=40_000, delta=1e-5, confidence=0.95)
    assert 0.9 < found.gdp <= 1.0
    assert 1.8 < found.epsilon <= float(epsilon_from_gdp(1.0, 1e-5))


def test_a_rejected_epsilon_rejects_the_smaller_ones() -> None:
    """Where one epsilon is rejected, so is every smaller one, whatever its own p-value.

    With m delta/2 above 1 - confidence, epsilon = 0 itself has too large a p-value, but a larger epsilon is rejected.
    """
    assert one_run_p_value(300, 300, 300, 0.0, 1e-3) > 0.05
    found = one_run_epsilon(300, 300, 300, 1e-3, 0.95)
    assert one_run_p_value(300, 300, 300, found, 1e-3) <= 0.05 < one_run_p_value(300, 300, 300, found + 1e-6, 1e-3)
    assert 2 < found < one_run_epsilon(300, 300, 300, 0.0, 0.95)


def test_perfect_guesses_grow_with_the_number_of_canaries() -> None:
    assert one_run_epsilon(1000, 1000, 1000, 0.0, 0.95) == pytest.approx(
        -math.log(math.expm1(-math.log(0.05) / 1000)), rel=1e-6
    )  # The largest epsilon refuted by 1,000 right guesses has accuracy^1000 = 0.05
    assert one_run_gdp(1000, 1000, 1000, 0.95) > one_run_gdp(100, 100, 100, 0.95) > 0.5


SMALL = AuditSetting(n=500, canaries=500, d=500, steps=1_500, epsilon=2.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("variant", ["no-noise", "seed-noise", "batch-clip", "half-sigma"])
def test_broken_algorithms_are_flagged(algorithm: str, variant: str) -> None:
    # A run without noise is never misjudged, so few runs suffice.
    runs = {"half-sigma": 1_200, "batch-clip": 400}.get(variant, 160)
    assert flagged(audit_row("attack", Audited(algorithm, variant, ATTACK), 1, runs), ATTACK)
    if variant != "half-sigma":  # One run would need more canaries to see half the noise: benchmarks have that case
        assert flagged(audit_row("one-run", Audited(algorithm, variant, SMALL), 1, 1), SMALL)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sound_algorithms_are_not_flagged(algorithm: str) -> None:
    """Audits of sound algorithms report no violation more often than their confidence allows.

    Of six audits at 5%, three or more violations has probability 0.2%.
    """
    attacks = [audit_row("attack", Audited(algorithm, "sound", ATTACK), seed, 600) for seed in range(3)]
    single = [audit_row("one-run", Audited(algorithm, "sound", SMALL), seed, 1) for seed in range(3)]
    assert sum(flagged(row, ATTACK) for row in attacks) + sum(flagged(row, SMALL) for row in single) < 3
    assert max(row["gdp"] for row in attacks) > ATTACK.gdp / 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canaries": 0}, "canaries must be an integer"),
        ({"guesses": 3}, "guesses must be even"),
        ({"guesses": 12}, "guesses must be an integer"),
        ({"delta": math.nan}, "delta must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"confidence": math.nan}, "confidence must be"),
    ],
)
def test_bad_one_run_arguments(change: dict[str, object], message: str) -> None:
    arguments = {"canaries": 10, "guesses": 4, "delta": 0.0, "confidence": 0.95, **change}
    with pytest.raises(ValueError, match=message):
        one_run(echo, rng=np.random.default_rng(0), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("scores", [np.array([math.nan]), np.array([1.0, 2.0]), np.array(1.0)])
def test_bad_scores(scores: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match="scores must be 1 numbers"):
        attack(lambda signs: scores, runs=40, delta=0.0, confidence=0.95)


@pytest.mark.parametrize(("runs", "message"), [(36, "runs must be"), (42, "multiple of 4"), (math.nan, "runs must be")])
def test_bad_attack_arguments(runs: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attack(echo, runs=runs, delta=0.0, confidence=0.95)  # type: ignore[arg-type]


def test_bad_counts() -> None:
    calls: list[Callable[[], float]] = [
        lambda: one_run_p_value(5, 4, 10, 1.0, 0.0),
        lambda: one_run_p_value(3, 11, 10, 1.0, 0.0),
        lambda: one_run_p_value(3, 4, 10, math.nan, 0.0),
        lambda: attack_gdp(5, 4, 0, 4, 0.95),
        lambda: attack_epsilon(0, 4, 0, 0, 0.0, 0.95),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must be"):
            call()
    with pytest.raises(ValueError, match="significance must be"):
        refutes(3, 4, 10, lambda y: y, 0.0)
