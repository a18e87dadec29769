"""Many discrete Gaussian draws at a time, exactly: rejection from a staircase of integers.

The law is P[x] proportional to exp(-x^2/(2 sigma^2)) on the integers, for rational sigma.

**Proposal.** A staircase lies above the law: on each step proposals are equally likely. Step c = 0, ..., M - 1 holds
the magnitudes c w, ..., (c + 1) w - 1, where w is a power of two (1, or in (sigma/128, sigma/64]). 2^16 equally likely
slots are dealt to the steps, n_c of them to step c, and one slot to the tail from M w on. The tail has blocks of 32 w
magnitudes; block g has the probability 2^-(g+1). Within a step or a block magnitudes are equally likely, and the sign
is a random bit. All of this is integers and random bits, without rounding.

**Acceptance.** With A the height of the staircase, a proposal m of step c is accepted with probability
p = A exp(-m^2/(2 sigma^2))/n_c, one of block g of the tail with 2^(g+6) A exp(-m^2/(2 sigma^2)), and -0 never. So every
x is proposed and accepted with probability 2^-17 A/w exp(-x^2/(2 sigma^2)): the law is exact if every p <= 1 and every
acceptance is. In a step p <= 1 because n_c >= A exp(-(c w)^2/(2 sigma^2)). In block 0 because M w >= 5.6 sigma and A <
2^16: 2^22 exp(-15.68) < 1; and from one block, 32 w >= sigma/4 wide, to the next exp falls by at least exp(-5.6/4),
more than 2^g grows.

**Deciding.** A number v with uniformly random binary digits, drawn as they are needed, is compared with p. First some
leading digits with a bound on p for the whole step, which accepts 98% of the draws at large sigma; then 64 digits more
with p in float64; and where v is within 2^-40 of that, and in the tail, in rational arithmetic with `decimal`'s exp,
which is correctly rounded, to as many digits as it takes. Of floating point it is assumed that a basic operation is
rounded correctly and that numpy's exp is right to 2^-45, relative (it is to 4 units of the last place, 2^-50). With
u = 2^-53 the exponent E = m^2/(2 sigma^2) is then right to 7 u E, and p E <= 16 as p <= min(1, 2^16 exp(-E)): p is
right to 112 u + 2^-44 < 2^-43, eight times less than 2^-40. n_c and the bounds on steps have 2^-40, relative, to spare.
"""

import decimal
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.bisection import narrowed

Read = Callable[[int], bytes]
"""A function that returns so many uniformly random bytes."""

_SLOT_BITS = 16
_SLOTS = 1 << _SLOT_BITS
"""The slots that are dealt to the steps: a slot is drawn by 16 random bits."""
_TAIL_BITS = 5
"""A block of the tail is as wide as 2^5 = 32 steps."""
_TAIL_FROM = 5.6
"""The tail begins about 5.6 sigma from 0; the proof that p <= 1 there is in the module's docstring."""
_MARGIN = 2.0**-40
"""A comparison of floats that differ by more than this is certain; see the module's docstring."""
_FREE_BITS = 64 - _SLOT_BITS - 1
"""The bits of a 64-bit word that are left after the slot and the sign."""
_FEWEST_DIGITS = 7
"""The fewest binary digits of v that the first word must hold. Where the steps are so wide that it would hold fewer,
the position within the step has a word of its own."""
_CHUNK = 1 << 14
"""The proposals that are made at once."""


class Staircase:
    """A sampler for one parameter sigma, with the notation of the module.

    steps: M.
    bits: w = 2^bits.
    height: A.
    counts: n_c for each step, and last the tail's.
    digits: how many leading digits of v the first word holds.
    first: for each step, a number below which these digits are certain to accept.
    """

    def __init__(self, scale: Fraction) -> None:
        """Take sigma = `scale`, 0 < sigma <= 2^56."""
        self._rate = 1 / (2 * scale**2)  # the exponent of the law at m is -m^2 times this
        self._sigma = max(float(scale), 1e-9)  # for a smaller sigma, everything but 0 is refused as for this one
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
        self.first[0] = 0  # no quick acceptance in this step, because -0 must be refused

    def draw(self, count: int, read: Read) -> NDArray[np.int64]:
        """Return `count` independent draws, with random bytes from `read`."""
        found = np.empty(count, np.int64)
        left = [self._propose(found[first : first + _CHUNK], read) + first for first in range(0, count, _CHUNK)]
        refused = np.concatenate([np.empty(0, np.intp), *left])
        if refused.size:
            found[refused] = self.draw(refused.size, read)
        return found

    def _propose(self, out: NDArray[np.int64], read: Read) -> NDArray[np.intp]:
        """Write one proposal to each entry of `out`; return the indices of those that were refused."""
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
        """Whether v < p, for proposals from the steps; for those from the tail the answer has no meaning.

        The digits of v are `leading`, then `more`, then as many as are needed from `read`.
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
        """A magnitude from the tail, or None if the proposal is refused."""
        block = 0
        while next(words) & 1:
            block += 1
        bits = self.bits + _TAIL_BITS
        magnitude = (self.steps << self.bits) + (block << bits) + (next(words) >> (64 - bits))
        factor = Fraction(self.height << (block + 1 + _TAIL_BITS))
        return magnitude if self._accept(magnitude, factor, next(words), 64, words) else None

    def _accept(self, magnitude: int, factor: Fraction, v: int, bits: int, words: Iterator[int]) -> bool:
        """Whether a number whose first `bits` digits are v is below factor exp(-magnitude^2/(2 sigma^2)), exactly."""
        while True:
            low, high = exp_bounds(magnitude**2 * self._rate, bits)
            if Fraction(v + 1, 1 << bits) <= factor * low:
                return True
            if Fraction(v, 1 << bits) >= factor * high:
                return False
            v, bits = v << 64 | next(words), bits + 64


@lru_cache(maxsize=8)
def staircase(scale: Fraction) -> Staircase:
    """The sampler for one parameter sigma; it takes 0.4 ms to make, so the last eight are kept."""
    return Staircase(scale)


def exp_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rational numbers at most and at least exp(-x), x >= 0, that agree to about `bits` binary digits."""
    digits = bits // 3 + 10
    found = []
    for rounding, outward in (
        (decimal.ROUND_FLOOR, decimal.Context.next_minus),
        (decimal.ROUND_CEILING, decimal.Context.next_plus),
    ):
        context = decimal.Context(prec=digits, rounding=rounding, Emin=-10 * digits, Emax=10 * digits, traps=[])
        exponent = context.divide(decimal.Decimal(-x.numerator), decimal.Decimal(x.denominator))
        found.append(Fraction(outward(context, context.exp(exponent))))
    return found[0], min(found[1], Fraction(1))


def _deal(edges: NDArray[np.float64]) -> tuple[int, NDArray[np.int64]]:
    """The largest height A whose slots, A `edges` rounded up, leave one slot of all to the tail; and these slots."""
    height = narrowed(lambda a: bool(_whole(a * edges).sum() < _SLOTS), _SLOTS, 1, lambda miss, hit: (miss + hit) // 2)
    return height, _whole(height * edges).astype(np.int64)


def _whole(slots: NDArray[np.float64]) -> NDArray[np.float64]:
    """The numbers of slots rounded up to integers, at least 1, also where exp has underflowed."""
    return np.maximum(np.ceil(slots), 1.0)


def _words(read: Read) -> Iterator[int]:
    """Random 64-bit integers without end."""
    while True:
        yield int.from_bytes(read(8), "little")
