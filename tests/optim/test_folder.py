"""The folder of a run: its ledger and its transcript, started and resumed; what several cost together."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory.optim.folder import LEDGER, TRANSCRIPT, Budget, epsilon_of_runs, resumed, started
from dpzero_theory.optim.transcript import Header, TranscriptError
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.gaussian import epsilon_from_gdp
from dpzero_theory.privacy.ledger import Ledger, LedgerError
from tests.optim.small import plan, private


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
    together = epsilon_of_runs([tmp_path / "a", tmp_path / "b"], 1e-5)
    assert together == pytest.approx(epsilon_of_history([*run.history, *run.history], 1e-5).upper)
    assert 3.0 < together < 6.0


RUNS: dict[str, dict[str, Any]] = {
    "gaussian": {}, "laplace": {"noise": "laplace"}, "vectors": {"algorithm": "dpgd-0th"},
    "several": {"directions_per_step": 4},
}  # fmt: skip


def test_runs_of_different_mechanisms_cost_the_sum_of_their_histories(tmp_path: Path) -> None:
    """Three Gaussian runs are one Gaussian release of the root of the summed squares; the Laplace epsilon adds."""
    square = pure = 0.0
    for name, changes in RUNS.items():
        run = private(tmp_path / name, **changes)
        for _ in range(4):
            run.step()
        run.close()
        (release,) = run.history
        if name == "laplace":
            pure = 4 * 2 / release.noise_multiplier
        else:
            square += 4 * (2 / release.noise_multiplier) ** 2
    together = epsilon_of_runs([tmp_path / name for name in RUNS], 1e-5)
    gaussian = float(epsilon_from_gdp(math.sqrt(square), 1e-5))
    assert together == pytest.approx(gaussian + pure, rel=1e-9)
    assert epsilon_of_runs([tmp_path / "laplace"], 0.0) == pytest.approx(pure, rel=1e-9)
    assert epsilon_of_runs([], 1e-5) == 0
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_runs([tmp_path / "gaussian"], 0.0)


def test_runs_of_two_relations_or_that_are_open_have_no_common_cost(tmp_path: Path) -> None:
    first, second = private(tmp_path / "a"), private(tmp_path / "b", relation="add-remove")
    first.step()
    second.step()
    with pytest.raises(LedgerError, match="another process has this file open"):
        epsilon_of_runs([tmp_path / "a"], 1e-5)
    first.close()
    second.close()
    with pytest.raises(ValueError, match="history must have one relation"):
        epsilon_of_runs([tmp_path / "a", tmp_path / "b"], 1e-5)


HEADER = Header(plan(), "07" * 16, "", "nearest")


def test_a_folder_is_started_once_and_resumed_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    files = started(folder, HEADER, Budget(3.0, 1e-5))
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, TRANSCRIPT]
    assert files.ledger is not None
    assert files.transcript is not None
    files.ledger.close()
    files.transcript.close()
    for name in (LEDGER, TRANSCRIPT):
        with pytest.raises(FileExistsError, match="resume that run, or use another folder"):
            started(folder, HEADER, Budget(3.0, 1e-5))
        (folder / name).rename(tmp_path / name)
        with pytest.raises(FileExistsError if name == LEDGER else FileNotFoundError):
            (started if name == LEDGER else resumed)(folder, HEADER, Budget(3.0, 1e-5))
        (tmp_path / name).rename(folder / name)
    again = resumed(folder, HEADER, Budget(3.0, 1e-5))
    assert again.header == HEADER
    assert again.ledger is not None
    assert again.ledger.settings == HEADER.plan.settings
    assert again.ledger.releases_left == HEADER.plan.steps


def test_another_plan_or_precision_is_refused_and_the_files_are_let_go(tmp_path: Path) -> None:
    files = started(tmp_path, HEADER, None)
    assert files.ledger is None
    assert files.transcript is not None
    files.transcript.close()
    for other, name in (
        (replace(HEADER, plan=plan(clip=2.0)), "clip must be that of the run that is resumed"),
        (replace(HEADER, precision="master"), "precision must be one of nearest"),
    ):
        with pytest.raises(ValueError, match=name):
            resumed(tmp_path, other, None)
    found = resumed(tmp_path, HEADER, None).transcript
    assert found is not None
    found.close()


def test_a_plan_beyond_its_budget_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="the plan costs epsilon"):
        started(tmp_path / "run", HEADER, Budget(2.9, 1e-5))
    assert list((tmp_path / "run").iterdir()) == []
