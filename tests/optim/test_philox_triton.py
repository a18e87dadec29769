"""On a GPU: the same words, directions, shifted weights and moves as on the CPU, bit for bit."""

import numpy as np
import pytest
import torch
from torch import nn

from dpzero_theory.optim.directions import KINDS, ROUNDING, Directions
from dpzero_theory.optim.module import Weights
from dpzero_theory.optim.precision import PRECISIONS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

KEYS = (1, 0, 2**127 + 12345678901234567890)
CUDA = torch.device("cuda")
CPU = torch.device("cpu")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", [(0, 10, 1, 1), (3, 1000, 0, 0), (2**40 + 5, 77, 2**33, 2**63 + 3)])
@pytest.mark.parametrize("domain", [0, ROUNDING])
def test_words(key, place, domain):
    kernels = pytest.importorskip("dpzero_theory.optim.philox_triton")
    start, count, parameter, number = place
    words = kernels.words(key, number, parameter, start, count, domain, CUDA).cpu().numpy().view(np.uint64)
    assert (words == Directions(key, "gaussian").words(number, parameter, start, count, domain)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [(0, 5000), (777, 2049), (64, 64), (1, 1), (2**33 + 5, 10_000)])
def test_shifts(kind, dtype, place):
    start, count = place
    directions = Directions(KEYS[2], kind)
    source = torch.randn(count, dtype=torch.float64).to(dtype)
    expected = directions.shift(source, 5, 3, 0.01, start)
    assert torch.equal(directions.shift(source.to(CUDA), 5, 3, 0.01, start).cpu(), expected)
    filled = directions.fill_(torch.empty(count, dtype=dtype, device=CUDA), 5, 3, start, 0.01)
    assert torch.equal(filled.cpu(), directions.fill_(torch.empty(count, dtype=dtype), 5, 3, start, 0.01))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 37, 256, 1000])
def test_rows_and_uniform_fields_and_factors(kind, width):
    directions = Directions(KEYS[2], kind)
    rows = torch.tensor([0, 3, 3, 90])
    assert torch.equal(directions.rows(5, 3, rows.to(CUDA), width).cpu(), directions.rows(5, 3, rows, width))
    assert torch.equal(directions.uniform(5, 3, 7, width, CUDA).cpu(), directions.uniform(5, 3, 7, width, CPU))
    fresh = Directions(KEYS[2], kind)
    assert directions.factor(5, (3, width), CUDA) == fresh.factor(5, (3, width), CPU)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_moves_of_a_module(kind, dtype, precision):
    results = []
    for device in (CPU, CUDA):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(1000, 33), nn.Linear(33, 50)).to(dtype).to(device)
        weights = Weights(module, Directions(KEYS[0], kind), precision=precision)
        weights.move_([(0, 1e-3), (1, -2e-3)])
        weights.move_([(2, 1e-3)])
        with weights.shifted(3, 1e-2):
            seen = module[0](torch.tensor([5, 999], device=device)).cpu(), (module[1].weight + 0).cpu()
        results.append((weights.fingerprint(), *seen))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][2], results[1][2])
