"""What the committed rows say of low effective rank, and that the figures can be drawn from them."""

import json

import matplotlib.pyplot as plt

from benchmarks.results import RESULTS, read_rows
from figures import curvature
from figures.style import use_style


def test_intervals_contain_the_rank_of_the_full_hessian() -> None:
    rows = read_rows(RESULTS / "curvature")
    known = rows.dropna(subset="exact_rank")
    assert len(known) >= 9
    assert (known["rank_low"] <= known["exact_rank"]).all()
    assert (known["exact_rank"] <= known["rank_high"]).all()


def test_low_effective_rank_comes_with_training() -> None:
    """From width 4 to 1,024, d grows 248 times: r more than 25 times before training, less than 8 times after it."""
    rows = read_rows(RESULTS / "curvature")
    networks = rows[rows["model"].str.startswith("mlp-digits")]
    rank = networks.groupby(["moment", "d"])["rank_estimate"].mean()
    growth = {moment: rank[moment].iloc[-1] / rank[moment].iloc[0] for moment in ("before", "after")}
    assert growth["before"] > 25
    assert growth["after"] < 8


def test_figures_are_drawn_from_the_committed_rows() -> None:
    use_style()
    file = json.loads((RESULTS / "curvature_problems" / "minilm-biases.json").read_text())
    figures = [
        curvature.draw_rank(read_rows(RESULTS / "curvature"), {"minilm-biases": file}),
        curvature.draw_prescription({"digits": read_rows(RESULTS / "prescription_digits")}),
    ]
    for figure in figures:
        figure.canvas.draw()
        assert all(axis.has_data() for axis in figure.axes)
        plt.close(figure)
