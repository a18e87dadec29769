"""Operations that read a weight W are given W + shift u: the mechanism of `Weights.shifted`.

Every operation on tensors passes `Shifted.__torch_dispatch__`. An argument that lies in the memory of a trainable
parameter is replaced by a fresh tensor in which that memory is shifted. Operations that only make views pass as they
are, because what reads the view comes this way too. Nothing is written: an operation that would write a trainable
parameter is refused.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.optim.weights.directions import Directions, wide
from dpzero_theory.optim.weights.precision import join
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
_AHEAD = 1 << 25
"""How many bytes of copies `Ahead` makes at a time; fewer where the largest parameter takes fewer."""


@dataclass(frozen=True)
class Place:
    """Says where in memory this process holds its piece of a trainable parameter.

    Attributes:
        name, index: the parameter's name, and its place among the trainable ones.
        tensor: the piece, which begins with the parameter's coordinate `origin` (0 unless it is sharded), and fills the
            elements start, ..., stop - 1 of its storage.
        array: the same memory as a flat numpy array; None where numpy cannot read and write it.
    """

    name: str
    index: int
    tensor: Tensor
    origin: int
    start: int
    stop: int
    array: NDArray[Any] | None


def storages(parameters: Mapping[str, Tensor]) -> dict[int, list[Place]]:
    """Return where this process holds its piece of each parameter: a list of places for each storage, in memory order.

    The keys are numbers of storages, as `storage_of` gives them.

    Args:
        parameters: the parameters by name.

    Raises:
        ValueError: two parameters share memory.
    """
    found: dict[int, list[Place]] = {}
    for index, (name, parameter) in enumerate(parameters.items()):
        held, origin = piece(parameter)
        if held.numel():
            place = Place(name, index, held, origin, *extent(held), _array(held))
            found.setdefault(storage_of(held), []).append(place)
    for places in found.values():
        places.sort(key=lambda place: place.start)
        for one, other in itertools.pairwise(places):
            if other.start < one.stop or one.tensor.dtype != other.tensor.dtype:
                raise ValueError(f"trainable parameters must not share memory; got {one.name} and {other.name}")
    return found


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the index of the first element that a tensor has in its storage, and the index after the last one."""
    start = int(tensor.storage_offset())
    if tensor.is_contiguous() or tensor.numel() == 0:
        return start, start + tensor.numel()
    return start, start + 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))


def _array(tensor: Tensor) -> NDArray[Any] | None:
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64) or not tensor.is_contiguous():
        return None
    found: NDArray[Any] = tensor.view(-1).numpy()
    return found


def storage_of(tensor: Tensor) -> int:
    """Return a number for a tensor's memory, the same for all tensors in it; 0 where there is none (sparse ones)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


class Scratch:
    """Lends memory for one shifted parameter on the CPU, and lends it again when the operation is over.

    Fresh memory from the system takes longer than shifting the weights. On CUDA torch's allocator keeps memory itself.
    """

    def __init__(self) -> None:
        self._held: Tensor | None = None
        self._idle = 0

    def take(self, count: int, like: Tensor) -> Tensor:
        """Return an uninitialised tensor of shape (count,), of the type and on the device of `like`."""
        size = count * like.element_size()
        if size < 1 << 16 or like.device.type != "cpu":
            return torch.empty(count, dtype=like.dtype, device=like.device)
        if self._held is not None and _references(self._held) > self._idle:
            return torch.empty(count, dtype=like.dtype, device=like.device)
        if self._held is None or self._held.numel() < size:
            self._held = None
            self._held = torch.empty(size, dtype=torch.uint8)
            self._idle = _references(self._held)
        return self._held[:size].view(like.dtype)


@dataclass(frozen=True)
class Shift:
    """The point x + scale u at which weights are evaluated, where u is the direction `number` of a run.

    Attributes:
        directions: the directions of the run.
        low: the 16 further bits of half-precision weights x, by the parameter's index.
        factors: a number for each parameter, by which `scale` is multiplied for it; "scale" in the methods is that
            product.
    """

    directions: Directions
    number: int
    scale: float
    low: Mapping[int, Tensor]
    factors: Sequence[float]

    def of(self, source: Tensor, place: Place, start: int, out: Tensor) -> None:
        """Write x + scale u, rounded to the type of the weights, to `out`, for some elements of the parameter at a
        place.

        Args:
            start: the first of them, counted from where this process's piece begins.
            source: the weights x at these elements, as a vector, of the shape of `out`.
        """
        low, first = self.low.get(place.index), place.origin + start
        if low is None:
            self.directions.shift(source, self.number, place.index, self.scale_of(place), first, out)
            return
        part, count, number = low[start : start + source.numel()], source.numel(), self.number
        for here, u in self.directions.blocks(
            number, place.index, first, count, self.scale_of(place), device=source.device
        ):
            out[here] = join(source[here], part[here]).add_(u)

    def whole(self, place: Place) -> Tensor:
        """Return x + scale u for all that this process holds of the parameter at a place, in its shape, rounded to its
        type."""
        source = place.tensor.contiguous().view(-1)
        out = torch.empty_like(source)
        self.of(source, place, 0, out)
        return out.view(place.tensor.shape)

    def has_launches(self, place: Place) -> bool:
        """Whether `together` makes the copy of the parameter at a place by a launch of a CUDA kernel."""
        plain = place.array is None and place.index not in self.low and place.tensor.is_contiguous()
        return plain and self.directions.launched(place.tensor.device)

    def goes_with(self, one: Place, other: Place) -> bool:
        """Whether one launch can make the copies of the parameters at both places, of which the first has launches."""
        same = one.tensor.dtype == other.tensor.dtype and one.tensor.device == other.tensor.device
        return same and self.scale_of(one) == self.scale_of(other) and self.has_launches(other)

    def together(self, places: Sequence[Place]) -> list[Tensor]:
        """Return for each place x + scale u for what this process holds of the parameter there, as a vector. The first
        has launches and the others go with it."""
        sources = [(place.tensor.view(-1), place.index, place.origin) for place in places]
        return self.directions.shift_all(sources, self.number, self.scale_of(places[0]))

    def rows(self, place: Place, rows: Tensor) -> Tensor:
        """Return x + scale u for some rows of the matrix at a place, rounded to its type.

        Args:
            rows: their numbers, shape (m,).
        """
        source, low = place.tensor.index_select(0, rows), self.low.get(place.index)
        value = source if low is None else join(source, low.view(place.tensor.shape).index_select(0, rows))
        return self._rows(place, rows).add_(value).to(source.dtype)

    def tangent(self, place: Place) -> Tensor:
        """Return scale u for all that this process holds of the parameter at a place, in its shape, rounded to its
        type."""
        zero = torch.zeros(place.tensor.shape, dtype=place.tensor.dtype, device=place.tensor.device)
        return self.directions.add_(zero, self.number, place.index, self.scale_of(place), place.origin)

    def rows_of_tangent(self, place: Place, rows: Tensor) -> Tensor:
        """Return scale u for some rows of the matrix at a place, rounded to its type.

        Args:
            rows: their numbers, shape (m,).
        """
        return self._rows(place, rows).to(place.tensor.dtype)

    def _rows(self, place: Place, rows: Tensor) -> Tensor:
        width, summed = place.tensor.shape[1], wide(place.tensor.dtype)
        here = rows + place.origin // width
        return self.directions.rows(self.number, place.index, here, width, self.scale_of(place), summed)

    def scale_of(self, place: Place) -> float:
        """Return the scale for the parameter at a place: the shift times the direction's and the group's factors."""
        return self.scale * self.factors[place.index]


class Ahead:
    """Makes shifted copies on a GPU before they are read, those of several parameters by one launch of a kernel, as a
    launch from Python takes longer than shifting a small parameter.

    Which ones are read one after the other is learned from the first evaluation. In an evaluation that reads them in
    another order the copies are the same, and more of them are made. Copies are kept until others are made, so that
    memory grows by `_AHEAD` bytes at most, and by no more than the largest parameter.

    Args:
        largest: the number of bytes of that parameter.
    """

    def __init__(self, largest: int) -> None:
        self._limit = min(_AHEAD, largest)
        self._order: list[int] = []
        self._made: dict[int, Tensor] = {}

    def copy(self, place: Place, shift: Shift, places: Mapping[int, list[Place]]) -> Tensor | None:
        """Return x + scale u for what this process holds of the parameter at a place, as a vector; None where copies
        are not made ahead, as on a CPU or where precision "master" keeps further bits.

        The caller must not write the copy. Call `forget()` whenever the point changes.

        Args:
            places: where all parameters lie in memory, by storage.
        """
        if place.index in self._made:
            return self._made[place.index]
        if not shift.has_launches(place):
            return None
        self._made.clear()
        group = self._group(place, shift, {one.index: one for held in places.values() for one in held})
        self._made = dict(zip((one.index for one in group), shift.together(group), strict=True))
        return self._made[place.index]

    def forget(self) -> None:
        """Give the copies up, as the point is no longer the same."""
        self._made.clear()

    def _group(self, place: Place, shift: Shift, places: Mapping[int, Place]) -> list[Place]:
        """Return this place, and those read after it whose copies can be made by the same launch. places: of all
        parameters in memory, by the parameter's index."""
        if place.index not in self._order:
            self._order.append(place.index)
            return [place]
        group, taken = [place], _bytes(place)
        for index in self._order[self._order.index(place.index) + 1 :]:
            one = places.get(index)
            taken += 0 if one is None else _bytes(one)
            if one is None or taken > self._limit or not shift.goes_with(place, one):
                break
            group.append(one)
        return group


def _bytes(place: Place) -> int:
    return place.tensor.numel() * place.tensor.element_size()


def _references(tensor: Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


class Shifted(TorchDispatchMode):
    """A torch mode that hands shifted copies of the trainable parameters to every operation that reads them.

    Operations raise ValueError where they would write a parameter, or read parts of its elements (some bytes of a
    number).

    Args:
        shift: the point x + shift u.
        places: where parameters lie in memory, as `storages` returns it; it is replaced when they get other memory.
        scratch: lends the memory for the copies on a CPU.
        ahead: makes the copies on a GPU; None on a CPU.
        unread: a set of parameters' names, from which those that are read are removed.
        guarded: by storage, the name of a buffer or frozen parameter that must not be written, or "" for a buffer that
            is put back afterwards.

    Attributes:
        written: becomes True when such a buffer is written, or may have been.
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
            out, count, shift = self._scratch.take(stop - start, value), stop - start, self._shift
            if place.array is None:
                shift.of(value.as_strided((count,), (1,), start), place, first, out)
            else:  # the same bits with fewer calls of torch
                scale = shift.scale * shift.factors[place.index]
                x, origin = place.array[first : first + count], place.origin + first
                shift.directions.shift_array(x, shift.number, place.index, scale, origin, out.numpy())
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

    Args:
        rows: the row number of each look-up.
    """
    return weight.ndim == 2 and rows.numel() * _ROWS_SHARE <= weight.shape[0]


def looked_up(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row numbers to read for an embedding, and for each of its look-ups the index of its row among these.

    On a CPU a row that is looked up several times is read once.

    Args:
        rows: the row number of each look-up.
    """
    if rows.device.type == "cpu":
        found: tuple[Tensor, Tensor] = torch.unique(rows, return_inverse=True)
        return found
    which = torch.arange(rows.numel(), device=rows.device).view(rows.shape)
    return rows.reshape(-1), which  # finding the distinct rows would make the CPU wait for the GPU
