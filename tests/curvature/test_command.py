"""Tests of the way from a model to a prescription in two commands, with a problem file between them.

Bad input is refused in one line.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory import params
from dpzero_theory.curvature import __main__ as command
from dpzero_theory.problem_file import ProblemFile

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""

Capture = pytest.CaptureFixture[str]

QUICK = [
    *("--samples", "40", "--points", "2", "--path-steps", "2", "--search", "10", "--probes", "3", "--steps", "4"),
    *("--sample-hessians", "2", "--directions", "4"),
]
BUDGET = ["--n", "10000", "--epsilon", "2", "--delta", "1e-6"]


def measured(tmp_path: Path, *words: str) -> Path:
    path = tmp_path / "problem.json"
    assert command.main([*words, "--out", str(path)]) == 0
    return path


def prescribed(capsys: Capture, *words: str) -> dict[str, Any]:
    assert params.main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_two_commands(tmp_path: Path, capsys: Capture) -> None:
    path = measured(tmp_path, "--model", "mlp-digits:3", "--data", "digits", *QUICK)
    content = json.loads(path.read_text())
    assert content["data"] == "public"
    assert content["problem"]["d"] == 75 * 3 + 10
    assert len(content["measurements"]["points"]) == 2
    for interval in ("norm", "trace", "absolute_trace", "effective_rank"):
        assert content["measurements"]["points"][0][interval]["kind"] in (
            "bound",
            "probability",
            "interval",
            "estimate",
        )
    for point in content["measurements"]["points"]:
        assert sum(point["density"]["weights"]) == pytest.approx(75 * 3 + 10)
        assert point["density"]["points"] == sorted(point["density"]["points"])
    assert 1 <= content["problem"]["sample_rank"] <= 75 * 3 + 10
    found = prescribed(capsys, "--problem", str(path), *BUDGET, "--result", "theorem-3")
    assert found["caveats"] == content["caveats"]
    for name, value in content["problem"].items():
        assert found["inputs"][name] == value
    flags = [word for k, v in content["problem"].items() for word in (f"--{k.replace('_', '-')}", repr(v))]
    by_hand = prescribed(capsys, *flags, *BUDGET, "--result", "theorem-3")
    assert by_hand["results"] == found["results"]
    assert by_hand["caveats"] == []


def test_every_format_prints_the_caveats(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "p.json"
    path.write_text(ProblemFile(constants={"d": 50, "r": 2.0}, caveats=("measured nowhere",), data="private").as_json())
    for words in (["--format", "table"], ["--format", "csv"], ["--format", "latex"], ["--sweep", "n=100:1000:log:3"]):
        budget = BUDGET[2:] if "--sweep" in words else BUDGET
        assert params.main(["--problem", str(path), *budget, "--result", "theorem-3", *words]) == 0
        out = capsys.readouterr().out
        assert "measured nowhere" in out, words
        assert "measured on private data" in out, words


def test_a_flag_replaces_the_file_and_says_so(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "p.json"
    path.write_text(ProblemFile(constants={"d": 50, "r": 2.0, "gap": 3.0}, caveats=(), data="public").as_json())
    found = prescribed(capsys, "--problem", str(path), *BUDGET, "--r", "4", "--result", "theorem-3")
    assert found["inputs"]["r"] == 4
    assert found["inputs"]["gap"] == 3
    assert found["caveats"] == ["r = 4 was given and replaces the file's 2"]
    solved = prescribed(
        capsys, "--problem", str(path), *BUDGET, "--result", "theorem-3", "--solve-for", "d", "--target", "5"
    )
    assert solved["results"]


def test_data_of_unknown_kind_must_be_declared(tmp_path: Path, capsys: Capture) -> None:
    words = ["--model", "tests.curvature.test_tasks:own_task", "--data", "somewhere", *QUICK]
    with pytest.raises(SystemExit) as error:
        command.main(words)
    assert error.value.code == 2
    assert "must be declared --public or --synthetic" in capsys.readouterr().err
    assert json.loads(measured(tmp_path, *words, "--synthetic").read_text())["data"] == "synthetic"
    spent = json.loads(measured(tmp_path, *words, "--spend-no-privacy-claim").read_text())
    assert spent["data"] == "private"
    assert "the (epsilon, delta) below does not cover that" in spent["caveats"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "nothing", "--data", "digits"], "--model must be one of mlp-digits:WIDTH"),
        (["--model", "mlp-digits:x", "--data", "digits"], "--model must be mlp-digits:WIDTH"),
        (["--model", "mlp-digits:4", "--data", "elsewhere"], "--data must be 'digits' for mlp-digits:4"),
        (["--model", "no.such:thing", "--data", "digits"], "--model must be one of"),
        (["--model", "..:thing", "--data", "digits"], "--model must be one of"),
        (["--model", "os:system", "--data", "true"], "--model must be a function of your own"),
        (["--model", "numpy:zeros", "--data", "4"], "--model must be a function defined in numpy"),
        (["--model", "tests.curvature.test_tasks:own_task", "--data", "x", "--power", "3"], "--power must be even"),
        (["--model", "tests.curvature.test_tasks:own_task", "--data", "x", "--directions", "1"], "--directions must"),
        (["--model", "tests.curvature.test_tasks:other_task", "--data", "x"], "--model must return a dpzero_theory"),
        (["--model", "mlp-digits:4", "--data", "digits", "--probes", "1"], "--probes must be an integer with 2"),
        (["--model", "mlp-digits:4", "--data", "digits", "--level", "1"], "--level must be a finite number"),
        (
            ["--model", "mlp-digits:4", "--data", "digits", "--out", "/no/such/place"],
            "--out must be a file that can be written",
        ),
        (
            ["--model", "mlp-digits:4", "--data", "digits", "--public", "--synthetic"],
            "--synthetic must not be given with --public",
        ),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as error:
        command.main(words)
    out, err = capsys.readouterr()
    assert error.value.code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
