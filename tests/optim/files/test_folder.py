"""Tests of a run's folder, with its ledger and transcript.

They start and resume runs, and test the cost of several runs together.
"""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory.optim.files.folder import KEY, LEDGER, TRANSCRIPT, Budget, Folder, epsilon_of_runs
from dpzero_theory.optim.files.new_folder import made_whole
from dpzero_theory.optim.files.transcript import Header, TranscriptError
from dpzero_theory.optim.losses.identity import of_records
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.gaussian import epsilon_from_gdp
from dpzero_theory.privacy.ledger import Ledger, LedgerError
from tests.optim.small import data, plan, private


def test_the_ledger_names_its_mechanism_and_refuses_another(tmp_path: Path) -> None:
    run = private(tmp_path, noise="laplace")
    run.step()
    run.close()
    with Ledger.open(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.settings == run.plan.settings
        assert ledger.settings.mechanism == "laplace"
        with pytest.raises(LedgerError, match="mechanism is 'discrete-gaussian', but 'laplace' was planned"):
            ledger.spend(replace(run.plan, noise="gaussian").settings)
    with pytest.raises(ValueError, match="noise must be that of the run that is resumed, 'laplace'; got 'gaussian'"):
        private(tmp_path, resume=True)
    private(tmp_path, noise="laplace", resume=True).step()


def test_one_writer_at_a_time_and_no_second_start(tmp_path: Path) -> None:
    run = private(tmp_path)
    with pytest.raises(TranscriptError, match="another process"):
        private(tmp_path, resume=True)
    run.close()
    with pytest.raises(FileExistsError):
        private(tmp_path)


def test_a_search_costs_what_its_runs_cost_together(tmp_path: Path) -> None:
    for name in "ab":
        run = private(tmp_path / name)
        run.run()
        run.close()
    together = epsilon_of_runs([tmp_path / "a", tmp_path / "b"], 1e-5, planned=True)
    assert together == pytest.approx(epsilon_of_history([*run.history, *run.history], 1e-5).upper)
    assert 3.0 < together < 6.0


RUNS: dict[str, dict[str, Any]] = {
    "gaussian": {}, "laplace": {"noise": "laplace"}, "vectors": {"algorithm": "dpgd-0th"},
    "several": {"directions_per_step": 4},
}  # fmt: skip


def test_runs_of_different_mechanisms_cost_the_sum_of_their_histories(tmp_path: Path) -> None:
    """Runs with different mechanisms cost together the sum of their histories.

    Gaussian runs together are one release, of the root of the summed squares; a Laplace run adds less than its own
    epsilon.
    """
    square, pure, history = 0.0, 0.0, []
    for name, changes in RUNS.items():
        run = private(tmp_path / name, stopping="fixed", **changes)
        for _ in range(4):
            run.step()
        run.close()
        (release,) = run.history
        history.append(release)
        if name == "laplace":
            pure = 4 * 2 / release.noise_multiplier
        else:
            square += 4 * (2 / release.noise_multiplier) ** 2
    together = epsilon_of_runs([tmp_path / name for name in RUNS], 1e-5, planned=True)
    gaussian = float(epsilon_from_gdp(math.sqrt(square), 1e-5))
    assert together == epsilon_of_history(history, 1e-5).upper
    assert gaussian < together < gaussian + pure
    assert epsilon_of_runs([tmp_path / "laplace"], 0.0, planned=True) == pytest.approx(pure, rel=1e-9)
    assert epsilon_of_runs([], 1e-5, planned=True) == 0
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_runs([tmp_path / "gaussian"], 0.0, planned=True)


def test_runs_of_two_relations_have_no_common_cost_and_one_that_goes_on_is_read(tmp_path: Path) -> None:
    first, second = private(tmp_path / "a"), private(tmp_path / "b", relation="add-remove")
    first.step()
    second.step()
    assert epsilon_of_runs([tmp_path / "a"], 1e-5, planned=True) == first.get_epsilon(1e-5)
    with pytest.raises(ValueError, match="history must have one relation"):
        epsilon_of_runs([tmp_path / "a", tmp_path / "b"], 1e-5, planned=True)


HEADER = Header(plan(), "07" * 16, "00" * 32, "nearest")
BUDGET = Budget(3.0, 1e-5, 1)


def close(files: Folder) -> None:
    files.transcript.close()
    if files.ledger is not None:
        files.ledger.close()


def test_a_folder_is_started_once_and_resumed_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    files = Folder.create(path, HEADER, data(), BUDGET)
    assert sorted(file.name for file in path.iterdir()) == [KEY, LEDGER, TRANSCRIPT]
    assert path.joinpath(KEY).stat().st_mode & 0o077 == 0
    assert list(path.parent.iterdir()) == [path]
    close(files)
    with pytest.raises(FileExistsError, match="resume the run in it, or use another folder"):
        Folder.create(path, HEADER, data(), BUDGET)
    with pytest.raises(FileNotFoundError, match="holds no run: start one"):
        Folder.open(tmp_path / "none", HEADER, data(), BUDGET)
    again = Folder.open(path, HEADER, data(), BUDGET)
    assert again.header.software.startswith("dpzero_theory ")
    assert replace(again.header, records="", software="") == HEADER
    assert again.header.records == of_records(data(), (path / KEY).read_bytes())
    assert again.ledger is not None
    assert again.ledger.run == again.header.digest
    assert again.ledger.settings == HEADER.plan.settings
    assert again.ledger.releases_left == HEADER.plan.steps


def test_another_plan_or_precision_is_refused_and_the_files_are_let_go(tmp_path: Path) -> None:
    header = replace(HEADER, private=False)
    files = Folder.create(tmp_path / "run", header, data(), None)
    assert files.ledger is None
    close(files)
    for other, name in (
        (replace(header, plan=plan(clip=2.0)), "clip must be that of the run that is resumed"),
        (replace(header, precision="master"), "precision must be one of nearest"),
        (replace(header, key="08" * 16), "seed must be as in the run"),
    ):
        with pytest.raises(ValueError, match=name):
            Folder.open(tmp_path / "run", other, data(), None)
    close(Folder.open(tmp_path / "run", header, data(), None))


def test_a_plan_beyond_its_budget_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="the plan costs epsilon"):
        Folder.create(tmp_path / "run", HEADER, data(), BUDGET._replace(epsilon=2.9))
    assert list(tmp_path.iterdir()) == []


def test_every_file_of_a_folder_made_whole_is_on_disk_before_the_folder_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a folder appears under its final name, every file in it is already on disk.

    That holds for files of any writer: in a Trainer's checkpoint torch and transformers write some, which they do not
    sync.
    """
    synced: list[tuple[int, bool]] = []
    fsync, place = os.fsync, tmp_path / "new"

    def noted(file: Any) -> None:
        synced.append((os.fstat(file if isinstance(file, int) else file.fileno()).st_ino, place.exists()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    with made_whole(place) as folder:
        (folder / "in").mkdir()
        for name in ("a", "in/b"):
            (folder / name).write_text(name)
    assert {((place / name).stat().st_ino, False) for name in ("a", "in/b")} <= set(synced)
    assert synced[-1] == (tmp_path.stat().st_ino, True)
