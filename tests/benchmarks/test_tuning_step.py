"""The costs of the ways to tune a pretrained model: their rows, and layers of integers."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("opacus")

from benchmarks import optimizer_methods, tuning_step
from benchmarks.kit.rows import read_rows


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_every_method_has_a_row_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tiny model. A step that needs too much is not tried."""
    from transformers import LlamaConfig

    config = LlamaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, intermediate_size=24, pad_token_id=2)  # fmt: skip
    weights = 50 * 16 + 2 * (16 * 16 * 2 + 16 * 8 * 2 + 16 * 24 * 3 + 2 * 16) + 16 + 2 * 16
    monkeypatch.setattr(optimizer_methods, "configuration", lambda name: (config, "causal"))
    monkeypatch.setattr(tuning_step, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(tuning_step, "in_new_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(tuning_step, "LIMIT", 4 * weights * (6 + 8))
    out = tmp_path / "rows"
    assert tuning_step.EXPERIMENT.main([f"--out={out}", "--dtypes", "float32", "int8"]) == 0
    rows = read_rows(out, failed=True)
    assert len(rows) == 3 * (8 + 3)
    failed = rows[rows["status"] != "ok"]
    assert failed[["dtype", "batch", "method"]].to_numpy().tolist() == [["float32", 64, "dp-adamw"]]
    assert (rows["ratio"].dropna() > 1).all()
    assert tuning_step.table(out).count("needs more than 0 GiB") == 1


def test_layers_of_integers_compute_and_differentiate_as_their_rounded_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    plain = torch.nn.Linear(6, 4, bias=False)
    integers = optimizer_methods.Integers(plain)
    kept: Any = integers.integers
    step = plain.weight.detach().abs().amax(1, keepdim=True) / 127
    assert kept.dtype == torch.int8
    torch.testing.assert_close(kept * step, plain.weight.detach(), rtol=0, atol=float(step.max()) / 2 + 1e-7)
    ends = []
    for weight in (None, kept * step):
        x = torch.randn(3, 5, 6, generator=generator.manual_seed(1), requires_grad=True)
        out = integers(x) if weight is None else x @ weight.T
        (out**2).sum().backward()
        ends.append((out.detach(), x.grad))
    torch.testing.assert_close(ends[0], ends[1])
