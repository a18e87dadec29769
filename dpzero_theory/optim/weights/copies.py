"""Shifted copies x + shift u of parameters, and the memory that they take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpzero_theory.optim.weights.directions import Directions, wide
from dpzero_theory.optim.weights.places import Place
from dpzero_theory.optim.weights.precision import join

_AHEAD = 1 << 25
"""How many bytes of copies `Ahead` makes at a time; fewer where the largest parameter takes fewer."""


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
    """The point x + scale u at which weights are evaluated, where u is the direction `number` of a run. directions:
    those of the run. low: the 16 further bits of half-precision weights x, by the parameter's index. factors: a number
    for each parameter, by which `scale` is multiplied for it; "scale" in the methods is that product.
    """

    directions: Directions
    number: int
    scale: float
    low: Mapping[int, Tensor]
    factors: Sequence[float]

    def of_array(self, place: Place, start: int, out: Tensor) -> None:
        """Write x + scale u to `out`, for out.numel() elements of the parameter at a place. start: the first of them,
        counted from where this process's piece begins. The place must have an array; out: of its type, on the CPU."""
        assert place.array is not None
        x, first = place.array[start : start + out.numel()], place.origin + start
        self.directions.shift_array(x, self.number, place.index, self._scale(place), first, out.numpy())

    def of(self, source: Tensor, place: Place, start: int, out: Tensor) -> None:
        """Write x + scale u, rounded to the type of the weights, to `out`, for some elements of the parameter at a
        place. start: the first of them, counted from where this process's piece begins.

        source: the weights x at these elements, as a vector, of the shape of `out`.
        """
        low, first = self.low.get(place.index), place.origin + start
        if low is None:
            self.directions.shift(source, self.number, place.index, self._scale(place), first, out)
            return
        part, count, number = low[start : start + source.numel()], source.numel(), self.number
        for here, u in self.directions.blocks(
            number, place.index, first, count, self._scale(place), device=source.device
        ):
            out[here] = join(source[here], part[here]).add_(u)

    def whole(self, place: Place) -> Tensor:
        """Return x + scale u for all that this process holds of the parameter at a place, in its shape, rounded to its
        type."""
        source = place.tensor.contiguous().view(-1)
        out = torch.empty_like(source)
        if place.array is None:
            self.of(source, place, 0, out)
        else:
            self.of_array(place, 0, out)
        return out.view(place.tensor.shape)

    def has_launches(self, place: Place) -> bool:
        """Whether `together` makes the copy of the parameter at a place by a launch of a CUDA kernel."""
        plain = place.array is None and place.index not in self.low and place.tensor.is_contiguous()
        return plain and self.directions.launched(place.tensor.device)

    def goes_with(self, one: Place, other: Place) -> bool:
        """Whether one launch can make the copies of the parameters at both places, of which the first has launches."""
        same = one.tensor.dtype == other.tensor.dtype and one.tensor.device == other.tensor.device
        return same and self._scale(one) == self._scale(other) and self.has_launches(other)

    def together(self, places: Sequence[Place]) -> list[Tensor]:
        """Return for each place x + scale u for what this process holds of the parameter there, as a vector. The first
        has launches and the others go with it."""
        sources = [(place.tensor.view(-1), place.index, place.origin) for place in places]
        return self.directions.shift_all(sources, self.number, self._scale(places[0]))

    def rows(self, place: Place, rows: Tensor) -> Tensor:
        """Return x + scale u for some rows of the matrix at a place, rounded to its type; rows: their numbers, shape
        (m,)."""
        source, low = place.tensor.index_select(0, rows), self.low.get(place.index)
        value = source if low is None else join(source, low.view(place.tensor.shape).index_select(0, rows))
        return self._rows(place, rows).add_(value).to(source.dtype)

    def tangent(self, place: Place) -> Tensor:
        """Return scale u for all that this process holds of the parameter at a place, in its shape, rounded to its
        type."""
        zero = torch.zeros(place.tensor.shape, dtype=place.tensor.dtype, device=place.tensor.device)
        return self.directions.add_(zero, self.number, place.index, self._scale(place), place.origin)

    def rows_of_tangent(self, place: Place, rows: Tensor) -> Tensor:
        """Return scale u for some rows of the matrix at a place, rounded to its type; rows: their numbers, shape
        (m,)."""
        return self._rows(place, rows).to(place.tensor.dtype)

    def _rows(self, place: Place, rows: Tensor) -> Tensor:
        width, summed = place.tensor.shape[1], wide(place.tensor.dtype)
        here = rows + place.origin // width
        return self.directions.rows(self.number, place.index, here, width, self._scale(place), summed)

    def _scale(self, place: Place) -> float:
        return self.scale * self.factors[place.index]


class Ahead:
    """Makes shifted copies on a GPU before they are read, those of several parameters by one launch of a kernel, as a
    launch from Python takes longer than shifting a small parameter.

    Which ones are read one after the other is learned from the first evaluation. In an evaluation that reads them in
    another order the copies are the same, and more of them are made. Copies are kept until others are made, so that
    memory grows by `_AHEAD` bytes at most, and by no more than the largest parameter.

    largest: the number of bytes of that parameter.
    """

    def __init__(self, largest: int) -> None:
        self._limit = min(_AHEAD, largest)
        self._order: list[int] = []
        self._made: dict[int, Tensor] = {}

    def copy(self, place: Place, shift: Shift, places: Mapping[int, list[Place]]) -> Tensor | None:
        """Return x + scale u for what this process holds of the parameter at a place, as a vector; None where copies
        are not made ahead, as on a CPU or where precision "master" keeps further bits.

        places: where all parameters lie in memory, by storage. The caller must not write the copy. Between two points
        `forget` must be called.
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
