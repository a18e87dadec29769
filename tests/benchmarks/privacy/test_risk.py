"""Tests of the benchmark of an attacker's gain.

Its brackets contain the values that are known exactly, and other tools' upper bounds lie above them.
"""

from argparse import Namespace

import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.privacy import risk


def test_settings_are_the_same_each_time_and_of_every_kind() -> None:
    cells = list(risk.settings(Namespace()))
    assert cells == list(risk.settings(Namespace()))
    assert {cell["kind"] for cell in cells} == {"full", "step", "poisson"}
    assert len(cells) == risk.COUNT


@pytest.mark.parametrize("kind", ["full", "step"])
def test_a_row_holds_what_is_known(kind: str) -> None:
    row = risk.measure(next(cell for cell in risk.settings(Namespace()) if cell["kind"] == kind))
    assert row["advantage_lower"] <= row["exact_advantage"] * (1 + 1e-9)
    assert row["exact_tpr"] <= row["tpr_upper"] * (1 + 1e-9)
    assert row["tpr_lower"] <= row["exact_tpr"] * (1 + 1e-9)


def test_the_committed_rows() -> None:
    rows = read_rows(RESULTS / "risk")
    assert len(rows) == risk.COUNT
    exact, others = rows[rows["kind"] != "poisson"], rows[rows["kind"] == "poisson"]
    for name in ("advantage", "tpr"):
        assert (exact[f"{name}_lower"] <= exact[f"exact_{name}"] * (1 + 1e-9)).all()
        assert (exact[f"exact_{name}"] <= exact[f"{name}_upper"] * (1 + 1e-9)).all()
        assert (rows[f"{name}_upper"] <= rows[f"{name}_lower"] * (1 + 1e-3)).all()
        assert (others[f"pld_{name}"] >= others[f"{name}_lower"] * (1 - 1e-9)).all()
