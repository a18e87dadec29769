"""Tests of rounding against exact neighbours, and of updates of half-precision weights.

Small updates must survive, which is measured over 1,000 steps.
"""

import numpy as np
import pytest
import torch
from torch import nn

from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.precision import HALF, PRECISIONS, join, spacing, split

HALVES = list(HALF)
KEY = 77


def numbers(dtype):
    """Returns every finite number of the type, in ascending order, without -0."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    return torch.unique(every[torch.isfinite(every)].double())


def values(dtype):
    random = np.random.default_rng(0)
    x = random.normal(size=4000) * 10 ** random.uniform(-7, 3, size=4000)
    return torch.from_numpy(np.concatenate([x, [0, 1, 2, 1 - 2**-20, 1 + 2**-8, 1 + 2**-9, 2**-14, -(2**-15)]])).float()


@pytest.mark.parametrize("dtype", HALVES)
def test_the_spacing_is_the_distance_of_neighbours(dtype):
    every = numbers(dtype)
    positive = every[every >= 0]
    gaps = positive.diff()
    assert torch.equal(spacing(positive[:-1].float(), dtype).double(), gaps)
    assert torch.equal(spacing(-positive[:-1].float(), dtype).double(), gaps)


@pytest.mark.parametrize("dtype", HALVES)
def test_sixteen_further_bits_keep_float32_values(dtype):
    x = values(dtype)
    weights, low = split(x, dtype)
    assert torch.equal(weights, x.to(dtype))
    assert low.dtype == torch.int16
    back = join(weights, low)
    assert ((back - x).abs().double() <= 2**-16 * spacing(x.to(dtype).float(), dtype).double()).all()
    assert (back == x)[x.abs() > 2.0**-14].double().mean() > 0.99
    again, low_again = split(back, dtype)
    assert torch.equal(again, weights)
    assert torch.equal(low_again, low)


def walk(dtype, precision, kind="rademacher", steps=1000, lr=1e-7):
    """Makes moves of standard normal amounts times `lr`; returns the displacement, and the same in float64.

    Args:
        dtype: the type of the weights.
        precision: how the weights are rounded.
        kind: the law of the directions.
        steps: the number of moves.
        lr: the size of a move.
    """
    generator = torch.Generator().manual_seed(0)
    module = nn.Linear(64, 64, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.copy_(0.05 * torch.randn(64, 64, generator=generator))
    exact = nn.Linear(64, 64, bias=False, dtype=torch.float64)
    exact.load_state_dict(module.state_dict())
    start = exact.weight.detach().clone()
    amounts = (lr * np.random.default_rng(0).standard_normal(steps)).tolist()
    weights = Weights(module, Directions(KEY, kind), precision=precision)
    intended = Weights(exact, Directions(KEY, kind))
    for number, amount in enumerate(amounts):
        weights.move_([(number, amount)])
        intended.move_([(number, amount)])
    state = weights.state_dict()
    value = module.weight.detach().float()
    if state:
        value = join(module.weight.detach(), state["weight"].view(64, 64))
    return weights, value.double() - start, exact.weight.detach() - start, start


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()).clamp_min(1e-300))


@pytest.mark.parametrize("dtype", HALVES)
def test_master_precision_realises_updates_of_a_ten_millionth(dtype):
    _, realised, intended, _ = walk(dtype, "master")
    assert cosine(realised, intended) >= 0.999
    assert abs(float(realised.norm() / intended.norm()) - 1) < 1e-3


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_moves_do_not_depend_on_pieces_or_the_order_of_memory(dtype, precision, monkeypatch):
    results = []
    for chunk, turned in ((1 << 18, False), (256, False), (1 << 18, True)):
        monkeypatch.setattr("dpzero_theory.optim.weights.directions._CPU_CHUNK", chunk)
        torch.manual_seed(0)
        module = nn.Conv2d(6, 10, 5).to(dtype)
        if turned:
            module = module.to(memory_format=torch.channels_last)
        weights = Weights(module, Directions(KEY, "gaussian"), precision=precision)
        weights.move_([(0, 1e-3), (1, -2e-3)])
        weights.move_([(2, 1e-3)])
        results.append(weights.fingerprint())
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("dtype", HALVES)
def test_the_further_bits_survive_a_checkpoint(dtype):
    weights, _, _, _ = walk(dtype, "master", steps=50, lr=1e-5)
    module = weights.module
    other = nn.Linear(64, 64, bias=False).to(dtype)
    other.load_state_dict(module.state_dict())
    resumed = Weights(other, weights.directions, precision="master")
    resumed.load_state_dict(weights.state_dict())
    for each in (weights, resumed):
        each.move_([(7, 1e-6)])
    assert resumed.fingerprint() == weights.fingerprint()
    assert torch.equal(resumed.state_dict()["weight"], weights.state_dict()["weight"])


def test_a_state_of_another_module_is_refused():
    weights = Weights(nn.Linear(4, 4).half(), Directions(KEY, "gaussian"), precision="master")
    state = weights.state_dict()
    with pytest.raises(ValueError, match=r"^state must hold the parameters \['bias', 'weight'\]; got \['bias'\]"):
        weights.load_state_dict({"bias": state["bias"]})
    with pytest.raises(ValueError, match=r"^state of weight must be int16 of shape \(16,\)"):
        weights.load_state_dict({**state, "weight": state["weight"].float()})
    with pytest.raises(ValueError, match=r"^state must hold"):
        Weights(nn.Linear(4, 4), Directions(KEY, "gaussian"), precision="master").load_state_dict(state)
