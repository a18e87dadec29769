"""A run that is stopped early claims what its plan costs, in every place that states an epsilon."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.verify import main
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
        "statement": found.costs[DELTA].upper,
        "verify": findings["epsilon of the plan"],
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
    assert sum(release.steps for release in found.history) == STEP["steps"]


def test_a_run_that_has_paid_for_nothing_claims_nothing(tmp_path: Path) -> None:
    assert private(tmp_path).get_epsilon(DELTA) == 0
