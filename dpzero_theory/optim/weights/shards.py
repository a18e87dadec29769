"""Parameters of which a process holds some rows: modules under `torch.distributed.fsdp.fully_shard` (FSDP2).

Such a parameter is a DTensor. Its rows are dealt out in order, ceil(rows/processes) to each process, so that the last
processes may hold fewer rows or none. So a process holds a piece: a block of the parameter's coordinates in row-major
order. Before a forward, FSDP gathers the pieces to whole weights. It is therefore enough to move and replace the
pieces, and to drop whole weights that were gathered before (`reshard`).

`whole` communicates with the other processes, `reshard` frees gathered weights, and the other functions only look.
"""

import sys
from contextlib import suppress
from typing import Any, cast

from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)


def _class(module: str, name: str) -> Any:
    # If torch.distributed.<module> was never imported, no object is of its classes: no object is an instance of ().
    return getattr(sys.modules.get(f"torch.distributed.{module}"), name, ())


def is_sharded(tensor: Tensor) -> bool:
    """Whether a parameter or tensor is a DTensor, of which each process holds a part or, if replicated, all."""
    return type(tensor) not in _PLAIN and isinstance(tensor, _class("tensor", "DTensor"))


def is_collective(module: nn.Module) -> bool:
    """Whether a forward of the module needs all processes, because some part of it is under `fully_shard`."""
    return any(isinstance(part, _class("fsdp", "FSDPModule")) for part in module.modules())


def piece(parameter: Tensor) -> tuple[Tensor, int]:
    """Return the piece of a parameter that this process holds, and the index of its first coordinate (row-major).

    The piece is a detached tensor in the parameter's memory: some rows of a sharded parameter, else all of it.
    """
    if not is_sharded(parameter):
        return parameter.detach(), 0
    held: Any = parameter.detach()
    rows, first = parameter.shape[0], 0
    for axis, placement in enumerate(held.placements):
        if placement.is_shard():
            first = min(held.device_mesh.get_local_rank(axis) * -(-rows // held.device_mesh.size(axis)), rows)
    return held.to_local(), first * (parameter.numel() // rows if rows else 0)


def whole(parameter: Tensor) -> Tensor:
    """Return a parameter as one plain, detached tensor of its shape, the same in every process. The rows of a sharded
    one are gathered from all processes, so every process must call this; another parameter is returned in its own
    memory, so only read the result."""
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
    """Raise ValueError unless every sharded parameter of a module is sharded by FSDP2, by rows, over one axis of its
    mesh, and is on the mesh's device. Raise it for FSDP1, too."""
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
    """Drop the whole weights that FSDP has gathered for a module and its submodules, also after a forward that failed.
    The next forward gathers them anew. Does nothing for a module without FSDP."""
    fsdp = _class("fsdp", "FSDPModule")
    for part in module.modules():
        if isinstance(part, fsdp):
            with suppress(RuntimeError, AttributeError):  # an inner module raises, and is reset by its outer one
                part.reset_iter_state()
            part.reshard()
