from pathlib import Path

import numpy as np
import pytest

from benchmarks import equal_evaluations
from benchmarks.equal_evaluations import CHOOSING, REPORTED, Variant, alpha_of, digits, grid, main
from benchmarks.kit.rows import read_rows


@pytest.fixture(scope="module", autouse=True)
def small() -> None:
    digits(None)  # read once, before anything is timed


def test_settings_are_chosen_on_other_seeds_and_records_than_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(equal_evaluations, "STEP_SIZES", (0.01, 0.1))
    monkeypatch.setitem(
        equal_evaluations.PRESETS,
        "smoke",
        equal_evaluations.Preset({"digits": (8,)}, (Variant(1), Variant(4, "momentum:0.9", 0.1, "linear"))),
    )
    assert main(["--preset", "smoke", "--out", str(tmp_path)]) == 0
    rows = read_rows(tmp_path)
    assert len(rows) == 2 * (2 * 4 * len(CHOOSING) + len(REPORTED))
    assert set(rows["steps"]) == {8, 2}
    assert rows.groupby("directions")["noise_multiplier"].nunique().eq(1).all()
    for _, part in rows.groupby("directions"):
        means = part[part["seed"].isin(CHOOSING)].groupby(["step_size", "clip"])["chosen_by"].mean()
        reported = part[part["seed"].isin(REPORTED)]
        assert reported[["step_size", "clip"]].drop_duplicates().shape[0] == 1
        assert means[tuple(reported[["step_size", "clip"]].iloc[0])] == means.max()
    assert main(["--preset", "smoke", "--out", str(tmp_path)]) == 0  # all rows are there
    assert read_rows(tmp_path).equals(rows)
    last = capsys.readouterr().out.splitlines()[-2:]
    values = 100 * rows[rows["seed"].isin(REPORTED) & (rows["directions"] == 4)]["accuracy"]
    assert f"{values.mean():.1f} +- {values.std(ddof=1) / np.sqrt(5):.1f}" in last[-1]


def test_every_k_has_the_same_privacy_evaluations_and_grid() -> None:
    one, many = grid(Variant(1), 64, 500), grid(Variant(16), 64, 500)
    assert {plan.epsilon(1e-5).upper <= 2.0 for plan in (one[0], many[0])} == {True}
    assert {plan.steps * plan.directions_per_step for plan in (*one, *many)} == {64}
    assert [alpha_of(plan) for plan in one] == [alpha_of(plan) for plan in many]
    assert [4 * plan.clip for plan in one] == pytest.approx([plan.clip for plan in many])
