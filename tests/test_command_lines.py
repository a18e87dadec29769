"""Every command refuses every bad command line: exit status 2 and one line that names the flag, with nothing written.

BAD is a table of lines by command. Every flag of a command has, beside these, the words that its type refuses.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import scripts

NEEDED: dict[str, dict[str, str]] = {
    "dpzero_theory.params": {"--n": "10000", "--epsilon": "2", "--delta": "1e-6", "--d": "2000"},
    "dpzero_theory.privacy": {"--epsilon": "2", "--delta": "1e-5", "--steps": "100", "--n": "1000"},
    "dpzero_theory.curvature": {"--model": "mlp-digits:2", "--data": "digits"},
    "dpzero_theory.optim.verify": {"folder": "folder"},
    "dpzero_theory.audit": {"spec": "audit.toml"},
    "paper_checks": {},
    "benchmarks": {},
}
"""The flags that each command needs, with good values; those of a line under test take their place."""
TAKES_THE_PLACE = {"--noise-multiplier": "--epsilon"}

NUMBERS = ("nan", "-inf", "-1", "1e400", "many", "")
WORDS = {
    "number": NUMBERS,
    "integer": (*NUMBERS, "1.5"),
    "input_file": ("", "a\0b", "missing", "folder"),
    "input_folder": ("", "a\0b", "missing", "file"),
    "output_file": ("", "a\0b", "folder", "missing/plot.png"),
    "output_folder": ("", "a\0b", "file", "file/inside"),
}
"""The words that each type of flag refuses."""

BAD: dict[str, list[tuple[str, list[str]]]] = {
    "dpzero_theory.params": [
        *(
            (f"--{name}", [f"--{name}", word])
            for name in ("gap", "smoothness", "lipschitz")
            for word in ("1e308", "1e-308")
        ),
        ("--target", ["--solve-for", "n", "--target", "1e-300"]),
        ("--target", ["--solve-for", "n"]),
        ("--target", ["--target", "1"]),
        ("--n", ["--solve-for", "n", "--target", "1"]),
        ("--format", ["--solve-for", "n", "--target", "1", "--format", "latex"]),
        ("--direction", ["--direction", "low-rank:0"]),
        ("--layer-rank", ["--layer-rank", "1"]),
        ("--r", ["--r", "0.5"]),
        ("--r", ["--r", "3000"]),
        ("--sample-rank", ["--sample-rank", "3000"]),
        ("--pl", ["--pl", "1.5", "--result", "corollary-3"]),
        ("--pl", ["--result", "corollary-1"]),
        ("--delta", ["--delta", "1"]),
        ("--d", ["--d", "1e19"]),
        ("--result", ["--result", "theorem-3", "--result", "theorem-4"]),
        ("--problem", ["--problem", "table.tsv"]),
        ("--gap", ["--pl", "0.5", "--gap", "3", "--result", "corollary-3"]),
        ("--result", ["--result"]),
        ("--eps", ["--eps", "2"]),
        ("--solve-for", ["--solve-for", "delta", "--target", "1"]),
    ],
    "dpzero_theory.privacy": [
        ("--noise-multiplier", ["--noise-multiplier", "3", "--epsilon", "2"]),
        ("--noise-multiplier", ["--noise-multiplier", "1e300"]),
        ("--noise-multiplier", ["--noise-multiplier", "1e-9"]),
        *(
            ("--noise-multiplier", ["--noise-multiplier", "1e-3", "--batch", "10", "--sampling", sampling])
            for sampling in ("poisson", "fixed-size")
        ),
        ("--epsilon", ["--epsilon", "1e6"]),
        ("--epsilon", ["--epsilon", "-1e-5"]),
        ("--delta", ["--delta", "1"]),
        ("--delta", ["--delta", "1e-400"]),
        ("--steps", ["--steps", "1e13"]),
        ("--batch", ["--sampling", "poisson"]),
        ("--sampling", ["--batch", "64"]),
        ("--batch", ["--batch", "64", "--sampling", "full"]),
        ("--batch", ["--batch", "1001", "--sampling", "poisson"]),
        ("--delta", ["--batch", "1", "--sampling", "poisson", "--delta", "0.5", "--steps", "1"]),
        ("--epochs", ["--epochs", "3", "--batch", "64", "--sampling", "poisson"]),
    ],
    "dpzero_theory.curvature": [
        *(
            ("--model", ["--model", word])
            for word in ("os:system", "posix:system", "subprocess:run", "numpy:zeros", "builtins:print", "nothing", "")
        ),
        *(
            ("--model", ["--model", word])
            for word in ("mlp-digits:x", "mlp-digits:0", "mlp-digits:1e9", "no.such:thing")
        ),
        *(("--model", ["--model", word]) for word in (".:x", "a b:c", "dpzero_theory.datasets:digits")),
        ("--data", ["--data", "elsewhere"]),
        ("--synthetic", ["--public", "--synthetic"]),
        ("--spend-no-privacy-claim", ["--public", "--spend-no-privacy-claim"]),
        ("--power", ["--power", "3"]),
        ("--directions", ["--directions", "1"]),
        ("--directions", ["--forward-only", "1e-3", "--directions", "0"]),
        ("--level", ["--level", "1"]),
        ("--forward-only", ["--forward-only", "1e300"]),
    ],
    "dpzero_theory.audit": [
        *(
            ("spec", [word])
            for word in ("", "folder", "file", "missing.toml", "a\0b", "os:system", "no.such:thing", "nothing", "a b:c")
        ),
        *(("spec", [word]) for word in ("math:floor", "builtins:dict")),
        ("claim", ["bad.toml"]),
        ("--runs", ["--runs", "23"]),
        ("--false-alarm", ["--false-alarm", "0.5"]),
        ("--checks", ["--checks", "noise-size", "--checks", "none"]),
    ],
    "dpzero_theory.optim.verify": [
        ("folder", ["missing"]),
        ("--final", ["--final", "missing"]),
        ("--final must come with --initial", ["--final", "file"]),
        ("--initial must be a file of torch.save", ["--initial", "file"]),
    ],
    "benchmarks": [("name", ["no_such_name"]), ("name", ["kit.experiment"])],
    "paper_checks": [
        ("--only", ["--only", "nonsense"]),
        ("--only", ["--only", "sphere-i-mean", "--only", "nonsense"]),
        ("--full", ["--quick", "--full"]),
    ],
}


def module_of(command: str) -> Any:
    package = importlib.util.find_spec(command)
    return importlib.import_module(f"{command}.__main__" if package and package.submodule_search_locations else command)


def flag_of(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def by_type(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield for each flag the lines that must be refused whatever the flag is for."""
    yield "--bogus", ["--bogus"]
    for action in parser._actions:
        flag, kind = flag_of(action), getattr(action.type, "__qualname__", "").split(".")[0]
        words = ("unknown",) if action.choices is not None else WORDS.get(kind, ())
        if action.nargs == 0:
            yield flag, [f"{flag}=1"]
        elif action.option_strings:
            yield flag, [flag]
            yield from ((flag, [f"{flag}={word}"]) for word in words)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files of every wrong kind."""
    (tmp_path / "file").write_text("kept\n")
    (tmp_path / "table.tsv").write_text("no\ttable\n")
    audit = 'train = "builtins:dict"\nrecords = "builtins:list"\n[claim]\n'
    (tmp_path / "audit.toml").write_text(audit)
    (tmp_path / "bad.toml").write_text(audit + "epsilon = nan\n")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fault(main: Any, command: str, flag: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is wrong with how the command refuses these words, or nothing."""
    before = sorted(Path().rglob("*"))
    try:
        status: Any = main(words)
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    good = {
        f"status {status}": status == 2,
        "standard output": out == "",
        "not one line": err.count("\n") == 1 and len(err) < 600,
        "not the command's": err.startswith(f"python -m {command}: "),
        f"no {flag}": flag in err,
        "wrote": sorted(Path().rglob("*")) == before,
    }
    wrong = ", ".join(what for what, holds in good.items() if not holds)
    return f"{words}: {wrong}: {err[-300:]!r}" if wrong else ""


@pytest.mark.parametrize("command", NEEDED)
def test_every_bad_line_is_refused(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = module_of(command)
    parser, needed = module._parser(), NEEDED[command]
    faults = []
    for flag, given in [*by_type(parser), *BAD[command]]:
        named = {word.split("=")[0] for word in given}
        named |= {TAKES_THE_PLACE[name] for name in named if name in TAKES_THE_PLACE}
        rest = [
            word
            for name, value in needed.items()
            if name.startswith("--") and name not in named
            for word in (name, value)
        ]
        tested = not given[0].startswith("--")
        first = [value for name, value in needed.items() if not (name.startswith("--") or tested)]
        faults.append(fault(module.main, command, flag, [*first, *rest, *given], capsys))
    for flag in [flag_of(action) for action in parser._actions if action.required]:
        left = [
            word
            for name, value in needed.items()
            if name != flag
            for word in ((name, value) if name.startswith("--") else (value,))
        ]
        faults.append(fault(module.main, command, flag, left, capsys))
    assert not [line for line in faults if line]


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = {command: module_of(command)._parser() for command in NEEDED}
    for name, path in scripts().items():
        module = ".".join(path.relative_to(Path(__file__).parents[1]).with_suffix("").parts)
        parsers[f"benchmarks.{name}"] = importlib.import_module(module).EXPERIMENT.parser()
    for command, parser in parsers.items():
        shown = parser.format_help()
        assert f"usage: python -m {command.replace('benchmarks.', 'benchmarks ')}" in shown
        assert all(flag_of(action) in shown for action in parser._actions if action.option_strings), command
        with pytest.raises(SystemExit) as stop:
            parser.parse_args(["--bogus"])
        assert stop.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1, command
