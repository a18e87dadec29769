"""The budget on disk: payments before releases, and files that are damaged, copied or killed."""

import math
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpzero_theory.privacy import ledger as ledger_module
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger, LedgerError
from dpzero_theory.privacy.sampling import FullBatch, Poisson
from dpzero_theory.privacy.step import Step

STEP = Step(50.0, FullBatch(), "replace-one")


def make(path: Path, step: Step = STEP, target: float = 10.0, **more: Any) -> Ledger:
    return Ledger.create(path, **({"target_epsilon": target, "target_delta": 1e-6, "step": step, "steps": 5} | more))


def spent(path: Path) -> int:
    with Ledger.open(path) as ledger:
        return sum(group.steps for group in ledger.history)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


def test_releases_are_numbered_and_the_one_after_the_last_is_refused(path: Path) -> None:
    with make(path) as ledger:
        assert [ledger.spend()[0] for _ in range(3)] == [0, 1, 2]
        assert ledger.releases_left == 2
    with Ledger.open(path) as ledger:
        assert [ledger.spend()[0] for _ in range(2)] == [3, 4]
        before = path.read_bytes()
        for _ in range(2):
            with pytest.raises(BudgetSpentError, match="all 5 releases of the plan are spent"):
                ledger.spend()
        assert path.read_bytes() == before
    with Ledger.open(path) as ledger, pytest.raises(BudgetSpentError):
        ledger.spend()


def test_blocks_are_spent_whole_and_the_last_is_cut(path: Path) -> None:
    with make(path, steps=7, block=3) as ledger:
        assert [ledger.spend() for _ in range(3)] == [range(3), range(3, 6), range(6, 7)]
        with pytest.raises(BudgetSpentError):
            ledger.spend()
    assert spent(path) == 7


def test_one_writer_at_a_time_and_no_child_of_a_fork(path: Path) -> None:
    ledger = make(path)
    with pytest.raises(LedgerError, match="another process has this file open"):
        Ledger.open(path)
    child = os.fork()
    if child == 0:
        try:
            ledger.spend()
        except LedgerError as error:
            os._exit(17 if "before a fork" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    ledger.spend()
    for number in (1, 2):
        ledger.spend()
        assert Ledger.read(path).spent == number + 1  # read while another goes on
    with pytest.raises(LedgerError, match="release 4 is not paid for"):
        ledger.record(4, b"")
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.spend()
    assert spent(path) == 3
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        make(path)
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        Ledger.open(path.with_name("none"))


def test_the_payment_is_on_disk_before_the_release(path: Path) -> None:
    """Payments are written with synchronous=FULL; only records of a block that is not over may wait."""
    with make(path, block=2) as ledger:
        said: list[str] = []
        ledger._db.set_trace_callback(said.append)
        first = ledger.spend()
        ledger.record(first[0], b"a", durable=False)
        ledger.record(first[1], b"b")
        ledger.spend()
        ledger._db.set_trace_callback(None)
    level, writes = "FULL", []
    for each in said:
        level = each.partition("=")[2] if each.startswith("PRAGMA synchronous") else level
        writes += [level] if each.startswith("INSERT") else []
    assert writes == ["FULL", "NORMAL", "FULL", "FULL"]
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)  # one plain file, once it is closed


def edited(statement: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db, db:
            assert db.execute(statement).rowcount > 0

    return edit


def cut(size: float) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * size)])


def overwritten(path: Path) -> None:
    text = bytearray(path.read_bytes())
    text[4096:5000] = bytes(904)
    path.write_bytes(text)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "emptied": cut(0),
    "cut off": cut(0.6),
    "no database": lambda path: path.write_bytes(b"nothing" * 900),
    "zeros inside": overwritten,
    "another budget": edited("UPDATE header SET begun = replace(begun, '10.0', '99.0')"),
    "no header": edited("DELETE FROM header"),
    "less noise": edited("UPDATE header SET begun = replace(begun, '50.0', '90.0')"),
    "a payment lost": edited("DELETE FROM log WHERE release = 2 AND sums IS NULL"),
    "a payment changed": edited("UPDATE log SET spent = 9 WHERE release = 2 AND sums IS NULL"),
    "a payment's hash changed": edited("UPDATE log SET chain = randomblob(8) WHERE release = 2 AND sums IS NULL"),
    "a record changed": edited("UPDATE log SET sums = x'00' WHERE release = 1 AND sums IS NOT NULL"),
    "the last record changed": edited("UPDATE log SET sums = x'00' WHERE release = 3 AND sums IS NOT NULL"),
    "a record lost": edited("DELETE FROM log WHERE release = 1 AND sums IS NOT NULL"),
    "a record of no payment": edited("UPDATE log SET release = 4 WHERE release = 3 AND sums IS NOT NULL"),
    "rows swapped": edited("UPDATE log SET row = -row"),
    "a row repeated": edited("INSERT INTO log SELECT row + 10, release, spent, sums, chain FROM log WHERE row = 8"),
    "a text in place of bytes": edited("UPDATE log SET sums = CAST(x'ff00' AS TEXT) WHERE row = 4"),
    "a text in place of a number": edited("UPDATE log SET release = 'x' WHERE row = 3"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_in_one_line_and_left_alone(path: Path, damage: str) -> None:
    with make(path) as ledger:
        for _ in range(4):
            number = ledger.spend()[0]
            ledger.record(number, bytes([number] * 8))
    DAMAGES[damage](path)
    before = path.read_bytes()
    for look in (Ledger.open, Ledger.read):
        with pytest.raises(LedgerError, match=f"^{re.escape(str(path))}: [^\\n]*put the file back$"):
            look(path)
        assert path.read_bytes() == before


class Interrupted:
    """A connection whose statements raise KeyboardInterrupt, before they are run or after, from number `stop` on."""

    def __init__(self, db: sqlite3.Connection, stop: int, run: bool) -> None:
        self.db, self.left, self.run = db, stop, run

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.left -= 1
            found = getattr(self.db, name)(*arguments) if self.left >= 0 or self.run else None
            if self.left < 0:
                raise KeyboardInterrupt
            return found

        return call


def test_an_interrupt_at_any_statement_loses_no_payment_and_reuses_no_number(path, monkeypatch) -> None:
    handed = []
    with make(path, steps=60) as ledger:
        for stop, run in product(range(7), (False, True)):
            with monkeypatch.context() as changed:
                changed.setattr(ledger, "_db", Interrupted(ledger._db, stop, run))
                try:
                    handed += ledger.spend()
                    ledger.record(handed[-1], b"1")
                except KeyboardInterrupt:
                    pass
            handed += ledger.spend()
    assert len(set(handed)) == len(handed)
    assert spent(path) > handed[-1] >= 8


def publish_until_killed(path: Path, published: Path) -> None:
    try:
        with Ledger.open(path) as ledger, published.open("ab", buffering=0) as sink:
            while True:
                number = ledger.spend()[0]
                sink.write(b"%d\n" % number)
                ledger.record(number, b"12345678")
    finally:
        os._exit(1)


def test_kills_lose_nothing_and_spend_nothing_twice(path: Path) -> None:
    rng, published = np.random.default_rng(3), path.with_name("published")
    make(path, target=10_000.0, steps=10**6).close()
    published.touch()
    for _ in range(10):
        size = published.stat().st_size
        child = os.fork()
        if child == 0:
            publish_until_killed(path, published)
        deadline = time.monotonic() + 20
        while published.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.01))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        numbers = [int(line) for line in published.read_text().splitlines()]
        assert len(set(numbers)) == len(numbers)
        assert Ledger.read(path).spent >= max(numbers) + 1  # what a reader sees before the next opening
        assert spent(path) >= max(numbers) + 1
    assert len(numbers) >= 10


def test_a_killed_file_without_its_log_is_refused(path: Path) -> None:
    make(path, target=10_000.0, steps=10**6).close()
    published = path.with_name("published")
    child = os.fork()
    if child == 0:
        publish_until_killed(path, published)
    while not published.exists() or published.stat().st_size < 20:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    copy, log = path.with_name("copy"), path.with_name("copy-wal")
    copy.write_bytes(path.read_bytes())
    for look in (Ledger.open, Ledger.read, lambda copy: Ledger.open(copy, moved=True)):
        with pytest.raises(
            LedgerError, match=r"copy: its process was killed, .* is in copy-wal, which is missing: put it back"
        ):
            look(copy)
    log.write_bytes(path.with_name("run.sqlite-wal").read_bytes())
    with Ledger.open(copy, moved=True) as ledger:
        assert ledger.spend()[0] > max(int(line) for line in published.read_text().splitlines())
    assert not log.exists()  # a file that was closed needs none
    Ledger.open(copy).close()
    paid = Ledger.read(path).spent
    Ledger.open(path).close()  # opened after the kill, and closed without a write
    assert Ledger.read(path).spent == paid > 1


def test_a_kill_between_the_steps_of_closing_leaves_a_file_that_opens(path: Path) -> None:
    ledger = make(path)
    ledger.spend()
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    with pytest.raises(LedgerError, match="which is missing"):
        Ledger.read(copy)
    ledger._db.execute("UPDATE header SET open = 0")
    ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    copy.write_bytes(path.read_bytes())  # as it is when SQLite has deleted its log and not yet said so in the file
    assert Ledger.read(copy).spent == 1
    ledger.close()


def test_a_reader_in_the_way_of_closing_does_not_keep_the_file_shut(path: Path) -> None:
    with make(path) as ledger:
        ledger.spend()
        reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM log").fetchall()
        ledger._db.execute("PRAGMA busy_timeout=10")
    reader.close()
    assert spent(path) == 1


def test_a_copy_is_refused_unless_it_was_moved(path: Path) -> None:
    with make(path) as ledger:
        ledger.spend()
    other = path.with_name("copy")
    other.write_bytes(path.read_bytes())
    with pytest.raises(LedgerError, match=r"a copy, or brought from another disk: .*resume='moved'"):
        Ledger.open(other)
    with Ledger.open(other, moved=True) as ledger:
        assert ledger.spend()[0] == 1
    assert (Ledger.read(other).moves, Ledger.read(path).moves) == (1, 0)


def test_a_plan_may_use_the_budget_and_not_more(path: Path) -> None:
    """Full batches exactly; the published setting n = 1024, B = 64, T = 10,000, epsilon 2, delta 1e-5 under add-remove
    needs noise 12.49643, which a grid that resolves epsilon to 1e-4 raises by a little."""
    full = replace(STEP, noise=2 * math.sqrt(64) / float(gdp_from_epsilon(3.0, 1e-6)))
    poisson = Step(12.498, Poisson(1 / 16), "add-remove")
    for word, step, target, delta, steps, more in (
        ("full", full, 3.0, 1e-6, 64, 65), ("poisson", poisson, 2.0, 1e-5, 10_000, 10_020)
    ):  # fmt: skip
        name = path.with_name(word)
        with pytest.raises(ValueError, match=rf"the plan costs epsilon .* more than target_epsilon {target:g}"):
            make(name, step, target, target_delta=delta, steps=more)
        assert not name.exists()
        make(name, step, target, target_delta=delta, steps=steps, block=steps // 4).close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("target_epsilon", value) for value in (0.0, math.nan)),
        *(("target_delta", value) for value in (1.0, math.nan)),
        *(("steps", value) for value in (0, 2.5)),
        ("block", 0),
    ],
)
def test_bad_budgets_write_nothing(path: Path, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        make(path, **{name: value})
    assert not path.exists()


def test_a_disk_without_room_for_a_new_ledger_is_one_line_and_leaves_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_SCHEMA", "PRAGMA max_page_count = 1;" + ledger_module._SCHEMA)
    with pytest.raises(LedgerError, match="full: make it writable with room on its disk"):
        make(path)
    assert not path.exists()


def test_an_accountant_that_fails_is_not_trusted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(upper=math.nan)
    monkeypatch.setattr(ledger_module, "epsilon_of_history", lambda history, delta: nothing)
    with pytest.raises(ValueError, match="costs epsilon nan"):
        make(path)
    assert not path.exists()


def test_numbers_survive_the_file_exactly(path: Path) -> None:
    odd = Step(50.1 / 3, Poisson(0.1 + 0.2), "zero-out", "discrete-gaussian", 7)
    make(path, odd, 100.0).close()
    with Ledger.open(path) as ledger:
        assert ledger.account.step == odd
        ledger.spend()
        assert ledger.history == [odd]


def test_a_file_in_memory_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger.for_records(None, "a run") as ledger:
        ledger.record(0, b"1")
        assert ledger.records() == [(0, b"1")]
    assert not list(tmp_path.iterdir())
