"""Tests of weights that are evaluated at shifts and moved.

They test bits, evaluation mode, order, fingerprints, and what is refused.
"""

import copy
import hashlib
import warnings

import pytest
import torch
from torch import nn

from dpzero_theory.optim.weights import module as weights_module
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.sphere import DIRECTIONS
from tests.optim.modules import KEY, NUMBER, X, dense_net


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_the_sum_over_directions_is_that_of_explicit_vectors(kind):
    """The oracle uses torch.func.functional_call and adds the update to the explicit weights."""
    torch.manual_seed(0)
    module = dense_net().double()
    weights = Weights(module, Directions(KEY, kind))
    x = X.double()
    start = {name: p.detach().clone() for name, p in zip(weights.names, weights.parameters, strict=True)}
    expected = {name: value.clone() for name, value in start.items()}
    amounts = []
    for number in (4, 5, 6):
        factor = weights.directions.factor(number, weights.sizes)
        u = {
            name: factor * weights.directions.coordinates(number, index, 0, p.numel(), 1.0, p.dtype).view(p.shape)
            for index, (name, p) in enumerate(start.items())
        }
        oracle = [
            torch.func.functional_call(module, {name: start[name] + s * u[name] for name in u}, (x,)).sum()
            for s in (1e-3, -1e-3)
        ]
        values = []
        for shift in (1e-3, -1e-3):
            with weights.shifted([number], [shift]):
                values.append(module(x).sum())
        torch.testing.assert_close(torch.stack(values), torch.stack(oracle), rtol=1e-12, atol=1e-12)
        amount = -0.1 * float(values[0] - values[1]) / 2e-3
        amounts.append((number, amount))
        for name in expected:
            expected[name] += amount * u[name]
    weights.move_(amounts)
    for name, parameter in zip(weights.names, weights.parameters, strict=True):
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-12, atol=1e-12)


def test_a_view_of_a_shifted_weight_keeps_its_values_at_the_next_point():
    """A shifted weight takes the memory of the last one only where nothing refers to that any more."""
    torch.manual_seed(0)
    module = nn.Linear(40, 30, bias=False)
    weights = Weights(module, Directions(KEY, "rademacher"))
    with weights.shifted([4], [0.5]):
        kept = module.weight.T
    expected = kept.clone()
    with weights.shifted([5], [-0.25]):
        other = module.weight.T
        assert not torch.equal(other, expected)
    assert torch.equal(kept, expected)


def test_modes_of_training_and_gradients_are_put_back_also_after_an_error():
    module = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Linear(16, 2))
    module[2].eval()
    weights = Weights(module, Directions(KEY, "rademacher"))
    modes, running = [part.training for part in module.modules()], module[2].running_mean.clone()
    with weights.shifted([1], [0.1]):
        one, two = module(X), module(X)
        assert not one.requires_grad
    assert torch.equal(one, two)
    assert torch.equal(module[2].running_mean, running)
    with pytest.raises(KeyError), weights.shifted([1], [0.1]):
        raise KeyError
    assert [part.training for part in module.modules()] == modes
    assert torch.is_grad_enabled()
    assert module(X).requires_grad


def test_an_outer_autocast_does_not_keep_copies_from_one_point_to_the_next():
    """Autocast caches half-precision copies: one of x + shift u must serve neither for x - shift u nor for x."""
    torch.manual_seed(0)
    module = dense_net()
    outputs = []
    for cached in (True, False):
        weights = Weights(module, Directions(KEY, "gaussian"))
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            outputs.append([module(X).detach()])
            for shift in (0.1, -0.1):
                with weights.shifted([NUMBER], [shift]):
                    outputs[-1].append(module(X))
            outputs[-1].append(module(X).detach())
    assert all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))
    here, plus, minus, again = outputs[0]
    assert torch.equal(here, again)
    assert min((here - plus).abs().max(), (plus - minus).abs().max()) > 0.1


def test_frozen_parameters_and_buffers_are_neither_shifted_nor_counted():
    module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(6), nn.Linear(16, 2))
    module[0].requires_grad_(False)
    weights = Weights(module, Directions(KEY, "gaussian"))
    assert weights.names == ("1.bias", "1.weight", "2.bias", "2.weight")
    assert weights.d == 6 + 6 + 2 + 32
    with torch.no_grad():
        plain = module[0](X)
    with weights.shifted([0], [1.0]):
        assert torch.equal(module[0](X), plain)
    frozen = module[0].weight.clone()
    weights.move_([(0, 1.0)])
    assert torch.equal(module[0].weight, frozen)


def test_contexts_do_not_nest_and_weights_do_not_move_inside():
    module = dense_net()
    weights = Weights(module, Directions(KEY, "gaussian"))
    with (
        pytest.raises(ValueError, match="must not be nested"),
        weights.shifted([0], [0.1]),
        weights.shifted([1], [0.1]),
    ):
        pass
    with pytest.raises(ValueError, match="must not be called inside"), weights.shifted([0], [0.1]):
        weights.move_([(0, 1.0)])
    with weights.shifted([0], [0.1]):
        module(X)


def shared_memory():
    module = nn.Module()
    module.a = nn.Parameter(torch.zeros(4, 4))
    module.b = nn.Parameter(module.a.data[1:])
    return module


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Linear(2, 2))


REFUSED = {
    "module must be a torch.nn.Module": lambda: "a string",
    "module must have a trainable parameter": lambda: nn.Linear(2, 2).requires_grad_(False),
    "module must not have trainable parts that are scripted; got 0": lambda: nn.Sequential(scripted()),
    "module must not be torch.nn.DataParallel": lambda: nn.Sequential(nn.DataParallel(nn.Linear(2, 2))),
    "trainable parameter weight must be in memory": lambda: nn.Linear(2, 2, device="meta"),
    "trainable parameters must not share memory; got a and b": shared_memory,
    "trainable parameter w must be dense and floating-point": lambda: one(torch.zeros(3, dtype=torch.complex64)),
    "trainable parameter w must be a plain tensor; got Own": lambda: one(torch.zeros(3).as_subclass(Own)),
}


class Own(torch.Tensor):
    pass


def one(tensor):
    module = nn.Module()
    module.w = nn.Parameter(tensor)
    return module


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_supported_is_one_line(message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        Weights(REFUSED[message](), Directions(KEY, "gaussian"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1"])
def test_bad_numbers_move_nothing(bad):
    module = dense_net()
    weights = Weights(module, Directions(KEY, "gaussian"))
    before = weights.fingerprint()
    with pytest.raises(ValueError, match=r"^shift must be"), weights.shifted([0], [bad]):
        pass
    with pytest.raises(ValueError, match=r"^amount must be"):
        weights.move_([(0, 1.0), (1, bad)])
    assert weights.fingerprint() == before


def test_the_fingerprint_is_of_names_shapes_types_and_values(monkeypatch):
    """Also where there are several blocks."""
    monkeypatch.setattr(weights_module, "_HASHED", 16)
    torch.manual_seed(0)
    module = dense_net()

    def of(other):
        return Weights(other, Directions(KEY, "gaussian")).fingerprint()

    same = copy.deepcopy(module)
    assert of(same) == of(module)
    same[0].weight.data[3, 3] += 1e-6
    assert of(same) != of(module)
    assert of(nn.ModuleDict({"a": module[0]})) != of(nn.ModuleDict({"b": module[0]}))
    assert of(copy.deepcopy(module).double()) != of(module)
    last = copy.deepcopy(module).to(memory_format=torch.preserve_format)
    assert of(last) == of(module)
    line, values = nn.Linear(40, 1, bias=False), torch.arange(40.0)
    line.weight.data[0] = values
    blocks = [hashlib.sha256(values[first : first + 16].numpy().tobytes()).digest() for first in (0, 16, 32)]
    expected = hashlib.sha256(b"weight (1, 40) torch.float32\n" + b"".join(blocks))
    assert of(line) == expected.hexdigest()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moves_do_not_depend_on_pieces_or_the_order_of_memory(dtype, monkeypatch):
    results = []
    for chunk, turned in ((1 << 18, False), (256, False), (1 << 18, True)):
        monkeypatch.setattr("dpzero_theory.optim.weights.directions._CPU_CHUNK", chunk)
        torch.manual_seed(0)
        module = nn.Conv2d(6, 10, 5).to(dtype)
        if turned:
            module = module.to(memory_format=torch.channels_last)
        weights = Weights(module, Directions(KEY, "gaussian"))
        weights.move_([(0, 1e-3), (1, -2e-3)])
        weights.move_([(2, 1e-3)])
        results.append(weights.fingerprint())
    assert results[0] == results[1] == results[2]
