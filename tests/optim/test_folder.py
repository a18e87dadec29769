"""The folder of a run: its ledger and its transcript, started and resumed; what several cost together."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpzero_theory.optim.folder import epsilon_of_runs
from dpzero_theory.optim.transcript import TranscriptError
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import Ledger, LedgerError
from tests.optim.small import private


def test_the_ledger_names_its_mechanism_and_refuses_another(tmp_path: Path) -> None:
    run = private(tmp_path, noise="laplace")
    run.step()
    run.close()
    with Ledger.open(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.settings == run.plan.settings()
        assert ledger.settings.mechanism == "laplace"
        with pytest.raises(LedgerError, match="mechanism is 'discrete-gaussian', but 'laplace' was planned"):
            ledger.spend(replace(run.plan, noise="gaussian").settings())
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
