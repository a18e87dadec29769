"""Steps against d on a pretrained language model, on a tiny model in its place."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import only_d
from tests.benchmarks.llm.tiny import in_its_place, phrases


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment in small, and a folder of data whose sign is told by one word."""
    in_its_place(monkeypatch, tmp_path, layers=3)
    for name, value in {"N": 24, "HELD_OUT": 8, "STEPS": 4, "BATCH": 12, "LENGTH": 20, "DROP": 1e-4,
                        "SCALES": (0.01, 0.1)}.items():  # fmt: skip
        monkeypatch.setattr(only_d, name, value)
    kept = ("last normalisation", "LoRA of rank 8, last layer", "last two layers")
    few = {name: only_d.TRAINED[name] for name in kept} | {"all weights": only_d.Trained(3, "whole")}
    monkeypatch.setattr(only_d, "TRAINED", few)
    return phrases(tmp_path)


def test_the_end_of_the_model_gives_the_losses_of_the_whole_model_and_has_the_counted_size(small: Path) -> None:
    """Also with adapters, which change nothing at first."""
    work = only_d.prepared(small)
    whole, expected = work.model.module, []
    for record in work._rows["public"]:
        count = int((record["labels"] >= 0).nonzero()[0])
        with torch.no_grad():
            scores = whole(record["input_ids"][None, :count]).logits[0, -1, list(work.options)]
        label = work.options.index(int(record["labels"][count]))
        expected.append(float(torch.nn.functional.cross_entropy(scores, torch.tensor(label))))
    sizes = {}
    for name, trained in only_d.TRAINED.items():
        states, top = work.states(trained.layers)["public"], work.top(trained)
        assert work.losses(top, states[torch.arange(len(states))]).tolist() == pytest.approx(expected, rel=1e-5)
        sizes[name] = sum(p.numel() for p in top.parameters() if p.requires_grad)
    inputs_and_outputs = (16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3
    layer = 16 * 16 * 2 + 16 * 8 * 2 + 16 * 24 * 3 + 2 * 16
    assert sizes == {
        "last normalisation": 16,
        "LoRA of rank 8, last layer": 8 * inputs_and_outputs,
        "last two layers": 2 * layer + 16,
        "all weights": sum(p.numel() for p in whole.parameters()),
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
