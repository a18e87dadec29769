"""Descriptions that a model generates before and after tuning, on a tiny model in place of the pretrained one."""

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")
pytest.importorskip("sacrebleu", reason="the dev extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import chat, e2e
from tests.benchmarks.llm.test_chat import data

__all__ = ["data"]


def test_bleu_is_that_of_the_paper() -> None:
    """BLEU (Papineni and others 2002) is the geometric mean of the clipped shares of 1 to 4 words that match, times
    exp(1 - r/c) where the answers are shorter, c words, than the references next in length, r words."""
    answers = ["the cat sat on the mat", "a b c d e"]
    references = [["the cat sat on a mat"], ["x y", "a b c d e f g"]]
    matches, words, r, c = (5 + 5, 3 + 4, 2 + 3, 1 + 2), (6 + 5, 5 + 4, 4 + 3, 3 + 2), 6 + 7, 6 + 5
    shares = [one / of for one, of in zip(matches, words, strict=True)]
    found = e2e.bleu(answers, references)
    assert found["bleu"] == pytest.approx(100 * math.prod(shares) ** 0.25 * math.exp(1 - r / c))
    assert found["bleu_low"] < found["bleu"] < found["bleu_high"]
    assert e2e.bleu(["the cat sat on a mat"], references[:1])["bleu_low"] == pytest.approx(100)


def test_every_kind_of_run_has_its_row(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of the trained model is what its logits, with the trained numbers added, say token by token."""
    monkeypatch.setattr(e2e, "SIZES", {"train": 12, "dev": 4, "test": 8})
    monkeypatch.setattr(e2e, "cache", lambda: data / "cache")
    monkeypatch.setattr(e2e, "STEPS", 2)
    monkeypatch.setattr(e2e, "BATCH", 6)
    monkeypatch.setattr("benchmarks.llm.generation.MAX_NEW_TOKENS", 4)
    seen = []
    generated = e2e.generated

    def kept(work: chat.Prepared, folder: Path) -> tuple[list[str], list[list[str]]]:
        found = generated(work, folder)
        ids = work.model.tokenizer(chat.answers(folder, "sft", e2e.SIZES)["test"][0][0])["input_ids"]
        count = len(ids)
        for _ in range(4):
            with torch.no_grad():
                ids.append(int(work.model.module(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        seen.append((found[0][0], work.model.tokenizer.decode(ids[count:], skip_special_tokens=True)))
        return found

    monkeypatch.setattr(e2e, "generated", kept)
    out = data / "rows"
    assert e2e.EXPERIMENT.main([f"--data={data}", f"--out={out}"]) == 0
    rows = read_rows(out).astype({"epsilon": str}).set_index(["method", "epsilon"])
    assert list(rows.index) == list(e2e.RUNS)
    assert (rows["answers"] == 2).all()
    assert rows["epsilon_upper"].dropna().tolist() == pytest.approx([2, 8], rel=1e-2)
    assert rows["test_loss"].nunique() == 4
    for answer, whole in seen:
        assert answer == whole.partition("\n")[0].strip()
    assert "| before |" in e2e.table(out)
