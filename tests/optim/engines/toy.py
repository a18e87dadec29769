"""An engine of a small linear model, whose process imports nothing but torch."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpzero_theory.optim.engines.engine import TorchEngine

PRIVATE = {
    "steps": 5, "expected_batch": 8, "clip": 1.0, "step_size": 0.05, "smoothing": 1e-2, "sampling": "poisson",
    "relation": "add-remove", "target_epsilon": 5.0, "target_delta": 1e-3,
}  # fmt: skip


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def rows(count: int = 24) -> list[Tensor]:
    return list(torch.randn(count, 3, generator=torch.Generator().manual_seed(1)))


def losses(module: Any, batch: list[Tensor]) -> Tensor:
    return torch.stack([module(row).square().sum() for row in batch])  # row by row: the same bits in any batch


def engine() -> TorchEngine:
    return TorchEngine(model(), losses)


def _dies(module: Any, batch: list[Tensor], place: Path, times: int) -> Tensor:
    marks = len(list(place.iterdir()))
    if marks < times:
        (place / str(marks)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return losses(module, batch)


def dying(place: Path, times: int) -> TorchEngine:
    """An engine whose process dies at its work, as often as `times`: it leaves marks in a folder."""
    return TorchEngine(model(), partial(_dies, place=place, times=times))


def unequal() -> TorchEngine:
    found = engine()
    found.name = f"engine of process {os.getpid()}"
    return found


def fails() -> TorchEngine:
    raise RuntimeError("no such model")
