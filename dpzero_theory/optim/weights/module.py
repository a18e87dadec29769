"""The trainable weights x of a torch module, which a run evaluates at points x + shift u and moves along directions u.

An evaluation does not write the weights, so that they need not be restored, in any precision and whatever the loss
function raises: functions that read a trainable parameter compute with x + shift u (`weights.shifted`). Tied weights,
views, fused kernels and weights handed over in lists are all seen, and compiled modules run uncompiled. Under
`fully_shard` (FSDP2) forwards read whole weights, which FSDP has gathered, and each process moves the rows that it
holds (`weights.shards`). Ways of reading weights that cannot be seen are refused before a run begins (`shifted.Guard`).

Weights are written by `Weights.move_` and `Weights.load_values` alone. An evaluation puts the module in eval mode, and
puts that and its buffers back afterwards; it clears autocast's cache of the process.
"""

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpzero_theory.difference import Point
from dpzero_theory.optim.weights import packed
from dpzero_theory.optim.weights.directions import WIDE, Directions, blocks, whole_products
from dpzero_theory.optim.weights.recorded import recorder
from dpzero_theory.optim.weights.shards import is_collective, is_sharded, piece, require_sharded_by_rows, reshard, whole
from dpzero_theory.optim.weights.shifted import NONE, Guard, Shifted, differentiable, storage_of
from dpzero_theory.optim.weights.untrained import Untrained

_HASHED = 1 << 24
"""How many values a block of the fingerprint has."""


class Weights:
    """The parameters of a module with requires_grad, in the order of their names, at points x + shift u.

    Args:
        module: any Module on any devices. Its trainable parameters must be plain floating-point tensors in memory, or
            such tensors sharded by rows (FSDP2).
        directions: the random directions u_0, u_1, ... of the run.

    Attributes:
        names: the name of each parameter. A tied one is there once, with the alphabetically first of its names.
        parameters: the parameters.
        shapes, sizes: the shapes of the weights that are trained, and their numbers of coordinates. They are those of
            the whole parameters, with one exception. The weight W of a quantised linear layer that `train_packed` made
            trainable cannot be written; the layer has a parameter `packed_moves` in its place, a list of what is to be
            added to W. For that parameter they are the shape and size of W.
        d: the sum of the sizes.
        collective: whether all processes must take part in a forward, since the module is sharded. Then all of them
            must call `fingerprint` and `values` too.
        untrained: an `Untrained`, which puts the module's buffers back after each evaluation, and by which a run ends
            with ValueError after a step that wrote a frozen parameter.
        guarded: whether evaluations refuse, by ValueError, operations that read a trainable parameter where x + shift u
            cannot take its place (through a view that was kept, or in a scripted module), or write what must stay. True
            at first; a run sets it to False, as the evaluations before its first step have refused such losses.
        ids: the index of each trainable parameter by the `id` of its tensor. `index` adds the whole ones that FSDP
            gathers, and None for frozen ones.
        unread: the names of the parameters with which no evaluation so far has computed.

    Raises:
        ValueError: a parameter that cannot be supported: on the meta device (offloaded), a tensor subclass (quantised),
            sharded in another way, or sharing memory with another one; no trainable parameter; torch.nn.DataParallel
            and FSDP1; scripted parts; a parameter `packed_moves` with directions that are not low-rank, or that are
            longer along some weights than along others (`Directions.shape`); such a shape, made for other parameters.
    """

    def __init__(self, module: nn.Module, directions: Directions) -> None:
        found = _trainable(module)
        self.module, self.directions = module, directions
        self.collective = is_collective(module)
        self.names = tuple(found)
        self.parameters = tuple(found.values())
        self.shapes = tuple(packed.shape_of(name, parameter) for name, parameter in found.items())
        self.sizes = tuple(math.prod(shape) for shape in self.shapes)
        self._packed = {index for index, name in enumerate(self.names) if packed.is_packed(name)}
        if self._packed and (not directions.law.rank or directions.shape):
            raise ValueError(
                "direction must be low-rank, without a shape, where packed layers are trained (train_packed); got"
                f" {directions.law.name}{' with a shape' if directions.shape else ''}"
            )
        if directions.shape is not None:
            directions.shape.require(self.names, self.shapes)
        self.d = sum(self.sizes)
        whole = [None if is_sharded(parameter) else parameter for parameter in self.parameters]
        self._sharded = None in whole
        self.ids: dict[int, int | None] = {id(p): index for index, p in enumerate(whole) if p is not None}
        self.unread = set(self.names)
        self.untrained = Untrained(module, parameters=not self.collective)
        self.guarded = True
        self._evaluating = False
        self._spare: torch.UntypedStorage | None = None
        self._moves: dict[Any, Any] = {}

    def evaluated(
        self,
        points: Sequence[Point],
        function: Callable[..., Tensor],
        at_once: int = 1,
        records: int = 0,
        scale: Tensor | None = None,
    ) -> list[Tensor]:
        """Return function(module) with the weights at each of the points, in their order.

        A point is a pair (number, shift), which means x + shift u_number. Where the shift is None, the result is the
        derivative of function(module) along u_number at x.

        Args:
            points: either all with a shift, or all with None for derivatives.
            function: a function of the module that returns a number for each record, shape (records,).
            at_once: how many points are evaluated in one pass, which changes the results by rounding only. For P > 1
                points function(module, P) is called, which must return the numbers of P copies of the records, one copy
                after the other. Directions must then have low rank.
            records: how many records the function evaluates; needed if at_once > 1.
            scale: the shifts of all points, as a float64 tensor on the weights' device, for low-rank directions and one
                pass. They are read from there, so that a recording of the pass can be replayed with other shifts.

        Raises:
            ValueError: the function has no derivative, or cannot be evaluated at several points in one pass; or as in
                `shifted`.
            Exception: what the function raises.
        """
        found: list[Tensor] = []
        for first in range(0, len(points), at_once):
            part = points[first : first + at_once]
            numbers, shifts = [number for number, _ in part], [shift for _, shift in part if shift is not None]
            call = partial(function, self.module, len(part)) if len(part) > 1 else partial(function, self.module)
            if shifts:
                with self.shifted(numbers, shifts, len(part) * records, scale):
                    values = call()
            elif self.collective or self._packed:
                why = "the module is sharded" if self.collective else "packed layers have no derivatives"
                raise ValueError(f"{NONE}: {why}")
            else:
                with differentiable() as derivative_of, self.shifted(numbers, None, len(part) * records):
                    values = derivative_of(call())
            found += [values] if len(part) == 1 else values.view(len(part), -1).unbind()
        return found

    @contextmanager
    def shifted(
        self, numbers: Sequence[int], shifts: Sequence[float] | None, rows: int = 0, scale: Tensor | None = None
    ) -> Iterator[None]:
        """A context manager in whose block the module computes with the weights x + shift u_number.

        Inside, gradients are off, the module is in eval mode, and the weights are not written. Buffers that an
        evaluation writes are put back, and it may not write frozen parameters (`weights.untrained`).

        Outputs must be used up inside: a view of a weight (not a result computed from it) that leaves the context is a
        view of x. In half precision a whole weight x + shift u is rounded to nearest, so that a coordinate with |shift
        u| below half the spacing of its numbers may not change.

        Args:
            numbers: the number of a direction for each of the P points that are evaluated in one pass (`evaluated`).
            shifts: the shifts along them, finite numbers; None for derivatives by the shift at x, as dual numbers.
            rows: with P > 1, the number of rows of the batch, which has P copies of its records; else it is not used.
            scale: the shifts as a float64 tensor on the weights' device, which is read in their place; None for none.

        Raises:
            ValueError: contexts that are nested, a shift that is not finite, or a parameter that is written inside.
        """
        if self._evaluating:
            raise ValueError("shifted contexts must not be nested")
        scales = [self._scaled("shift", *pair) for pair in zip(numbers, shifts or [1.0] * len(numbers), strict=True)]
        if len(numbers) > 1 and not self.directions.law.rank:
            raise ValueError(
                f"points_at_once must be 1 where directions are not low-rank; got {self.directions.law.name}"
            )
        self.untrained.begin()
        training = [part for part in self.untrained.parts if part.training]
        guard = None
        if self.guarded:
            at_x = shifts is not None and not any(scales)  # without a shift, reading x from memory is right
            held = zip(self.pieces(), self.names, strict=True)
            trained = {} if at_x else {storage_of(part): name for (part, _), name in held}
            guard = Guard(trained, self.untrained.guarded, sharded=self.collective)
        reads = Shifted(self, numbers, scales, rows, guard, exact=shifts is None, scale=scale)
        self._evaluating = True
        try:
            if training:
                self.module.eval()
            torch.clear_autocast_cache()  # autocast may have kept copies of the weights at another point
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if "torch._dynamo" in sys.modules:
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.enter_context(reads)
                if guard is not None:
                    stack.enter_context(guard)
                yield
        except RuntimeError as error:  # TorchScript's interpreter replaces the guard's error by its own
            raise error if guard is None or guard.refused is None else guard.refused from error
        finally:
            self._evaluating = False
            for part in training:
                part.training = True
            self.untrained.put_back(written=reads.written)

    def recorder(self) -> Callable[[Callable[[], Any]], Callable[[], Any]] | None:
        """Return a function that calls a function without arguments once, records the GPU kernels that it starts as a
        CUDA graph without running them, and returns the replay: a function that runs them, and returns the tensors of
        that call, overwritten each time. It raises what the call raises, and RuntimeError for what cannot be recorded.
        None on a CPU, on several devices, for sharded weights, for quantised layers that `train_packed` made trainable,
        and for directions that are not low-rank."""
        one = len({parameter.device for parameter in self.parameters}) == 1
        fixed = not self.collective and not self._packed
        return recorder(self.parameters[0].device) if one and self.directions.law.rank and fixed else None

    def memory(self) -> tuple[int, ...]:
        """Return numbers that change when parameters or buffers get other memory, which CUDA graphs do not follow."""
        self.untrained.begin()
        return self.untrained.taken, *(parameter.data_ptr() for parameter in self.parameters)

    def index(self, value: object) -> int | None:
        """Return the index of `value` among the trainable parameters, whole ones that FSDP has gathered included; None
        if it is none of them."""
        found = self.ids.get(id(value), -1)
        if found == -1 and self.collective and type(value) is nn.Parameter:  # FSDP gathers into objects of its own
            names = {name: index for index, name in enumerate(self.names)}
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if type(parameter) is nn.Parameter:
                    self.ids.setdefault(id(parameter), names.get(name))
            found = self.ids.get(id(value))
        return None if found == -1 else found

    def spare(self, like: Tensor) -> Tensor:
        """Return a new contiguous tensor of the shape, type and device of `like`, whose values are undefined.

        On a CPU it takes the memory of the last such tensor if nothing refers to that tensor any more, since
        allocating memory takes longer than computing a sum in it.
        """
        if like.device.type != "cpu":
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        size, kept = like.numel() * like.element_size(), self._spare
        if kept is None or kept.nbytes() < size:
            kept = self._spare = torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
        elif torch._C._storage_Use_Count(kept._cdata) > 1:
            kept = torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
        found: Tensor = torch.empty(0, dtype=like.dtype).set_(kept, 0, like.shape)  # type: ignore[call-overload]
        return found

    def require_used(self) -> None:
        """Raise ValueError naming the trainable parameters that no evaluation inside `shifted` has read so far."""
        if self.unread:
            names = ", ".join(sorted(self.unread))
            raise ValueError(f"the losses must read every trainable parameter (freeze the others); not read: {names}")

    def move_(self, amounts: Sequence[tuple[int, float]]) -> None:
        """Move the weights: x <- x + the sum of amount u_number over the pairs (number of a direction, amount) in
        `amounts`.

        The new weights are a function of the old ones and `amounts` alone. The sum is formed first, in float32 (float64
        for float64), and then added to x. For low-rank laws the amounts are rounded so that the sum has the same bits
        in any order, and with more than 64 terms (pairs times the law's rank) it is formed in float64; for other laws
        it is formed in the order given. A layer made trainable by `train_packed` adds the pairs to its list. Raises
        ValueError for an amount that is not finite, and inside `shifted`.
        """
        if self._evaluating:
            raise ValueError("move_ must not be called inside shifted")
        scales = [(number, self._scaled("amount", number, amount)) for number, amount in amounts]
        if not scales:
            return
        if self.directions.law.rank:
            with torch.autocast(self.parameters[0].device.type, enabled=False), whole_products():
                self._move_all(scales)
        else:
            self._move(scales)
        self._drop_old_weights()

    def _move_all(self, scales: Sequence[tuple[int, float]]) -> None:
        # On a GPU `_move` is recorded as a CUDA graph at the second move of as many directions, and then replayed.
        record = self.recorder()
        if record is None:
            return self._move(scales)
        known = len(scales), self.memory()
        if known not in self._moves:
            self._moves = {known: None}
            self._move(scales)
            return
        numbers, amounts = zip(*scales, strict=True)
        self.directions.write(numbers, amounts, self.shapes)
        replay = self._moves[known]
        if replay is None:
            replay = self._moves[known] = record(partial(self._move, scales))
        replay()

    def _move(self, scales: Sequence[tuple[int, float]]) -> None:
        # Adds to what this process holds of the parameters the sum over the pairs (number of a direction, scale) in
        # `scales` of scale times the vector that `Directions` computes for this direction.
        directions, rank = self.directions, self.directions.law.rank
        for index, (held, origin) in enumerate(self.pieces()):
            if index in self._packed:
                first_sign = directions.place(index, self.shapes)
                packed.move_(self.parameters[index], directions, first_sign, scales)
                continue
            flat, width = held.contiguous().view(-1), math.prod(self.shapes[index][1:])
            summed = WIDE.get(held.dtype, torch.float32)
            plain = len(scales) == 1 and held.is_contiguous()
            if plain and not rank:
                ((number, amount),) = scales
                directions.shift(flat, number, index, amount, origin, out=flat)
                continue
            if plain and rank == 1 and len(held.shape) > 1 and width > 0 and (held.dtype == summed or held.is_cuda):
                # each entry of the product is plus or minus one number, so a weight is rounded once on every device
                (number, amount), begin, matrix = scales[0], origin // width, flat.view(-1, width)
                left, right = directions.factors((number,), index, self.shapes, summed, held.device)
                moved = left[0, 0, begin : begin + len(matrix)] * directions.amounts(
                    (amount,), True, summed, held.device
                )
                matrix.addcmul_(moved[:, None], right[0, 0])  # type: ignore[index]
                continue
            for start, rows in blocks(flat.numel() // width if width else 0, held.device, width):
                here, first = slice(start * width, (start + rows) * width), origin // width + start
                delta = directions.sum(scales, index, self.shapes, first, first + rows, summed, held.device).view(-1)
                flat[here].add_(delta)
            if not held.is_contiguous():
                held.copy_(flat.view(held.shape))

    def pieces(self) -> list[tuple[Tensor, int]]:
        """Return for each parameter the part that this process holds, a detached tensor in the parameter's memory, and
        the index of its first coordinate in the whole parameter (row-major)."""
        if self._sharded:
            return [piece(parameter) for parameter in self.parameters]
        return [(parameter.detach(), 0) for parameter in self.parameters]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the names, shapes, types and values of the parameters, 64 hexadecimal digits.

        If the module is sharded, every process must call this method.
        """
        digest = hashlib.sha256()
        for name, parameter in zip(self.names, self.parameters, strict=True):
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            flat = whole(parameter).contiguous().view(-1)
            for first in range(0, flat.numel(), _HASHED):  # block by block, as the host may not hold a second copy
                block = flat[first : first + _HASHED].cpu().view(torch.uint8).numpy()
                digest.update(hashlib.sha256(block.data).digest())
        return digest.hexdigest()

    def values(self) -> dict[str, Tensor]:
        """Return copies of the parameters by name, in host memory.

        If the module is sharded, every process must call this method; rank 0 gets the whole parameters that are
        sharded, and the other processes do not get them.
        """
        found = {}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            value = whole(parameter)
            if not is_sharded(parameter) or dist.get_rank() == 0:
                found[name] = value.to("cpu", copy=True)
        return found

    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters to `values`, whole parameters by name; of a sharded one, the rows that this process holds.

        Raises ValueError for names, shapes or types that are not those of the trainable parameters.
        """
        if set(values) != set(self.names):
            raise ValueError(f"state must hold the parameters {sorted(self.names)}; got {sorted(values)}")
        for name, parameter in zip(self.names, self.parameters, strict=True):
            value = values[name]
            if packed.is_packed(name) and value.dtype == parameter.dtype and value.shape[1:] == parameter.shape[1:]:
                parameter.data = value.to(parameter.device, copy=True)
                continue
            wanted, given = ((tuple(one.shape), one.dtype) for one in (parameter, value))
            if given != wanted:
                raise ValueError(f"{name} must be of shape {wanted[0]} and {wanted[1]}; got {given[0]}, {given[1]}")
            held, origin = piece(parameter)
            held.copy_(value.reshape(-1)[origin : origin + held.numel()].view(held.shape))
        self._drop_old_weights()

    def _drop_old_weights(self) -> None:
        torch.clear_autocast_cache()
        if self.collective:
            reshard(self.module)

    def _scaled(self, name: str, number: int, amount: float) -> float:
        # The vector that `Directions` computes for direction `number`, times the result, is the direction times
        # `amount`
        if not (isinstance(amount, float | int) and math.isfinite(amount)):
            raise ValueError(f"{name} must be a finite number; got {amount!r:.40}")
        if not self.directions.law.normalised:
            return amount * self.directions.scale
        return amount * self.directions.factor(number, self.sizes, self.parameters[0].device)


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    # In alphabetical order by name; a tied parameter has its first name
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module; got {type(module).__name__}")
    if any(isinstance(part, nn.DataParallel) for part in module.modules()):
        raise ValueError("module must not be torch.nn.DataParallel: its replicas are copies; use one process a device")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and any(p.requires_grad for p in part.parameters()):
            raise ValueError(f"module must not have trainable parts that are scripted; got {name or 'itself'}")
    reshard(module)
    require_sharded_by_rows(module)
    names: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names[parameter] = min(name, names.get(parameter, name))
    if not names:
        raise ValueError("module must have a trainable parameter (requires_grad); got none")
    memory: dict[int, str] = {}
    for parameter, name in names.items():
        _require_supported(name, parameter)
        held = piece(parameter)[0]
        if held.numel() and (other := memory.setdefault(storage_of(held), name)) != name:
            raise ValueError(f"trainable parameters must not share memory; got {other} and {name}")
    return {name: parameter for parameter, name in sorted(names.items(), key=lambda item: item[1])}


def _require_supported(name: str, parameter: nn.Parameter) -> None:
    if parameter.is_meta:
        raise ValueError(f"trainable parameter {name} must be in memory; got the meta device (is it offloaded?)")
    held = piece(parameter.data)[0]
    if type(held) is not Tensor:
        raise ValueError(f"trainable parameter {name} must be a plain tensor; got {type(held).__name__}")
    if held.layout != torch.strided or not held.is_floating_point():
        raise ValueError(f"trainable parameter {name} must be dense and floating-point; got {held.dtype}")
