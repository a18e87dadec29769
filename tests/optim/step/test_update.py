"""Tests of update rules beside torch's own optimisers, which are given the released estimate as a gradient."""

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from dpzero_theory.optim.run import Moves
from dpzero_theory.optim.step.update import UPDATES, _root
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from tests.optim.small import Logistic, plan

KEY = bytes(range(16))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1.0, betas=(0.9, 0.99), weight_decay=0.3)


@pytest.mark.parametrize(
    ("changes", "optimizer"),
    [({"update": "momentum:0.9"}, sgd), ({"update": "adam:0.9,0.99", "weight_decay": 0.3}, adamw)],
)
@pytest.mark.parametrize("k", [1, 3])
def test_an_update_is_torchs(changes: dict[str, Any], optimizer: Callable[[Any], Any], k: int) -> None:
    """An update rule moves the weights as torch's optimiser does.

    Both have the same estimates of the gradient, in float64, and step sizes that change along the run.
    """
    chosen = plan(**changes, directions_per_step=k, schedule="cosine:2")
    module, other = Logistic(), Logistic()
    for each in (module, other):
        each.weight.data = torch.linspace(-1, 1, len(each.weight), dtype=torch.float64)
    moves, reference = Moves(chosen, Weights(module, Directions(KEY, chosen.direction))), optimizer([other.weight])
    generator = torch.Generator().manual_seed(1)
    for release in range(chosen.steps):
        sums = torch.randint(-(2**29), 2**29, (k,), generator=generator).tolist()
        other.weight.grad = sum(
            (float(s) * chosen.unit / k * direction(release * k + i) for i, s in enumerate(sums)), torch.zeros(6)
        ).double()
        reference.param_groups[0]["lr"] = chosen.step_size(release)
        reference.step()
        moves.make(release, sums)
        assert torch.allclose(module.weight, other.weight, rtol=1e-6, atol=1e-9), release


def direction(number: int) -> Tensor:
    """Returns the direction u of this number: what moves a zero module of the same layout by it."""
    module = Logistic()
    Weights(module, Directions(KEY, "rademacher")).move_([(number, 1.0)])
    return module.weight.detach()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"update": "nesterov"}, "update must be one of plain, momentum, adam; got 'nesterov'"),
        ({"update": "momentum:1"}, "momentum must be .* < 1; got 1"),
        ({"update": "momentum:nan"}, "update must be momentum:B with numbers"),
        ({"update": "adam:0.9"}, "update must be adam:B1,B2 with numbers"),
        ({"update": "momentum:0.9,0.9"}, "update must be momentum:B with numbers"),
        ({"weight_decay": -1.0}, "weight_decay must be"),
        ({"algorithm": "dpgd-0th", "update": "momentum:0.9"}, "update must be plain, without weight decay"),
        ({"algorithm": "dpgd-0th", "weight_decay": 0.1}, "update must be plain, without weight decay"),
    ],
)
def test_what_is_no_update_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**changes)


def test_adams_powers_are_rounded_once() -> None:
    """For beta_2 = 0.99999, C libraries round beta_2^75 the other way."""
    release, mean, square = 74, 0.3, 0.7
    powers = [float(Fraction(beta) ** (release + 1)) for beta in (0.5, 0.99999)]
    estimate, *kept = (torch.tensor([value], dtype=torch.float64) for value in (0.0, mean, square))
    found = UPDATES["adam:0.5,0.99999"].direction(estimate, kept, release).item()
    assert found == 0.5 * mean / (1 - powers[0]) / (math.sqrt(0.99999 * square / (1 - powers[1])) + 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adams_square_roots_are_rounded_once(dtype: torch.dtype) -> None:
    """Adam's square roots are correctly rounded, so that replays on other processors have the same bits."""
    values = torch.rand(3000, generator=torch.Generator().manual_seed(0), dtype=dtype) * 10
    with localcontext(Context(prec=40)):
        exact = torch.tensor([float(Decimal(value).sqrt()) for value in values.tolist()], dtype=torch.float64)
    # rounding 40 digits to float64 and then to float32 is rounding once, but for ties that no square root meets
    assert torch.equal(_root(values), exact.to(dtype))
