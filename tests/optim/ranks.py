"""What each process of the distributed tests runs: `tests.ranks COUNT tests.optim.ranks FOLDER KIND ...`."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from tests.optim.small import BUDGET, FULL, STEP, D, Logistic, data, losses, plan

KINDS: dict[str, dict[str, Any]] = {
    "dpzero": {},
    "several": {"directions_per_step": 3},
    "poisson": {"expected_batch": 20, "relation": "add-remove", "sampling": "poisson"},
    "dpgd-0th": {"algorithm": "dpgd-0th"},
}


_FEATURES = torch.linspace(-1, 1, 12 * D).reshape(12, D).sin()
PUBLIC = TensorDataset(_FEATURES, _FEATURES[:, 0].sign())


def train(folder: Path, kind: str) -> torch.Tensor:
    """The final weights; `private` writes a ledger and a transcript in `folder`."""
    module, rows = Logistic(torch.float32), data(torch.float32)
    if kind == "other plan":
        clip = 1.0 + dist.get_rank()
        with pytest.raises(ValueError, match=r"^clip must be that of rank 0, 1.0; got 2.0"):
            make_from_seed_not_private(module, losses, rows, plan(clip=clip), seed=3)
        return module.weight.detach()
    if kind == "other weights":
        module.weight.data += dist.get_rank()
    if kind == "public clip":
        return public_clip(folder)
    if kind == "private":
        run = make_private_with_epsilon(
            module, losses, rows, **{**BUDGET, **STEP, **FULL}, folder=folder / "run", micro_batch=8
        )
    else:
        run = make_from_seed_not_private(module, losses, rows, plan(**KINDS.get(kind, {})), seed=3, micro_batch=8)
    run.run()
    assert run.releases_left == 0
    return module.weight.detach()


def public_clip(folder: Path) -> torch.Tensor:
    """Of rank 0's weights; and resumed from a folder that rank 0 alone can read."""
    arguments: dict[str, Any] = {**BUDGET, **STEP, **FULL, "clip": "public", "public_data": PUBLIC, "micro_batch": 8}
    clips = []
    for resume in (False, True):
        module, place = Logistic(torch.float32), folder / f"of-{dist.get_rank()}"
        module.weight.data += dist.get_rank()
        run = make_private_with_epsilon(module, losses, data(torch.float32), folder=place, resume=resume, **arguments)
        clips.append(run.plan.clip)
        run.close()
    return torch.tensor(clips, dtype=torch.float64)


def main(arguments: list[str]) -> None:
    folder, *kinds = arguments
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        found = {kind: train(Path(folder), kind) for kind in kinds}
        torch.save(found, f"{folder}/{dist.get_world_size()}-{os.environ['RANK']}.pt")
    finally:
        dist.destroy_process_group()
