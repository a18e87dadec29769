"""Tests that buffers and frozen parameters carry nothing of the records.

They are put back after each evaluation, or the start is refused.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.weights import untrained
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from tests.optim.small import BUDGET, POISSON, STEP, D, data

X = data(torch.float32).tensors[0]


class Marked(nn.Module):
    """A module whose forward pass gives its input, the records, to the function `mark` before it computes logits."""

    def __init__(self, mark: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.mark = nn.Linear(D, 1), mark
        self.slow = nn.Linear(D, 1).requires_grad_(False)
        self.register_buffer("kept", torch.zeros(D))
        self.register_buffer("beside", torch.zeros(D), persistent=False)
        self.norm = nn.BatchNorm1d(D, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mark(self, x)
        found: Tensor = self.layer(x)[:, 0]
        return found


def losses(module: nn.Module, batch: Any) -> Tensor:
    return nn.functional.softplus(-batch[1] * module(batch[0]))


def filled(module: Any, x: Tensor) -> None:
    """Writes the mean of the records x into a buffer of `module` in the first call."""
    if not module.kept.any():
        module.kept.copy_(x.mean(0))


def replaced(module: Any, x: Tensor) -> None:
    module.kept = module.kept.maximum(x.max(0).values) if module.kept.any() else x.max(0).values


def not_saved(module: Any, x: Tensor) -> None:
    if not module.beside.any():
        module.beside.copy_(x.mean(0))


def made_inside(module: Any, x: Tensor) -> None:
    if "seen" not in dict(module.named_children()):
        module.add_module("seen", nn.Identity())
        module.seen.register_buffer("mean", x.mean(0))


def frozen_replaced(module: Any, x: Tensor) -> None:
    if not getattr(module, "begun", False):
        module.slow.weight = nn.Parameter(x.mean(0, keepdim=True), requires_grad=False)


def frozen_memory(module: Any, x: Tensor) -> None:
    module.slow.weight.data = x[:1] * 0 + x.mean()


def by_a_kernel_that_says_nothing(module: Any, x: Tensor) -> None:
    if not getattr(module, "begun", False):
        module.norm.train()(x.repeat(2, 1))
        module.norm.eval()


def by_numpy(module: Any, x: Tensor) -> None:
    if not module.kept.any():
        module.kept.numpy()[:] = x.mean(0).numpy()


MARKS = (
    filled, replaced, not_saved, made_inside, frozen_replaced, frozen_memory, by_a_kernel_that_says_nothing, by_numpy,
)  # fmt: skip


def everything(module: nn.Module) -> dict[str, Tensor]:
    """Returns copies of all tensors of a module except its trained parameters.

    The buffers that no state_dict has are among them.
    """
    found = {**module.state_dict(), **dict(module.named_buffers())}
    return {name: value.clone() for name, value in found.items() if not name.startswith("layer")}


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.__name__)
def test_nothing_of_the_records_is_handed_out(tmp_path: Path, mark: Callable[[Any, Tensor], None]) -> None:
    """They are compared at every save and at the end with those before the first call. `mark` is what the forward pass
    does with records."""
    module = Marked(mark)
    before, layout = everything(module), [name for name, _ in module.named_modules()]

    def require_unchanged(*_: object) -> None:
        now = everything(module)
        assert list(now) == list(before)
        assert all(torch.equal(value, before[name]) for name, value in now.items())
        assert [name for name, _ in module.named_modules()] == layout

    settings = {**BUDGET, **STEP, **POISSON, "folder": tmp_path / "run", "micro_batch": 6}
    run = make_private_with_epsilon(module, losses, data(torch.float32), **settings)
    run.state_dict()
    require_unchanged()
    run.run(None if mark is by_numpy else require_unchanged)
    require_unchanged()
    run.close()
    require_unchanged()


def weights(module: nn.Module) -> Weights:
    return Weights(module, Directions(bytes(16), "rademacher"))


def test_frozen_parameters_and_large_buffers_must_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrained, "_MOST_COPIED", D - 1)
    for mark, name in ((lambda m, x: m.slow.weight.data.add_(1), "slow.weight"), (filled, "kept")):
        module = Marked(mark)
        before = everything(module)
        with pytest.raises(ValueError, match=f"got a write of {name} by aten"), weights(module).shifted([0], [0.1]):
            module(X)
        assert all(torch.equal(value, before[name]) for name, value in everything(module).items())


def test_what_others_write_between_evaluations_stays() -> None:
    """A module that is moved, loaded or written to is evaluated as it is found, and left so."""
    module = Marked(filled)
    found = weights(module)
    for change in (lambda: module.kept.fill_(2.0), lambda: module.double(), lambda: module.kept.data.fill_(3.0)):
        with found.shifted([0], [0.1]):
            module(X.to(module.layer.weight.dtype))
        change()
        now = everything(module)
        with found.shifted([0], [0.1]):
            module(X.to(module.layer.weight.dtype))
        assert all(torch.equal(value, now[name]) for name, value in everything(module).items())


def test_an_evaluation_that_raises_leaves_nothing_either() -> None:
    def broken(module: Any, x: Tensor) -> None:
        filled(module, x)
        module.late = nn.Identity()
        raise KeyError

    module = Marked(broken)
    with pytest.raises(KeyError), weights(module).shifted([0], [0.1]):
        module(X)
    assert not module.kept.any()
    assert "late" not in dict(module.named_children())
