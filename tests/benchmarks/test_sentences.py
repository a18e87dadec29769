"""Tests of the sentences of SST-2, and of the language models whose curvature is measured."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.problems import language
from benchmarks.problems.sentences import hashed_words, sst2
from dpzero_theory.curvature.objective import Objective


@pytest.mark.parametrize("header", ["", "sentence\tlabel\n"])
def test_labelled_sentences(tmp_path: Path, header: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(header + "a good film \t1\nwith\ttab\t0\n", encoding="utf-8")
    sentences, labels = sst2(path)
    assert sentences == ["a good film ", "with\ttab"]
    np.testing.assert_array_equal(labels, [1.0, -1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("good\t1\nbad\t2\n", "line 2"),
        ("good\t1\n\n", "line 2"),
        ("no tab\n", "line 1"),
        ("good\t1\nsentence\tlabel\n", "line 2"),
        ("", "no labelled"),
        ("sentence\tlabel\n", "no labelled"),
    ],
)
def test_bad_sentence_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        sst2(path)


def test_hashed_words_count_words_and_append_a_constant():
    counts = hashed_words(["Good, GOOD film", "", "film"], 50)
    dense = counts.toarray()
    assert dense.shape == (3, 50)
    np.testing.assert_array_equal(dense[:, -1], 1)
    np.testing.assert_array_equal(dense[:, :-1].sum(axis=1), [3, 0, 1])
    film = int(dense[2, :-1].argmax())
    assert dense[0, film] == 1
    assert sorted(dense[0, :-1][dense[0, :-1] > 0]) == [1, 2]


def test_hashed_words_of_one_record_do_not_depend_on_the_others():
    """The hashed words of one record do not depend on the other records, as they would with a vocabulary."""
    alone = hashed_words(["a fine film"], 64).toarray()
    together = hashed_words(["other words entirely", "a fine film"], 64).toarray()
    np.testing.assert_array_equal(alone[0], together[1])


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


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
