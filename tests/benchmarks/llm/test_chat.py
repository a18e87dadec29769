"""Tuning on answers and on pairs of answers, on a tiny model in place of the pretrained one."""

from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import chat
from tests.benchmarks.llm.test_last_norm import model


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of descriptions, four of each restaurant, and the experiment in small."""
    monkeypatch.setattr(chat, "load", lambda name, **_: model())
    monkeypatch.setattr(chat, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(chat, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(chat, "PARTS", {task: {"train": 12, "dev": 4, "test": 4} for task in chat.TASKS})
    for name, value in {"STEPS": 3, "BATCHES": {"sft": 6, "dpo": 6}, "DIRECTIONS": 2, "LEARNING_RATES": (0.1, 0.0),
                        "STEP_SIZES": {("sft", "dpzero"): (1.0,), ("dpo", "dpzero"): (1.0,)}}.items():  # fmt: skip
        monkeypatch.setattr(chat, name, value)
    lines = ["mr,ref"]
    for number in range(16):
        lines += [f"name[{chr(97 + number)}],a fine{' film' * words}" for words in (1, 2, 7, 8)]
    (tmp_path / chat.FILE).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_best_step_size_is_reported_and_no_run_spends_more_than_its_epsilon(data: Path) -> None:
    out = data / "rows"
    assert chat.EXPERIMENT.main([f"--data={data}", "--seeds=1", f"--out={out}"]) == 0
    rows = read_rows(out).astype({"epsilon": str})
    assert len(rows) == 2 * (1 + 1 + 1 + 2 + 1)  # two trials of AdamW, one of DPZero, and three reported runs a task
    private = rows[rows["method"] == "dpzero"]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    for task in chat.TASKS:
        own = rows[(rows["task"] == task) & (rows["method"] == "adamw")]
        best = own[own["seed"] == 0].sort_values("dev_loss")["step_size"].iloc[0]
        assert own[own["seed"] == 1]["step_size"].tolist() == [best]
    start = rows[rows["task"] == "dpo"]["loss_before"]
    assert start.to_numpy() == pytest.approx([0.6931] * len(start), abs=1e-4)  # no margin yet: log 2
    assert "±" in chat.table(out)


def test_margins_are_the_whole_models(data: Path) -> None:
    """The growth of log-probabilities on kept hidden states is that of the model run on each answer by itself."""
    work = chat.prepared(data, "dpo", data / "states")
    records = chat.answers(data, "dpo")["test"]
    assert all(len(short.split()) + chat.SHORTER <= len(long.split()) for _, (short, long) in records)
    with torch.no_grad():
        work.bias.copy_(torch.linspace(-1, 1, len(work.bias)))
        chosen, rejected = chat.margins(work.tail, work.parts["test"][torch.arange(len(records))])
    whole = model()
    for number, (prompt, texts) in enumerate(records):
        before = whole.tokenizer(prompt)["input_ids"]
        for text, found in zip(texts, (chosen, rejected), strict=True):
            answer = [*whole.tokenizer(text)["input_ids"], whole.tokenizer.eos_token_id][: chat.LONGEST["answer"]]
            with torch.no_grad():
                logits = whole.module(input_ids=torch.tensor([[*before, *answer]])).logits[0, len(before) - 1 : -1]
            growth = sum(
                float((logits + shift).log_softmax(1).gather(1, torch.tensor(answer)[:, None]).sum()) * sign
                for shift, sign in ((work.bias.detach(), 1), (torch.zeros(1), -1))
            )
            assert float(found[number]) == pytest.approx(growth, abs=1e-3)


def test_the_product_that_is_remembered_is_that_of_the_input() -> None:
    layer, other = chat.Remembering(3, 5), nn.Linear(3, 5)
    layer.load_state_dict(other.state_dict())
    inputs = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    for x in (inputs[0], inputs[1], inputs[1], inputs[0]):
        layer.bias.data += 1
        other.bias.data += 1
        torch.testing.assert_close(layer(x), other(x))
