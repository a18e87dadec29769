"""Speakers as users, on a tiny model in place of the pretrained one."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import settings, speakers
from tests.benchmarks.llm.test_last_norm import model


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A play of nine speakers with two texts and of two with four, a stage direction, and the experiment in small."""
    monkeypatch.setattr(speakers, "load", lambda name, **_: model())
    monkeypatch.setattr(settings, "pretrained_folder", lambda name: tmp_path)
    for name, value in {"OWNED": (2, 4), "HELD_OUT": 3, "LENGTH": 6, "STEPS": 2, "DIRECTIONS": 2}.items():
        monkeypatch.setattr(speakers, name, value)
    monkeypatch.setattr(
        speakers, "SETTINGS", dict.fromkeys(speakers.METHODS, ((1.0, 0.5), (1.0, 0.0)))
    )  # fmt: skip
    said = {chr(97 + i): 4 if i < 2 else 2 for i in range(11)}
    blocks = [
        f"{name}:\na {'fine' if i % 2 else 'bad'} film {name}" for name, count in said.items() for i in range(count)
    ]
    (tmp_path / speakers.FILE).write_text("\n\n".join([*blocks, "Exeunt all", "z:\nonce"]) + "\n")
    speakers.noise.cache_clear()
    return tmp_path


def test_the_loss_of_a_text_is_that_of_its_speakers_words(data: Path) -> None:
    """At the start the loss of each text is that of the model, after the line with its own speaker's name."""
    count, parts = speakers.prepared(data)
    whole, texts = model(), speakers.dealt(speakers.by_speaker(data))["test"]
    rows = [(name, text) for name, own in texts.items() for text in own]
    with torch.no_grad():
        found = speakers.losses(speakers.Numbers(count), parts["test"].kept[torch.arange(len(rows))])
        for (name, text), loss in zip(rows, found, strict=True):
            start, own = whole.tokenizer(f"{name}:\n")["input_ids"], whole.tokenizer(text)["input_ids"][:6]
            logits = whole.module(input_ids=torch.tensor([[*start, *own]])).logits[0, len(start) - 1 : -1]
            assert float(loss) == pytest.approx(float(cross_entropy(logits, torch.tensor(own))), rel=1e-4)
    assert parts["test"].owners == [name for name, _ in rows]


def test_no_speaker_is_in_two_splits_and_users_have_as_many_texts_as_asked(data: Path) -> None:
    _, parts = speakers.prepared(data)
    owners = {part: set(texts.owners) for part, texts in parts.items()}
    assert len(owners["train"]) == 5
    assert {"a", "b"} <= owners["train"]
    assert len(set.union(*owners.values())) == 11
    for owned, users in ((2, 5), (4, 2)):
        mine = speakers.of_users(parts["train"], owned)
        assert sorted(mine.owners) == sorted(list(set(mine.owners)) * owned)
        assert len(set(mine.owners)) == users


def test_users_need_less_noise_and_the_best_setting_is_reported(data: Path) -> None:
    out = data / "rows"
    assert speakers.EXPERIMENT.main([f"--data={data}", "--seeds=1", f"--out={out}"]) == 0
    rows = read_rows(out).astype({"setting": str})
    assert len(rows) == 2 * 3 * 3
    for (_, method), part in rows.groupby(["owned", "method"]):
        tried = part[part["seed"] == 0].sort_values(["dev_loss", "setting"])
        assert part[part["seed"] == 1]["step_size"].tolist() == [tried["step_size"].iloc[0]]
        assert part["noise_multiplier"].isna().all() == (method == "not private")
    users, texts = (rows[(rows["method"] == name) & (rows["owned"] == 4)] for name in ("users", "texts"))
    assert texts["noise_multiplier"].min() > users["noise_multiplier"].max()
    assert speakers.table(out).count("\n") == 7
