"""The experiments that train on the 0-1 error, on a tiny model in place of the pretrained one."""

from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import last_norm, last_norm_tasks, rewards, rewards_tasks
from tests.benchmarks.llm.test_last_norm import small

__all__ = ["small"]


@pytest.fixture(autouse=True)
def tiny(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.llm.settings.pretrained_folder", lambda name: tmp_path)
    prompt = ("{text} is", last_norm_tasks.PROMPTS["trec"]["paper"][1])
    monkeypatch.setitem(last_norm_tasks.PROMPTS, "trec", {"better": prompt})
    size = last_norm_tasks.Size(24, 10, 10, 48)
    monkeypatch.setitem(last_norm_tasks.SIZES, "trec", size)
    pairs = ((10.0, 0.5), (10.0, 1.0), (5.0, 0.0))
    tasks = {"sst2": rewards.Tried(3, 12.0, pairs[::2]), "trec": rewards.Tried(3, 12.0, pairs, size)}
    settings = {"LARGE": 24, "DIRECTIONS": 2, "TASKS": tasks, "cache": lambda: tmp_path / "cache"}
    for name, value in settings.items():
        monkeypatch.setattr(rewards, name, value)


def run_of(experiment: str, *words: str) -> pd.DataFrame:
    """Returns the rows of a run of the experiment, and checks that the model has the weights that it had before."""
    *_, out = words
    weights = [p.clone() for p in vars(last_norm)["load"]("smollm2").module.parameters()]
    assert vars({"rewards": rewards, "rewards_tasks": rewards_tasks}[experiment])["EXPERIMENT"].main(words) == 0
    after = vars(last_norm)["load"]("smollm2").module.parameters()
    assert all((p == q).all() for p, q in zip(weights, after, strict=True))
    return read_rows(Path(out.partition("=")[2])).astype({"setting": str})


def reports_the_best(rows: pd.DataFrame) -> bool:
    best = rows[rows["seed"] == 0].sort_values(["dev_accuracy", "setting"], ascending=[False, True])
    return bool((rows[rows["seed"] > 0]["step_size"] == best["step_size"].iloc[0]).all())


def test_the_best_step_size_on_dev_phrases_is_reported(small: Path, tmp_path: Path) -> None:
    rows = run_of("rewards", f"--data={small}", "--seeds=1", f"--out={tmp_path / 'rows'}")
    assert rows["epsilon"].astype(str).tolist() == ["2", "2", "2", "6"]
    assert (rows["epsilon_upper"] <= rows["epsilon"].astype(float)).all()
    assert reports_the_best(rows)


def test_both_losses_are_trained_from_the_same_weights_by_their_best_settings(small: Path, tmp_path: Path) -> None:
    kinds = ("DESC", "ENTY", "HUM")
    lines = [f"{kinds[i % 3]}:any {'what' if i % 2 else 'which'} {chr(97 + i // 26)} {chr(97 + i % 26)}"
             for i in range(600)]  # fmt: skip
    (small / "trec_train.label").write_text("\n".join(lines) + "\n")
    rows = run_of("rewards_tasks", f"--data={small}", "--tasks=trec", "--seeds=2", f"--out={tmp_path / 'rows'}")
    assert rows["loss"].tolist() == ["none", *(loss for loss in rewards.LOSSES for _ in range(5))]
    assert all(reports_the_best(rows[rows["loss"] == loss]) for loss in rewards.LOSSES)
    assert (rows[rows["loss"] != "none"]["epsilon_upper"] <= 2).all()
    assert "| TREC | 24 |" in rewards.table_of_tasks(tmp_path / "rows")
