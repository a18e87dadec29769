import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory.audit.__main__ import main
from dpzero_theory.audit.conformance import check
from dpzero_theory.audit.deadline import OutOfTime, now, until
from dpzero_theory.audit.finding import HELD, UNTESTED
from tests.audit.small import SOUND, records, small
from tests.audit.test_spec import folder

__all__ = ["folder"]
NAMES = ("accounting", "sensitivity", "noise-size")


def _hangs(caught: list[str]) -> Any:
    """Returns a loop whose runs after the first sixty never end, and which catches every exception."""
    sound, runs = SOUND[0].make(), [0]

    def train(data: Any, seed: int, settings: Any) -> Any:
        runs[0] += 1
        while runs[0] > 60:
            try:
                time.sleep(0.01)
            except Exception:
                caught.append("caught")
                break
        return sound(data, seed, settings)

    return train


def test_a_loop_that_hangs_leaves_the_remaining_checks_untested() -> None:
    claim, caught = small(SOUND[0].claimed()), list[str]()
    report = check(_hangs(caught), records(), claim, SOUND[0].view, SOUND[0].all_settings, checks=NAMES, seconds=1)
    assert report.violations == []
    for name in NAMES[1:]:
        assert report[name].status == UNTESTED
        assert report[name].says.startswith("no time")
    assert not caught
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert report.exit_code == 3


def test_no_time_for_the_first_run_is_a_report_too() -> None:
    report = check(
        SOUND[0].make(), records(), small(SOUND[0].claimed()), SOUND[0].view, SOUND[0].all_settings, seconds=1e-9
    )
    assert report.named(UNTESTED) == [entry.check.name for entry in report.entries]
    assert report.runs == 1


def test_enough_time_changes_nothing_also_where_clocks_are_stopped() -> None:
    how = (records(), small(SOUND[0].claimed()), SOUND[0].view, SOUND[0].all_settings)
    found = [check(SOUND[0].make(), *how, checks=NAMES, runs=24, seconds=limit) for limit in (None, 3600)]
    assert [one.named(HELD) for one in found] == [list(NAMES)] * 2


def test_a_limit_that_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds must be"):
        check(SOUND[0].make(), records(), small(SOUND[0].claimed()), seconds=0)


def test_a_timer_and_a_handler_from_before_are_put_back() -> None:
    rang = list[int]()
    before = signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000)
        with pytest.raises(OutOfTime), until(now() + 0.02):
            time.sleep(600)
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        signal.raise_signal(signal.SIGALRM)
        assert rang == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_outside_the_main_thread_the_time_is_compared_before_a_run() -> None:
    ended = list[str]()

    def body() -> None:
        with until(now() + 3600):
            ended.append("entered")
        try:
            with until(now() - 1):
                ended.append("never")
        except OutOfTime:
            ended.append("over")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert ended == ["entered", "over"]


def test_the_command_names_its_checks_without_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec.toml", "--checks", "accounting", "--progress", "--seconds", "600"]) == 0
    assert capsys.readouterr().err == "accounting ...\n"
