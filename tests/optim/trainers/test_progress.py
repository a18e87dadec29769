"""Tests that what a run tells of its progress is computed from its releases alone."""

import math

import pytest

from dpzero_theory.optim.files.transcript import Record
from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.trainers.progress import Progress, described
from tests.optim.small import Logistic, data, losses, plan


def test_the_average_is_told_in_the_unit_of_the_differences() -> None:
    chosen = plan(directions_per_step=4)
    told = described(chosen, Record(0, (3, -4, 0, 12)))
    assert told == {"step_size": chosen.step_size(0), "released": pytest.approx(chosen.unit * 13 / math.sqrt(4))}
    assert set(described(plan(algorithm="dpgd-0th"), Record(0, ()))) == {"step_size"}


def test_lines_come_now_and_then_and_at_the_end(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = plan()
    for number, (every, lines) in enumerate([(0.0, chosen.steps), (3600.0, 1)]):
        run = make_private(Logistic(), losses, data(), chosen, target_delta=1e-5, folder=tmp_path / str(number))
        run.run(Progress(run, every=every))
        told = capsys.readouterr().err.splitlines()
        assert len(told) == lines
        assert told[-1].startswith(f"release {chosen.steps} of {chosen.steps}  step size ")
        assert told[-1].endswith("0:00:00 left")
        with pytest.raises(ValueError, match=r"^every must be"):
            Progress(run, every=math.nan)
