"""Tests of the calculator: its command, what it prints, and the problem files that it reads."""

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from mpmath import mp

from dpzero_theory import params, render
from dpzero_theory.problem_file import ProblemFile
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.results import Calculated, Unmet, calculate
from tests import paper_oracle as paper

Capture = pytest.CaptureFixture[str]

SETTING = {"n": "10000", "epsilon": "2", "delta": "1e-6", "d": "2000", "r": "8.178"}
KEYS = {
    "id",
    "algorithm",
    "calibration",
    "form",
    "relation",
    "sampling",
    "direction",
    "directions_per_step",
    "gdp",
    "step_size",
    "T",
    "steps",
    "smoothing",
    "clip",
    "noise_std",
    "bound",
    "vacuous",
    "evaluations",
    "notes",
}


def arguments(*more: str, **changes: str | None) -> list[str]:
    """Returns a command line for the paper's setting, with flags replaced, added or (None) left out.

    Unless `more` has --result, only Theorem 3 is asked for.
    """
    flags = {**SETTING, **changes}
    words = [word for name, value in flags.items() if value is not None for word in (f"--{_flag(name)}", value)]
    return [*words, *more] if "--result" in more else [*words, "--result", "theorem-3", *more]


def _flag(name: str) -> str:
    return name.replace("_", "-")


def run(capsys: Capture, argv: list[str]) -> str:
    assert params.main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def run_json(capsys: Capture, argv: list[str]) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(run(capsys, [*argv, "--format", "json"]), parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def test_json_contract(capsys: Capture) -> None:
    found = run_json(capsys, arguments("--result", "theorem-1", "theorem-2", "theorem-3"))
    assert {"inputs", "results"} <= set(found)
    assert found["inputs"]["n"] == 10_000
    assert found["inputs"]["epsilon"] == 2
    assert found["inputs"]["r"] == 8.178
    assert len(found["results"]) == 6
    for result in found["results"]:
        assert set(result) >= KEYS
        assert isinstance(result["steps"], int)
        assert isinstance(result["evaluations"], int)
        assert result["evaluations"] == 10_000 * result["steps"]
        assert isinstance(result["vacuous"], bool)
        assert result["vacuous"] == (result["bound"] >= 1.0)
        assert isinstance(result["notes"], list)
        for key in ("gdp", "step_size", "T", "smoothing", "clip", "noise_std", "bound"):
            assert isinstance(result[key], float)
            assert 0 < result[key] < math.inf


@pytest.mark.parametrize("id", list(paper.STATEMENTS))
def test_json_numbers_are_the_papers(capsys: Capture, id: str) -> None:
    """The JSON output has the paper's numbers to 1e-9, computed in mpmath, for both calibrations.

    Six random inputs go through the command line; test_theorems has 200.
    """
    for case, v, _ in paper.admissible(id, 6, 600):
        fields = {name: repr(value) for name, value in case.problem().items()}
        argv = arguments("--result", id, epsilon=repr(case.epsilon), delta=repr(case.delta), **fields)
        exact = 1 / (2 * mp.sqrt(2) * paper.exact_gdp(case.epsilon, case.delta))
        if paper.STATEMENTS[id](case, exact) is None:
            continue
        for result in run_json(capsys, argv)["results"]:
            numbers = paper.STATEMENTS[id](case, v if result["calibration"] == "paper" else exact)
            assert numbers is not None
            for field, value in numbers.items():
                assert abs(result[field] / value - 1) < 1e-9, (field, case)


def bound_at(capsys: Capture, argv: list[str]) -> float:
    """Returns what a run is guaranteed: the displayed bound, or what holds at its whole number of steps if larger."""
    (result,) = run_json(capsys, argv)["results"]
    assert isinstance(result["bound"], float)
    return max(result["bound"], float(result["bound_at_steps"]))


@pytest.mark.parametrize("calibration", ["paper", "exact"])
@pytest.mark.parametrize("id", ["theorem-1", "theorem-3", "corollary-3"])
@pytest.mark.parametrize("name", ["n", "epsilon", "d"])
def test_the_solution_meets_the_target_and_one_step_back_does_not(
    capsys: Capture, name: str, id: str, calibration: str
) -> None:
    target = {"theorem-1": "0.9", "theorem-3": "0.4", "corollary-3": "0.7"}[id]
    setting: dict[str, str | None] = {"n": "300000", "r": "3", "d": "50", "pl": "0.1"}
    if id == "theorem-1" or name == "d":
        setting["r"] = None
    more = ("--result", id, "--calibration", calibration)
    (found,) = run_json(capsys, arguments(*more, "--solve-for", name, "--target", target, **{**setting, name: None}))[
        "results"
    ]
    value = found[name]
    reached = max(found["bound"], found["bound_at_steps"])
    assert reached <= float(target)
    assert reached == bound_at(capsys, arguments(*more, **{**setting, name: repr(value)}))
    back = {"n": lambda: value - 1, "d": lambda: value + 1, "epsilon": lambda: value * (1 - 1e-11)}[name]()
    assert bound_at(capsys, arguments(*more, **{**setting, name: repr(back)})) > float(target)
    assert isinstance(value, float if name == "epsilon" else int)


def test_a_run_meets_the_target_with_its_whole_number_of_steps(capsys: Capture) -> None:
    """Where rounding T makes the run's guarantee worse than the displayed bound, a note says so, and --solve-for asks
    for a problem whose run meets the target."""
    few = {"n": "300", "d": "50", "epsilon": "0.2"}
    (result,) = run_json(capsys, arguments("--result", "theorem-1", "--calibration", "paper", **few))["results"]
    assert result["bound"] < result["bound_at_steps"]
    assert any("which is larger" in note for note in result["notes"])
    target = ("--solve-for", "n", "--target", repr(result["bound"]))
    argv = arguments("--result", "theorem-1", "--calibration", "paper", *target, **{**few, "n": None})
    (found,) = run_json(capsys, argv)["results"]
    assert found["n"] > 300
    assert found["bound_at_steps"] <= result["bound"]


@pytest.mark.parametrize(("name", "end"), [("d", 10**15), ("epsilon", 1e-9)])
def test_a_solution_at_the_end_of_the_search_says_so(capsys: Capture, name: str, end: float) -> None:
    argv = arguments("--result", "theorem-1", "--solve-for", name, "--target", "1e300", r="1", **{name: None})
    for result in run_json(capsys, argv)["results"]:
        assert result[name] == end
        assert any("end of the search" in note for note in result["notes"])


def assert_refused(capsys: Capture, argv: list[str], flag: str) -> str:
    """Requires that the command refuses the words `argv`, and returns its line of error.

    It must end with exit status 2 and one line on standard error that names `flag`, with nothing on standard output.
    """
    with pytest.raises(SystemExit) as stop:
        params.main(argv)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert flag in err
    return err


def test_an_unmet_precondition_is_one_line(capsys: Capture) -> None:
    argv = arguments("--result", "corollary-1", pl="0.5")
    assert "n^2 epsilon^2 > kappa d^3" in assert_refused(capsys, argv, "corollary-1")


@pytest.mark.parametrize("direction", [None, "sphere", "gaussian", "rademacher", "low-rank", "low-rank:4"])
def test_the_direction_law_reaches_the_sharpened_results(capsys: Capture, direction: str | None) -> None:
    flags = () if direction is None else ("--direction", direction)
    content = run_json(capsys, arguments("--result", "theorem-3-sharp", "--calibration", "exact", *flags))
    (row,) = content["results"]
    law = direction or "sphere"
    assert content["inputs"]["direction"] == row["direction"] == law
    assert (row["directions_per_step"], row["relation"], row["sampling"]) == (1, "replace-one", "full")
    low, high = {
        "sphere": (0.00507, 0.00508),
        "gaussian": (0.00507, 0.00509),
        "rademacher": (0.0058, 0.0060),
        "low-rank": (0.0118, 0.0120),
        "low-rank:4": (0.0080, 0.0082),
    }[law]
    assert low < row["bound"] < high


def test_the_papers_theorems_are_unmet_for_directions_off_the_sphere(capsys: Capture) -> None:
    words = [word for word in arguments("--direction", "rademacher") if word not in ("--result", "theorem-3")]
    content = run_json(capsys, words)
    assert {row["id"] for row in content["results"]} == {"theorem-3-sharp"}
    assert {item["id"] for item in content["unmet"]} == {"theorem-1", "theorem-2", "theorem-3"}
    assert all("proved for directions on the sphere" in item["reason"] for item in content["unmet"])
    assert "directions: rademacher, 1 a step" in run(capsys, words)


def test_directions_per_step_and_a_cap_on_evaluations(capsys: Capture) -> None:
    setting = arguments("--result", "theorem-3-sharp", "--calibration", "exact", "--max-evaluations", "1552000000")
    (best,) = run_json(capsys, [*setting, "--directions-per-step", "best"])["results"]
    assert best["bound"] <= 0.0027
    assert best["evaluations"] == 10_000 * best["directions_per_step"] * best["steps"] <= 1_552_000_000
    for k in ("1", "16", "32", "64", "256"):
        (row,) = run_json(capsys, [*setting, "--directions-per-step", k])["results"]
        assert row["directions_per_step"] == int(k)
        assert best["bound"] <= row["bound"] * 1.001
    words = [word for word in arguments("--directions-per-step", "4") if word not in ("--result", "theorem-3")]
    content = run_json(capsys, words)
    assert {row["id"] for row in content["results"]} == {"theorem-3-sharp"}
    assert all("proved for one direction a step; got 4" in item["reason"] for item in content["unmet"])


def test_the_confidence_of_one_run_is_a_note_of_the_sharpened_theorem(capsys: Capture) -> None:
    found = run_json(capsys, arguments("--result", "theorem-3", "theorem-3-sharp", "--confidence", "0.95"))
    for result in found["results"]:
        said = [note for note in result["notes"] if note.startswith("one run: ")]
        assert len(said) == (result["id"] == "theorem-3-sharp")
        if said and result["calibration"] == "exact":
            assert "at most 0.005762 with probability at least 0.95" in said[0]


def test_every_format_works(capsys: Capture) -> None:
    brief = run(capsys, arguments("--format", "table"))
    assert brief == run(capsys, arguments())
    assert ["theorem-3", "0.02456", "1", "11,283", "1.679e-07", "24.52", "1.162", "0.557"] in map(
        str.split, brief.splitlines()
    )
    table = run(capsys, arguments("--full"))
    for word in ("alpha", "lambda", "sigma", "Theorem 3", "1.284", "0.557", "4672", "23.94", "vacuous"):
        assert word in table
    rows = list(csv.DictReader(run(capsys, arguments("--format", "csv")).splitlines()))
    assert [(row["calibration"], row["form"]) for row in rows] == [("paper", "closed-form"), ("exact", "closed-form")]
    assert round(float(rows[0]["bound"]), 3) == 1.284
    latex = run(capsys, arguments("--format", "latex"))
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    assert latex.count("{") == latex.count("}")
    assert latex.count("$") % 2 == 0


PROBLEM = Problem(n=10_000, d=2000, r=8.178, pl=0.5)


@pytest.fixture(scope="module")
def calculated() -> tuple[list[Calculated], list[Unmet]]:
    return calculate(PROBLEM, 2.0, 1e-6)


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


def test_rows_mark_what_is_vacuous() -> None:
    answers, _ = calculate(Problem(n=10_000, d=2000, r=8.178), 2.0, 1e-6, results=["theorem-3"])
    lines = render.as_rows("d", [{"d": 2000, **render.row(answer)} for answer in answers]).splitlines()
    assert "1.284*" in lines[1]
    assert "0.5572 " in lines[2] + " "
    assert "0.5572*" not in lines[2]
    assert lines[3] == "* not below the trivial bound"
    assert lines[4].startswith("note (theorem-3, paper): this noise gives epsilon = 0.7699")
    exact = render.as_rows("d", [{"d": 2000, **render.row(answer)} for answer in answers[1:]])
    assert "*" not in exact


BUDGET = ["--n", "10000", "--epsilon", "2", "--delta", "1e-6"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = ProblemFile(
        constants={"d": 3, "r": 1.5, "gap": 0.1 + 0.2}, caveats=("one", "two"), data="public", measurements={"x": [1]}
    )
    path = tmp_path / "problem.json"
    path.write_text(file.as_json())
    assert ProblemFile.read(path) == file


def test_the_caveat_of_private_data_is_always_the_first_and_there_once(tmp_path: Path) -> None:
    file = ProblemFile(constants={"d": 3}, caveats=("mine",), data="private")
    assert len(file.caveats) == 2
    assert file.caveats[0].startswith("the constants were measured on private data")
    path = tmp_path / "problem.json"
    path.write_text(file.as_json())
    assert ProblemFile.read(path).caveats == file.caveats


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "must be JSON"),
        ("[]", '"format"'),
        ('{"format": "dpzero-theory/problem", "version": 2}', '"version": 1'),
        ('{"format": "dpzero-theory/problem", "version": 1, "problem": 3}', 'objects "problem" and "measurements"'),
        ('{"format": "dpzero-theory/problem", "version": 1, "problem": {"d": 3}, "data": "x"}', "data must be one of"),
        ('{"format": "dpzero-theory/problem", "version": 1, "problem": {"r": 3}, "data": "public"}', "must name d"),
        (
            '{"format": "dpzero-theory/problem", "version": 1, "problem": {"d": 2, "x": 1}, "data": "public"}',
            "problem must",
        ),
        (
            '{"format": "dpzero-theory/problem", "version": 1, "problem": {"d": 2, "r": NaN}, "data": "public"}',
            "r must be a finite number",
        ),
    ],
)
def test_files_of_another_kind_are_refused(text: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        ProblemFile.read(path)
    with pytest.raises(SystemExit):
        params.main(["--problem", str(path), *BUDGET])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--problem" in err
