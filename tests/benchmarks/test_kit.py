"""Tests of the small parts of the kit: tables, times taken in turns, peak memory, and the GPU's description."""

import functools
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.kit import card
from benchmarks.kit.device import full_float32
from benchmarks.kit.peaks import peak, reset_peak
from benchmarks.kit.tables import markdown, shortened
from benchmarks.kit.timing import median_ratio, timed
from dpzero_theory import privacy

TABLE = markdown(["task", "K", "gain"], [["TREC", "1", "0.5"], ["digits", "1", ""], ["TREC", "16", "-0.2"]])
TEXT = f"What it shows.\n\n{TABLE}\n\nBelow it.\n\nMore."


def test_lines_and_columns_of_a_table_are_kept_in_the_order_asked_for() -> None:
    found = shortened(TEXT, {"K": "K", "task": "data"}, "^TREC")
    assert found == "| K | data |\n| --- | --- |\n| 1 | TREC |\n| 16 | TREC |"


def test_a_line_is_found_by_all_its_cells_and_an_empty_last_cell_stays() -> None:
    assert shortened(TEXT, lines=r"^digits \| 1 \| $") == "| task | K | gain |\n| --- | --- | --- |\n| digits | 1 |  |"


def test_the_text_below_is_kept_where_asked_for() -> None:
    assert shortened(TEXT, below=True) == f"{TABLE}\n\nBelow it.\n\nMore."
    assert shortened(TABLE, below=True) == TABLE


def test_a_column_that_is_not_there_or_no_line_is_refused() -> None:
    with pytest.raises(ValueError, match="columns must be names of columns of the table; got 'loss'"):
        shortened(TEXT, {"loss": "loss"})
    with pytest.raises(ValueError, match="lines must match a line of the table; got '\\^SST'"):
        shortened(TEXT, lines="^SST")


def test_the_error_is_the_spread_of_the_median() -> None:
    """The error stated with a median ratio is, on average, within 10% of the standard deviation of 2,000 medians.

    Each is the median of 41 normal ratios.
    """
    rng = np.random.default_rng(0)
    found = np.array([median_ratio(rng.normal(1.01, 0.05, 41), np.ones(41)) for _ in range(2000)])  # type: ignore[arg-type]
    assert found[:, 0].mean() == pytest.approx(1.01, abs=1e-3)
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.1)


def test_ratios_are_taken_within_a_turn() -> None:
    assert median_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 2.0])[0] == 2.0


def test_one_turn_has_no_error() -> None:
    with pytest.raises(ValueError, match="at least 2 turns; got 1"):
        median_ratio([1.0], [1.0])


def test_nothing_is_kept_of_earlier_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    question = functools.lru_cache(lambda: asked.append(1))
    monkeypatch.setattr(privacy, "question", question, raising=False)
    assert [timed(question).found for _ in range(3)] == [None] * 3
    assert len(asked) == 3


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a peak can be forgotten on Linux only")
def test_a_freed_allocation_counts_until_the_reset() -> None:
    held = reset_peak("cpu")
    torch.ones(100 * 2**18)
    assert peak("cpu") - held == pytest.approx(100, abs=5)
    held = reset_peak("cpu")
    assert peak("cpu") - held < 5


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

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.extend(command)
        return subprocess.CompletedProcess([], 0, said)

    monkeypatch.setattr(card.subprocess, "run", answer)
    found = card._told("GPU-8a6b")
    assert "--id=GPU-8a6b" in asked
    assert (found.get("driver_version"), found.get("temperature.gpu")) == (("570.1", "41") if known else (None, None))
