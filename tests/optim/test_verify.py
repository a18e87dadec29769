import hashlib
import html
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import RUN, Checkpoint, read
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.verify import _CANNOT_TELL, main
from dpzero_theory.privacy import ledger
from dpzero_theory.privacy.noise import SystemNoise
from tests.optim.small import BUDGET, POISSON, Logistic, data, losses, plan, private


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run that has made five of eight steps, with its initial and final weights beside it."""
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
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["holds"] is (status == 0)
    assert said.err.count("\n") == status
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
    assert lines["epsilon of the plan"] == (run.plan.epsilon(1e-5).upper, True)
    assert lines["initial weights"][1] is lines["final weights"][1] is True
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert found(folder, capsys)[0] == 0  # A folder can be verified while its run is open


def test_what_does_not_fit_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    initial, final = files(folder)[1], files(folder)[3]
    assert found(folder, capsys, "--initial", final)[1]["initial weights"][1] is False
    status, lines = found(folder, capsys, "--initial", initial, "--final", initial)
    assert (status, lines["final weights"][1]) == (1, False)
    with closing(sqlite3.connect(folder / RUN)) as db, db:
        db.execute("UPDATE log SET sums = zeroblob(8) WHERE release = 2 AND sums IS NOT NULL")
    assert main([str(folder)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "DOES NOT HOLD: files: " in said.err
    assert "release 2 does not match its hash): put the file back" in said.err
    assert said.err.count("\n") == 1
    assert main([str(folder), "--format", "html"]) == 1
    assert '<span class="bad">DOES NOT HOLD</span>' in capsys.readouterr().out


def test_the_page_has_the_claim_the_checks_and_the_statement(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "--format", "html"]) == 0
    words = html.unescape(capsys.readouterr().out)
    claimed = statement(read(folder))
    assert all(text in words for text in (claimed.claim, *claimed.facts.values(), *claimed.assumed, *_CANNOT_TELL))
    assert words.count('<td class="mark">holds</td>') == 5
    assert not re.search(r"(src|href)=.?(http|//)", words)  # the page loads nothing from the network


def test_a_checkpoint_is_compared_with_the_run_up_to_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = private(folder, resume=True)
    for _ in range(2):
        again.step()
    again.close()
    initial, final = files(folder)[1], files(folder)[3]  # These files have the weights after 5 steps of 7
    status, lines = found(folder, capsys, *files(folder))
    assert (status, lines["final weights"]) == (0, ("those of the replay of the first 5 steps, bit for bit", True))
    state = torch.load(final, weights_only=True)
    torch.save(Checkpoint.of(state).weights, final)
    assert found(folder, capsys, "--initial", initial, "--final", final)[0] == 1
    torch.save({**state, "run.key": torch.zeros(16, dtype=torch.uint8)}, final)
    status, lines = found(folder, capsys, "--initial", initial, "--final", final)
    assert (status, lines["final weights"][0]) == (1, "a checkpoint of another run")


@pytest.mark.parametrize(
    "changes",
    [
        {"directions_per_step": 3, "direction": "gaussian", "paid_at_once": 4},
        {"noise": "laplace", "target_delta": 0.0},
        {**POISSON, "steps": 100},
    ],
)
def test_every_kind_of_run_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    module = Logistic()
    torch.save(dict(module.named_parameters()), tmp_path / "initial.pt")
    run = private(tmp_path / "run", module, **changes)
    for _ in range(3):
        run.step()
    torch.save(run.state_dict(), tmp_path / "final.pt")
    run.close()
    assert main([str(tmp_path / "run"), *files(tmp_path / "run")[:2], "--full"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("initial weights ") and line.endswith("holds") for line in lines)
    assert any(line.startswith("steps made            3 ") for line in lines)
    assert any(line.startswith(f"steps paid for        {changes.get('paid_at_once', 3)}, ") for line in lines)
    epsilon = run.get_epsilon(changes.get("target_delta", BUDGET["target_delta"]))
    assert any(line.split() == ["epsilon", "of", "the", "plan", str(epsilon), "holds"] for line in lines)
    assert main([str(tmp_path / "run"), *files(tmp_path / "run")]) == 0


def test_the_report_is_ten_lines_unless_all_of_it_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), *files(folder)]) == 0
    brief = capsys.readouterr().out.splitlines()
    assert len(brief) <= 10
    assert brief[0].startswith("What was released is (")
    assert any(line.startswith("holds ") and "final weights" in " ".join(brief) for line in brief)
    assert main([str(folder), "--full"]) == 0
    assert "what this cannot tell" in capsys.readouterr().out.splitlines()


def test_a_run_from_a_seed_is_not_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_from_seed_not_private(Logistic(), losses, data(), plan(), seed=1, folder=tmp_path / "run").close()
    status, lines = found(tmp_path / "run", capsys)
    assert (status, list(lines)) == (1, ["private"])


def test_the_trainers_output_folder_is_taken_for_the_folder_in_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.rename(folder.parent / "_dpzero")
    assert found(folder.parent, capsys)[0] == 0


Sums = np.ndarray[Any, Any]
MADE = 200


def forged(folder: Path, header: dict[str, Any], settings: dict[str, Any], sums: Sums) -> None:
    """Write a run's file again with other values, and with hashes that fit.

    header: changes of what the run was begun with, those of its plan under "plan". settings: changes of those that are
    paid for. sums: the released numbers, shape (steps, K).
    """
    plan = read(folder)[0].plan
    with closing(sqlite3.connect(folder / RUN)) as db, db:
        begun = json.loads(db.execute("SELECT begun FROM header").fetchone()[0])
        run = json.loads(begun["run"])
        run |= {**header, "plan": run["plan"] | header.get("plan", {})}
        text = json.dumps({**begun, "run": json.dumps(run), "step": begun["step"] | settings})
        last = hashlib.sha256(text.encode()).digest()
        db.execute("UPDATE header SET begun = ?, hash = ?", (text, last.hex()))
        for number, row in enumerate(sums.tolist()):
            for kind, kept in (("", None), ("NOT", plan.row.pack(*row))):
                last = ledger._chained(last, number, number + 1, kept)
                change = f"UPDATE log SET sums = ?, chain = ? WHERE release = ? AND sums IS {kind} NULL"
                db.execute(change, (kept, last, number))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = private(tmp_path_factory.mktemp("made") / "run", steps=MADE, paid_at_once=1)
    run.run()
    run.close()
    return tmp_path_factory.getbasetemp() / "made0" / "run"


def of_step(settings: dict[str, Any], **step: Any) -> tuple[Any, ...]:
    """Returns a forgery: other settings that are paid for, and a plan whose step says something else."""
    return {"plan": step}, settings, lambda z: z


COARSE = {"mechanism": "discrete-gaussian:1000"}


FORGED: dict[str, tuple[tuple[Any, ...], str]] = {
    "other levels": (
        of_step(COARSE),
        "releases of discrete-gaussian:1000. is not what the plan",
    ),
    "another isolation": (({"isolation": "exact\nnoise  7  holds"}, {}, lambda z: z), r"isolation: exact\\nnoise"),
    "less noise": (of_step({}, noise_multiplier=1.0), "is not what the plan releases"),
    "more steps": (({"plan": {"steps": 10 * MADE}}, {}, lambda z: z), "is not what the plan releases"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_can_be_told_is(name: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every hash of the files is right, so that only what they say can be wrong."""
    (tmp_path / RUN).write_bytes((made / RUN).read_bytes())
    (header, settings, change), message = FORGED[name]
    noise = SystemNoise().discrete_gaussian(read(made)[0].plan.scale, (MADE, 1))
    forged(tmp_path, header, settings, change(np.asarray(noise)))
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.count("\n") == 1
