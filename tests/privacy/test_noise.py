import copy
import math
import os
import pickle
from collections.abc import Callable
from fractions import Fraction
from itertools import chain, repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpzero_theory.privacy import noise as module
from dpzero_theory.privacy.noise import NoiseSource, SeededNoise, SystemNoise

SOURCES: list[Callable[[], NoiseSource]] = [SystemNoise, lambda: SeededNoise(20)]


def gaussian_pmf(scale: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-int(9 * scale) - 9, int(9 * scale) + 10)
    weights = np.exp(-(x**2) / (2 * scale**2))
    return x, weights / weights.sum()


def laplace_pmf(scale: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-int(40 * scale) - 40, int(40 * scale) + 41)
    weights = np.exp(-np.abs(x) / scale)
    return x, weights / weights.sum()


def chi_square_p(draws: np.ndarray, x: np.ndarray, pmf: np.ndarray) -> float:
    """Returns the p-value of the chi-squared test that integer draws have the probabilities `pmf` at the points x.

    Cells with an expected count below 20 are pooled into one.
    """
    observed = np.bincount(draws - x[0], minlength=len(x))
    expected = pmf * len(draws)
    kept = expected >= 20
    pooled = np.append(expected[kept], expected[~kept].sum())
    counts = np.append(observed[kept], observed[~kept].sum())
    if pooled[-1] < 20:
        pooled, counts = pooled[:-1], counts[:-1]
        pooled *= counts.sum() / pooled.sum()
    return float(stats.chisquare(counts, pooled).pvalue)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.7, 40.0])
def test_discrete_gaussian_has_its_law_and_the_test_can_tell(scale: float) -> None:
    draws = SeededNoise(7).discrete_gaussian(scale, 200_000)
    assert chi_square_p(draws, *gaussian_pmf(scale)) > 1e-3
    assert chi_square_p(draws, *gaussian_pmf(scale * 1.03)) < 1e-6


@pytest.mark.parametrize("scale", [Fraction(1, 2), 1.0, Fraction(7, 3), 25.0])
def test_discrete_laplace_has_its_law_and_the_test_can_tell(scale: Fraction | float) -> None:
    draws = SeededNoise(8).discrete_laplace(scale, 100_000)
    assert chi_square_p(draws, *laplace_pmf(float(scale))) > 1e-3
    assert chi_square_p(draws, *laplace_pmf(float(scale) * 1.05)) < 1e-6


def test_discrete_gaussian_at_a_large_scale() -> None:
    scale = 2.0**30 / 3
    draws = SeededNoise(9).discrete_gaussian(scale, 100_000)
    # The integers are so fine, 3e-9 of the scale, that their law is continuous to this test.
    assert stats.kstest(draws / scale, "norm").pvalue > 1e-3
    parity = int((draws % 8 == 3).sum())
    assert stats.binomtest(parity, len(draws), 1 / 8).pvalue > 1e-3  # The low bits of the drawn integers are random too


def test_gaussian_has_its_law() -> None:
    draws = SeededNoise(10).gaussian(2.5, 200_000)
    assert stats.kstest(draws, "norm", args=(0, 2.5)).pvalue > 1e-3
    assert stats.kstest(draws, "norm", args=(0, 2.6)).pvalue < 1e-6
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01


def test_system_noise_has_the_same_laws() -> None:
    source = SystemNoise()
    assert stats.kstest(source.gaussian(1.0, 100_000), "norm").pvalue > 1e-6
    assert chi_square_p(source.discrete_gaussian(3.7, 50_000), *gaussian_pmf(3.7)) > 1e-6
    assert chi_square_p(source.discrete_laplace(2.0, 50_000), *laplace_pmf(2.0)) > 1e-6


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.integers(0, 10**40),
    st.integers(1, 10**40),
    st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6),
    st.integers(0, 3),
)
def test_bernoulli_compares_exact_binary_digits(a: int, b: int, words: list[int], agree: int) -> None:
    a %= b + 1
    digits = [(a * 2 ** (64 * (k + 1)) // b) % 2**64 for k in range(agree)]
    words = digits + words  # The first words are made equal to the digits of a/b, so that the comparison goes on
    value = sum(Fraction(word, 2 ** (64 * (k + 1))) for k, word in enumerate(words))
    if a < b and value != Fraction(a, b):
        assert module._bernoulli(a, b, iter(words)) == (value < Fraction(a, b))


def test_below_is_uniform_and_exact_beyond_one_word() -> None:
    words = SeededNoise(11)._words()
    counts = np.bincount([module._below(5, words) for _ in range(50_000)], minlength=5)
    assert stats.chisquare(counts).pvalue > 1e-3
    limit = 3 * 2**70
    large = [module._below(limit, words) for _ in range(5_000)]
    assert stats.kstest([value / limit for value in large], "uniform").pvalue > 1e-3
    assert module._below(1, iter([])) == 0


@pytest.mark.parametrize("ratio", [Fraction(0), Fraction(1, 7), Fraction(1), Fraction(12, 5)])
def test_bernoulli_exp(ratio: Fraction) -> None:
    words = SeededNoise(12)._words()
    hits = sum(module._bernoulli_exp(ratio.numerator, ratio.denominator, words) for _ in range(40_000))
    assert stats.binomtest(hits, 40_000, math.exp(-ratio)).pvalue > 1e-3


def test_gaussian_is_finite_for_every_pattern_of_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SystemNoise()
    seen = []
    for pattern in (b"\x00" * 8, b"\xff" * 8, b"\x01" + b"\x00" * 7, b"\xfe" + b"\xff" * 7):
        monkeypatch.setattr(os, "urandom", lambda count, pattern=pattern: (pattern * count)[:count])
        seen.append(source.gaussian(1.0))
    assert seen == [pytest.approx(9.18, abs=0.2), 0.0, pytest.approx(-9.18, abs=0.2), 0.0]


def test_every_bit_of_system_noise_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = chain(bytes(range(256)) * 40, repeat(7))
    monkeypatch.setattr(os, "urandom", lambda count: bytes(next(stream) for _ in range(count)))
    first = SystemNoise().discrete_gaussian(5.0, 20), SystemNoise().gaussian(1.0, 20)
    stream = chain(bytes(range(256)) * 40, repeat(7))
    second = SystemNoise().discrete_gaussian(5.0, 20), SystemNoise().gaussian(1.0, 20)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_system_noise_ignores_seeds_and_cannot_be_saved() -> None:
    draws = set()
    for _ in range(50):
        np.random.seed(0)  # noqa: NPY002
        draws.add(SystemNoise().gaussian(1.0))
    assert len(draws) == 50
    for save in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            save(SystemNoise())
    with pytest.raises(TypeError):
        SystemNoise(3)  # type: ignore[call-arg]


def test_a_fork_does_not_repeat_the_draws() -> None:
    source = SystemNoise()
    source.discrete_gaussian(1e6)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, str(source.discrete_gaussian(1e15)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(receive, 100)) != source.discrete_gaussian(1e15)


def test_only_system_noise_is_private_and_the_flag_cannot_be_set() -> None:
    assert SystemNoise().private is True
    assert SeededNoise(0).private is False
    for source in (SystemNoise(), SeededNoise(0)):
        with pytest.raises(AttributeError):
            source.private = True


def test_a_seed_reproduces_and_another_does_not() -> None:
    a, b, c = SeededNoise(3), SeededNoise(3), SeededNoise(4)
    assert a.gaussian(1.0) == b.gaussian(1.0) != c.gaussian(1.0)
    assert (a.discrete_gaussian(1e6, 10) == b.discrete_gaussian(1e6, 10)).all()
    assert (a.discrete_laplace(1e6, 10) == b.discrete_laplace(1e6, 10)).all()


@pytest.mark.parametrize("make", SOURCES)
def test_shapes_and_types(make: Callable[[], NoiseSource]) -> None:
    source = make()
    assert type(source.gaussian(1.0)) is float
    assert type(source.discrete_gaussian(1.0)) is int
    assert type(source.discrete_laplace(1.0)) is int
    assert source.gaussian(1.0, 3).shape == (3,)
    assert source.gaussian(1.0, (2, 0, 3)).shape == (2, 0, 3)
    assert source.gaussian(1.0, 3).dtype == np.float64
    assert source.discrete_gaussian(1.0, (2, 3)).shape == (2, 3)
    assert source.discrete_laplace(1.0, ()).shape == ()
    assert source.discrete_gaussian(1.0, 4).dtype == np.int64
    assert (source.gaussian(0.0, 5) == 0).all()


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf, "1", True, None, 1e301, 10**400])
def test_bad_std(std: object) -> None:
    with pytest.raises(ValueError, match="std must be a finite number with 0 <= std"):
        SystemNoise().gaussian(std)  # type: ignore[call-overload]


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, "1", True, 2.0**57, Fraction(0), Fraction(-1, 3)])
def test_bad_scale(scale: object) -> None:
    for draw in (SystemNoise().discrete_gaussian, SystemNoise().discrete_laplace):
        with pytest.raises(ValueError, match="scale must be"):
            draw(scale)  # type: ignore[call-overload]


@pytest.mark.parametrize("size", [-1, 2.5, "3", (2, -1), math.nan])
def test_bad_size(size: object) -> None:
    with pytest.raises(ValueError, match="size must be an integer"):
        SystemNoise().gaussian(1.0, size)  # type: ignore[call-overload]


@pytest.mark.parametrize("seed", [-1, 1.5, "a", None])
def test_bad_seed(seed: object) -> None:
    with pytest.raises(ValueError, match="seed must be an integer"):
        SeededNoise(seed)  # type: ignore[arg-type]
