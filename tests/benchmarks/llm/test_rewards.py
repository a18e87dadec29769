"""The experiment that trains on the 0-1 error, on a tiny model in place of the pretrained one."""

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import last_norm, rewards
from tests.benchmarks.llm.test_last_norm import small

__all__ = ["small"]


def test_the_best_step_size_on_dev_phrases_is_reported(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LARGE": 24, "STEPS": 3, "BATCH": 12.0, "DIRECTIONS": 2, "STEP_SIZES": (0.5, 0.0)}.items():
        monkeypatch.setattr(rewards, name, value)
    monkeypatch.setattr(rewards, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(rewards, "cache", lambda: tmp_path / "cache")
    weights = [p.clone() for p in vars(last_norm)["load"]("smollm2").module.parameters()]
    assert rewards.EXPERIMENT.main([f"--data={small}", "--seeds=1", f"--out={tmp_path / 'rows'}"]) == 0
    rows = read_rows(tmp_path / "rows").astype({"epsilon": str})
    assert rows["epsilon"].tolist() == ["2", "2", "2", "6"]
    assert (rows["epsilon_upper"] <= rows["epsilon"].astype(float)).all()
    best = rows[rows["seed"] == 0].sort_values(["dev_accuracy", "setting"], ascending=[False, True])
    assert (rows[rows["seed"] == 1]["step_size"] == best["step_size"].iloc[0]).all()
    assert all(
        (p == q).all() for p, q in zip(weights, vars(last_norm)["load"]("smollm2").module.parameters(), strict=True)
    )
