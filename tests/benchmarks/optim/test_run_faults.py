from pathlib import Path

import numpy as np
import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.kit.trials import METHODS, Trial
from benchmarks.optim import run_faults


def test_every_fault_once_and_what_cannot_be_noticed_is_seen_to_go_wrong(tmp_path: Path) -> None:
    """Every fault of a run is tried once; the last one, which cannot be noticed, must be seen to go wrong.

    It tests the benchmark itself: a run that is rolled back together with its ledger makes releases again.
    """
    count = len(run_faults.FAULTS)
    assert run_faults.EXPERIMENT.main(["--faults", str(count), "--out", str(tmp_path / "out")]) == 0
    rows = read_rows(tmp_path / "out")
    assert len(rows) == count
    assert set(rows["algorithm"]) == set(METHODS)
    assert (rows[rows["fault"].isin(run_faults.GOES_ON)]["outcome"] == "resumed").all()
    assert set(rows["outcome"]) == {"refused", "resumed"}
    worst = 0
    for seed in range(8):
        place = tmp_path / str(seed)
        place.mkdir()
        trial = Trial(place, "dpzero", np.random.default_rng(seed))
        worst = max(worst, run_faults.attempt(trial, run_faults.UNNOTICED).get("twice", 0))
    assert worst > 0


def test_bad_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        run_faults.EXPERIMENT.main(["--faults", "0"])
    assert status.value.code == 2
    assert "--faults" in capsys.readouterr().err
