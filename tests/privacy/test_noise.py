"""Noise: each law is what it says, exactly where it is exact, and what is private cannot be seeded, saved or forked."""

import copy
import math
import os
import pickle
from fractions import Fraction
from itertools import chain, repeat

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpzero_theory.privacy.noise import NoiseSource, SeededNoise, SystemNoise


def pmf(law, scale):
    """Returns integers and the probabilities of the discrete law "gaussian" or "laplace" with this scale."""
    far = math.ceil(9 * scale + 9) if law == "gaussian" else math.ceil(40 * scale + 40)
    x = np.arange(-far, far + 1)
    weights = np.exp(-((x / scale) ** 2) / 2) if law == "gaussian" else np.exp(-np.abs(x) / scale)
    return x, weights / weights.sum()


def p_value(counts, chances, least=20):
    """Returns the p-value of the chi-squared test that cells with these counts have these chances; cells with an
    expected count below `least` are pooled."""
    expected = chances * counts.sum()
    kept = expected >= least
    pooled, seen = np.append(expected[kept], expected[~kept].sum()), np.append(counts[kept], counts[~kept].sum())
    if pooled[-1] < least:
        pooled, seen = pooled[:-1] * seen[:-1].sum() / pooled[:-1].sum(), seen[:-1]
    return float(stats.chisquare(seen, pooled * seen.sum() / pooled.sum()).pvalue)


def chi_square_p(draws, x, chances):
    return p_value(np.bincount(draws - x[0], minlength=len(x)), chances)


@pytest.mark.parametrize(
    ("law", "scale", "wrong"),
    [*(("gaussian", scale, 1.03) for scale in (1, 4, 40)), *(("laplace", scale, 1.05) for scale in (1, 3, 25))],
)
def test_a_discrete_law_is_what_it_says_and_the_test_can_tell(law, scale, wrong):
    source = SeededNoise(7 if law == "gaussian" else 8)
    draws = getattr(source, f"discrete_{law}")(scale, 200_000 if law == "gaussian" else 100_000)
    assert chi_square_p(draws, *pmf(law, scale)) > 1e-3
    assert chi_square_p(draws, *pmf(law, scale * wrong)) < 1e-6


@pytest.mark.parametrize("width", [2**9, 2**22, 2**29])
def test_a_discrete_gaussian_at_a_large_scale(width):
    """Of scale 32 widths: cells of a width of integers, from -8 scale to 8 scale, times the lowest 4 bits. A law wider
    by 3%, or one whose lowest bit is more often 0, fails. More draws are in the rows of noise_draws."""
    parts, scale = 32, 32 * width
    draws = SeededNoise(9).discrete_gaussian(scale, 400_000)
    edges = np.arange(-8 * parts, 8 * parts + 1) * float(width) - 0.5

    def cells(drawn):
        index = np.clip(drawn // width, -8 * parts, 8 * parts - 1) + 8 * parts
        return np.bincount(index * 16 + drawn % 16, minlength=16 * 16 * parts)

    def chances(scale):
        below = np.concatenate([[0], stats.norm.cdf(edges[1:-1] / scale), [1]])
        return np.repeat(np.diff(below), 16) / 16

    assert p_value(cells(draws), chances(scale), 100) > 1e-3
    assert p_value(cells(draws), chances(scale * 1.03), 100) < 1e-6
    flipped = np.where(np.arange(len(draws)) % 20 == 0, draws & ~np.int64(1), draws)
    assert p_value(cells(flipped), chances(scale), 100) < 1e-6


def test_gaussian_has_its_law():
    draws = SeededNoise(10).gaussian(2.5, 200_000)
    assert stats.kstest(draws, "norm", args=(0, 2.5)).pvalue > 1e-3
    assert stats.kstest(draws, "norm", args=(0, 2.6)).pvalue < 1e-6
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01


def test_system_noise_has_the_same_laws():
    source = SystemNoise()
    assert stats.kstest(source.gaussian(1.0, 100_000), "norm").pvalue > 1e-6
    assert chi_square_p(source.discrete_gaussian(4, 50_000), *pmf("gaussian", 4)) > 1e-6
    assert chi_square_p(source.discrete_laplace(2, 50_000), *pmf("laplace", 2.0)) > 1e-6


class _Given(NoiseSource):
    """A source of given 64-bit words."""

    private = False

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def _bytes(self, count: int) -> bytes:
        return b"".join(self.words.pop(0).to_bytes(8, "little") for _ in range(count // 8))


@settings(max_examples=200)
@given(st.fractions(0, 60, max_denominator=10**20), st.integers(0, 3), st.sampled_from([-1, 0, 1, 2**40]))
def test_uniform_numbers_are_compared_with_exponentials_to_the_last_digit(rate, agree, off):
    """The first words are made equal to the digits of e^-rate, so that the comparison goes on."""
    with mpmath.workprec(600):
        scaled = int(mpmath.floor(mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator) * 2 ** (64 * (agree + 1))))
    number = min(max(scaled + off, 0), 2 ** (64 * (agree + 1)) - 1)
    words = [number >> (64 * (agree - k)) & (2**64 - 1) for k in range(agree + 1)]
    below = off < 0 or number < scaled
    # The words after these are 0 where the number is above, and full where it is below.
    rest = [2**64 - 1 if below else 0] * 8
    if rate > 0 and number != scaled:
        source = _Given([*words, *rest])
        accepted = source._accepted(np.array([float(rate)]), lambda _: rate)
        assert bool(accepted[0]) == below


def test_below_is_uniform():
    source, limit = SeededNoise(11), 3 * 2**55
    assert stats.chisquare(np.bincount(source._below(5, 50_000), minlength=5)).pvalue > 1e-3
    assert stats.kstest([value / limit for value in source._below(limit, 5_000)], "uniform").pvalue > 1e-3
    assert source._below(1, 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("ratio", [Fraction(0), Fraction(1, 7), Fraction(1), Fraction(12, 5)])
def test_tries_are_accepted_with_an_exponential_probability(ratio):
    hits = int(SeededNoise(12)._accepted(np.full(40_000, float(ratio)), lambda _: ratio).sum())
    assert stats.binomtest(hits, 40_000, math.exp(-ratio)).pvalue > 1e-3


def test_gaussian_is_finite_for_every_pattern_of_bits(monkeypatch):
    source, seen = SystemNoise(), []
    for pattern in (b"\x00" * 8, b"\xff" * 8, b"\x01" + b"\x00" * 7, b"\xfe" + b"\xff" * 7):
        monkeypatch.setattr(os, "urandom", lambda count, pattern=pattern: (pattern * count)[:count])
        seen.append(source.gaussian(1.0))
    assert seen == [pytest.approx(9.18, abs=0.2), 0.0, pytest.approx(-9.18, abs=0.2), 0.0]


def test_every_bit_of_system_noise_comes_from_the_operating_system(monkeypatch):
    seen = []
    for _ in range(2):
        stream = chain(bytes(range(256)) * 40, repeat(7))
        monkeypatch.setattr(os, "urandom", lambda count, s=stream: bytes(next(s) for _ in range(count)))
        seen.append((SystemNoise().discrete_gaussian(5, 20), SystemNoise().gaussian(1.0, 20)))
    assert all((a == b).all() for a, b in zip(*seen, strict=True))


def test_system_noise_ignores_seeds_forks_and_cannot_be_saved():
    draws, source = set(), SystemNoise()
    for _ in range(50):
        np.random.seed(0)  # noqa: NPY002
        draws.add(float(SystemNoise().gaussian(1.0)))
    assert len(draws) == 50
    for save in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            save(SystemNoise())
    with pytest.raises(TypeError):
        SystemNoise(3)  # type: ignore[call-arg]
    source.discrete_gaussian(10**6)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, str(source.discrete_gaussian(10**15)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(receive, 100)) != source.discrete_gaussian(10**15)


def test_only_system_noise_is_private_and_a_seed_reproduces():
    assert (SystemNoise().private, SeededNoise(0).private) == (True, False)
    for source in (SystemNoise(), SeededNoise(0)):
        with pytest.raises(AttributeError):
            source.private = True
    a, b, c = SeededNoise(3), SeededNoise(3), SeededNoise(4)
    assert a.gaussian(1.0) == b.gaussian(1.0) != c.gaussian(1.0)
    assert (a.discrete_gaussian(10**6, 10) == b.discrete_gaussian(10**6, 10)).all()
    assert (a.discrete_laplace(10**6, 10) == b.discrete_laplace(10**6, 10)).all()


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(20)])
def test_shapes_and_types(source):
    kinds = [(source.gaussian, float), (source.discrete_gaussian, int), (source.discrete_laplace, int)]
    for draw, kind in kinds:
        assert draw(1).shape == ()
        assert [draw(1, size).shape for size in (3, (2, 0, 3), ())] == [(3,), (2, 0, 3), ()]
        assert draw(1, 3).dtype == (np.float64 if kind is float else np.int64)
    assert (source.gaussian(0.0, 5) == 0).all()


NOISE = SystemNoise()
SCALES = (0, -1.0, 1.5, math.nan, math.inf, "1", True, 2**57)
STDS = (-1.0, math.nan, math.inf, "1", True, None, 1e301, 10**400)


@pytest.mark.parametrize(
    ("ask", "values", "named"),
    [
        (NOISE.gaussian, STDS, "std must be a finite number with 0 <= std"),
        (NOISE.discrete_gaussian, SCALES, "scale must be"),
        (NOISE.discrete_laplace, SCALES, "scale must be"),
        (SeededNoise, (-1, 1.5, "a", None), "seed must be an integer"),
    ],
)
def test_bad_arguments_are_named(ask, values, named):
    for value in values:
        with pytest.raises(ValueError, match=named):
            ask(value)
