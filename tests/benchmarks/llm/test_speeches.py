"""Shakespeare's speeches on a tiny model in place of the pretrained one."""

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import settings, speeches
from tests.benchmarks.llm.test_last_norm import model


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of speeches of 1 to 7 words, and the experiment in small."""
    monkeypatch.setattr(speeches, "load", lambda name, **_: model())
    monkeypatch.setattr(settings, "pretrained_folder", lambda name: tmp_path)
    for name, value in {"N": 24, "DEV": 6, "TEST": 8, "LENGTH": 9, "STEPS": 3, "BATCH": 12, "DIRECTIONS": 2,
                        "SETTINGS": {"zero-shot": (0.0,), "dpzero": (0.0, 0.1), "mezo": (0.1,), "adamw": (0.1, 0.0)},
                        }.items():  # fmt: skip
        monkeypatch.setattr(speeches, name, value)
    blocks = [f"{'ABC'[i % 3]}:\na {chr(97 + i % 26)}{' film' * (i % 6)} {i}" for i in range(40)]
    (tmp_path / speeches.FILE).write_text("\n\n".join([*blocks, blocks[0], "D:"]) + "\n")
    return tmp_path


def test_the_loss_is_that_of_the_whole_model_with_numbers_added(data: Path) -> None:
    """Also of tokens without a number; the reported loss weighs each token alike, the trained one each speech."""
    work, whole = speeches.prepared(data), model()
    said = speeches.speeches(data)
    texts = [whole.tokenizer(text)["input_ids"][: speeches.LENGTH] for _, text in said]
    numbered = sorted({token for text in texts[24:30] for token in text})
    added = torch.zeros(len(whole.tokenizer))
    added[numbered] = torch.linspace(-2, 2, len(numbered))
    with torch.no_grad():
        work.tail.added.copy_(added[numbered])  # type: ignore[operator]
    expected = []
    for (name, _), text in zip(said[30:], texts[30:], strict=True):
        before = whole.tokenizer(f"{name}:\n")["input_ids"]
        with torch.no_grad():
            logits = whole.module(torch.tensor([[*before, *text]])).logits[0, len(before) - 1 : -1] + added
        expected.append(torch.nn.functional.cross_entropy(logits, torch.tensor(text), reduction="none"))
    assert len({len(text) for text in texts[30:]}) > 2
    assert {token for text in texts[30:] for token in text} > set(numbered) & {t for text in texts[30:] for t in text}
    found = speeches.losses(work.tail, work.parts["test"][torch.arange(8)])
    assert found.tolist() == pytest.approx([float(each.mean()) for each in expected], rel=1e-4)
    assert speeches.evaluated(work, "test") == pytest.approx(float(torch.cat(expected).mean()), rel=1e-4)


def test_every_run_has_its_row_and_the_best_setting_is_reported(data: Path) -> None:
    out = data / "rows"
    assert speeches.EXPERIMENT.main([f"--data={data}", "--seeds=2", f"--out={out}"]) == 0
    rows = read_rows(out).astype({"setting": str, "epsilon": str})
    assert len(rows) == 1 + (2 + 2 + 2) + 2 + (2 + 2)
    assert rows["perplexity"].tolist() == pytest.approx(rows["test_loss"].map(math.exp).tolist())
    private = rows[rows["method"] == "dpzero"]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    assert (private["epsilon_upper"] > 0.9 * private["epsilon"].astype(float)).all()
    number = settings.best(rows, "dev_loss", lowest=True, method="adamw")
    chosen = rows[(rows["method"] == "adamw") & (rows["setting"] == settings.CHOSEN)]
    assert (chosen["scale"] == (0.1, 0.0)[number]).all()
    told = speeches.table(out)
    assert "| before |" in told
    assert "DPZero, epsilon 8" in told


def test_no_two_speeches_are_equal(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = speeches.speeches(data)
    assert len(found) == len(set(found)) == 38
    monkeypatch.setattr(speeches, "N", 27)
    with pytest.raises(ValueError, match="41 speeches"):
        speeches.speeches(data)
