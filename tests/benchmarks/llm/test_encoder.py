"""A sentence encoder as a classifier, on a tiny random BERT in the pretrained one's place."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm import directions_total, encoder, last_norm_tasks
from benchmarks.llm.encoder import SCALE, Sentences
from benchmarks.llm.tasks import task
from benchmarks.llm.top import NORM, TRAINED
from benchmarks.llm.tuned import CHOSEN, clipped
from tests.benchmarks.llm.test_tuned import run
from tests.benchmarks.llm.tiny import in_its_place, phrases, tiny

pytest.importorskip("transformers", reason="the hf extra is not installed")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny encoder in the place of the pretrained one, and a folder of data."""
    in_its_place(monkeypatch, tmp_path)
    monkeypatch.setattr(encoder, "load", lambda name: tiny("encoder"))
    monkeypatch.setattr(encoder, "cache", lambda: tmp_path / "cache")
    return phrases(tmp_path)


def made(folder: Path) -> tuple[Sentences, dict[str, Any]]:
    """The records of SST-2 with their states, and the records themselves."""
    work = Sentences(task("sst2"), 24, "mpnet")
    records = last_norm_tasks.texts("sst2", folder, last_norm_tasks.Size(40, 10, 12, 24))
    for part, found in records.items():
        work.add(part, found)
    return work, records


def test_scores_are_cosines_with_the_label_sentences(small: Path) -> None:
    """Those of the whole encoder, one text at a time, and read from the file of states they are the same."""
    work, records = made(small)
    model = tiny("encoder")

    def embedded(text: str) -> Any:
        with torch.no_grad():
            return model.module(**model.tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    labels = torch.stack([embedded(text) for text in ("It was terrible.", "It was great.")])
    texts = torch.stack([embedded(record.texts["text"]) for record in records["test"]])
    expected = SCALE * cosine_similarity(texts[:, None], labels[None], dim=-1)
    for found in (work, made(small)[0]):
        scores, wanted = found.answers(found.top(TRAINED[NORM]), "test")
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
        assert wanted.tolist() == [record.label for record in records["test"]]


def test_the_clipped_sum_is_that_of_one_record_at_a_time(small: Path) -> None:
    work, _ = made(small)
    top, batch = work.top(TRAINED[NORM]), work.states(0)["train"][torch.arange(7)]
    weights, rows = list(top.parameters()), []
    for index in range(7):
        scores, wanted = work.scores(top, {key: value[index : index + 1] for key, value in batch.items()})
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(cross_entropy(scores, wanted), weights)]))
    norms = torch.stack([row.norm() for row in rows])
    clip = float(norms.median())
    assert norms.min() < clip < norms.max()
    expected = sum(row * min(1.0, clip / float(row.norm())) for row in rows)
    found = torch.cat([g.flatten() for g in clipped(top, work.losses, batch, clip)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_runs_of_the_encoder(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All trained weights move, and settings and folders are the encoder's own."""
    grid = {8: ((4, 2),)}, (0.3, 1.0), {"adamw": (0.01, 0.03), "dp-adamw": (0.01, 0.03)}
    for name, value in {"N": 24, "SPLITS": grid[0], "ENCODER": grid, "STEPS": (3,), "MEZO": 8}.items():
        monkeypatch.setattr(directions_total, name, value)
    monkeypatch.setitem(directions_total.SIZES, "sst2", last_norm_tasks.Size(24, 10, 12, 24))
    rows = run(directions_total.EXPERIMENT, small, "--model=mpnet", "--tasks=sst2", "--epsilons=2", "--seeds=2")
    chosen = rows[rows["setting"] == CHOSEN]
    assert sorted(chosen["method"]) == sorted([*["adamw", "dp-adamw", "dpzero", "mezo"] * 2, "zero-shot"])
    assert chosen["test_loss"].nunique() == len(chosen)
    assert directions_total.table(rows).splitlines()[2].startswith("| SST-2 | 2 |")


def test_the_encoder_is_level_with_dp_adamw_where_the_page_says() -> None:
    """Level: the 95% interval of the difference contains 0."""
    rows = read_rows(RESULTS / "llm_directions_total_mpnet")
    private = rows[rows["epsilon_upper"].notna()]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    found, gaps = directions_total.ends(rows), {}
    for name in ("sst2", "trec", "sst5"):
        for epsilon in ("2", "6"):
            ours, theirs = found[name, "dpzero", epsilon, "16000"], found[name, "dp-adamw", epsilon, "0"]
            assert ours.runs == theirs.runs == 5
            gaps[name, epsilon] = theirs.mean - ours.mean
            level = (name, epsilon) not in {("trec", "6"), ("sst5", "6")}
            assert (abs(gaps[name, epsilon]) <= math.hypot(ours.half, theirs.half)) == level
    page = " ".join((RESULTS.parents[1] / "docs" / "results" / "language-models.md").read_text().split())
    assert "it is {:.1f} points behind on TREC and {:.1f} on SST-5".format(gaps["trec", "6"], gaps["sst5", "6"]) in page
    assert "the gap on TREC is {:.1f} points".format(gaps["trec", "2"]) in page
    many, theirs = found["trec", "dpzero", "6", "64000"], found["trec", "dp-adamw", "6", "0"]
    assert many.runs == 5
    assert abs(many.mean - theirs.mean) <= math.hypot(many.half, theirs.half)
    assert f"With 64,000 directions DPZero reaches {many.text()} on TREC at 6" in page
    limit = found["trec", "adamw", "none", "0"].mean - found["trec", "mezo", "none", "16000"].mean
    assert f"no privacy, is {limit:.1f} points behind AdamW" in page
