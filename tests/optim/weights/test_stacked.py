"""Tests of evaluating several points in one pass, against one after the other.

They go through every way in which a module reads its weights, and whole runs.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from tests.optim.modules import KEY, SHIFT, Reads, X, data, dense_net
from tests.optim.small import BUDGET, POISSON, STEP, Logistic, losses, plan
from tests.optim.small import data as records
from tests.optim.weights.test_shifted import MODULES, PAD, first, make

POINTS = [(number, side * SHIFT) for number in (4, 5, 6) for side in (1, -1)]
REFUSED = {
    *("lstm", "bag of embeddings", "weight norm", "scripted", "views", "item", "autograd function", "one storage"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*torch.jit.script.*")
@pytest.mark.parametrize("name", MODULES)
def test_points_in_one_pass_are_those_one_after_the_other(name: str) -> None:
    """Either way the module is left as it was."""
    module, inputs = make(name)
    weights = Weights(module, Directions(KEY, "rademacher"))
    before = weights.fingerprint()

    def ask(module: nn.Module) -> torch.Tensor:
        found: torch.Tensor = first(module(*inputs))
        # With nested tensors the outputs at padded positions are zero.
        return found[~PAD] if "nested" in name else found

    apart = weights.evaluated(POINTS, ask)
    if name in REFUSED:
        with pytest.raises(ValueError, match="points_at_once must be 1 for these losses: "):
            weights.evaluated(POINTS, ask, 4)
    else:
        together = weights.evaluated(POINTS, ask, 4)  # The six points are evaluated in a pass of four and one of two
        for one, other in zip(apart, together, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert max(float((one - apart[0]).abs().max()) for one in together) > 1e-3
    assert weights.fingerprint() == before
    assert torch.overrides._len_torch_function_stack() == 0
    with weights.shifted(1, SHIFT):
        module(*inputs)


@pytest.mark.parametrize(("law", "groups"), [("sphere", ()), ("gaussian", (("0.*", 1.0, 3.0),))])
def test_every_point_is_that_of_explicit_vectors(law: str, groups: Any) -> None:
    """The oracle makes the directions u as tensors and uses torch.func.functional_call."""
    torch.manual_seed(0)
    module, x = dense_net().double(), X.double()
    # This weight is stored in another order than row by row.
    module[2].weight = nn.Parameter(module[2].weight.detach().t().contiguous().t())
    weights = Weights(module, Directions(KEY, law), groups=groups)
    found = weights.evaluated(POINTS, lambda module: module(x).sum(dim=(1, 2)), len(POINTS))
    for (number, shift), values in zip(POINTS, found, strict=True):
        factor = shift * weights.directions.factor(number, weights.sizes)
        moved = {
            name: p + factor * scale[1] * weights.directions.fill_(torch.empty(p.shape, dtype=p.dtype), number, index)
            for index, (name, p, scale) in enumerate(
                zip(weights.names, weights.parameters, weights.factors, strict=True)
            )
        }
        expected = torch.func.functional_call(module, moved, (x,)).sum(dim=(1, 2))
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


def kept_view() -> nn.Module:
    module = Reads(lambda x, w: x * w, (16,))
    view = module.w[0].detach()[:]
    module.function = lambda x, w: x * w + view
    return module


def test_memory_read_behind_torch_functions_is_refused() -> None:
    """A view made earlier would read the weights x at every point, and the difference of the losses would be zero."""
    weights = Weights(kept_view(), Directions(KEY, "rademacher"))
    with pytest.raises(ValueError, match=r"points_at_once must be 1 for these losses: w\.0 is read"):
        weights.evaluated(POINTS, lambda module: module(X), 2)
    assert weights.module.training


def from_seed(count: int, model: nn.Module, dataset: TensorDataset, ask: Any = losses, **changes: Any) -> Any:
    settings = plan(directions_per_step=3, **{**POISSON, **changes})
    return make_from_seed_not_private(model, ask, dataset, settings, seed=5, points_at_once=count, micro_batch=7)


def test_a_record_keeps_its_numbers_beside_any_other() -> None:
    """A record's losses are the same beside any other record, also beside one whose losses overflow."""
    weights = Weights(dense_net(), Directions(KEY, "rademacher"))
    wild = X.clone()
    wild[1] = math.inf
    plain, beside = (weights.evaluated(POINTS, lambda m, x=x: m(x).sum(dim=(1, 2)), 6) for x in (X, wild))
    for one, other in zip(plain, beside, strict=True):
        assert torch.equal(one[[0, 2, 3]], other[[0, 2, 3]])
        assert not torch.isfinite(other[1])


def test_what_cannot_be_together_is_refused_at_the_start(tmp_path: Path) -> None:
    common: dict[str, Any] = {**BUDGET, **STEP, **POISSON, "directions_per_step": 2}
    for number, (changes, said) in enumerate(
        {
            "points_at_once must be an integer": {"points_at_once": 5},
            "points_at_once must be 1 where isolation is 'exact'": {"points_at_once": 2, "isolation": "exact"},
        }.items()
    ):
        with pytest.raises(ValueError, match=changes):
            make_private_with_epsilon(Logistic(), losses, records(), folder=tmp_path / str(number), **common, **said)
    calls: list[int] = []

    def other_each_time(module: nn.Module, batch: Any) -> torch.Tensor:
        """Losses that differ when several points are evaluated in one pass."""
        calls.append(torch._C._functorch.maybe_current_level() is not None)
        return losses(module, batch) * (1.1 if calls[-1] else 1.0)

    with pytest.raises(ValueError, match=r"together they change by 0\.07"):
        from_seed(2, Logistic(), records(), other_each_time)
    assert calls[-1]
    weights = Weights(dense_net(), Directions(KEY, "rademacher"))
    weights.collective = True
    with pytest.raises(ValueError, match="points_at_once must be 1 where the module is sharded"):
        weights.evaluated(POINTS, lambda module: module(data(2, 16)), 2)
