"""A trace of an evaluation: its operations in order, their shapes, and what each of them gives every record.

Two evaluations with equal operations and shapes ran the same kernels. A kernel keeps records apart if a row of its
result has the same bits whatever the other rows hold, and wherever the row stands. `first_difference` looks whether
this was so, in every intermediate result and not in the losses alone: losses have so few bits that they hide most
differences.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.privacy.schedule import Indices

Digests = dict[tuple[int, bool] | None, NDArray[np.int64]]
"""Digests of an operation's result, for each way to assign parts of it to records one number for each record, and under
None one number for the whole result. A way is a pair (dimension, in turns), see `_digests`."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type with as many bytes as a number."""
_ODD = 0x9E3779B1
"""An odd factor that spreads the weights of `_digest` over 64 bits (2^32 over the golden ratio)."""


class Trace(TorchDispatchMode):
    """A context manager that records the operations on tensors inside it.

    Args:
        rows: the number of records of the batch, for digests of what each record gets; 0 for no digests.

    Attributes:
        operations: name, shapes and types of the results of each operation, in order.
        coarsest: the coarsest relative rounding of any operation: the largest distance from 1 to the next number, over
            all types that floating-point results had.
        reads: the first operation that hands a value to the program (as a number or a shape), after which what the
            program does may depend on values; empty if there was none.
    """

    def __init__(self, rows: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[str, ...]] = []
        self.coarsest = 0.0
        self.reads = ""
        self._rows = rows
        self._digests: list[tuple[str, Digests]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        self.operations.append((str(func), *map(_kind, found)))
        if not self.reads and _reads(func, args):
            self.reads = str(func)
        for tensor in found:
            if tensor.is_floating_point() or tensor.is_complex():
                self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps, _tensor_cores(func, tensor))
                if self._rows and _plain(tensor) and tensor.numel() and not func.is_view and "empty" not in str(func):
                    self._digests.append((str(func), dict(_digests(tensor.detach(), self._rows))))
        return result

    def first_difference(self, other: "Trace", here: Indices, there: Indices) -> str:
        """Return the name of the first operation that gave some records other bits than in another trace.

        A result passes if it agrees for any way of assigning its parts to records. It passes too if it is equal as a
        whole, since it may be a function of the weights alone.

        Args:
            other: the other trace.
            here, there: the places of the same records in this trace's batch and in the batch of `other`.

        Returns:
            The name; "" if there is none, and a sentence if the traces do not have the same operations.
        """
        if [name for name, _ in self._digests] != [name for name, _ in other._digests]:
            return "the operations are not the same"
        for (name, mine), (_, theirs) in zip(self._digests, other._digests, strict=True):
            ways = set(mine) & set(theirs) - {None}
            if len(mine) > 1 and not (
                np.array_equal(mine[None], theirs[None])
                or any(np.array_equal(mine[way][here], theirs[way][there]) for way in ways)
            ):
                return name
        return ""


def _plain(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own that holds its numbers; a derivative that is known to be 0 has none."""
    strided = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return strided and not (tensor.is_nested or tensor.is_meta or tensor._is_zerotensor())


def _kind(tensor: Tensor) -> str:
    return f"nested {tensor.numel()}" if tensor.is_nested else f"{tuple(tensor.shape)} {tensor.dtype}"


def _reads(func: Any, args: Any) -> bool:
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _tensor_cores(func: Any, tensor: Tensor) -> float:
    """Return the relative rounding that torch's settings for matrix products and convolutions allow in a result.

    It is 0 where they allow no coarser one than float32's, and for a result of another type. func: the operation.
    tensor: its result.
    """
    coarse = {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    if func is torch.ops.aten.convolution.default and tensor.is_cuda and torch.backends.cudnn.allow_tf32:
        coarse = max(coarse, 2.0**-10)
    return coarse if tensor.dtype == torch.float32 else 0.0


def _digests(tensor: Tensor, rows: int) -> Iterator[tuple[tuple[int, bool] | None, NDArray[np.int64]]]:
    """Yield digests of a result for each way in which `rows` records may lie in it, as pairs (way, digests).

    A way is a pair (dimension, in turns): along this dimension the entries of one record stand together (False), or
    those of all records take turns (True). The way None stands for the whole result, which gets one digest.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    yield None, _digest(tensor.reshape(1, -1))
    for axis, size in enumerate(tensor.shape):
        if size % rows == 0:
            first = tensor.movedim(axis, 0)
            yield (axis, False), _digest(first.reshape(rows, -1))
            if size > rows > 1:
                yield (axis, True), _digest(first.reshape(size // rows, rows, -1).movedim(1, 0).reshape(rows, -1))


def _digest(matrix: Tensor) -> NDArray[np.int64]:
    """Return a 64-bit number for each row of a matrix, a weighted sum of the bit patterns of the row's entries. Rows
    with equal numbers are taken to be equal."""
    bits = matrix.contiguous().view(_INTEGERS[matrix.element_size()])
    odd = torch.arange(1, 2 * bits.shape[1], 2, device=bits.device) * _ODD
    total: NDArray[np.int64] = (bits * odd.to(bits.dtype)).sum(dim=1, dtype=torch.int64).cpu().numpy()
    return total
