"""Ledgers whose steps are chosen as one goes: closed forms, files that are opened again, torn, forged or refused."""

import math
import sqlite3
from contextlib import closing
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


def test_steps_of_other_noise_are_paid_until_the_budget_has_no_room(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with make(path) as ledger:
        assert ledger.spend(FULL) == range(1)
        for noise in (30.0, 30.0, 25.0):
            ledger.spend(FULL.changed(noise_multiplier=noise, clip=2.0))
    order = read(path).order
    spent = sum(order * (order + 1) / (2 * s**2) for s in (20.0, 30.0, 30.0, 25.0))
    assert [first for first, _ in read(path).changes] == [1, 3]
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
        before = read(path)
        with pytest.raises(BudgetSpentError, match="no room for 1 more releases with noise multiplier 15"):
            ledger.spend(FULL.changed(noise_multiplier=15.0))
        assert read(path) == before
        report = ledger.report()
        assert (report.releases_spent, report.epsilon_planned) == (4 + left, EPSILON)
        assert 0.9 * EPSILON < report.epsilon_spent < 1.2 * EPSILON
        ledger.spend(FULL.changed(noise_multiplier=1000.0))
    assert read(path).spent == 5 + left


def test_what_stays_fixed_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with make(path) as ledger:
        before = read(path)
        for name, value in (("n", 999), ("relation", "replace-one")):
            with pytest.raises(LedgerError, match=rf"{name} is .*{value}"):
                ledger.spend(FULL.changed(**{name: value}))
        with pytest.raises(ValueError, match=r"^history must have batches that are drawn anew"):
            ledger.spend(FULL.changed(sampling="cyclic-poisson:4", sample_rate=0.125))
        assert read(path) == before
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


def edited(path: Path, statement: str) -> None:
    """Edit a ledger by a statement of SQL, and write all of its hashes again."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)
        (text,) = db.execute("SELECT value FROM header WHERE name = 'begun'").fetchone()
        settings = db.execute("SELECT first, words FROM settings ORDER BY first").fetchall()
        paid = chain = ledger_module._digest(text, settings[:1])
        db.execute("UPDATE header SET value = ? WHERE name = 'check'", (paid.hex(),))
        for number, old in db.execute("SELECT number, paid FROM releases ORDER BY number").fetchall():
            words = [words for first, words in settings if first <= number][-1]
            paid = ledger_module._paid(old[:8], paid, chain, number, 1, words)
            db.execute("UPDATE releases SET paid = ? WHERE number = ?", (paid, number))


def test_a_file_that_spends_more_than_its_budget_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with make(path) as ledger:
        for noise in (20.0, 4.0):
            ledger.spend(FULL.changed(noise_multiplier=noise))
    edited(path, "UPDATE header SET value = replace(value, '2.0', '1.9') WHERE name = 'begun'")
    assert read(path).spent == 2
    edited(path, "UPDATE header SET value = replace(value, '1.9', '1.0') WHERE name = 'begun'")
    for refused in (lambda: read(path), lambda: Ledger.open(path)):
        with pytest.raises(LedgerError, match="cost more than its budget"):
            refused()


def test_settings_that_stay_fixed_are_refused_in_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with make(path) as ledger:
        ledger.spend(FULL.changed(noise_multiplier=30.0))
    edited(path, "INSERT INTO settings SELECT 1, replace(words, '1000', '7') FROM settings WHERE first = -1")
    with pytest.raises(LedgerError, match=r"n must be 1000, that of the plan; got 7"):
        read(path)
