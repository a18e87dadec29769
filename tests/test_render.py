"""Tests that the printed forms of the calculator's answers have the numbers of the prescriptions."""

import json
import re

import pytest

from dpzero_theory import render
from dpzero_theory.theory.calculate import Calculated, Unmet, calculate
from dpzero_theory.theory.problem import Problem

PROBLEM = Problem(n=10_000, d=2000, r=8.178, pl=0.5)


@pytest.fixture(scope="module")
def calculated() -> tuple[list[Calculated], list[Unmet]]:
    return calculate(PROBLEM, 2.0, 1e-6)


def test_rows_hold_the_prescriptions_numbers(calculated: tuple[list[Calculated], list[Unmet]]) -> None:
    for answer in calculated[0]:
        row = render.row(answer)
        p = answer.prescription
        for field in ("id", "algorithm", "gdp", "step_size", "T", "steps", "smoothing", "clip", "noise_std", "bound"):
            assert row[field] == getattr(p, field)
        assert row["vacuous"] == p.vacuous
        assert row["evaluations"] == p.evaluations
        assert row["calibration"] == answer.calibration
        assert row["notes"] == list(answer.notes)
        assert (row["minimised"] is None) == (answer.best is None)
        if answer.best is not None:
            assert row["minimised"]["bound"] == answer.best.bound


def test_json_round_trips_every_bit(calculated: tuple[list[Calculated], list[Unmet]]) -> None:
    rows = [render.row(answer) for answer in calculated[0]]
    found = json.loads(render.as_json({"n": 10_000}, rows, calculated[1]))
    assert found["results"] == rows
    assert found["inputs"]["n"] == 10_000
    assert {(item["id"], item["calibration"], item["reason"]) for item in found["unmet"]} == {
        (item.result.id, item.calibration, item.reason) for item in calculated[1]
    }


def test_table_shows_every_result_and_every_reason(calculated: tuple[list[Calculated], list[Unmet]]) -> None:
    answers, unmet = calculated
    text = render.as_table(
        answers,
        unmet,
        {"n": 10_000, "epsilon": 2.0, "direction": "sphere", "directions_per_step": 1, "difference": "central"},
    )
    for answer in answers:
        assert answer.result.title in text
        assert f"{answer.prescription.bound:.4g}" in text or f"{answer.prescription.bound:.3e}" in text
        assert all(note in text for note in answer.notes)
    for item in unmet:
        assert item.reason in text
    assert text.isascii()


def test_latex_has_as_many_cells_in_every_row(calculated: tuple[list[Calculated], list[Unmet]]) -> None:
    text = render.as_latex(calculated[0])
    tables = text.split(r"\begin{tabular}")[1:]
    assert len(tables) == len({answer.result.id for answer in calculated[0]})
    for table in tables:
        columns = re.match(r"\{(l+r+)\}", table)
        assert columns is not None
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert {line.count("&") for line in rows} == {len(columns[1]) - 1}
    assert not re.search(r"\de[+-]?\d", text)


def test_sweep_rows_mark_what_is_vacuous() -> None:
    answers, _ = calculate(Problem(n=10_000, d=2000, r=8.178), 2.0, 1e-6, results=["theorem-3"])
    lines = render.as_rows("d", [{"d": 2000, **render.row(answer)} for answer in answers]).splitlines()
    assert "1.284*" in lines[1]
    assert "0.5572 " in lines[2] + " "
    assert "0.5572*" not in lines[2]
