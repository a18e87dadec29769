"""Tests of the figure of an answer: it is written completely or not at all, with the curves it is compared with."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpzero_theory.privacy import plot
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.plot import draw
from dpzero_theory.privacy.step import step_of

ANSWER: dict[str, Any] = {
    "inputs": {"noise_multiplier": None, "epsilon": 2.0, "delta": 1e-5, "steps": 40, "sampling": "full",
               "relation": "add-remove", "sample_rate": 1.0},
    "noise_multiplier": 14.0,
    "sensitivity": 1,
}  # fmt: skip


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_a_figure_is_written(tmp_path: Path, name: str, start: bytes) -> None:
    draw(tmp_path / name, ANSWER)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert os.listdir(tmp_path) == [name]


def test_a_failure_leaves_the_old_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Figure, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError("no space")

    (tmp_path / "a.png").write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="no space"):
        draw(tmp_path / "a.png", ANSWER)
    assert (tmp_path / "a.png").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.png"]


def test_what_renyi_divergences_give_is_above_the_exact_curve_and_not_far() -> None:
    history = [step_of(14.0, 40, sampling="full", relation="add-remove")]
    table = plot._renyi(history)
    assert (np.diff(table[:, 1]) > 0).all()
    exact = epsilon_of_history(history, 1e-5).upper
    assert exact < plot._renyi_epsilon(table, 1e-5) < 1.15 * exact
    for epsilon in (0.5, 1.0):
        assert delta_of_history(history, epsilon).upper < plot._renyi_delta(table, epsilon) < 1
    levels = np.array([0.01, 0.3, 0.9])
    assert (plot._renyi_trade_off(table, levels, exact) <= plot.trade_off(history, levels) + 1e-12).all()
