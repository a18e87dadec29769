"""The accelerator behind a row."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.kit import card
from benchmarks.kit.device import full_float32


def test_nothing_is_asked_for_the_processor() -> None:
    assert card.accelerator("cpu") == {}
    assert card.accelerator("cpu, 4 processes") == {}


def test_what_a_process_computes_on_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="NVIDIA Z", total_memory=24 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found)
    monkeypatch.setattr(card, "_told", lambda: {"driver_version": "570.1"})
    full_float32()
    assert card.accelerator("cuda") == {}  # nothing was computed there
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    described = card.accelerator("NVIDIA Z")
    assert (described["card"], described["memory_gib"], described["driver_version"]) == ("NVIDIA Z", 24.0, "570.1")
    assert described["tf32"] == {"matmul": False, "cudnn": False}


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
