"""Tests of the privacy statement of a run, whose numbers are computed here in another way."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from dpzero_theory.optim.files.statement import _rounded, _rounded_outwards, statement
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.privacy.bracket import Bracket
from tests.optim.small import BUDGET, STEP, N, private
from tests.paper_oracle import gaussian_delta


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = private(tmp_path / "run", paid_at_once=3)
    for _ in range(4):
        run.step()
    run.close()
    return tmp_path / "run"


def test_it_names_all_that_a_claim_needs(folder: Path) -> None:
    found = statement(read(folder))
    assert {"relation", "sampling", "n", "record", "mechanism", "lattice", "noise", "software"} <= set(found.facts)
    assert found.facts["n"] == f"{N} records"
    assert found.facts["steps planned"] == str(STEP["steps"])
    assert found.facts["steps paid for"] == "6, 3 at a time"
    assert found.facts["steps made"] == "4 recorded"
    assert "torch" in found.facts["software"]
    text = found.text()
    assert all(len(line) <= 100 for line in text.splitlines()[1:])
    assert text.startswith("What was released is (")
    assert all(value.split()[0] in text for value in found.facts.values())
    assert "not rolled back" in " ".join(text.split())


def test_epsilon_is_bracketed_at_several_deltas(folder: Path) -> None:
    """With full batches the run is mu-GDP with mu = 2 sqrt(T)/noise multiplier, and a hair less for the noise on a
    lattice."""
    found, account = statement(read(folder)), read(folder).account
    assert list(found.costs) == [BUDGET["target_delta"], 1e-8, 1e-6, 1e-4]
    for delta, bracket in found.costs.items():
        mu = 2 * STEP["steps"] ** 0.5 / account.step.noise
        assert gaussian_delta(bracket.upper * (1 + 1e-6), mu) <= delta
        assert gaussian_delta(bracket.lower * (1 - 1e-6), mu) >= delta


def test_it_says_what_an_attack_gains_and_carries_a_certificate(folder: Path) -> None:
    """With full batches the advantage is 2 Phi(mu/2) - 1, and the checker confirms what the statement carries."""
    found, account = statement(read(folder)), read(folder).account
    mu = 2 * STEP["steps"] ** 0.5 / account.step.noise
    assert found.attack["advantage"] == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-6)
    assert f"true minus false positive rate at most {_rounded(found.attack['advantage'])}" in found.text()
    exact = norm.cdf(norm.ppf(0.01) + mu)
    assert exact <= found.attack["true_positive_rate"] <= exact * (1 + 1e-3)
    assert (
        f"true positive rate at most {_rounded(found.attack['true_positive_rate'])} at 1% false positives"
        in found.text()
    )
    certificate = found.certificate
    assert certificate is not None
    assert certificate["history"][0]["steps"] == STEP["steps"]
    claimed = found.costs[BUDGET["target_delta"]].upper
    assert claimed <= certificate["statement"]["epsilon"] <= claimed * 1.002
    pytest.importorskip("flint")
    from dpzero_theory.privacy.checker import confirm

    assert confirm(json.dumps(certificate))[0] == certificate["statement"]["epsilon"]


def test_what_is_shown_is_never_less() -> None:
    assert _rounded(2.300001) == "2.30001"
    assert _rounded(2.9999999) == "3"
    assert _rounded(0.0) == "0"
    assert _rounded_outwards(Bracket(1.23456789, 1.3, 1.3, "")) == "1.23456 to 1.3"
    assert _rounded_outwards(Bracket(1.2345671, 1.2345672, 1.2345672, "")) == "1.23457"


@pytest.mark.parametrize(
    ("changes", "relation", "sampling"),
    [
        ({}, "differ in the value of one record", "all records in every step"),
        (
            {"relation": "add-remove", "sampling": "poisson", "expected_batch": 10},
            "one record more or less; n is public",
            "independently with probability 0.25; batches are secret",
        ),
        (
            {"relation": "zero-out", "sampling": "fixed-size", "expected_batch": 10},
            "adds nothing in one of them",
            "10 records of n in each step, uniformly without replacement",
        ),
    ],
)
def test_relation_and_sampling_are_said_in_words(
    tmp_path: Path, changes: dict[str, Any], relation: str, sampling: str
) -> None:
    private(tmp_path / "run", steps=500, **changes).close()
    found = statement(read(tmp_path / "run")).facts
    assert relation in found["relation"]
    assert sampling in found["sampling"]
