"""Tests of the benchmark that trains with prescribed parameters.

The prescription run beside the grid is what the theory says for the constants of the problem file; rows resume; bad
input is refused in one line.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import prescription
from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory import problem_file
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.sharp.certificate import prescribe

FILE = RESULTS / "curvature_problems" / "mlp-digits-16.json"
QUICK = prescription.Setting(3, None, (0.01, 0.1), (1.0,))


def test_choices_are_the_theorys_and_the_grid() -> None:
    file = problem_file.read(FILE)
    found = prescription.choices(QUICK, file, 1200)
    moments = ["theory-moment", "theory-estimates-moment"]
    assert [choice.name for choice in found] == ["theory", "theory-estimates", *moments, "grid", "grid"]
    upper = prescription.problems(file, 1200)["theory"]
    assert upper.sample_rank == file.constants["sample_rank"]
    wanted = prescribe(upper, float(gdp_from_epsilon(6.0, 1e-5)), max_steps=3)
    assert (found[0].step_size, found[0].clip, found[0].smoothing) == (wanted.step_size, wanted.clip, wanted.smoothing)
    estimates = prescription.problems(file, 1200)["theory-estimates"]
    assert estimates.smoothness < upper.smoothness
    assert 1 <= estimates.r <= estimates.d
    median = file.measurements["points"][0]["gradient_norms"]["0.5"]
    assert found[4].clip == pytest.approx(median, rel=1e-3)


def test_the_fourth_moment_is_at_least_that_of_norms_with_the_quantiles() -> None:
    """1,000 norms have a fourth moment that is at most the bound from their quantiles. The file's own bound is that of
    its worst point."""
    file = problem_file.read(FILE)
    points = file.measurements["points"]
    tight = []
    for point in points:
        ends = [point["gradient_norms"][share] for share in ("0.5", "0.9", "0.99", "1")]
        tight.append(0.5 * ends[0] ** 4 + 0.4 * ends[1] ** 4 + 0.09 * ends[2] ** 4 + 0.01 * ends[3] ** 4)
    assert prescription.fourth_moment(file) == pytest.approx(max(tight))
    norms = np.sort(np.random.default_rng(0).gamma(2.0, size=1000))
    quantiles = {str(share): float(norms[int(share * 1000) - 1]) for share in (0.5, 0.9, 0.99, 1.0)}
    made = replace(file, measurements={"points": [{"gradient_norms": quantiles}]})
    assert np.mean(norms**4) <= prescription.fourth_moment(made) <= 4 * np.mean(norms**4)


def test_the_best_k_has_as_many_evaluations() -> None:
    setting, several = prescription.SETTINGS["digits"], [3, 2]
    found = {choice.name: choice for choice in prescription.choices(setting, problem_file.read(FILE), 1200)}
    best = {name: choice for name, choice in found.items() if name.endswith("-best-k")}
    assert [choice.directions_per_step for choice in best.values()] == several
    for name, choice in best.items():
        one = found[name.removesuffix("-best-k")]
        k = choice.directions_per_step
        assert one.bound is not None
        assert choice.bound is not None
        assert choice.bound < one.bound
        assert setting.steps - k < k * choice.steps <= setting.steps == one.steps


def test_a_run_of_several_directions() -> None:
    choice = prescription.Choice("x", 0.01, 1.0, 2, 1e-6, 1.0, directions_per_step=5)
    work = prescription.digits()
    row = prescription.run(work, prescription.Setting(10, None), "digits", choice, 0, (1.0, 0.5))
    assert (row["steps"], row["directions_per_step"]) == (2, 5)
    assert row["gradient_squared"] > 0


def test_a_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(prescription.SETTINGS, "digits", QUICK)
    words = ["--problem", str(FILE), "--seeds", "1", "--out", str(tmp_path)]
    prescription.EXPERIMENT.main(words)
    rows = read_rows(tmp_path)
    assert len(rows) == 6
    assert (rows["smoothing"] > 0).all()
    assert rows["bound"].notna().sum() == 4
    assert rows["gradient_squared"].notna().all()
    assert rows["loss_before"].nunique() == 1
    capsys.readouterr()
    prescription.EXPERIMENT.main(words)
    assert capsys.readouterr().out.splitlines()[0].startswith(f"{len(rows)} rows: ")
    assert read_rows(tmp_path).equals(rows)
    prescription.EXPERIMENT.main([*words, "--summary"])
    assert capsys.readouterr().out.count("+-") == 3 * 6


@pytest.mark.parametrize(
    ("words", "flag"), [([], "--problem"), (["--task", "minilm", "--problem", str(FILE)], "--data")]
)
def test_what_is_missing_is_named(words: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prescription.EXPERIMENT.main(words)
    assert f"{flag} must be given" in capsys.readouterr().err
