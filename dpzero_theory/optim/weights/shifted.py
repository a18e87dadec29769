"""Operations that read a weight W are given W + shift u: the mechanism of `evaluable.Evaluable.shifted`.

Every operation on tensors passes `Shifted.__torch_dispatch__`. An argument that lies in the memory of a trainable
parameter is replaced by a fresh tensor in which that memory is shifted. Operations that only make views pass as they
are, because what reads the view comes this way too. Nothing is written: an operation that would write a trainable
parameter is refused.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.optim.weights.copies import Ahead, Scratch, Shift
from dpzero_theory.optim.weights.places import Place, extent, storage_of
from dpzero_theory.optim.weights.shards import is_sharded, piece

_EMBEDDING = torch.ops.aten.embedding.default
_aten = torch.ops.aten
_UNSAID = {
    id(getattr(_aten, name).default)
    for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats",
                 "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
}  # fmt: skip
"""Operations that may write the statistics of batch normalisation without saying so."""
_TRAINING = 5
"""The index, from 0, of the argument of these operations that says whether batch normalisation is in training."""
_ROWS_SHARE = 8
"""Where an embedding makes at most one look-up for this many rows of its matrix, only the rows that are looked up are
shifted, not the whole matrix."""


class Shifted(TorchDispatchMode):
    """A torch mode that hands shifted copies of the trainable parameters to every operation that reads them.

    shift: the point x + shift u. places: where parameters lie in memory, as `storages` returns it; it is replaced
    when they get other memory. scratch: lends the memory for the copies on a CPU. ahead: makes them on a GPU; None
    on a CPU. unread: a set of parameters' names, from which those that are read are removed. guarded: by storage,
    the name of a buffer or frozen parameter that must not be written, or "" for a buffer that is put back
    afterwards. written: becomes True when such a buffer is written, or may have been. Operations raise ValueError
    where they would write a parameter, or read parts of its elements (some bytes of a number).
    """

    def __init__(
        self,
        shift: Shift,
        places: dict[int, list[Place]],
        scratch: Scratch,
        ahead: Ahead | None,
        unread: set[str],
        guarded: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shift, self.places, self._scratch, self._ahead, self._unread = shift, places, scratch, ahead, unread
        self._guarded, self.written = guarded, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types:
            self._refuse_shards(func, [*args, *kwargs.values()])
        if func.is_view:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            self._refuse_writes(func, args, kwargs)
        elif id(func) in _UNSAID:
            self.written |= len(args) <= _TRAINING or args[_TRAINING] is not False
        if func is _EMBEDDING and self._shift.scale and (place := self._few_rows(args[0], args[1])):
            rows, which = looked_up(args[1])
            return func(self._shift.rows(place, rows), which)
        if kwargs:
            kwargs = {name: self._replaced(value) for name, value in kwargs.items()}
        return func(*map(self._replaced, args), **kwargs)

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            places = self._touched(value)
            if places and not self._shift.scale:  # the scale is 0: the point is x, the weights themselves
                self._unread.difference_update(place.name for place in places)
                return value
            return self._copy(value, places) if places else value
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._replaced, value))
        return value

    def _touched(self, value: Tensor) -> list[Place]:
        """Return the places of the trainable parameters whose memory the tensor `value` overlaps; an empty list if
        there are none."""
        places = self.places.get(storage_of(value))
        if not places:
            return []
        start, stop = extent(value)
        one, own = value.element_size(), places[0].tensor.element_size()
        return [place for place in places if place.start * own < stop * one and start * one < place.stop * own]

    def _copy(self, value: Tensor, places: list[Place]) -> Tensor:
        """Return a copy of a tensor, which overlaps the parameters at these places, with its values at x + scale u."""
        own = places[0].tensor.dtype
        if value.dtype != own:
            try:
                return self._copy(value.view(own), places).view(value.dtype)
            except RuntimeError:
                raise ValueError(f"the losses must not read parts of {places[0].name} as {value.dtype}") from None
        start, stop = extent(value)
        place = places[0]
        if len(places) == 1 and place.start <= start and stop <= place.stop and place.tensor.is_contiguous():
            self._unread.discard(place.name)
            first = start - place.start
            made = None if self._ahead is None else self._ahead.copy(place, self._shift, self.places)
            if made is not None:
                return made.as_strided(value.size(), value.stride(), made.storage_offset() + first)
            out = self._scratch.take(stop - start, value)
            if place.array is None:
                self._shift.of(value.as_strided((stop - start,), (1,), start), place, start - place.start, out)
            else:
                self._shift.of_array(place, start - place.start, out)
            return out.as_strided(value.size(), value.stride(), 0)
        first, last = start, stop  # a parameter that is not in row-major order is copied as a whole
        for place in places:
            self._unread.discard(place.name)
            if not place.tensor.is_contiguous():
                first, last = min(first, place.start), max(last, place.stop)
        source = value.as_strided((last - first,), (1,), first)
        out = self._scratch.take(last - first, source)
        if len(places) > 1 or first < places[0].start or places[0].stop < last:
            out.copy_(source)
        for place in places:
            if place.tensor.is_contiguous():
                here = slice(max(first, place.start) - first, min(last, place.stop) - first)
                self._shift.of(source[here], place, here.start + first - place.start, out[here])
            else:
                size, stride = place.tensor.size(), place.tensor.stride()
                there = out.as_strided(size, stride, out.storage_offset() + place.start - first)
                there.copy_(self._shift.whole(place))
        return out.as_strided(value.size(), value.stride(), out.storage_offset() + start - first)

    def _few_rows(self, weight: Tensor, rows: Tensor) -> Place | None:
        """Return the place of the parameter `weight` if an embedding looks up few of its rows.

        rows: the row numbers that are looked up. None if there are many, or if the matrix is no trainable parameter.
        """
        if not few_rows(weight, rows):
            return None
        for place in self._touched(weight):
            whole = place.tensor.shape == weight.shape and place.tensor.stride() == weight.stride()
            if whole and extent(weight) == (place.start, place.stop) and weight.is_contiguous():
                self._unread.discard(place.name)
                return place
        return None

    def _refuse_shards(self, func: Any, values: Iterable[Any]) -> None:
        """Raise ValueError if one of the `values`, the arguments of the operation `func`, is a sharded trainable
        parameter as a whole, whose other parts lie in other processes."""
        for value in values:
            if isinstance(value, (list, tuple)):
                self._refuse_shards(func, value)
            elif is_sharded(value) and (places := self._touched(piece(value)[0])):
                raise ValueError(f"the losses must read {places[0].name} in a forward, which gathers it; got {func}")

    def _refuse_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                for tensor in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(tensor, Tensor):
                        self._refuse_write(func, tensor)

    def _refuse_write(self, func: Any, tensor: Tensor) -> None:
        if places := self._touched(tensor):
            raise ValueError(f"the losses must not write trainable parameter {places[0].name}; got {func}")
        guarded = self._guarded.get(storage_of(tensor))
        if guarded:
            raise ValueError(
                f"losses must not change what is handed out with the module; got a write of {guarded} by {func}"
            )
        self.written |= guarded is not None


def few_rows(weight: Tensor, rows: Tensor) -> bool:
    """Whether an embedding looks up at most an eighth (one in `_ROWS_SHARE`) as many rows as its matrix `weight` has.
    rows: the row number of each look-up."""
    return weight.ndim == 2 and rows.numel() * _ROWS_SHARE <= weight.shape[0]


def looked_up(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row numbers to read for an embedding, and for each of its look-ups the index of its row among these.

    rows: the row number of each look-up. On a CPU a row that is looked up several times is read once.
    """
    if rows.device.type == "cpu":
        found: tuple[Tensor, Tensor] = torch.unique(rows, return_inverse=True)
        return found
    which = torch.arange(rows.numel(), device=rows.device).view(rows.shape)
    return rows.reshape(-1), which  # finding the distinct rows would make the CPU wait for the GPU
