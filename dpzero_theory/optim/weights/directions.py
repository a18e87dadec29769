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

A coordinate is looked up in a table by bits of a word, and multiplied by the scale with one rounding. So not only the
words but the floating-point directions have the same bits on every processor and device.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzero_theory.sphere import DIRECTIONS, GRID

_CPU_CHUNK, _GPU_CHUNK = 1 << 17, 1 << 24
"""How many coordinates are made at a time on a CPU, few enough to stay in its cache, and on a GPU, few enough to take
little of its memory."""
_TOGETHER = 1 << 28
"""One launch of a CUDA kernel adds to several tensors only if they have at most this many coordinates in all."""
_CPU = torch.device("cpu")
_NO_WORDS: dict[str, Any] = {"buffer": np.zeros(4, np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
"""The part of a numpy generator's state which says that the next word is the first one of the next counter."""
Source = tuple[Tensor, int, int]
"""A tensor of weights, the index of their parameter, and the first coordinate of the parameter that it holds."""
_NUMPY: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}


@lru_cache(maxsize=1)
def _triton() -> ModuleType | None:
    try:
        return import_module("dpzero_theory.optim.weights.philox_triton")
    except ImportError:
        return None


def _kernels(device: torch.device) -> ModuleType | None:
    """Return the module `philox_triton`, whose kernels make directions on this device, or None where they are made on
    the CPU and copied: always for a CPU, and where the kernels do not run."""
    return _that_run(device) if device.type == "cuda" else None


@cache
def _that_run(device: torch.device) -> ModuleType | None:
    """Return the CUDA kernels if they make the same words on the device as the CPU does, else None after a warning.

    Triton needs a C compiler besides the card, and not every machine with a card has one.
    """
    kernels, expected = _triton(), Directions(1, "gaussian").words(2, 3, 4, 100).view(np.int64)
    why = "Triton is not installed"
    if kernels is not None:
        try:
            found = kernels.words(1, 2, 3, 4, 100, 0, device).cpu().numpy()
            if (found == expected).all():
                return kernels
            why = "its words are not those of the CPU"
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
    warnings.warn(f"directions are made on the CPU and copied to {device}, which is slow: {why}", stacklevel=3)
    return None


def _by_byte(pair: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each of the 256 bytes, the values that its eight bits stand for, low bit first: shape (256, 8).

    pair: the value that a bit 0 stands for, and the one that a bit 1 stands for.
    """
    return pair[np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")]


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums with weights of the given type are formed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _in_groups(sources: Iterable[Source]) -> Iterator[list[Source]]:
    """Yield the sources in groups of at most `_TOGETHER` coordinates, or of one source."""
    group: list[Source] = []
    taken = 0
    for source in sources:
        taken += source[0].numel()
        if group and taken > _TOGETHER:
            yield group
            group, taken = [], source[0].numel()
        group.append(source)
    if group:
        yield group


class Directions:
    """Computes the random directions u_0, u_1, ... of one run, block by block.

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
        self._fields = _by_byte(self._values) if bits == 1 else self._values
        self._per_word = 64 // bits
        self._field = np.dtype(np.uint8 if bits == 1 else np.uint16)
        self._idle: list[np.random.Philox] = []
        self._counter = np.zeros(4, np.uint64)
        counted = {"counter": self._counter, "key": self._key}
        self._state: Any = {"bit_generator": "Philox", "state": counted, **_NO_WORDS}
        self._spare: list[NDArray[np.uint8]] = []  # memory to use again: fresh memory takes as long as filling it
        self._squared_norm: tuple[int, tuple[int, ...], int] | None = None
        self._tables: dict[tuple[float, torch.dtype], NDArray[Any]] = {}
        self._device_values: dict[torch.device, Tensor] = {}
        self._device_tables: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}

    def words(self, number: int, parameter: int, start: int, count: int) -> NDArray[np.uint64]:
        """Return the 64-bit random words (not the coordinates) start, ..., start + count - 1 of one parameter.

        Args:
            number: the direction's number.
            parameter: the parameter's index.
        """
        generator = self._generator(number, parameter, start)
        words: NDArray[np.uint64] = generator.random_raw(count)
        self._idle.append(generator)
        return words

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
                values.square().to(torch.int64).sum()
                for parameter, size in enumerate(sizes)
                for _, values in self.blocks(number, parameter, 0, size, 1 / self._grid, torch.float64, device)
            ]
            self._squared_norm = number, sizes, sum(torch.stack(sums).tolist())  # one transfer from a GPU
        return self._squared_norm[2]

    def integers(self, number: int, parameter: int, start: int, count: int) -> NDArray[np.int64]:
        """Return coordinates start, ..., start + count - 1 of v, a vector of integers along the direction u.

        v is g, which is u but for the sphere's factor (`factor`), in units of the largest number of which all values of
        the law's table are multiples: u itself for signs, 2^16 u for Gaussian directions, and 2^16 g for those on the
        sphere.

        Args:
            number: the direction's number.
            parameter: the parameter's index.
        """
        found = np.empty(count, np.int64)
        for here, values in self._blocks_on_cpu(number, parameter, start, count, 1 / self._grid, torch.float64):
            found[here] = values
        return found

    @property
    def largest(self) -> int:
        """The largest magnitude that a coordinate of `integers` can have."""
        return int(np.abs(self._integers).max())

    def blocks(
        self,
        number: int,
        parameter: int,
        start: int,
        count: int,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device = _CPU,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield the vector scale u[start : start + count] in pieces, each as a pair (its slice of the vector, values).

        u is the part of direction `number` that belongs to the parameter with this index. Each coordinate is rounded
        once to dtype, float32 or float64. The values of a piece, on `device`, are valid until the next one is asked
        for.
        """
        kernels = _kernels(device)
        if kernels is not None:
            table = self._table(scale, dtype, device)
            for done in range(0, count, _GPU_CHUNK):
                values = torch.empty(min(_GPU_CHUNK, count - done), dtype=dtype, device=device)
                kernels.shift(values, self.key, number, parameter, table, start + done)
                yield slice(done, done + values.numel()), values
            return
        for here, found in self._blocks_on_cpu(number, parameter, start, count, scale, dtype):
            yield here, torch.from_numpy(found).to(device)

    def _blocks_on_cpu(
        self, number: int, parameter: int, start: int, count: int, scale: float, dtype: torch.dtype
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        products = self._products(scale, dtype)
        skipped, done = start % self._per_word, 0
        words = -(-min(count + skipped, _CPU_CHUNK) // self._per_word)
        size = words * self._per_word * products.itemsize
        memory = self._spare.pop() if self._spare else np.empty(0, np.uint8)
        if memory.size < size:
            memory = np.empty(size, np.uint8)
        flat = memory[:size].view(products.dtype)
        fields = flat.reshape(-1, *products.shape[1:])
        generator = self._generator(number, parameter, start // self._per_word)
        while done < count:
            length = min(count - done, flat.size - skipped)
            words = -(-(length + skipped) // self._per_word)
            which: Any = generator.random_raw(words).view(self._field)
            products.take(which, axis=0, out=fields[: which.size], mode="clip")
            yield slice(done, done + length), flat[skipped : skipped + length]
            done, skipped = done + length, 0
        self._idle.append(generator)
        self._spare.append(memory)

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

        The bits are those that `blocks` gives.

        Args:
            number: the direction's number.
            parameter: the parameter's index.
            rows: the numbers of the rows, integers of shape (m,), ascending for speed; the result is on their device.
            dtype: of the result, float32 or float64.
        """
        kernels = _kernels(rows.device)
        if kernels is not None:
            out = torch.empty((len(rows), width), dtype=dtype, device=rows.device)
            kernels.shift(out, self.key, number, parameter, self._table(scale, dtype, rows.device), 0, rows=rows)
            return out
        products = self._products(scale, dtype)
        per_block, block = 4 * self._per_word, 0
        blocks = -(-width // per_block) + (width % per_block > 0)
        words = np.empty((len(rows), 4 * blocks), np.uint64)
        starts = rows.cpu().numpy() * width
        generator = self._generator(number, parameter, 0)
        for row, start in enumerate(starts):
            generator.advance(int(start // per_block) - block)
            words[row] = generator.random_raw(4 * blocks)
            block = int(start // per_block) + blocks
        self._idle.append(generator)
        values = np.take(products, words.view(self._field), axis=0, mode="clip").reshape(len(starts), -1)
        skipped = starts % per_block
        if skipped.any():
            values = np.take_along_axis(values, skipped[:, None] + np.arange(width), axis=1)
        return torch.from_numpy(np.ascontiguousarray(values[:, :width])).to(rows.device)

    def fill_(self, out: Tensor, number: int, parameter: int, start: int = 0, scale: float = 1.0) -> Tensor:
        """Fill `out` with scale u[start : start + out.numel()], rounded to out's type, and return it.

        u is the part of direction `number` that belongs to the parameter with this index.
        """
        return self.shift(torch.zeros_like(out), number, parameter, scale, start, out=out)

    def add_(self, target: Tensor, number: int, parameter: int, scale: float, start: int = 0) -> Tensor:
        """Add scale u[start : start + target.numel()] to `target`, rounded to nearest in its type, and return it.

        u is the part of direction `number` that belongs to the parameter with this index.
        """
        return self.shift(target, number, parameter, scale, start, out=target)

    def shift(
        self, source: Tensor, number: int, parameter: int, scale: float, start: int = 0, out: Tensor | None = None
    ) -> Tensor:
        """Return source + scale u[start : start + source.numel()], in the shape and type of `source`.

        u is the part of direction `number` that belongs to the parameter with this index.

        The sum is formed in float32 (float64 for float64) and rounded once to nearest. Temporary memory is at most one
        piece of `blocks`; where `source` or `out` is not contiguous, as much as `source`.

        Args:
            out: the tensor to write the result to, which may be `source`; a new one if None.
        """
        result = torch.empty_like(source) if out is None else out
        if not (source.is_contiguous() and result.is_contiguous()):
            return result.copy_(self.shift(source.contiguous(), number, parameter, scale, start))
        inputs, outputs = source.detach().view(-1), result.detach().view(-1)
        kernels = _kernels(source.device)
        if kernels is None and source.device.type == "cpu" and source.dtype in _NUMPY:
            self.shift_array(inputs.numpy(), number, parameter, scale, start, outputs.numpy())
            return result
        summed = wide(source.dtype)
        if kernels is not None:
            table = self._table(scale, summed, source.device)
            kernels.shift(outputs, self.key, number, parameter, table, start, source=inputs)
            return result
        for here, values in self.blocks(number, parameter, start, source.numel(), scale, summed, source.device):
            torch.add(inputs[here], values, out=outputs[here])
        return result

    def launched(self, device: torch.device) -> bool:
        """Whether `shift_all` and `add_all_` make directions on this device by one launch of a CUDA kernel."""
        return _kernels(device) is not None

    def shift_all(self, sources: Sequence[Source], number: int, scale: float) -> list[Tensor]:
        """Return source + scale u for each of the sources, a vector for each, with the bits that `shift` gives.

        On CUDA one launch of a kernel makes all of them, in one allocation of memory.

        Args:
            number: the direction's number.
            sources: at least one, contiguous vectors of one type on one device.
        """
        first = sources[0][0]
        kernels = _kernels(first.device)
        if kernels is None:
            return [self.shift(source, number, parameter, scale, start) for source, parameter, start in sources]
        places = kernels.places(source.numel() for source, _, _ in sources)
        out = torch.empty(places[-1], dtype=first.dtype, device=first.device)
        kernels.shift_all(sources, self.key, number, self._table(scale, wide(first.dtype), first.device), out)
        return [out[place:][: source.numel()] for place, (source, _, _) in zip(places, sources, strict=False)]

    def add_all_(self, targets: Sequence[Source], number: int, scale: float) -> None:
        """Add scale u to each of the targets, with the bits that `add_` gives.

        On CUDA one launch of a kernel adds to all contiguous ones of a type, up to `_TOGETHER` coordinates.

        Args:
            number: the direction's number.
            targets: tensors of any types on any devices.
        """
        together: dict[tuple[torch.device, torch.dtype], list[Source]] = {}
        for target, parameter, start in targets:
            kernels = _kernels(target.device)
            if target.is_contiguous() and kernels is not None:
                together.setdefault((target.device, target.dtype), []).append((target, parameter, start))
            else:
                self.shift(target, number, parameter, scale, start, out=target)
        for (device, dtype), mine in together.items():
            table = self._table(scale, wide(dtype), device)
            for group in _in_groups(mine):
                kernels = _kernels(device)
                assert kernels is not None
                kernels.shift_all(group, self.key, number, table)

    def shift_array(
        self, source: NDArray[Any], number: int, parameter: int, scale: float, start: int, out: NDArray[Any]
    ) -> None:
        """Write source + scale u[start : start + n] to `out`: what `shift` does, in fewer calls.

        Args:
            source, out: arrays on the CPU, float32 or float64 of shape (n,).
            number: the direction's number.
            parameter: the parameter's index.
        """
        dtype = torch.float64 if source.dtype == np.float64 else torch.float32
        for here, found in self._blocks_on_cpu(number, parameter, start, source.size, scale, dtype):
            np.add(source[here], found, out=out[here])

    def _generator(self, number: int, parameter: int, start: int) -> np.random.Philox:
        """Return a generator whose next word is word `start` of the direction `number` and this parameter.

        Making a generator takes long, so callers put it back into `_idle`, from where the next call takes it.
        """
        generator = self._idle.pop() if self._idle else np.random.Philox(key=self._key)
        self._counter[:] = start // 4, parameter, number, 0
        generator.state = self._state
        if start % 4:
            generator.random_raw(start % 4, output=False)
        return generator

    def _products(self, scale: float, dtype: torch.dtype) -> NDArray[Any]:
        """Return the table from a field of a word to the coordinates that it stands for, times `scale`, in `dtype`.

        A field is a byte (eight signs) for random signs and 16 bits for the other laws. The last few tables are kept.
        """
        found = self._tables.get((scale, dtype))
        if found is None:
            if len(self._tables) >= 8:
                self._tables.clear()
            with np.errstate(over="ignore"):
                found = self._tables[scale, dtype] = (scale * self._fields).astype(_NUMPY[dtype])
        return found

    def _table(self, scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the table of coordinates times `scale`, on `device`, for the CUDA kernels; the last few are kept.

        It differs from the table of `_products` for random signs: the kernels look up single bits, the CPU whole bytes.
        """
        found = self._device_tables.get((scale, dtype, device))
        if found is None:
            if len(self._device_tables) >= 8:
                self._device_tables.clear()
            if device not in self._device_values:
                self._device_values[device] = torch.tensor(self._values).to(device)
            found = self._device_tables[scale, dtype, device] = (scale * self._device_values[device]).to(dtype)
        return found
