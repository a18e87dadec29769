"""Tests of what the committed rows say of low effective rank and of prescriptions.

They also test that the figures can be drawn.
"""

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from figures import curvature
from figures.style import use_style


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.concat([read_rows(RESULTS / "curvature"), read_rows(RESULTS / "curvature_encoder")])


def test_intervals_contain_the_rank_of_the_full_hessian(rows: pd.DataFrame) -> None:
    known = rows.dropna(subset="exact_rank")
    assert len(known) >= 3
    assert (known["rank_low"] <= known["exact_rank"]).all()
    assert (known["exact_rank"] <= known["rank_high"]).all()


@pytest.mark.parametrize("task", ["digits", "minilm"])
def test_the_prescription_is_certified_and_helps(task: str) -> None:
    """A prescribed run meets its certificate and lowers the loss, on each seed.

    The mean of ||grad F||^2 is below the certificate, and the best step size of the grid is inside the grid.
    """
    found = read_rows(RESULTS / f"prescription_{task}")
    theory = found[found["choice"].str.startswith("theory")]
    assert (theory["gradient_squared"] <= theory["bound"]).all()
    assert (theory["loss"] < theory["loss_before"]).all()
    grid = found[found["choice"] == "grid"]
    best = grid.groupby(["step_size", "clip"])["loss"].mean().idxmin()
    assert grid["step_size"].min() < best[0] < grid["step_size"].max()


def test_figures_are_drawn_from_the_committed_rows(rows: pd.DataFrame) -> None:
    use_style()
    folder = RESULTS / "curvature_problems"
    files = {name: json.loads((folder / f"{name}.json").read_text()) for name in curvature.SPECTRA}
    figures = [
        curvature.draw_rank(rows, files),
        curvature.draw_prescription({task: read_rows(RESULTS / f"prescription_{task}") for task in curvature.TASKS}),
    ]
    for figure in figures:
        figure.draw_without_rendering()
        assert all(axis.has_data() for axis in figure.axes)
        plt.close(figure)
