"""Whole weights of packed layers: against the same model unpacked, in a private run, and as an adapter."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from dpzero_theory.optim.files.transcript import Checkpoint, read
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.verify import verify
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.packed import save_adapter, train_packed

KEY = 0x0123456789ABCDEF_FEDCBA9876543210
TARGET: dict[str, Any] = {
    "target_epsilon": 2, "target_delta": 1e-3, "relation": "add-remove", "sampling": "poisson", "expected_batch": 20,
    "steps": 12, "clip": 1.0, "step_size": 0.05, "smoothing": 1e-2, "directions_per_step": 2, "micro_batch": 7,
}  # fmt: skip
LABELS = torch.arange(60) % 3
DATA = TensorDataset(torch.randn(60, 37, generator=torch.Generator().manual_seed(1)) + LABELS[:, None], LABELS)


class Int8(nn.Module):
    """A linear layer of 8-bit integers, with a scale for each row."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach()
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("weight", (weight / self.scale).round().to(torch.int8))
        self.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)

    def whole(self) -> Tensor:
        return self.weight * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.whole(), self.bias)


def pair() -> tuple[nn.Sequential, nn.Sequential]:
    """A model with two packed layers whose whole weights are trained, and the same model with unpacked ones."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(37, 200), nn.Tanh(), nn.Linear(200, 61), nn.LayerNorm(61), nn.Linear(61, 3))
    packed = copy.deepcopy(dense)
    for place in (0, 2):
        layer: Any = dense[place]
        packed[place] = Int8(layer)
        layer.weight.data = packed[place].whole()
        layer.bias.requires_grad_(False)
    assert train_packed(packed) == ["0", "2"]
    return packed, dense


def losses(module: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(module(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("at_once", [1, 2])
def test_packed_layers_compute_what_unpacked_ones_do(rank: int, at_once: int) -> None:
    both = pair()
    packed, dense = (Weights(module, Directions(KEY, f"low-rank:{rank}")) for module in both)
    assert packed.shapes == dense.shapes
    x = DATA.tensors[0][:5]

    def summed(module: nn.Module, copies: int = 1) -> Tensor:
        return module(x.repeat(copies, 1)).sum(1)

    for step in range(4):
        points = [(2 * step, 0.1), (2 * step + 1, -0.1)]
        found, wanted = (torch.stack(one.evaluated(points, summed, at_once, 5)) for one in (packed, dense))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert (found[0] - found[1]).abs().min() > 1e-3
        for one in (packed, dense):
            one.move_([(2 * step, 0.02), (2 * step + 1, -0.01 * step)])
        torch.testing.assert_close(both[0](x), both[1](x), rtol=1e-5, atol=1e-5)
    again = pair()[0]
    Weights(again, Directions(KEY, f"low-rank:{rank}")).load_values(packed.values())
    assert torch.equal(again(x), both[0](x))
    assert torch.equal(copy.deepcopy(again)(x), both[0](x))


class Largest(TorchDispatchMode):
    """Notes the most floating-point numbers that any operation has made."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.is_floating_point():
            self.most = max(self.most, found.numel())
        return found


class ByRows(Int8):
    """Unpacks ten rows at a time, as a kernel does."""

    def forward(self, x: Tensor) -> Tensor:
        rows = zip(self.weight.split(10), self.scale.split(10), self.bias.split(10), strict=True)
        return torch.cat([linear(x, weight * scale, bias) for weight, scale, bias in rows], 1)


def test_no_layer_is_unpacked() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(ByRows(nn.Linear(500, 400))), torch.ones(2, 500)
    before = module(x)
    train_packed(module)
    weights = Weights(module, Directions(KEY, "low-rank"))
    with Largest() as seen:
        (found,) = weights.evaluated([(0, 0.1)], lambda module: module(x).sum(1))
        weights.move_([(0, 0.1)])
        after = module(x)
    assert 0 < seen.most <= 10 * 500
    torch.testing.assert_close(after.sum(1), found, rtol=1e-3, atol=1e-3)
    assert (after - before).abs().max() > 0.1


def test_a_private_run_is_replayed_and_verified(tmp_path: Path) -> None:
    packed, first = pair()[0], pair()[0]
    options: Any = {**TARGET, "direction": "low-rank", "folder": tmp_path / "run"}
    run = make_private_with_epsilon(packed, losses, DATA, **options)
    start = run.weights.values()
    for _ in range(5):
        run.step()
    state = run.state_dict()
    run.run()
    final = run.weights.values()
    assert {len(value) for name, value in final.items() if name.endswith("packed_moves")} == {4 + 12 * 2}
    read(tmp_path / "run").replayed(first)
    assert torch.equal(first(DATA.tensors[0]), packed(DATA.tensors[0]))
    report = verify(tmp_path / "run", Checkpoint(start), Checkpoint(final))
    assert not report.fault
    assert not verify(tmp_path / "run", Checkpoint(start), Checkpoint.of(state)).fault
    final["0.packed_moves"][-1, 1] += 1e-9
    assert "not those of the replay" in verify(tmp_path / "run", Checkpoint(start), Checkpoint(final)).fault


def test_the_moves_are_an_adapter(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the dev extra is not installed")
    packed, dense = pair()
    x, before = DATA.tensors[0], packed(DATA.tensors[0])
    with pytest.raises(ValueError, match="packed layers with moves"):
        save_adapter(packed, tmp_path)
    for name, value in packed.named_parameters():
        value.requires_grad_(name.endswith("packed_moves"))
    Weights(packed, Directions(KEY, "low-rank")).move_([(number, 0.01 * number) for number in range(50)])
    save_adapter(packed, tmp_path)  # of rank 37 and 50
    served = peft.PeftModel.from_pretrained(dense, tmp_path)
    torch.testing.assert_close(served(x), packed(x), rtol=1e-4, atol=1e-4)
    assert (packed(x) - before).abs().max() > 1e-2


def test_what_packed_layers_need_is_said(tmp_path: Path) -> None:
    packed, dense = pair()
    with pytest.raises(ValueError, match=r"module must have a packed linear layer"):
        train_packed(dense)
    with pytest.raises(ValueError, match=r"train_packed must be called once; 0 has moves"):
        train_packed(packed)
    with pytest.raises(ValueError, match=r"direction must be low-rank, without a shape, where .* got rademacher"):
        make_private_with_epsilon(packed, losses, DATA, **TARGET, folder=tmp_path / "signs", direction="rademacher")
    options: Any = {**TARGET, "smoothing": 0.0, "difference": "exact", "direction": "low-rank"}
    with pytest.raises(ValueError, match=r"difference must be .*packed layers have no derivatives"):
        make_private_with_epsilon(packed, losses, DATA, **options, folder=tmp_path / "exact")
    Weights(packed, Directions(KEY, "low-rank")).move_([(0, 0.1)])
    with pytest.raises(ValueError, match=r"must not have moves of another run"):
        Weights(packed, Directions(KEY + 1, "low-rank")).move_([(0, 0.1)])
    with pytest.raises(ValueError, match=r"0.packed_moves must be float64 .* got torch.bfloat16"):
        Weights(packed.to(torch.bfloat16), Directions(KEY, "low-rank"))
