"""Tests of the statement by section, for registries and reviewers."""

import json
from pathlib import Path

import pytest
from dpzero_theory.optim.files.deployment import deployment

from dpzero_theory.optim.files.statement import statement_of_folder
from dpzero_theory.optim.verify import main
from tests.optim.files.test_statement import folder

__all__ = ["folder"]


def test_every_fact_of_the_statement_is_in_one_section(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement = statement_of_folder(folder)
    found = deployment(statement)
    assert main([str(folder), "--format", "deployment"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found, allow_nan=False))
    text = json.dumps(found, ensure_ascii=False)
    for name, fact in statement.facts.items():
        assert json.dumps(fact, ensure_ascii=False)[1:-1] in text, name
    loss = found["privacy loss"]
    assert loss["epsilon"] == {"lower": statement.costs[0].paid.lower, "upper": statement.costs[0].paid.upper}
    assert [each["delta"] for each in loss["at other deltas"]] == [cost.delta for cost in statement.costs[1:]]
    assert found["accounting"]["certificate"] == statement.certificate
