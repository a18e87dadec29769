"""Directions on CUDA: kernels that make the words of `weights.directions` and the coordinates in one pass.

Counters and keys are those of `directions.Directions`, so the words have the same bits. Coordinates come from the same
table of products, and the sum with the weights is one rounded operation, so the results have the same bits too.
Importing this module needs Triton.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS = {1: 16, 16: 256}
"""How many Philox blocks (of four words) one program makes, by the bits of a field: in either case 4,096 fields."""
_ALIGNED = 128
"""The results of `shift_all` begin at multiples of this number of elements, as matrix products want it."""
_NUMBERS = ["start", "count", "width", "parameter", "number", "domain", "key0", "key1"]
"""Arguments for whose values Triton must not compile kernels of their own, as it would do in the middle of a run."""


@triton.jit
def _philox(block, parameter, number, domain, key0, key1):  # type: ignore[no-untyped-def]
    """Return the four words that Philox4x64-10 gives for each counter (block, parameter, number, domain).

    key0, key1: the low and the high 64 bits of the run key.
    """
    c0 = block.to(tl.uint64)
    c1 = tl.zeros_like(c0) + parameter
    c2 = tl.zeros_like(c0) + number
    c3 = tl.zeros_like(c0) + domain
    k0 = tl.zeros_like(c0) + key0
    k1 = tl.zeros_like(c0) + key1
    m0 = tl.full(c0.shape, 0xD2E7470EE14C6C93, tl.uint64)
    m1 = tl.full(c0.shape, 0xCA5A826395121157, tl.uint64)
    w0 = tl.full(c0.shape, 0x9E3779B97F4A7C15, tl.uint64)
    w1 = tl.full(c0.shape, 0xBB67AE8584CAA73B, tl.uint64)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(m0, c0), m0 * c0
        high1, low1 = tl.umulhi(m1, c2), m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + w0, k1 + w1
    return c0, c1, c2, c3


@triton.jit
def _in_order(c0, c1, c2, c3):  # type: ignore[no-untyped-def]
    """Return the words in one vector, block after block; c0, ..., c3: the first to fourth word of each block."""
    return tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), (c0.shape[0] * 4,))


@triton.jit
def _halves(words):  # type: ignore[no-untyped-def]
    """Return the low and the high 32 bits of each of the 64-bit `words`, one after the other, as a vector twice as
    long."""
    return tl.reshape(tl.join(words.to(tl.uint32), (words >> 32).to(tl.uint32)), (words.shape[0] * 2,))


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _words_kernel(  # type: ignore[no-untyped-def]
    out,
    start: tl.int64,
    count: tl.int64,
    parameter: tl.uint64,
    number: tl.uint64,
    domain: tl.uint64,
    key0: tl.uint64,
    key1: tl.uint64,
    BLOCKS: tl.constexpr,
):
    """Write random words to `out`: out[i] <- word start + i of a direction's parameter, for 0 <= i < count.

    start, count: which words. BLOCKS: how many blocks of four words one program makes. The other arguments are those of
    `_philox`.
    """
    first = start.to(tl.int64) // 4 + tl.program_id(0).to(tl.int64) * BLOCKS
    blocks = first + tl.arange(0, BLOCKS)
    words = _in_order(*_philox(blocks + 1, parameter, number, domain, key0, key1))
    place = first * 4 - start + tl.arange(0, BLOCKS * 4)
    tl.store(out + place, words.to(tl.int64, bitcast=True), mask=(place >= 0) & (place < count))


@triton.jit  # type: ignore[untyped-decorator]
def _shift_piece(  # type: ignore[no-untyped-def]
    source,
    out,
    table,
    begin,
    count,
    piece,
    parameter,
    number,
    key0,
    key1,
    BITS: tl.constexpr,
    ADD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Do what `_shift_kernel` says for the piece with this number of a vector, with field `begin` as its first; a piece
    is what BLOCKS blocks of four words give.

    Places are counted from the piece's first field in 32-bit integers: 64 bits take more instructions.
    """
    FIELDS: tl.constexpr = 32 // BITS
    SIZE: tl.constexpr = BLOCKS * 8 * FIELDS
    first = begin // (8 * FIELDS) + piece * BLOCKS
    halves = _halves(_in_order(*_philox(first + tl.arange(0, BLOCKS) + 1, parameter, number, 0, key0, key1)))
    field = tl.arange(0, FIELDS)
    which = (halves[:, None] >> (field * BITS).to(tl.uint32)[None, :]) & ((1 << BITS) - 1)
    if BITS == 1:
        values = tl.where(which == 0, tl.load(table), tl.load(table + 1))
    else:
        values = tl.load(table + which.to(tl.int32))
    # the index, in the result, of the first field that this program makes; below 0 if its first block begins before
    # field `begin`, the first that is wanted
    ahead = first * (8 * FIELDS) - begin
    low = tl.maximum(-ahead, 0).to(tl.int32)
    high = tl.minimum(count - ahead, SIZE).to(tl.int32)
    local = tl.arange(0, BLOCKS * 8)[:, None] * FIELDS + field[None, :]
    mask = (local >= low) & (local < high)
    if ADD:
        values += tl.load(source + ahead + local, mask=mask, other=0.0).to(WIDE)
    tl.store(out + ahead + local, values.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _shift_kernel(  # type: ignore[no-untyped-def]
    source,
    out,
    rows,
    table,
    start: tl.int64,
    count: tl.int64,
    width: tl.int64,
    parameter: tl.uint64,
    number: tl.uint64,
    key0: tl.uint64,
    key1: tl.uint64,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Add a direction u to weights: out[i] <- source[i] + table[field start + i] for 0 <= i < count.

    A field is BITS bits of the random words, and the table has the coordinate of u for each value of a field. With ROWS
    this is done for each row of a matrix of `width` columns, with rows[program_id(0)] width as start. Without ADD there
    is no source. WIDE: the type in which the sum is formed. BLOCKS: how many blocks of four words one program
    makes. key0, key1, number and parameter are those of `_philox`.
    """
    begin = start.to(tl.int64)
    base = begin * 0
    piece = tl.program_id(0).to(tl.int64)
    if ROWS:
        row = tl.program_id(0)
        begin = tl.load(rows + row).to(tl.int64) * width
        base = row.to(tl.int64) * width
        piece = tl.program_id(1).to(tl.int64)
    _shift_piece(
        source + base, out + base, table, begin, count, piece, parameter, number, key0, key1, BITS, ADD, WIDE, BLOCKS
    )


@triton.jit(do_not_specialize=["number", "key0", "key1"])  # type: ignore[untyped-decorator]
def _shift_all_kernel(  # type: ignore[no-untyped-def]
    out,
    like,
    jobs,
    pieces,
    table,
    number: tl.uint64,
    key0: tl.uint64,
    key1: tl.uint64,
    BITS: tl.constexpr,
    IN_PLACE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Add a direction u to several vectors of weights: for job j, with the five integers (address, place, start, count,
    parameter) of jobs[j], target[i] <- source[i] + table[field start + i] for 0 <= i < count.

    The source is the memory at the address, of the type of `like`. The target is the source itself with IN_PLACE, and
    begins at out[place] without. pieces: for each program the number of its job and of its piece of the vector. The
    other arguments are those of `_shift_kernel`.
    """
    program = tl.program_id(0)
    job = jobs + 5 * tl.load(pieces + 2 * program)
    piece = tl.load(pieces + 2 * program + 1)
    source = tl.load(job).to(like.dtype)
    target = source
    if not IN_PLACE:
        target = out + tl.load(job + 1)
    begin, count, parameter = tl.load(job + 2), tl.load(job + 3), tl.load(job + 4).to(tl.uint64)
    _shift_piece(source, target, table, begin, count, piece, parameter, number, key0, key1, BITS, True, WIDE, BLOCKS)


def words(key: int, number: int, parameter: int, start: int, count: int, domain: int, device: torch.device) -> Tensor:
    """Return the random words start, ..., start + count - 1 of a parameter, as int64 of shape (count,) on `device`.

    They have the bits of `Directions.words`. key: the run key, an integer in [0, 2^128). number: of the direction.
    parameter: its index. domain: the last entry of the counter, 0 for directions.
    """
    out = torch.empty(count, dtype=torch.int64, device=device)
    blocks = _BLOCKS[16]
    grid = (triton.cdiv(start % 4 + count, 4 * blocks),)
    with _on(device):
        _words_kernel[grid](
            out, start, count, parameter, number, domain, key % 2**64, key >> 64, BLOCKS=blocks, enable_fp_fusion=False
        )
    return out


def shift(
    out: Tensor,
    key: int,
    number: int,
    parameter: int,
    table: Tensor,
    start: int,
    source: Tensor | None = None,
    rows: Tensor | None = None,
) -> None:
    """Add a direction to weights: out <- source + table[fields], rounded once; without source, out <- table[fields].

    Fields are the random bits of the words from which each coordinate comes.

    Args:
        out, source: contiguous, of equal shape.
        key: the run key, an integer in [0, 2^128).
        number, parameter: the number of the direction, and the index of the parameter.
        table: the products of the scale and the 2 signs or the 65,536 quantiles, float32 or float64.
        start: the first field of the parameter that is used.
        rows: if given, of shape (m,): the fields are those of these rows of a matrix as wide as out, (m, width).
    """
    bits = 1 if table.numel() == 2 else 16
    width = out.shape[1] if rows is not None else 0
    count = width if rows is not None else out.numel()
    fields = 4 * 64 // bits
    pieces = triton.cdiv(count + fields - 1, _BLOCKS[bits] * fields)
    grid = (pieces,) if rows is None else (len(rows), pieces)
    with _on(out.device):
        _shift_kernel[grid](
            out if source is None else source,
            out,
            out if rows is None else rows,
            table,
            start,
            count,
            width,
            parameter,
            number,
            key % 2**64,
            key >> 64,
            BITS=bits,
            ROWS=rows is not None,
            ADD=source is not None,
            WIDE=tl.float64 if table.dtype == torch.float64 else tl.float32,
            BLOCKS=_BLOCKS[bits],
            enable_fp_fusion=False,
        )


def shift_all(
    sources: Sequence[tuple[Tensor, int, int]], key: int, number: int, table: Tensor, out: Tensor | None = None
) -> None:
    """Add a direction to several vectors of weights by one launch, each as `shift` does with its source.

    Args:
        sources: triples (source, parameter, start), as `shift` takes them, at least one; all sources of one type, on
            one device.
        key, number, table: as in `shift`, for all of them.
        out: a vector of the sources' type that gets the results at the places that `places` gives; without it they take
            the place of the sources.
    """
    bits = 1 if table.numel() == 2 else 16
    device = sources[0][0].device
    named = tuple((source.data_ptr(), source.numel(), parameter, start) for source, parameter, start in sources)
    jobs, pieces = _jobs(named, bits, device)
    with _on(device):
        _shift_all_kernel[(len(pieces),)](
            table if out is None else out,
            sources[0][0],
            jobs,
            pieces,
            table,
            number,
            key % 2**64,
            key >> 64,
            BITS=bits,
            IN_PLACE=out is None,
            WIDE=tl.float64 if table.dtype == torch.float64 else tl.float32,
            BLOCKS=_BLOCKS[bits],
            enable_fp_fusion=False,
        )


def places(counts: Iterable[int]) -> list[int]:
    """Return where in one vector the results of `shift_all` begin, and last how long the vector must be. counts: the
    numbers of elements of the sources, in order. Each begins at a multiple of `_ALIGNED` elements."""
    return [0, *accumulate(triton.cdiv(count, _ALIGNED) * _ALIGNED for count in counts)]


@lru_cache(maxsize=1024)
def _jobs(named: tuple[tuple[int, int, int, int], ...], bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tensors `jobs` and `pieces` of `_shift_all_kernel`, on the device.

    named: for each job its source's address and number of elements, the parameter and the first field. bits: of a
    field. The last answers are kept, as a run asks for the same ones in each step.
    """
    table = np.array(named, np.int64)
    count, start = table[:, 1], table[:, 3]
    jobs = np.column_stack([table[:, 0], places(count.tolist())[:-1], start, count, table[:, 2]])
    fields = 4 * 64 // bits
    needed = -(-(start % fields + count) // (_BLOCKS[bits] * fields))
    job = np.repeat(np.arange(len(table)), needed)
    piece = np.arange(len(job)) - np.repeat(np.cumsum(needed) - needed, needed)
    pieces = np.column_stack([job, piece]).astype(np.int32)
    return torch.from_numpy(jobs).to(device), torch.from_numpy(pieces).to(device)


def _on(device: torch.device) -> Any:
    return torch.cuda.device(device if device.type == "cuda" else -1)
