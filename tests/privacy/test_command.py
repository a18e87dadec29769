"""The command `python -m dpzero_theory.privacy`: answers, its JSON, and one line for every bad input."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpzero_theory.privacy.__main__ import main

TARGET = ["--epsilon", "2", "--delta", "1e-5", "--steps", "10000", "--n", "1024"]
BATCH = ["--batch", "64", "--sampling", "poisson"]
MINI = [*TARGET, *BATCH, "--relation", "add-remove"]
NOISE = ["--noise-multiplier", "12.498", "--delta", "1e-5", "--n", "1024", *BATCH, "--relation", "add-remove"]


def said(capsys, arguments):
    assert main(arguments) == 0
    return capsys.readouterr().out


def answer(capsys, arguments):
    return json.loads(said(capsys, [*arguments, "--format", "json"]))


def without(words, *flags):
    """Returns the words without these flags and their values."""
    kept = [k for k, word in enumerate(words) if word in flags]
    return [word for k, word in enumerate(words) if k not in kept and k - 1 not in kept]


def test_noise_for_a_target_and_its_epsilon(capsys):
    found = answer(capsys, MINI)
    # The least noise is 12.49643; a grid that resolves epsilon to 1e-4 adds a little.
    assert 12.49642 <= found["noise_multiplier"] <= 12.49643 * 1.0005
    assert found["bracket"]["lower"] <= found["bracket"]["value"] <= found["bracket"]["upper"]
    assert (found["inputs"]["sampling"], found["inputs"]["sample_rate"], found["method"]) == ("poisson", 0.0625, "grid")
    question = ["--noise-multiplier", repr(found["noise_multiplier"]), *MINI[2:]]
    assert 2.0 * (1 - 2e-4) < answer(capsys, question)["epsilon"] <= 2.0


def test_full_batch_under_the_default_relation(capsys):
    found = answer(capsys, ["--epsilon", "2", "--delta", "1e-6", "--steps", "5120", "--n", "10000"])
    assert found["inputs"]["relation"] == "replace-one"
    assert found["noise_over_sensitivity"] == pytest.approx(159.599890, abs=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "random-allocation", "fixed-order"])
def test_every_sampling_answers(capsys, sampling):
    found = answer(capsys, [*TARGET, "--batch", "64", "--sampling", sampling])
    assert math.isfinite(found["noise_multiplier"])
    assert found["sensitivity"] == 2


@pytest.mark.parametrize("sampling", ["cyclic-poisson:4", "random-allocation:2", "truncated-poisson:100/1024"])
def test_samplings_with_arguments_answer(capsys, sampling):
    found = answer(capsys, [*NOISE[:6], "--batch", "64", "--sampling", sampling, "--steps", "32"])
    assert 0 < found["bracket"]["lower"] <= found["epsilon"] < 3
    assert found["inputs"]["sampling"] == sampling


@pytest.mark.parametrize(
    ("sampling", "relation", "clips"),
    [
        ("fixed-size", "add-remove", "2 clips"),
        ("fixed-size", "zero-out", "1 clip"),
        ("poisson", "add-remove", "1 clip"),
    ],
)
def test_a_record_that_takes_a_place_changes_the_sum_by_two_clips(capsys, sampling, relation, clips):
    argv = ["--epsilon", "2", "--delta", "1e-5", "--steps", "100", "--n", "1000", "--batch", "64"]
    assert f"x the sensitivity of {clips})" in said(capsys, [*argv, "--sampling", sampling, "--relation", relation])


@pytest.mark.parametrize(
    ("sought", "expected", "given"),
    [
        ("steps", 10_000, ["--epsilon", "2"]),
        ("delta", 1e-5, ["--epsilon", "2", "--steps", "10000"]),
        ("batch", 64, ["--epsilon", "2", "--steps", "10000"]),
        ("n", 1024, ["--epsilon", "2", "--steps", "10000"]),
    ],
)
def test_steps_batch_n_and_delta_are_found_too(capsys, sought, expected, given):
    words = [*without(NOISE, f"--{sought}"), *given, "--solve-for", sought]
    found = answer(capsys, words)
    assert found["answer"] == sought
    assert found[sought] == pytest.approx(expected, rel=3e-3)
    assert found["inputs"][sought] is None
    if sought == "n":
        assert "n = 1024   (exact value in [102" in said(capsys, words)


@pytest.mark.parametrize("flag", ["--epsilon", "--noise-multiplier", "--delta", "--steps", "--batch", "--n"])
def test_the_number_that_is_left_out_is_the_one_to_find(capsys, flag):
    """As the README says of any one of the six; with full batches --batch may be left out beside it."""
    name = flag[2:].replace("-", "_")
    six = [*NOISE, "--epsilon", "2", "--steps", "10000"]
    assert answer(capsys, without(six, flag))["answer"] == name
    if flag not in ("--batch", "--n"):
        assert answer(capsys, without(six, flag, "--batch", "--sampling"))["answer"] == name


def refused(capsys, arguments, name):
    seconds = []
    for _ in range(3):  # The fastest of three calls counts, since the others may have waited for other processes
        started = time.process_time()
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        seconds.append(time.process_time() - started)
        printed = capsys.readouterr()
        assert (stop.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
        assert name in printed.err
    assert min(seconds) < 0.05


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--epsilon", v) for v in ("nan", "inf", "-inf", "0", "-1", "two", "", "1e999", "1" + "0" * 400)),
        *(("--delta", v) for v in ("nan", "inf", "0", "1", "2", "-1e-5", "small", "1e-400")),
        *(("--steps", v) for v in ("nan", "inf", "0", "-3", "2.5", "many", "1e30", "1" + "0" * 400)),
        *(("--n", v) for v in ("nan", "inf", "0", "-5", "10.5", "n", "63")),
        *(("--batch", v) for v in ("nan", "inf", "0", "-1", "64.5", "1025", "b")),
        *(("--sampling", v) for v in ("", "shuffle", "POISSON", "full")),
        *(("--relation", v) for v in ("", "swap", "add_remove")),
        *(("--format", v) for v in ("", "xml")),
        *(("--noise-multiplier", v) for v in ("nan", "inf", "0", "-1", "x", "1e999")),
    ],
)
def test_bad_values_name_the_flag(capsys, flag, value):
    words = without(MINI, flag, "--epsilon") if flag == "--noise-multiplier" else without(MINI, flag)
    refused(
        capsys, [*words, flag, value], "--batch" if (flag, value) in (("--n", "63"), ("--sampling", "full")) else flag
    )


ONE = ["--epsilon", "2", "--delta", "0.5", "--steps", "1", "--n", "1000", "--batch", "1", "--sampling", "poisson"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (TARGET[2:], "--epsilon"),
        (["--noise-multiplier", "3", *MINI], "--noise-multiplier"),
        ([*TARGET, "--batch", "64"], "--sampling"),
        ([*TARGET, "--sampling", "poisson"], "--batch"),
        (TARGET[:-2], "--n"),
        ([*TARGET, "--eps", "1"], "--eps"),
        ([*MINI, "--solve-for", "epsilon"], "--noise-multiplier"),
        ([*MINI, "--solve-for", "sigma"], "--solve-for"),
        ([*NOISE, "--solve-for", "n"], "--epsilon"),
        ([*NOISE, "--epsilon", "2", "--steps", "9", "--solve-for", "steps"], "--steps must not be given: it is the"),
        ([*NOISE, "--epsilon", "2", "--steps", "9"], "(--batch with a --sampling); got none left out"),
        ([*NOISE[:2], "--epsilon", "2", *NOISE[4:]], "got --delta, --steps left out"),
        ([*MINI, "--group", "1025"], "--group"),
        ([*TARGET[:6], "--noise-multiplier", "3", "--solve-for", "n"], "--batch"),
        (ONE, "--delta"),
    ],
)
def test_bad_combinations_name_the_flag(capsys, arguments, name):
    refused(capsys, arguments, name)


def test_as_a_program():
    command = [sys.executable, "-m", "dpzero_theory.privacy", *TARGET, "--batch", "64"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (run.returncode, run.stdout) == (2, "")
    assert "--sampling" in run.stderr


def test_groups_from_the_command_line(capsys):
    """With --group 3, for a user's three records, epsilon is at most six times that of one record, and the other
    answers of the command ask the same question."""
    given = [*without(NOISE, "--batch"), "--batch", "16"]
    found, one = (answer(capsys, [*given, "--group", size, "--steps", "100"]) for size in ("3", "1"))
    assert one["epsilon"] < found["epsilon"] < 6 * one["epsilon"]
    assert found["inputs"]["group"] == 3
    assert one["epsilon"] < found["bracket"]["lower"] > 0.998 * found["epsilon"]
    given += ["--group", "3"]
    steps = [*given, "--epsilon", repr(found["epsilon"]), "--solve-for", "steps"]
    assert 99 <= answer(capsys, steps)["steps"] <= 101


@pytest.mark.parametrize(
    ("n", "batch", "sampling", "group", "named"),
    [
        ("500", "256", "fixed-size", "300", "--group must be at most n - B = 244"),
        ("500", "25", "poisson", "2000", "--group must be an integer"),
        ("50000", "256", "fixed-size", "50", "--group must be small enough"),
    ],
)
def test_a_group_that_cannot_be_answered_is_refused_in_a_line(capsys, n, batch, sampling, group, named):
    words = ["--noise-multiplier", "0.75", "--delta", "1e-5", "--steps", "1000", "--relation", "add-remove"]
    with pytest.raises(SystemExit):
        main([*words, "--n", n, "--batch", batch, "--sampling", sampling, "--group", group])
    assert f"privacy: {named}" in capsys.readouterr().err


def test_risk_and_a_certificate_of_the_answer(tmp_path, capsys):
    """The certificate is of the history that was calibrated, and risk is larger where epsilon is."""
    pytest.importorskip("flint")
    from dpzero_theory.privacy.checker import main as checked

    target = tmp_path / "certificate.json"
    words = ["--delta", "1e-5", "--steps", "100", "--n", "1000", "--batch", "50", "--sampling", "poisson"]
    words += ["--relation", "add-remove", "--risk", "--certificate", str(target)]
    tight = answer(capsys, [*words, "--epsilon", "2"])
    certificate = json.loads(target.read_text())
    assert certificate["history"][0]["noise_multiplier"] == tight["noise_multiplier"]
    assert certificate["statement"]["epsilon"] == pytest.approx(2, rel=2e-3)
    assert checked([str(target)]) == 0
    capsys.readouterr()
    loose = answer(capsys, [*words, "--epsilon", "4"])
    for measure, found in tight["risk"].items():
        assert found["lower"] <= found["value"] == found["upper"] < loose["risk"][measure]["lower"]
    assert "advantage of the best attack = 0." in said(capsys, [*words, "--epsilon", "4"])


@pytest.mark.parametrize("flag", ["--risk", "--certificate"])
def test_risk_and_certificates_are_about_one_record(tmp_path, capsys, flag):
    words = ["--noise-multiplier", "2", "--delta", "1e-5", "--n", "1000", "--steps", "3", "--group", "2", flag]
    with pytest.raises(SystemExit, match="2"):
        main([*words, str(tmp_path / "x.json")] if flag == "--certificate" else words)
    assert f"{flag} must come without --group" in capsys.readouterr().err


def test_a_relation_that_was_not_given_is_said(capsys):
    words = ["--noise-multiplier", "2", "--delta", "1e-5", "--steps", "3", "--n", "1000"]
    assert "note: the relation is replace-one, the default, as --relation was not given" in said(capsys, words)
    assert "the default" not in said(capsys, [*words, "--relation", "replace-one"])


def test_epochs_are_steps(capsys):
    """Three passes of 1,000 records in batches of 64 are 46.9 steps, rounded up; 3.2 of them are 50 exactly."""
    rest = ["--noise-multiplier", "3", "--delta", "1e-5", "--n", "1000", "--batch", "64", "--sampling", "poisson"]
    for epochs, steps in (("3", 47), ("3.2", 50), ("0.001", 1)):
        found = answer(capsys, [*rest, "--epochs", epochs])
        assert found["inputs"]["steps"] == steps
        assert found["epsilon"] == answer(capsys, [*rest, "--steps", str(steps)])["epsilon"]


@pytest.mark.parametrize(
    ("more", "said_of"),
    [
        (["--epsilon", "2", "--delta", "1e-5"], []),
        (["--epsilon", "10", "--delta", "0.001"], []),
        (["--noise-multiplier", "0.3", "--delta", "1e-5"], ["epsilon"]),
        (["--epsilon", "10.5", "--delta", "0.0011"], ["epsilon 10.5", "delta 0.0011"]),
    ],
)
def test_a_guarantee_that_protects_hardly_anything_is_called_so(capsys, more, said_of):
    rest = ["--steps", "100", "--n", "1000", "--batch", "100", "--sampling", "poisson", "--relation", "add-remove"]
    notes = answer(capsys, [*rest, *more])["notes"]
    assert len(notes) == len(said_of)
    assert all(note.startswith(begin) for note, begin in zip(notes, said_of, strict=True))
