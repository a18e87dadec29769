"""Random directions u_0, u_1, ... of a run, addressed by (run key, number, parameter, offset).

The words are those of the counter-based generator Philox4x64-10 (Salmon et al., SC 2011): word j of a parameter is
entry j % 4 of the function at counter (1 + j // 4, parameter, number, domain) under the 128-bit run key, four 64-bit
integers and two. So any block of any direction can be made again anywhere, in any order: nothing is stored, and a
run is its key and a list of (number, amount). Directions are public: they never depend on data, and the noise that
protects the data is never drawn from here.

    kind        coordinate i of a parameter                          law
    rademacher  bit i % 64 of word i // 64, as -1 or +1              independent signs, on the sphere sqrt(d) S^{d-1}
    gaussian    quantile number q, the 16-bit field i % 4 of         independent, 65,536 equally likely values that are
                word i // 4, low bits first                          those of N(0, 1) to 16 bits: see `quantiles`
    sphere      as gaussian, times sqrt(d)/||g||                     uniform on sqrt(d) S^{d-1} to the same resolution

Every operation from word to direction is a table lookup and one rounded product, so the floating-point directions,
and not the words alone, are the same bits on every processor and device.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from dpzero_theory import check

__all__ = ["DIRECTION", "KINDS", "ROUNDING", "Directions", "quantiles"]

Tensor = torch.Tensor

KINDS = ("gaussian", "sphere", "rademacher")
DIRECTION, ROUNDING = 0, 1
"""Domains of the counter: what the words are used for."""
CHUNK = 1 << 17
"""Coordinates made at a time: a working set that stays in cache."""
GRID = 2.0**-16


@lru_cache(maxsize=1)
def quantiles() -> NDArray[np.float64]:
    """The 65,536 values of a Gaussian coordinate in ascending order, multiples of 2^-16.

    a q + b q^3, q the normal quantile at (k + 1/2)/65536, with a and b so that the mean of the squares is 1 and that
    of the fourth powers 3, as for N(0, 1) (odd moments are 0 by symmetry), then rounded to the grid. These are all
    the moments that Lemma lm:sphere uses. Largest value 4.4. On the grid, sums of up to 2^20 squares are
    exact in float64, whoever adds them.
    """
    half = -ndtri((np.arange(32768) + 0.5) / 65536)[::-1]
    a, b = 1.0, 0.0
    for _ in range(50):
        values = a * half + b * half**3
        errors = np.array([(values**2).mean() - 1, (values**4).mean() - 3])
        slopes = np.array(
            [
                [2 * (values * half).mean(), 2 * (values * half**3).mean()],
                [4 * (values**3 * half).mean(), 4 * (values**3 * half**3).mean()],
            ]
        )
        a, b = np.array([a, b]) - np.linalg.solve(slopes, errors)
    rounded = np.round((a * half + b * half**3) / GRID) * GRID
    table: NDArray[np.float64] = np.concatenate([-rounded[::-1], rounded])
    table.setflags(write=False)
    return table


@lru_cache(maxsize=1)
def _signs() -> NDArray[np.float64]:
    """The eight signs of each byte, low bit first, shape (256, 8)."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return 2.0 * bits - 1.0


class Directions:
    """The directions of one run.

    key: the public run key, an integer in [0, 2^128) or 16 bytes (little-endian); kind: one of KINDS. `number`
    counts the directions of the run (step * K + k with K a step), `parameter` is the parameter's index and `start` an
    offset in coordinates, row-major. For the sphere the methods speak of g, whose factor sqrt(d)/||g|| needs all
    parameters: `factor`. Raises ValueError.
    """

    def __init__(self, key: int | bytes, kind: str) -> None:
        if isinstance(key, bytes):
            if len(key) != 16:
                raise ValueError(f"key must be 16 bytes; got {len(key)}")
            key = int.from_bytes(key, "little")
        self.key = check.integer("key", key, at_least=0, at_most=2**128 - 1)
        self.kind = check.choice("kind", kind, KINDS)
        self._per_word = 64 if kind == "rademacher" else 4
        self._factor: tuple[int, tuple[int, ...], float] | None = None
        self._scaled: dict[tuple[float, np.dtype[np.floating]], NDArray[np.floating]] = {}

    def words(self, number: int, parameter: int, start: int, count: int, domain: int = DIRECTION) -> NDArray[np.uint64]:
        """Words start, ..., start + count - 1 (not coordinates) of one parameter's direction."""
        counter = np.array([start // 4, parameter, number, domain], np.uint64)
        key = np.array([self.key & (2**64 - 1), self.key >> 64], np.uint64)
        generator = np.random.Philox(counter=counter, key=key)
        skipped = start % 4
        words: NDArray[np.uint64] = generator.random_raw(skipped + count)
        return words[skipped:]

    def factor(self, number: int, sizes: tuple[int, ...]) -> float:
        """sqrt(d)/||g|| for the sphere, over parameters of these sizes; 1 for the other kinds.

        The last one is remembered. ||g||^2 is summed exactly.
        """
        if self.kind != "sphere":
            return 1.0
        if self._factor is None or self._factor[:2] != (number, sizes):
            squares = quantiles() ** 2
            total = 0.0
            for parameter, size in enumerate(sizes):
                for first, length in _chunks(0, size):
                    words = self.words(number, parameter, first // 4, -(-length // 4))
                    total += float(squares[words.view(np.uint16)[:length]].sum())
            self._factor = number, sizes, math.sqrt(sum(sizes) / total)
        return self._factor[2]

    def fill_(self, out: Tensor, number: int, parameter: int, start: int = 0, scale: float = 1.0) -> Tensor:
        """out <- scale u[start : start + out.numel()]."""
        return self.shift(torch.zeros_like(out), number, parameter, scale, start, out=out)

    def add_(self, target: Tensor, number: int, parameter: int, scale: float, start: int = 0) -> Tensor:
        """target <- target + scale u[start : start + target.numel()], rounded to nearest in target's type."""
        return self.shift(target, number, parameter, scale, start, out=target)

    def shift(
        self,
        source: Tensor,
        number: int,
        parameter: int,
        scale: float,
        start: int = 0,
        out: Tensor | None = None,
    ) -> Tensor:
        """source + scale u in source's shape and type, without changing source unless it is `out`.

        Half-precision sums are formed in float32 and rounded once. A temporary of CHUNK coordinates, or of the
        tensor's size where source is not contiguous.
        """
        result = torch.empty_like(source) if out is None else out
        if not (source.is_contiguous() and result.is_contiguous()):
            flat = self.shift(source.contiguous(), number, parameter, scale, start)
            return result.copy_(flat)
        inputs, outputs = source.view(-1), result.view(-1)
        for first, length in _chunks(start, source.numel()):
            here = slice(first - start, first - start + length)
            part = self._block(number, parameter, first, length, scale, source.dtype).to(source.device)
            torch.add(inputs[here], part, out=outputs[here])
        return result

    def _block(self, number: int, parameter: int, start: int, count: int, scale: float, dtype: torch.dtype) -> Tensor:
        """scale u[start : start + count], float64 for float64 and else float32."""
        first = start // self._per_word
        words = self.words(number, parameter, first, -(-(start + count) // self._per_word) - first)
        table = self._table(scale, np.dtype(np.float64 if dtype == torch.float64 else np.float32))
        fields = words.view(np.uint8 if self.kind == "rademacher" else np.uint16)
        values = np.take(table, fields, axis=0, mode="clip").reshape(-1)
        skipped = start - first * self._per_word
        return torch.from_numpy(values[skipped : skipped + count])

    def _table(self, scale: float, dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
        """The table of one field's values times the scale; the last few are remembered."""
        found = self._scaled.get((scale, dtype))
        if found is None:
            values = _signs() if self.kind == "rademacher" else quantiles()
            if len(self._scaled) >= 8:
                self._scaled.clear()
            found = self._scaled[scale, dtype] = (scale * values).astype(dtype)
        return found


def _chunks(start: int, count: int) -> Iterator[tuple[int, int]]:
    """(first, length) of pieces that cover start .. start + count - 1 and end at multiples of CHUNK."""
    first, end = start, start + count
    while first < end:
        stop = min(end, (first // CHUNK + 1) * CHUNK)
        yield first, stop - first
        first = stop
