"""Tests of functions on shifted weights, for every way in which a module reads its weights.

They are compared with modules whose weights are really shifted, and with directions that are written out.
"""

import warnings

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
    "views": (lambda: Reads(lambda x, w: x @ w[3:7].t() + x @ w.data.T[:, :4] + w.view(-1)[5], (16, 16)), X),
    "item": (lambda: Reads(lambda x, w: x * float(w[3]) + float(w.sum()), (16,)), X),
    "index": (lambda: Reads(lambda x, w: w[torch.tensor([0, 3, 3])] + w[1], (5, 16)), X),
    "autograd function": (lambda: Reads(lambda x, w: Double.apply(x, w), (16,)), X),
    "vmap": (lambda: Reads(lambda x, w: torch.func.vmap(lambda row: row * w)(x), (16,)), X),
    "bits": (lambda: Reads(lambda x, w: x.sum() + w.view(torch.int32)[3:] + w.view(torch.uint8).sum(), (16,)), X),
    "complex": (lambda: Reads(lambda x, w: x @ torch.view_as_complex(w).abs(), (16, 2)), X),
    "numpy": (lambda: Reads(lambda x, w: x * torch.from_numpy(w.detach().numpy()) + w.tolist()[3], (16,)), X),
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


@pytest.fixture(autouse=True)
def _plain_attention():
    """Evaluations do not take the fused way through an encoder, so modules that are compared do not either."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("law", ["gaussian", "rademacher", "low-rank", "low-rank:2"])
@pytest.mark.parametrize("name", MODULES)
def test_every_way_of_reading_weights_sees_the_shifted_ones(name, law):
    """The same module with weights that are really moved gives the same output: bit for bit where functions get whole
    weights, else up to rounding. Before a run begins and later."""
    module, inputs = make(name)
    weights = Weights(module, Directions(KEY, law))
    other, _ = make(name)
    moved = Weights(other, Directions(KEY, law))
    assert weights.fingerprint() == moved.fingerprint()
    with torch.no_grad():
        here = first(module(*inputs)).clone()
        moved.move_([(NUMBER, SHIFT)])
        expected = first(other(*inputs))
    before = weights.fingerprint()
    for guarded in (True, False):
        weights.guarded = guarded
        with weights.shifted([NUMBER], [SHIFT]):
            shifted = first(module(*inputs)).clone()
        if law.startswith("low-rank") and name != "bits":
            torch.testing.assert_close(shifted, expected, rtol=2e-4, atol=2e-5)
        elif not law.startswith("low-rank"):
            assert torch.equal(shifted, expected)
        assert not torch.equal(shifted, here)
    assert weights.fingerprint() == before
    weights.require_used()
    with torch.no_grad():
        assert torch.equal(first(module(*inputs)), here)


class Batched(nn.Module):
    """A module of all layers that factor, with tied embeddings, a gain that is multiplied by hand, frozen layers, and a
    position embedding that is read once for all records."""

    def __init__(self, dtype=torch.float64):
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        torch.manual_seed(3)
        self.words, self.places = nn.Embedding(23, 8, padding_idx=0), nn.Embedding(6, 8)
        self.norm, self.rms, self.gain = nn.LayerNorm(8), nn.RMSNorm(8), nn.Parameter(data(8))
        self.up, self.down, self.frozen = nn.Linear(8, 12), Conv1D(8, 12), nn.Linear(8, 8)
        self.image, self.row = nn.Conv2d(6, 4, 3, padding=1), nn.Conv1d(6, 6, 3, padding=1, bias=False)
        self.head, self.shift = nn.Linear(8, 23, bias=False), nn.Parameter(data(23))
        self.head.weight = self.words.weight
        self.frozen.requires_grad_(False)
        self.up.bias.requires_grad_(False)
        self.to(dtype)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(6)[None])
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        x = self.gain * self.frozen(self.rms(x)) + self.row(x)
        x = x + self.image(x.unflatten(2, (2, 4))).mean((1, 2, 3), keepdim=True)[..., 0]
        return (self.head(x) + self.shift).logsumexp(2).mean(1)


IDS = tokens(23, 5, 6)
POINTS = [(4, SHIFT), (4, -SHIFT), (5, SHIFT), (4, 0.0), (6, -SHIFT)]


def repeated(module, copies=1):
    return module(IDS.repeat(copies, 1))


def explicit(weights, number):
    """Returns the direction with this number, a tensor of the shape of each parameter by its name."""
    found = {}
    for index, (name, shape) in enumerate(zip(weights.names, weights.shapes, strict=True)):
        left, right = weights.directions.factors((number,), index, weights.shapes, torch.float64, torch.device("cpu"))
        rank = weights.directions.law.rank
        found[name] = left[0] if right is None else torch.einsum("rm,rn->mn", left[0], right[0]) / rank**0.5
        found[name] = found[name].reshape(shape)
    return found


def dense(weights, number, shift, inputs):
    """Returns the module's output with W + shift u written out. Tied weights are one parameter."""
    u, given = explicit(weights, number), dict(zip(weights.names, weights.parameters, strict=True))
    moved = {name: (p.double() + shift * u[name]).to(p.dtype) for name, p in given.items()}
    return torch.func.functional_call(weights.module, moved, inputs)


@pytest.mark.parametrize("at_once", [1, 2, 5])
@pytest.mark.parametrize("law", ["low-rank", "low-rank:3"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("small", [1 << 20, 0])
def test_points_are_those_of_dense_weights(law, at_once, dtype, small, monkeypatch):
    """`small` is the size up to which a matrix may be shifted as a whole."""
    monkeypatch.setattr("dpzero_theory.optim.weights.shifted._SMALL", small)
    monkeypatch.setattr("dpzero_theory.optim.weights.shifted._MANY_ROWS", 0)
    module = Batched(dtype)
    weights = Weights(module, Directions(KEY, law))
    before = weights.fingerprint()
    found = weights.evaluated(POINTS, repeated, at_once, len(IDS))
    room = 1e-12 if dtype == torch.float64 else 1e-5
    for (number, shift), values in zip(POINTS, found, strict=True):
        torch.testing.assert_close(values, dense(weights, number, shift, (IDS,)), rtol=room, atol=room)
    assert float((found[0] - found[1]).abs().max()) > 1e-3
    assert weights.fingerprint() == before
    weights.require_used()


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("law", ["low-rank", "low-rank:3"])
def test_derivatives_are_those_along_dense_directions(law, at_once):
    weights = Weights(Batched(), Directions(KEY, law))
    given = dict(zip(weights.names, (p.detach() for p in weights.parameters), strict=True))
    found = weights.evaluated([(4, None), (5, None), (6, None)], repeated, at_once, len(IDS))
    for number, values in zip((4, 5, 6), found, strict=True):
        at = lambda moved: torch.func.functional_call(weights.module, moved, (IDS,))  # noqa: E731
        expected = torch.func.jvp(at, (given,), (explicit(weights, number),))[1]
        torch.testing.assert_close(values, expected, rtol=1e-11, atol=1e-11)


def test_adapters_factor():
    peft = pytest.importorskip("peft")
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False)
        module = peft.get_peft_model(module, config).double()
    weights, x = Weights(module.eval(), Directions(KEY, "low-rank")), data(5, 8).double()
    found = weights.evaluated(POINTS, lambda module, copies=1: module(x.repeat(copies, 1)).sum(1), 5, 5)
    for (number, shift), values in zip(POINTS, found, strict=True):
        torch.testing.assert_close(values, dense(weights, number, shift, (x,)).sum(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 5])
@pytest.mark.parametrize("cast", [False, True])
def test_half_precision_keeps_shifts_that_its_weights_would_lose(at_once, cast):
    """In bfloat16, and under autocast, a factored product has shifts that W + shift u rounds away."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    module = layer if cast else layer.bfloat16()
    weights, x = Weights(module, Directions(KEY, "low-rank")), data(8, 64)
    shift = 2e-5

    def ask(module, copies=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            return module((x if cast else x.bfloat16()).repeat(copies, 1)).float().sum(1)

    u = explicit(weights, NUMBER)["weight"]
    found = weights.evaluated(
        [(NUMBER, 1000 * shift), (NUMBER, -1000 * shift)] + [(NUMBER, shift)] * 3, ask, at_once, 8
    )
    expected = 2000 * shift * (x.double() @ u.T).sum(1)
    assert float(((found[0] - found[1]).double() - expected).norm() / expected.norm()) < 0.05
    assert not torch.equal(found[2], ask(module))


LAYOUTS = {
    "batch second": (lambda x, w: (x.transpose(0, 1) @ w.T).sum((0, 2)), (3, 16)),
    "whole": (lambda x, w: (x * w.cumsum(0)).sum((1, 2)), (16,)),
    "rows": (lambda x, w: nn.functional.linear(x.transpose(0, 1), w).sum((0, 2)), (3, 16)),
    "groups of channels": (lambda x, w: nn.functional.conv1d(x, w, groups=2).sum((1, 2)), (4, 2, 3)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_cannot_be_together_is_refused(name):
    function, shape = LAYOUTS[name]
    weights = Weights(Reads(function, shape), Directions(KEY, "low-rank"))
    x = data(5, 4, 16)
    ask = lambda module, copies=1: module(x.repeat(copies, 1, 1))  # noqa: E731
    weights.evaluated(POINTS, ask)
    with pytest.raises(ValueError, match=r"points_at_once must be 1 for these losses: w\.0 is read (by|with)"):
        weights.evaluated(POINTS, ask, 2, 5)
    whole = Weights(dense_net(), Directions(KEY, "rademacher"))
    with pytest.raises(ValueError, match="points_at_once must be 1 where directions are not low-rank; got rademacher"):
        whole.evaluated(POINTS, lambda module, copies=1: module(X.repeat(copies, 1, 1)), 2, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", DIRECTIONS)
def test_an_embedding_makes_only_the_rows_it_needs_and_the_same_bits(dtype, kind, monkeypatch):
    torch.manual_seed(0)
    module = nn.Embedding(200, 33, padding_idx=0).to(dtype)
    ids = torch.tensor([[7, 199, 7], [0, 3, 64]])
    weights, called = Weights(module, Directions(KEY, kind)), []
    coordinates = Directions.coordinates
    monkeypatch.setattr(Directions, "coordinates", lambda *args: called.append(args[3]) or coordinates(*args))
    with weights.shifted([NUMBER], [SHIFT]):
        called.clear()  # the factor of the sphere needs all coordinates
        few = module(ids)
        made = [start // 33 for start in called]
    monkeypatch.setattr("dpzero_theory.optim.weights.shifted._ROWS_SHARE", 10**9)
    with weights.shifted([NUMBER], [SHIFT]):
        whole = module(ids)
    assert made == [0, 3, 7, 64, 199]
    assert torch.equal(few, whole)
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
def test_losses_that_write_weights_write_a_copy(name):
    module = Reads(WRITES[name], (16,))
    weights = Weights(module, Directions(KEY, "gaussian"))
    before = weights.fingerprint()
    with weights.shifted([0], [0.1]):
        module(X)
    assert weights.fingerprint() == before


@pytest.mark.parametrize("write", [False, True])
def test_memory_behind_the_functions_is_refused_before_a_run_begins(write):
    """A view made earlier would read the weights x at every point, and the difference of the losses would be zero."""
    module = Reads(lambda x, w: x * w, (16,))
    view = module.w[0].detach()[:]
    module.function = lambda x, w: x * w + (view.mul_(2) if write else view)
    weights = Weights(module, Directions(KEY, "gaussian"))
    before, said = weights.fingerprint(), "write trainable parameter w.0" if write else "read w.0 by torch's functions"
    with pytest.raises(ValueError, match=f"^the losses must (not )?{said}"), weights.shifted([0], [0.1]):
        module(X)
    assert weights.fingerprint() == before


def test_a_scripted_function_of_a_parameter_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        product = torch.jit.script(lambda_of_two)
    weights = Weights(Reads(lambda x, w: product(x, w), (16,)), Directions(KEY, "low-rank"))
    with (
        pytest.raises(ValueError, match=r"^the losses must read w\.0 by torch's functions"),
        weights.shifted([0], [0.1]),
    ):
        weights.module(X)


def lambda_of_two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


def test_a_parameter_that_is_not_read_is_named():
    module = nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4)])
    weights = Weights(module, Directions(KEY, "low-rank"))
    with weights.shifted([0], [0.1]):
        module[0](X)
    with pytest.raises(ValueError, match=r"not read: 1\.bias, 1\.weight"):
        weights.require_used()


def test_a_compiled_module_runs_uncompiled():
    torch._dynamo.reset()
    module = dense_net()
    weights = Weights(module, Directions(KEY, "low-rank"))
    compiled = torch.compile(module, backend="eager")
    with weights.shifted([NUMBER], [SHIFT]):
        assert torch.equal(compiled(X), module(X))
        assert not torch.equal(compiled(X), nn.functional.linear(X, module[0].weight.detach())[..., :4])
