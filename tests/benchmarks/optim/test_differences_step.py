from pathlib import Path

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.optim import differences_step


def test_each_rule_is_timed_beside_central_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences_step, "CASES", (("opt", "lora"),))
    monkeypatch.setattr(differences_step, "DIRECTIONS", (1, 2))
    monkeypatch.setattr(differences_step, "in_new_process", lambda function, *given: function(*given))
    assert differences_step.EXPERIMENT.main(["--turns", "2", "--out", str(tmp_path)]) == 0
    rows = read_rows(tmp_path)
    methods = ["central", "forward", "exact"]
    assert rows["method"].tolist() == [*methods, *methods, "exact-one-pass"]
    assert rows["evaluations"].tolist() == [1, 1, 1, 1, 0.75, 0.75, 0.75]
    assert (rows["ratio"] > 0).all()
    assert (rows["peak_mb"] >= 0).all()
