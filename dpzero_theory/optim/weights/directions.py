"""The random directions u_0, u_1, ... of a training run, computed from the run's public key wherever they are needed.

A direction is a vector with one coordinate for each of the d trained weights. Directions are public, as they depend on
the key alone. They are not stored, since any of their coordinates can be computed again, in any order. Their source is
the counter-based generator Philox4x64-10 (Salmon et al., SC 2011). Under a key of two 64-bit integers it maps a counter
of four to four 64-bit words. Word j for the trained parameter p in direction t (all counted from 0) is entry j % 4 of
the words for the counter (1 + j // 4, p, t, 0).

    name        coordinate i of a parameter                          distribution
    rademacher  bit i % 64 of word i // 64, as -1 or +1              independent signs, on the sphere sqrt(d) S^{d-1}
    gaussian    entry q of a table of 65,536 normal quantiles        independent, N(0, 1) to 16 bits
                (module `sphere`), q the 16-bit part i % 4 of
                word i // 4, lowest bits first
    sphere      gaussian coordinates g times sqrt(d)/||g||           uniform on sqrt(d) S^{d-1} to the same resolution
    low-rank    of a matrix, entry (i, j) of rho^(-1/2) times the    products of independent signs; a vector has
                sum over r of a_r[i] b_r[j]                          independent signs

rho is the RANK in `low-rank:RANK`. The signs of such a direction are the first coordinates that `rademacher` gives
parameter 0. They are dealt out to the parameters in order: to a matrix a_1, ..., a_rho and then b_1, ..., b_rho. A
parameter of two or more axes counts as a matrix of shape (first axis, product of the others).

A run may have a `Shape` (`optim.shape`), which makes directions longer along some weights: every coordinate, or sign of
a low-rank direction, is then multiplied by a power of 2, and the whole direction by the number `Shape.scale`.

A coordinate is looked up in a table and multiplied by a number with one rounding, so it has the same bits on every
device. Sums over low-rank directions are matrix products, which kernels add up in different orders; `Directions.sum`
rounds their factors so that every partial sum is exact.
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
"""The most coordinates that are computed at a time, so few that they fit into a CPU's cache, or into a GPU."""
_NO_WORDS: dict[str, Any] = {"buffer": np.zeros(4, np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
"""The part of the state of a numpy Philox generator that says that no word of the current counter is left over."""
_NUMPY: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}
_MANY = 64
"""A sum of float32 with more terms than this is computed in float64 and rounded once."""

WIDE = {torch.float64: torch.float64}
"""The type in which changes are added to weights, by the type of the weights. It is float32 for types that are not
listed. The sum is then rounded once to the type of the weights."""
_Shapes = tuple[tuple[int, ...], ...]
"""The shapes of all trained parameters, in the order of their indices."""
_Factors = tuple[Tensor, Tensor | None]
"""Factors of P low-rank directions: (P, rank, rows) and (P, rank, columns) of a matrix, or (P, entries) and None."""


@lru_cache(maxsize=8)
def _lengths(shapes: _Shapes, rank: int) -> list[int]:
    # How many signs of a low-rank direction belong to each parameter, in the order of `Directions.signs`: for a matrix
    # those of its rows and those of its columns, for a vector those of its entries and 0
    found = []
    for shape in shapes:
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape), 0)
        found += [rank * rows, rank * columns] if columns else [rows, 0]
    return found


def _dealt(first: Tensor, second: Tensor, shapes: _Shapes, rank: int) -> list[_Factors]:
    # Cuts the signs of P directions into those of each parameter. `first` and `second` both have all signs, shape (P,
    # signs); one of the two may be multiplied by a number for each direction. A matrix gets the signs of its rows from
    # `first`, a view of shape (P, rank, rows), and those of its columns from `second`, shape (P, rank, columns). A
    # vector gets its signs from `first`, shape (P, entries), and None.
    lengths, split = _lengths(shapes, rank), (len(first), rank, -1)
    return [
        (a.view(split), b.view(split)) if b.numel() else (a, None)
        for a, b in zip(torch.split(first, lengths, 1)[::2], torch.split(second, lengths, 1)[1::2], strict=True)
    ]


# Tensors that are allocated once for P low-rank directions and then overwritten, so that CUDA graphs which read them
# can be replayed for P other directions. They hold the directions' signs, and the amounts that multiply the directions.
class _Kept:
    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()  # The indices of the P directions in the run
        self.amounts: tuple[float, ...] = ()  # The factors of the P directions in a move of the weights
        # The tensors by (content, type, device). Contents are "signs", of the P directions; "scaled", each direction's
        # signs times the shift of the weights along it; and the directions' factors in a move of the weights, as
        # "vector" for vectors, and as "matrix", divided by the square root of the rank, for matrices
        self.tensors: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self.written: set[tuple[str, torch.dtype, torch.device]] = set()  # The keys of up-to-date tensors
        # Each parameter's signs, as views of two of the tensors; by the ids of these two and of the parameters' shapes
        self.views: dict[Any, Any] = {}

    def fresh(self, what: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, bool]:
        # Returns the tensor with the content `what`, such as "signs", newly allocated if there is none of this shape,
        # type and device; and whether the caller must write its values because they are out of date.
        name = what, dtype, device
        if name not in self.tensors or self.tensors[name].shape != shape:
            self.tensors[name] = torch.empty(shape, dtype=dtype, device=device)
            self.written.discard(name)
        new = name not in self.written
        self.written.add(name)
        return self.tensors[name], new


class Directions:
    """Computes the random directions u_0, u_1, ... of one training run.

    A direction is u = f * self.scale * v. Methods compute v, a vector of random coordinates, times powers of 2 if there
    is a shape; the caller multiplies by the two factors. f is the result of the method `factor`, which is 1 except with
    "sphere", and the attribute `scale` is 1 without a shape. If a step has K directions, its direction k has the number
    t K + k, where t is the index of the step.

    Args:
        key: the run's public key, an integer in [0, 2^128) or 16 bytes (little-endian).
        direction: the name of a distribution in `sphere.DIRECTIONS`, such as "rademacher" or "low-rank:4".
        shape: a text, returned by `losses.shaping.public_shape`, that makes directions longer along some weights than
            along others; "" for directions with E[u u^T] = I.

    Attributes:
        key: the key as an integer.
        law: the distribution of the directions, a `sphere.DirectionLaw`.
        shape: the argument `shape` as a `Shape`; None if it is "".
        scale: the number by which the shape multiplies all coordinates; 1 without a shape.

    Raises:
        ValueError: `key`, `direction` or `shape` is not as described, or there is a shape with the direction "sphere".
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
        # One look-up by a byte gives eight random signs; the lowest bit of the byte is the first sign
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
        """Return the random 64-bit words `start` to `start` + `count` - 1 of one trained parameter for one direction.

        `number` is the index of the direction in the run, and `parameter` that of the parameter. With random signs
        ("rademacher" and low-rank directions) a word gives 64 coordinates, one for each bit; with other directions it
        gives 4, one for each 16 bits. The lowest bits come first.
        """
        self._counter[:] = start // 4, parameter, number, 0
        self._generator.state = self._state
        if start % 4:
            self._generator.random_raw(start % 4, output=False)
        found: NDArray[np.uint64] = self._generator.random_raw(count)
        return found

    def factor(self, number: int, sizes: tuple[int, ...], device: torch.device = _CPU) -> float:
        """Return f, by which the vector v of `coordinates` is multiplied: the direction `number` is f * self.scale * v.

        With "sphere" f is sqrt(d)/||v||, with the same bits on every device; to find ||v||, all coordinates are
        computed on `device`. With all other directions it is 1. `sizes` has the number of coordinates of each trained
        parameter, whose sum is d. The last result is cached.
        """
        if not self.law.normalised:
            return 1.0
        if self._factor is None or self._factor[:2] != (number, sizes):
            # All values are multiples of `grid`. In units of it their squares are integers, whose sums are exact
            grid = GRID * float(np.gcd.reduce((self._values / GRID).astype(np.int64)))
            sums = [
                self.coordinates(number, parameter, start, count, 1 / grid, torch.float64, device).square().sum()
                for parameter, size in enumerate(sizes)
                for start, count in blocks(size, device)
            ]
            squared_norm = sum(map(int, torch.stack(sums).tolist()))  # One transfer from the GPU for all blocks
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
        """Return coordinates of `scale` * v, where v is the direction u with the index `number` without two factors.

        The direction is u = f * self.scale * v, where f is the result of `factor`. To get amount * u, pass amount * f *
        self.scale as `scale`. Not for low-rank directions.

        Args:
            number: the index of the direction in the run.
            parameter: the index of a trained parameter.
            start, count: which of the parameter's coordinates, in row-major order: `start` to `start` + `count` - 1.
            scale: a factor; each product is rounded once.
            dtype: float32 or float64.

        Returns:
            A tensor of shape (count,) on `device`.
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
        """Return source + `scale` * v, where v is the direction u with the index `number` without two factors.

        The direction is u = f * self.scale * v, where f is the result of `factor`. To get source + amount * u, pass
        amount * f * self.scale as `scale`. The sum is computed in float32 (for float64 in float64), and rounded once to
        the type of `source`. Not for low-rank directions.

        Args:
            source: a contiguous tensor with consecutive coordinates, from index `start` on, of a trained parameter.
            number: the index of the direction in the run.
            parameter: the index of the trained parameter.
            out: a contiguous tensor for the result, such as `source` itself; None for a new one.
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
        """Return the sum of amount * v over several directions u = f * self.scale * v, for some rows of one trained
        parameter. f is the result of `factor`. To get the sum of amount * u, pass amount * f * self.scale as amounts.

        Low-rank sums are matrix products with the same bits on every device: the amounts are first rounded to multiples
        of a power of two, so that every partial sum is exact. With K pairs and rank rho, 24 - log2(K rho) bits of the
        largest amount remain, or 53 - log2(K rho) if `dtype` is float64 or K rho > 64, since the sum is then computed
        in float64. For low-rank directions call this method inside `whole_products` and without autocast. Other sums
        are computed in `dtype`, in the order given.

        Args:
            amounts: pairs (index of a direction in the run, amount), at least one.
            parameter: the index of the parameter.
            shapes: the shapes of all trained parameters.
            first, last: the rows `first` to `last` - 1 are computed, indices along the parameter's first axis.
            dtype, device: the type of the result, float32 or float64, and its device.

        Returns:
            With low-rank directions and a parameter of two or more axes a tensor of shape (rows, product of the other
            axes), otherwise a vector of the rows' coordinates.
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
        """Return the signs of which the P low-rank directions `numbers` are made for one trained parameter.

        A direction is u = self.scale * v. If the parameter has two or more axes, it counts as a matrix of shape (first
        axis, product of the others), and v is rho^(-1/2) times the sum of rho outer products a_r b_r^T, where rho is
        the rank. The result has the vectors a_r, shape (P, rho, rows), and b_r, shape (P, rho, columns). Otherwise v is
        one vector of signs, and the result has these, shape (P, entries), and None. If `self.shape` is not None, a sign
        is multiplied by the power of 2 of its row, column or entry. The result is views of what `signs` returns.
        `parameter` is the index of the parameter, and `shapes` has the shapes of all of them.
        """
        signs = self.signs(numbers, shapes, dtype, device)
        return self._views(signs, signs, shapes)[parameter]

    def scaled(
        self, numbers: tuple[int, ...], scale: Tensor, shapes: _Shapes, dtype: torch.dtype, device: torch.device
    ) -> list[_Factors]:
        """Return two factors of scale[i] * v_i for each trained parameter, where u_i = self.scale * v_i is the i-th of
        the P low-rank directions `numbers`. To get factors of amount * u_i, pass amount * self.scale as scale[i].

        If a parameter has two or more axes, it counts as a matrix of shape (first axis, product of the others). Its
        factors have the shapes (P, rho, rows) and (P, rho, columns), where rho is the rank; the sum over rho of their
        outer products is scale[i] * v_i. Otherwise the first factor is scale[i] * v_i itself, shape (P, entries), and
        the second is None. `shapes` has the shapes of all parameters. Unless `scale`, shape (P,), is a dual number, the
        next call for P directions overwrites the result.
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
        # Returns each parameter's factors, views of the signs in two tensors of `_Kept`; cached, since views take long.
        kept = self._kept[len(first)].views
        name = id(first), id(second), id(shapes)  # The entry keeps the objects, so their ids stay theirs
        if name not in kept:
            kept[name] = first, second, shapes, _dealt(first, second, shapes, self.law.rank)
        found: list[_Factors] = kept[name][3]
        return found

    def signs(
        self, numbers: tuple[int, ...], shapes: _Shapes, dtype: torch.dtype = torch.float32, device: torch.device = _CPU
    ) -> Tensor:
        """Return the random signs of which the low-rank directions `numbers` are made, shape (directions, signs).

        A row has the signs for one trained parameter after another: rho * rows and then rho * columns signs for a
        matrix, where rho is the rank, and one sign for each entry of a vector. `shapes` has the shapes of all
        parameters. If `self.shape` is not None, a sign is multiplied by the power of 2 of its row, column or entry. The
        next call for as many directions, with this type and device, overwrites the result.
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
        """Return `count` signs of the low-rank direction with the index `number` in the run, from sign `start` on, as
        bits in ceil(count/8) bytes.

        Signs have the indices of a row of `signs`. The lowest bit of byte 0 is the sign `start`; 1 means +1 and 0 means
        -1, whatever `self.shape` is. Unused bits of the last byte are 0. `start` and `count` are integers >= 0.
        """
        words = self.words(number, 0, start // 64, -(-(count + start % 64) // 64))
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[start % 64 :]
        return np.packbits(bits[:count], bitorder="little")

    def place(self, parameter: int, shapes: _Shapes) -> int:
        """Return the index of the first sign that is for the trained parameter with the index `parameter`, in a row of
        the tensor that `signs` returns for parameters of these shapes."""
        return sum(_lengths(shapes, self.law.rank)[: 2 * parameter])

    def amounts(self, amounts: tuple[float, ...], matrix: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the K numbers `amounts`, by which directions are multiplied, as a tensor of shape (K,), rounded.

        If `matrix` is True (for a parameter that is a matrix), they are first divided by the square root of the
        directions' rank rho. Then they are rounded to multiples of 2^-b times the smallest power of two above the
        largest of them, where b is 24 (53 with float64) less log2(K rho) rounded up, so that sums of them with any
        signs are exact. The next call for K amounts, with the same `matrix`, type and device, overwrites the result.
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
        """Overwrite, on all devices, the tensors that `signs` and `amounts` have returned for len(numbers) directions.

        A CUDA graph that reads those tensors then computes with the directions `numbers` and the new `amounts`. If
        `amounts` is empty, the amounts stay as they are. `shapes` has the shapes of all trained parameters.
        """
        for what, dtype, device in tuple(self._kept.setdefault(len(numbers), _Kept()).tensors):
            if what == "signs":
                self.signs(numbers, shapes, dtype, device)
            elif amounts and what != "scaled":
                self.amounts(amounts, what == "matrix", dtype, device)

    def _table(self, scale: float, dtype: torch.dtype, device: torch.device) -> Any:
        # Returns the table from random bits to coordinates times `scale`, rounded to `dtype`: an array for a CPU, else
        # a tensor. For random signs row b has the eight signs of the bits of byte b, shape (256, 8). For other
        # directions entry i belongs to the 16-bit number i, shape (65536,). Up to eight tables are cached.
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
    # The powers of 2 by which a shape (`optim.shape`) multiplies coordinates or signs. With `rank` 0 there is a pair of
    # tensors for each parameter: the powers of its rows, and those of its columns ([1] for a vector). For low-rank
    # directions there is one pair: the powers of all signs, in the order of `Directions.signs`, and [1].
    pairs = [] if shape is None else list(shape.exponents.values())
    if rank and pairs:
        dealt = [np.concatenate([np.tile(part, rank) for part in pair]) if len(pair[1]) else pair[0] for pair in pairs]
        pairs = [(np.concatenate(dealt), dealt[0][:0])]
    one = torch.ones(1)
    return [(torch.from_numpy(2.0**r).float(), torch.from_numpy(2.0**c).float() if len(c) else one) for r, c in pairs]


def blocks(rows: int, device: torch.device, width: int = 1) -> Iterator[tuple[int, int]]:
    """Yield pairs (first row, number of rows) that divide `rows` rows of `width` coordinates into blocks.

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
    # Each amount occurs `rank` times in a sum. If all amounts are multiples of the power of two `grid`, every sum of
    # them with any signs is exact in `dtype`.
    bits = (53 if dtype == torch.float64 else 24) - (rank * len(amounts) - 1).bit_length()
    grid = math.ldexp(1.0, math.frexp(largest)[1] - bits)
    return [round(amount / grid) * grid for amount in amounts]


@contextmanager
def whole_products() -> Iterator[None]:
    """A context manager in whose block float32 matrix products are computed in full float32 precision.

    It changes torch's float32_matmul_precision, which would allow TF32 or bfloat16, for the whole process, and restores
    it at the end. It does not turn off autocast.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
