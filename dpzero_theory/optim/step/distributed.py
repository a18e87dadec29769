"""Several processes (ranks) that make one training run together.

Rank 0 alone has the run's file and draws the secret batches and the noise. It tells the other ranks which records a
step uses and what the noisy sums are, so that the weights of all ranks move by the same numbers. Each rank evaluates
some of a step's micro-batches. Their sums are collected in an array with one row for each micro-batch, so that the
total has the same bits for any number of ranks.

A module may be sharded by `torch.distributed.fsdp.fully_shard` before the run is made. At the start, the parameters and
buffers that are not sharded are overwritten, on each other rank, with those of rank 0 (`Ranks.share_`).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpzero_theory.optim.step.algorithm import Sums

_T = TypeVar("_T")


class Ranks:
    """The processes of a run: the default process group of torch.distributed if there is one, else this process.

    All processes must call the methods of their `Ranks` in the same order; otherwise they wait for each other forever.

    Attributes:
        rank: the index of this process, from 0.
        count: the number of processes.
    """

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.count = dist.get_world_size() if together else 1
        on_cuda = together and dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")

    def lead(self, work: Callable[[], _T]) -> _T:
        """Call work() on rank 0 only. Return its result on every rank, or raise its exception on every rank."""
        if self.count == 1:
            return work()
        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = work()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0, device=self._device)
        if isinstance(box[1], Exception):
            raise box[1]
        found: _T = box[0]
        return found

    def every(self, work: Callable[[], None]) -> None:
        """Call work() on each rank. If it raises on some ranks, raise on all that of the lowest such rank."""
        if self.count == 1:
            return work()
        mine: Exception | None = None
        try:
            work()
        except Exception as error:
            mine = error
        for raised in self._of_all_ranks(mine):
            if raised is not None:
                raise raised
        return None

    def share_(self, module: nn.Module) -> None:
        """Copy the parameters and buffers of rank 0's module into the module of every other rank, except those that are
        sharded or on the meta device. Raises ValueError if the modules differ in names, shapes or types."""
        if self.count == 1:
            return
        named = [*module.named_parameters(), *module.named_buffers()]
        plain = {name: t.detach() for name, t in named if type(t) in (Tensor, nn.Parameter) and not t.is_meta}
        shapes = " ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in plain.items())
        self.require_same("the module must have the same parameters and buffers", lambda: shapes)
        for tensor in plain.values():
            sent = tensor.contiguous().view(-1).view(torch.uint8).to(self._device, copy=True)
            dist.broadcast(sent, src=0)
            tensor.copy_(sent.view(tensor.dtype).view(tensor.shape))

    def add(self, slots: Sums) -> Sums:
        """Return the sum of the arrays `slots` of all ranks, on every rank. The arrays have the same shape.

        Each entry must be zero on all ranks but one, so that the order of the additions does not matter. Do not use
        `slots` afterwards: on a CPU it is overwritten with the sum. Only call this with several ranks.
        """
        shared = torch.from_numpy(slots).to(self._device)
        dist.all_reduce(shared)
        total: Sums = shared.cpu().numpy()
        return total

    def require_same(self, rule: str, value: Callable[[], str]) -> None:
        """Raise ValueError on every rank if value() is not the same on every rank. The values are not shown.

        `rule` begins the message and says what must be the same, such as "data must hold the same records". With only
        one rank, value() is not called.
        """
        if self.count == 1:
            return
        values = self._of_all_ranks(value())
        if others := [rank for rank, other in enumerate(values) if other != values[0]]:
            raise ValueError(f"{rule} on every rank; other ones than on rank 0 on rank {others[0]}")

    def _of_all_ranks(self, value: _T) -> list[_T]:
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found
