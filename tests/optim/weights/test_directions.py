"""Tests of random directions.

Random words are compared with the published generator, coordinates with the words and their laws, and the same values
must come from any offset.
"""

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.sphere import DIRECTIONS

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


def dense(directions, number, parameter, count, dtype=torch.float32, start=0):
    return directions.coordinates(number, parameter, start, count, 1.0, dtype)


def test_a_sign_is_a_bit():
    words = Directions(KEY, "rademacher").words(5, 1, 0, 3)
    expected = [1.0 if int(words[i // 64]) >> (i % 64) & 1 else -1.0 for i in range(150)]
    assert dense(Directions(KEY, "rademacher"), 5, 1, 150).tolist() == expected


def test_a_gaussian_coordinate_is_a_quantile_of_16_bits():
    words = Directions(KEY, "gaussian").words(5, 1, 0, 9)
    expected = [DIRECTIONS["gaussian"].table()[int(words[i // 4]) >> (16 * (i % 4)) & 0xFFFF] for i in range(35)]
    assert dense(Directions(KEY, "gaussian"), 5, 1, 35).tolist() == expected


@pytest.mark.parametrize("kind", DIRECTIONS)
@settings(max_examples=30)
@given(start=st.integers(0, 3000), length=st.integers(1, 3001))
def test_every_block_from_every_offset_gives_the_same_values(kind, start, length):
    directions, count = Directions(KEY, kind), min(length, 3001 - start)
    whole = dense(directions, 3, 7, 3001)
    part = dense(directions, 3, 7, count, start=start)
    assert torch.equal(part, whole[start : start + count])


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
    assert directions.shift(source, 2, 4, scale, out=source) is source
    assert torch.equal(source, expected)


def test_the_table_has_the_moments_of_a_gaussian_and_is_the_same_everywhere():
    table = DIRECTIONS["gaussian"].table()
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


SHAPES = ((3, 5), (4,), (6, 2, 2), ())


def explicit(key, law_rank, number, shapes):
    """Returns a low-rank direction written out, one float64 tensor for each shape, from the words of this file's own
    generator."""
    words = [philox([1 + block, 0, number, 0], [key & MASK, key >> 64]) for block in range(8)]
    bits = [1.0 if word >> place & 1 else -1.0 for block in words for word in block for place in range(64)]
    found = []
    for shape in shapes:
        rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
        if len(shape) < 2:
            vector, bits = bits[:rows], bits[rows:]
            found.append(torch.tensor(vector, dtype=torch.float64).view(shape))
            continue
        left, bits = bits[: law_rank * rows], bits[law_rank * rows :]
        right, bits = bits[: law_rank * columns], bits[law_rank * columns :]
        total = torch.zeros(rows, columns, dtype=torch.float64)
        for r in range(law_rank):
            a, b = left[r * rows : (r + 1) * rows], right[r * columns : (r + 1) * columns]
            total += torch.outer(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        found.append((total / math.sqrt(law_rank)).view(shape))
    return found


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_low_rank_direction_is_that_of_the_definition(rank, dtype):
    directions = Directions(KEY, f"low-rank:{rank}")
    amounts = [(5, 0.3), (2, -0.001)]
    for index, shape in enumerate(SHAPES):
        rows = shape[0] if shape else 1
        found = directions.sum(amounts, index, SHAPES, 0, rows, dtype, torch.device("cpu"))
        expected = sum(amount * explicit(KEY, rank, number, SHAPES)[index] for number, amount in amounts)
        room = 2.0 ** (-52 if dtype == torch.float64 else -23) * 4 * rank
        assert found.dtype == dtype
        assert (found.view(shape).double() - expected).abs().max() <= room
        part = directions.sum(amounts, index, SHAPES, rows // 2, rows, dtype, torch.device("cpu"))
        assert torch.equal(part, found[rows // 2 :])


@pytest.mark.parametrize(("rank", "count"), [(1, 1), (1, 16), (4, 16), (1, 300)])
def test_a_sum_has_the_same_bits_in_every_order(rank, count):
    """The order of the directions changes the order of summation, as another kernel does; partial sums are exact."""
    rng = np.random.default_rng(0)
    amounts = [(number, float(rng.normal() * 10.0 ** rng.integers(-3, 3))) for number in range(count)]
    directions, shapes = Directions(KEY, f"low-rank:{rank}"), ((31, 67),)
    found = [
        directions.sum(order, 0, shapes, 0, 31, torch.float32, torch.device("cpu"))
        for order in (amounts, amounts[::-1], [amounts[place] for place in rng.permutation(count)])
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    expected = sum(amount * explicit(KEY, rank, number, shapes)[0] for number, amount in amounts)
    assert (found[0].double() - expected).abs().max() <= 2.0**-17 * max(abs(amount) for _, amount in amounts) * rank


def test_ranks_that_are_refused():
    for name in ("low-rank:0", "low-rank:x", "low-rank:65", "low-rank:-1"):
        with pytest.raises(ValueError, match=f"^direction must be low-rank or low-rank:RANK, .*; got '{name}'"):
            Directions(KEY, name)
    assert Directions(KEY, "low-rank:1").law.name == "low-rank"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", DIRECTIONS)
def test_a_gpu_makes_the_same_bits(kind):
    directions, device = Directions(KEY, kind), torch.device("cuda")
    for start, count in ((0, 5000), (131, 70_000), (131, (1 << 24) + 131)):
        on_gpu = directions.coordinates(3, 7, start, count, 0.1, torch.float32, device)
        assert torch.equal(on_gpu.cpu(), directions.coordinates(3, 7, start, count, 0.1))
