"""The demo's sweep leaves rows and the picture of them, which another process draws."""

from pathlib import Path

import pytest

from benchmarks import demo
from benchmarks.kit.rows import read_rows


def test_rows_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DIMENSIONS", (2, 3))
    monkeypatch.setattr(demo, "GRID_STEPS", (3,))
    for _ in range(2):  # a second demo starts anew
        demo.sweep(tmp_path)
    rows = read_rows(tmp_path)
    assert list(zip(rows["mode"], rows["d"], rows["method"], strict=True)) == [
        (mode, d, method) for mode in "ac" for d in (2, 3) for method in ("DPZero", "DPGD-0th")
    ]
    assert (rows["gradient_norm"] > 0).all()
    picture = demo.draw(tmp_path)
    assert picture.name == "rate_vs_dimension.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
