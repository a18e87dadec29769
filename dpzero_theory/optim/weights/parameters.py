"""The trainable parameters of a module: which they are, what this process holds of them, and all their values."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from dpzero_theory.optim.weights.places import Place, extent, storages
from dpzero_theory.optim.weights.precision import require_names
from dpzero_theory.optim.weights.shards import (
    collected,
    is_collective,
    is_sharded,
    piece,
    require_sharded_by_rows,
    reshard,
    whole,
)

_HASHED = 1 << 24
"""Values in a block of the fingerprint; the blocks of a parameter are hashed in several threads."""


class Parameters:
    """The parameters of a module with requires_grad, in the order of their names.

    Args:
        module: any Module on any devices. Its trainable parameters must be plain floating-point tensors in memory, or
            such tensors sharded by rows (FSDP2).

    Attributes:
        names: the name of each; of a tied parameter, which is there once, the first of its names.
        parameters, sizes: the parameters and their numbers of coordinates, of the whole ones where they are sharded.
        d: the sum of the sizes.
        collective: whether a forward needs all processes. Then `fingerprint` and `values` do, too.

    Raises:
        ValueError: naming a parameter that cannot be supported: on the meta device (offloaded), a tensor subclass
            (quantised), sharded otherwise, or sharing memory with another one; torch.nn.DataParallel and FSDP1.
    """

    def __init__(self, module: nn.Module) -> None:
        found = _trainable(module)
        self.module = module
        self.collective = is_collective(module)
        self._places = storages(found)
        self.names = tuple(found)
        self.parameters = tuple(found.values())
        self.sizes = tuple(parameter.numel() for parameter in self.parameters)
        self.d = sum(self.sizes)
        self._held = [part for part, _ in self.pieces()]

    def pieces(self) -> Iterator[tuple[Tensor, int]]:
        """Return, for each parameter, the detached part that this process holds, and the first coordinate of that."""
        return map(piece, self.parameters)

    def places(self) -> dict[int, list[Place]]:
        """Return where the parameters lie in memory, as `shifted.storages` does: by the storage that holds them.

        It is looked up again where a parameter has moved, as after `.to`.
        """
        if not all(map(_same_memory, self.parameters, self._held)):
            self._places = storages(dict(zip(self.names, self.parameters, strict=True)))
            self._held = [part for part, _ in self.pieces()]
        return self._places

    def reshard(self) -> None:
        """Make the next forward of a sharded module gather its weights anew."""
        if self.collective:
            reshard(self.module)

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

        values: whole parameters by name. Raises ValueError for other names or shapes.
        """
        require_names(values, self.names)
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if values[name].shape != parameter.shape:
                raise ValueError(f"{name} must be of shape {tuple(parameter.shape)}; got {tuple(values[name].shape)}")
            held, origin = piece(parameter)
            held.copy_(values[name].reshape(-1)[origin : origin + held.numel()].view(held.shape))
        self.reshard()


def _sha256(block: Tensor) -> bytes:
    return hashlib.sha256(block.view(torch.uint8).numpy().data).digest()


def _same_memory(parameter: Tensor, held: Tensor) -> bool:
    own = piece(parameter)[0] if is_sharded(parameter) else parameter
    return own.dtype == held.dtype and own.device == held.device and own.is_set_to(held)


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
