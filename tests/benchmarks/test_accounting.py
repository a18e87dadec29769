"""Tests of the benchmarks of the accountant: rows of small questions, and what the committed rows say."""

import json

import pytest

from benchmarks import accounting, checked, corners, risk, users
from benchmarks.kit.asked import settings
from benchmarks.kit.rows import RESULTS, read_rows


def test_rows_of_one_setting() -> None:
    at = dict(zip(accounting.KEY, (*accounting.SETTINGS["compare"][-1], accounting.OURS), strict=True))
    row = accounting.answer(at, repeats=3)
    assert row["noise_lower"] <= row["noise_multiplier"] == pytest.approx(159.59989, rel=1e-6)
    assert set(accounting._IMPORTED) == set(accounting.PEERS)


def test_the_rows_of_five_settings_meet_the_claim() -> None:
    """In five settings our noise is never above another accountant's, and 20 times faster to find.

    The time is compared with that of the fastest accountant that is accurate.
    """
    rows = read_rows(RESULTS / "accounting_rows")
    for setting, group in rows.groupby(list(accounting.KEY[:-1])):
        ours, others = (group[(group["accountant"] == accounting.OURS) == mine] for mine in (True, False))
        assert set(group["accountant"]) >= {accounting.OURS, *accounting.PEERS}
        noise, seconds = float(ours["noise_multiplier"].iloc[0]), float(ours["cpu_seconds"].iloc[0])
        assert (others["noise_multiplier"] >= noise).all()
        accurate = others[(others["noise_multiplier"] / noise - 1).abs() < accounting.NEAR]
        assert accurate["cpu_seconds"].min() >= 20 * seconds
        assert seconds <= 0.1, setting


def test_settings_of_corners_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = list(settings("accounting_corners", corners.OF_SETTING))
    more = list(settings("accounting_corners_more", corners.MORE_OF_SETTING))
    assert (len(first), len(more)) == (1000, 525)
    full = next(one for one in first if one["sampling"] == "full") | {"setting": 5}
    row = corners.answer(full)
    assert (row["status"], row["contained"], row["meets_target"], row["independent"]) == ("ok", True, True, "50 digits")
    row = corners.more_answer(next(one for one in more if one["kind"] == "full"))
    assert (row["too_long"], row["width"] < 1e-9, row["upper"] >= row["lower"]) == (False, True, True)
    monkeypatch.setattr(corners, "SECONDS", 1e-4)
    assert corners.more_answer(next(one for one in more if one["kind"] == "poisson, laplace"))["too_long"]


def test_the_rows_hold_no_exception_and_no_wrong_bracket() -> None:
    rows = read_rows(RESULTS / "accounting_corners", failed=True)
    assert (rows["status"] == "ok").all()
    assert rows["contained"].dropna().all()
    assert rows["meets_target"].dropna().all()
    assert rows["cpu_seconds"].max() <= 5
    assert (rows["cpu_seconds"] <= 1).mean() >= 0.97
    undecided = (rows["sampling"] == "fixed-size") & (rows["relation"] == "replace-one")
    assert (rows.loc[~undecided, "width"] <= 1e-3).all()


@pytest.mark.parametrize("kind", ["full", "step"])
def test_a_row_of_risk_holds_what_is_known(kind: str) -> None:
    row = risk.measure(next(one for one in settings("risk", risk.OF_SETTING) if one["kind"] == kind))
    assert row["advantage_lower"] <= row["exact_advantage"] * (1 + 1e-9)
    assert row["exact_tpr"] <= row["tpr_upper"] * (1 + 1e-9)
    assert row["tpr_lower"] <= row["exact_tpr"] * (1 + 1e-9)


def test_the_committed_rows_of_risk() -> None:
    rows = read_rows(RESULTS / "risk")
    exact, others = rows[rows["kind"] != "poisson"], rows[rows["kind"] == "poisson"]
    for name in ("advantage", "tpr"):
        assert (exact[f"{name}_lower"] <= exact[f"exact_{name}"] * (1 + 1e-9)).all()
        assert (exact[f"exact_{name}"] <= exact[f"{name}_upper"] * (1 + 1e-9)).all()
        assert (rows[f"{name}_upper"] <= rows[f"{name}_lower"] * (1 + 1e-3)).all()
        assert (others[f"pld_{name}"] >= others[f"{name}_lower"] * (1 - 1e-9)).all()


def test_a_certificate_is_confirmed_and_an_altered_one_refused() -> None:
    pytest.importorskip("flint")
    part = {"noise_multiplier": 5.0, "steps": 50, "sampling": "full", "sample_rate": 1.0, "mechanism": "gaussian"}
    history = json.dumps([part | {"relation": "add-remove"}])
    row = checked.measure({"setting": 0, "history": history, "delta": 1e-6, "altered": "relation", "by": 1.1})
    assert row["confirmed"] == "confirmed"
    assert row["altered_lower"] > 1.9 * row["epsilon"]
    assert row["refused"].startswith("delta at the stated epsilon is about")
    rows = read_rows(RESULTS / "checked")
    assert checked.failures(rows).empty
    assert (rows["altered_lower"] > rows["altered_epsilon"]).all()


def test_users_need_less_noise_than_groups_of_texts() -> None:
    noise = read_rows(RESULTS / "users").set_index("texts")
    assert noise.loc[50, "texts_noise"] >= 5 * noise.loc[50, "users_noise"]
    assert noise.loc[1, "texts_noise"] == noise.loc[1, "users_noise"]
    assert users.measure({"texts": 50})["texts_noise"] == pytest.approx(noise.loc[50, "texts_noise"], rel=1e-4)
