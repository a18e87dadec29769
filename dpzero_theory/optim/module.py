"""The weights of a torch Module, evaluated at x + shift u without ever being written.

Inside `Weights.shifted` every operation that reads a trainable parameter W reads a fresh tensor W + shift u instead,
which dies with the operation. So nothing has to be restored, in any precision and whatever the loss function raises,
and memory grows by the largest parameter. The replacement (`shifted`) goes by memory and is made where every operation
on tensors passes, so tied weights, views, fused kernels, scripted modules and weights handed over in lists are all
seen; compiled modules run uncompiled inside. What it cannot see is memory read without an operation (`numpy`, `tolist`,
a custom kernel): `require_used` then names the parameter.

`Weights.move_` alone writes weights.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from dpzero_theory import check
from dpzero_theory.optim.directions import Directions
from dpzero_theory.optim.precision import HALF, PRECISIONS, join, round_stochastically, split
from dpzero_theory.optim.shifted import Scratch, Shift, Shifted, extent, storages

__all__ = ["Weights"]

Tensor = torch.Tensor


class Weights:
    """The trainable parameters of a module (requires_grad), in name order, tied ones once (by their first name).

    module: any Module on any devices; its trainable parameters must be plain floating-point tensors in memory.
    directions: the u of the run. precision: how `move_` rounds in half precision, see `precision`.

    parameters, names, sizes: in order; d: the sum of the sizes. Raises ValueError naming the parameter for what cannot
    be supported: parameters on the meta device (offloaded), tensor subclasses (quantised, distributed),
    different parameters that share memory, torch.nn.DataParallel.
    """

    def __init__(self, module: nn.Module, directions: Directions, *, precision: str = "nearest") -> None:
        self.module = module
        self.directions = directions
        self.precision = check.choice("precision", precision, PRECISIONS)
        found = _trainable(module)
        storages(found)
        self.names = tuple(found)
        self.parameters = tuple(found.values())
        self.sizes = tuple(parameter.numel() for parameter in self.parameters)
        self.d = sum(self.sizes)
        self._low: dict[int, Tensor] = {}
        if precision == "master":
            for index, parameter in enumerate(self.parameters):
                if parameter.dtype in HALF:
                    self._low[index] = torch.zeros(parameter.numel(), dtype=torch.int16, device=parameter.device)
        self._unread = {name for name, size in zip(self.names, self.sizes, strict=True) if size}
        self._scratch = Scratch()
        self._active = False

    @contextmanager
    def shifted(self, number: int, shift: float) -> Iterator[None]:
        """Evaluate at x + shift u_number: without gradients, in eval mode (dropout off), the weights unwritten.

        Outputs must be used up inside: a view of a weight (not a result computed from it) that leaves the context is
        a view of x. In half precision x + shift u is rounded to nearest, so coordinates with |shift u| below half a
        spacing may not move. Raises ValueError when a trainable parameter is written inside, or read as another type.
        """
        if self._active:
            raise ValueError("shifted contexts must not be nested")
        scale = check.real("shift", shift) * self._factor(number)
        shift_by = Shift(self.directions, number, scale, self._low)
        places = storages(dict(zip(self.names, self.parameters, strict=True)))
        training = [part for part in self.module.modules() if part.training]
        self._active = True
        try:
            self.module.eval()
            torch.clear_autocast_cache()  # of half-precision copies, here of x and afterwards of x + shift u
            with torch.no_grad(), Shifted(shift_by, places, self._scratch, self._unread):
                yield
        finally:
            torch.clear_autocast_cache()
            for part in training:
                part.training = True
            self._active = False

    def move_(self, amounts: Sequence[tuple[int, float]]) -> None:
        """x <- x + sum of amount u_number over the (number, amount) pairs; a function of x and `amounts` alone.

        The sum is formed in float32 in the order given and added at once. Stochastic rounding takes its bits from the
        first number. Raises ValueError.
        """
        if self._active:
            raise ValueError("move_ must not be called inside shifted")
        scales = [(number, check.real("amount", amount) * self._factor(number)) for number, amount in amounts]
        if not scales:
            return
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters):
                if parameter.numel():
                    self._move(parameter.detach(), index, scales)

    def _move(self, weight: Tensor, index: int, scales: Sequence[tuple[int, float]]) -> None:
        plain = self.precision == "nearest" or weight.dtype not in HALF
        if plain and len(scales) == 1:
            self.directions.add_(weight, scales[0][0], index, scales[0][1])
            return
        if not weight.is_contiguous():
            copy = weight.contiguous()
            self._move(copy, index, scales)
            weight.copy_(copy)
            return
        flat, low = weight.view(-1), self._low.get(index)
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        pieces = [
            self.directions.blocks(number, index, 0, flat.numel(), scale, wide, flat.device) for number, scale in scales
        ]
        for (here, delta), *others in zip(*pieces, strict=True):
            for _, values in others:
                delta.add_(values)
            part = flat[here]
            if low is not None:
                value, low[here] = split(join(part, low[here]).add_(delta), weight.dtype)
                part.copy_(value)
            elif plain:
                part.add_(delta)
            else:
                fields = self.directions.uniform(scales[0][0], index, here.start, part.numel(), flat.device)
                part.copy_(round_stochastically(delta.add_(part), weight.dtype, fields))

    def _factor(self, number: int) -> float:
        check.integer("number", number, at_least=0, at_most=2**64 - 1)
        return self.directions.factor(number, self.sizes, self.parameters[0].device)

    def require_used(self) -> None:
        """Raise ValueError naming the trainable parameters that no evaluation inside `shifted` has read so far."""
        if self._unread:
            names = ", ".join(sorted(self._unread))
            raise ValueError(f"the losses must read every trainable parameter (freeze the others); not read: {names}")

    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the names, shapes, types and values of the trainable parameters."""
        digest = hashlib.sha256()
        for name, parameter in zip(self.names, self.parameters, strict=True):
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            flat = parameter.detach().contiguous().view(-1)
            for first in range(0, flat.numel(), 1 << 24):
                digest.update(flat[first : first + (1 << 24)].cpu().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def state_dict(self) -> dict[str, Tensor]:
        """The bits kept beside half-precision weights by name: empty unless precision is "master"."""
        return {self.names[index]: low.clone() for index, low in self._low.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` returned, beside the weights of that moment. Raises ValueError."""
        expected = {self.names[index]: low for index, low in self._low.items()}
        if set(state) != set(expected):
            raise ValueError(f"state must hold the parameters {sorted(expected)}; got {sorted(state)}")
        for name, low in expected.items():
            if state[name].dtype != torch.int16 or state[name].shape != low.shape:
                raise ValueError(f"state of {name} must be int16 of shape {tuple(low.shape)}; got {state[name].dtype}")
            low.copy_(state[name])


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by their first name in the order of names. Raises ValueError for unsupported ones."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module; got {type(module).__name__}")
    if any(isinstance(part, nn.DataParallel) for part in module.modules()):
        raise ValueError("module must not be torch.nn.DataParallel: its replicas are copies; use one process a device")
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
    if type(parameter.data) is not Tensor:
        raise ValueError(f"trainable parameter {name} must be a plain tensor; got {type(parameter.data).__name__}")
    if parameter.is_meta:
        raise ValueError(f"trainable parameter {name} must be in memory; got the meta device (is it offloaded?)")
    if parameter.layout != torch.strided or not parameter.is_floating_point():
        raise ValueError(f"trainable parameter {name} must be dense and floating-point; got {parameter.dtype}")
    start, stop = extent(parameter)
    if stop - start != parameter.numel():
        raise ValueError(f"trainable parameter {name} must fill its memory; got strides {parameter.stride()}")
