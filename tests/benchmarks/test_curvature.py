"""Tests of the benchmark of effective rank.

Its rows are exact where the Hessian is small, and it resumes by model and seed.
"""

from pathlib import Path

import pytest

from benchmarks import curvature
from benchmarks.kit.rows import read_rows
from dpzero_theory.curvature.spectrum import Effort

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


def test_rows_of_a_small_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = curvature.Study(60, 1e-2, {"before": 0, "after": 40}, Effort(search=20, probes=8, steps=6), 2, "digits")
    monkeypatch.setitem(curvature.STUDIES, "mlp-digits", quick)
    words = ["--preset", "smoke", "--models", "mlp-digits:2", "--seeds", "1", "--out", str(tmp_path)]
    curvature.EXPERIMENT.main(words)
    rows = read_rows(tmp_path)
    assert list(rows["moment"]) == ["before", "after"]
    assert (rows["rank_low"] <= rows["exact_rank"]).all()
    assert (rows["exact_rank"] <= rows["rank_high"]).all()
    assert rows["loss"].is_monotonic_decreasing
    assert (rows["sample_trace_high"] >= rows["sample_trace_low"]).all()
    assert (rows["sample_trace_high"] <= 160 * rows["sample_norm"]).all()
    capsys.readouterr()
    curvature.EXPERIMENT.main(words)
    assert capsys.readouterr().out.splitlines()[0].startswith(f"{len(rows)} rows: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "encoder"], "--data must be given"),
        (["--models", "mlp-digits:3"], "--models must be of the preset smoke; got 'mlp-digits:3'"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        curvature.EXPERIMENT.main(words)
    assert message in capsys.readouterr().err
