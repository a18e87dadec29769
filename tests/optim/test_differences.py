"""Tests of the difference rules: central and forward differences, and exact derivatives.

The three give the same derivative, the same privacy and the same record of a run.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.files.transcript import RUN, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.verify import main
from dpzero_theory.privacy.noise import SeededNoise
from tests.optim.reference import dpzero
from tests.optim.small import FEATURES, LABELS, Logistic, N, Problem, data, losses, plan, private, weights

SMOOTHING = {"central": 1e-3, "forward": 1e-3, "exact": 0.0}
EVERY = pytest.mark.parametrize("difference", list(DIFFERENCES))


def settings(difference: str) -> dict[str, Any]:
    return {"difference": difference, "smoothing": SMOOTHING[difference]}


def bowl(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Returns, for each record, a loss that is quadratic in the weights w and the bias b: (w . x + b - y)^2."""
    features, labels = batch
    found: Tensor = (module(features)[:, 0] - labels).square()
    return found


def seeded(module: nn.Module, loss: Any, of: Any, difference: str, **changes: Any) -> Any:
    k = changes.pop("directions_per_step", 1)
    options = {
        name: changes.pop(name) for name in ("points_at_once", "isolation", "micro_batch", "folder") if name in changes
    }
    shape = {"n": len(of), "steps": 4, "expected_batch": len(of), "step_size": 0.05, "sampling": "full"}
    found = Plan.without_privacy(**{**shape, "directions_per_step": k, **settings(difference), **changes})
    return make_from_seed_not_private(module, loss, of, found, seed=5, **options)


def directions(run: Any, count: int) -> list[Tensor]:
    """Returns the first `count` directions of a run as vectors, from what the method `move_` adds to the weights."""
    found = []
    for number in range(count):
        before = weights(run)
        run.weights.move_([(number, 1.0)])
        found.append(weights(run) - before)
        run.weights.move_([(number, -1.0)])
    return found


@pytest.mark.parametrize(("at_once", "law"), [(1, "rademacher"), (1, "sphere"), (3, "low-rank")])
def test_on_a_quadratic_the_rules_differ_by_the_known_second_order_term(at_once: int, law: str) -> None:
    """Central differences and exact derivatives give u^T g for the gradient g, forward differences u^T g + (lambda/2)
    u^T H u for the Hessian H."""
    features = torch.tensor(FEATURES)
    found = {}
    for difference in DIFFERENCES:
        module = nn.Linear(FEATURES.shape[1], 1, dtype=torch.float64)
        with torch.no_grad():
            module.weight.copy_(torch.linspace(-1, 1, FEATURES.shape[1])[None])
            module.bias.fill_(0.3)
        run = seeded(
            module, bowl, data(), difference, directions_per_step=3, direction=law, points_at_once=at_once
        )  # fmt: skip
        us = torch.stack(directions(run, 3))
        found[difference] = run.sums.differences(0, np.arange(N), at_once)
        residual = (module(features)[:, 0] - torch.tensor(LABELS)).detach()
        inner = torch.cat([torch.ones(N, 1), features], dim=1) @ us.T
        gradient, curved = (2 * residual[:, None] * inner).numpy(), (2 * inner.square()).numpy()
        expected = gradient + (SMOOTHING["forward"] / 2 * curved if difference == "forward" else 0)
        np.testing.assert_allclose(found[difference], expected, rtol=0, atol=2e-10)
    assert np.abs(found["forward"] - found["central"]).max() > 1e-3


class Slopes(Problem):
    def gradients(self, x: Any) -> Any:
        return (-LABELS / (1 + np.exp(LABELS * (FEATURES @ x))))[:, None] * FEATURES


@EVERY
@pytest.mark.parametrize("k", [1, 3])
def test_a_run_steps_as_the_reference_does(difference: str, k: int) -> None:
    run = seeded(Logistic(), losses, data(), difference, directions_per_step=k)
    us = [u.numpy() for u in directions(run, 4 * k)]
    run.weights.load_values({"weight": torch.zeros(FEATURES.shape[1], dtype=torch.float64)})
    run.run()
    expected = dpzero(
        Slopes(), np.zeros(FEATURES.shape[1]), directions=us, directions_per_step=k, steps=4, step_size=0.05, clip=1e9,
        noise_std=0.0, noise=SeededNoise(0), **settings(difference),
    )  # fmt: skip
    np.testing.assert_allclose(weights(run).numpy(), expected.last, rtol=0, atol=1e-11)


class Attention(nn.Module):
    """A module with an embedding, attention, a normalisation, and a layer with tied weights.

    Only a few rows of the embedding are used.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words = nn.Embedding(400, 8, padding_idx=399)
        self.inside = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8)
        self.out = nn.Linear(8, 400, bias=False)
        self.out.weight = self.words.weight
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = self.norm(x + self.inside(x, x, x, need_weights=False)[0])
        found: Tensor = self.out(functional.gelu(self.frozen(x)))[:, -1]
        return found


def predicted(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize("law", ["sphere", "low-rank"])
def test_derivatives_are_those_of_backpropagation(law: str) -> None:
    """Exact derivatives agree with each record's gradient by autograd, another implementation of the derivative."""
    generator = torch.Generator().manual_seed(3)
    batch = torch.randint(400, (6, 5), generator=generator), torch.randint(400, (6,), generator=generator)
    module = Attention()
    run = seeded(module, predicted, TensorDataset(*batch), "exact", directions_per_step=2, direction=law)
    found = run.sums.differences(0, np.arange(6))
    us = directions(run, 2)
    for record in range(6):
        loss = predicted(module, (batch[0][record : record + 1], batch[1][record : record + 1]))[0]
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, run.weights.parameters)])
        np.testing.assert_allclose(found[record], [float(gradient @ u) for u in us], rtol=1e-6, atol=1e-8)


@EVERY
@pytest.mark.parametrize("isolation", ["probed", "exact"])
def test_a_run_is_replayed_verified_and_resumed(
    difference: str, isolation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, folder = Logistic(), tmp_path / "run"
    torch.save(dict(module.named_parameters()), tmp_path / "initial.pt")
    options = {**settings(difference), "isolation": isolation, "directions_per_step": 2, "micro_batch": 16}
    run = private(folder, module, **options)
    for _ in range(3):
        run.step()
    run.close()
    run = private(folder, module := Logistic(), **options, resume=True)
    run.run()
    torch.save(run.state_dict(), tmp_path / "final.pt")
    run.close()
    other = Logistic()
    read(folder / RUN).replayed(other)
    assert read(folder / RUN).header.plan.difference == difference
    assert torch.equal(other.weight, module.weight)
    files = ["--initial", str(tmp_path / "initial.pt"), "--final", str(tmp_path / "final.pt")]
    assert main([str(folder), *files, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["statement"]["differences"] == f"{difference}, smoothing {SMOOTHING[difference]:g}"
    assert main([str(folder), "--full"]) == 0
    assert f"{difference}, smoothing" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"(difference|smoothing) must be that of the run that is resumed"):
        private(folder, **{**options, **settings("exact" if difference != "exact" else "forward")}, resume=True)


def touchy(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The losses of `tests.optim.small`, but an error is raised for a record with a feature of 77."""
    if bool((batch[0] == 77).any()):
        raise KeyError("a record that cannot be evaluated")
    return losses(module, batch)


@EVERY
@pytest.mark.parametrize(("at_once", "value", "counts"), [(1, math.nan, 0), (2, 77.0, 0), (1, math.inf, None)])
def test_a_record_that_is_not_finite_or_raises_stays_alone(
    difference: str, at_once: int, value: float, counts: int | None
) -> None:
    """A record whose loss is not a number or raises an error counts as 0.

    Where its loss is infinite it counts at most as the clip. What the other records add stays the same up to rounding.
    """
    features, labels = torch.tensor(FEATURES), torch.tensor(LABELS)
    features[7] = value
    of = TensorDataset(features, labels)
    run = make_from_seed_not_private(
        Logistic(), touchy, of, plan(**settings(difference), directions_per_step=2, direction="low-rank"), seed=5,
        points_at_once=at_once, micro_batch=N,
    )  # fmt: skip
    every, others = np.arange(N), np.delete(np.arange(N), 7)
    alone = [run.sums.total(0, np.array([record])) for record in others]
    total, without = run.sums.total(0, every), run.sums.total(0, others)
    room = 2**-20 * run.plan.rule.levels  # The rounding of kernels may depend on the number of rows
    assert np.abs(without - np.sum(alone, axis=0)).max() <= room
    if counts == 0:
        assert np.abs(total - without).max() <= room
    assert np.linalg.norm((total - without).astype(float)) <= run.plan.rule.levels + 2 * room


@pytest.mark.parametrize(
    ("loss", "operation"),
    [
        (lambda m, b: (b[1] * m(b[0]) <= 0).double(), "operations that can be differentiated"),
        (lambda m, b: m(b[0]).round() * b[1], "the derivatives of all"),
        (lambda m, b: b[0] @ m.weight.detach() + m(b[0]), "weight is read without its derivative"),
    ],
)  # fmt: skip
def test_losses_without_derivatives_are_refused_before_anything_is_spent(
    loss: Callable[..., Tensor], operation: str, tmp_path: Path
) -> None:
    from dpzero_theory.optim.private import make_private

    with pytest.raises(ValueError, match=rf"difference must be 'forward' or 'central'.*{operation}") as refused:
        make_private(
            Logistic(), loss, data(), plan(**settings("exact")), target_delta=1e-5, folder=tmp_path / "run",
            micro_batch=4,
        )  # fmt: skip
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"difference": "exact"}, "smoothing must be 0 where difference is 'exact'"),
        ({"difference": "exact", "smoothing": -1.0}, "smoothing must be a finite number with .*; got -1"),
        ({"difference": "forward", "smoothing": 0.0}, "smoothing must be a finite number with 0 < smoothing.*; got 0"),
        ({"smoothing": 0.0}, "smoothing must be a finite number with 0 < smoothing.*; got 0"),
        ({"difference": "sideways"}, "difference must be .*central.*; got 'sideways'"),
        ({"difference": "exact", "smoothing": math.nan}, "smoothing must be"),
    ],
)
def test_a_smoothing_fits_the_rule(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**changes)
