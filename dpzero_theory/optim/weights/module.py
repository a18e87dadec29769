"""The trainable weights x of a torch module, which a run evaluates at points x + shift u and moves along directions u.

Inside `Weights.shifted` every operation that reads a trainable parameter W reads a fresh tensor W + shift u instead,
which dies with the operation. So nothing has to be restored, in any precision and whatever the loss function raises,
and memory grows by the largest parameter only. The replacement (`weights.shifted`) goes by memory, and it is made where
every operation on tensors passes: tied weights, views, fused kernels, scripted modules and weights handed over in lists
are all seen. Compiled modules run uncompiled inside. Under `fully_shard` (FSDP2) what reads the shards is the gathering
of the weights, so that a forward computes with W + shift u (`weights.shards`). What the replacement cannot see is
memory that is read without an operation (`numpy`, `tolist`, a custom kernel): `require_used` then names the parameter.

Weights are written by `Weights.move_`, `Weights.add_` and `load_values` alone; an evaluation writes none.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dpzero_theory.difference import Point
from dpzero_theory.optim.weights.directions import Directions, wide
from dpzero_theory.optim.weights.groups import Group, factors
from dpzero_theory.optim.weights.passes import NONE, Unread, at_all, derivative, derivatives
from dpzero_theory.optim.weights.precision import HALF, Rounding, require_names
from dpzero_theory.optim.weights.shards import (
    collected,
    is_collective,
    piece,
    require_sharded_by_rows,
    reshard,
    whole,
)
from dpzero_theory.optim.weights.shifted import Ahead, Place, Scratch, Shift, Shifted, extent, storages
from dpzero_theory.optim.weights.untrained import Untrained

_BLOCK = 1 << 17
"""How many coordinates of a released vector are added at a time, which bounds the memory that `add_` needs."""
_HASHED = 1 << 24
"""Values in a block of the fingerprint; the blocks of a parameter are hashed in several threads."""

Through = Callable[[int, slice, Tensor, Tensor], Tensor]
"""A function (parameter's index, coordinates of what this process holds of it, the sum of amount u there, the weights
there) -> what is added to the weights. Momentum and Adam are such functions."""


class Weights:
    """The parameters of a module with requires_grad, in the order of their names, at points x + shift u.

    Args:
        module: any Module on any devices. Its trainable parameters must be plain floating-point tensors in memory, or
            such tensors sharded by rows (FSDP2).
        directions: the random directions u_0, u_1, ... of the run.
        precision: how moves are rounded in half precision, one of `precision.PRECISIONS`.
        groups: parameters with factors of their own for the step size and the smoothing; see `weights.groups`.

    Attributes:
        names: the name of each parameter; of a tied one, which is there once, the first of its names.
        parameters: the parameters.
        sizes: their numbers of coordinates, of the whole ones where they are sharded.
        d: the sum of the sizes.
        factors: (factor of the step size, factor of the smoothing) of each parameter.
        collective: whether a forward needs all processes. Then `fingerprint` and `values` do, too.
        untrained: puts the module's buffers back after each evaluation, and guards its frozen parameters.

    Raises:
        ValueError: an unknown precision; a group that matches no parameter; a parameter that cannot be supported: on
            the meta device (offloaded), a tensor subclass (quantised), sharded otherwise, or sharing memory with
            another one; torch.nn.DataParallel and FSDP1.
    """

    def __init__(
        self, module: nn.Module, directions: Directions, *, precision: str = "nearest", groups: Sequence[Group] = ()
    ) -> None:
        found = _trainable(module)
        self.module, self.directions = module, directions
        self.collective = is_collective(module)
        self.names = tuple(found)
        self.parameters = tuple(found.values())
        self.sizes = tuple(parameter.numel() for parameter in self.parameters)
        self.d = sum(self.sizes)
        self._pieces = [piece(parameter) for parameter in self.parameters]
        self._places = storages(found)
        self.factors = factors(groups, self.names)
        self._smoothings = [smoothing for _, smoothing in self.factors]
        self._rounding = Rounding(precision, [held for held, _ in self._pieces])
        self._unread = {place.name for group in self._places.values() for place in group}
        largest = max(p.numel() * p.element_size() for p in self.parameters)
        on_gpu = any(p.device.type == "cuda" for p in self.parameters)
        self._scratch, self._ahead = Scratch(), Ahead(largest) if on_gpu else None
        self.untrained = Untrained(module, parameters=not self.collective)
        self._evaluating = False

    def evaluated(
        self, points: Sequence[Point], function: Callable[[nn.Module], Tensor], at_once: int = 1
    ) -> list[Tensor]:
        """Return function(module) with the weights at each of the points, in their order.

        A point is a pair (number, shift), which means x + shift u_number. Where the shift is None, the result is the
        derivative of function(module) along u_number at x (see `weights.passes`).

        Args:
            points: either all with a shift, or all with None for derivatives.
            function: what is evaluated.
            at_once: how many points are evaluated in one pass (see `weights.passes`), which changes the results by
                rounding only.

        Raises:
            ValueError: a function that has no derivative, or one that needs at_once = 1.
        """
        if at_once > 1 and self.collective:
            raise ValueError("points_at_once must be 1 where the module is sharded")
        found: list[Tensor] = []
        for first in range(0, len(points), at_once):
            number, shift = points[first]
            if shift is None:
                found += self._derivatives([each for each, _ in points[first : first + at_once]], function)
            elif at_once > 1:
                found += self._stacked(points[first : first + at_once], function)
            else:
                with self.shifted(number, shift):
                    found.append(function(self.module))
        return found

    @contextmanager
    def shifted(self, number: int, shift: float, mode: type[Shifted] = Shifted) -> Iterator[None]:
        """A context manager in whose block the module computes with the weights x + shift u_number.

        Inside, gradients are off, the module is in eval mode, and the weights are not written. The shift of a parameter
        in a group is multiplied by the group's smoothing factor. What an evaluation leaves in buffers is put back, and
        it may not write frozen parameters (`weights.untrained`).

        Outputs must be used up inside: a view of a weight (not a result computed from it) that leaves the context is a
        view of x. In half precision x + shift u is rounded to nearest, so that a coordinate with |shift u| below half
        the spacing of its numbers may not change.

        Args:
            number: of the direction.
            shift: a finite number.
            mode: the torch mode through which operations read the weights.

        Raises:
            ValueError: contexts that are nested, a number or shift outside its range, or a parameter that is written
                inside.
        """
        point = self._point(number, shift)
        if self._evaluating:
            raise ValueError("shifted contexts must not be nested")
        if self.collective:
            reshard(self.module)
        self.untrained.begin()
        reads = mode(point, self.places(), self._scratch, self._ahead, self._unread, self.untrained.guarded)
        training = [part for part in self.untrained.parts if part.training]
        try:
            self._evaluating = True
            if training:
                self.module.eval()
            torch.clear_autocast_cache()  # autocast may have kept half-precision copies of the unshifted weights
            with torch.no_grad(), reads:
                yield
        finally:
            self._evaluating = False
            if self._ahead is not None:
                self._ahead.forget()
            torch.clear_autocast_cache()
            if self.collective:
                reshard(self.module)
            for part in training:
                part.training = True
            self.untrained.put_back(written=reads.written)

    def require_used(self) -> None:
        """Raise ValueError naming the trainable parameters that no evaluation inside `shifted` has read so far."""
        if self._unread:
            names = ", ".join(sorted(self._unread))
            raise ValueError(f"the losses must read every trainable parameter (freeze the others); not read: {names}")

    def move_(self, amounts: Sequence[tuple[int, float]], through: Through | None = None) -> None:
        """Move the weights: x <- x + the sum of amount u_number over the pairs (number, amount).

        The new weights are a function of the old ones and `amounts` alone. The sum is formed in float32 in the order
        given, and added at once.

        Args:
            amounts: the pairs.
            through: a function such as momentum; what it makes of the sum is added in place of the sum.

        Raises:
            ValueError: an amount that is not finite, or a call inside `shifted`.
        """
        if self._evaluating:
            raise ValueError("move_ must not be called inside shifted")
        scales = [(number, self._scaled("amount", number, amount)) for number, amount in amounts]
        if not scales:
            return
        self.places()
        pieces = [(held, index, origin) for index, (held, origin) in enumerate(self._pieces) if held.numel()]
        nearest = self._rounding.precision == "nearest" or not any(held.dtype in HALF for held, _, _ in pieces)
        if through is None and len(scales) == 1 and nearest:
            self.directions.add_all_(pieces, *scales[0])
        else:
            for held, index, origin in pieces:
                self._move(held, index, origin, scales, through)
        if self.collective:
            reshard(self.module)

    def add_(self, values: Callable[[int, int, int], Tensor]) -> None:
        """Add a vector with one number for each weight to the weights, one block of coordinates after the other.

        Sums are rounded as by `move_`. A process whose shard does not hold the coordinates asks for them too, so that
        all processes ask for the same.

        Args:
            values: a function (index of a parameter, first coordinate, count) -> these coordinates of the vector,
                float64.
        """
        for index, (size, (held, origin)) in enumerate(zip(self.sizes, self.pieces(), strict=True)):
            flat = held.contiguous().view(-1)
            for start in range(0, size, _BLOCK):
                found = values(index, start, min(_BLOCK, size - start))
                first, last = max(start, origin), min(start + len(found), origin + len(flat))
                if first < last:
                    delta = found[first - start : last - start].to(wide(flat.dtype)).to(flat.device)
                    self._rounding.add_(flat, index, slice(first - origin, last - origin), delta)
            if not held.is_contiguous():
                held.copy_(flat.view(held.shape))
        if self.collective:
            reshard(self.module)

    def squared_norm(self, number: int) -> int:
        """Return ||v||^2, where v is the vector of integers along u_number; see `Directions.integers`."""
        return self.directions.squared_norm(number, self.sizes, self.parameters[0].device)

    def pieces(self) -> list[tuple[Tensor, int]]:
        """Return, for each parameter, the detached part that this process holds, and the first coordinate of that."""
        self.places()
        return self._pieces

    def places(self) -> dict[int, list[Place]]:
        """Return where the parameters lie in memory, by the storage that holds them (`shifted.storages`).

        It is looked up again where a parameter has moved, as after `.to`.
        """
        now = (piece(p)[0] for p in self.parameters) if self.collective else self.parameters
        if not all(
            own.dtype == held.dtype and own.device == held.device and own.is_set_to(held)
            for own, (held, _) in zip(now, self._pieces, strict=True)
        ):
            self._places = storages(dict(zip(self.names, self.parameters, strict=True)))
            self._pieces = [piece(parameter) for parameter in self.parameters]
        return self._places

    def fingerprint(self) -> str:
        """Return a SHA-256, in hexadecimal, of the names, shapes, types and values of the parameters.

        The values enter by the SHA-256 of each block: one processor would take minutes for 10^11 bytes in a row.
        """
        digest = hashlib.sha256()
        with ThreadPoolExecutor() as pool:
            for name, parameter in zip(self.names, self.parameters, strict=True):
                digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
                flat = whole(piece(parameter)[0], parameter).contiguous().view(-1)
                blocks = (flat[first : first + _HASHED] for first in range(0, flat.numel(), _HASHED))
                each = map if flat.numel() <= _HASHED else pool.map
                digest.update(b"".join(each(_sha256, (block.cpu() for block in blocks))))
        return digest.hexdigest()

    def values(self) -> dict[str, Tensor]:
        """Return copies of the parameters by name, in host memory.

        Of sharded parameters rank 0 gets the whole ones, and the other processes get none.
        """
        pieces = zip(self.names, self.pieces(), self.parameters, strict=True)
        found = {name: collected(held, parameter) for name, (held, _), parameter in pieces}
        return {name: value for name, value in found.items() if value is not None}

    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters to what `values` returned, in every process, sharded or not.

        Args:
            values: whole parameters by name.

        Raises:
            ValueError: other names or shapes.
        """
        require_names(values, self.names)
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if values[name].shape != parameter.shape:
                raise ValueError(f"{name} must be of shape {tuple(parameter.shape)}; got {tuple(values[name].shape)}")
            held, origin = piece(parameter)
            held.copy_(values[name].reshape(-1)[origin : origin + held.numel()].view(held.shape))
        if self.collective:
            reshard(self.module)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the 16 further bits of each half-precision weight, by the parameter's name, in host memory.

        They are what `values` leaves out of a checkpoint. The mapping is empty unless the precision is "master".
        """
        return self._rounding.state_dict(self.names, self.parameters)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back the further bits of half-precision weights that `state_dict` returned.

        They belong to the weights of the same moment, which `load_values` puts back. Raises ValueError for other names
        or shapes.
        """
        self._rounding.load_state_dict(state, self.names, self.parameters)

    def forget(self) -> None:
        """Set the further bits of half-precision weights to zero, as at the start; the weights stay as they are."""
        self._rounding.forget()

    def _scaled(self, name: str, number: int, amount: float) -> float:
        """Return the amount times the factor of the direction `number` (`Directions.factor`). name: of the amount."""
        if not (isinstance(amount, float | int) and math.isfinite(amount)):
            raise ValueError(f"{name} must be a finite number; got {amount!r:.40}")
        if not (isinstance(number, int) and 0 <= number < 2**64):
            raise ValueError(f"number must be an integer with 0 <= number < 2^64; got {number!r:.40}")
        if not self.directions.law.normalised:
            return amount
        return amount * self.directions.factor(number, self.sizes, self.parameters[0].device)

    def _point(self, number: int, shift: float) -> Shift:
        scale = self._scaled("shift", number, shift)
        return Shift(self.directions, number, scale, self._rounding.low, self._smoothings)

    def _stacked(self, points: Sequence[Point], function: Callable[[nn.Module], Tensor]) -> Sequence[Tensor]:
        """Return function(module) at these points, which all have a shift, computed in one pass."""
        shifts = [self._point(number, shift) for number, shift in points if shift is not None]
        parameters, places = self._placed()
        stacks = [torch.stack([shift.whole(place) for shift in shifts]) for place in places]
        with self.shifted(points[0][0], 0.0, Unread):
            return at_all(parameters, stacks, partial(function, self.module))

    def _derivatives(self, numbers: Sequence[int], function: Callable[[nn.Module], Tensor]) -> Sequence[Tensor]:
        """Return the derivatives of function(module) at x along the directions with these numbers, in one pass."""
        if self.collective:
            raise ValueError(f"{NONE}: the module is sharded")
        shifts, ask = [self._point(number, 1.0) for number in numbers], partial(function, self.module)
        parameters, places = self._placed()
        if len(shifts) == 1:
            with self.shifted(numbers[0], 0.0, Unread):
                return [derivative(ask, parameters, places, shifts[0], self._unread)]
        # losses get copies, so that whatever reads a parameter's own memory can be recognised and refused
        values = [place.tensor.clone(memory_format=torch.contiguous_format) for place in places]
        stacks = [torch.stack([shift.tangent(place) for shift in shifts]) for place in places]
        with self.shifted(numbers[0], 0.0, Unread):
            return derivatives(ask, parameters, values, stacks)

    def _placed(self) -> tuple[list[nn.Parameter], list[Place]]:
        """Return the parameters of which this process holds some coordinates, and where in memory each of them lies."""
        places = [place for group in self.places().values() for place in group]
        return [self.parameters[place.index] for place in places], places

    def _move(
        self,
        weight: Tensor,
        index: int,
        origin: int,
        scales: Sequence[tuple[int, float]],
        through: Through | None,
    ) -> None:
        """Move what this process holds of the parameter `index`, from its coordinate `origin` on.

        scales: pairs (number of a direction, amount times the direction's factor).
        """
        if self._rounding.is_plain(weight.dtype) and len(scales) == 1 and through is None:
            self.directions.add_(weight, scales[0][0], index, scales[0][1], origin)
            return
        if not weight.is_contiguous():
            copy = weight.contiguous()
            self._move(copy, index, origin, scales, through)
            weight.copy_(copy)
            return
        flat = weight.view(-1)
        pieces = [
            self.directions.blocks(number, index, origin, flat.numel(), scale, wide(weight.dtype), flat.device)
            for number, scale in scales
        ]
        for (here, delta), *others in zip(*pieces, strict=True):
            for _, values in others:
                delta.add_(values)
            if through is not None:
                delta = through(index, here, delta, self._rounding.value(flat, index, here, wide(weight.dtype)))
            self._rounding.add_(flat, index, here, delta)


def _sha256(block: Tensor) -> bytes:
    return hashlib.sha256(block.view(torch.uint8).numpy().data).digest()


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a module by name, in the order of names; a tied one by the first of its names.

    Raises ValueError for a module or parameter that is not supported.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module; got {type(module).__name__}")
    if any(isinstance(part, nn.DataParallel) for part in module.modules()):
        raise ValueError("module must not be torch.nn.DataParallel: its replicas are copies; use one process a device")
    reshard(module)
    require_sharded_by_rows(module)
    names: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names[parameter] = min(name, names.get(parameter, name))
    if not names:
        raise ValueError("module must have a trainable parameter (requires_grad); got none")
    for parameter, name in names.items():
        _require_supported(name, parameter)
    return {name: parameter for parameter, name in sorted(names.items(), key=lambda item: item[1])}


def _require_supported(name: str, parameter: nn.Parameter) -> None:
    if parameter.is_meta:
        raise ValueError(f"trainable parameter {name} must be in memory; got the meta device (is it offloaded?)")
    held = piece(parameter.data)[0]
    if type(held) is not Tensor:
        raise ValueError(f"trainable parameter {name} must be a plain tensor; got {type(held).__name__}")
    if held.layout != torch.strided or not held.is_floating_point():
        raise ValueError(f"trainable parameter {name} must be dense and floating-point; got {held.dtype}")
    start, stop = extent(held)
    if stop - start != held.numel():
        raise ValueError(f"trainable parameter {name} must fill its memory; got strides {held.stride()}")
