"""Tests of the command-line parser.

Every refusal is one line with the flag, words are checked as they are parsed, and some flags may be repeated.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory import check
from dpzero_theory.cli import (
    Parser,
    Several,
    input_file,
    input_folder,
    integer,
    number,
    output_file,
    output_folder,
)

Capture = pytest.CaptureFixture[str]


def parser() -> Parser:
    made = Parser("a.b", "What it does.", aliases={"target_epsilon": "--epsilon"})
    made.add_argument("--epsilon", type=number(above=0), required=True)
    made.add_argument("--step-size", type=number(above=0))
    made.add_argument("--ids", nargs="+", action=Several, choices=("x", "y", "z"), default=["x", "y"])
    return made


def refused(capsys: Capture, work: Any) -> str:
    with pytest.raises(SystemExit) as stop:
        work()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("python -m a.b: ")
    assert err.endswith("\n")
    return err.removeprefix("python -m a.b: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "--epsilon must be given"),
        (["--epsilon"], "--epsilon must be followed by one argument; got none"),
        (["--epsilon", "-1e-3"], "--epsilon must be a finite number with 0 < value < inf; got -0.001"),
        (["--epsilon", "-inf"], "--epsilon must be a finite number with 0 < value < inf; got -inf"),
        (["--epsilon", "1", "--ids", "w"], "--ids must be one of x, y, z; got 'w'"),
        (["--epsilon", "1", "--eps", "2"], "--eps 2 must not be given: no such argument"),
        (["--epsilon", "1", "a\nb"], "a b must not be given: no such argument"),
    ],
)
def test_argparse_speaks_our_sentences(words: list[str], line: str, capsys: Capture) -> None:
    assert refused(capsys, lambda: parser().parse_args(words)) == line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("step_size must be > 0; got step_size"), "--step-size must be > 0; got step_size"),
        (ValueError("target_epsilon must be real with 0 < target_epsilon"), "--epsilon must be real with 0 < epsilon"),
        (ValueError("step_size is odd"), "step_size is odd"),
        (check.PreconditionError("other must be smaller"), "other must be smaller"),
        (FileNotFoundError(2, "No such file", "x"), "[Errno 2] No such file: 'x'"),
    ],
)
def test_the_librarys_names_become_flags(error: Exception, line: str, capsys: Capture) -> None:
    def work() -> None:
        with parser().refusals():
            raise error

    def flagged() -> None:
        with parser().refusals("--ids"):
            raise error

    assert refused(capsys, work) == line
    assert refused(capsys, flagged) == (line if line.startswith("--") else f"--ids: {line}")


@pytest.mark.parametrize(
    ("words", "kept"),
    [([], ["x", "y"]), (["--ids", "z"], ["z"]), (["--ids", "z", "x", "--ids", "z", "y"], ["z", "x", "y"])],
)
def test_a_flag_that_is_repeated_keeps_its_words(words: list[str], kept: list[str]) -> None:
    assert parser().parse_args(["--epsilon", "1", *words]).ids == kept
    assert parser().parse_args(["--epsilon", "1"]).ids == ["x", "y"]


def test_numbers_are_what_they_say() -> None:
    value = number()("2")
    assert (value, type(value)) == (2, int)
    assert number(at_most=1)("1e-3") == 1e-3
    assert integer()("1e4") == 10_000
    for kind, word in ((integer(2, 9), "1"), (integer(2, 9), "10"), (integer(), "2.5"), (number(below=1), "1")):
        with pytest.raises(argparse.ArgumentTypeError, match=r"^must be .* value .*; got"):
            kind(word)


def test_paths_are_tried_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file.png"
    file.write_text("kept")
    assert output_folder(str(tmp_path / "new" / "deep")) == tmp_path / "new" / "deep"
    assert output_file(".png")(str(file)) == file
    assert output_file()(str(tmp_path / "new")) == tmp_path / "new"
    assert input_file(str(file)) == file
    assert input_folder("file.png")(str(tmp_path)) == tmp_path
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    bad = [
        *(
            (output_folder, word)
            for word in (str(file), str(file / "in"), "", "a\0b", str(link), str(tmp_path / ("n" * 300)))
        ),
        *((output_file(".png"), str(tmp_path / name)) for name in ("x.gif", "no/x.png", "", "a\0.png")),
        (output_file(), str(tmp_path)),
        *((input_file, str(tmp_path / name)) for name in ("no", "", "link")),
        *((input_folder("other"), word) for word in (str(tmp_path), str(file), "")),
    ]
    for kind, word in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=r"^must be a f"):
            kind(word)
    assert sorted(os.listdir(tmp_path)) == ["file.png", "link"]
    assert file.read_text() == "kept"


@pytest.mark.parametrize(("lines", "reads"), [(100_000, 1), (3, 0)])
def test_a_command_ends_quietly_where_its_reader_stops(lines: int, reads: int) -> None:
    """A reader that stops in the middle of a long answer, or before the end of a short one, leaves no traceback."""
    program = f"""
import sys
from dpzero_theory.cli import command

@command
def main():
    sys.stdin.read()
    for _ in range({lines}):
        print("line")
    return 0

sys.exit(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        if not reads:
            run.stdout.close()
        run.stdin.close()
        if reads:
            assert run.stdout.readline() == "line\n"
            run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 141
