"""The weights of a torch Module, looked at from x + shift u without ever being written.

Inside `Weights.shifted` every operation that reads a trainable parameter W reads a fresh tensor W + shift u instead,
which dies with the operation. So nothing has to be restored, in any precision, whatever the loss function raises.
The replacement is made below Python's functions, where each operation on tensors passes
(torch.utils._python_dispatch.TorchDispatchMode), and goes by memory: views, tied weights, fused kernels, scripted
modules and weights handed over in lists are all seen. `move_` alone writes weights.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory import check
from dpzero_theory.optim.directions import Directions

__all__ = ["PRECISIONS", "Weights"]

Tensor = torch.Tensor

PRECISIONS = ("nearest", "stochastic", "master")


class Weights:
    """The trainable parameters of a module (requires_grad), in name order, tied ones once.

    precision: how `move_` rounds. Raises ValueError.
    """

    def __init__(self, module: nn.Module, directions: Directions, *, precision: str = "nearest") -> None:
        self.module = module
        self.directions = directions
        self.precision = check.choice("precision", precision, PRECISIONS)
        names: dict[int, str] = {}
        by_id: dict[int, nn.Parameter] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter.requires_grad:
                names[id(parameter)] = min(name, names.get(id(parameter), name))
                by_id[id(parameter)] = parameter
        named = sorted((name, by_id[key]) for key, name in names.items())
        if not named:
            raise ValueError("module must have a parameter with requires_grad; got none")
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(parameter for _, parameter in named)
        self.sizes = tuple(parameter.numel() for parameter in self.parameters)
        self.d = sum(self.sizes)
        self._seen: set[int] = set()

    @contextmanager
    def shifted(self, number: int, shift: float) -> Iterator[None]:
        """Evaluate at x + shift u_number: without gradients, in eval mode (dropout off), weights never written."""
        scale = shift * self.directions.factor(number, self.sizes)
        training = [part for part in self.module.modules() if part.training]
        self.module.eval()
        try:
            with torch.no_grad(), _Shifted(self, number, scale):
                yield
        finally:
            for part in training:
                part.training = True

    def move_(self, amounts: Sequence[tuple[int, float]]) -> None:
        """x <- x + sum of amount u_number over the (number, amount) pairs."""
        with torch.no_grad():
            for number, amount in amounts:
                scale = amount * self.directions.factor(number, self.sizes)
                for index, parameter in enumerate(self.parameters):
                    self.directions.add_(parameter.data, number, index, scale)

    def require_used(self) -> None:
        """Raise ValueError naming the trainable parameters that no evaluation inside `shifted` has read so far."""
        unused = [name for index, name in enumerate(self.names) if index not in self._seen and self.sizes[index]]
        if unused:
            raise ValueError(
                f"the losses must read every trainable parameter (freeze the others); not read: {', '.join(unused)}"
            )

    def fingerprint(self) -> str:
        """SHA-256 of names, shapes, types and values of the trainable parameters, hexadecimal."""
        digest = hashlib.sha256()
        for name, parameter in zip(self.names, self.parameters, strict=True):
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            flat = parameter.detach().contiguous().view(-1).view(torch.uint8)
            for part in flat.split(1 << 26):
                digest.update(part.cpu().numpy())
        return digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """What `move_` keeps beside the weights: empty unless precision is 'master'."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class _Shifted(TorchDispatchMode):
    """Replaces trainable parameters by shifted copies."""

    def __init__(self, weights: Weights, number: int, scale: float) -> None:
        super().__init__()
        self._weights, self._number, self._scale = weights, number, scale
        self._storages = {p.untyped_storage()._cdata: i for i, p in enumerate(weights.parameters) if p.numel()}

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            index = self._storages.get(value.untyped_storage()._cdata)
            if index is None:
                return value
            weights = self._weights
            weights._seen.add(index)
            base = weights.parameters[index].data
            shifted = weights.directions.shift(base, self._number, index, self._scale)
            offset = value.storage_offset() - base.storage_offset()
            return shifted.as_strided(value.size(), value.stride(), offset)
        if isinstance(value, (list, tuple)):
            return type(value)(self._replaced(item) for item in value)
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(self._replaced(value) for value in args)
        kwargs = {name: self._replaced(value) for name, value in (kwargs or {}).items()}
        return func(*args, **kwargs)
