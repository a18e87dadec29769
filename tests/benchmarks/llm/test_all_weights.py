"""All weights of a language model, tuned: on a tiny model in the place of the pretrained one."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.kit.rows import read_rows
from benchmarks.llm import all_weights, last_norm, settings
from benchmarks.llm.models import LanguageModel
from tests.benchmarks.llm.tiny import tokenizer


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment in small, and a folder of data whose sign is told by one word."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer("causal")), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    found = LanguageModel(LlamaForCausalLM(config).eval(), tokenizer("causal"), "causal")
    monkeypatch.setattr(all_weights, "load", lambda name: found)
    monkeypatch.setattr(settings, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(all_weights, "LENGTH", 20)
    for name, value in {"LARGE": 32, "DEV": 16, "TEST": 16}.items():
        monkeypatch.setattr(last_norm, name, value)
    for name, steps in {"STEPS": {"adamw": 30, "dp-adamw": 2, "dpzero": 2}, "BATCHES": 16}.items():
        new = steps if isinstance(steps, dict) else dict.fromkeys(all_weights.STEPS, steps)
        monkeypatch.setattr(all_weights, name, new)
    monkeypatch.setattr(all_weights, "STEP_SIZES", {"adamw": (1e-9, 1e-2), "dp-adamw": (1e-3,), "dpzero": (0.01,)})
    for part in ("train", "test"):
        lines = [f"a {'fine' if i % 2 else 'bad'} film {chr(97 + i % 26)}{i} \t{i % 2}" for i in range(80)]
        (tmp_path / f"sst2_{part}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return tmp_path


def test_every_run_has_its_row_and_the_better_step_size_is_chosen(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    assert all_weights.EXPERIMENT.main([f"--data={small}", "--seeds=1", "--device=cpu", f"--out={out}"]) == 0
    rows = read_rows(out).set_index(["method", "setting"])
    assert len(rows) == 1 + 3 + 2 + 2
    assert (rows["d"] == sum(p.numel() for p in all_weights.load("").module.parameters())).all()
    private = rows.drop(["zero-shot", "adamw"], level=0)
    assert (private["epsilon_upper"] <= 2).all()
    assert (private["epsilon_upper"] > 1.9).all()
    assert rows.loc[("adamw", "1"), "dev_accuracy"] > rows.loc[("adamw", "0"), "dev_accuracy"]
    assert rows.loc[("adamw", "chosen"), "step_size"] == 1e-2
    assert rows.loc[("adamw", "chosen"), "test_accuracy"] > rows.loc[("zero-shot", "chosen"), "test_accuracy"]
    lines = [line.split(" | ") for line in all_weights.table(out).splitlines()[2:]]
    assert [line[0] for line in lines] == ["| zero-shot", *["| AdamW"] * 2, "| DPZero", "| DP-AdamW"]
    assert [line[2] for line in lines] == ["-", "1e-09", "0.01", "0.01", "0.001"]
    assert [line[-1] for line in lines] == ["1 |", "0 |", "1 |", "1 |", "1 |"]
    assert lines[2][5] == f"{100 * rows.loc[('adamw', 'chosen'), 'test_accuracy']:.1f}"


def test_the_noised_gradient_is_the_mean_of_clipped_gradients(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an answer's token, of which the output matrix has the row of the embedding, stands in the text."""
    work = all_weights.Work(small, "cpu")
    top = work.top()
    rows = torch.tensor([0, 3, 5])
    work.parts["train"].tensors[0][3, 1:3] = work.options[1]
    expected = [torch.zeros_like(p) for p in top.parameters()]
    for row in rows:
        loss = work.losses(top, work.parts["train"][row[None]]).sum()
        found = torch.autograd.grad(loss, list(top.parameters()))
        norm = torch.cat([g.flatten() for g in found]).norm()
        for total, gradient in zip(expected, found, strict=True):
            total += gradient * min(1.0, 0.1 / float(norm)) / 16
    all_weights._noised(work, top, rows, 0.1, 0.0, torch.Generator())
    for p, wanted in zip(top.parameters(), expected, strict=True):
        assert p.grad is not None
        assert torch.allclose(p.grad, wanted, rtol=1e-4, atol=1e-7)
