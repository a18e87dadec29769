"""Tests of problem files: what is written is read again, and anything else is refused in one line."""

from pathlib import Path

import pytest

from dpzero_theory import params, problem_file
from dpzero_theory.problem_file import ProblemFile

BUDGET = ["--n", "10000", "--epsilon", "2", "--delta", "1e-6"]
Capture = pytest.CaptureFixture[str]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = ProblemFile(
        constants={"d": 3, "r": 1.5, "gap": 0.1 + 0.2}, caveats=("one", "two"), data="public", measurements={"x": [1]}
    )
    path = tmp_path / "problem.json"
    path.write_text(file.as_json())
    assert problem_file.read(path) == file


def test_the_caveat_of_private_data_is_always_the_first_and_there_once(tmp_path: Path) -> None:
    file = ProblemFile(constants={"d": 3}, caveats=("mine",), data="private")
    assert len(file.caveats) == 2
    assert file.caveats[0].startswith("the constants were measured on private data")
    path = tmp_path / "problem.json"
    path.write_text(file.as_json())
    assert problem_file.read(path).caveats == file.caveats


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "must be JSON"),
        ("[]", '"format"'),
        ('{"format": "dpzero-theory/problem", "version": 2}', '"version": 1'),
        ('{"format": "dpzero-theory/problem", "version": 1, "problem": 3}', 'an object "problem"'),
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
        problem_file.read(path)
    with pytest.raises(SystemExit):
        params.main(["--problem", str(path), *BUDGET])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--problem" in err
