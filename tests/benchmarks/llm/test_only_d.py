"""Steps against d on a pretrained language model, on a tiny model in its place."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.kit.rows import read_rows
from benchmarks.llm import only_d, settings
from benchmarks.llm.models import LanguageModel
from tests.benchmarks.llm.tiny import tokenizer


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment in small, and a folder of data whose sign is told by one word."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer("causal")), hidden_size=16, intermediate_size=24, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    found = LanguageModel(LlamaForCausalLM(config).eval(), tokenizer("causal"), "causal")
    monkeypatch.setattr(only_d, "load", lambda name: found)
    monkeypatch.setattr(settings, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(only_d, "cache", lambda: tmp_path / "cache")
    for name, value in {"N": 24, "HELD_OUT": 8, "STEPS": 4, "BATCH": 12, "LENGTH": 20, "DROP": 1e-4,
                        "SCALES": (0.01, 0.1)}.items():  # fmt: skip
        monkeypatch.setattr(only_d, name, value)
    kept = ("last normalisation", "LoRA of rank 8, last layer", "last two layers")
    few = {name: only_d.TRAINED[name] for name in kept} | {"all weights": only_d.Trained(3, "whole")}
    monkeypatch.setattr(only_d, "TRAINED", few)
    for part in ("train", "test"):
        lines = [f"a {'fine' if i % 2 else 'bad'} film {chr(97 + i % 26)}{i} \t{i % 2}" for i in range(80)]
        (tmp_path / f"sst2_{part}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return tmp_path


def test_the_end_of_the_model_gives_the_losses_of_the_whole_model(small: Path) -> None:
    """Also with adapters, which change nothing at first."""
    work = only_d.Work(small)
    records = work._texts["public"]
    whole = work.model.module
    expected = []
    for record in records:
        count = int((record["labels"] >= 0).nonzero()[0])
        with torch.no_grad():
            scores = whole(record["input_ids"][None, :count]).logits[0, -1, list(work.options)]
        label = work.options.index(int(record["labels"][count]))
        expected.append(float(torch.nn.functional.cross_entropy(scores, torch.tensor(label))))
    for trained in only_d.TRAINED.values():
        states = work.states(trained.layers)["public"]
        found = work.losses(work.top(trained), states[torch.arange(len(states))])
        assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_what_is_trained_has_the_counted_size(small: Path) -> None:
    work = only_d.Work(small)
    sizes = {
        name: sum(p.numel() for p in work.top(trained).parameters() if p.requires_grad)
        for name, trained in only_d.TRAINED.items()
    }
    inputs_and_outputs = (16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3
    layer = 16 * 16 * 2 + 16 * 8 * 2 + 16 * 24 * 3 + 2 * 16
    assert sizes == {
        "last normalisation": 16,
        "LoRA of rank 8, last layer": 8 * inputs_and_outputs,
        "last two layers": 2 * layer + 16,
        "all weights": sum(p.numel() for p in work.model.module.parameters()),
    }


def test_every_run_has_its_row(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    command = [f"--data={small}", "--seeds=2", f"--out={out}", "--trained", *only_d.TRAINED]
    assert only_d.EXPERIMENT.main(command) == 0
    rows = read_rows(out)
    assert len(rows) == 4 * 2 * 2
    assert (rows["epsilon_upper"] <= 2).all()
    reached = rows["steps"].notna()
    assert ((rows["loss_before"] - rows["loss_after"] >= 1e-4) == reached).all()
    assert (rows["steps_made"][~reached] == only_d.STEPS).all()


def test_the_table_has_means_of_logarithms_and_the_slope() -> None:
    cells = [(576, 10.0), (576, 40.0), (57600, 20.0), (57600, 80.0)]
    rows = pd.DataFrame([
        {"trained": f"w{d}", "scale": 0.1, "seed": 1 + index % 2, "d": d, "gradient_norm": 1.5, "steps": steps}
        for index, (d, steps) in enumerate(cells)
    ])  # fmt: skip
    told = only_d.table(rows)
    assert "| w576 | 576 | - | - | 1.5 | 20 (" in told
    slope = math.log(2) / math.log(100)  # residuals of log steps are +-log 2, so its error is log 2 sqrt(2)/log 100
    half = 4.302653 * math.log(2) * math.sqrt(2) / math.log(100)
    assert only_d.fitted(rows, 0.1) == pytest.approx((slope, slope - half, slope + half))
    assert "with s = 0.1: 0.15 (-0.77 to 1.07)." in told
    rows.loc[3, "steps"] = math.nan
    assert f"1 of 2 runs within {only_d.STEPS}" in only_d.table(rows)
    assert only_d.fitted(rows, 0.1) is None
