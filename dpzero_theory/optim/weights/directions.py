"""Random directions u_0, u_1, ... of a run, addressed by (run key, number, parameter, offset).

They are computed from the 64-bit random words of the counter-based generator Philox4x64-10 (Salmon et al., SC 2011).
The generator maps a counter of four 64-bit integers, under a key of two, to four words. Word j of a parameter is entry
j % 4 of what it gives for the counter (1 + j // 4, parameter, number, 0) under the run key. So any block of any
direction can be made again anywhere, in any order. Nothing is stored, and a run is its key and a list of pairs (number,
amount). Directions are public: they never depend on data, and the noise that protects the data is never drawn here.

    direction   coordinate i of a parameter                          law
    rademacher  bit i % 64 of word i // 64, as -1 or +1              independent signs, on the sphere sqrt(d) S^{d-1}
    gaussian    quantile number q, the 16-bit field i % 4 of         independent, 65,536 equally likely values: N(0, 1)
                word i // 4, low bits first                          to 16 bits, see `sphere.quantiles`
    sphere      as gaussian, times sqrt(d)/||g||                     uniform on sqrt(d) S^{d-1} to the same resolution
    low-rank    of a matrix, entry (i, j) of rho^(-1/2) times the    signs whose products are the entries; a vector has
                sum over r of a_r[i] b_r[j]                          independent signs

The signs of a low-rank direction are the coordinates that `rademacher` gives parameter 0, dealt out to the parameters
in their order: a_1, ..., a_rho, then b_1, ..., b_rho. A parameter with two axes or more is a matrix of shape (first
axis, product of the others), so that convolutions have a row for each channel that they put out.

A coordinate is looked up in a table by bits of a word, and multiplied by the scale with one rounding. So not only the
words but the floating-point directions have the same bits on every processor and device. Sums over low-rank directions
are matrix products, whose order of summation is the kernel's; `Directions.sum` therefore rounds the amounts so that
every partial sum is exact.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzero_theory.sphere import DIRECTIONS, GRID

_CPU = torch.device("cpu")
_CPU_CHUNK, _GPU_CHUNK = 1 << 17, 1 << 24
"""How many coordinates are made at a time on a CPU, few enough to stay in its cache, and on a GPU, few enough to take
little of its memory."""
_FEW_WORDS = 1 << 18
"""So many words a GPU gets from the host, which makes them in less time than the GPU takes to start its operations."""
_NO_WORDS: dict[str, Any] = {"buffer": np.zeros(4, np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
"""The part of a numpy generator's state which says that the next word is the first one of the next counter."""
_NUMPY: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}
WIDE = {torch.float64: torch.float64}
"""The type in which sums with weights of a type are formed, where it is not float32."""
_MANY = 64
"""With more products than this in a sum of float32, it is formed in float64 and rounded once."""
_LOW = 0xFFFFFFFF
"""The low half of a 64-bit word."""
_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
"""The constants of Philox4x64: what words are multiplied by, and what is added to the key after each of ten rounds."""


Shapes = tuple[tuple[int, ...], ...]
"""The shapes of all parameters, in order."""


class Place(NamedTuple):
    """Where the signs of a parameter are in a low-rank direction.

    Attributes:
        start: the first of them, among the signs of all parameters.
        rows, columns: the shape of the matrix; of a vector, its size and 0.
    """

    start: int
    rows: int
    columns: int


@lru_cache(maxsize=8)
def places(shapes: Shapes, rank: int) -> tuple[tuple[Place, ...], int]:
    """Return the place of each of the parameters with these shapes in directions of this rank, and how many signs a
    direction has in all."""
    found, start = [], 0
    for shape in shapes:
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape), 0)
        found.append(Place(start, rows, columns))
        start += rank * (rows + columns) if columns else rows
    return tuple(found), start


class _Kept:
    """What is kept of some low-rank directions: their numbers and the amounts of their sum; tensors by type and device
    with their signs, and with the amounts; and which of these tensors have been written for these directions."""

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()
        self.amounts: tuple[float, ...] = ()
        self.tensors: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self.written: set[tuple[str, torch.dtype, torch.device]] = set()

    def fresh(self, what: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, bool]:
        """Return the tensor of signs or amounts, `what`, and whether it still has to be written."""
        name = what, dtype, device
        if name not in self.tensors or self.tensors[name].shape != shape:
            self.tensors[name] = torch.empty(shape, dtype=dtype, device=device)
            self.written.discard(name)
        new = name not in self.written
        self.written.add(name)
        return self.tensors[name], new


class Directions:
    """Computes the random directions u_0, u_1, ... of one run.

    In the methods, `number` counts the directions of the run (t K + k for direction k of step t), `parameter` is the
    parameter's index, and coordinates are in row-major order. For a normalised law the methods give g instead of u = g
    sqrt(d)/||g||, as that factor needs all parameters: `factor` computes it.

    Args:
        key: the public run key, an integer in [0, 2^128) or 16 bytes (little-endian).
        direction: the name of their law in `sphere.DIRECTIONS`, whose table gives the coordinates.

    Raises:
        ValueError: another key or law.
    """

    def __init__(self, key: int | bytes, direction: str) -> None:
        if isinstance(key, bytes):
            if len(key) != 16:
                raise ValueError(f"key must be an integer or 16 bytes; got {len(key)} bytes")
            key = int.from_bytes(key, "little")
        if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < 2**128:
            raise ValueError(f"key must be an integer with 0 <= key < 2^128, or 16 bytes; got {key!r}")
        self.key = key
        self.law = DIRECTIONS[direction]
        self._key = np.array([key % 2**64, key >> 64], np.uint64)
        self._values = self.law.table()
        self._grid = GRID * float(np.gcd.reduce((self._values / GRID).astype(np.int64)))
        self._integers = self._values / self._grid
        bits = (len(self._values) - 1).bit_length()
        # of random signs a field is a byte, which stands for eight of them, low bit first
        octets = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._fields = self._values[octets] if bits == 1 else self._values
        self._field = np.dtype(np.uint8 if bits == 1 else np.uint16)
        self._per_word = 64 // bits
        self._generator = np.random.Philox(key=self._key)
        self._counter = np.zeros(4, np.uint64)
        counted = {"counter": self._counter, "key": self._key}
        self._state: Any = {"bit_generator": "Philox", "state": counted, **_NO_WORDS}
        self._tables: dict[tuple[float, torch.dtype, torch.device], Any] = {}
        self._on_device: dict[torch.device, Tensor] = {}
        self._squared_norm: tuple[int, tuple[int, ...], int] | None = None
        self._kept: dict[int, _Kept] = {}

    def words(self, number: int, parameter: int, start: int, count: int) -> NDArray[np.uint64]:
        """Return the random words start, ..., start + count - 1 of a direction and a parameter."""
        self._counter[:] = start // 4, parameter, number, 0
        self._generator.state = self._state
        if start % 4:
            self._generator.random_raw(start % 4, output=False)
        found: NDArray[np.uint64] = self._generator.random_raw(count)
        return found

    def factor(self, number: int, sizes: tuple[int, ...], device: torch.device = _CPU) -> float:
        """Return the factor by which the methods' vectors g must be multiplied to be the direction u.

        It is sqrt(d)/||g|| for a normalised law and 1 for another, with the same bits on every device.

        Args:
            number: the direction's number.
            sizes: the numbers of coordinates of all parameters, whose sum is d.
            device: where it is computed.
        """
        if not self.law.normalised:
            return 1.0
        return math.sqrt(sum(sizes) / (self.squared_norm(number, sizes, device) * self._grid**2))

    def squared_norm(self, number: int, sizes: tuple[int, ...], device: torch.device = _CPU) -> int:
        """Return ||v||^2 without rounding, where v is the vector of integers along u that `integers` gives.

        This takes one pass over the words, on `device`, unless all coordinates have one magnitude. The last answer is
        kept.

        Args:
            number: the direction's number.
            sizes: the numbers of coordinates of all parameters.
        """
        if np.ptp(np.abs(self._integers)) == 0:
            return sum(sizes) * int(self._integers[0]) ** 2
        if self._squared_norm is None or self._squared_norm[:2] != (number, sizes):
            sums = [
                self.coordinates(number, parameter, start, count, 1 / self._grid, torch.float64, device).square().sum()
                for parameter, size in enumerate(sizes)
                for start, count in blocks(size, device)
            ]
            self._squared_norm = number, sizes, sum(map(int, torch.stack(sums).tolist()))  # one transfer from a GPU
        return self._squared_norm[2]

    def integers(self, number: int, parameter: int, start: int, count: int, shapes: Any = None) -> NDArray[np.int64]:
        """Return coordinates start, ..., start + count - 1 of v, a vector of integers along the direction u.

        v is g, which is u but for the sphere's factor (`factor`), in units of the largest number of which all values of
        the law's table are multiples: u itself for signs, 2^16 u for Gaussian directions, and 2^16 g for those on the
        sphere.

        Args:
            number: the direction's number.
            parameter: the parameter's index.
            shapes: of all parameters; needed for a low-rank law, whose rank must be 1.
        """
        if self.law.rank:
            place = places(shapes, 1)[0][parameter]
            width = place.columns or 1
            first, last = start // width, -(-(start + count) // width)
            with exactly(_CPU):
                found = self.sum([(number, 1.0)], parameter, shapes, first, last, torch.float64, _CPU).view(-1)
            return found[start - first * width :][:count].numpy().astype(np.int64)
        return self.coordinates(number, parameter, start, count, 1 / self._grid, torch.float64).numpy().astype(np.int64)

    @property
    def largest(self) -> int:
        """The largest magnitude that a coordinate of `integers` can have."""
        return int(np.abs(self._integers).max())

    def coordinates(
        self,
        number: int,
        parameter: int,
        start: int,
        count: int,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device = _CPU,
    ) -> Tensor:
        """Return the vector scale u[start : start + count] for the part of direction `number` that belongs to the
        parameter with this index; each coordinate is rounded once to dtype, float32 or float64. Not for low-rank laws.
        """
        table, skipped = self._table(scale, dtype, device), start % self._per_word
        first, needed = start // self._per_word, -(-(count + skipped) // self._per_word)
        if device.type == "cpu":
            which: Any = self.words(number, parameter, first, needed).view(self._field)
            found: NDArray[Any] = table.take(which, axis=0, mode="clip").reshape(-1)
            return torch.from_numpy(found[skipped : skipped + count])
        if needed <= _FEW_WORDS:
            made = torch.from_numpy(self.words(number, parameter, first, needed).view(np.int64))
            words = made.to(device, non_blocking=True)
        else:
            of = torch.arange(first // 4, -(-(first + needed) // 4), device=device)
            words = self._philox(of, parameter, number).view(-1)[first % 4 :][:needed]
        return self._looked_up(table, words)[skipped : skipped + count]

    def rows(
        self,
        number: int,
        parameter: int,
        rows: Tensor,
        width: int,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the coordinates scale u of some rows of a parameter of shape (..., width), as a tensor (m, width).

        The bits are those that `coordinates` gives.

        Args:
            number: the direction's number.
            parameter: the parameter's index.
            rows: the numbers of the rows, integers of shape (m,); the result is on their device.
            dtype: of the result, float32 or float64.
        """
        each = 4 * self._per_word
        starts = rows * width
        counters = (starts // each).unsqueeze(1) + torch.arange(-(-width // each) + 1, device=rows.device)
        table = torch.as_tensor(self._table(scale, dtype, rows.device))
        values = self._looked_up(table, self._philox(counters, parameter, number)).view(len(rows), -1)
        return values.gather(1, (starts % each).unsqueeze(1) + torch.arange(width, device=rows.device))

    def shift(
        self, source: Tensor, number: int, parameter: int, scale: float, start: int = 0, out: Tensor | None = None
    ) -> Tensor:
        """Return source + scale u[start : start + source.numel()], in the shape and type of `source`.

        u is the part of direction `number` that belongs to the parameter with this index. The sum is formed in float32
        (float64 for float64) and rounded once to nearest.

        Args:
            source: contiguous.
            out: a contiguous tensor to write the result to, which may be `source`; a new one if None.
        """
        result = torch.empty_like(source) if out is None else out
        inputs, outputs = source.detach().view(-1), result.detach().view(-1)
        summed = WIDE.get(source.dtype, torch.float32)
        for first, count in blocks(source.numel(), source.device):
            u = self.coordinates(number, parameter, start + first, count, scale, summed, source.device)
            torch.add(inputs[first : first + count], u, out=outputs[first : first + count])
        return result

    def sum(
        self,
        amounts: Sequence[tuple[int, float]],
        parameter: int,
        shapes: Shapes,
        first: int,
        last: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """Return rows first, ..., last - 1 of the sum of amount u_number over the pairs (number, amount), for one
        parameter; the rows of a vector are its entries.

        Call it inside `exactly`. For low-rank laws the sum is one matrix product, shape (rows, columns), whose bits are
        the same for every order of summation: the amounts, times rho^(-1/2), are first rounded to multiples of a power
        of two, so that every partial sum is a multiple that `dtype` holds exactly. With K amounts this keeps 24 -
        log2(K rho) bits of the largest amount in float32, and 53 - log2(K rho) in float64, which also sums where K rho
        > 64. For other laws the sum is formed in the order given.

        Args:
            amounts: the pairs; for a normalised law each amount is times the direction's factor.
            parameter: the parameter's index.
            shapes: of all parameters.
            dtype: float32 or float64.
        """
        rank, shape = self.law.rank, shapes[parameter]
        if not rank:
            width = math.prod(shape[1:])
            found = torch.zeros(0)
            for place, (number, amount) in enumerate(amounts):
                one = self.coordinates(number, parameter, first * width, (last - first) * width, amount, dtype, device)
                found = found.add_(one) if place else one
            return found
        summed = torch.float64 if rank * len(amounts) > _MANY else dtype
        left, right = self.factors(tuple(number for number, _ in amounts), parameter, shapes, summed, device)
        scale = self.amounts(tuple(amount for _, amount in amounts), right is not None, summed, device)
        if right is None:
            return (scale @ left[:, first:last]).to(dtype)
        scaled = left[:, :, first:last] * scale[:, None, None]
        return (scaled.flatten(0, 1).T @ right.flatten(0, 1)).to(dtype)

    def factors(
        self, numbers: tuple[int, ...], parameter: int, shapes: Shapes, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor | None]:
        """Return the signs of the low-rank directions with these numbers, for one parameter.

        For a matrix they are the a_r, shape (P, rho, rows), and the b_r, shape (P, rho, columns), for a vector its
        signs, shape (P, rows), and None.
        """
        start, rows, columns = places(shapes, self.law.rank)[0][parameter]
        signs = self.signs(numbers, shapes, dtype, device)
        if not columns:
            return signs[:, start : start + rows], None
        middle, end = start + self.law.rank * rows, start + self.law.rank * (rows + columns)
        split = (len(numbers), self.law.rank, -1)
        return signs[:, start:middle].view(split), signs[:, middle:end].view(split)

    def signs(
        self, numbers: tuple[int, ...], shapes: Shapes, dtype: torch.dtype = torch.float32, device: torch.device = _CPU
    ) -> Tensor:
        """Return all signs of the low-rank directions with these numbers, one direction a row.

        The tensor is kept, and the next call for as many directions writes the signs of those into it.
        """
        kept, total = self._kept.setdefault(len(numbers), _Kept()), places(shapes, self.law.rank)[1]
        if kept.numbers != numbers:
            kept.numbers, kept.written = numbers, {name for name in kept.written if name[0] != "signs"}
        found, new = kept.fresh("signs", (len(numbers), total), dtype, device)
        if new and device.type == "cpu":
            for row, number in zip(found, numbers, strict=True):
                row.copy_(self.coordinates(number, 0, 0, total))
        elif new:  # a GPU gets a bit for each sign
            words = np.stack([self.words(number, 0, 0, -(-total // 64)) for number in numbers]).view(np.int64)
            table = self._table(1.0, torch.float32, device)
            found.copy_(self._looked_up(table, torch.from_numpy(words).to(device)).view(len(numbers), -1)[:, :total])
        return found

    def amounts(self, amounts: tuple[float, ...], matrix: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the amounts of a sum of low-rank directions, rounded as `sum` says; for a matrix times rho^(-1/2).

        The tensor is kept, and the next call for as many amounts writes those into it.
        """
        kept, what = self._kept.setdefault(len(amounts), _Kept()), "matrix" if matrix else "vector"
        if kept.amounts != amounts:
            kept.amounts, kept.written = amounts, {name for name in kept.written if name[0] == "signs"}
        found, new = kept.fresh(what, (len(amounts),), dtype, device)
        if new:
            root = math.sqrt(self.law.rank) if matrix else 1.0
            rounded = _on_a_grid(tuple(amount / root for amount in amounts), self.law.rank, dtype)
            found.copy_(torch.tensor(rounded, dtype=dtype))
        return found

    def write(self, numbers: tuple[int, ...], amounts: tuple[float, ...], shapes: Shapes) -> None:
        """Write the signs of these directions, and these amounts unless there are none, into all tensors that `signs`
        and `amounts` have returned for as many directions. Kernels that were recorded with these tensors then compute
        with these directions."""
        for what, dtype, device in tuple(self._kept.setdefault(len(numbers), _Kept()).tensors):
            if what == "signs":
                self.signs(numbers, shapes, dtype, device)
            elif amounts:
                self.amounts(amounts, what == "matrix", dtype, device)

    def _table(self, scale: float, dtype: torch.dtype, device: torch.device) -> Any:
        """Return the table from a field of a word to the coordinates that it stands for, times `scale`, in `dtype`: an
        array for the CPU, else a tensor. A field is a byte (eight signs) for random signs, and 16 bits for the other
        laws. The last few tables are kept."""
        found = self._tables.get((scale, dtype, device))
        if found is None:
            if len(self._tables) >= 8:
                self._tables.clear()
            if device.type == "cpu":
                with np.errstate(over="ignore"):
                    found = (scale * self._fields).astype(_NUMPY[dtype])
            else:
                if device not in self._on_device:
                    self._on_device[device] = torch.tensor(self._fields).to(device)
                found = (scale * self._on_device[device]).to(dtype)
            self._tables[scale, dtype, device] = found
        return found

    def _looked_up(self, table: Tensor, words: Tensor) -> Tensor:
        """Return the coordinates that random words stand for, as a vector: 64 signs or four 16-bit values a word.

        Args:
            table: what `_table` returns for the words' device.
            words: int64, contiguous.
        """
        if self._field.itemsize == 1:
            return table.index_select(0, words.view(torch.uint8).view(-1).int()).view(-1)
        return table.index_select(0, words.view(torch.int16).view(-1).int() & 0xFFFF)

    def _philox(self, blocks: Tensor, parameter: int, number: int) -> Tensor:
        """Return the four random words of each block of four, as int64 along a new last axis: those of `words`, by
        operations that every device has. blocks: their numbers, int64."""
        c = [blocks + 1, *(torch.full_like(blocks, _signed(value)) for value in (parameter, number, 0))]
        key = [self.key % 2**64, self.key >> 64]
        for _ in range(10):
            (high, low), (other, least) = _product(_FACTORS[0], c[0]), _product(_FACTORS[1], c[2])
            c = [other ^ c[1] ^ _signed(key[0]), least, high ^ c[3] ^ _signed(key[1]), low]
            key = [(word + step) % 2**64 for word, step in zip(key, _STEPS, strict=True)]
        return torch.stack(c, -1)


def blocks(rows: int, device: torch.device, width: int = 1) -> Iterator[tuple[int, int]]:
    """Yield (first, count) for consecutive parts of so many rows of `width` coordinates, each of at most as many
    coordinates as are made at a time on the device, but of a row at least."""
    largest = max(1, (_CPU_CHUNK if device.type == "cpu" else _GPU_CHUNK) // max(1, width))
    for first in range(0, rows, largest):
        yield first, min(largest, rows - first)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _product(factor: int, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low 64 bits of the products of 64-bit words with a factor, as int64."""
    small, large = factor & _LOW, factor >> 32
    low, high = words & _LOW, words >> 32 & _LOW
    middle = low * large + (low * small >> 32 & _LOW)
    other = high * small + (middle & _LOW)
    return high * large + (middle >> 32 & _LOW) + (other >> 32 & _LOW), words * _signed(factor)


@lru_cache(maxsize=8)
def _on_a_grid(amounts: tuple[float, ...], rank: int, dtype: torch.dtype) -> list[float]:
    """Return the amounts rounded to multiples of a power of two, so few of them that a sum of rank * len(amounts)
    multiples with any signs has no more bits than `dtype` holds."""
    largest = max(map(abs, amounts))
    if largest == 0 or not math.isfinite(largest):
        return list(amounts)
    bits = (53 if dtype == torch.float64 else 24) - (rank * len(amounts) - 1).bit_length()
    grid = math.ldexp(1.0, math.frexp(largest)[1] - bits)
    return [round(amount / grid) * grid for amount in amounts]


@contextmanager
def exactly(device: torch.device) -> Iterator[None]:
    """Inside the block matrix products of float32 are not rounded to fewer bits (TF32, bfloat16, autocast)."""
    before = torch.get_float32_matmul_precision()
    try:
        with torch.autocast(device.type, enabled=False):
            torch.set_float32_matmul_precision("highest")
            yield
    finally:
        torch.set_float32_matmul_precision(before)
