"""A small module for the tests of streaming, whose layers can be read from files."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.weights.layers import Tensors, stream

DATA = TensorDataset(torch.randint(50, (6, 5), generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2)
SETTINGS: dict[str, Any] = {"steps": 5, "expected_batch": 6, "step_size": 1e-3, "smoothing": 1e-3, "sampling": "full"}


class Tiny(nn.Module):
    """A small language model with tied embedding and head, and layers with a frozen parameter.

    A skip connection leads from the first layer to the head.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 8, dtype=dtype)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8, dtype=dtype), nn.Tanh()) for _ in range(3))
        self.blocks[1][0].bias.requires_grad_(False)
        self.head = nn.Linear(8, 50, bias=False, dtype=dtype)
        self.head.weight = self.tokens.weight
        self.outside = nn.Linear(8, 8, dtype=dtype)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.outside(self.tokens(words))
        first = x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = block(x)
        return self.head(x + first)


def losses(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0])[:, -1].float(), batch[1], reduction="none")


def saved(folder: Path, dtype: torch.dtype = torch.float32) -> Tensors:
    """Writes the weights of `in_memory` to a file in `folder`, and returns them as a checkpoint of tensors in files."""
    values = {name: value.clone() for name, value in in_memory(dtype).state_dict().items() if name != "head.weight"}
    folder.mkdir()
    save_file(values, folder / "model.safetensors")
    return Tensors(folder)


def in_memory(dtype: torch.dtype) -> Tiny:
    torch.manual_seed(0)
    return Tiny(dtype)


def in_files(checkpoint: Tensors, dtype: torch.dtype, work: Path | None = None) -> Tiny:
    model = Tiny(dtype)
    stream(model, list(model.blocks), checkpoint, device="cpu", work=work)
    return model


def from_seed(model: nn.Module, **changes: Any) -> Run:
    precision, folder = changes.pop("precision", "nearest"), changes.pop("folder", None)
    plan = Plan.without_privacy(n=6, **{**SETTINGS, "direction": "rademacher", **changes})
    return make_from_seed_not_private(model, losses, DATA, plan, seed=3, precision=precision, folder=folder)
