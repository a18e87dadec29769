"""Tests of the benchmarks of the accountant: rows of small questions, and what the committed rows say."""

import json

import pytest

from benchmarks import accounting, checked, corners
from benchmarks.kit.asked import settings
from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.sampling import sampling_of
from dpzero_theory.privacy.step import step_of


def test_rows_of_one_setting() -> None:
    at = dict(zip(accounting.KEY, (*accounting.SETTINGS["compare"][-1], accounting.OURS), strict=True))
    row = accounting.answer(at, repeats=3)
    assert row["noise_lower"] <= row["noise_multiplier"] == pytest.approx(159.59989, rel=1e-6)
    assert set(accounting._IMPORTED) == set(accounting.PEERS)


def test_settings_of_corners_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list(settings(corners.FOLDER, corners.OF_SETTING))
    assert len(asked) == 5000
    first = next(one for one in asked if one["sampling"] == "full" and one["kind"] == "one")
    row = corners.answer(first)
    assert (row["status"], row["lower"] <= row["upper"] <= row["old_upper"] * 1.001) == ("ok", True)
    two = next(one for one in asked if one["kind"] == "two" and "allocation" in one["sampling"])
    monkeypatch.setattr(corners, "SECONDS", 1e-4)
    assert corners.answer(two)["status"] == corners.TOO_LONG


def test_the_rows_hold_no_wrong_bracket() -> None:
    rows = read_rows(RESULTS / corners.FOLDER)
    both = rows[rows["old_upper"].notna()]
    assert len(both) == 4955
    below = both["upper"] < both["old_lower"] * (1 - 1e-12)
    assert list(both[below]["setting"]) == [1742]
    assert (both["lower"] <= both["old_upper"] * (1 + 1e-12)).all()
    # On that lattice, of one integer a clip, more noise may cost more: the target is met at both, and not between them.
    (row,) = both[below].to_dict("records")
    drawn = sampling_of(row["sampling"], row["sample_rate"])

    def epsilon(noise: float) -> float:
        words = {"relation": row["relation"], "mechanism": row["mechanism"], "sampling": drawn}
        return epsilon_of_history([step_of(noise, row["steps"], **words)], row["delta"]).upper

    assert max(epsilon(row["upper"]), epsilon(row["old_upper"])) <= row["epsilon"] < epsilon(0.58)
    assert rows["cpu_seconds"].median() <= 0.1


def test_a_path_through_the_accountant_is_short() -> None:
    functions, files = zip(*corners.entries().values(), strict=True)
    assert functions[0] <= 70
    assert functions[1] <= 90
    assert files[0] <= 9
    assert files[1] <= 10


def test_a_certificate_is_confirmed_and_an_altered_one_refused() -> None:
    pytest.importorskip("flint")
    part = {"noise_multiplier": 5.0, "steps": 50, "sampling": "full", "sample_rate": 1.0, "mechanism": "gaussian"}
    history = json.dumps([part | {"relation": "add-remove"}])
    row = checked.measure({"setting": 0, "history": history, "delta": 1e-6, "altered": "relation", "by": 1.1})
    assert row["confirmed"] == "confirmed"
    assert row["altered_lower"] > 1.9 * row["epsilon"]
    assert row["refused"].startswith("delta at the stated epsilon is about")
    rows = read_rows(RESULTS / "checked")
    assert (rows["confirmed"] == "confirmed").all()
    assert (rows["refused"] != "confirmed").all()
    assert (rows["altered_lower"] > rows["altered_epsilon"]).all()
