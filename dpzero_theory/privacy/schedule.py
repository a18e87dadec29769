"""Draws batches that depend on one another from a secret key, so that a continued run draws the same batches.

A run that is continued by another process must find each record in the group or step to which it was assigned. So the
random bits are SHAKE-256 of a secret that is kept with the run, and of a label that says what they are for.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]  # of a batch's records, ascending
SECRET_BYTES = 32  # the length of the secret from which a run's batches are made
_BLOCK = 2**16  # the number of bytes of the stream that one call of SHAKE-256 makes
_TABLE_CELLS = 2**24  # the most entries of the table that `_subsets` fills at once, which bounds the memory used


# Bits that nobody can tell from random ones without the 32 bytes `secret`: SHAKE-256 of it and a text. Different texts
# `label` give independent bits from one secret.
class _Bits:
    def __init__(self, secret: bytes, label: str) -> None:
        self._start = secret + f"dpzero_theory {label} ".encode()
        self._count, self._left = 0, b""

    def words(self, count: int) -> NDArray[np.uint64]:
        while len(self._left) < 8 * count:
            self._left += hashlib.shake_256(self._start + self._count.to_bytes(8, "little")).digest(_BLOCK)
            self._count += 1
        found, self._left = self._left[: 8 * count], self._left[8 * count :]
        return np.frombuffer(found, dtype="<u8").astype(np.uint64)


def _below(source: _Bits, bound: int, count: int) -> NDArray[np.int64]:
    # Independent integers, each exactly uniform in 0, ..., bound - 1, with a bound from 1 to 2^63: 64-bit words modulo
    # `bound`, where words beyond the largest multiple of `bound` are drawn again
    largest = 2**64 - 1 - 2**64 % bound
    words = source.words(count)
    while (bad := np.flatnonzero(words > np.uint64(largest))).size:
        words[bad] = source.words(bad.size)
    return (words % np.uint64(bound)).astype(np.int64)


def _subsets(source: _Bits, count: int, size: int, taken: int) -> NDArray[np.int64]:
    # Independent uniformly random sets of `taken` of the numbers 0, ..., size - 1, one in each row, by Floyd's
    # algorithm: for j = size - taken, ..., size - 1 a uniformly random one of 0, ..., j is added to the set, or j if
    # that one is already in it
    drawn = np.empty((count, taken), dtype=np.int64)
    rows = max(_TABLE_CELLS // size, 1)
    for first in range(0, count, rows):
        part = drawn[first : first + rows]
        row = np.arange(len(part))
        held = np.zeros((len(part), size), dtype=np.bool_)
        for column, j in enumerate(range(size - taken, size)):
            chosen = _below(source, j + 1, len(part))
            chosen = np.where(held[row, chosen], j, chosen)
            held[row, chosen] = True
            part[:, column] = chosen
    return drawn


def allocation(secret: bytes, n: int, epoch: int, taken: int) -> Callable[[int], Indices]:
    """Returns the batches of a random allocation: each of `n` records is in `taken` random steps of every epoch.

    Args:
        secret: 32 bytes that determine all batches.
        n: the number of records. The steps of each record are drawn independently, and anew in each epoch.
        epoch: the number of steps of an epoch.
        taken: the number of steps of an epoch that use a given record, 1 <= taken <= epoch.

    Returns:
        A function from the number of a step, counted from 0 over all epochs, to the ascending record indices of its
        batch. It keeps the batches of one epoch in memory.
    """

    @lru_cache(maxsize=1)
    def batches(number: int) -> list[Indices]:
        steps = _subsets(_Bits(secret, f"epoch {number}"), n, epoch, taken).ravel()
        order = np.argsort(steps, kind="stable")
        return np.split(order // taken, np.searchsorted(steps[order], np.arange(1, epoch)))

    return lambda release: batches(release // epoch)[release % epoch]


def groups(secret: bytes, n: int, count: int) -> NDArray[np.int64]:
    """Assigns each of `n` records to a uniformly random group. Returns an array of shape (n,) of group numbers from 0
    to `count` - 1, which the 32 bytes `secret` determine."""
    return _below(_Bits(secret, "groups"), count, n)
