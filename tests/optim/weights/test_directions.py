"""Tests of random directions.

Random words are compared with the published generator, coordinates with the words and their laws, and the same values
must come from any offset.
"""

import hashlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpzero_theory.optim.weights import directions as module
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.sphere import DIRECTIONS, quantiles

KEY = 0x0123456789ABCDEFFEDCBA9876543210
MASK = 2**64 - 1


def philox(counter, key):
    """Returns the four 64-bit words of Philox4x64-10 for this counter and key (Salmon et al. 2011).

    The words are Python integers.
    """
    c, k = list(counter), list(key)
    for _ in range(10):
        one, two = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(two >> 64) ^ c[1] ^ k[0], two & MASK, (one >> 64) ^ c[3] ^ k[1], one & MASK]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def test_philox_here_gives_the_published_vectors():
    """The version of Philox in this file gives the known answers of the Random123 distribution for philox4x64-10."""
    assert philox([0] * 4, [0] * 2)[0] == 0x16554D9ECA36314C
    ones = philox([MASK] * 4, [MASK] * 2)
    assert ones[0] == 0x87B092C3013FE90B
    pi = [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89]
    assert philox(pi, [0x452821E638D01377, 0xBE5466CF34E90C6C])[0] == 0xA528F45403E61D95


@settings(max_examples=40)
@given(st.integers(0, 2**128 - 1), st.integers(0, MASK), st.integers(0, MASK), st.integers(0, 2**40), st.integers(1, 9))
def test_words_are_those_of_the_definition(key, number, parameter, start, count):
    words = Directions(key, "gaussian").words(number, parameter, start, count)
    expected = [
        philox([1 + j // 4, parameter, number, 0], [key & MASK, key >> 64])[j % 4] for j in range(start, start + count)
    ]
    assert words.tolist() == expected


def dense(directions, number, parameter, count, dtype=torch.float32):
    return directions.fill_(torch.empty(count, dtype=dtype), number, parameter)


def test_a_sign_is_a_bit():
    words = Directions(KEY, "rademacher").words(5, 1, 0, 3)
    expected = [1.0 if int(words[i // 64]) >> (i % 64) & 1 else -1.0 for i in range(150)]
    assert dense(Directions(KEY, "rademacher"), 5, 1, 150).tolist() == expected


def test_a_gaussian_coordinate_is_a_quantile_of_16_bits():
    words = Directions(KEY, "gaussian").words(5, 1, 0, 9)
    expected = [quantiles()[int(words[i // 4]) >> (16 * (i % 4)) & 0xFFFF] for i in range(35)]
    assert dense(Directions(KEY, "gaussian"), 5, 1, 35).tolist() == expected


@pytest.mark.parametrize("kind", DIRECTIONS)
@settings(max_examples=30)
@given(start=st.integers(0, 3000), length=st.integers(1, 3001))
def test_every_block_from_every_offset_gives_the_same_values(kind, start, length):
    directions, count = Directions(KEY, kind), min(length, 3001 - start)
    whole = dense(directions, 3, 7, 3001)
    part = directions.fill_(torch.empty(count), 3, 7, start)
    assert torch.equal(part, whole[start : start + count])


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_pieces_do_not_change_the_values(kind, monkeypatch):
    directions = Directions(KEY, kind)
    whole = dense(directions, 3, 7, 10_000)
    monkeypatch.setattr("dpzero_theory.optim.weights.directions._CPU_CHUNK", 256)
    assert torch.equal(dense(directions, 3, 7, 10_000), whole)
    assert torch.equal(directions.fill_(torch.empty(5_001), 3, 7, 999), whole[999:6000])
    pieces = list(directions.blocks(3, 7, 130, 1000))
    assert [here.start for here, _ in pieces[1:]] == [here.stop for here, _ in pieces[:-1]]
    assert pieces[-1][0].stop == 1000
    assert len(pieces) > 3


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_shift_is_one_rounded_sum_of_the_rounded_product(kind, dtype):
    directions, scale = Directions(KEY, kind), 1e-3
    source = torch.from_numpy(np.random.default_rng(0).normal(size=(37, 41))).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    product = (scale * dense(directions, 2, 4, source.numel(), torch.float64)).to(wide)
    expected = (source.to(wide) + product.view(37, 41)).to(dtype)
    before = source.clone()
    assert torch.equal(directions.shift(source, 2, 4, scale), expected)
    assert torch.equal(source, before)
    turned = source.t().contiguous().t()
    assert torch.equal(directions.shift(turned, 2, 4, scale), expected)
    assert directions.shift(turned, 2, 4, scale).stride() == turned.stride()
    assert directions.add_(source, 2, 4, scale) is source
    assert torch.equal(source, expected)


def test_the_table_has_the_moments_of_a_gaussian_and_is_the_same_everywhere():
    table = quantiles()
    assert len(np.unique(table)) == 65536
    assert (table == -table[::-1]).all()
    assert (table * 65536 == np.round(table * 65536)).all()
    for power, moment in ((2, 1), (4, 3)):
        assert abs((table**power).mean() - moment) < 1e-6
    assert 4.3 < table.max() < 4.4
    steps = np.abs(stats.norm.cdf(table) - (np.arange(65536) + 0.5) / 65536)
    assert steps.max() < 2e-5  # The limit is on the distance of the two distribution functions, less 1/131072
    digest = hashlib.sha256((table * 65536).astype("<i4").tobytes()).hexdigest()
    assert digest.startswith("d7207f145b4318bb")  # No value is within 1e-10 of the point where its rounding changes


def within(values, expected):
    error = values.std(axis=0) / math.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - expected) <= 5 * error + 1e-6).all()


@pytest.mark.parametrize("sizes", [(1,), (3, 5), (1000, 1, 17)])
def test_the_sphere_has_radius_root_d(sizes):
    directions = Directions(KEY, "sphere")
    factor = directions.factor(9, sizes)
    total = sum(float(dense(directions, 9, i, n, torch.float64).square().sum()) for i, n in enumerate(sizes))
    assert math.isclose(factor**2 * total, sum(sizes), rel_tol=1e-12)
    assert directions.factor(9, sizes) == factor
    assert directions.factor(10, sizes) != factor or sum(sizes) == 1


def test_kernels_that_do_not_run_or_err_are_not_used_and_it_is_said(monkeypatch):
    """That is so where no C compiler is installed. It is tested on the CPU, with functions in place of the kernels."""

    def right(key, number, parameter, start, count, domain, device):
        words = Directions(key, "gaussian").words(number, parameter, start, count)
        return torch.from_numpy(words.view(np.int64)).to(device)

    def wrong(*given):
        return right(*given) ^ 1

    def fails(*_):
        raise RuntimeError("Failed to find C compiler")

    def full(*_):
        raise torch.OutOfMemoryError

    found, device = module._that_run.__wrapped__, torch.device("cpu")
    for words, why in ((wrong, "not those of the CPU"), (fails, "RuntimeError: Failed to find C compiler")):
        monkeypatch.setattr(module, "_triton", lambda words=words: SimpleNamespace(words=words))
        with pytest.warns(UserWarning, match=why):
            assert found(device) is None
    monkeypatch.setattr(module, "_triton", lambda: None)
    with pytest.warns(UserWarning, match="Triton is not installed"):
        assert found(device) is None
    monkeypatch.setattr(module, "_triton", lambda: SimpleNamespace(words=full))
    with pytest.raises(torch.OutOfMemoryError):
        found(device)
    good = SimpleNamespace(words=right)
    monkeypatch.setattr(module, "_triton", lambda: good)
    assert found(device) is good
