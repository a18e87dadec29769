import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.problems.encoder import TEMPERATURE, Scale, SentenceClassifier
from benchmarks.training.heads import Head, Linear, Module, Normed, Part, accuracy, train
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.step.step_sizes import step_sizes

N, WIDTH, CLASSES, SCALE = 60, 5, 3, 4.0
GENERATOR = torch.Generator().manual_seed(0)
PART = Part(
    torch.randn(N, WIDTH, generator=GENERATOR, dtype=torch.float64), torch.randint(CLASSES, (N,), generator=GENERATOR)
)
START = torch.randn(CLASSES, WIDTH, generator=GENERATOR, dtype=torch.float64)
COMMON: dict[str, Any] = {
    "n": N, "target_epsilon": 3.0, "target_delta": 1e-5, "steps": 12, "expected_batch": 20.0,
    "relation": "add-remove", "sampling": "poisson",
}  # fmt: skip


GAIN = 1 + 0.3 * torch.randn(WIDTH, generator=GENERATOR, dtype=torch.float64)
BIAS = torch.randn(WIDTH, generator=GENERATOR, dtype=torch.float64)


def classifier() -> nn.Module:
    """Returns the library's own sentence classifier.

    Its last normalisation and the label vectors are to be trained.
    """
    norm = nn.LayerNorm(WIDTH).double()
    norm.weight.data.copy_(GAIN)
    norm.bias.data.copy_(BIAS)
    encoder = nn.Identity()
    encoder.config = None  # type: ignore[assignment]
    module = SentenceClassifier(encoder, START).double()
    module.head.weight.data.copy_(START)
    module.pool = Scale(norm)
    return module


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return SCALE * super().forward(x)


def linear() -> nn.Module:
    module = Scaled(WIDTH, CLASSES, bias=False).double()
    module.weight.data.copy_(START)
    return module


HEADS: dict[str, tuple[Head, Callable[[], nn.Module]]] = {
    "linear": (Linear(START, SCALE), linear),
    "normed": (Normed(START, BIAS, GAIN, TEMPERATURE), classifier),
}


def losses(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(
    ("k", "direction", "difference"),
    [
        *itertools.product((1, 5), ("rademacher", "sphere"), ["central"]),
        *((3, "sphere", rule) for rule in ("forward", "exact")),
    ],
)
@pytest.mark.parametrize("name", list(HEADS))
def test_every_setting_is_the_librarys_run(name: str, k: int, direction: str, difference: str) -> None:
    """Training several settings at once gives, for each, the weights of the library's own run after 12 steps.

    The settings share their directions, batches and noise, and the arithmetic is float64.
    """
    head, make = HEADS[name]
    smoothing = {"central": 1e-2, "forward": 1e-2, "exact": 0.0}[difference]
    rule = {"difference": difference, "direction": direction, "directions_per_step": k, "smoothing": smoothing}
    first = Plan.for_target(**COMMON, **rule, clip=0.5, step_size=0.1)
    settings: list[dict[str, Any]] = [{}, {"update": "adam:0.9,0.9", "weight_decay": 0.1}]
    settings.append({"step_sizes": step_sizes(0.1, first.steps, "linear:2"), "clip": 3.0})
    plans = [replace(first, **changes) for changes in settings]
    found = train(head, PART, plans, seed=7)
    for index, plan in enumerate(plans):
        module = make()
        make_from_seed_not_private(module, losses, TensorDataset(*PART), plan, seed=7).run()
        trained = [parameter for _, parameter in sorted(module.named_parameters())]
        for parameter, start, values in zip(trained, head.start, found, strict=True):
            assert torch.allclose(parameter, values[index], rtol=0, atol=1e-6)
            assert float((values[index] - start).abs().max()) > 1e-3


def test_accuracy_is_the_share_of_largest_logits() -> None:
    weights = torch.stack([START, -START])
    expected = [float(((PART.x @ w.T).argmax(1) == PART.y).double().mean()) for w in weights]
    assert accuracy(Linear(START, SCALE), [weights], PART) == pytest.approx(expected)


@pytest.mark.parametrize("name", list(HEADS))
def test_a_head_is_a_module_too(name: str) -> None:
    head, make = HEADS[name]
    torch.testing.assert_close(Module(head)(PART.x), make()(PART.x))
