from pathlib import Path

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.optim import one_pass


def test_one_pass_is_timed_beside_one_point_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "CASES", (("small", 4, 2), ("minilm", 4, 2)))
    command = ["--model", "small", "--turns", "2", "--out", str(tmp_path)]
    assert one_pass.EXPERIMENT.main(command) == 0
    rows = read_rows(tmp_path)
    assert rows["trained"].tolist() == list(one_pass.TRAINED)
    assert dict(zip(rows["trained"], rows["d"], strict=True))["head"] == 6 * 64
    assert (rows["ratio"] > 0).all()
    assert (rows["change"] < 1e-3).all()
    assert one_pass.EXPERIMENT.main(command) == 0  # All rows are there already, so that nothing is measured
    assert read_rows(tmp_path).equals(rows)
