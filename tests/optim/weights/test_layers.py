"""Tests of layers that are read from files: what is read when, and what a forward pass may do."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dpzero_theory.optim.weights.layers import Tensors, absent, is_absent, stream, streamed
from tests.optim.layered import DATA, Tiny, from_seed, in_files, in_memory, saved


@pytest.fixture
def checkpoint(tmp_path: Path) -> Tensors:
    return saved(tmp_path / "checkpoint")


def test_a_forward_outside_a_step_reads_its_layers(checkpoint: Tensors) -> None:
    model, own = in_files(checkpoint, torch.float32), in_memory(torch.float32)
    with torch.no_grad():
        assert torch.equal(model(DATA.tensors[0]), own(DATA.tensors[0]))


@pytest.mark.parametrize("calls", [[0, 0, 1, 2], [0, 2, 1], [0, 1]])
def test_layers_are_called_in_order_once(checkpoint: Tensors, calls: list[int]) -> None:
    class Other(Tiny):
        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x = self.outside(self.tokens(words))
            for index in calls:
                x = self.blocks[index](x)
            return self.head(x)

    with torch.device("meta"):
        model = Other(torch.float32)
    for block in model.blocks[2:]:
        block.requires_grad_(2 in calls)
    stream(model, list(model.blocks), checkpoint, device="cpu")
    with pytest.raises(ValueError, match=r"called in order|call every layer"):
        from_seed(model).step()


def test_what_is_absent_has_its_shape_and_no_memory() -> None:
    one = absent(torch.Size((1000, 1000)), torch.float16, torch.device("cpu"))
    assert (one.shape, one.dtype, one.untyped_storage().nbytes()) == ((1000, 1000), torch.float16, 2)
    assert is_absent(one)
    assert not is_absent(torch.zeros(3))


def test_what_cannot_be_streamed_is_refused(checkpoint: Tensors, tmp_path: Path) -> None:
    model = in_files(checkpoint, torch.float32)
    assert streamed(model) is not None
    assert streamed(in_memory(torch.float32)) is None
    with pytest.raises(ValueError, match="must not be streamed twice"):
        stream(model, list(model.blocks), checkpoint, device="cpu")
    with pytest.raises(ValueError, match="must be a folder of safetensors files"):
        Tensors(tmp_path)
    with pytest.raises(ValueError, match="checkpoint must hold"):
        checkpoint.read(["nothing"])
    save_file({"tokens.weight": torch.zeros(3)}, tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError, match=r"tokens.weight must be of shape \(50, 8\)"):
        in_files(Tensors(tmp_path), torch.float32)
    with torch.device("meta"):
        model = Tiny(torch.float32)
        model.register_buffer("ids", torch.zeros(3))
    with pytest.raises(ValueError, match="buffer ids must be in memory"):
        stream(model, list(model.blocks), checkpoint, device="cpu")
