"""Tests of the benchmark that calibrates noise and then asks for the epsilon of the result.

They test its settings, one row, direct sums, and the committed rows.
"""

import math

import pytest

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.privacy import ask
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS


def test_settings_are_the_same_again_and_of_all_kinds():
    first, more = ask.settings(20), ask.settings(400)
    assert more[:20] == first
    assert {s["sampling"].partition(":")[0] for s in more} == set(SAMPLINGS)
    assert {s["relation"] for s in more} == set(Relation)
    assert {s["mechanism"].partition(":")[0] for s in more} == {*MECHANISMS, *MECHANISMS.families}
    for s in more:
        assert 1 <= s["steps"] <= 10**6
        assert 1e-9 <= s["sample_rate"] <= 1
        assert 1e-12 <= s["delta"] <= 1e-2
        assert 1e-3 <= s["epsilon"] <= 50


def test_a_row_says_what_was_told_and_a_plan_above_its_target_is_counted(tmp_path, capsys):
    setting = next(s for s in ask.settings(60) if s["sampling"] == "full" and s["mechanism"] == "gaussian")
    row = ask.answer(setting)
    assert (row["status"], row["exception"], row["too_long"]) == ("ok", "none", False)
    assert -1e-6 < row["excess"] <= 0
    assert row["epsilon_answered"] <= setting["epsilon"]
    failed = setting | {"setting": 9001, "exception": "ValueError: no", "too_long": False, "status": "ok"}
    fields = [name for name in row if name not in ("setting", "status")]
    rows = Results(tmp_path / "rows", key=("setting",), fields=fields, seeds=[], device="cpu", dtype="float64")
    with rows as results:
        results.add([row, row | {"setting": 9000, "excess": 1e-12}, failed])
    ask.report(tmp_path / "rows")
    said = capsys.readouterr().out
    assert "3 settings, 1 exceptions, 0 longer" in said
    assert "1 calibrated multipliers cost more than asked, of 2" in said


def test_a_setting_that_raises_is_a_row(monkeypatch):
    def refuse(**_):
        raise ArithmeticError("no such noise")

    monkeypatch.setattr(ask, "calibrate_noise_multiplier", refuse)
    assert ask.answer(ask.settings(1)[0])["exception"] == "ArithmeticError: no such noise"


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_direct_sums_are_those_of_all_outputs_one_by_one(law):
    shift, scale, epsilon = 6, 4.5, 0.7
    weight = {k: math.exp(-abs(k) / scale if law == "laplace" else -0.5 * (k / scale) ** 2) for k in range(-400, 401)}
    whole = sum(weight.values())
    gains = (weight.get(k - shift, 0.0) - math.exp(epsilon) * weight[k] for k in weight)
    direct, error = ask.direct_delta(law, shift, scale, epsilon)
    assert direct == pytest.approx(sum(gain for gain in gains if gain > 0) / whole, rel=1e-12)
    assert 0 < error < 1e-9 * direct


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("first", [-30_000, -1, 0, 1, 40_000])
def test_long_tails_are_as_those_that_are_summed(law, first, monkeypatch):
    scale = 12_345.6
    summed = ask._above(law, first, scale)
    monkeypatch.setattr(ask, "_MOST_TERMS", 10)
    assert ask._above(law, first, scale) == pytest.approx(summed, rel=1e-8)


def test_the_committed_rows():
    """In the committed rows no setting raised an exception, and none costs more than was asked for."""
    rows = read_rows(RESULTS / "accounting_ask")
    assert (rows["exception"] == "none").all()
    told = rows[~rows["too_long"]]
    assert (told["excess"] <= 0).all()
    assert (told["epsilon_answered"] <= told["epsilon"]).all()
    assert (told["delta_answered"] <= told["delta"]).all()
    sums = read_rows(RESULTS / "accounting_lattice")
    assert sums["contained"].all()
    assert (sums["levels"].min(), sums["levels"].max()) == (1, 2**28)
