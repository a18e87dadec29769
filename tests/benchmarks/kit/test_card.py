"""The accelerator behind a row."""

import subprocess
from typing import Any

import pytest

from benchmarks.kit import card


def test_nothing_is_asked_for_the_processor() -> None:
    assert card.accelerator("cpu") == {}
    assert card.accelerator("cpu, 4 processes") == {}


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, "570.1, 1980 MHz, 1980 MHz, 2619 MHz, 700.00 W, 41\n")

    monkeypatch.setattr(card.subprocess, "run", answer)
    found = card._told()
    assert (found["driver_version"], found["clocks.sm"], found["temperature.gpu"]) == ("570.1", "1980 MHz", "41")

    def refuse(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(card.subprocess, "run", refuse)
    assert card._told() == {}
