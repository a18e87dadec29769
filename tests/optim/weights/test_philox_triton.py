"""Tests that the GPU kernels give the same words, directions, shifted weights and moves as the CPU, bit for bit.

On a CUDA device they run there. With TRITON_INTERPRET=1, which conftest.py sets where there is none, they run in
Triton's interpreter, on tensors in host memory: the same code, line by line, which shows what the kernels compute, not
what a compiler makes of them. The interpreter truncates to bfloat16, where a GPU rounds to nearest.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from dpzero_theory.optim.weights import directions as module
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.precision import PRECISIONS
from dpzero_theory.optim.weights.shifted import Ahead
from dpzero_theory.sphere import DIRECTIONS

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # tests/conftest.py sets this variable where there is no GPU

Answer = TypeVar("Answer")
Run = Callable[[Callable[[torch.device], Answer]], Answer]

KEYS = (1, 0, 2**127 + 12345678901234567890)
CPU = torch.device("cpu")


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "interpreter"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run[Any]:
    """Returns a function that calls a function of a device, with one on which the kernels make the directions."""
    interpreter = request.param == "interpreter"
    if not interpreter and (INTERPRETED or not CUDA):
        pytest.skip("needs a CUDA device")
    if interpreter and not INTERPRETED:
        pytest.skip("needs TRITON_INTERPRET=1 in the environment")

    def run(function: Callable[[torch.device], Answer]) -> Answer:
        if not interpreter:
            return function(torch.device("cuda"))
        with monkeypatch.context() as patch:
            patch.setattr(module, "_kernels", lambda _: import_module("dpzero_theory.optim.weights.philox_triton"))
            return function(CPU)

    return run


def truncated(values: torch.Tensor) -> torch.Tensor:
    """Returns float32 values as bfloat16 with the last 16 bits left out."""
    return (values.view(torch.int32) & -(2**16)).view(torch.float32).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("key", "place"),
    [(KEYS[0], (0, 10, 1, 1)), (KEYS[1], (3, 1000, 0, 0)), (KEYS[2], (2**40 + 5, 77, 2**33, 2**63 + 3))],
)
def test_words(kernels: Run[Any], key: int, place: tuple[int, int, int, int]) -> None:
    philox = import_module("dpzero_theory.optim.weights.philox_triton")
    start, count, parameter, number = place
    words = kernels(lambda device: philox.words(key, number, parameter, start, count, 0, device))
    expected = Directions(key, "gaussian").words(number, parameter, start, count)
    assert (words.cpu().numpy().view(np.uint64) == expected).all()


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [(777, 2049), (2**33 + 5, 10_000)])
def test_shifts(kernels: Run[Any], kind: str, dtype: torch.dtype, place: tuple[int, int]) -> None:
    start, count = place
    directions = Directions(KEYS[2], kind)
    source = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = directions.shift(source, 5, 3, 0.01, start)
    if dtype == torch.bfloat16 and INTERPRETED:
        expected = truncated(directions.shift(source.float(), 5, 3, 0.01, start))
    assert torch.equal(kernels(lambda device: directions.shift(source.to(device), 5, 3, 0.01, start)).cpu(), expected)
    expected = directions.fill_(torch.empty(count, dtype=dtype), 5, 3, start, 0.01)
    if dtype == torch.bfloat16 and INTERPRETED:
        expected = truncated(directions.fill_(torch.empty(count), 5, 3, start, 0.01))
    filled = kernels(lambda device: directions.fill_(torch.empty(count, dtype=dtype, device=device), 5, 3, start, 0.01))
    assert torch.equal(filled.cpu(), expected)


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("width", [37, 256])
def test_rows_and_factors(kernels: Run[Any], kind: str, width: int) -> None:
    directions = Directions(KEYS[2], kind)
    rows = torch.tensor([0, 3, 3, 90])
    found = kernels(lambda device: directions.rows(5, 3, rows.to(device), width))
    assert torch.equal(found.cpu(), directions.rows(5, 3, rows, width))
    factor = kernels(lambda device: Directions(KEYS[2], kind).factor(5, (3, width), device))
    assert factor == directions.factor(5, (3, width), CPU)


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_several_tensors_by_one_launch(kernels: Run[Any], kind: str, dtype: torch.dtype) -> None:
    """That holds at whatever coordinate of the direction a tensor begins."""
    directions, draw = Directions(KEYS[2], kind), torch.Generator().manual_seed(0)
    sources = [
        (torch.randn(count, dtype=torch.float64, generator=draw).to(dtype), parameter, start)
        for count, parameter, start in ((5000, 3, 0), (1, 4, 7), (2049, 0, 2**33 + 5), (64, 9, 64), (4097, 1, 255))
    ]
    expected = [directions.shift(source, 5, parameter, 0.01, start) for source, parameter, start in sources]

    def found(device: torch.device) -> list[torch.Tensor]:
        there = [(source.to(device, copy=True), parameter, start) for source, parameter, start in sources]
        shifted = directions.shift_all(there, 5, 0.01)
        directions.add_all_(there, 5, 0.01)
        return [*(one.cpu() for one in shifted), *(one.cpu() for one, _, _ in there)]

    assert all(map(torch.equal, kernels(found), [*expected, *expected]))


class Reader(nn.Module):
    """A module whose forward reads parts of its weights in an order that can be changed, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((40, 30), (30,), (30, 30), (7,), (2300,), (1,))
        self.parts = nn.ParameterList(torch.randn(size) for size in sizes)
        self.order = [2, 0, 0, 1, 3, 5, 4]

    def forward(self, _: Any) -> torch.Tensor:
        seen = [self.parts[k] for k in self.order]
        return torch.cat([*((part + 0).flatten() for part in seen), self.parts[0][3:5].sum()[None]])


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_copies_made_ahead(kernels: Run[Any], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that are made before they are read have the bits of the others, whatever the order of reading, after a
    move, with a smoothing of its own for some parameters, and for a step size 0. They are given up after a point, and
    from the second point on a launch makes several, as a move does."""
    philox, launches = import_module("dpzero_theory.optim.weights.philox_triton"), []
    launch = philox.shift_all
    monkeypatch.setattr(philox, "shift_all", lambda *of: (launches.append(len(of[0])), launch(*of))[1])

    def seen(device: torch.device) -> list[torch.Tensor]:
        torch.manual_seed(0)
        reader = Reader().half().to(device)
        weights = Weights(reader, Directions(KEYS[0], kind), groups=[("parts.3", 1.0, 2.0)])
        if module._kernels(device) is not None:
            weights._ahead = Ahead(4600)  # Of float16, the largest part has 4,600 bytes
        found = []
        for number in range(5):
            if number == 3:
                reader.order = [5, 4, 1, 2, 0, 3]
            for shift in (1e-2, 0.0, -1e-2):
                with weights.shifted(number, shift):
                    found.append(reader(None).cpu())
                assert weights._ahead is None or weights._ahead._made == {}
            weights.move_([(number, 0.1)])
        return found

    expected = seen(CPU)
    assert launches == []
    assert all(map(torch.equal, kernels(seen), expected))
    first, second, move = [1] * 6 + [2], [3, 1, 1, 1, 2], [6]
    assert launches[:13] == first + second + move


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_moves_of_a_module(kernels: Run[Any], kind: str, dtype: torch.dtype, precision: str) -> None:
    if dtype == torch.bfloat16 and precision != "master" and INTERPRETED:
        pytest.skip("the interpreter truncates to bfloat16")

    def moved(device: torch.device) -> tuple[str, torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        embedding, linear = nn.Embedding(150, 33), nn.Linear(33, 50)
        network = nn.Sequential(embedding, linear).to(dtype).to(device)
        weights = Weights(network, Directions(KEYS[0], kind), precision=precision)
        weights.move_([(0, 1e-3), (1, -2e-3)])
        weights.move_([(2, 1e-3)])
        with weights.shifted(3, 1e-2):
            seen = embedding(torch.tensor([5, 149], device=device)).cpu(), (linear.weight + 0).cpu()
        return weights.fingerprint(), *seen

    results = moved(CPU), kernels(moved)
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][2], results[1][2])
