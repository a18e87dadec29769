"""Tests of operations on shifted weights, for every way in which a module reads its weights.

They are compared with modules whose weights are really shifted.
"""

import copy

import pytest
import torch
from torch import nn

from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.sphere import DIRECTIONS
from tests.optim.modules import KEY, NUMBER, SHIFT, Reads, Tied, X, data, dense_net, tokens

PAD = torch.tensor([[False] * 4 + [True] * 2] * 4)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w


def convolutional():
    layers = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3, groups=2), nn.BatchNorm2d(4)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)


def flat_buffer():
    """Returns a module with two parameters and a buffer in one storage, and its inputs.

    It reads them together and apart, as fused recurrent kernels do.
    """
    memory = data(40)
    module = nn.Module()
    module.a, module.b = nn.Parameter(memory[:16]), nn.Parameter(memory[20:36])
    module.register_buffer("c", memory[16:20])
    whole = torch.as_strided(module.a.data, (40,), (1,), 0)
    module.forward = lambda x: (
        x * module.a + module.b + module.c.sum() + whole.cumsum(0)[::3].sum() + whole[30:38].sum()
    )
    return module


MODULES = {
    "linear": (dense_net, X),
    "convolution, channels last": (convolutional, data(2, 3, 9, 9)),
    "lstm": (lambda: nn.LSTM(16, 8, 2, batch_first=True), X),
    "attention": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), (X, X, X)),
    "encoder, fast path": (encoder, X),
    "encoder, nested tensors": (lambda: Reads2(encoder()), X),
    "tied embedding": (Tied, tokens(11, 3, 5)),
    "bag of embeddings": (lambda: nn.EmbeddingBag(10, 4), tokens(10, 3, 5)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 4)), X),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4)), X),
    "scripted": (lambda: torch.jit.script(dense_net()), X),
    "views": (lambda: Reads(lambda x, w: x @ w[3:7].t() + x @ w.data.T[:, :4] + w.view(-1)[5], (16, 16)), X),
    "item": (lambda: Reads(lambda x, w: x * float(w[3]) + float(w.sum()), (16,)), X),
    "index": (lambda: Reads(lambda x, w: w[torch.tensor([0, 3, 3])] + w[1], (5, 16)), X),
    "autograd function": (lambda: Reads(lambda x, w: Double.apply(x, w), (16,)), X),
    "vmap": (lambda: Reads(lambda x, w: torch.func.vmap(lambda row: row * w)(x), (16,)), X),
    "bits": (lambda: Reads(lambda x, w: x.sum() + w.view(torch.int32)[3:] + w.view(torch.uint8).sum(), (16,)), X),
    "complex": (lambda: Reads(lambda x, w: x @ torch.view_as_complex(w).abs(), (16, 2)), X),
    "one storage": (flat_buffer, data(16)),
}


class Reads2(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, src_key_padding_mask=PAD)


def first(output):
    return output[0] if isinstance(output, tuple) else output


def make(name):
    torch.manual_seed(0)
    build, inputs = MODULES[name]
    return build().eval(), inputs if isinstance(inputs, tuple) else (inputs,)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*torch.jit.script.*")
@pytest.mark.parametrize("name", MODULES)
def test_every_way_of_reading_weights_sees_the_shifted_ones(name):
    """The same module with weights that are really moved gives the same output, bit for bit."""
    module, inputs = make(name)
    weights = Weights(module, Directions(KEY, "gaussian"))
    other, _ = make(name)
    moved = Weights(other, Directions(KEY, "gaussian"))
    assert weights.fingerprint() == moved.fingerprint()
    with torch.no_grad():
        here = first(module(*inputs)).clone()
        moved.move_([(NUMBER, SHIFT)])
        expected = first(other(*inputs))
    before = weights.fingerprint()
    with weights.shifted(NUMBER, SHIFT):
        shifted = first(module(*inputs)).clone()
    assert torch.equal(shifted, expected)
    assert not torch.equal(shifted, here)
    assert weights.fingerprint() == before
    weights.require_used()
    with torch.no_grad():
        assert torch.equal(first(module(*inputs)), here)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ids", [[3], list(range(20))])
def test_a_group_is_shifted_by_its_factor(dtype, ids):
    """It is compared with weights moved by the factor: a few rows and a whole matrix, with and without bits kept beside
    them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 3)).to(dtype)
    precision = "master" if dtype == torch.bfloat16 else "nearest"
    weights = Weights(module, Directions(KEY, "gaussian"), precision=precision, groups=[("0.*", 1.0, 0.5)])
    other = copy.deepcopy(module)
    with torch.no_grad():
        for amount, part in ((SHIFT / 2, 0), (SHIFT, 1)):
            whole = copy.deepcopy(module)
            Weights(whole, Directions(KEY, "gaussian"), precision=precision).move_([(NUMBER, amount)])
            other[part].load_state_dict(whole[part].state_dict())
        expected = other(torch.tensor(ids))
    with weights.shifted(NUMBER, SHIFT):
        assert torch.equal(module(torch.tensor(ids)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["nearest", "master"])
@pytest.mark.parametrize("kind", DIRECTIONS)
def test_an_embedding_makes_only_the_rows_it_needs_and_the_same_bits(dtype, precision, kind, monkeypatch):
    torch.manual_seed(0)
    module = nn.Embedding(200, 33, padding_idx=0).to(dtype)
    ids = torch.tensor([[7, 199, 7], [0, 3, 64]])
    weights = Weights(module, Directions(KEY, kind), precision=precision)
    weights.move_([(1, 1e-4)])
    called = []
    rows = Directions.rows
    monkeypatch.setattr(Directions, "rows", lambda *args: called.append(args[3].tolist()) or rows(*args))
    with weights.shifted(NUMBER, SHIFT):
        few = module(ids)
    monkeypatch.setattr("dpzero_theory.optim.weights.shifted._ROWS_SHARE", 10**9)
    with weights.shifted(NUMBER, SHIFT):
        whole = module(ids)
    assert called == [[0, 3, 7, 64, 199]]
    assert torch.equal(few, whole)
    weights.require_used()


def test_the_scratch_memory_is_used_again_but_never_under_a_live_tensor():
    """There are two large weights in one operation, and parts of one copy live on while the next is made."""

    def read(x, a, b):
        parts = torch.unsafe_chunk(a, 2)
        return (*parts, a + b, b + 0)

    module = Reads(read, (300, 300), (300, 300))
    weights = Weights(module, Directions(KEY, "gaussian"))
    with weights.shifted(NUMBER, SHIFT):
        top, bottom, total, second = module(X)
        held = weights._scratch._held
    weights.move_([(NUMBER, SHIFT)])
    one, two = (p.detach() for p in module.w)
    assert torch.equal(torch.cat([top, bottom]), one)
    assert torch.equal(total, one + two)
    assert torch.equal(second, two)
    del top, bottom, total, second
    with weights.shifted(NUMBER, SHIFT):
        module(X)
    assert held is not None
    assert weights._scratch._held is held


@pytest.mark.parametrize("read", [lambda w: torch.from_numpy(w.detach().numpy()), lambda w: torch.tensor(w.tolist())])
def test_memory_read_without_an_operation_is_reported(read):
    module = Reads(lambda x, w: x * read(w), (16,))
    weights = Weights(module, Directions(KEY, "gaussian"))
    with weights.shifted(0, 0.1):
        module(X)
    with pytest.raises(ValueError, match=r"not read: w\.0"):
        weights.require_used()


WRITES = {
    "in place": lambda x, w: x * w.data.mul_(2),
    "through a view": lambda x, w: x * w.data[2:].zero_().sum(),
    "into a slice": lambda x, w: w.data.__setitem__(slice(0, 3), 1.0),
    "out": lambda x, w: torch.mul(x[0, 0], 2, out=w.data),
    "copy": lambda x, w: w.data.copy_(x[0, 0]),
    "a list": lambda x, w: torch._foreach_mul_([w.data], 2.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_losses_that_write_weights_are_refused(name):
    module = Reads(WRITES[name], (16,))
    weights = Weights(module, Directions(KEY, "gaussian"))
    before = weights.fingerprint()
    message = r"^the losses must not write trainable parameter w\.0; got aten"
    with pytest.raises(ValueError, match=message), weights.shifted(0, 0.1):
        module(X)
    assert weights.fingerprint() == before


def test_reading_parts_of_elements_is_refused():
    module = Reads(lambda x, w: w.view(torch.uint8)[::2] + 1, (16,))
    weights = Weights(module, Directions(KEY, "gaussian"))
    with pytest.raises(ValueError, match=r"must not read parts of w.0 as torch.uint8"), weights.shifted(0, 0.1):
        module(X)
