"""Tests of the figure of a GPU's rows, drawn from some of the rows or all."""

import pandas as pd
import pytest
from matplotlib.figure import Figure

from figures.gpu import draw

STEPS = pd.DataFrame(
    {
        "size": ["opt-1.3b"] * 3,
        "dtype": ["bfloat16"] * 3,
        "batch": [8] * 3,
        "method": ["two-forwards", "rademacher", "dp-adamw"],
        "ratio": [1.0, 1.04, None],
        "peak_to_inference": [1.0, 1.02, None],
    }
)
SIZES = pd.DataFrame({"method": ["forwards", "dpzero", "dpzero"], "d": [1e9, 1e9, 7e9], "seconds": [0.1, 0.1, 0.7]})
JOBS = pd.DataFrame({"job": ["tests", "grid"], "wall_s": [10.0, 200.0], "estimate_s": [20.0, 180.0]})


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


@pytest.mark.parametrize("absent", ["", "optimizer_step", "llm_memory_opt", "jobs"])
def test_what_has_not_run_is_said(absent: str) -> None:
    tables = {"optimizer_step": STEPS, "llm_memory_opt": SIZES, "jobs": JOBS}
    tables.pop(absent, None)
    assert texts(draw(tables)).count("not run yet") == {"": 0, "optimizer_step": 2}.get(absent, 1)


def test_marks_are_the_ratios() -> None:
    axis = draw({"optimizer_step": STEPS}).axes[0]
    marks = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert marks["DPZero, signs"] == [1.04]
    assert marks["aim: 1.05"] == [1.05, 1.05]


def test_tables_of_which_every_row_failed_are_as_if_they_had_not_run() -> None:
    tables = {"optimizer_step": STEPS[:0], "llm_memory_opt": SIZES[:0], "llm_streamed": SIZES[:0], "jobs": JOBS[:0]}
    assert texts(draw(tables)).count("not run yet") == 4
