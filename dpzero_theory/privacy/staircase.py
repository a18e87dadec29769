"""Many discrete Gaussian draws at a time, exactly: rejection from a staircase of integers.

The law is P[x] proportional to exp(-x^2/(2 sigma^2)) on the integers, for rational sigma.

**Proposal.** A staircase lies above the law: on each step proposals are equally likely. Step c = 0, ..., M - 1 holds
the magnitudes c w, ..., (c + 1) w - 1, where w is a power of two (1, or in (sigma/128, sigma/64]). 2^16 equally likely
slots are dealt to the steps, n_c of them to step c, and one slot to the tail, which holds the magnitudes from M w on.
The tail has blocks of 32 w magnitudes; block g has the probability 2^-(g+1). Within a step or a block magnitudes are
equally likely, and the sign is a random bit. All of this is integers and random bits, without rounding.

**Acceptance.** With A the height of the staircase, a proposal m of step c is accepted with probability p = A
exp(-m^2/(2 sigma^2))/n_c, one of block g of the tail with p = 2^(g+6) A exp(-m^2/(2 sigma^2)), and -0 never. So every x
is proposed and accepted with probability 2^-17 A/w exp(-x^2/(2 sigma^2)): the law is exact if every p <= 1 and every
acceptance is exact. In a step p <= 1 because n_c >= A exp(-(c w)^2/(2 sigma^2)). In block 0 it is because M w >= 5.6
sigma and A < 2^16: 2^22 exp(-15.68) < 1. From one block, which is 32 w >= sigma/4 wide, to the next exp falls by at
least exp(-5.6/4), more than 2^g grows.

**Deciding.** A number v with uniformly random binary digits, drawn as they are needed, is compared with p. First some
leading digits of v are compared with a bound on p for the whole step, which accepts 98% of the draws at large sigma.
Then 64 more digits are compared with p in float64. If v is within 2^-40 of p, and in the tail, rational arithmetic
decides with `decimal`'s exp, which is correctly rounded, to as many digits as it takes. Of floating point it is assumed
that a basic operation is rounded correctly and that numpy's exp is right to 2^-45, relative (it is to 4 units of the
last place, 2^-50). With u = 2^-53 the exponent E = m^2/(2 sigma^2) is then right to 7 u E, and p E <= 16 as p <= min(1,
2^16 exp(-E)): p is right to 112 u + 2^-44 < 2^-43, eight times less than 2^-40. n_c and the bounds on steps have 2^-40,
relative, to spare.
"""

import decimal
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.bisection import halved, integer_between

Read = Callable[[int], bytes]
"""A function that takes a number and returns that many uniformly random bytes."""

_SLOT_BITS = 16
_SLOTS = 1 << _SLOT_BITS
"""The number of slots that are dealt to the steps of the staircase; 16 random bits draw one of them."""
_TAIL_BITS = 5
"""A block of the tail is as wide as 2 to this power, 32, steps of the staircase."""
_TAIL_FROM = 5.6
"""The staircase ends, and its tail begins, about this many sigma from 0. From there on acceptance probabilities are at
most 1, as the module's docstring proves."""
_MARGIN = 2.0**-40
"""Two floats, a random number and a probability of acceptance, that differ by more than this compare as the exact
numbers do; the module's docstring has the proof."""
_FREE_BITS = 64 - _SLOT_BITS - 1
"""The number of bits of a 64-bit word that are left after the slot and the sign."""
_FEWEST_DIGITS = 7
"""The least number of binary digits of v that the first random word must hold. If the steps are so wide that it would
hold fewer, the position within the step is drawn from a second word."""
_CHUNK = 1 << 14
"""The number of proposals that are made at once."""


class Staircase:
    """A sampler of the discrete Gaussian law, P[x] proportional to exp(-x^2/(2 sigma^2)), for one sigma, by rejection:
    proposals come from a staircase above the law.

    steps: M, the number of steps of the staircase.
    bits: the logarithm to base 2 of w, the width of a step.
    height: A, an integer: step c of the staircase has at least A exp(-(c w)^2/(2 sigma^2)) of the 2^16 slots.
    counts: for each step the number of its slots, of 2^16 equally likely ones, and last the tail's.
    digits: how many leading binary digits of v, the random number in [0, 1) that decides on acceptance, the first
    random word holds.
    first: for each step, and last the tail, an integer: a proposal is certainly accepted if these leading digits of v,
    read as an integer, are below it. It is 0 for step 0 and the tail, where this shortcut is not taken.
    """

    def __init__(self, scale: Fraction) -> None:
        """Make the sampler of P[x] proportional to exp(-x^2/(2 sigma^2)), for sigma = `scale`, 0 < sigma <= 2^56."""
        self._rate = 1 / (2 * scale**2)  # the log of the law's mass at m is -m^2 times this
        self._sigma = max(float(scale), 1e-9)  # a smaller sigma refuses everything but 0, as 1e-9 does
        self.bits = max(0, math.floor(scale).bit_length() - 7)
        width = 1 << self.bits
        self.steps = math.floor(_TAIL_FROM * self._sigma / width) + 2
        edges = np.exp(-0.5 * (np.arange(self.steps + 1) * (width / self._sigma)) ** 2)
        self.height, counts = _deal(edges[:-1] * (1 + _MARGIN))
        counts[0] += _SLOTS - 1 - counts.sum()
        self.counts = np.append(counts, 1)
        self._slots = np.repeat(np.arange(self.steps + 1), self.counts)
        self.apart = self.bits > _FREE_BITS - _FEWEST_DIGITS
        self.digits = _FREE_BITS - (0 if self.apart else self.bits)
        last = np.exp(-0.5 * (((np.arange(self.steps) + 1.0) * width - 1) / self._sigma) ** 2) * (1 - _MARGIN)
        self.first = np.append(np.floor(self.height * last / counts * 2.0**self.digits), 0).astype(np.uint64)
        self.first[0] = 0  # no quick acceptance in the step of 0, where -0 must be refused

    def draw(self, count: int, read: Read) -> NDArray[np.int64]:
        """Return `count` independent draws, with random bytes from `read`."""
        integers = np.empty(count, np.int64)
        left = [self._propose(integers[first : first + _CHUNK], read) + first for first in range(0, count, _CHUNK)]
        refused = np.concatenate([np.empty(0, np.intp), *left])
        if refused.size:
            integers[refused] = self.draw(refused.size, read)
        return integers

    def _propose(self, out: NDArray[np.int64], read: Read) -> NDArray[np.intp]:
        """Write one proposal to each entry of `out`, with random bytes from `read`; return the indices of those that
        were refused."""
        words = np.frombuffer(read(8 * out.size), np.uint64)
        step = self._slots.take((words & np.uint64(_SLOTS - 1)).view(np.int64))
        negative = ((words >> np.uint64(_SLOT_BITS)) & np.uint64(1)).view(np.int64)
        inside = np.frombuffer(read(8 * out.size), np.uint64) if self.apart else words >> np.uint64(_SLOT_BITS + 1)
        magnitude = (inside & np.uint64((1 << self.bits) - 1)).view(np.int64)
        magnitude += step << self.bits
        np.bitwise_xor(magnitude, -negative, out=out)
        out += negative
        leading = words >> np.uint64(64 - self.digits)
        unsure = np.flatnonzero(leading >= self.first.take(step))
        if not unsure.size:
            return unsure
        more = np.frombuffer(read(8 * unsure.size), np.uint64)
        accepted = self._decide(magnitude[unsure], step[unsure], leading[unsure], more, read)
        accepted &= (magnitude[unsure] > 0) | (negative[unsure] == 0)
        for place in np.flatnonzero(step[unsure] == self.steps):
            found = self._tail(_words(read))
            accepted[place] = found is not None
            out[unsure[place]] = (found or 0) * (1 - 2 * int(negative[unsure[place]]))
        return unsure[~accepted]

    def _decide(
        self,
        magnitude: NDArray[np.int64],
        step: NDArray[np.int64],
        leading: NDArray[np.uint64],
        more: NDArray[np.uint64],
        read: Read,
    ) -> NDArray[np.bool_]:
        """For each proposal whether v < p, the test by which it is accepted. For proposals from the tail, beyond the
        last step of the staircase, the answer is meaningless, and `_tail` decides.

        v is a random number in [0, 1) and p the probability of acceptance (module's docstring). magnitude: the absolute
        values of the proposals. step: for each the index of the step of the staircase that it was drawn from, 0 to
        M - 1, or M for the tail. leading: the first `digits` binary digits of v (fewer than 64), read as an integer.
        more: the next 64 digits, likewise. read: gives the random bytes of as many further digits as are needed.
        """
        v = (leading + more * 2.0**-64) * 2.0**-self.digits
        p = self.height / self.counts[step] * np.exp(-0.5 * (magnitude / self._sigma) ** 2)
        accepted = v < p
        for place in np.flatnonzero((np.abs(v - p) <= _MARGIN) & (step < self.steps)):
            known = int(leading[place]) << 64 | int(more[place])
            factor = Fraction(self.height, int(self.counts[step[place]]))
            accepted[place] = self._accept(int(magnitude[place]), factor, known, self.digits + 64, _words(read))
        return accepted

    def _tail(self, words: Iterator[int]) -> int | None:
        """Draw an absolute value from the tail of the law, or None if the proposal is refused. words: random 64-bit
        integers."""
        block = 0
        while next(words) & 1:
            block += 1
        bits = self.bits + _TAIL_BITS
        magnitude = (self.steps << self.bits) + (block << bits) + (next(words) >> (64 - bits))
        factor = Fraction(self.height << (block + 1 + _TAIL_BITS))
        return magnitude if self._accept(magnitude, factor, next(words), 64, words) else None

    def _accept(self, magnitude: int, factor: Fraction, v: int, bits: int, words: Iterator[int]) -> bool:
        """Whether a number v in [0, 1) is below factor exp(-magnitude^2/(2 sigma^2)), decided exactly.

        sigma is that of the sampled law. The first `bits` binary digits of the number are the integer `v`; further ones
        come from `words`.
        """
        while True:
            low, high = exp_bounds(magnitude**2 * self._rate, bits)
            if Fraction(v + 1, 1 << bits) <= factor * low:
                return True
            if Fraction(v, 1 << bits) >= factor * high:
                return False
            v, bits = v << 64 | next(words), bits + 64


@lru_cache(maxsize=8)
def staircase(scale: Fraction) -> Staircase:
    """The sampler of the discrete Gaussian law with the parameter sigma = `scale`. It takes 0.4 ms to make, so the last
    eight samplers are kept."""
    return Staircase(scale)


def exp_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound on exp(-x), x >= 0, as rational numbers that agree in about their first `bits`
    binary digits."""
    digits = bits // 3 + 10
    bounds = []
    for rounding, outward in (
        (decimal.ROUND_FLOOR, decimal.Context.next_minus),
        (decimal.ROUND_CEILING, decimal.Context.next_plus),
    ):
        context = decimal.Context(prec=digits, rounding=rounding, Emin=-10 * digits, Emax=10 * digits, traps=[])
        exponent = context.divide(decimal.Decimal(-x.numerator), decimal.Decimal(x.denominator))
        bounds.append(Fraction(outward(context, context.exp(exponent))))
    return bounds[0], min(bounds[1], Fraction(1))


def _deal(edges: NDArray[np.float64]) -> tuple[int, NDArray[np.int64]]:
    """The largest height A of the staircase that leaves one slot to the tail, and the numbers of slots of the steps.

    edges: the law's mass at the inner edge of each step, divided by that at 0; step c has A times that many slots,
    rounded up.
    """
    height = halved(lambda a: bool(_whole(a * edges).sum() < _SLOTS), 1, _SLOTS, middle=integer_between)[0]
    return height, _whole(height * edges).astype(np.int64)


def _whole(slots: NDArray[np.float64]) -> NDArray[np.float64]:
    """The numbers of slots rounded up to integers, and at least 1 even if exp has underflowed to 0."""
    return np.maximum(np.ceil(slots), 1.0)


def _words(read: Read) -> Iterator[int]:
    """An endless iterator of random 64-bit integers, from random bytes of `read`."""
    while True:
        yield int.from_bytes(read(8), "little")
