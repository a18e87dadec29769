"""Parameters that are sharded over processes by `torch.distributed.fsdp.fully_shard` (FSDP2).

A sharded parameter is a DTensor. Each process holds ceil(rows/processes) consecutive rows, the last processes perhaps
fewer or none. Before a forward pass, FSDP gathers the rows of all processes into a whole weight. So a run moves the
rows that a process holds, and drops whole weights that were gathered before (`reshard`).
"""

import sys
from contextlib import suppress
from typing import Any, cast

from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)


def _class(module: str, name: str) -> Any:
    # Returns () if torch.distributed.<module> was not imported. Then no object is of its classes, nor of ().
    return getattr(sys.modules.get(f"torch.distributed.{module}"), name, ())


def is_sharded(tensor: Tensor) -> bool:
    """Whether `tensor` is a DTensor, of which each process holds some rows or, if it is replicated, all of it."""
    return type(tensor) not in _PLAIN and isinstance(tensor, _class("tensor", "DTensor"))


def is_collective(module: nn.Module) -> bool:
    """Whether a forward pass of the module needs all processes, because a submodule is under `fully_shard`."""
    return any(isinstance(part, _class("fsdp", "FSDPModule")) for part in module.modules())


def piece(parameter: Tensor) -> tuple[Tensor, int]:
    """Return the part of a parameter that this process holds (some rows if it is sharded, otherwise all), as a detached
    tensor in the parameter's memory, and the index of its first entry in the whole parameter, in row-major order."""
    if not is_sharded(parameter):
        return parameter.detach(), 0
    held: Any = parameter.detach()
    rows, first = parameter.shape[0], 0
    for axis, placement in enumerate(held.placements):
        if placement.is_shard():
            first = min(held.device_mesh.get_local_rank(axis) * -(-rows // held.device_mesh.size(axis)), rows)
    return held.to_local(), first * (parameter.numel() // rows if rows else 0)


def whole(parameter: Tensor) -> Tensor:
    """Return the whole parameter as a plain, detached tensor, on every process.

    If the parameter is sharded, every process must call this function, and the result is a new tensor. Otherwise the
    result shares the parameter's memory, so do not write to it.
    """
    held, of = piece(parameter)[0], cast(Any, parameter)
    if not is_sharded(parameter):
        return held
    shape, stride = parameter.shape, parameter.stride()
    found: Tensor = (
        type(of)
        .from_local(held, of.device_mesh, of.placements, run_check=False, shape=shape, stride=stride)
        .full_tensor()
    )
    return found


def require_sharded_by_rows(module: nn.Module) -> None:
    """Raise ValueError for a module under FSDP1, and unless every sharded parameter is sharded by FSDP2, by rows, over
    one axis of its device mesh, and is on the mesh's device."""
    if any(isinstance(part, _class("fsdp", "FullyShardedDataParallel")) for part in module.modules()):
        raise ValueError("module must not be FullyShardedDataParallel (FSDP1): use torch.distributed.fsdp.fully_shard")
    collective = is_collective(module)
    for name, parameter in module.named_parameters():
        if not is_sharded(parameter):
            continue
        of: Any = parameter
        split = [placement for placement in of.placements if not placement.is_replicate()]
        if len(split) > 1 or not all(placement.is_shard(0) for placement in split) or not collective:
            raise ValueError(f"parameter {name} must be sharded by fully_shard, by rows only; got {of.placements}")
        mesh = of.device_mesh.device_type
        if of.device.type not in (mesh, "meta"):
            raise ValueError(f"shards of parameter {name} must be on {mesh}, not offloaded; got {of.device.type}")


def reshard(module: nn.Module) -> None:
    """Free the whole weights that FSDP has gathered for the module and its submodules, also if a forward pass failed.
    The next forward pass gathers them again. Without FSDP this does nothing."""
    fsdp = _class("fsdp", "FSDPModule")
    for part in module.modules():
        if isinstance(part, fsdp):
            with suppress(RuntimeError, AttributeError):  # Raised by an inner module, which the outer one resets
                part.reset_iter_state()
            part.reshard()
