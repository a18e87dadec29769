"""The law of a sum of many integer variables, known by its Fourier transform at the few frequencies that matter.

The transform of the sum of many independent variables is all but 0 except at low frequencies, mostly at fewer than a
hundred of the 2^17 frequencies of a long grid. So it is computed at those alone, by adding the terms of each variable's
law, and sums of the law times a geometric sequence are sums over those frequencies. This takes a tenth of the time of
transforms of the whole grid. It is more exact too: a transform is summed as 1 + sum_j p_j (e^{-i w j} - 1), whose error
is a few units of rounding of a small number, and a power with a large exponent multiplies the error by the exponent.

Which frequencies matter is known from pairs of integers at a distance d. Let a_d = sum_j p_j p_{j+d} for a law p of
total 1. Its transform F has

    |F(w)|^2 = 1 - 2 sum_{d > 0} a_d (1 - cos d w) <= 1 - 4 a_1 sin^2(w/2),

which falls in w up to pi; and as 1 - cos x >= 2 x^2/pi^2 for x <= pi, for every D and w <= pi/D also

    |F(w)|^2 <= 1 - (4 w^2/pi^2) sum_{d <= D} a_d d^2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpzero_theory.bisection import halved, integer_between
from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.grids.convolution import (
    NEGLIGIBLE,
    Spectrum,
    error_of_transform,
    norm,
    product_of_powers,
    telling,
    transform,
)
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT

Law = tuple[Array, int, int]
"""The law of one of several equal variables: its weights, of total 1 but for rounding; the integer of the first weight,
after which the others follow one by one; and the number of variables."""

_MOST_SUMMED = 4
"""The most terms, frequencies times weights of the laws, for each integer of the grid with which transforms are summed
term by term; on 2^17 integers they take 0.02 s. With more, transforms of the whole grid take less time."""
_MOST_DISTANCE = 32
"""The largest distance D in the bound on a transform by pairs of integers (module's docstring)."""
_SUM_ERROR = 100
"""A bound, in units of rounding, on the error of the sum of the p_j (e^{-i w j} - 1), as a share of that of the p_j
|e^{-i w j} - 1|. The rounding of an angle counts 3 of it, the sine 8 and its square 22, and the pairwise addition of up
to 2^19 numbers 35."""
_ONE_ERROR = 8
"""A bound, in units of rounding, on the error of 1 plus that sum and on those of the multiplications of a power, for
each factor of the power."""
_SMALL, _LOG_ERROR = 0.5, 240
"""Where a transform is 1 + w with |w| at most the first number, its power is computed by the logarithm log(1 + w). The
second number bounds the error of the logarithm, in units of rounding, as `_SUM_ERROR` bounds that of w: twice that of
w, and 32 |w| for the logarithm itself."""
_RARE, _MOST_WRONG = 0.2, 0.01
"""A value is one that a variable hardly ever differs from if it does so with at most the first probability. A sum of
such variables is not computed from logarithms whose errors add up to more than the second number."""
_TAIL_ERROR = 64
"""A bound, in units of rounding, on the errors of a geometric sum over the grid, as a share of its absolute terms."""


@dataclass(frozen=True)
class Frequencies:
    """The law of a sum modulo N, by its transform W(k) = E e^{-2 pi i k S/N} at the frequencies that matter.

    size: N, a power of two. kept: those k from 0 on, all below N/4. value: W(k) there. wrong: bounds on the errors of
    `value`. At all other k up to N/2 the modulus is at most e^{NEGLIGIBLE + 1}.
    """

    size: int
    kept: NDArray[np.int64]
    value: Spectrum
    wrong: Array

    def falling(self, start: int, count: int, rate: float) -> tuple[float, float]:
        """The sum over l = 0, ..., count - 1 of the weight at start + l times e^{-rate l}, and a bound on its error.

        start: an integer, which is taken modulo N. count: from 1 to N. rate: > 0.
        """
        fall, (end, size) = self._one_minus(rate, 1), self._end(rate, count)
        return self._summed(start, (1 - end) / fall, UNIT * _TAIL_ERROR * (1 + size) / np.abs(fall), rate, count)

    def gain(self, start: int, count: int, rate: float, over: float, width: float) -> tuple[float, float]:
        """The sum over l = 0, ..., count - 1 of the weight at start + l times e^{-rate l} (1 - e^{-over - width l}).

        With it a bound on its error is returned, which is relative even if the second factor is small.

        start, count, rate: as in `falling`. over, width: 0 < over; if over <= width, no digits cancel.
        """
        one, other = self._one_minus(rate, 1), self._one_minus(rate + width, 1)
        # With r = e^{-rate + i w} the sum of the geometric sequences without end is (1 - E + r (E - e^{-width}))/((1 -
        # r)(1 - r e^{-width})), E = e^{-over}; what follows after `count` terms is such a sum too. No difference here
        # is taken between numbers that are nearly the same.
        beyond = over + width * (count - 1)
        if over <= width:
            beside = -math.expm1(over - width) * math.exp(-over)
        else:
            beside = math.exp(-width) * math.expm1(width - over)
        terms = [(-math.expm1(-over), beside), (-math.expm1(-beyond - width), math.exp(-width) * math.expm1(-beyond))]
        turn = math.exp(-rate) * np.exp(1j * self._angles(1))
        end, size = self._end(rate, count)
        top = terms[0][0] + turn * terms[0][1] - end * (terms[1][0] + turn * terms[1][1])
        whole = sum(map(abs, terms[0])) + size * sum(map(abs, terms[1]))
        slack = UNIT * _TAIL_ERROR * whole / np.abs(one * other)
        return self._summed(start, top / (one * other), slack, rate, count)

    def _one_minus(self, rate: float, times: int) -> Spectrum:
        """1 - e^{-rate + 2 pi i k times/N} for all kept k, without cancellation where times = 1."""
        turn = self._angles(times)
        real = -math.expm1(-rate) * np.cos(turn) + 2 * np.sin(turn / 2) ** 2
        return np.asarray(real - 1j * math.exp(-rate) * np.sin(turn))

    def _end(self, rate: float, count: int) -> tuple[Spectrum, float]:
        """e^{(-rate + 2 pi i k/N) count} for all kept k, and its modulus."""
        size = math.exp(-rate * count)
        return size * np.exp(1j * self._angles(count)), size

    def _summed(self, start: int, sums: Spectrum, slack: Array, rate: float, count: int) -> tuple[float, float]:
        """The sum over l = 0, ..., count - 1 of the weight at start + l times a factor g_l, and a bound on its error.

        sums: the sums of g_l e^{2 pi i k l/N} for all kept k; all g_l are from 0 to e^{-rate l}. slack: bounds on the
        errors of `sums`.
        """
        times = np.where(self.kept > 0, 2.0, 1.0) / self.size
        terms = times * (self.value * np.exp(1j * self._angles(start)) * sums).real
        most = float(np.abs(sums[0])) + float(slack[0])
        slack = slack + UNIT * _TAIL_ERROR * most
        wrong = times * (self.wrong * (most + slack) + np.abs(self.value) * slack)
        return float(terms.sum()), float(wrong.sum()) * (1 + 1e-9) + most * math.exp(NEGLIGIBLE + 1)

    def _angles(self, at: int) -> Array:
        """The angles 2 pi k at/N, from -pi to pi, for all kept k; `at` is an integer."""
        turns = self.kept * (at % self.size) % self.size
        return np.asarray(2 * math.pi / self.size * np.where(turns > self.size // 2, turns - self.size, turns))


def frequencies(laws: Sequence[Law], size: int) -> Frequencies | None:
    """The law of the sum of all variables of the laws, modulo `size` = N, a power of two; or None if too many
    frequencies matter."""
    terms, most = sum(len(law) for law, _, _ in laws), _MOST_SUMMED * size
    kept = np.arange(_first_negligible(laws, size))
    if len(kept) * terms > most:
        kept = telling([(transform(law, start, size, extended=False), count) for law, start, count in laws])
    if len(kept) * terms > most or kept[-1] >= size // 4:
        return None
    return Frequencies(size, kept, *_product(laws, kept, size))


def compose_rare(laws: Sequence[Law], first: int, size: int) -> tuple[Array, float] | None:
    """The law of the sum of all variables modulo `size`, a power of two, where each variable has one value that it
    hardly ever differs from; None for other laws.

    Let r be the probability of a law's other values. Their transform R is off by at most beta r (`convolution`), so the
    law's transform, which is 1 - r + R up to a turn, has a logarithm with an error of about beta r. A power multiplies
    it by the number T of variables, and T r is far smaller than T. first: the integer at which the returned weights
    begin. Returns the weights and a bound on the sum of the absolute errors, as `convolution.compose`.
    """
    half = size // 2 + 1
    exponent, factor, wrong = np.zeros(half, dtype=np.complex128), np.ones(half, dtype=np.complex128), 0.0
    spread: Array = np.zeros(half)
    for law, start, count in laws:
        peak = int(np.argmax(law))
        rest = law.copy()
        rest[peak] = 0.0
        rare = float(rest.sum())
        if count == 1:
            one = transform(law, start, size, extended=False)
            beta = error_of_transform(one)
            spread = spread * (np.abs(one) + beta) + 1.1 * beta * np.abs(factor)
            factor = factor * one
            continue
        if rare > _RARE:
            return None
        w = transform(rest, start, size, extended=False)
        wrong += 5 * error_of_transform(w) * rare * count
        if (start + peak) % size:
            turns = np.arange(half) * ((start + peak) % size) % size
            w = w * np.exp(2j * math.pi / size * np.where(turns > size // 2, turns - size, turns))
            exponent -= 2j * math.pi / size * (turns * (count % size) % size)
        w -= math.fsum([1.0, -float(law[peak])])
        exponent += count * (0.5 * np.log1p(w.real * (2 + w.real) + w.imag**2) + 1j * np.arctan2(w.imag, 1 + w.real))
    if wrong > _MOST_WRONG:
        return None
    power = np.exp(exponent)
    product = power * factor
    relative = np.expm1(wrong + 16 * UNIT * (1 + np.abs(exponent)))
    errors = np.abs(product) * relative + np.abs(power) * spread * (1 + relative)
    error = math.sqrt(2) * (norm(errors) + error_of_transform(product) * norm(np.abs(product)))
    return np.roll(np.maximum(fft.irfft(product, size), 0), -(first % size)), error


def _first_negligible(laws: Sequence[Law], size: int) -> int:
    """A frequency k, at most size/2 + 1: at it and all higher ones the transform of the sum is certainly below
    e^{NEGLIGIBLE + 1}."""
    bounds = []
    for law, _, count in laws:
        at = np.arange(len(law))
        mean = float(law @ at)
        most = min(max(round(math.sqrt(float(law @ (at - mean) ** 2))), 1), _MOST_DISTANCE, max(len(law) - 1, 1))
        near = [float(law[d:] @ law[: len(law) - d]) for d in range(1, most + 1)]
        bounds.append((count, most, near[0], sum(each * d * d for d, each in enumerate(near, start=1))))

    def matters(k: int) -> bool:
        w, total = 2 * math.pi * k / size, 0.0
        for count, most, next_to, spread in bounds:
            least = 4 * next_to * math.sin(max(w, math.pi / most) / 2) ** 2
            fall = least if w > math.pi / most else min(least, 4 * (w / math.pi) ** 2 * spread)
            total += count / 2 * math.log1p(-min(fall, 1 - 1e-9) * (1 - 1e-9))
        return total > NEGLIGIBLE

    most = size // 2 + 1
    return halved(matters, 0, most, middle=integer_between)[1]


def _product(laws: Sequence[Law], kept: NDArray[np.int64], size: int) -> tuple[Spectrum, Array]:
    """The transform of the sum of all variables at the frequencies `kept`, and bounds on its errors. size: the length
    of the transform."""
    exponent, wrong = np.zeros(len(kept), dtype=np.complex128), np.zeros(len(kept))
    powers: list[tuple[Spectrum, Array | float, int]] = [(np.ones(len(kept), dtype=np.complex128), 0.0, 1)]
    for law, start, count in laws:
        w, moved = _moved(law, start, kept, size)
        if count > 1 and float(np.max(np.abs(w))) <= _SMALL:
            squared = w.real * (2 + w.real) + w.imag**2
            exponent += count * (0.5 * np.log1p(squared) + 1j * np.arctan2(w.imag, 1 + w.real))
            wrong += count * UNIT * _LOG_ERROR * moved
        else:
            powers.append((1 + w, UNIT * (_SUM_ERROR * moved + _ONE_ERROR), count))
    product, spread = product_of_powers(powers)
    factor = np.exp(exponent)
    wrong += 8 * UNIT * (1 + np.abs(exponent))
    value = factor * product
    return value, np.abs(factor) * ((spread + np.abs(product)) * np.exp(np.minimum(wrong, 700.0)) - np.abs(product))


def _moved(law: Array, start: int, kept: NDArray[np.int64], size: int) -> tuple[Spectrum, Array]:
    """The transform of a law minus 1 at the frequencies `kept`, summed term by term, and the numbers that bound its
    errors (`_SUM_ERROR`).

    law, start: the weights, and the integer of the first. size: the length of the transform.
    """
    turns = kept[:, None] * ((start + np.arange(len(law))) % size) % size
    angle = 2 * math.pi / size * np.where(turns > size // 2, turns - size, turns)
    half = np.sin(angle / 2)
    beyond = math.fsum([-1.0, *law.tolist()])
    real = beyond - 2 * (half * half * law).sum(axis=1)
    imaginary = -(np.sin(angle) * law).sum(axis=1)
    return real + 1j * imaginary, 2 * (np.abs(half) * law).sum(axis=1) + abs(beyond)
