"""Parameters of which a process holds some rows: modules under `torch.distributed.fsdp.fully_shard` (FSDP2).

Such a parameter is a DTensor. Its rows are dealt out in order, ceil(rows/processes) to each, so that the last ones may
hold fewer or none; what a process holds is a piece of the row-major coordinates, from a known one on. Before a
forward FSDP reads these pieces and gathers them. So it is enough to shift, move and replace the pieces: what is
gathered follows, as long as nothing that was gathered at one point is used at the next (`reshard`).
"""

import sys
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)


def _class(module: str, name: str) -> Any:
    """A class of torch.distributed; nothing is an instance of it where its module was never imported."""
    return getattr(sys.modules.get(f"torch.distributed.{module}"), name, ())


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    return type(tensor) not in _PLAIN and isinstance(tensor, _class("tensor", "DTensor"))


def is_collective(module: nn.Module) -> bool:
    """Whether a forward of the module needs all processes."""
    return any(isinstance(part, _class("fsdp", "FSDPModule")) for part in module.modules())


def piece(parameter: Tensor) -> tuple[Tensor, int]:
    """What this process holds of a parameter, sharing its memory, and the coordinate that it begins with."""
    if not is_sharded(parameter):
        return parameter.detach(), 0
    held: Any = parameter.detach()
    rows, first = parameter.shape[0], 0
    for axis, placement in enumerate(held.placements):
        if placement.is_shard():
            first = min(held.device_mesh.get_local_rank(axis) * -(-rows // held.device_mesh.size(axis)), rows)
    return held.to_local(), first * (parameter.numel() // rows if rows else 0)


def whole(held: Tensor, parameter: Tensor) -> Tensor:
    """The pieces of all processes as one tensor of the parameter's shape; every process must ask for it.

    held: of the shape that `piece` gives for this parameter.
    """
    if not is_sharded(parameter):
        return held.view(parameter.shape)
    of: Any = parameter
    shape, stride = parameter.shape, parameter.stride()
    found: Tensor = (
        type(of)
        .from_local(held, of.device_mesh, of.placements, run_check=False, shape=shape, stride=stride)
        .full_tensor()
    )
    return found


def collected(held: Tensor, parameter: Tensor) -> Tensor | None:
    """For a checkpoint, a copy in host memory: of `held`, or if it is a shard, of all on rank 0 and None elsewhere."""
    if not is_sharded(parameter):
        return held.detach().to("cpu", copy=True)
    found = whole(held, parameter)
    return found.cpu() if dist.get_rank() == 0 else None


def require_sharded_by_rows(module: nn.Module) -> None:
    """Raise ValueError unless what is sharded is so by FSDP2, by rows, once, and is on its mesh's device."""
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
    """Drop what FSDP has gathered, also where a forward failed: the next forward reads the pieces again."""
    fsdp = _class("fsdp", "FSDPModule")
    for part in module.modules():
        if isinstance(part, fsdp):
            with suppress(RuntimeError, AttributeError):  # inside another one, which does it for both; never run
                part.reset_iter_state()
            part.reshard()
