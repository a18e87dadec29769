"""Draws noise for private releases from the operating system, or from a seed in tests.

A release is private only if nobody can draw its noise again. So `SystemNoise` takes every bit from the operating system
and has no seed, no state and no saved form. `SeededNoise` is for tests only.

`NoiseSource.gaussian` returns floats whose distribution is the continuous Gaussian up to rounding. `discrete_gaussian`
and `discrete_laplace` return integers with exactly these distributions, by the algorithms of Canonne, Kamath and
Steinke (The Discrete Gaussian for Differential Privacy, NeurIPS 2020). The time that a draw takes depends on its value,
so do not publish timings.
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
_LARGEST_SCALE = 2**56  # for noise on integers: it exceeds 128 times this, about the largest int64, with chance e^-128


class NoiseSource(ABC):
    """The base class of sources of Gaussian, discrete Gaussian and discrete Laplace noise.

    A subclass implements `_bytes(count)`, which returns `count` uniformly random bytes. In the other methods `size` is
    the shape of the returned array; an integer n stands for (n,), and the default () for a single number.

    Attributes:
        private: True only if no seed, file or other process can reproduce the draws.
    """

    __slots__ = ()
    private: ClassVar[bool]

    @abstractmethod
    def _bytes(self, count: int) -> bytes: ...

    def gaussian(self, std: float, size: _Size = ()) -> NDArray[np.float64]:
        """Draws a float64 array of shape `size` of Gaussian noise with mean 0 and standard deviation `std`, in [0,
        1e300]. Each number is computed from 64 random bits by inversion of the distribution function: one bit is the
        sign, and the other 63 are an integer k with the tail probability (k + 1/2)/2^64. So |value| <= 9.2 std, and the
        largest values are 0.1 std apart. Raises ValueError if `std` is outside its range."""
        std = real("std", std, at_least=0.0, at_most=1e300)
        shape = _shape(size)
        words = np.frombuffer(self._bytes(8 * math.prod(shape)), dtype=np.uint64).reshape(shape)
        tail = ndtri(((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-_WORD_BITS)
        return np.asarray(std * np.where(words & np.uint64(1), tail, -tail))

    def discrete_gaussian(self, scale: int, size: _Size = ()) -> NDArray[np.int64]:
        """Draws an int64 array of shape `size`; the integer x has a probability exactly proportional to exp(-x^2/(2
        scale^2)). `scale` is an integer from 1 to 2^56, else ValueError. The standard deviation is smaller than
        `scale`, by a relative 1e-7 at scale 1 and by less than float64 can show from scale 2 on."""
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
        """Draws an int64 array of shape `size`; the integer x has a probability exactly proportional to
        exp(-|x|/scale). `scale` is an integer from 1 to 2^56, else ValueError."""
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
        """Draws an array of booleans of the shape of `rate`, (count,), each True with probability exactly e^-r. r >= 0
        is the exact rate, which `exact` returns for an index. e^-rate, for the float in `rate`, must differ from e^-r
        by at most 2^-45, since draws nearer than 2^-44 to it are decided exactly."""
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
            # `chance` has `bits` correct decimal digits, and fewer before the point: its error is below 1.
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
    Pickling or copying raises TypeError."""

    __slots__ = ()
    private = True

    def _bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("SystemNoise cannot be pickled or copied: make a new one where it is needed")


@final
class SeededNoise(NoiseSource):
    """Reproducible noise for tests. Its attribute `private` is False, because whoever knows the seed knows every draw.

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
    return size if isinstance(size, tuple) else (size,)
