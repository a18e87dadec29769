"""The trainable weights x of a torch module, with which it is evaluated at x + shift u, and which a run moves.

An evaluation does not write the weights, so they need not be restored, even after an exception. Instead, functions of
torch that read a trainable parameter compute with the shifted one (`weights.shifted`). This covers tied weights, views,
fused kernels and lists of weights; compiled modules run uncompiled. Ways of reading weights that escape it are refused
before a run begins (`shifted.Guard`). With FSDP2 each process moves its own rows (`weights.shards`).

Only `Weights.move_` and `Weights.load_values` write the weights. An evaluation puts the module into eval mode, and
afterwards restores its mode and its buffers. It clears the process's autocast cache.
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
"""The number of values that `Weights.fingerprint` hashes at a time."""


class Weights:
    """The trainable parameters x of a module, to be evaluated at x + shift u and moved along random directions u.

    Args:
        module: the module. Its parameters with requires_grad=True must be plain floating-point tensors in memory, or
            such tensors that `fully_shard` (FSDP2) has sharded by rows. They may be on several devices.
        directions: the random directions u_0, u_1, ... of the run.

    Attributes:
        names: the names of the trainable parameters, sorted; for a tied parameter only the first of its names.
        parameters: these parameters, in the same order.
        shapes, sizes: the shape of each whole parameter, and its number of entries. A quantised linear layer that
            `train_packed` made trainable is an exception: its parameter `packed_moves` lists the changes of the layer's
            weight matrix, and counts with the shape and size of that matrix.
        d: the sum of the sizes.
        collective: whether a forward pass needs all processes, because the module is sharded. If True, every process
            must also call `fingerprint` and `values`.
        untrained: an `Untrained`, which restores the module's buffers after each evaluation.
        guarded: whether evaluations raise ValueError for operations that read a trainable parameter in a way that
            escapes the shift, or write a frozen parameter or large buffer. It is True at first. A run sets it to False,
            since the evaluations before the first step have refused such losses.
        ids: a mapping from `id(parameter)` to the parameter's index, or to None if it is frozen. `index` adds the whole
            parameters that FSDP gathers.
        unread: the names of the trainable parameters that no evaluation has read so far.

    Raises:
        ValueError: no parameter is trainable; a trainable parameter is on the meta device, a tensor subclass (as
            quantised weights are), not floating-point, sharded in another way, or shares memory with another one; the
            module is a DataParallel or FSDP1 module or has trainable scripted parts; layers of `train_packed` come with
            directions that are not low-rank or have a public shape; or this shape was made for other parameters.
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
        """Return function(module), evaluated at each of several points, in the order of the points.

        Args:
            points: pairs (number, shift): the point is x + shift u, where u is the direction with this index in the
                run. If all shifts are None, results are the derivatives of function(module) at x along u.
            function: a function that takes the module and returns a tensor of shape (records,). For a pass over P > 1
                points, function(module, P) is called; it must evaluate P copies of the batch, one after the other, and
                return P * records numbers.
            at_once: how many points are evaluated in one pass, >= 1. More than 1 requires low-rank directions, and
                changes the results by rounding only.
            records: the number of records that the function evaluates; only needed if at_once > 1.
            scale: None, or, for a single pass with low-rank directions, a float64 tensor on the weights' device with
                each point's shift times `directions.scale`. It is read in place of the shifts in `points`, so that a
                CUDA graph of the pass can be replayed with other shifts.

        Returns:
            A tensor of shape (records,) for each point.

        Raises:
            ValueError: the function has no derivative, or cannot be evaluated at several points in one pass; a shift is
                not finite; the call is inside a `shifted` block; or the function does what `guarded` refuses.
            Exception: any exception of the function.
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
        """A context manager in whose block the module computes with the weights x + shift u, in eval mode.

        Gradients are off, and the weights are not written. Afterwards buffers that were written are restored. Use
        results inside the block: a view of a weight that leaves it is a view of x. If the weights are in half
        precision, x + shift u is rounded to it, so a coordinate may stay as it is if its shift is small.

        Args:
            numbers: for each of the P points that are evaluated in one pass, the index of its direction u in the run.
            shifts: for each point a finite number; None to compute derivatives by the shift at x, with dual numbers.
            rows: if P > 1, the number of rows of the batch, which has P copies of its records; not used otherwise.
            scale: None, or a float64 tensor on the weights' device with each point's shift times `directions.scale`,
                which is read in place of `shifts`.

        Raises:
            ValueError: contexts are nested, a shift is not finite, P > 1 without low-rank directions, or the block does
                what the attribute `guarded` refuses.
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
            at_x = shifts is not None and not any(scales)  # Then reading x itself is right
            held = zip(self.pieces(), self.names, strict=True)
            trained = {} if at_x else {storage_of(part): name for (part, _), name in held}
            guard = Guard(trained, self.untrained.guarded, sharded=self.collective)
        reads = Shifted(self, numbers, scales, rows, guard, exact=shifts is None, scale=scale)
        self._evaluating = True
        try:
            if training:
                self.module.eval()
            torch.clear_autocast_cache()  # It may hold copies of the weights with another shift
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if "torch._dynamo" in sys.modules:
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.enter_context(reads)
                if guard is not None:
                    stack.enter_context(guard)
                yield
        except RuntimeError as error:  # TorchScript raises its own error in place of the guard's
            raise error if guard is None or guard.refused is None else guard.refused from error
        finally:
            self._evaluating = False
            for part in training:
                part.training = True
            self.untrained.put_back(written=reads.written)

    def recorder(self) -> Callable[[Callable[[], Any]], Callable[[], Any]] | None:
        """Return a function `record` that records GPU computations as CUDA graphs; None if they cannot be recorded.

        record(work) calls work() once, and records the GPU kernels that this starts without running them. It returns a
        function that runs these kernels, and returns the tensors that work() returned, with new values. record(work)
        raises what work() raises, and RuntimeError for kernels that cannot be recorded. The result is None on a CPU or
        several devices, for sharded weights or layers of `train_packed`, and without low-rank directions.
        """
        one = len({parameter.device for parameter in self.parameters}) == 1
        fixed = not self.collective and not self._packed
        return recorder(self.parameters[0].device) if one and self.directions.law.rank and fixed else None

    def memory(self) -> tuple[int, ...]:
        """Return numbers that change whenever the module's parameters or buffers move to other memory. CUDA graphs that
        were recorded before must not be replayed then."""
        self.untrained.begin()
        return self.untrained.taken, *(parameter.data_ptr() for parameter in self.parameters)

    def index(self, value: object) -> int | None:
        """Return the index of `value` in `parameters`; None if it is no trainable parameter. A whole parameter that
        FSDP has gathered has the index of its sharded one."""
        found = self.ids.get(id(value), -1)
        if found == -1 and self.collective and type(value) is nn.Parameter:  # FSDP gathers into new objects
            names = {name: index for index, name in enumerate(self.names)}
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if type(parameter) is nn.Parameter:
                    self.ids.setdefault(id(parameter), names.get(name))
            found = self.ids.get(id(value))
        return None if found == -1 else found

    def spare(self, like: Tensor) -> Tensor:
        """Return a contiguous tensor with the shape, type and device of `like`, whose values are undefined.

        On a CPU it uses the memory of the last tensor that this method returned, unless that is too small or in use.
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
        """Raise ValueError, with the names, if evaluations inside `shifted` have not read all trainable parameters."""
        if self.unread:
            names = ", ".join(sorted(self.unread))
            raise ValueError(f"the losses must read every trainable parameter (freeze the others); not read: {names}")

    def move_(self, amounts: Sequence[tuple[int, float]]) -> None:
        """Move the weights: x <- x + sum of amount * u over the pairs `amounts`.

        The new weights depend on the old ones and `amounts` alone. The sum is computed first, in float32 (for float64
        weights in float64), then added to x. With low-rank directions the amounts are rounded so that the sum has the
        same bits in any order, and a sum of more than 64 terms (pairs times rank) is computed in float64. With others
        the order is the one given. A layer of `train_packed` adds the pairs to its list instead.

        Args:
            amounts: pairs (index of a direction u in the run, amount).

        Raises:
            ValueError: an amount is not finite, or the method is called inside `shifted`.
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
        # On a GPU, records `_move` as a CUDA graph at the second move with this number of directions, then replays it.
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
        # Adds the sum of scale * v over the pairs (index of a direction u, scale) in `scales` to the parameters, or to
        # the rows of them that this process holds. Here u = c * v, and scale = c * amount already has the number c.
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
                # Every entry of the outer product is one number with a sign, so each weight is rounded only once
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
        """Return what this process holds of each trainable parameter: pairs (tensor, index of its first entry in the
        whole parameter, in row-major order). The tensor is detached and shares the parameter's memory."""
        if self._sharded:
            return [piece(parameter) for parameter in self.parameters]
        return [(parameter.detach(), 0) for parameter in self.parameters]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the names, shapes, types and values of the trainable parameters, as 64 hexadecimal
        digits. If the module is sharded, every process must call this method."""
        digest = hashlib.sha256()
        for name, parameter in zip(self.names, self.parameters, strict=True):
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            flat = whole(parameter).contiguous().view(-1)
            for first in range(0, flat.numel(), _HASHED):  # By blocks: memory may not hold a second copy
                block = flat[first : first + _HASHED].cpu().view(torch.uint8).numpy()
                digest.update(hashlib.sha256(block.data).digest())
        return digest.hexdigest()

    def values(self) -> dict[str, Tensor]:
        """Return copies of the trainable parameters, by name, in host memory.

        If the module is sharded, every process must call this method, and rank 0 alone gets the sharded parameters.
        """
        found = {}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            value = whole(parameter)
            if not is_sharded(parameter) or dist.get_rank() == 0:
                found[name] = value.to("cpu", copy=True)
        return found

    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Set the trainable parameters to the whole tensors `values`, given by name; a process that holds some rows of
        a parameter takes these rows.

        Raises ValueError if the names, shapes or types are not those of the trainable parameters.
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
        # Returns the number by which to multiply the vector that `Directions` computes, to get `amount` times the
        # direction `number`. `name` is the amount's name in the error message.
        if not (isinstance(amount, float | int) and math.isfinite(amount)):
            raise ValueError(f"{name} must be a finite number; got {amount!r:.40}")
        if not self.directions.law.normalised:
            return amount * self.directions.scale
        return amount * self.directions.factor(number, self.sizes, self.parameters[0].device)


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    # Returns the trainable parameters sorted by name; a tied parameter has the first of its names
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
        rule = "module must have a trainable parameter: module.requires_grad_(True) makes all trainable"
        raise ValueError(f"{rule}, such as those of a merged adapter; got none")
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
