"""Tests that every command refuses every bad command line.

It must do so with exit status 2 and one line that names the flag, at once, with nothing written.

`drive` imports the commands and runs their lines in forks that a limit on time ends. A flag that a command gains needs
a bad line: by its type it has some already, otherwise in BY_HAND.
"""

import argparse
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from benchmarks.__main__ import scripts
from tests import forks

pytestmark = pytest.mark.xdist_group("command lines")
"""One test worker runs these tests, so that their fixtures are made once."""

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dpzero_theory", "benchmarks", "figures", "paper_checks")
KEPT = ("benchmarks/results", "figures", "paper_checks")
SECONDS, BYTES = 2, 1 << 30

GOOD: dict[str, dict[str, str]] = {
    "dpzero_theory.params": {"--n": "10000", "--epsilon": "2", "--delta": "1e-6", "--d": "2000"},
    "dpzero_theory.privacy": {"--epsilon": "2", "--delta": "1e-5", "--steps": "100", "--n": "1000"},
    "dpzero_theory.curvature": {"--model": "mlp-digits:2", "--data": "digits"},
    "dpzero_theory.optim.trainers": {"kind": "sft", "--config": "run.yaml"},
    "dpzero_theory.optim.verify": {"folder": "folder"},
    "dpzero_theory.audit": {"spec": "audit.toml"},
    "benchmarks.accounting": {"--preset": "compare"},
    "benchmarks.adaptive": {"--preset": "cost"},
    "benchmarks.audit_field": {"--reports": "folder"},
    "benchmarks.audit_field_sound": {"--reports": "folder"},
    "benchmarks.gpu": {"--minutes": "10"},
    "benchmarks.llm": {"--data": "data"},
    "benchmarks.merge": {"folders": str(ROOT / "benchmarks/results/side_by_side")},
    "benchmarks.llm.demo": {"--data": "data"},
    "benchmarks.llm.memory": {"name": "smoke"},
    "benchmarks.llm.table": {"name": "demo"},
    "benchmarks.prescription": {"--problem": "problem.json"},
    "benchmarks.pretrained": {"model": "smollm2"},
    "benchmarks.private_search": {"--task": "digits"},
    "benchmarks.side_by_side": {"--other": str(ROOT)},
    "figures.demo": {"--rows": "folder"},
}
"""For each command, the flags that it needs, with good values; a flag under test replaces its good value.

Commands with the flag --out get --out OUT as well.
"""

ZERO = {
    "dpzero_theory.curvature": ("--path-steps", "--power", "--directions", "--seed"),
    "benchmarks.llm": ("--min-words", "--dev", "--seed"),
    "benchmarks.reproduce": ("--seed",),
}
"""Flags whose numbers may be 0, by command."""

WORDS = ("nan", "-inf", "-1", "1e400", "many", "")
WHOLE = ("1.5",)
NO_PATH = ("", "a\0b", "file/inside", "n" * 300)
LEFT_OUT = {"--noise-multiplier": ("--epsilon",)}
"""For a flag under test, the needed flags that must be left out, since it takes their place."""

BY_HAND: dict[str, list[tuple[str, list[str]]]] = {
    "dpzero_theory.params": [
        *(
            ("--sweep", ["--sweep", f"d={spec}"])
            for spec in ("", "1", "a:b", "20:2", "0:5", "nan:5", "1:inf", "1:1e400")
        ),
        *(
            ("--sweep", ["--sweep", spec])
            for spec in ("d", "q=1:2", "=1:2", "d=1:9:log:2.5", "d=1:9:log:1e9", "d=1:9:x")
        ),
        *(
            (f"--{name}", [f"--{name}", word])
            for name in ("gap", "smoothness", "lipschitz")
            for word in ("1e308", "1e-308")
        ),
        ("--target", ["--solve-for", "n", "--target", "1e-300"]),
        ("--target", ["--solve-for", "n"]),
        ("--target", ["--target", "1"]),
        ("--n", ["--solve-for", "n", "--target", "1"]),
        ("--sweep", ["--sweep", "d=2:3", "--solve-for", "n", "--target", "1"]),
        ("--format", ["--sweep", "d=2:3", "--format", "latex"]),
        ("--plot", ["--plot", "plot.png"]),
        ("--d", ["--sweep", "d=20:2000:log:5"]),
        ("--r", ["--r", "0.5"]),
        ("--r", ["--r", "3000"]),
        ("--sample-rank", ["--sample-rank", "3000"]),
        ("--pl", ["--pl", "1.5", "--result", "corollary-3"]),
        ("--pl", ["--result", "corollary-1"]),
        ("--delta", ["--delta", "1"]),
        ("--d", ["--d", "1e19"]),
        ("--result", ["--result", "theorem-3", "--result", "theorem-4"]),
        ("--problem", ["--problem", "table.tsv"]),
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
        ("--model", ["--model", "minilm:x", "--data", "data", "--public"]),
        ("--data", ["--data", "elsewhere"]),
        ("--data", ["--model", "logistic", "--data", "elsewhere", "--public"]),
        ("--data", ["--model", "logistic", "--data", "latin", "--public"]),
        ("--data", ["--model", "logistic", "--data", "header", "--public"]),
        ("--data", ["--model", "logistic", "--data", "data"]),
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
    "benchmarks": [("name", ["no_such_name"]), ("name", ["kit.experiment"])],
    "benchmarks.accounting": [
        ("--count", ["--preset", "corners", "--count", "0"]),
        ("--workers", ["--preset", "corners", "--workers", "257"]),
    ],
    "benchmarks.curvature": [
        ("--models", ["--models", "nothing"]),
        ("--data", ["--preset", "encoder"]),
        ("--data", ["--preset", "encoder", "--data", "folder"]),
    ],
    "benchmarks.curvature_coverage": [("--out", ["--summary", "--out", "folder"])],
    "benchmarks.gpu": [
        ("--preset", ["--device", "cpu"]),
        ("--card", ["--card", "h200"]),
        ("--only", ["--only", "tests", "--only", "nothing"]),
        ("--model", ["--model", "folder"]),
    ],
    "benchmarks.llm": [
        ("--test", ["--test", "0"]),
        ("--model", ["--model", "../../etc"]),
        ("--data", ["--data", "header"]),
        ("--data", ["--data", "latin"]),
        ("--data", ["--data", "folder"]),
        ("--steps", ["--steps", "0"]),
        ("--delta", ["--delta", "1"]),
        ("--batch", ["--batch", "1000", "--total", "4"]),
        ("--total", ["--per-class", "2", "--total", "3"]),
        ("--all-records", ["--total", "3", "--all-records"]),
        ("--config", ["--config", "roberta-large"]),
        ("--min-words", ["--min-words", "1000"]),
    ],
    "benchmarks.llm.demo": [("--data", ["--data", "header"]), ("--data", ["--data", "latin"])],
    "benchmarks.llm.memory": [("--models", ["--models", "opt-125m", "--models", "../../etc"])],
    "benchmarks.llm.table": [
        ("--tasks", ["--preset", "few-steps", "--tasks", "none"]),
        ("--tasks", ["--preset", "few-steps", "--tasks", "sst2", "--tasks", "none"]),
        ("--rows", ["--preset", "few-steps", "--rows", "none"]),
        ("--preset", ["--preset", "full"]),
        ("--data", ["--preset", "few-steps", "--data", "folder"]),
        ("--data", ["--preset", "few-steps", "--data", "latin"]),
        ("--out", ["--preset", "few-steps", "--report", "--out", "folder"]),
    ],
    "benchmarks.optimizer_privacy": [
        ("--worker", ["--worker", "nowhere", "3"]),
        ("--worker", ["--worker", "folder", "three"]),
    ],
    "benchmarks.optimizer_step": [("--sizes", ["--sizes", "enormous"]), ("--turns", ["--turns", "1"])],
    "benchmarks.prescription": [
        ("--problem", ["--problem", "table.tsv"]),
        ("--data", ["--task", "minilm"]),
        ("--data", ["--task", "minilm", "--data", "folder"]),
        ("--out", ["--summary", "--out", "folder"]),
    ],
    "benchmarks.selection": [("--rows", ["--rows", "folder"])],
    "benchmarks.slopes": [("--rows", ["--rows", "folder"])],
    "benchmarks.synthetic": [("--methods", ["--methods", "dpzero", "--methods", "sgd"]), ("--out", ["--out", "/"])],
    "figures.certificates": [("--rows", ["--rows", "folder"])],
    "figures.curvature": [("--rows", ["--rows", "folder"])],
    "figures.demo": [("--rows", ["--rows", "folder"])],
    "figures.dimension": [("--selection", ["--selection", "folder"])],
    "figures.k_directions": [("--rows", ["--rows", "folder"])],
    "figures.llm": [("--accuracy", ["--accuracy", "folder"]), ("--clip-lr", ["--clip-lr", "folder"])],
    "figures.synthetic": [("--rows", ["--rows", "folder"])],
    "paper_checks": [
        ("--only", ["--only", "nonsense"]),
        ("--only", ["--only", "sphere-i-mean", "--only", "nonsense"]),
        ("--full", ["--quick", "--full"]),
    ],
}


APART = "dpzero_theory.privacy.checker"
"""The checker of certificates, whose command line is different.

It shares no code with the library, so it has no such parser: it takes names of files.
"""


def commands() -> dict[str, str]:
    """Returns the module of every command, by the command's name."""
    found = {"benchmarks": "benchmarks.__main__"}
    for name, path in scripts().items():
        found[f"benchmarks.{name}"] = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in {*PACKAGES} - {"benchmarks"}:
        for path in sorted((ROOT / package).rglob("*.py")):
            if '\nif __name__ == "__main__":' in path.read_text():
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                if module == APART:
                    continue
                found[module.removesuffix(".__main__")] = module
    return found


def flag_of(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def bad_words(command: str, action: argparse.Action) -> Iterator[str]:
    """Yields words that a flag of this type must refuse; `command` is the command and `action` the flag."""
    kind = getattr(action.type, "__qualname__", "").split(".")[0]
    if action.choices is not None:
        yield from ("unknown", "")
    if kind in ("number", "integer"):
        yield from WORDS
        yield from WHOLE if kind == "integer" else ()
        yield from () if flag_of(action) in ZERO.get(command, ()) else ("0",)
    if kind.startswith(("input_", "output_")):
        yield from NO_PATH
    if kind == "output_folder":
        yield from ("file", "/proc/nowhere/folder", "/dev/null/folder")
    if kind == "output_file":
        yield from ("folder", "missing/plot.png", "/proc/nowhere.png", "/proc/1/plot.png")
    if kind == "input_file":
        yield from ("missing", "folder")
    if kind == "input_folder":
        yield from ("missing", "file")
    if kind == "model_name":
        yield from ("../../etc", "/etc", "a b", "", "a/b/c", "a\0b")


def bad_lines(command: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yields, for all flags of a command, the flag and words that must be refused."""
    yield "--bogus", ["--bogus"]
    yield "stray", ["stray"]
    for action in parser._actions:
        flag = flag_of(action)
        if action.nargs == 0:
            yield flag, [f"{flag}=1"]
            continue
        if action.option_strings:
            yield flag, [flag]
        for word in bad_words(command, action):
            yield flag, [f"{flag}={word}" if action.option_strings else word]
            if action.nargs == "+" and action.choices is not None:
                yield flag, [flag, str(next(iter(action.choices))), flag, word]
    yield from BY_HAND.get(command, ())


def whole(command: str, parser: argparse.ArgumentParser, given: list[str]) -> list[str]:
    """Returns the words `given`, which are tested, with the words that the command needs besides."""
    flags = {word.split("=")[0] for word in given}
    first = given[0] if given else "--"
    good = {k: v for k, v in GOOD.get(command, {}).items() if k not in LEFT_OUT.get(first, ())}
    if any("--out" in action.option_strings for action in parser._actions) and command != "dpzero_theory.curvature":
        good["--out"] = "out"
    needed = [w for k, v in good.items() if k.startswith("--") and k not in flags for w in (k, v)]
    positional = [v for k, v in good.items() if not k.startswith("--")]
    tested = positional and not first.startswith("--") and first != "stray"
    return [*([] if tested else positional), *needed, *given]


def lines(command: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yields, for all flags of a command, the flag and a whole command line that must be refused.

    Command lines that lack a required flag are among them.
    """
    for flag, given in bad_lines(command, parser):
        yield flag, whole(command, parser, given)
    good = GOOD.get(command, {})
    for action in parser._actions:
        if action.required:
            flag = flag_of(action)
            yield flag, [w for k, v in good.items() if k != flag for w in ((k, v) if k.startswith("--") else (v,))]


# The functions from here on are those of the process that runs the commands.


def drive() -> None:
    """Import the commands, the light ones first, run each one's lines in a fork, and print what happened as JSON."""
    found, flags, helps, checks = [], {}, {}, {}
    endless = run(_endless, [["x"], []])
    for command, module in sorted(commands().items(), key=lambda item: (_weight(item[0]), item[0])):
        loaded = importlib.import_module(module)
        experiment = getattr(loaded, "EXPERIMENT", None)
        parser = experiment.parser() if experiment else loaded._parser()
        if command == "paper_checks":
            loaded.load_checks()  # Its first import compiles the checks, and imports sympy
        gc.freeze()  # A garbage collection in a child process would copy all memory that it shares
        flags[command] = [flag_of(action) for action in parser._actions]
        tested = list(lines(command, parser))
        helps[command], *done = run((experiment or loaded).main, [["--help"], *(words for _, words in tested)])
        if getattr(experiment, "check", None):
            (checks[command],) = run(partial(_check, experiment), [whole(command, parser, [])])
        for (flag, words), outcome in zip(tested, done, strict=True):
            found.append({"command": command, "flag": flag, "words": words, **outcome})
    print(json.dumps({"lines": found, "flags": flags, "helps": helps, "checks": checks, "endless": endless}))


def _check(experiment: Any, words: list[str]) -> int:
    parser = experiment.parser()
    experiment.check(parser, parser.parse_args(words))
    return 0


def _endless(words: list[str]) -> int:
    while words:
        pass
    print("done")
    return 0


def _weight(command: str) -> int:
    """Returns the order of importing a command: torch and transformers come last, since forks copy what is imported."""
    return (
        2
        if ".llm" in command or "trainers" in command
        else 1
        if command.startswith("benchmarks") or "curvature" in command
        else 0
    )


def run(main: Any, tested: list[list[str]]) -> list[dict[str, Any]]:
    """Runs command lines of a command in a child process, and returns what each did.

    `main` is the command's function and `tested` are the lines. A line that ends the child is followed by another child
    for the rest.
    """
    outcomes: list[dict[str, Any]] = []
    while len(outcomes) < len(tested):
        with TemporaryFile() as log:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                try:
                    for words in tested[len(outcomes) :]:
                        os.write(log.fileno(), json.dumps(one(main, words)).encode() + b"\n")
                finally:
                    os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            log.seek(0)
            outcomes += [json.loads(line) for line in log.read().splitlines()]
        if len(outcomes) < len(tested):
            outcomes.append({"status": status, "out": "", "err": "", "seconds": SECONDS, "bytes": 0, "wrote": False})
    return outcomes


def one(main: Any, words: list[str]) -> dict[str, Any]:
    """Runs one command line, `words`, by the command's function `main`.

    Returns exit status, output, processor seconds, growth of the memory and whether files changed. A line that takes
    too long ends the process.
    """
    before, held = snapshot(Path()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with TemporaryFile() as out, TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        started = time.process_time()
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
            code = 1
        seconds = time.process_time() - started
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [(file.seek(0), file.read().decode(errors="replace"))[1] for file in (out, err)]
    return {
        "status": code if isinstance(code, int) else 1,
        "out": texts[0],
        "err": texts[1],
        "seconds": seconds,
        "bytes": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held),
        "wrote": snapshot(Path()) != before,
    }


def snapshot(folder: Path) -> list[tuple[str, int, int]]:
    files = sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]


# The tests begin here.


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `drive` printed, run once in a folder with files of every wrong kind."""
    place = tmp_path_factory.mktemp("lines")
    (place / "file").write_text("kept\n")
    (place / "table.tsv").write_text("no\ttable\n")
    (place / "run.yaml").write_text("max_length: 8\n")
    contents = {
        "folder": b"",
        "data": b"sentence\tlabel\n" + b"a fine film\t1\na bad film\t0\n" * 9,
        "header": b"words\tkind\na fine film\t1\n",
        "latin": b"sentence\tlabel\na caf\xe9\t1\n",
    }
    for name, text in contents.items():
        (place / name).mkdir()
        if text:
            (place / name / "sst2_train.tsv").write_bytes(text)
            (place / name / "sst2_test.tsv").write_bytes(text)
    audit = 'train = "builtins:dict"\nrecords = "builtins:list"\n[claim]\n'
    (place / "audit.toml").write_text(audit)
    (place / "bad.toml").write_text(audit + "epsilon = nan\n")
    (place / "problem.json").write_text(
        '{"format": "dpzero-theory/problem", "version": 1, "problem": {"d": 10}, "data": "public"}'
    )
    before = [snapshot(ROOT / folder) for folder in KEPT]
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = forks.run("-c", "from tests.test_command_lines import drive; drive()", folder=place, environment=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert [snapshot(ROOT / folder) for folder in KEPT] == before
    return found


def fault(line: dict[str, Any]) -> str:
    """Returns what is wrong with the refusal of a bad command line; the text is empty if nothing is.

    `line` is what the line did, as `drive` printed it.
    """
    checks = {
        f"status {line['status']}": line["status"] == 2,
        "standard output": line["out"] == "",
        "not one line": line["err"].count("\n") == 1 and line["err"].endswith("\n"),
        "not the command's": line["err"].startswith(f"python -m {line['command']}: "),
        f"no {line['flag']}": line["flag"] in line["err"],
        "too long": len(line["err"]) < 600,
        f"{line['seconds']} s": line["seconds"] < SECONDS,
        f"{line['bytes']} bytes": line["bytes"] < BYTES,
        "wrote": not line["wrote"],
    }
    return ", ".join(what for what, holds in checks.items() if not holds)


def test_every_bad_line_is_refused(driven: dict[str, Any]) -> None:
    found = driven["lines"]
    assert len(found) > 400
    faults = [
        f"{' '.join([line['command'], *(word[:40] for word in line['words'])])!r}: {what}: {line['err'][-200:]!r}"
        for line in found
        if (what := fault(line))
    ]
    assert not faults, f"{len(faults)} of {len(found)}:\n" + "\n".join(faults)


def test_every_flag_of_every_command_has_a_bad_line(driven: dict[str, Any]) -> None:
    tested = {(line["command"], line["flag"]) for line in driven["lines"]}
    assert set(driven["flags"]) == set(commands())
    assert not [
        (command, flag)
        for command, flags in driven["flags"].items()
        for flag in {*flags} - {"--help"}
        if (command, flag) not in tested
    ]


def test_what_an_experiment_checks_first_passes_or_is_refused_in_one_line(driven: dict[str, Any]) -> None:
    """With its default flags an experiment is begun, or refused (a model that is not there), never ends in an error.

    One that takes longer to prepare than this test gives it counts as begun.
    """
    assert "benchmarks.llm.only_d" in driven["checks"]
    bad = {
        command: (outcome["status"], outcome["err"][-300:])
        for command, outcome in driven["checks"].items()
        if outcome["status"] not in (0, 2, -signal.SIGPROF) or outcome["err"].count("\n") > 1
    }
    assert not bad


def test_help_names_every_flag(driven: dict[str, Any]) -> None:
    for command, printed in driven["helps"].items():
        assert (printed["status"], printed["err"]) == (0, ""), command
        assert f"usage: python -m {command}" in printed["out"]
        assert all(flag in printed["out"] for flag in driven["flags"][command] if flag.startswith("--")), command
        assert printed["seconds"] < SECONDS


@pytest.mark.parametrize(
    "change",
    [
        {"status": 0},
        {"status": 1},
        {"out": "x"},
        {"err": "python -m c: --n must\nbe\n"},
        {"err": "c: --n must be\n"},
        {"err": "python -m c: n must be\n"},
        {"seconds": 2.5},
        {"bytes": 2 << 30},
        {"wrote": True},
    ],
    ids=str,
)
def test_the_check_has_teeth(change: dict[str, Any]) -> None:
    line = {"command": "c", "flag": "--n", "status": 2, "out": "", "err": "python -m c: --n must be\n"}
    good = {**line, "seconds": 0.1, "bytes": 0, "wrote": False}
    assert fault(good) == ""
    assert fault({**good, **change}) != ""


def test_a_line_that_never_ends_is_stopped(driven: dict[str, Any]) -> None:
    endless, short = driven["endless"]
    assert (endless["status"], short["status"], short["out"]) == (-signal.SIGPROF, 0, "done\n")
