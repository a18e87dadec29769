"""What each process of the distributed tests runs: `tests.ranks COUNT tests.optim.ranks FOLDER KIND ...`.

COUNT is the number of processes, FOLDER the folder for their results, and each KIND one case.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from tests.optim.small import BUDGET, FULL, STEP, Logistic, data, losses, plan

KINDS: dict[str, dict[str, Any]] = {
    "dpzero": {},
    "several": {"directions_per_step": 3},
    "poisson": {"expected_batch": 20, "relation": "add-remove", "sampling": "poisson"},
    "forward": {"difference": "forward", "directions_per_step": 2},
    "exact": {"difference": "exact", "smoothing": 0.0, "directions_per_step": 2},
}


def train(folder: Path, kind: str) -> torch.Tensor:
    """Trains in the case `kind` and returns the final weights.

    The case "private" writes a ledger and a transcript in `folder`.
    """
    module, rows = Logistic(torch.float32), data(torch.float32)
    if kind == "other plan":
        clip = 1.0 + dist.get_rank()
        with pytest.raises(ValueError, match=r"^clip must be that of rank 0, 1.0; got 2.0"):
            make_from_seed_not_private(module, losses, rows, plan(clip=clip), seed=3)
        return module.weight.detach()
    if kind == "other records":
        other_records(folder)
        return module.weight.detach()
    if kind == "other weights":
        module.weight.data += dist.get_rank()
    if kind == "private":
        run = make_private_with_epsilon(
            module, losses, rows, **{**BUDGET, **STEP, **FULL}, folder=folder / "run", micro_batch=8
        )
    else:
        run = make_from_seed_not_private(module, losses, rows, plan(**KINDS.get(kind, {})), seed=3, micro_batch=8)
    run.run()
    assert run.releases_left == 0
    return module.weight.detach()


def scaled(by: float) -> Any:
    """Returns losses multiplied by `by`: their source is always the same, the value in their closure is not."""
    return lambda module, batch: by * losses(module, batch)


def other_records(folder: Path) -> None:
    """Starts runs whose records differ on rank 1: every rank must refuse, naming rank 1, before anything is written.

    The same is tested for a run that is resumed. `folder` is where the run would be.
    """
    rank, rows = dist.get_rank(), data(torch.float32)
    turned = TensorDataset(*(tensor.flip(0) if rank else tensor for tensor in rows.tensors))
    listed = [rows[i] for i in range(len(rows))]
    swapped = [*listed[1:3], listed[0], *listed[3:]] if rank else listed
    fewer = listed[rank:]
    other = losses if rank else scaled(1.0)
    data_rule = r"^data must hold the same records in the same order on every rank; .* on rank 1$"
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        (data_rule, losses, turned, {}),
        (data_rule, losses, swapped, {}),
        (r"^data must hold (as many records on every rank; .* 1$|the plan's n = 40 records)", losses, fewer, {}),
        (r"^losses must be the same function on every rank; .* on rank 1$", other, rows, {}),
        (r"^micro_batch, points_at_once and isolation must be the same on every rank", losses, rows,
         {"micro_batch": 8 + rank}),
    ]  # fmt: skip
    place = folder / "other"
    for private in (True, False):
        for rule, function, records, options in cases:
            with pytest.raises(ValueError, match=rule):
                started(function, records, place, private=private, **options)
            assert not place.exists()
    started(losses, rows, place, private=True).close()
    for rule, function, records, options in cases:
        with pytest.raises(ValueError, match=rule):
            started(function, records, place, private=True, resume=True, **options)
    started(losses, rows, place, private=True, resume=True).close()


def started(function: Any, records: Any, place: Path, *, private: bool, **options: Any) -> Any:
    module = Logistic(torch.float32)
    if private:
        settings = {**BUDGET, **STEP, **FULL, **options}
        return make_private_with_epsilon(module, function, records, folder=place, **settings)
    return make_from_seed_not_private(module, function, records, plan(), seed=3, **options)


def main(arguments: list[str]) -> None:
    folder, *kinds = arguments
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        found = {kind: train(Path(folder), kind) for kind in kinds}
        torch.save(found, f"{folder}/{dist.get_world_size()}-{os.environ['RANK']}.pt")
    finally:
        dist.destroy_process_group()
