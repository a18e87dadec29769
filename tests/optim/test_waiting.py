"""Tests that a step on a GPU waits for the device where it reads the losses, and nowhere else.

On fake CUDA tensors, which have shapes and no values, whatever needs a value raises; what is copied to the host is
counted.
"""

from collections import Counter
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.losses.evaluation import BatchSum, Evaluation
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights import directions, module, shifted
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights


class Arrivals(TorchDispatchMode):
    """Counts the copies from the device to the host, and to the device, that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def count(self, way: str) -> int:
        return sum(count for what, count in self.seen.items() if what.startswith(way))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [value for value in [*args, *(kwargs or {}).values()] if isinstance(value, torch.Tensor)]
        devices = {value.device.type for value in given}
        waits = not (kwargs or {}).get("non_blocking")
        if isinstance(out, torch.Tensor) and devices and {out.device.type} != devices and waits:
            self.seen[f"{'to' if out.is_cuda else 'from'} the device: {func}"] += 1
        return out


def taken(tensor: torch.Tensor, here: slice) -> torch.Tensor:
    """Returns the slice `here` of a tensor, without the brackets of tensor[here], which ask for the CUDA library."""
    first = here.start or 0
    return tensor.narrow(0, first, (tensor.shape[0] if here.stop is None else min(here.stop, tensor.shape[0])) - first)


class Network(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 16, dtype=dtype)
        self.head = nn.Linear(16, 100, dtype=dtype)
        self.norm = nn.LayerNorm(16, dtype=dtype)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.tokens(words)).mean(dim=1))


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_require_supported", lambda name, parameter: None)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    numbers = count()
    # These compare memory addresses, or make an array, which fake tensors do not have.
    monkeypatch.setattr(module, "storage_of", lambda _: next(numbers))
    monkeypatch.setattr(shifted, "storage_of", lambda _: -1)
    monkeypatch.setattr(FakeTensor, "numpy", lambda tensor: np.zeros(tensor.shape), raising=False)
    monkeypatch.setattr(FakeTensor, "__getitem__", taken, raising=False)
    monkeypatch.setattr(FakeTensor, "copy_", lambda to, values: torch.ops.aten.copy_(to, values), raising=False)
    monkeypatch.setattr(
        FakeTensor, "__setitem__", lambda to, here, values: taken(to, here).copy_(values), raising=False
    )


def on_a_fake_device(dtype: torch.dtype, kind: str) -> tuple[Weights, torch.Tensor]:
    """Returns a network's weights on a fake CUDA device, and a batch of words; call it in a FakeTensorMode."""
    with torch.device("meta"):
        network = Network(dtype)
    for part in network.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device="cuda")))
    weights = Weights(network, Directions(7, kind))
    weights.guarded = False  # the start looks at values
    return weights, torch.empty(2, 5, dtype=torch.int64, device="cuda")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("gaussian", torch.float32), ("rademacher", torch.float16), ("sphere", torch.bfloat16)],
)
def test_a_step_waits_for_nothing_but_the_losses(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The factor that scales a direction to the sphere has a test of its own below.
    monkeypatch.setattr(Directions, "factor", lambda self, number, sizes, device: 1.0)
    with FakeTensorMode():
        weights, words = on_a_fake_device(dtype, kind)
        plan: Any = SimpleNamespace(smoothing=1e-3, directions_per_step=2, difference_rule=DIFFERENCES["central"])
        evaluation = Evaluation(lambda network, batch: network(batch).float().logsumexp(dim=1), [0, 1], lambda _: words)
        with Arrivals() as arrivals:
            differences = BatchSum(plan, weights, evaluation, Ranks(), 2, 1).differences(0, np.arange(2))
            # The losses at x + lambda u and x - lambda u, of both directions, are copied together.
            assert arrivals.count("from") == 1
            weights.move_([(0, 1e-6), (1, 2e-6)])
            assert arrivals.count("from") == 1
            assert arrivals.count("to") <= 1  # The table of the law of the coordinates is uploaded once
    assert differences.shape == (2, 2)


def test_the_factor_of_the_sphere_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a direction are made on the device before their sums are read, to scale it to the sphere."""
    monkeypatch.setattr(directions, "_GPU_CHUNK", 64)
    with FakeTensorMode():
        weights, _ = on_a_fake_device(torch.float32, "sphere")
        with pytest.raises(DataDependentOutputException):
            weights.directions.factor(0, weights.sizes, weights.parameters[0].device)


def test_waiting_is_seen() -> None:
    with FakeTensorMode():
        weights, words = on_a_fake_device(torch.float32, "rademacher")
        with pytest.raises(DataDependentOutputException), weights.shifted([0], [1e-3]):
            weights.module(words).sum().item()
        with Arrivals() as arrivals:
            words.to("cpu")
    assert (arrivals.count("from"), arrivals.count("to")) == (1, 0)
