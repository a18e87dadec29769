"""Tests of the figures' style: it keeps series apart, and the files are reproducible."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from figures.style import SERIES, label_panels, save, series, use_style


def test_every_series_differs_in_colour_marker_and_dash() -> None:
    for name in ("color", "marker", "dash"):
        assert len({str(getattr(item, name)) for item in SERIES}) == len(SERIES)
    with pytest.raises(ValueError, match="index must be"):
        series(len(SERIES))


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    use_style()
    files = []
    for attempt in ("first", "second"):
        figure, axes = plt.subplots(1, 2)
        for index, axis in enumerate(axes):
            axis.plot([1, 2], [1, 3], **series(index).line(label="x"))
            axis.set_title("panel")
        label_panels(axes)
        assert axes[1].get_title(loc="left") == "(b) panel"
        files.append(save(figure, "figure", tmp_path / attempt).read_bytes())
        plt.close(figure)
    assert files[0] == files[1]
    assert files[0].startswith(b"\x89PNG")
