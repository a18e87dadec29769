"""Tests of the exact p-values, against enumeration, other formulas and simulation with thresholds fixed beforehand."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.audit import exact


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


def test_least_seen_is_seen_as_often_as_it_says() -> None:
    """Noise of the size that `least_seen` returns is noticed in 95% of 2,000 samples, up to 5 standard deviations."""
    count, level = 400, 1e-6
    ratio = exact.least_seen(count, level)
    draws = ratio**2 * np.random.default_rng(2).chisquare(count, 2000)
    seen = np.mean([exact.too_little(float(x), count) < level for x in draws])
    assert abs(seen - 0.95) < 5 * np.sqrt(0.95 * 0.05 / 2000)
    assert exact.too_little(5.0, 10) + exact.too_much(5.0, 10) == pytest.approx(1.0)


def test_correlation_is_the_t_test_without_a_mean() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=40), rng.uniform(size=40)
    r = a @ b / np.sqrt((a @ a) * (b @ b))
    t = abs(r) * np.sqrt(39 / (1 - r * r))
    assert exact.correlation(a, b) == pytest.approx(2 * stats.t.sf(t, 39), rel=1e-9)
    assert exact.correlation(a, a) < 1e-100
    assert exact.correlation(np.zeros(5), np.ones(5)) == 1.0


def test_laws_of_noise() -> None:
    rng = np.random.default_rng(4)
    normal = rng.normal(size=4000)
    assert exact.gaussian(normal) > 1e-3
    assert exact.gaussian(rng.uniform(-1.7, 1.7, 4000)) < 1e-9
    assert exact.few_beyond(normal, 2.0) > 1e-3
    assert exact.few_beyond(np.clip(normal, -1.9, 1.9), 2.0) < 1e-30
