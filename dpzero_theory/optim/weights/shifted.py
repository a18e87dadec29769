"""Makes functions of torch compute with shifted weights x + shift u where they read trainable parameters x.

`Shifted` sees every function of torch that is called from Python. If a trainable parameter is among its arguments, the
function computes with the shifted parameter instead. The parameter itself is only read. There are two ways:

**Factored**, for a parameter W and a low-rank direction u = a b^T. A product h W^T becomes h W^T + shift (h b) a^T, and
embeddings, convolutions and normalisations are treated likewise, so that no shifted matrix is made. Several points W +
shift u can be evaluated in one pass over a batch that has one copy of its records for each point, and share the product
with W. The records must then be the first axis of all tensors; another layout is refused.

**Whole**, for everything else: the function gets a new tensor W + shift u, which is freed after the call. Memory grows
by the size of the largest parameter, and one point is evaluated at a time.

The derivative of the losses along u is their derivative by the shift at 0. It is computed by torch's forward-mode
differentiation, with a dual number as the shift.

Code that reads a parameter's memory in other ways (a view that was kept, a scripted module) would compute with x. In
the evaluations before a run begins, `Guard` sees every operation on tensors and refuses that.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dpzero_theory.optim.weights import packed
from dpzero_theory.optim.weights.directions import WIDE
from dpzero_theory.optim.weights.shards import is_sharded, piece

NONE = "difference must be 'forward' or 'central' for these losses"
"""The beginning of error messages for losses that have no derivative."""
_ONE = "points_at_once must be 1 for these losses"
"""The beginning of error messages for losses that cannot be evaluated at several points in one pass."""
_CONSTANT: tuple[Any, ...] = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
"""Functions whose result has the tensor's values but not its derivative."""
_SHAPE = {
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.__len__),
    *(Tensor.is_contiguous, Tensor.element_size, Tensor.is_floating_point, Tensor.is_complex, Tensor.storage_offset),
    *(Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.ndim.__get__),  # type: ignore[attr-defined]
}
"""Methods and attributes that return a tensor's shape, type or layout and read none of its values."""
_UNSAID = {
    functional.batch_norm,
    torch.batch_norm,
    torch.native_batch_norm,
    functional.instance_norm,
    torch.instance_norm,
}
"""Functions that may write the running statistics of batch normalisation without a change of `Tensor._version`."""
_BY_ENTRY = {
    *("mul", "__mul__", "__rmul__", "multiply", "add", "__add__", "__radd__", "sub", "__sub__", "__rsub__"),
    *("div", "__truediv__", "__rtruediv__"),
}
"""The names of functions of two tensors that work entry by entry."""
_ROWS_SHARE = 8
"""If an embedding on a CPU looks up at most one row for this many rows of its matrix, only these are shifted."""
_SMALL, _MANY_ROWS = 1 << 20, 8
"""A matrix of at most `_SMALL` entries is shifted as a whole if it is multiplied by at least `_MANY_ROWS` times as many
rows as it has columns, since that is faster than a correction of the product."""


class Shifted(TorchFunctionMode):
    """A context manager in whose block functions of torch that read trainable parameters x compute with x + shift u.

    A point is a direction u with a shift along it. With one point this holds for all functions of torch. With several,
    which need low-rank directions, it holds for matrix products, embeddings, convolutions, layer and RMS norms, and
    sums, products and quotients by entry; any other function that reads a trainable parameter raises ValueError.

    Args:
        weights: the trainable parameters x and the run's directions, a `module.Weights`.
        numbers: for each point that is evaluated in one pass, the index of its direction u in the run.
        shifts: for each point, `directions.factor(...) * directions.scale` times the shift, or with `exact` times 1.
        rows: the number of rows of the batch, which has one copy of all its records for each point; not used with one.
        guard: a `Guard`, which refuses other ways of reading the parameters; None to allow these.
        exact: whether losses become dual numbers, which carry their derivative by the shift at x.
        scale: None, or a float64 tensor on the weights' device that is read in place of `shifts`.

    Attributes:
        written: whether a function was called that may have written buffers without a change of `Tensor._version`.
    """

    def __init__(
        self,
        weights: Any,
        numbers: Sequence[int],
        shifts: Sequence[float],
        rows: int,
        guard: Any,
        *,
        exact: bool,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self._weights, self._directions, self._numbers = weights, weights.directions, tuple(numbers)
        self._exact, self._guard, self.written = exact, guard, False
        self._points, self._rows = len(numbers), rows
        self._factors, self._still = shifts, not exact and not any(shifts)
        self._recorded = scale is not None
        self._scale: Any = torch.tensor(shifts, dtype=torch.float64) if scale is None else scale
        if exact:
            self._scale = forward_ad.make_dual(torch.zeros_like(self._scale), self._scale)  # type: ignore[no-untyped-call]
        self._factored: dict[Any, list[tuple[Tensor, Tensor | None]]] = {}
        self._ids, self._unread = weights.ids, weights.unread
        calls: dict[Any, Callable[..., Any]] = {
            functional.linear: self._linear, functional.embedding: self._embedding, torch.addmm: self._addmm,
            packed.moved: self._moved,
        }  # fmt: skip
        if self._points > 1:
            calls |= {functional.layer_norm: self._layer_norm, functional.rms_norm: self._rms_norm}
            calls |= dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), self._matmul)
            calls |= dict.fromkeys((functional.conv1d, functional.conv2d, functional.conv3d), self._convolution)
        self._calls = calls if self._directions.law.rank else {functional.embedding: self._embedding}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SHAPE:
            return func(*args, **kwargs) if kwargs else func(*args)
        if func in _UNSAID:
            self.written = True
        if not self._reads(args) and not (kwargs and self._reads(kwargs.values())):
            if self._exact and func is functional.linear:
                return _linear(*args, **(kwargs or {}))
            return func(*args, **kwargs) if kwargs else func(*args)
        if self._guard is None:
            return self._shifted(func, args, kwargs or {})
        with self._guard.opened():
            return self._shifted(func, args, kwargs or {})

    def _reads(self, values: Any) -> bool:
        # Whether a trainable parameter is among the arguments `values` of a function, or in a list among them.
        ids, sharded = self._ids, self._weights.collective
        for value in values:
            if ids.get(id(value)) is not None or (sharded and self._weights.index(value) is not None):
                return True
            if type(value) in (list, tuple) and self._reads(value):
                return True
        return False

    def _shifted(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ == "__get__":  # An attribute that is no tensor, such as `.shape`, has no values of weights
            found = func(*args)
            if not isinstance(found, Tensor):
                return found
        if self._exact and func in _CONSTANT:
            raise ValueError(f"{NONE}: {self._first_trainable(args)} is read without its derivative (detach, or .data)")
        if self._still:
            _each(self._read, args)
            _each(self._read, kwargs.values())
            return func(*args, **kwargs)
        call = self._calls.get(func)
        found = NotImplemented if call is None else call(func, *args, **kwargs)
        if found is NotImplemented and self._points > 1 and func.__name__ in _BY_ENTRY and not kwargs:
            found = self._by_entry(func, *args)
        if found is not NotImplemented:
            return found
        if self._points > 1:
            raise ValueError(f"{_ONE}: {self._first_trainable([*args, *kwargs.values()])} is read by {func.__name__}")
        args = _each(self._whole, args)
        if kwargs:
            kwargs = dict(zip(kwargs, _each(self._whole, kwargs.values()), strict=True))
        if self._exact and func is functional.linear:
            return _linear(*args, **kwargs)
        return func(*args, **kwargs)

    def _first_trainable(self, values: Any) -> str:
        found = (self._weights.index(leaf) for leaf in _pytree.tree_leaves(list(values)))
        return str(next(self._weights.names[index] for index in found if index is not None))

    def _hidden(self) -> AbstractContextManager[Any]:
        # Hides operations from other torch modes, if a `Guard` is used. Then `losses.isolation` compares the operations
        # of two evaluations, and those that make shifted weights may differ, since some of their results are cached.
        return nullcontext() if self._guard is None else _disable_current_modes()

    def _read(self, value: Any) -> int | None:
        # Returns the index of `value` among the trainable parameters, and notes that it was read; None if it is none.
        index: int | None = self._ids.get(id(value))
        if index is None and self._weights.collective:
            index = self._weights.index(value)
        if index is not None and self._unread:
            self._unread.discard(self._weights.names[index])
        return index

    def _of(self, index: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor | None]:
        # Returns two factors of shift * u, which is added to the trainable parameter `index` at each of P points. For a
        # matrix they have the shapes (P, rank, rows) and (P, rank, columns), and the sum over the rank of their outer
        # products is shift * u; the first one includes the shift and rank^(-1/2). For a vector they are shift * u, of
        # shape (P, entries), and None. `dtype` and `device` are those of the factors.
        place = dtype, device
        if place not in self._factored:
            asked = self._numbers, self._scale, self._weights.shapes
            with self._hidden():
                self._factored[place] = self._directions.scaled(*asked, *place)
        return self._factored[place][index]

    def _whole(self, value: Any) -> Any:
        # If `value` is a trainable parameter x, returns x + shift u at the only point that is evaluated, rounded to x's
        # type, or with `exact` a dual number with the value x and the derivative u. Returns any other value as it is.
        index = self._read(value)
        if index is None:
            return value
        with nullcontext() if self._guard is None else _disable_current_modes():  # As `_hidden`, but faster
            own, dtype = value.detach(), value.dtype
            summed = WIDE.get(dtype, torch.float32)
            if self._directions.law.rank:
                left, right = self._of(index, summed, own.device)
                source = own if dtype == summed else own.to(summed)
                if right is None:
                    found = source + left.view(own.shape)
                else:
                    matrix = source.reshape(len(own), -1)
                    # A CUDA graph writes into the memory of its recording, which must stay its own
                    out = None if self._recorded or self._exact else self._weights.spare(source).view(matrix.shape)
                    add = torch.addcmul if self._directions.law.rank == 1 else torch.addmm
                    found = add(matrix, left[0].T, right[0], out=out).view(own.shape)
            elif self._exact:
                u = self._directions.coordinates(self._numbers[0], index, 0, own.numel(), 1.0, summed, own.device)
                found = own.to(summed) + self._scale[0].to(own.device, summed) * u.view(own.shape)
            else:
                found = self._directions.shift(
                    own.contiguous(), self._numbers[0], index, self._factors[0], out=self._weights.spare(own)
                )
            found = found if dtype == found.dtype else found.to(dtype)
            # Keeps x's order in memory, such as channels last, on which losses may depend
            return found if own.is_contiguous() else torch.empty_like(own).copy_(found)

    def _linear(self, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return self._product(_linear if self._exact else func, input, weight, bias)

    def _addmm(self, func: Any, input: Tensor, mat1: Tensor, mat2: Tensor, **factors: Any) -> Any:
        if factors or input.ndim != 1:
            return NotImplemented
        return self._product(lambda x, w, b: x @ w if b is None else func(b, x, w), mat1, mat2, input, turned=True)

    def _matmul(self, func: Any, one: Tensor, other: Tensor) -> Any:
        index = self._read(other)
        if index is None or other.ndim > 2:
            return NotImplemented
        if other.ndim == 2:
            return self._product(lambda x, w, _: func(x, w), one, other, None, turned=True)
        x, left = self._grouped(one, index), self._of(index, one.dtype, one.device)[0]
        return func(x, other) + (x.reshape(self._points, -1, len(other)) @ left[:, :, None]).view(x.shape[:-1])

    def _product(self, plain: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *, turned: bool = False) -> Any:
        # Returns plain(x, weight, bias), a product with a matrix plus a bias, with both shifted, at all points. The
        # weight has the shape (outputs, inputs), or with `turned` (inputs, outputs). Returns NotImplemented if x is
        # itself trainable or the weight is no matrix.
        index = self._read(weight)
        if self._ids.get(id(x)) is not None or weight.ndim != 2:
            return NotImplemented
        width, many = weight.shape[0 if turned else 1], self._points > 1
        if many:
            x = self._grouped(x, index if index is not None else self._read(bias))
            bias = bias if bias is None else self._stacked(bias)[:, None]
        else:
            bias = self._whole(bias)
            if index is None or self._is_cheaper(x, weight, width):
                return plain(x, self._whole(weight), bias)
        rows, shape = x.reshape(self._points, -1, width), (*x.shape[:-1], -1)
        if index is not None and self._may_addmm(x, weight, bias):
            # Bias and shift come first, and then the product of x and weight is added to them in place: one pass less
            along, left = self._along(rows, index, x.dtype, turned)
            if self._directions.law.rank == 1:
                out = along * left if bias is None else torch.addcmul(bias, along, left)
            else:
                out = along @ left if bias is None else torch.baddbmm(bias.expand(self._points, 1, -1), along, left)
            out.view(-1, out.shape[-1]).addmm_(x.reshape(-1, width), weight if turned else weight.t())
            return out.view(shape)
        out = plain(x, weight, None if many else bias).contiguous().view(*rows.shape[:2], -1)
        if index is not None:
            along, left = self._along(rows, index, out.dtype, turned)
            out = out + along @ left if self._exact else out.baddbmm_(along, left)
        return (out + bias if many and bias is not None else out).view(shape)

    def _along(self, rows: Tensor, index: int, dtype: torch.dtype, turned: bool) -> tuple[Tensor, Tensor]:
        # Returns two factors, of shapes (points, n, rank) and (points, rank, outputs), of what the shift of a matrix
        # adds to its product with `rows`, shape (points, n, inputs). The matrix is the trainable parameter `index`, of
        # shape (outputs, inputs), or with `turned` (inputs, outputs). `dtype` is the type of the factors.
        left, right = self._of(index, dtype, rows.device)
        assert right is not None
        if turned:
            left, right = right, left
        right = right if right.dtype == rows.dtype else right.to(rows.dtype)
        along = functional.linear(rows, right[0]) if self._points == 1 else rows @ right.mT
        return along.to(dtype), left

    def _moved(self, func: Any, output: Tensor, x: Tensor, moves: Tensor, hook: Any) -> Any:
        index = self._read(moves)
        assert index is not None
        output, x = func(output, x, moves, hook), self._grouped(x, index) if self._points > 1 else x
        along, left = self._along(x.reshape(self._points, -1, x.shape[-1]), index, output.dtype, False)
        return output.contiguous().view(self._points, -1, output.shape[-1]).baddbmm(along, left).view(output.shape)

    def _may_addmm(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        # Whether `addmm_` may add x W^T in place. It needs equal types, and carries no derivative.
        same = x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype)
        return same and not self._exact and not torch.is_autocast_enabled(x.device.type)

    def _is_cheaper(self, x: Tensor, weight: Tensor, width: int) -> bool:
        # Whether it is faster, and as precise, to shift the whole weight than to correct its product with x. x has
        # `width` columns.
        return (
            weight.numel() <= _SMALL
            and x.numel() >= _MANY_ROWS * width * width
            and weight.dtype in (torch.float32, torch.float64)
            and self._may_addmm(x, weight, None)
        )

    def _embedding(
        self, func: Any, input: Tensor, weight: Tensor, padding_idx: Any = None, max_norm: Any = None, *rest: Any,
        **named: Any,
    ) -> Any:  # fmt: skip
        index = self._read(weight)
        if index is None or max_norm is not None or weight.ndim != 2:
            return NotImplemented
        if not self._directions.law.rank:
            return self._few_rows(func, input, weight, index)
        ids = input if self._points == 1 else self._grouped(input, index)
        y = func(ids, weight, padding_idx)
        left, right = self._of(index, y.dtype, y.device)
        rank, points = self._directions.law.rank, self._points
        rows = left.gather(2, ids.reshape(points, 1, -1).expand(-1, rank, -1))
        out = y.view(points, -1, weight.shape[1])
        return (out + rows.mT @ right if self._exact else out.baddbmm_(rows.mT, right)).view(y.shape)  # type: ignore[operator]

    def _few_rows(self, func: Any, ids: Tensor, weight: Tensor, index: int) -> Any:
        # On a CPU, shifts only the rows of an embedding that are looked up. Returns NotImplemented on other devices,
        # and if the rows are so many that shifting the whole matrix is faster.
        if ids.device.type != "cpu" or ids.numel() * _ROWS_SHARE > len(weight):
            return NotImplemented
        width, summed = weight.shape[1], WIDE.get(weight.dtype, torch.float32)
        scale = 1.0 if self._exact else self._factors[0]
        with self._hidden():
            rows, which = torch.unique(ids, return_inverse=True)
            each = [
                self._directions.coordinates(self._numbers[0], index, row * width, width, scale, summed)
                for row in rows.tolist()
            ]
            u = torch.stack(each) * self._scale[0].to(summed) if self._exact else torch.stack(each)
            values = (weight.detach().index_select(0, rows) + u).to(weight.dtype)
        return func(which, values)

    def _layer_norm(
        self, func: Any, input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Any:
        return self._normalised(
            lambda x: func(x, normalized_shape, None, None, eps), input, normalized_shape, weight, bias
        )

    def _rms_norm(self, func: Any, input: Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
        return self._normalised(lambda x: func(x, normalized_shape, None, eps), input, normalized_shape, weight, None)

    def _normalised(self, plain: Any, x: Tensor, shape: Any, gain: Any, bias: Any) -> Any:
        if self._points == 1:
            return NotImplemented
        x = self._grouped(x, self._read(gain) if self._read(gain) is not None else self._read(bias))
        y = plain(x).view(self._points, -1, *shape)
        if gain is None:
            return (y + self._stacked(bias)[:, None]).view(x.shape)
        gain = self._stacked(gain)[:, None]
        return (y * gain if bias is None else torch.addcmul(self._stacked(bias)[:, None], y, gain)).view(x.shape)

    def _by_entry(self, func: Any, one: Any, other: Any) -> Any:
        turned = self._read(other) is not None
        value, x = (other, one) if turned else (one, other)
        if not isinstance(x, Tensor) or self._read(x) is not None or x.ndim <= value.ndim:
            return NotImplemented
        x = self._grouped(x, self._read(value))
        each = self._stacked(value).repeat_interleave(len(x) // self._points, 0)
        each = each.view(len(x), *[1] * (x.ndim - 1 - value.ndim), *value.shape)
        return func(x, each) if turned else func(each, x)

    def _convolution(
        self, func: Any, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        if self._points == 1 or input.ndim != weight.ndim or groups != 1:
            return NotImplemented
        index, of_bias = self._read(weight), self._read(bias)
        x = self._grouped(input, index if index is not None else of_bias)
        y = func(x, weight, bias, stride, padding, dilation)
        out = y.contiguous().view(self._points, -1, len(weight), y[0, 0].numel())
        if index is not None:
            left, right = self._of(index, y.dtype, y.device)
            assert right is not None
            for here, part, a, b in zip(out, x.chunk(self._points), left, right, strict=True):
                along = func(part, b.to(x.dtype).view(-1, *weight.shape[1:]), None, stride, padding, dilation)
                here += a.T @ along.flatten(2).to(y.dtype)
        if of_bias is not None:
            out = out + self._of(of_bias, y.dtype, y.device)[0].view(self._points, 1, -1, 1)
        return out.view(y.shape)

    def _stacked(self, value: Tensor) -> Tensor:
        # Returns the shifted values of a trainable vector or matrix at all points, stacked along a new first axis. A
        # frozen one is returned with a first axis of length 1.
        index = self._read(value)
        if index is None:
            return value[None]
        left, right = self._of(index, value.dtype, value.device)
        moved = left if right is None else left.mT @ right
        return value.detach() + moved.view(self._points, *value.shape)

    def _grouped(self, x: Tensor, index: int | None) -> Tensor:
        # Returns x with an equal number of rows for each point: x itself if its number of rows is a multiple of records
        # times points, or its only row, repeated. Raises ValueError for any other x; the message names the trainable
        # parameter `index`, unless that is None.
        if len(x) % self._rows == 0:
            return x
        if len(x) == 1:
            return x.expand(self._rows, *x.shape[1:])
        name = "a parameter" if index is None else self._weights.names[index]
        raise ValueError(f"{_ONE}: {name} is read with {len(x)} rows, not with a multiple of {self._rows}, the records")


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    # `functional.linear` for dual numbers. Torch's own would also multiply by a frozen weight's derivative, which is 0
    unpack: Any = forward_ad.unpack_dual
    values, moved = unpack(input)
    if moved is None or unpack(weight)[1] is not None:
        product = functional.linear(input, weight)
    else:
        product = forward_ad.make_dual(*functional.linear(torch.stack([values, moved]), weight))  # type: ignore[no-untyped-call]
    return product if bias is None else product + bias


def _each(function: Callable[[Any], Any], values: Any) -> list[Any]:
    # Returns function(value) for each value; in lists and tuples it is applied to the entries.
    return [
        type(value)(_each(function, value)) if type(value) in (list, tuple) else function(value) for value in values
    ]


class Guard(TorchDispatchMode):
    """A context manager that refuses, with a ValueError, operations in its block which read trainable parameters in
    ways that escape `Shifted`, or write tensors that must not change.

    Args:
        trained: a mapping from storage_of(p) to the name, for each trainable parameter p. Operations may read it only
            inside `opened`, and never write it.
        kept: a mapping from storage_of(t) to the name, for each buffer or frozen parameter t that must not be written;
            with the name "" for a buffer that may be written, since it is restored later.
        sharded: whether the module is under FSDP, which reads the memory of the shards itself. If True, trainable
            parameters are guarded only as DTensors.

    Attributes:
        refused: the ValueError that a refused operation raised; None if there was none.
    """

    def __init__(self, trained: Mapping[int, str], kept: Mapping[int, str], *, sharded: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trained, self._kept, self._open = trained, kept, 0
        self._sharded = sharded
        self.refused: ValueError | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context manager in whose block operations may read trainable parameters."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # `Shifted` must not see this method's own calls
            if not func.is_view:
                written = _written(func, args, kwargs) if func._schema.is_mutable else []
                for value in _pytree.tree_leaves((args, kwargs)):
                    if isinstance(value, Tensor):
                        self._look(func, value, any(value is one for one in written))
            return func(*args, **kwargs)

    def _look(self, func: Any, value: Tensor, written: bool) -> None:
        shard = is_sharded(value)
        where = storage_of(piece(value)[0] if shard else value)
        trained, kept = self._trained.get(where) if shard or not self._sharded else None, self._kept.get(where)
        if trained is not None and written:
            self.refused = ValueError(f"the losses must not write trainable parameter {trained}; got {func}")
        elif trained is not None and not self._open:
            how = "in a forward, which gathers it" if shard else "by torch's functions on it"
            self.refused = ValueError(f"the losses must read {trained} {how}; got {func}")
        elif written and kept:
            self.refused = ValueError(
                f"losses must not change what is handed out with the module; got a write of {kept} by {func}"
            )
        if self.refused is not None:
            raise self.refused


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    found = [
        args[number] if number < len(args) else kwargs.get(argument.name)
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _pytree.tree_leaves(found)


def storage_of(tensor: Tensor) -> int:
    """Return an integer that is the same for tensors in the same memory, such as views; 0 for a sparse tensor."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def _derivative_of(found: Tensor) -> Tensor:
    value, tangent = forward_ad.unpack_dual(found)  # type: ignore[no-untyped-call]
    if tangent is None:
        raise ValueError(f"{NONE}: they do not depend on the weights by operations that can be differentiated")
    return torch.where(value.isfinite(), tangent, torch.nan)


@cache
def _ready() -> None:
    # Torch would import this module at the first dual number, with a deprecation warning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("torch._decomp.decompositions_for_jvp")


@contextmanager
def differentiable() -> Iterator[Callable[[Tensor], Tensor]]:
    """A context manager in whose block forward-mode differentiation computes derivatives along a direction.

    Compute the losses in an inner block of `Shifted(..., exact=True)`. The context manager returns a function, to be
    called inside its block: it takes these losses, a tensor of dual numbers, and returns their derivatives by the shift
    of the weights, at shift 0, as a tensor of the same shape, with NaN where a loss is not finite. It raises ValueError
    if the losses have no derivative. So does the block, with the name of the operation, if an operation has no forward
    derivative. Attention uses its plain kernel, the only one that has one.
    """
    _ready()
    try:
        with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
            yield _derivative_of
    except (RuntimeError, NotImplementedError) as error:
        said = " ".join(str(error).split())
        if not any(word in said for word in ("forward AD", "forward mode AD", "jvp", "forward-mode")):
            raise
        raise ValueError(f"{NONE}: {said:.200}") from error
