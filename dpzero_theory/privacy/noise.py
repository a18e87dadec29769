"""Noise for private releases, from the operating system's entropy, or from a seed in tests.

A release is private only if nobody can redraw its noise. `SystemNoise` therefore takes every bit from the operating
system, keeps no state, has no seed and cannot be saved. `SeededNoise` is for tests, and its `private` is False. Random
directions and batches never come from either.

There are two kinds of noise. `gaussian` is float64: its law is the continuous Gaussian up to rounding, which is what
the formulas of `gaussian.py` assume and what floating point only approximates. `discrete_gaussian` and
`discrete_laplace` are integers with exactly these laws, by the algorithms of Canonne, Kamath and Steinke (The Discrete
Gaussian for Differential Privacy, NeurIPS 2020). The running time of a draw depends on the drawn value, as in every
rejection sampler, so timings must not be published.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, ClassVar, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpzero_theory.check import integer, real

_Size = int | tuple[int, ...]

_WORD_BITS = 64
_LARGEST_SCALE = 2**56  # of noise on integers: about the largest int64 is 128 times this, where noise has chance e^-128


class NoiseSource(ABC):
    """A source of noise of three laws: Gaussian, discrete Gaussian and discrete Laplace.

    A subclass returns `count` uniformly random bytes from `_bytes(count)`. The argument `size` of the three methods is
    the shape of the array that they return, or its length if it is an integer. They raise ValueError for an argument
    outside the range that they state.

    Attributes:
        private: True only if no seed, file or other process can reproduce the draws.
    """

    __slots__ = ()
    private: ClassVar[bool]

    @abstractmethod
    def _bytes(self, count: int) -> bytes: ...

    def gaussian(self, std: float, size: _Size = ()) -> NDArray[np.float64]:
        """Draw an array of shape `size`, an integer or a tuple, of N(0, std^2) in float64, with `std` from 0 to 1e300,
        by inversion of 64-bit uniform numbers. One bit is the sign, and the other 63 are an integer k with the tail
        probability u = (k + 1/2)/2^64. So probabilities are resolved to 2^-64, and |value| <= 9.2 std; the largest
        values are 0.1 std apart. Raises ValueError for another `std`."""
        std = real("std", std, at_least=0.0, at_most=1e300)
        shape = _shape(size)
        words = np.frombuffer(self._bytes(8 * math.prod(shape)), dtype=np.uint64).reshape(shape)
        tail = ndtri(((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-_WORD_BITS)
        return np.asarray(std * np.where(words & np.uint64(1), tail, -tail))

    def discrete_gaussian(self, scale: int, size: _Size = ()) -> NDArray[np.int64]:
        """Draw an array of shape `size`, an integer or a tuple, of integers x, each with probability exactly
        proportional to exp(-x^2/(2 scale^2)), for a whole number `scale` from 1 to 2^56, else ValueError. The standard
        deviation is smaller than `scale`, by 1e-7 of it at scale 1 and by less than float64 can show from scale 2."""
        # Laplace noise of scale t, kept with probability exp(-(|x| - sigma^2/t)^2/(2 sigma^2)), is discrete Gaussian.
        fast = type(scale) is int and 0 < scale <= _LARGEST_SCALE
        sigma = scale if fast else integer("scale", scale, at_most=_LARGEST_SCALE)
        t = sigma + 1
        peak, twice = Fraction(sigma**2, t), 2 * sigma**2

        def keeps(proposals: NDArray[Any]) -> NDArray[np.bool_]:
            rate = (np.abs(proposals).astype(np.float64) - float(peak)) ** 2 / float(twice)
            return self._accepted(rate, lambda k: (abs(int(proposals[k])) - peak) ** 2 / twice)

        return self._drawn(t, size, keeps)

    def discrete_laplace(self, scale: int, size: _Size = ()) -> NDArray[np.int64]:
        """Draw an array of shape `size`, an integer or a tuple, of integers x, each with probability exactly
        proportional to exp(-|x|/scale), for a whole number `scale` from 1 to 2^56, else ValueError."""
        return self._drawn(integer("scale", scale, at_most=_LARGEST_SCALE), size)

    def _drawn(
        self, scale: int, size: _Size, keeps: Callable[[NDArray[Any]], NDArray[np.bool_]] | None = None
    ) -> NDArray[np.int64]:
        # Discrete Laplace noise; with `keeps`, draws for which that is false are drawn again
        shape = _shape(size)
        count, found = math.prod(shape), np.zeros(0, np.int64)
        while len(found) < count:
            draws = self._laplace(scale, 2 * (count - len(found)) + 8)
            found = np.concatenate([found, draws if keeps is None else draws[keeps(draws)]])
        return found[:count].reshape(shape)

    def _laplace(self, scale: int, tries: int) -> NDArray[np.int64]:
        # Algorithm 2 of Canonne, Kamath and Steinke; returns the draws that were accepted, `tries` or fewer
        rest = self._below(scale, tries)
        rest = rest[self._accepted(rest / scale, lambda k: Fraction(int(rest[k]), scale))]
        whole, going = np.zeros(len(rest), np.int64), np.arange(len(rest))
        while len(going):
            going = going[self._accepted(np.ones(len(going)), lambda _: Fraction(1))]
            whole[going] += 1
        draws = rest + scale * whole
        negative = self._words(len(draws)) >> np.uint64(63) == 1
        kept: NDArray[np.int64] = np.where(negative, -draws, draws)[(draws > 0) | ~negative]
        return kept

    def _accepted(self, rate: NDArray[np.float64], exact: Callable[[int], Fraction]) -> NDArray[np.bool_]:
        """Draw a boolean for each entry of `rate`, shape (count,), true with probability exactly e^-r, where `exact`
        returns the exact rate r >= 0 for an entry's index. e^-rate for the float in `rate` must differ from e^-r by at
        most 2^-45, since draws that are nearer than 2^-44 are decided exactly."""
        words, chance = self._words(len(rate)), np.exp(-rate)
        beyond = words.astype(np.float64) * 2.0**-_WORD_BITS - chance
        accepted = beyond < 0
        for k in np.flatnonzero(np.abs(beyond) <= 2.0**-44):
            accepted[k] = self._below_exp(int(words[k]), exact(int(k)))
        return accepted

    def _below_exp(self, word: int, rate: Fraction) -> bool:
        # Whether a uniformly random number in [0, 1) is below e^-rate. Its first 64 binary digits are `word`; further
        # digits are drawn until these decide it.
        bits = _WORD_BITS
        while True:
            with localcontext(Context(prec=bits)):
                chance = (-Decimal(rate.numerator) / rate.denominator).exp() * 2**bits
            # The last of `bits` decimal digits may be wrong, and there are fewer of them before the point.
            if not word - 1 < chance < word + 2:
                return bool(word < chance)
            word, bits = word << _WORD_BITS | int(self._words(1)[0]), bits + _WORD_BITS

    def _below(self, limit: int, count: int) -> NDArray[np.int64]:
        # Independent integers, uniformly from 0, ..., limit - 1, with a limit from 1 to 2^57
        bits, found = max((limit - 1).bit_length(), 1), np.zeros(0, np.int64)
        while len(found) < count:
            values = (self._words(2 * (count - len(found)) + 8) >> np.uint64(_WORD_BITS - bits)).astype(np.int64)
            found = np.concatenate([found, values[values < limit]])
        return found[:count]

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._bytes(8 * count), dtype=np.uint64)


@final
class SystemNoise(NoiseSource):
    """Noise from the operating system (`os.urandom`). It has no seed and no state, so its draws cannot be repeated.
    Pickling and copying raise TypeError: a saved source could be replayed."""

    __slots__ = ()
    private = True

    def _bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("SystemNoise cannot be pickled or copied: make a new one where it is needed")


@final
class SeededNoise(NoiseSource):
    """Reproducible noise for tests. `private` is False, because whoever knows the seed knows every draw.

    Args:
        seed: an integer in [0, 2^64), for numpy's PCG64 generator.
    """

    __slots__ = ("_generator",)
    private = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(integer("seed", seed, at_least=0, at_most=2**64 - 1)))

    def _bytes(self, count: int) -> bytes:
        return self._generator.bytes(count)


def _shape(size: _Size) -> tuple[int, ...]:
    if isinstance(size, tuple) and all(type(entry) is int and entry >= 0 for entry in size):
        return size
    sizes = size if isinstance(size, tuple) else (size,)
    return tuple(integer("size", entry, at_least=0) for entry in sizes)
