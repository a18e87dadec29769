"""Tests of the description of the accelerator on which a row was measured."""

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
    found = SimpleNamespace(name="NVIDIA Z", total_memory=24 * 2**30, uuid="8a6b")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found)
    monkeypatch.setattr(card, "_told", lambda card: {"driver_version": "570.1", "asked": card})
    full_float32()
    assert card.accelerator("cuda") == {}  # Nothing has been computed on the card yet
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    described = card.accelerator("NVIDIA Z")
    assert (described["card"], described["memory_gib"], described["driver_version"]) == ("NVIDIA Z", 24.0, "570.1")
    assert described["asked"] == "GPU-8a6b"
    assert described["tf32"] == {"matmul": False, "cudnn": False}


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("570.1, 1980 MHz, 1980 MHz, 2619 MHz, 700.00 W, 41\n", True),
        ("570.1, [N/A], [N/A], [N/A], [N/A], 41\n", True),
        ("", False),
        ("No devices were found\n", False),
    ],
)
def test_what_the_driver_says(said: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.extend(command)
        return subprocess.CompletedProcess([], 0, said)

    monkeypatch.setattr(card.subprocess, "run", answer)
    found = card._told("GPU-8a6b")
    assert "--id=GPU-8a6b" in asked
    assert (found.get("driver_version"), found.get("temperature.gpu")) == (("570.1", "41") if known else (None, None))


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_a_driver_that_says_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(card.subprocess, "run", refuse)
    assert card._told("GPU-8a6b") == {}
