"""Ledgers whose steps are chosen as one goes: closed forms, files that are opened again, torn, forged or refused."""

import json
import math
from pathlib import Path

import pytest

from dpzero_theory import epsilon
from dpzero_theory.privacy import ledger as ledger_module
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger, LedgerError, PlanCostsMoreError, Settings, read

FULL = Settings(n=1000, sample_rate=1.0, noise_multiplier=20.0, clip=1.5, relation="add-remove", sampling="full")
EPSILON, DELTA = 2.0, 1e-5


def make(path: Path, block: int = 1, steps: int = 1000) -> Ledger:
    return Ledger.create(
        path, target_epsilon=EPSILON, target_delta=DELTA, settings=FULL, steps=steps, block=block, adaptive=True
    )


def room(order: float, spent: float, noise: float) -> int:
    """The steps of full batches that fit: each costs t (t + 1)/(2 s^2), of t epsilon + log delta - log c(t) in all."""
    t = order
    limit = t * EPSILON + math.log(DELTA) - (t * math.log(t) - (1 + t) * math.log1p(t))
    return math.floor((limit - spent) / (t * (t + 1) / (2 * noise**2)))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_steps_of_other_noise_are_paid_until_the_budget_has_no_room(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with make(path) as ledger:
        assert ledger.spend(FULL) == range(1)
        for noise in (30.0, 30.0, 25.0):
            ledger.spend(FULL.changed(noise_multiplier=noise, clip=2.0))
    order = float(str(lines(path)[1]["order"]))
    spent = sum(order * (order + 1) / (2 * s**2) for s in (20.0, 30.0, 30.0, 25.0))
    assert [line["kind"] for line in lines(path)[2:]] == ["spend", "step", "spend", "spend", "step", "spend"]
    with Ledger.open(path) as ledger:
        assert [(part.steps, part.noise_multiplier) for part in ledger.history] == [(1, 20.0), (2, 30.0), (1, 25.0)]
        assert read(path).history == ledger.history
        for refused in (ledger.history, read(path).history, [ledger.history]):
            with pytest.raises(ValueError, match=r"^history must be planned, .* got that of an adaptive .*\bFilter\b"):
                epsilon(refused, DELTA)
        left = room(order, spent, 15.0)
        assert 10 < left < 100
        for _ in range(left):
            ledger.spend(FULL.changed(noise_multiplier=15.0))
        before = path.read_bytes()
        with pytest.raises(BudgetSpentError, match="no room for 1 more releases with noise multiplier 15"):
            ledger.spend(FULL.changed(noise_multiplier=15.0))
        assert path.read_bytes() == before
        report = ledger.report()
        assert (report.releases_spent, report.epsilon_planned) == (4 + left, EPSILON)
        assert 0.9 * EPSILON < report.epsilon_spent < 1.2 * EPSILON
        ledger.spend(FULL.changed(noise_multiplier=1000.0))
    assert read(path).spent == 5 + left


def test_what_stays_fixed_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with make(path) as ledger:
        before = path.read_bytes()
        for name, value in (("n", 999), ("relation", "replace-one")):
            with pytest.raises(LedgerError, match=rf"{name} is .*{value}"):
                ledger.spend(FULL.changed(**{name: value}))
        with pytest.raises(ValueError, match=r"^history must have batches that are drawn anew"):
            ledger.spend(FULL.changed(sampling="cyclic-poisson:4", sample_rate=0.125))
        assert path.read_bytes() == before
    with pytest.raises(PlanCostsMoreError, match="must have room for one release; got 2"):
        Ledger.create(
            tmp_path / "other.jsonl",
            target_epsilon=EPSILON,
            target_delta=DELTA,
            settings=FULL.changed(noise_multiplier=1.0),
            steps=1,
            adaptive=True,
        )
    assert not (tmp_path / "other.jsonl").exists()


@pytest.mark.parametrize("kind", ["spend", "step"])
def test_a_torn_line_counts_if_it_can_have_paid(tmp_path: Path, kind: str) -> None:
    """A line that pays is begun only if there is room; where there is none, the torn line named other settings."""
    path = tmp_path / "ledger.jsonl"
    with make(path, block=8) as ledger:
        left = room(float(str(lines(path)[1]["order"])), 0.0, 20.0) // 8
        for _ in range(left if kind == "step" else left - 1):
            ledger.spend(FULL)
        ledger.spend(FULL.changed(noise_multiplier=5000.0)) if kind == "step" else ledger.spend(FULL)
    text = path.read_bytes().splitlines(keepends=True)
    assert json.loads(text[-2])["kind"] == kind
    torn = [*text[:-2], text[-2][:-9]] if kind == "step" else [*text[:-1], text[-1][:-9]]
    path.write_bytes(b"".join(torn))
    counted = read(path)
    with Ledger.open(path) as ledger:
        assert sum(part.steps for part in ledger.history) == counted.spent == 8 * left
        assert lines(path)[-1] | {"check": ""} == {
            "kind": "torn",
            "release": 8 * (left - (kind == "spend")),
            "count": 8 * (kind == "spend"),
            "bytes": len(torn[-1]),
            "check": "",
        }
        ledger.spend(FULL.changed(noise_multiplier=5000.0))


def rewritten(path: Path, change: dict[str, object], number: int) -> None:
    """Write the ledger again with the entries of one line changed and with checks that fit."""
    check, text = "0" * 64, b""
    for at, line in enumerate(lines(path)):
        record = {name: value for name, value in line.items() if name != "check"} | (change if at == number else {})
        encoded, check = ledger_module._encode(record, check)
        text += encoded
    path.write_bytes(text)


def test_a_file_that_spends_more_than_its_budget_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with make(path) as ledger:
        for noise in (20.0, 4.0):
            ledger.spend(FULL.changed(noise_multiplier=noise))
    rewritten(path, {"target_epsilon": 1.9}, 0)
    assert read(path).spent == 2
    rewritten(path, {"target_epsilon": 1.0}, 0)
    for refused in (lambda: read(path), lambda: Ledger.open(path)):
        with pytest.raises(LedgerError, match="cost more than its budget"):
            refused()


def test_a_plan_takes_no_lines_of_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with make(path) as ledger:
        ledger.spend(FULL.changed(noise_multiplier=30.0))
    other = {**FULL.changed(noise_multiplier=30.0).words, "n": 7}
    rewritten(path, {"settings": other}, 2)
    with pytest.raises(LedgerError, match=r"line 3: not what a ledger says \(n must be 1000, that of the plan; got 7"):
        read(path)
    plan = tmp_path / "plan.jsonl"
    Ledger.create(plan, target_epsilon=9.0, target_delta=DELTA, settings=FULL, steps=5).close()
    text = plan.read_bytes()
    record = {"kind": "step", "settings": FULL.words}
    plan.write_bytes(text + ledger_module._encode(record, str(lines(plan)[-1]["check"]))[0])
    with pytest.raises(LedgerError, match="kind must be one of spend, torn, moved"):
        read(plan)
