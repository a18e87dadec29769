"""Tests that the sampler of discrete Gaussian noise by a staircase has exactly its law.

It has if the integers of its table are as the module says and every decision is; both are tested by brute force.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain, repeat
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy import staircase as module
from dpzero_theory.privacy.noise import SeededNoise, SystemNoise
from dpzero_theory.privacy.staircase import Staircase, exp_bounds

SCALES = [
    Fraction(1, 10**400),
    Fraction(1, 50),
    Fraction(3, 10),
    Fraction(1),
    Fraction(37, 10),
    Fraction(127),
    Fraction(128),
    Fraction(2**30, 3),
    Fraction(2**38 + 12345),
    Fraction(2**47 - 1),
    Fraction(2**47),
    Fraction(2**56),
]


def bell(magnitude: int, scale: Fraction) -> Any:
    """Returns exp(-magnitude^2/(2 sigma^2)) to 60 digits, with sigma = `scale`."""
    x = Fraction(magnitude**2) / (2 * scale**2)
    return mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


@pytest.mark.parametrize("scale", SCALES)
def test_no_magnitude_is_proposed_too_rarely_nor_accepted_unseen(scale: Fraction) -> None:
    """No magnitude is proposed too rarely, and none is accepted by its leading digits that should not be.

    The probability p of acceptance is at most 1 at the first magnitude of every step and block; what leading digits
    accept is below p at the last one.
    """
    table = Staircase(scale)
    width = 1 << table.bits
    assert table.counts.sum() == 2**16
    assert table.counts.min() >= 1
    for step in range(table.steps):
        assert table.height * bell(step * width, scale) <= int(table.counts[step])
        last = table.height * bell((step + 1) * width - 1, scale) / int(table.counts[step])
        assert int(table.first[step]) <= last * 2**table.digits
    for block in range(40):
        edge = table.steps * width + (block << (table.bits + 5))
        assert table.height * 2 ** (block + 6) * bell(edge, scale) <= 1
    assert table.first[-1] == 0


def test_the_law_that_the_table_gives_is_the_discrete_gaussian() -> None:
    """The law that the table gives is the discrete Gaussian.

    Proposals times acceptance, as the module counts them, are summed by magnitude for sigma = 1.7.
    """
    scale = Fraction(17, 10)
    table = Staircase(scale)
    found = {}
    for x in range(table.steps + 64):
        if x < table.steps:
            proposed = mpmath.mpf(int(table.counts[x])) / 2**17
            accepted = table.height * bell(x, scale) / int(table.counts[x])
        else:
            block = (x - table.steps) // 32
            proposed = mpmath.mpf(2) ** -(17 + block + 1 + 5)
            accepted = table.height * 2 ** (block + 6) * bell(x, scale)
        found[x] = proposed * accepted
    total = 2 * sum(found.values()) - found[0]
    weights = 2 * sum(bell(x, scale) for x in found) - 1
    assert all(abs(found[x] / total - bell(x, scale) / weights) < mpmath.mpf(10) ** -50 for x in found)


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(37, 10), Fraction(2**30, 3), Fraction(2**38)])
def test_every_decision_is_that_of_exact_arithmetic(scale: Fraction) -> None:
    """Every decision is that of exact arithmetic, to 60 digits.

    There are 2,000 proposals with the random number v anywhere, and 2,000 with v at most 2^-38 away from the
    probability p.
    """
    table, rng = Staircase(scale), np.random.default_rng(1)
    for near in (False, True):
        step = rng.integers(table.steps, size=2000)
        magnitude = (step << table.bits) + rng.integers(1 << table.bits, size=2000)
        v = [int(word) << 64 | int(more) for word, more in rng.integers(2**63, size=(2000, 2)) % 2**table.digits]
        bits, p = table.digits + 64, []
        for m, c in zip(magnitude.tolist(), step.tolist(), strict=True):
            p.append(table.height * bell(m, scale) / int(table.counts[c]))
        if near:
            shifts = rng.integers(-(2**20), 2**20, size=2000).tolist()
            v = [max(0, int(q * 2**bits) + (s << (bits - 58))) for q, s in zip(p, shifts, strict=True)]
            v = [min(value, 2**bits - 1) for value in v]
        leading = np.array([value >> 64 for value in v], np.uint64)
        more = np.array([value % 2**64 for value in v], np.uint64)
        accepted = table._decide(magnitude, step, leading, more, repeat_bytes(b"\x00"))
        wanted = [mpmath.mpf(value) / 2**bits < q for value, q in zip(v, p, strict=True)]
        assert accepted.tolist() == wanted
        assert 100 < accepted.sum() < 1900


def repeat_bytes(pattern: bytes) -> Callable[[int], bytes]:
    return lambda count: (pattern * count)[:count]


def test_digits_are_drawn_until_they_decide() -> None:
    """Digits of the random number v are drawn until they decide.

    v agrees with the probability p for 400 binary digits, and the next ones decide, on either side.
    """
    table = Staircase(Fraction(5))
    factor = Fraction(3, 4)
    low, high = exp_bounds(Fraction(7**2, 50), 600)
    assert 0 < high - low < Fraction(1, 2**590)
    p = math.floor(factor * low * 2**576)
    words = [p >> 64 * k & (2**64 - 1) for k in reversed(range(9))]
    for last, below in ((words[6] - 1, True), (words[6] + 1, False)):
        drawn = chain(words[1:6], [last], repeat(0))
        assert table._accept(7, factor, words[0], 64, drawn) is below
        assert next(drawn) == 0
    # A random number v that equals the probability p is not below it, and is not accepted.
    assert not table._accept(0, Fraction(1, 2), 2**63, 64, repeat(0))


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(22, 7), Fraction(10**6), Fraction(10**30)])
def test_the_bounds_on_exp_hold_and_close(x: Fraction) -> None:
    for bits in (64, 128, 640):
        with mpmath.workdps(400):
            exact = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)
            low, high = (mpmath.mpf(bound.numerator) / bound.denominator for bound in exp_bounds(x, bits))
            assert low <= exact <= high
            assert high - low <= mpmath.mpf(2) ** -bits


def law(scale: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-int(9 * scale) - 9, int(9 * scale) + 10)
    weights = np.exp(-(x**2) / (2 * scale**2))
    return x, weights / weights.sum()


def p_value(draws: np.ndarray, scale: float) -> float:
    """Returns the p-value of the chi-squared test that draws have the discrete Gaussian law of this scale.

    Cells with an expected count below 20 are pooled into one.
    """
    x, pmf = law(scale)
    observed, expected = np.bincount(draws - x[0], minlength=len(x)), pmf * len(draws)
    kept = expected >= 20
    counts = np.append(observed[kept], observed[~kept].sum())
    wanted = np.append(expected[kept], expected[~kept].sum())
    return float(stats.chisquare(counts, wanted).pvalue)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.7, 127.0, 200.0, 1000.0])
def test_a_million_draws_have_the_law_and_the_test_can_tell(scale: float) -> None:
    draws = SeededNoise(7).discrete_gaussian(scale, 10**6)
    assert p_value(draws, scale) > 1e-3
    assert p_value(draws, scale * 1.03) < 1e-6


@pytest.mark.parametrize("scale", [2.0**30, 2.0**38 * 1.3, 2.0**46 * 1.9, 2.0**47, 2.0**56])
def test_a_million_draws_at_scales_beyond_any_table(scale: float) -> None:
    """A million draws at scales beyond any table have their law.

    They are tested in 1,000 equally likely cells, in the tails and in the low bits; steps and blocks of the staircase
    leave no trace.
    """
    draws = SeededNoise(8).discrete_gaussian(scale, 10**6)
    cells = np.floor(stats.norm.cdf(draws / scale) * 1000).astype(int)
    assert stats.chisquare(np.bincount(cells, minlength=1000)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(np.floor(stats.norm.cdf(draws / scale / 1.03) * 1000).astype(int))).pvalue < 1e-6
    assert stats.binomtest(int((np.abs(draws) > 4 * scale).sum()), 10**6, 2 * stats.norm.sf(4)).pvalue > 1e-3
    for bits in (0, 12, 22):
        assert stats.chisquare(np.bincount((draws >> bits) & 255, minlength=256)).pvalue > 1e-3
    # The tolerance for the mean square is 3.5 standard errors.
    assert np.mean((draws / scale) ** 2) == pytest.approx(1, abs=5e-3)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4e-3


def test_a_wrong_table_is_seen() -> None:
    """A wrong table would be noticed: the tests above would fail.

    Its magnitudes are accepted unseen beyond p, or a slot in 20 is dealt to the wrong step.
    """
    late, uneven = Staircase(Fraction(2**30)), Staircase(Fraction(10))
    late.first[:-1] = 1 << late.digits
    draws = late.draw(10**6, SeededNoise(8)._bytes)
    assert np.mean((draws / 2.0**30) ** 2) > 1 + 5e-3
    uneven._slots[np.flatnonzero(uneven._slots == 3)[::20]] = 4
    assert p_value(uneven.draw(10**6, SeededNoise(7)._bytes), 10.0) < 1e-6


def test_the_tail_has_its_law() -> None:
    """The tail beyond the staircase has its law.

    The staircase ends at 3 sigma and has height 1, so that p <= 1 still holds; the tail, otherwise seldom drawn, is
    drawn often.
    """
    table = Staircase(Fraction(40))
    table.steps, table.height = 120, 1
    words = SeededNoise(2)._words()
    tail = np.array([found for found in (table._tail(words) for _ in range(10_000)) if found is not None])
    weights = np.exp(-(np.arange(120, 400) ** 2) / (2 * 40.0**2))
    expected = weights / weights.sum() * len(tail)
    kept = expected >= 20
    observed = np.bincount(tail - 120, minlength=280)
    assert len(tail) > 1000
    both = [np.append(row[kept], row[~kept].sum()) for row in (observed, expected)]
    assert stats.chisquare(*both).pvalue > 1e-3
    both[1] *= np.linspace(0.8, 1.2, len(both[1]))
    assert stats.chisquare(both[0], both[1] * both[0].sum() / both[1].sum()).pvalue < 1e-3


def test_exact_arithmetic_decides_everything_where_floats_may_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Staircase(Fraction(40))
    table.first[:] = 0
    monkeypatch.setattr(module, "_MARGIN", 2.0)
    draws = table.draw(5_000, SeededNoise(3)._bytes)
    monkeypatch.undo()
    assert p_value(draws, 40.0) > 1e-3


def test_system_noise_has_the_law_too() -> None:
    assert p_value(SystemNoise().discrete_gaussian(20.0, 10**5), 20.0) > 1e-10


def test_one_by_one_and_in_bulk_are_one_law() -> None:
    """Numbers drawn one by one and numbers drawn in bulk have one law.

    The first use rational arithmetic (Canonne, Kamath and Steinke), the others the staircase.
    """
    source = SeededNoise(6)
    one, many = np.array([source.discrete_gaussian(3.0) for _ in range(20_000)]), source.discrete_gaussian(3.0, 20_000)
    table = np.stack([np.bincount(np.clip(draws + 8, 0, 16), minlength=17) for draws in (one, many)])
    assert stats.chi2_contingency(table).pvalue > 1e-3
