"""Tests of the benchmark that calibrates noise for extreme settings.

They test its settings, one row of the report, and the committed rows.
"""

import math

import pytest

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.privacy import corners, five
from dpzero_theory.privacy.gaussian import epsilon_from_gdp


def test_settings_are_the_same_again_and_within_the_ranges():
    first, more = corners.settings(20), corners.settings(60)
    assert more[:20] == first
    for s in more:
        assert 1 <= s["steps"] <= 10**7
        assert 1e-7 <= s["sample_rate"] <= 1
        assert 1e-30 <= s["delta"] <= 0.1
        assert s["sampling"] != "fixed-order" or s["relation"] == "replace-one"
        if s["sample_rate"] < 1:
            assert -math.expm1(s["steps"] * math.log1p(-s["sample_rate"])) > s["delta"]


def test_a_row_is_checked_and_a_wrong_bracket_is_counted(tmp_path, capsys):
    setting = next(s for s in corners.settings(60) if s["sampling"] == "full") | {"setting": 5}
    row = corners.answer(setting)
    assert (row["status"], row["contained"], row["meets_target"], row["independent"]) == ("ok", True, True, "50 digits")
    fields = [name for name in row if name not in ("setting", "status")]
    rows = Results(tmp_path / "rows", key=("setting",), fields=fields, seeds=[], device="cpu", dtype="float64")
    with rows as results:
        results.add([row, row | {"setting": 10, "contained": False, "meets_target": False}])
    corners.report(tmp_path / "rows")
    said = capsys.readouterr().out
    assert "2 settings, 0 exceptions" in said
    assert "2 brackets against an independent value, 1 of them wrong" in said
    assert "1 calibrated multipliers beyond their target" in said


def test_five_rows_are_reported_against_what_is_accurate(tmp_path, capsys):
    key = ("n", "batch", "steps", "epsilon", "delta", "accountant")
    fields = ("noise_multiplier", "noise_lower", "seconds", "cpu_seconds")
    base = dict(zip(key, five.SETTINGS[0], strict=False))
    times = {five.OURS: (1.0, 0.1), "close": (1.0005, 5.0), "quick, far": (1.1, 0.2)}
    with Results(tmp_path / "rows", key=key, fields=fields, seeds=[], device="cpu", dtype="float64") as results:
        results.add(
            [
                base | {"accountant": a, "noise_multiplier": m, "cpu_seconds": s, "status": "ok"}
                for a, (m, s) in times.items()
            ]
        )
    five.report(tmp_path / "rows")
    said = capsys.readouterr().out
    assert "least of the others 1.0005; 50 times faster" in said
    assert set(five._IMPORTED) == set(five.PEERS)


def test_the_rows_hold_no_exception_and_no_wrong_bracket():
    rows = read_rows(RESULTS / "accounting_corners", failed=True)
    assert len(rows) == corners.COUNT
    assert (rows["status"] == "ok").all()
    assert rows["contained"].dropna().all()
    assert rows["meets_target"].dropna().all()
    assert rows["cpu_seconds"].max() <= 5
    assert (rows["cpu_seconds"] <= 1).mean() >= 0.97
    undecided = (rows["sampling"] == "fixed-size") & (rows["relation"] == "replace-one")
    assert (rows.loc[~undecided, "width"] <= 1e-3).all()


def test_the_rows_of_five_settings_meet_the_claim():
    """In five settings our noise is never above another accountant's, and 20 times faster to find.

    The time is compared with that of the fastest accountant that is accurate.
    """
    rows = read_rows(RESULTS / "accounting_rows")
    for setting, group in rows.groupby(list(five.KEY[:-1])):
        ours, others = (group[(group["accountant"] == five.OURS) == mine] for mine in (True, False))
        assert set(group["accountant"]) >= {five.OURS, *five.PEERS}
        noise, seconds = float(ours["noise_multiplier"].iloc[0]), float(ours["cpu_seconds"].iloc[0])
        assert (others["noise_multiplier"] >= noise).all()
        accurate = others[(others["noise_multiplier"] / noise - 1).abs() < five.NEAR]
        assert accurate["cpu_seconds"].min() >= 20 * seconds
        assert seconds <= 0.1, setting


def test_settings_of_every_kind_are_asked_and_one_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    first, more = corners.more_settings(3), corners.more_settings(2 * len(corners.KINDS))
    assert more[:3] == first
    assert {row["kind"] for row in more} == set(corners.KINDS)
    assert {row["relation"] for row in more} == {"add-remove", "replace-one", "zero-out"}
    full = next(row for row in more if row["kind"] == "full")
    row = corners.more_answer(full)
    assert (row["too_long"], row["width"] < 1e-9, row["upper"] >= row["lower"]) == (False, True, True)
    group = next(row for row in more if row["kind"] == "group: full")
    moved = group["size"] * (2 if group["relation"] == "replace-one" else 1)
    expected = epsilon_from_gdp(moved * math.sqrt(group["steps"]) / group["given_noise"], group["delta"])
    assert corners.more_answer(group)["upper"] == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr(corners, "MORE_SECONDS", 1e-4)
    assert corners.more_answer(next(row for row in more if row["kind"] == "poisson, laplace"))["too_long"]
