"""The random directions u_0, u_1, ... of a run, computed from the run's public key wherever they are needed.

A direction is a vector with one coordinate for each of the d trained weights. They are looked up by 64-bit random words
of the counter-based generator Philox4x64-10 (Salmon et al., SC 2011). The generator maps a counter of four 64-bit
integers, under a key of two, to four words. Word j of a parameter is entry j % 4 of what it gives for the counter (1 +
j // 4, index of the parameter, number of the direction, 0) under the run's key. So any block of any direction can be
made again anywhere, in any order, and nothing has to be stored. Directions are public: they never depend on data, and
the noise that protects the data is never drawn here.

    law         coordinate i of a parameter                          distribution
    rademacher  bit i % 64 of word i // 64, as -1 or +1              independent signs, on the sphere sqrt(d) S^{d-1}
    gaussian    quantile number q, the 16-bit part i % 4 of          independent, 65,536 equally likely values: N(0, 1)
                word i // 4, lowest bits first                       to 16 bits, see `DirectionLaw`
    sphere      a gaussian direction g times sqrt(d)/||g||           uniform on sqrt(d) S^{d-1} to the same resolution
    low-rank    of a matrix, entry (i, j) of rho^(-1/2) times the    products of independent signs; a vector has
                sum over r of a_r[i] b_r[j]                          independent signs

A shape (`optim.shape`) makes directions longer along some weights than along others: each coordinate, or sign of a
low-rank direction, is multiplied by a power of 2, and all of them by one scale c. c is not in what the methods return,
nor is the factor of the law sphere: the caller multiplies by `Directions.scale` and by what `factor` returns.

rho is the RANK in `low-rank:RANK`. The signs of such a direction are the first coordinates that `rademacher` gives
parameter 0, dealt out to the parameters in order: to a matrix a_1, ..., a_rho, then b_1, ..., b_rho. Parameters of two
or more axes are matrices of shape (first axis, product of the others): a convolution has a row for each output channel.

A coordinate is looked up in a table by bits of a word, and multiplied by a scale with one rounding. So not only the
words but the floating-point directions have the same bits on every processor and device. Sums over low-rank directions
are matrix products, in which each kernel sums in an order of its own; `Directions.sum` therefore rounds the amounts so
that every partial sum is exact.

Nothing is read or written here but the tensors that are handed in. `whole_products` changes a setting of torch for
the length of its block.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from dpzero_theory.optim.shape import Shape
from dpzero_theory.sphere import DIRECTIONS, GRID

_CPU = torch.device("cpu")
_CPU_CHUNK, _GPU_CHUNK = 1 << 17, 1 << 24
"""How many coordinates are made at a time on a CPU, few enough to stay in its cache, and on a GPU, few enough to take
little of its memory."""
_NO_WORDS: dict[str, Any] = {"buffer": np.zeros(4, np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
"""The part of a numpy generator's state which says that the next word is the first one of the next counter."""
_NUMPY: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}
_MANY = 64
"""With more products than this in a sum of float32, the sum is formed in float64 and rounded once."""

WIDE = {torch.float64: torch.float64}
"""The type in which numbers are added to weights, by the type of the weights: float64 for float64, float32 for others.
The sum is then rounded once, to the type of the weights."""
_Shapes = tuple[tuple[int, ...], ...]
"""The shapes of all trained parameters, in order."""
_Factors = tuple[Tensor, Tensor | None]
"""The two factors of a parameter's part of a direction, which `Directions.factors` returns."""


@lru_cache(maxsize=8)
def _lengths(shapes: _Shapes, rank: int) -> list[int]:
    # In the order in which signs are dealt out: for a matrix its numbers of row and of column signs, for a vector its
    # entries and 0
    found = []
    for shape in shapes:
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape), 0)
        found += [rank * rows, rank * columns] if columns else [rows, 0]
    return found


def _dealt(first: Tensor, second: Tensor, shapes: _Shapes, rank: int) -> list[_Factors]:
    # `first` and `second` have all signs of each of P directions, shape (P, signs), in one of them perhaps times a
    # number for each direction. A matrix gets the signs of its rows from `first`, as a view of shape (P, rank, rows),
    # and those of its columns from `second`, shape (P, rank, columns); a vector gets its own from `first`, shape (P,
    # entries).
    lengths, split = _lengths(shapes, rank), (len(first), rank, -1)
    return [
        (a.view(split), b.view(split)) if b.numel() else (a, None)
        for a, b in zip(torch.split(first, lengths, 1)[::2], torch.split(second, lengths, 1)[1::2], strict=True)
    ]


# Tensors that are made once for P low-rank directions and then overwritten, so that CUDA graphs which read them can be
# replayed for P other directions: the directions' signs, and the amounts that multiply these.
class _Kept:
    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()  # of the P directions
        self.amounts: tuple[float, ...] = ()  # by which a move of the weights multiplies the P directions
        # By (content, type, device). The content is "signs"; "scaled", the signs of each direction times its shift, at
        # which losses are evaluated; "vector", the amounts, which multiply the signs of vectors; or "matrix", the
        # amounts over the square root of the rank, which multiply the signs of matrices
        self.tensors: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self.written: set[tuple[str, torch.dtype, torch.device]] = set()  # keys of tensors that are up to date
        # What `_dealt` returned for two of the tensors, by their ids and that of the parameters' shapes (`_views`)
        self.views: dict[Any, Any] = {}

    def fresh(self, what: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, bool]:
        # Return the tensor with the content `what` ("signs", for example), a new one if none of this shape, type and
        # device is kept; and whether the caller must write its values, as they are not up to date.
        name = what, dtype, device
        if name not in self.tensors or self.tensors[name].shape != shape:
            self.tensors[name] = torch.empty(shape, dtype=dtype, device=device)
            self.written.discard(name)
        new = name not in self.written
        self.written.add(name)
        return self.tensors[name], new


class Directions:
    """Computes the random directions u_0, u_1, ... of one run.

    In the methods, `number` is the number of a direction in the run: direction k of step t has the number t K + k, with
    K directions a step. `parameter` is the index of a trained parameter, and its coordinates are in row-major order.
    The methods compute a vector v, and the direction is u = scale * factor * v, in which the caller multiplies by both
    numbers: `scale` is an attribute, 1 without a shape, and the method `factor` returns 1 for all laws but sphere,
    whose vectors v are Gaussian and become u = v sqrt(d)/||v||. A shape does not go with sphere.

    Args:
        key: the run's public key, an integer in [0, 2^128) or 16 bytes (little-endian).
        direction: the name of a law of `sphere.DIRECTIONS`, such as "rademacher" or "low-rank:4".
        shape: how much longer directions are along one weight than along another, as a text that
            `losses.shaping.public_shape` returned; "" for directions with E[u u^T] = I.

    Attributes:
        key: the key as an integer.
        law: the law, a `sphere.DirectionLaw`.
        shape: the shape, an `optim.shape.Shape`, or None.
        scale: the number by which a shape multiplies all coordinates; 1 without a shape.

    Raises:
        ValueError: any other key, an unknown law, a text that is neither empty nor a shape, or a shape with `sphere`.
    """

    def __init__(self, key: int | bytes, direction: str, shape: str = "") -> None:
        if isinstance(key, bytes):
            if len(key) != 16:
                raise ValueError(f"key must be an integer or 16 bytes; got {len(key)} bytes")
            key = int.from_bytes(key, "little")
        if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < 2**128:
            raise ValueError(f"key must be an integer with 0 <= key < 2^128, or 16 bytes; got {key!r}")
        self.key = key
        self.law, self.shape = DIRECTIONS[direction], Shape(shape, direction) if shape else None
        self.scale = self.shape.scale if self.shape else 1.0
        self._powers = _powers(self.shape, self.law.rank)
        self._key = np.array([key % 2**64, key >> 64], np.uint64)
        self._values = self.law.table()
        bits = (len(self._values) - 1).bit_length()
        # a look-up by a byte, whose lowest bit stands for the first sign, gives eight random signs at a time
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
        self._factor: tuple[int, tuple[int, ...], float] | None = None
        self._kept: dict[int, _Kept] = {}

    def words(self, number: int, parameter: int, start: int, count: int) -> NDArray[np.uint64]:
        """Return `count` random 64-bit words of Philox, from word `start` on, for one parameter of direction `number`.

        A word makes 64 coordinates of random signs, one a bit, or 4 of any other law, one for 16 bits, in order.
        """
        self._counter[:] = start // 4, parameter, number, 0
        self._generator.state = self._state
        if start % 4:
            self._generator.random_raw(start % 4, output=False)
        found: NDArray[np.uint64] = self._generator.random_raw(count)
        return found

    def factor(self, number: int, sizes: tuple[int, ...], device: torch.device = _CPU) -> float:
        """Return the factor that gives the vector v of the other methods the length of a direction of the law.

        It is sqrt(d)/||v|| for the law `sphere`, with the same bits on every device, and 1 for all other laws. The
        attribute `scale` is not in it. `sizes` are the numbers of coordinates of all parameters, whose sum is d. For
        `sphere` all coordinates are made once, on `device`. The last answer is kept.
        """
        if not self.law.normalised:
            return 1.0
        if self._factor is None or self._factor[:2] != (number, sizes):
            # all values are multiples of `grid`, so in units of it squares are integers, whose sums are exact
            grid = GRID * float(np.gcd.reduce((self._values / GRID).astype(np.int64)))
            sums = [
                self.coordinates(number, parameter, start, count, 1 / grid, torch.float64, device).square().sum()
                for parameter, size in enumerate(sizes)
                for start, count in blocks(size, device)
            ]
            squared_norm = sum(map(int, torch.stack(sums).tolist()))  # one transfer from a GPU for all blocks
            self._factor = number, sizes, math.sqrt(sum(sizes) / (squared_norm * grid**2))
        return self._factor[2]

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
        """Return `count` coordinates of one parameter, from `start` on, of the vector v for direction `number`, times
        `scale`.

        The direction itself is u = v times the class's attribute `scale`, and for the law `sphere` times what `factor`
        returns; pass these in the argument `scale`. The result is a vector on `device`. Each product is rounded once to
        dtype, float32 or float64. Not for low-rank laws, which have `factors` and `sum`.
        """
        table, skipped = self._table(scale, dtype, device), start % self._per_word
        words = self.words(number, parameter, start // self._per_word, -(-(count + skipped) // self._per_word))
        if device.type == "cpu":
            which: Any = words.view(self._field)
            found: NDArray[Any] = table.take(which, axis=0, mode="clip").reshape(-1)
            looked_up = torch.from_numpy(found)
        else:
            fields = torch.from_numpy(words.view(np.uint8 if self._field.itemsize == 1 else np.int16))
            fields = fields.to(device, non_blocking=True).int() & 0xFFFF
            looked_up = table.index_select(0, fields).view(-1)
        result = looked_up[skipped : skipped + count]
        if self.shape is None:
            return result
        rows, columns = self._powers[parameter]
        first, last = start // len(columns), -(-(start + count) // len(columns))
        powers = (rows[first:last, None] * columns).view(-1)[start - first * len(columns) :][:count]
        return result.mul_(powers.to(device, dtype))

    def shift(
        self, source: Tensor, number: int, parameter: int, scale: float, start: int = 0, out: Tensor | None = None
    ) -> Tensor:
        """Return source + scale v, where v is the vector that `coordinates` gives for direction `number`. Not for
        low-rank laws.

        To shift along the direction u itself, the caller multiplies the argument `scale` by the attribute of that name,
        and for the law `sphere` by what `factor` returns.

        `source`, which is contiguous, has the coordinates of the parameter with index `parameter` from `start` on. The
        sum is formed in float32 (float64 for float64), rounded once to the type of `source`, and written to `out` if
        given, which may be `source`.
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
        shapes: _Shapes,
        first: int,
        last: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """Return the sum of several vectors, each times a number, for one parameter and some of its rows.

        For low-rank laws call it without autocast and inside `whole_products`, so that no device rounds products to
        TF32. With rho the rank of the law, the sum is then one matrix product whose bits do not depend on the order of
        summation: the K amounts, for a matrix times rho^(-1/2), are first rounded to multiples of a power of two, so
        that every partial sum is exact. This keeps 24 - log2(K rho) bits of the largest amount, or 53 - log2(K rho)
        where `dtype` is float64 or K rho > 64, since the sum is then formed in float64. For other laws it is formed in
        the order given, in `dtype`.

        Args:
            amounts: the K >= 1 pairs (number of a direction, amount by which its vector v is multiplied). For sums of
                the directions u the caller has multiplied each amount by `scale` and `factor` (see the class).
            parameter: the index of the parameter; `shapes` are the shapes of all parameters.
            first, last: the first row, and the row after the last one: indices along the parameter's first axis. A
                parameter of three or more axes is a matrix of shape (first axis, product of the others).
            dtype, device: the type of the result, float32 or float64, and its device.

        Returns:
            A tensor of shape (rows, columns) for a matrix of a low-rank law; else of all coordinates in one axis.
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
        self, numbers: tuple[int, ...], parameter: int, shapes: _Shapes, dtype: torch.dtype, device: torch.device
    ) -> _Factors:
        """Return the signs of which P directions of rank rho are made for one parameter.

        Of a matrix a direction is rho^(-1/2) sum_r a_r b_r^T over rho pairs of vectors of signs. The results are views
        of what `signs` returns: the a_r, shape (P, rho, rows), and the b_r, shape (P, rho, columns). Of a vector a
        direction is its signs: these, shape (P, rows), and None. `numbers` are the indices of the P directions in the
        run, and `shapes` the shapes of all parameters, `parameter` being the index of one. If the attribute `shape`,
        which makes directions longer along some weights, is not None, the sign of each row, column or entry of a vector
        is multiplied by its own power of 2, and the direction is the attribute `scale`, a number, times all this.
        """
        signs = self.signs(numbers, shapes, dtype, device)
        return self._views(signs, signs, shapes)[parameter]

    def scaled(
        self, numbers: tuple[int, ...], scale: Tensor, shapes: _Shapes, dtype: torch.dtype, device: torch.device
    ) -> list[_Factors]:
        """Return for each parameter two factors of P low-rank directions u, each times a coefficient of its own.

        Of a matrix they have the shapes (P, rank, rows) and (P, rank, columns), and the sum over the rank of the outer
        products of their vectors is the coefficient times u. Parameters of three or more axes are matrices of shape
        (first axis, product of the others). Of a vector they are the coefficient times u, shape (P, entries), and None.
        Unless `scale` is a dual number the tensors are kept, so the next call for as many directions writes into them.
        `numbers` are the directions' indices in the run, and the tensor `scale`, shape (P,), has each coefficient times
        this object's attribute `scale`. `shapes` are the shapes of all parameters.
        """
        wide = WIDE.get(dtype, torch.float32)
        signs, scale = self.signs(numbers, shapes, wide, device), scale.to(device, wide)[:, None]
        second = self.signs(numbers, shapes, dtype, device)
        if forward_ad.unpack_dual(scale).tangent is None:  # type: ignore[no-untyped-call]
            first, _ = self._kept[len(numbers)].fresh("scaled", tuple(signs.shape), dtype, device)
            found = self._views(torch.mul(signs, scale, out=first), second, shapes)
        else:
            found = _dealt((signs * scale).to(dtype), second, shapes, self.law.rank)
        root = math.sqrt(self.law.rank)
        return found if root == 1 else [(a if b is None else a / root, b) for a, b in found]

    def _views(self, first: Tensor, second: Tensor, shapes: _Shapes) -> list[_Factors]:
        # The views of tensors that are kept are kept too, as making them takes long.
        kept = self._kept[len(first)].views
        name = id(first), id(second), id(shapes)  # the entry has the objects, so that no others get their ids
        if name not in kept:
            kept[name] = first, second, shapes, _dealt(first, second, shapes, self.law.rank)
        found: list[_Factors] = kept[name][3]
        return found

    def signs(
        self, numbers: tuple[int, ...], shapes: _Shapes, dtype: torch.dtype = torch.float32, device: torch.device = _CPU
    ) -> Tensor:
        """Return the random signs of which low-rank directions are made, all signs of a direction in one row.

        `numbers` are the numbers of the directions, and `shapes` the shapes of all parameters, in whose order a row has
        their signs: rank * rows and then rank * columns for a matrix, or one for each entry of a vector. If the
        attribute `shape`, which makes directions longer along some weights, is not None, signs are multiplied by its
        powers of 2. The tensor is kept: the next call for as many directions, type and device writes into it.
        """
        kept, total = self._kept.setdefault(len(numbers), _Kept()), sum(_lengths(shapes, self.law.rank))
        if kept.numbers != numbers:
            kept.numbers, kept.written = numbers, {name for name in kept.written if name[0] != "signs"}
        found, new = kept.fresh("signs", (len(numbers), total), dtype, device)
        if new:
            for row, number in zip(found, numbers, strict=True):
                row.copy_(self.coordinates(number, 0, 0, total, device=device))
        return found

    def bits(self, number: int, start: int, count: int) -> NDArray[np.uint8]:
        """Return `count` of the random signs of direction `number` of a low-rank law, from sign `start` on, eight in a
        byte, shape (ceil(count/8),).

        `start` and `count` may be any integers >= 0. Signs are numbered as in a row of `signs`, over all parameters.
        The lowest bit of byte 0 stands for sign `start`; a 1 is the sign +1, whatever the attribute `shape`. Bits of
        the last byte that are left over are 0.
        """
        words = self.words(number, 0, start // 64, -(-(count + start % 64) // 64))
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[start % 64 :]
        return np.packbits(bits[:count], bitorder="little")

    def place(self, parameter: int, shapes: _Shapes) -> int:
        """Return the number, from 0, of the first sign of the parameter with this index in a row of what `signs`
        returns for parameters of these shapes."""
        return sum(_lengths(shapes, self.law.rank)[: 2 * parameter])

    def amounts(self, amounts: tuple[float, ...], matrix: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the numbers `amounts`, by which `sum` multiplies K low-rank directions, as a tensor of shape (K,).

        `matrix` says whether the parameter is a matrix: then they are first divided by the square root of the rank rho.
        They are rounded to multiples of a power of two, which is 2^-b times the one above the largest, b = 24 (53 in
        float64) less log2(K rho) rounded up, so that sums of their products with signs are exact in any order. The
        tensor is kept: the next call for as many amounts, with this `matrix`, type and device, writes into it.
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

    def write(self, numbers: tuple[int, ...], amounts: tuple[float, ...], shapes: _Shapes) -> None:
        """Write the signs of the directions with these numbers, and `amounts`, into the tensors that `signs` and
        `amounts` returned for as many directions.

        CUDA graphs that were recorded with these tensors then compute with these directions. Where `amounts` is empty,
        the amounts stay as they are. `shapes` are the shapes of all parameters.
        """
        for what, dtype, device in tuple(self._kept.setdefault(len(numbers), _Kept()).tensors):
            if what == "signs":
                self.signs(numbers, shapes, dtype, device)
            elif amounts and what != "scaled":
                self.amounts(amounts, what == "matrix", dtype, device)

    def _table(self, scale: float, dtype: torch.dtype, device: torch.device) -> Any:
        # The coordinates, times `scale` and rounded to `dtype`, that random bits stand for: an array for a CPU, else a
        # tensor. For random signs row b has the eight signs that the bits of byte b stand for, shape (256, 8); for the
        # other laws entry i is what the 16-bit number i stands for, shape (65536,). The last few tables are kept.
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


def _powers(shape: Shape | None, rank: int) -> list[tuple[Tensor, Tensor]]:
    # The powers of 2 by which a shape (`optim.shape`) multiplies the coordinates or signs of directions. For a law
    # without rank (0) there is a pair of vectors for each parameter: the powers of its rows and of its columns, [1] for
    # a vector. For a low-rank law there is one pair: the powers of all signs, in the parameters' order, and [1].
    pairs = [] if shape is None else list(shape.exponents.values())
    if rank and pairs:
        dealt = [np.concatenate([np.tile(part, rank) for part in pair]) if len(pair[1]) else pair[0] for pair in pairs]
        pairs = [(np.concatenate(dealt), dealt[0][:0])]
    one = torch.ones(1)
    return [(torch.from_numpy(2.0**r).float(), torch.from_numpy(2.0**c).float() if len(c) else one) for r, c in pairs]


def blocks(rows: int, device: torch.device, width: int = 1) -> Iterator[tuple[int, int]]:
    """Yield pairs (first row, number of rows) that cut `rows` rows of `width` coordinates each into consecutive blocks.

    A block has at most 2^17 coordinates on a CPU and 2^24 on another device, but at least one row.
    """
    largest = max(1, (_CPU_CHUNK if device.type == "cpu" else _GPU_CHUNK) // max(1, width))
    for first in range(0, rows, largest):
        yield first, min(largest, rows - first)


@lru_cache(maxsize=8)
def _on_a_grid(amounts: tuple[float, ...], rank: int, dtype: torch.dtype) -> list[float]:
    largest = max(map(abs, amounts))
    if largest == 0 or not math.isfinite(largest):
        return list(amounts)
    # Each amount occurs `rank` times in a sum, so sums of all amounts with any signs are exact in `dtype` if they are
    # multiples of this power of two. If an amount is not finite, they stay as they are.
    bits = (53 if dtype == torch.float64 else 24) - (rank * len(amounts) - 1).bit_length()
    grid = math.ldexp(1.0, math.frexp(largest)[1] - bits)
    return [round(amount / grid) * grid for amount in amounts]


@contextmanager
def whole_products() -> Iterator[None]:
    """A context manager in whose block float32 matrix products are computed in full float32.

    TF32 or bfloat16, which a process may allow, would leave about three digits. The setting is the whole process's
    (torch's float32_matmul_precision), and is put back. Autocast is not turned off.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
