"""Noise for private releases, from the operating system's entropy, or from a seed in tests.

A release is private only if nobody can redraw its noise. `SystemNoise` therefore takes every bit from the operating
system, keeps no state, has no seed and cannot be saved. `SeededNoise` is for tests, and its `private` is False. Random
directions and batches never come from either.

There are two kinds of noise. `gaussian` is float64: its law is the continuous Gaussian up to rounding, which is what
the formulas of `gaussian.py` assume and what floating point only approximates. `discrete_gaussian` and
`discrete_laplace` are exact: integers sampled with rational arithmetic by the algorithms of Canonne, Kamath and Steinke
(The Discrete Gaussian for Differential Privacy, NeurIPS 2020), with no floating-point number anywhere. Long vectors of
discrete Gaussian noise are drawn by `staircase.py`, whose law is the same. `discrete.py` accounts for discrete Gaussian
noise. The running time of a draw depends on the drawn value, as in every rejection sampler, so timings must not be
published.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import ClassVar, NoReturn, final, overload

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpzero_theory.check import integer, real
from dpzero_theory.privacy.staircase import staircase

Size = int | tuple[int, ...]
Words = Iterator[int]

_WORD_BITS = 64
_WORDS_PER_READ = 32
_MANY = 64  # For this many draws or more the sampler of `staircase` is quicker
_LARGEST_SCALE = 2.0**56  # 2^63, about the largest int64, is 128 times this scale


class NoiseSource(ABC):
    """A source of noise of three laws: Gaussian, discrete Gaussian and discrete Laplace. A subclass gives uniformly
    random bytes in `_bytes(count)`.

    `private` is True only if no seed, file or other process can reproduce the draws. The argument `size` of the three
    methods is None for one number, and otherwise the shape of an array.
    """

    __slots__ = ()
    private: ClassVar[bool]

    @abstractmethod
    def _bytes(self, count: int) -> bytes: ...

    @overload
    def gaussian(self, std: float, size: None = None) -> float: ...
    @overload
    def gaussian(self, std: float, size: Size) -> NDArray[np.float64]: ...

    def gaussian(self, std: float, size: Size | None = None) -> float | NDArray[np.float64]:
        """Draw N(0, std^2) in float64, 0 <= std <= 1e300, by inversion of a 64-bit uniform.

        One bit is the sign, and the other 63 are an integer k that makes the tail probability u = (k + 1/2)/2^64. So
        the tails are resolved as finely as the middle; |value| <= 9.2 std. Returns a float for size None, else an array
        of shape `size`. Raises ValueError for a std outside this range or a size that is no shape.
        """
        std = real("std", std, at_least=0.0, at_most=1e300)
        shape = () if size is None else _shape(size)
        words = np.frombuffer(self._bytes(8 * math.prod(shape)), dtype=np.uint64).reshape(shape)
        tail = ndtri(((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-_WORD_BITS)
        draws: NDArray[np.float64] = std * np.where(words & np.uint64(1), tail, -tail)
        return float(draws) if size is None else draws

    @overload
    def discrete_gaussian(self, scale: float | Fraction, size: None = None) -> int: ...
    @overload
    def discrete_gaussian(self, scale: float | Fraction, size: Size) -> NDArray[np.int64]: ...

    def discrete_gaussian(self, scale: float | Fraction, size: Size | None = None) -> int | NDArray[np.int64]:
        """Draw an integer x with probability exactly proportional to exp(-x^2/(2 scale^2)).

        scale is taken as the rational number that it is (a float exactly), 0 < scale <= 2^56. It is the
        parameter sigma of the law; the standard deviation is smaller, by 1e-7 of it at scale 1 and by less
        than float64 can show from scale 1.6. The method is algorithm 3 of Canonne, Kamath and Steinke, or that of
        `staircase` for 64 draws or more. Returns an int, or an int64 array of shape `size`. Raises ValueError for a bad
        scale or size.
        """
        exact = _scale(scale)
        if size is not None and math.prod(shape := _shape(size)) >= _MANY:
            return staircase(exact).draw(math.prod(shape), self._bytes).reshape(shape)
        variance = exact**2
        a, b = variance.numerator, variance.denominator
        return self._draw(lambda words: _discrete_gaussian(a, b, words), size)

    @overload
    def discrete_laplace(self, scale: float | Fraction, size: None = None) -> int: ...
    @overload
    def discrete_laplace(self, scale: float | Fraction, size: Size) -> NDArray[np.int64]: ...

    def discrete_laplace(self, scale: float | Fraction, size: Size | None = None) -> int | NDArray[np.int64]:
        """Draw an integer x with probability exactly proportional to exp(-|x|/scale).

        scale is taken as the rational number that it is (a float exactly), 0 < scale <= 2^56. The method is algorithm
        2 of Canonne, Kamath and Steinke. Returns an int, or an int64 array of shape `size`. Raises ValueError for a bad
        scale or size.
        """
        exact = _scale(scale)
        numerator, denominator = exact.numerator, exact.denominator
        return self._draw(lambda words: _discrete_laplace(numerator, denominator, words), size)

    def _draw(self, draw_one: Callable[[Words], int], size: Size | None) -> int | NDArray[np.int64]:
        words = self._words()
        if size is None:
            return draw_one(words)
        shape = _shape(size)
        count = math.prod(shape)
        return np.fromiter((draw_one(words) for _ in range(count)), np.int64, count).reshape(shape)

    def _words(self) -> Words:
        """An endless iterator of uniform 64-bit integers. Each draw makes a new one, so that a forked process never has
        bits that its parent drew and did not use."""
        while True:
            yield from np.frombuffer(self._bytes(8 * _WORDS_PER_READ), dtype=np.uint64).tolist()


@final
class SystemNoise(NoiseSource):
    """Noise from the operating system (`os.urandom`): it has no seed and no state, and is never saved, so that its
    draws cannot be repeated.

    Pickling and copying raise TypeError: a saved source could be replayed.
    """

    __slots__ = ()
    private = True

    def _bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("SystemNoise cannot be pickled or copied: make a new one where it is needed")


@final
class SeededNoise(NoiseSource):
    """Reproducible noise for tests. `private` is False, because whoever knows the seed knows every draw.

    seed: an integer in [0, 2^64). The random bits are those of numpy's PCG64 generator with this seed.
    """

    __slots__ = ("_generator",)
    private = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(integer("seed", seed, at_least=0, at_most=2**64 - 1)))

    def _bytes(self, count: int) -> bytes:
        return self._generator.bytes(count)


def _shape(size: Size) -> tuple[int, ...]:
    if isinstance(size, tuple) and all(type(entry) is int and entry >= 0 for entry in size):
        return size
    sizes = size if isinstance(size, tuple) else (size,)
    return tuple(integer("size", entry, at_least=0) for entry in sizes)


def _scale(scale: float | Fraction) -> Fraction:
    if isinstance(scale, Fraction | int) and not isinstance(scale, bool) and 0 < scale <= _LARGEST_SCALE:
        return Fraction(scale)
    return Fraction(real("scale", scale, above=0.0, at_most=_LARGEST_SCALE))


def _below(limit: int, words: Words) -> int:
    """Draw a uniformly random one of 0, ..., limit - 1, from random 64-bit integers `words`."""
    bits = (limit - 1).bit_length()
    while True:
        value = 0
        for _ in range(-(-bits // _WORD_BITS)):
            value = value << _WORD_BITS | next(words)
        value >>= -bits % _WORD_BITS
        if value < limit:
            return value


def _bernoulli(a: int, b: int, words: Words) -> bool:
    """Return True with probability exactly a/b, 0 <= a <= b, by comparing the binary digits of a/b with random ones
    from `words`."""
    while True:
        digits, a = divmod(a << _WORD_BITS, b)
        word = next(words)
        if word != digits:
            return word < digits


def _bernoulli_exp(a: int, b: int, words: Words) -> bool:
    """Return True with probability exactly exp(-a/b), a >= 0 and b > 0, by algorithm 1 of Canonne, Kamath and Steinke,
    from random integers `words`."""
    while True:
        part, k = min(a, b), 1  # exp(-a/b) is a product of factors exp(-part/b) with part <= b
        while _bernoulli(part, b * k, words):
            k += 1
        if k % 2 == 0:
            return False
        a -= part
        if not a:
            return True


def _discrete_laplace(numerator: int, denominator: int, words: Words) -> int:
    """Draw an integer x with probability exactly proportional to exp(-|x| denominator/numerator), by algorithm 2."""
    while True:
        remainder = _below(numerator, words)
        if not _bernoulli_exp(remainder, numerator, words):
            continue
        whole = 0
        while _bernoulli_exp(1, 1, words):
            whole += 1
        magnitude = (remainder + numerator * whole) // denominator
        negative = next(words) & 1
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def _discrete_gaussian(a: int, b: int, words: Words) -> int:
    """Draw an integer x with probability exactly proportional to exp(-x^2/(2 sigma^2)), sigma^2 = a/b, from random
    64-bit integers `words`.

    Proposals come from the discrete Laplace law of scale floor(sqrt(a/b)) + 1.
    """
    t = math.isqrt(a // b) + 1
    while True:
        proposal = _discrete_laplace(t, 1, words)
        if _bernoulli_exp((abs(proposal) * b * t - a) ** 2, 2 * a * b * t * t, words):
            return proposal
