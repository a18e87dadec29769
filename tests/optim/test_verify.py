import json
from pathlib import Path

import pytest
import torch

from dpzero_theory.optim.folder import LEDGER, TRANSCRIPT
from dpzero_theory.optim.transcript import Transcript
from dpzero_theory.optim.verify import main
from tests.optim.small import Logistic, private


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of five steps of eight, with its initial and final weights beside it."""
    module = Logistic()
    torch.save(dict(module.named_parameters()), tmp_path / "initial.pt")
    run = private(tmp_path / "run", module)
    for _ in range(5):
        run.step()
    torch.save(run.state_dict(), tmp_path / "final.pt")
    run.close()
    return tmp_path / "run"


def found(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, tuple[object, object]]]:
    status = main([str(folder), "--format", "json", *more])
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is (status == 0)
    return status, {line["name"]: (line["value"], line["holds"]) for line in report["findings"]}


def files(folder: Path) -> list[str]:
    return ["--initial", str(folder.parent / "initial.pt"), "--final", str(folder.parent / "final.pt")]


def test_the_claim_is_computed_again_and_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    status, lines = found(folder, capsys, *files(folder))
    assert status == 0
    assert lines["releases paid for"] == (5, True)
    assert lines["releases recorded"][0] == 5
    run = private(folder, resume=True)
    assert lines["epsilon spent"] == (run.get_epsilon(1e-5), True)
    assert lines["epsilon of the plan"] == (run.plan.epsilon(1e-5).upper, True)
    assert lines["initial weights"][1] is lines["final weights"][1] is True
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert found(folder, capsys)[0] == 0  # while it is open


def test_what_does_not_fit_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    initial, final = files(folder)[1], files(folder)[3]
    assert found(folder, capsys, "--initial", final)[1]["initial weights"][1] is False
    status, lines = found(folder, capsys, "--initial", initial, "--final", initial)
    assert (status, lines["final weights"][1]) == (1, False)
    whole = (folder / LEDGER).read_bytes()
    (folder / LEDGER).write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    status, lines = found(folder, capsys)
    assert status == 1
    assert "rolled back" in str(lines["files"][0])
    (folder / LEDGER).write_bytes(whole)
    content = bytearray((folder / TRANSCRIPT).read_bytes())
    content[-1] ^= 1
    (folder / TRANSCRIPT).write_bytes(content)
    assert main([str(folder)]) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out
    assert main([str(folder), "--format", "html"]) == 1
    assert "<td>DOES NOT HOLD</td>" in capsys.readouterr().out
    with pytest.raises(RuntimeError):
        Transcript.open(folder / TRANSCRIPT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "folder must be a folder that can be read; got"),
        ([".", "--final", __file__], "--final must come with --initial"),
        ([".", "--initial", __file__], "--initial and --final must be files of torch.save"),
    ],
)
def test_bad_command_lines(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(arguments)
    assert status.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
