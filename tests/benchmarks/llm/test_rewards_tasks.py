"""The experiment that trains on the 0-1 error of other tasks, on a tiny model in place of the pretrained one."""

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import last_norm, last_norm_tasks, rewards_tasks
from tests.benchmarks.llm.test_last_norm import small

__all__ = ["small"]


def test_both_losses_are_trained_from_the_same_weights_by_their_best_settings(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("DESC", "ENTY", "HUM")
    lines = [f"{kinds[i % 3]}:any {'what' if i % 2 else 'which'} {chr(97 + i // 26)} {chr(97 + i % 26)}"
             for i in range(600)]  # fmt: skip
    (small / "trec_train.label").write_text("\n".join(lines) + "\n")
    prompt = ("{text} is", last_norm_tasks.PROMPTS["trec"]["paper"][1])
    monkeypatch.setitem(last_norm_tasks.PROMPTS, "trec", {"better": prompt})
    monkeypatch.setitem(last_norm_tasks.SIZES, "trec", last_norm_tasks.Size(24, 10, 10, 48))
    monkeypatch.setattr(rewards_tasks, "SIZES", {"trec": last_norm_tasks.Size(24, 10, 10, 48)})
    for name, value in {"STEPS": 3, "BATCHES": {"trec": 12.0}, "DIRECTIONS": 2}.items():
        monkeypatch.setattr(rewards_tasks, name, value)
    monkeypatch.setattr(rewards_tasks, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(rewards_tasks, "cache", lambda: tmp_path / "cache")
    out = tmp_path / "rows"
    before = [p.clone() for p in vars(last_norm)["load"]("smollm2").module.parameters()]
    assert rewards_tasks.EXPERIMENT.main([f"--data={small}", "--tasks=trec", "--seeds=2", f"--out={out}"]) == 0
    rows = read_rows(out).astype({"setting": str})
    assert rows["loss"].tolist() == ["none"] + ["cross-entropy"] * 5 + ["error"] * 5
    for loss in rewards_tasks.LOSSES:
        mine = rows[rows["loss"] == loss]
        best = mine[mine["seed"] == 0].sort_values(["dev_accuracy", "setting"], ascending=[False, True])
        assert (mine[mine["seed"] > 0]["step_size"] == best["step_size"].iloc[0]).all()
        assert (mine["epsilon_upper"] <= 2).all()
    assert "| TREC | 24 |" in rewards_tasks.table(out)
    after = vars(last_norm)["load"]("smollm2").module.parameters()
    assert all((p == q).all() for p, q in zip(before, after, strict=True))
