"""Truncated batches of 10^3 to 10^12 records: the chances that are composed, against sums of 50 digits by mpmath."""

import math
import random

import mpmath
import pytest

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.laws.binomial import binomial_tails
from dpzero_theory.privacy.sampling import FixedSize, TruncatedPoisson
from dpzero_theory.privacy.step import Step


def settings(count):
    """Yields `count` settings (n, mean batch, largest batch B), B near the mean or anywhere up to twice the mean."""
    draw = random.Random(52)
    for _ in range(count):
        n = round(10 ** draw.uniform(3, 12))
        mean = 10 ** draw.uniform(0.5, min(5.5, math.log10(n / 2)))
        spread = draw.choice([1, 5, 40])
        largest = mean + draw.uniform(-2, spread) * math.sqrt(mean) if spread < 40 else draw.uniform(0, 2) * mean
        yield n, mean, min(max(round(largest), 1), n - 1)


def tail(k, trials, rate):
    """Returns P(X >= k) and P(X < k) for a binomial X, the smaller one summed term by term from k outwards."""
    q = mpmath.mpf(rate)
    if k <= (trials + 1) * q:
        return tuple(reversed(tail(trials - k + 1, trials, 1 - q)))
    term = mpmath.binomial(trials, k) * q**k * (1 - q) ** (trials - k)
    total = mpmath.mpf(0)
    for m in range(k, trials + 1):
        total += term
        term *= q / (1 - q) * (trials - m) / (m + 1)
        if term < total * mpmath.mpf(10) ** -30:
            break
    return total, 1 - total


def compared(n, mean, largest):
    """Returns a row: whether what is composed covers the truth, and how much larger it is than it must be."""
    rate = mean / n
    sampling = TruncatedPoisson(rate, largest, n)
    with mpmath.workdps(50):
        full, usual = tail(largest, n - 1, rate)
        kept = mpmath.mpf(largest) / n * tail(largest + 1, n, rate)[0]
        bounds = sampling._chances()
        truth = full, usual, kept / full, rate * usual + kept
        above = [bound >= true for bound, true in zip(bounds[:3], truth[:3], strict=True)] + [bounds[3] <= truth[3]]
        known = zip(bounds, truth, strict=True) if full > 1e-280 else ()
        slack = [abs(bound / true - 1) for bound, true in known if true > 1e-280]
    step = Step(1.0, sampling, "add-remove")
    steps = max(1, min(1000, round(n / mean)))
    found = delta_of_history(step * steps, 1.0)
    if full > 1 - 1e-13:  # the batch is full, and where all others add -1 the step is one with batches of fixed size
        attained = delta_of_history(Step(1.0, FixedSize(largest / n), "add-remove") * steps, 1.0).lower
        above.append(found.upper >= attained * (1 - 1e-9))
    return {
        "n": n,
        "mean_batch": mean,
        "largest_batch": largest,
        "chance_full": float(full),
        "covered": all(above) and 0 <= found.lower <= found.upper,
        "most_slack": float(max(slack, default=0.0)),
        "steps": steps,
        "delta_lower": found.lower,
        "delta_upper": found.upper,
    }


@pytest.mark.parametrize("setting", [*settings(16), (10**6, 256.0, 256), (2**32 + 1000, 200.0, 100)], ids=str)
def test_what_is_composed_covers_the_truth(setting):
    row = compared(*setting)
    assert row["covered"]
    assert row["most_slack"] < 1e-9


@pytest.mark.parametrize(
    ("k", "trials", "rate"),
    [(1, 1, 0.3), (3, 3, 0.3), (1, 10**9, 1e-12), (5, 9, 0.999), (10**9, 10**9, 0.5), (7, 10**15, 1e-300)],
)
def test_tails_at_the_ends_of_the_range(k, trials, rate):
    found = binomial_tails(k, trials, rate)
    with mpmath.workdps(60 + round(-math.log10(rate)) * 2):
        full, usual = tail(k, trials, rate)
        assert found.least <= full <= found.most
        assert found.less_least <= usual <= found.less_most


def test_a_tail_of_more_terms_than_are_summed_is_still_covered():
    """Of 10^15 trials at rate 1/2 the standard deviation is 1.6e7 outcomes: more than a tail's 2^22 terms."""
    k, trials = 5 * 10**14 + 4 * 10**7, 10**15
    found = binomial_tails(k, trials, 0.5)
    normal = float(mpmath.ncdf(-(k - 0.5 - trials / 2) / mpmath.sqrt(trials / 4)))  # its relative error is below 1e-6
    assert found.least < normal * (1 + 1e-6)
    assert normal * (1 - 1e-6) < found.most < 10 * normal
