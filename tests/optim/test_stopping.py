"""A run that is stopped early claims what its plan costs, in every place that states an epsilon."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.verify import main
from dpzero_theory.privacy.accountant import epsilon_of_history
from tests.optim.small import BUDGET, STEP, plan, private

DELTA = BUDGET["target_delta"]


class SeenEnoughError(Exception):
    pass


def stopped(folder: Path, **changes: Any) -> float:
    """Makes a run that a callback stops after three steps, because of what they released; returns what it claims."""
    run = private(folder, **changes)
    told = []

    def look(record: object) -> None:
        told.append(record)
        if len(told) == 3:
            raise SeenEnoughError

    with pytest.raises(SeenEnoughError):
        run.run(look)
    claimed = run.get_epsilon(DELTA)
    assert sum(release.steps for release in run.history) == 3
    run.close()
    return claimed


def stated(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Returns the epsilon of each place that states one for the run in the folder."""
    found = statement(read(folder))
    assert main([str(folder), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    findings = {line["name"]: line["value"] for line in told["findings"]}
    assert found.certificate is not None
    return {
        "statement": found.costs[0].paid.upper,
        "verify": findings["epsilon spent"],
        "json": told["epsilon"][0]["paid"]["upper"],
        "certificate": found.certificate["statement"]["epsilon"],
    }


def test_a_run_that_is_stopped_claims_its_plan_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claimed = stopped(tmp_path)
    assert claimed == plan().epsilon(DELTA).upper
    for place, epsilon in stated(tmp_path, capsys).items():
        assert claimed <= epsilon <= claimed * 1.002, place
    found = statement(read(tmp_path))
    assert f"({claimed:.6g}" in found.claim or "(3, " in found.claim
    assert "epsilon of the whole plan is claimed" in found.facts["stopping"]
    assert sum(release.steps for release in found.history) == STEP["steps"]


def test_a_fixed_number_of_steps_claims_those_that_were_paid(tmp_path: Path) -> None:
    claimed = stopped(tmp_path, stopping="fixed")
    assert claimed == epsilon_of_history(plan().step * 3, DELTA).upper < plan().epsilon(DELTA).upper
    found = statement(read(tmp_path))
    assert found.costs[0].paid.upper == claimed
    assert "without looking" in found.facts["stopping"]
    with pytest.raises(ValueError, match="stopping must be that of the run that is resumed, 'fixed'; got 'any'"):
        private(tmp_path, resume=True)  # afterwards it is too late to say


def test_words_are_checked_and_kept() -> None:
    with pytest.raises(ValueError, match=r"stopping must be .*any.*fixed.*; got 'early'"):
        plan(stopping="early")
    fixed = plan(stopping="fixed")
    assert Plan.from_words(fixed.words) == fixed
