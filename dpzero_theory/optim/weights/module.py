"""The weights of a torch Module, evaluated at x + shift u without ever being written.

Inside `Weights.shifted` every operation that reads a trainable parameter W reads a fresh tensor W + shift u instead,
which dies with the operation. So nothing has to be restored, in any precision and whatever the loss function raises,
and memory grows by the largest parameter. The replacement (`shifted`) goes by memory and is made where every operation
on tensors passes, so tied weights, views, fused kernels, scripted modules and weights handed over in lists are all
seen; compiled modules run uncompiled inside. Under `fully_shard` (FSDP2) what reads the shards is the gathering of the
weights, so a forward computes with W + shift u, see `shards`. What the replacement cannot see is memory read without an
operation (`numpy`, `tolist`, a custom kernel): `require_used` then names the parameter.

`Weights.move_` alone writes weights.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dpzero_theory import check
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.groups import Group, factors
from dpzero_theory.optim.weights.layers import is_absent
from dpzero_theory.optim.weights.precision import HALF, PRECISIONS, join, round_stochastically, split
from dpzero_theory.optim.weights.shards import (
    collected,
    is_collective,
    is_sharded,
    piece,
    require_sharded_by_rows,
    reshard,
    whole,
)
from dpzero_theory.optim.weights.shifted import Place, Scratch, Shift, Shifted, extent, storages
from dpzero_theory.optim.weights.stacked import Unread, at_all, stack_of
from dpzero_theory.optim.weights.untrained import Untrained

_BLOCK = 1 << 17  # coordinates of a vector at a time
_HASHED = 1 << 24  # values in a block of the fingerprint

Scales = Sequence[tuple[int, float]]
"""(number, amount times the factor of the direction)."""
Through = Callable[[int, slice, Tensor, Tensor], Tensor]
"""(parameter, coordinates of what this process holds of it, sum of amounts u, weights there) -> what is added."""


class Weights:
    """The trainable parameters of a module (requires_grad), in name order, tied ones once (by their first name).

    module: any Module on any devices; its trainable parameters must be plain floating-point tensors in memory, or such
    tensors sharded by rows (FSDP2). directions: the u of the run. precision: how `move_` rounds in half precision, see
    `precision`. groups: of which `shifted` multiplies the shift, see `groups`.

    parameters, names, sizes, factors: in order, of whole parameters; d: the sum of the sizes; collective: whether a
    forward needs all processes (then `fingerprint`, `values` and `state_dict` do, too). Raises ValueError naming the
    parameter for what cannot be supported: parameters on the meta device (offloaded), tensor subclasses (quantised),
    parameters sharded otherwise, different parameters that share memory, torch.nn.DataParallel, FSDP1; and for a group
    that no parameter is in.
    """

    def __init__(
        self, module: nn.Module, directions: Directions, *, precision: str = "nearest", groups: Sequence[Group] = ()
    ) -> None:
        self.module = module
        self.directions = directions
        self.precision = check.choice("precision", precision, PRECISIONS)
        found = _trainable(module)
        self.collective = is_collective(module)
        self._places = storages(found)
        self.names = tuple(found)
        self.factors = factors(groups, self.names)
        self.parameters = tuple(found.values())
        self.sizes = tuple(parameter.numel() for parameter in self.parameters)
        self._held = [part for part, _ in self.pieces()]
        self.d = sum(self.sizes)
        self._low: dict[int, Tensor] = {}
        if precision == "master":
            for index, parameter in enumerate(self.parameters):
                if parameter.dtype in HALF:
                    count = piece(parameter)[0].numel()
                    self._low[index] = torch.zeros(count, dtype=torch.int16, device=parameter.device)
        self._unread = {place.name for group in self._places.values() for place in group}
        self._scratch = Scratch()
        self.untrained = Untrained(module, parameters=not self.collective, passed_over=self._passed_over)
        self._mode: Shifted | None = None
        self._found: tuple[bool, list[nn.Module]] = False, []

    @contextmanager
    def shifted(self, number: int, shift: float) -> Iterator[None]:
        """Evaluate at x + shift u_number: without gradients, in eval mode (dropout off), the weights unwritten.

        What an evaluation leaves in buffers is put back, and it may not write frozen parameters (`untrained`).
        Outputs must be used up inside: a view of a weight (not a result computed from it) that leaves the context is
        a view of x. In half precision x + shift u is rounded to nearest, so coordinates with |shift u| below half a
        spacing may not move. Raises ValueError when a parameter is written inside.

        An interrupt (Ctrl-C) that falls into its own few lines is made good by `restore`.
        """
        by = self._shift(number, shift)
        with self._reading(partial(Shifted, by, scratch=self._scratch, unread=self._unread)):
            yield

    def _shift(self, number: int, shift: float) -> Shift:
        scale = check.real("shift", shift) * self._factor(number)
        return Shift(self.directions, number, scale, self._low, [smoothing for _, smoothing in self.factors])

    @contextmanager
    def _reading(self, reads: Callable[..., Shifted]) -> Iterator[None]:
        if self._mode is not None:
            raise ValueError("shifted contexts must not be nested")
        self._reshard()
        self.untrained.begin()
        mode = reads(self._storages(), guarded=self.untrained.guarded)
        self._found = torch.is_grad_enabled(), [part for part in self.untrained.parts if part.training]
        try:
            self._mode = mode
            if self._found[1]:
                self.module.eval()
            torch.clear_autocast_cache()  # of half-precision copies, here of x and afterwards of x + shift u
            torch.set_grad_enabled(False)
            mode.begin()
            yield
        finally:
            if self._mode is mode:
                self.restore()

    def evaluated(
        self, points: Sequence[tuple[int, float]], function: Callable[[nn.Module], Tensor], at_once: int = 1
    ) -> list[Tensor]:
        """function(module) at x + shift u_number for each (number, shift) of the points.

        at_once: points in one pass, see `stacked`; up to rounding the same. Raises ValueError where it must be 1.
        """
        found: list[Tensor] = []
        if at_once == 1:
            for point in points:
                with self.shifted(*point):
                    found.append(function(self.module))
            return found
        if self.collective:
            raise ValueError("points_at_once must be 1 where the module is sharded")
        for first in range(0, len(points), at_once):
            shifts = [self._shift(*point) for point in points[first : first + at_once]]
            places = {place.index: place for group in self._storages().values() for place in group}
            stacks = [stack_of(shifts, places[index]) for index in places]
            with self._reading(partial(Unread, shifts[0], scratch=self._scratch, unread=set())):
                read = [self.parameters[index] for index in places]
                found += at_all(read, stacks, partial(function, self.module))
        return found

    def restore(self) -> None:
        """End a `shifted` that an interrupt has left open; nothing to do otherwise. Safe to repeat."""
        if self._mode is None:
            return
        self._mode.retire()
        grad, training = self._found
        torch.set_grad_enabled(grad)
        torch.clear_autocast_cache()
        self._reshard()
        for part in training:
            part.training = True
        self.untrained.put_back(written=self._mode.written)
        self._mode = None

    def move_(self, amounts: Sequence[tuple[int, float]], through: Through | None = None) -> None:
        """x <- x + sum of amount u_number over the (number, amount) pairs; a function of x and `amounts` alone.

        The sum is formed in float32 in the order given and added at once. Stochastic rounding takes its bits from the
        first number. through: adds what it makes of the sum instead. Raises ValueError.
        """
        if self._mode is not None:
            raise ValueError("move_ must not be called inside shifted")
        scales = [(number, check.real("amount", amount) * self._factor(number)) for number, amount in amounts]
        if not scales:
            return
        self._make(scales, through)
        self._reshard()

    def _make(self, scales: Scales, through: Through | None) -> None:
        for index, (held, origin) in enumerate(self.pieces()):  # detached, so no gradients are recorded
            if held.numel() and not is_absent(held):
                self._move(held, index, origin, scales, through)

    def add_(self, values: Callable[[int, int, int], Tensor], number: int) -> None:
        """x <- x + values(parameter, first coordinate, count), float64, a block after the other in order.

        Rounded as by `move_`, with the bits of `number` where rounding is stochastic. A process whose shard does not
        hold the coordinates asks for them too.
        """
        for index, (size, (held, origin)) in enumerate(zip(self.sizes, self.pieces(), strict=True)):
            flat = held.contiguous().view(-1)
            for start in range(0, size, _BLOCK):
                found = values(index, start, min(_BLOCK, size - start))
                first, last = max(start, origin), min(start + len(found), origin + len(flat))
                if first < last:
                    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
                    delta = found[first - start : last - start].to(wide).to(flat.device)
                    self._add(flat, index, origin, slice(first - origin, last - origin), delta, number)
            if not held.is_contiguous():
                held.copy_(flat.view(held.shape))
        self._reshard()

    def squared_norm(self, number: int) -> int:
        """||v||^2 of the integer vector along u_number, see `Directions.integers`."""
        return self.directions.squared_norm(number, self.sizes, self.parameters[0].device)

    def pieces(self) -> Iterator[tuple[Tensor, int]]:
        """What this process holds of each parameter, and the coordinate that it begins with."""
        return map(piece, self.parameters)

    def _storages(self) -> dict[int, list[Place]]:
        """The places of the parameters, looked for again where one has other memory than before (as after `.to`)."""
        if not all(map(_same_memory, self.parameters, self._held)):
            self._places = storages(dict(zip(self.names, self.parameters, strict=True)))
            self._held = [part for part, _ in self.pieces()]
        return self._places

    def _look_again(self) -> None:
        """Parameters have other memory than before, perhaps inside `shifted`."""
        if self._mode is not None:
            self._mode.places = self._storages()

    def _present(self) -> Iterator[Tensor]:
        """The parameters in order, each with its values in memory while it is the one."""
        return iter(self.parameters)

    def _passed_over(self, parameter: nn.Parameter) -> bool:
        """Whether other memory than before is no change of a frozen parameter."""
        return False

    def _reshard(self) -> None:
        if self.collective:
            reshard(self.module)

    def _move(
        self,
        weight: Tensor,
        index: int,
        origin: int,
        scales: Scales,
        through: Through | None,
    ) -> None:
        plain = self.precision == "nearest" or weight.dtype not in HALF
        if plain and len(scales) == 1 and through is None:
            self.directions.add_(weight, scales[0][0], index, scales[0][1], origin)
            return
        if not weight.is_contiguous():
            copy = weight.contiguous()
            self._move(copy, index, origin, scales, through)
            weight.copy_(copy)
            return
        flat = weight.view(-1)
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        pieces = [
            self.directions.blocks(number, index, origin, flat.numel(), scale, wide, flat.device)
            for number, scale in scales
        ]
        for (here, delta), *others in zip(*pieces, strict=True):
            for _, values in others:
                delta.add_(values)
            if through is not None:
                delta = through(index, here, delta, self._value(flat, index, here, wide))
            self._add(flat, index, origin, here, delta, scales[0][0])

    def _value(self, flat: Tensor, index: int, here: slice, wide: torch.dtype) -> Tensor:
        """Weights with the bits kept beside them."""
        low = self._low.get(index)
        return flat[here].to(wide) if low is None else join(flat[here], low[here])

    def _add(self, flat: Tensor, index: int, origin: int, here: slice, delta: Tensor, number: int) -> None:
        """flat[here] <- flat[here] + delta, rounded as `precision` says."""
        part, low = flat[here], self._low.get(index)
        if low is not None:
            value, low[here] = split(join(part, low[here]).add_(delta), flat.dtype)
            part.copy_(value)
        elif self.precision == "nearest" or flat.dtype not in HALF:
            part.add_(delta)
        else:
            fields = self.directions.uniform(number, index, origin + here.start, part.numel(), flat.device)
            part.copy_(round_stochastically(delta.add_(part), flat.dtype, fields))

    def _factor(self, number: int) -> float:
        check.integer("number", number, at_least=0, at_most=2**64 - 1)
        return self.directions.factor(number, self.sizes, self.parameters[0].device)

    def require_used(self) -> None:
        """Raise ValueError naming the trainable parameters that no evaluation inside `shifted` has read so far."""
        if self._unread:
            names = ", ".join(sorted(self._unread))
            raise ValueError(f"the losses must read every trainable parameter (freeze the others); not read: {names}")

    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the names, shapes and types of the trainable parameters, and of the SHA-256 of
        their values, block by block: one processor would take minutes for 10^11 bytes."""
        digest = hashlib.sha256()
        with ThreadPoolExecutor() as pool:
            for name, parameter in zip(self.names, self._present(), strict=True):
                digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
                flat = whole(piece(parameter)[0], parameter).contiguous().view(-1)
                blocks = (flat[first : first + _HASHED] for first in range(0, flat.numel(), _HASHED))
                each = map if flat.numel() <= _HASHED else pool.map
                digest.update(b"".join(each(_sha256, (block.cpu() for block in blocks))))
        return digest.hexdigest()

    def values(self) -> dict[str, Tensor]:
        """Copies of the trainable parameters by name, in host memory; of sharded ones whole, on rank 0 alone."""
        named = zip(self.names, self.parameters, strict=True)
        return _present({name: collected(piece(parameter)[0], parameter) for name, parameter in named})

    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Put back what `values` returned, on every process, sharded or not. Raises ValueError."""
        _require_names(values, self.names)
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if values[name].shape != parameter.shape:
                raise ValueError(f"{name} must be of shape {tuple(parameter.shape)}; got {tuple(values[name].shape)}")
            held, origin = piece(parameter)
            held.copy_(values[name].reshape(-1)[origin : origin + held.numel()].view(held.shape))
        self._reshard()

    def state_dict(self) -> dict[str, Tensor]:
        """The bits kept beside half-precision weights by name, as `values`: empty unless precision is "master"."""
        kept = [(self.names[index], low, self.parameters[index]) for index, low in self._low.items()]
        wide = {name: collected(low.view(piece(of)[0].shape).int(), of) for name, low, of in kept}  # no int16 on wires
        return {name: bits.view(-1).to(torch.int16) for name, bits in _present(wide).items()}

    def forget(self) -> None:
        """Drop the bits kept beside half-precision weights, as at the start."""
        for low in self._low.values():
            low.zero_()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` returned, beside the weights of that moment. Raises ValueError."""
        _require_names(state, [self.names[index] for index in self._low])
        for index, low in self._low.items():
            bits, size = state[self.names[index]], self.sizes[index]
            if bits.dtype != torch.int16 or bits.shape != (size,):
                raise ValueError(f"state of {self.names[index]} must be int16 of shape ({size},); got {bits.dtype}")
            origin = piece(self.parameters[index])[1]
            low.copy_(bits[origin : origin + low.numel()])


def _sha256(block: Tensor) -> bytes:
    return hashlib.sha256(block.view(torch.uint8).numpy().data).digest()


def _same_memory(parameter: Tensor, held: Tensor) -> bool:
    own = piece(parameter)[0] if is_sharded(parameter) else parameter
    return own.dtype == held.dtype and own.device == held.device and own.is_set_to(held)


def _present(found: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _require_names(state: Mapping[str, Tensor], names: Sequence[str]) -> None:
    if set(state) != set(names):
        raise ValueError(f"state must hold the parameters {sorted(names)}; got {sorted(state)}")


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by their first name in the order of names. Raises ValueError for unsupported ones."""
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
        _supported(name, parameter)
    return {name: parameter for parameter, name in sorted(names.items(), key=lambda item: item[1])}


def _supported(name: str, parameter: nn.Parameter) -> None:
    if parameter.is_meta:
        raise ValueError(f"trainable parameter {name} must be in memory; got the meta device (is it offloaded?)")
    held = piece(parameter.data)[0]
    if type(held) is not Tensor:
        raise ValueError(f"trainable parameter {name} must be a plain tensor; got {type(held).__name__}")
    if held.layout != torch.strided or not held.is_floating_point():
        raise ValueError(f"trainable parameter {name} must be dense and floating-point; got {held.dtype}")
    start, stop = extent(held)
    if stop - start != held.numel() and not is_absent(held):
        raise ValueError(f"trainable parameter {name} must fill its memory; got strides {held.stride()}")
