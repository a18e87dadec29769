import errno
import hashlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from dpzero_theory.privacy import ledger as ledger_module
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger, LedgerError, Settings

SETTINGS = Settings(n=1000, sample_rate=1.0, noise_multiplier=50.0, clip=1.5, relation="replace-one", sampling="full")


def make(path: Path, steps: int = 5, block: int = 1) -> Ledger:
    return Ledger.create(path, target_epsilon=10.0, target_delta=1e-6, settings=SETTINGS, steps=steps, block=block)


def spent(path: Path) -> int:
    with Ledger.open(path) as ledger:
        return sum(group.steps for group in ledger.history)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_releases_are_numbered_and_the_one_after_the_last_is_refused(path: Path) -> None:
    with make(path) as ledger:
        assert [ledger.spend(SETTINGS)[0] for _ in range(3)] == [0, 1, 2]
        assert ledger.releases_left == 2
    with Ledger.open(path) as ledger:
        assert [ledger.spend(SETTINGS)[0] for _ in range(2)] == [3, 4]
        before = path.read_bytes()
        for _ in range(2):
            with pytest.raises(BudgetSpentError, match="all 5 releases of the plan are spent"):
                ledger.spend(SETTINGS)
        assert path.read_bytes() == before
    with Ledger.open(path) as ledger, pytest.raises(BudgetSpentError):
        ledger.spend(SETTINGS)


def test_blocks_are_spent_whole_and_the_last_is_cut(path: Path) -> None:
    with make(path, steps=7, block=3) as ledger:
        assert [ledger.spend(SETTINGS) for _ in range(3)] == [range(3), range(3, 6), range(6, 7)]
        with pytest.raises(BudgetSpentError):
            ledger.spend(SETTINGS)
    assert spent(path) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"n": 999},
        {"sample_rate": 0.5, "sampling": "poisson"},
        {"noise_multiplier": math.nextafter(50.0, 0)},
        {"clip": 1.6},
        {"relation": "add-remove"},
        {"mechanism": "laplace"},
    ],
)
def test_other_settings_are_refused_by_name_and_nothing_is_written(path: Path, change: dict[str, object]) -> None:
    with make(path) as ledger:
        before = path.read_bytes()
        with pytest.raises(LedgerError, match=f"{next(iter(change))} is .* was planned"):
            ledger.spend(SETTINGS.changed(**change))
        assert path.read_bytes() == before
        assert ledger.spend(SETTINGS) == range(1)


def test_sampling_alone_is_compared(path: Path) -> None:
    poisson = SETTINGS.changed(sample_rate=0.1, sampling="poisson")
    with (
        Ledger.create(path, target_epsilon=10.0, target_delta=1e-6, settings=poisson, steps=3) as ledger,
        pytest.raises(LedgerError, match="sampling is 'fixed-order', but 'poisson' was planned"),
    ):
        ledger.spend(poisson.changed(sampling="fixed-order"))


def test_a_ledger_that_names_no_mechanism_is_a_gaussian_one(path: Path) -> None:
    """A ledger that names no mechanism, as old ones did not, is one of Gaussian noise."""
    make(path).close()
    check, lines = "0" * 64, []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        record.pop("check")
        record.get("settings", {}).pop("mechanism", None)
        body = json.dumps(record)
        check = hashlib.sha256((check + body).encode()).hexdigest()
        lines.append(f'{body[:-1]}, "check": "{check}"}}\n')
    path.write_text("".join(lines))
    with Ledger.open(path) as ledger:
        assert ledger.settings == SETTINGS
        with pytest.raises(LedgerError, match="mechanism is 'laplace', but 'gaussian' was planned"):
            ledger.spend(SETTINGS.changed(mechanism="laplace"))
        assert ledger.spend(SETTINGS) == range(1)


def test_each_line_is_json_with_the_settings(path: Path) -> None:
    with make(path) as ledger:
        ledger.spend(SETTINGS)
    budget, plan, spend = [json.loads(line) for line in path.read_text().splitlines()]
    assert budget["kind"] == "budget"
    assert budget["target_epsilon"] == 10.0
    assert plan["settings"] == {
        "n": 1000,
        "sample_rate": 1.0,
        "noise_multiplier": 50.0,
        "clip": 1.5,
        "relation": "replace-one",
        "sampling": "full",
        "mechanism": "gaussian",
        "coordinates": 1,
    }
    assert (spend["kind"], spend["release"], spend["count"]) == ("spend", 0, 1)
    assert path.read_bytes().endswith(b"}\n")


def test_a_second_writer_is_refused_until_the_first_closes(path: Path) -> None:
    ledger = make(path)
    with pytest.raises(LedgerError, match="another process has this file open"):
        Ledger.open(path)
    ledger.spend(SETTINGS)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.spend(SETTINGS)
    assert spent(path) == 1


def test_the_child_of_a_fork_cannot_spend(path: Path) -> None:
    with make(path) as ledger:
        child = os.fork()
        if child == 0:
            try:
                ledger.spend(SETTINGS)
            except LedgerError as error:
                os._exit(17 if "before a fork" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
        assert ledger.spend(SETTINGS) == range(1)


def test_an_existing_file_is_not_overwritten(path: Path) -> None:
    make(path).close()
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        make(path)
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        Ledger.open(path.with_name("none"))


def test_the_line_is_on_disk_before_the_release(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        fsync(file)
        synced.append(path.read_bytes())

    with make(path) as ledger:
        monkeypatch.setattr(os, "fsync", watched)
        ledger.spend(SETTINGS)
        assert synced == [path.read_bytes()]
        assert synced[0].count(b"\n") == 3


@pytest.mark.parametrize("block", [1, 2])
def test_a_torn_last_line_is_cut_and_counted(path: Path, block: int) -> None:
    with make(path, block=block) as ledger:
        ledger.spend(SETTINGS)
        start = len(path.read_bytes())
        ledger.spend(SETTINGS)
    content = path.read_bytes()
    for size in range(start + 1, len(content)):
        path.write_bytes(content[:size])
        assert spent(path) == 2 * block, size
        assert spent(path) == 2 * block
        lines = path.read_bytes().splitlines()
        assert json.loads(lines[-1])["kind"] == "torn"
        with Ledger.open(path) as ledger:
            assert ledger.spend(SETTINGS)[0] == 2 * block


@pytest.mark.parametrize("tail", [b"\x00" * 40, b"\x00" * 40 + b"\n", b"{", b'{"kind": "spend"}\n', b"\xff\n"])
def test_a_tail_that_is_no_line_counts_as_one(path: Path, tail: bytes) -> None:
    make(path).close()
    path.write_bytes(path.read_bytes() + tail)
    assert spent(path) == 1
    assert spent(path) == 1


def test_a_torn_line_after_the_last_release_costs_nothing_more(path: Path) -> None:
    with make(path, steps=1) as ledger:
        ledger.spend(SETTINGS)
    path.write_bytes(path.read_bytes() + b'{"ki')
    assert spent(path) == 1


def test_a_crash_during_the_repair_never_loses_the_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(path) as ledger:
        ledger.spend(SETTINGS)
    whole = path.read_bytes()
    pwrite = os.pwrite
    for torn in (b'{"kind": "spend", "rel', b"x" * 400, b"y" * 400 + b"\n"):
        for written in range(0, 130, 7):
            path.write_bytes(whole + torn)

            def crash(file: int, line: bytes, offset: int, written: int = written) -> int:
                pwrite(file, line[:written], offset)
                raise KeyboardInterrupt

            monkeypatch.setattr(os, "pwrite", crash)
            with pytest.raises(KeyboardInterrupt):
                Ledger.open(path)
            monkeypatch.setattr(os, "pwrite", pwrite)
            assert spent(path) == 2

        path.write_bytes(whole + torn)
        monkeypatch.setattr(os, "ftruncate", lambda file, size: (_ for _ in ()).throw(KeyboardInterrupt))
        longer = len(torn) > 150  # A half-written end that is longer than the line written over it is cut off
        with pytest.raises(KeyboardInterrupt) if longer else nullcontext():
            Ledger.open(path).close()
        monkeypatch.undo()
        assert 2 <= spent(path) <= 3


@pytest.mark.parametrize("fault", ["short", "full", "fsync"])
def test_after_a_failed_write_the_ledger_refuses_until_it_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    pwrite = os.pwrite

    def failing(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with make(path) as ledger:
        ledger.spend(SETTINGS)
        if fault == "short":
            monkeypatch.setattr(os, "pwrite", lambda file, line, at: pwrite(file, line[:9], at))
        else:
            monkeypatch.setattr(os, "pwrite" if fault == "full" else "fsync", failing)
        with pytest.raises((LedgerError, OSError)):
            ledger.spend(SETTINGS)
        monkeypatch.undo()
        with pytest.raises(LedgerError, match="a write failed"):
            ledger.spend(SETTINGS)
    assert spent(path) == (1 if fault == "full" else 2)


DAMAGE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "edited": lambda lines: [*lines[:3], lines[3].replace(b'"count": 1', b'"count": 0'), *lines[4:]],
    "edited last": lambda lines: [*lines[:-1], lines[-1].replace(b'"count": 1', b'"count": 0')],
    "edited plan": lambda lines: [lines[0], lines[1].replace(b"50.0", b"90.0"), *lines[2:]],
    "lost": lambda lines: [*lines[:3], *lines[4:]],
    "repeated": lambda lines: [*lines, lines[-1]],
    "swapped": lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
    "garbage inside": lambda lines: [*lines[:3], b"\x00\x00", *lines[3:]],
    "spaces": lambda lines: [*lines[:3], lines[3].replace(b": ", b":  "), *lines[4:]],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_the_file_is_left_alone(path: Path, damage: str) -> None:
    with make(path) as ledger:
        for _ in range(4):
            ledger.spend(SETTINGS)
    damaged = b"\n".join(DAMAGE[damage](path.read_bytes().splitlines())) + b"\n"
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(LedgerError, match=r"line \d"):
        Ledger.open(path)
    assert path.read_bytes() == damaged


def test_a_file_without_a_plan_is_refused(path: Path) -> None:
    make(path).close()
    first, second = path.read_bytes().splitlines(keepends=True)
    for content in (b"", first, first[:20], first + second[:-5]):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="no complete plan"):
            Ledger.open(path)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "appended"])
def test_a_file_that_changes_underneath_is_refused(path: Path, how: str) -> None:
    with make(path) as ledger:
        if how == "deleted":
            path.unlink()
        elif how == "moved":
            path.rename(path.with_name("other"))
        elif how == "replaced":
            path.with_name("new").write_bytes(path.read_bytes())
            path.with_name("new").replace(path)
        else:
            path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(LedgerError, match="moved or changed"):
            ledger.spend(SETTINGS)


def publish_until_killed(path: Path, published: Path) -> None:
    try:
        with Ledger.open(path) as ledger, published.open("ab", buffering=0) as sink:
            while True:
                sink.write(b"%d\n" % ledger.spend(SETTINGS)[0])
    finally:
        os._exit(1)


def test_kills_lose_nothing_and_spend_nothing_twice(path: Path) -> None:
    rng = np.random.default_rng(3)
    published = path.with_name("published")
    steps = 10**6
    Ledger.create(
        path,
        target_epsilon=10_000.0,
        target_delta=1e-6,
        settings=SETTINGS,
        steps=steps,
    ).close()
    published.touch()
    repairs = 0
    for _ in range(40):
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
        content = path.read_bytes()
        last = len(content) - content.rfind(b"\n", 0, -1) - 1
        if rng.random() < 0.5 and content.count(b"\n") > 3:
            path.write_bytes(content[: len(content) - int(rng.integers(1, last))])
            repairs += 1
        numbers = [int(line) for line in published.read_text().splitlines()]
        assert len(set(numbers)) == len(numbers)
        assert spent(path) >= max(numbers) + 1
    assert len(numbers) >= 40
    assert repairs > 5


def exact_epsilon(gdp: float, delta: float) -> float:
    """Returns the epsilon of mu-GDP at this delta as the root of the textbook formula, by another solver.

    `gdp` is mu.
    """

    def excess(epsilon: float) -> float:
        a, b = gdp / 2 - epsilon / gdp, -gdp / 2 - epsilon / gdp
        return float(stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b)) - delta

    return float(optimize.brentq(excess, 0, 50, xtol=1e-12))


def test_epsilon_of_a_mixed_history() -> None:
    second = SETTINGS.changed(noise_multiplier=20.0, clip=9.0, n=7)
    mu = math.sqrt(30 * (2 / 50) ** 2 + 11 * (2 / 20) ** 2)
    found = epsilon_of_history([SETTINGS.release(30), second.release(11)], 1e-5).upper
    assert found == pytest.approx(exact_epsilon(mu, 1e-5), rel=1e-9)
    add_remove = SETTINGS.changed(relation="add-remove").release(900)
    assert epsilon_of_history([add_remove], 1e-5).upper == pytest.approx(exact_epsilon(30 / 50, 1e-5), rel=1e-9)
    assert epsilon_of_history([], 1e-5).upper == 0.0
    with pytest.raises(ValueError, match="delta must be"):
        epsilon_of_history([], math.nan)


def test_a_calibrated_plan_fits_its_target_with_poisson_sampling(path: Path) -> None:
    """A plan calibrated for Poisson sampling meets its target, and one with less noise is refused.

    The noise multiplier of the published setting n = 1024, B = 64, T = 10,000, epsilon 2, delta 1e-5 under add-remove
    is 12.49643.
    """
    settings = Settings(
        n=1024, sample_rate=1 / 16, noise_multiplier=12.49643, clip=1.0, relation="add-remove", sampling="poisson"
    )
    budget = {"target_epsilon": 2.0, "target_delta": 1e-5, "settings": settings}
    with pytest.raises(LedgerError, match="the plan costs"):
        Ledger.create(path, steps=10_010, **budget)  # type: ignore[arg-type]
    with Ledger.create(path, steps=10_000, block=2_500, **budget) as ledger:  # type: ignore[arg-type]
        assert ledger.report().epsilon_planned == pytest.approx(2.0, rel=1e-6)
        ledger.spend(settings)
        report = ledger.report("fixed")
        assert ledger.report().epsilon_spent == report.epsilon_planned  # whoever stops here may have looked
    assert 0.5 < report.epsilon_spent < 1.2
    assert report.releases_left == 7_500


def test_the_report_adds_up(path: Path) -> None:
    with make(path, steps=400) as ledger:
        assert ledger.report().epsilon_spent == 0.0
        for _ in range(100):
            ledger.spend(SETTINGS)
        report = ledger.report("fixed")
    assert (report.releases_spent, report.releases_left) == (100, 300)
    assert report.epsilon_spent == pytest.approx(exact_epsilon(10 * 2 / 50, 1e-6), rel=1e-9)
    assert report.epsilon_planned == pytest.approx(exact_epsilon(20 * 2 / 50, 1e-6), rel=1e-9)
    assert report.epsilon_left == 10.0 - report.epsilon_spent


def test_a_plan_may_use_the_budget_exactly_and_not_more(path: Path) -> None:
    multiplier = 2 * math.sqrt(64) / float(gdp_from_epsilon(3.0, 1e-6))
    settings = SETTINGS.changed(noise_multiplier=multiplier)
    budget = {"target_epsilon": 3.0, "target_delta": 1e-6}
    with pytest.raises(LedgerError, match=r"the plan costs epsilon .* more than target_epsilon 3"):
        Ledger.create(path, settings=settings, steps=65, **budget)  # type: ignore[arg-type]
    assert not path.exists()
    with Ledger.create(path, settings=settings, steps=64, **budget) as ledger:  # type: ignore[arg-type]
        assert ledger.report().epsilon_planned == pytest.approx(3.0, rel=1e-9)


BAD: list[tuple[str, object]] = [
    *[(name, value) for name in ("sample_rate", "noise_multiplier", "clip") for value in (math.nan, 0, -1, "1")],
    *[("n", value) for value in (0, 2.5, math.inf, None)],
    ("sample_rate", 1.5),
    ("sample_rate", 0.5),  # With full batches the sampling rate must be 1
    ("relation", "both"),
    ("sampling", "shuffle"),
    ("sampling", None),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_settings(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        SETTINGS.changed(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_epsilon", 0.0),
        ("target_epsilon", math.nan),
        ("target_delta", 1.0),
        ("target_delta", math.nan),
        ("steps", 0),
        ("steps", 2.5),
        ("block", 0),
    ],
)
def test_bad_budgets_write_nothing(path: Path, name: str, value: object) -> None:
    arguments: dict[str, object] = {
        "target_epsilon": 10.0,
        "target_delta": 1e-6,
        "settings": SETTINGS,
        "steps": 5,
        name: value,
    }
    with pytest.raises(ValueError, match=f"{name} must be"):
        Ledger.create(path, **arguments)  # type: ignore[arg-type]
    assert not path.exists()


def test_an_accountant_that_fails_is_not_trusted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Bracket(math.nan, math.nan, math.nan, "fails")
    monkeypatch.setattr(ledger_module, "epsilon_of_history", lambda history, delta: nothing)
    with pytest.raises(LedgerError, match="costs epsilon nan"):
        Ledger.create(path, target_epsilon=10.0, target_delta=1e-6, settings=SETTINGS, steps=5)
    assert not path.exists()


def test_numbers_survive_the_file_exactly(path: Path) -> None:
    odd = SETTINGS.changed(noise_multiplier=50.1 / 3, clip=0.1 + 0.2)
    Ledger.create(path, target_epsilon=100.0, target_delta=1e-6, settings=odd, steps=5).close()
    with Ledger.open(path) as ledger:
        assert ledger.settings == odd
        ledger.spend(odd)
    assert re.search(rb'"clip": 0\.30000000000000004', path.read_bytes())
