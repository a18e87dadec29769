"""Several processes as one run: who leads, and how sums and refusals reach everybody.

Rank 0 alone holds the ledger, the transcript, the secret batches and the noise. The others are told which records a
step uses and what was released, so all weights move by the same numbers. Sums go slot by slot, one slot for a
micro-batch, each filled by one rank: the total has the same bits however many ranks there are.

Modules may be sharded over the ranks by `torch.distributed.fsdp.fully_shard`, see `shards`: shard, then make the run.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from dpzero_theory.optim.contributions import Sums

T = TypeVar("T")


class Ranks:
    """This process's place: alone, or one of those of torch.distributed's default group if that is initialised."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.count = dist.get_world_size() if together else 1
        on_cuda = together and dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")

    def lead(self, work: Callable[[], T]) -> T:
        """What `work` returns on rank 0, which alone calls it; an exception there is raised on every rank."""
        if self.count == 1:
            return work()
        box: list[object] = [None, None]
        if self.rank == 0:
            try:
                box[0] = work()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0, device=self._device)
        if isinstance(box[1], Exception):
            raise box[1]
        return box[0]  # type: ignore[return-value]

    def add(self, slots: Sums) -> Sums:
        """The sum over ranks of arrays of equal shape, in which each entry is zero on all ranks but one."""
        if self.count == 1:
            return slots
        shared = torch.from_numpy(slots).to(self._device)
        dist.all_reduce(shared)
        total: Sums = shared.cpu().numpy()
        return total

    def require_equal(self, name: str, value: str) -> None:
        """Raise RuntimeError on every rank unless all have the same value."""
        values = [value]
        if self.count > 1:
            found: list[object] = [None] * self.count
            dist.all_gather_object(found, value)
            values = [str(other) for other in found]
        if len(set(values)) > 1:
            raise RuntimeError(f"{name} must be the same on every rank; got {', '.join(v[:16] for v in values)}")
