"""Slopes of known power laws, and the best rows of a grid."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import slopes, synthetic
from benchmarks.kit.rows import Results, read_rows


def test_a_power_law_has_its_slope() -> None:
    d = np.array([10, 30, 100, 1000])
    assert slopes.slope(d, 5 * d**0.37) == pytest.approx(0.37, abs=1e-12)


def test_intervals_are_students() -> None:
    assert slopes.interval([1.0]) == (1.0, None, None)
    mean, low, high = slopes.interval([0.0, 2.0])
    # two values: mean 1, standard error 1, and t_{0.975, 1} = 12.706
    assert (mean, low, high) == pytest.approx((1.0, 1 - 12.706, 1 + 12.706), rel=1e-3)


def _rows(method: str, power: float) -> list[dict[str, str | float]]:
    """Three seeds with measurements d^power times the clip, twice that on the test set."""
    made: list[dict[str, str | float]] = []
    for seed in range(3):
        for d in (10, 100, 1000, 10_000):
            for clip in (1.0, 2.0):
                values = (method, "a", d, "zero", "paper", seed, 1, 1.0, clip)
                measures = {name: d**power * clip * (2 if "test" in name else 1) for name in synthetic.FIELDS}
                made.append({**dict(zip(synthetic.KEY, values, strict=True)), **measures})
    return made


def test_fits_use_the_best_row_of_every_cell(tmp_path: Path) -> None:
    """Of two folders that make one sweep; their rows have the same numbers, and other best ones."""
    rows = {"synthetic": _rows("dpzero", 0.5), "synthetic_dpgd": _rows("dpgd", 0.75)[::-1]}
    assert (slopes.best_rows(pd.DataFrame(rows["synthetic"]), "tau")["clip"] == 1.0).all()
    for folder, lines in rows.items():
        with Results(
            tmp_path / folder, key=synthetic.KEY, fields=synthetic.FIELDS, seeds=[0], device="cpu", dtype="float64"
        ) as results:
            results.add(lines)
    for _ in range(2):
        slopes.main(["--rows", str(tmp_path), "--out", str(tmp_path / "slopes")])
        fits = read_rows(tmp_path / "slopes")
        assert len(fits) == 2 * 3 * 2 * 2
        assert fits["slope"].tolist() == pytest.approx([0.75 if m == "dpgd" else 0.5 for m in fits["method"]])
        assert (fits["seeds"] == 3).all()


def test_no_rows_are_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        slopes.main(["--rows", str(tmp_path)])
    assert "--rows must be a folder with rows of" in capsys.readouterr().err


def test_the_streamed_sweep_is_fitted_too() -> None:
    rows = pd.DataFrame(
        {"method": "dpzero", "d": d, "seed": seed, "gradient_squared": d**0.5, "last_gradient_squared": d**0.25}
        for d in (10, 100, 1000)
        for seed in range(2)
    )
    fits = slopes._fits("dimension", slopes._as_synthetic(rows))
    found = {(fit["output"], fit["range"]): fit["slope"] for fit in fits}
    assert found[("tau", "all")] == pytest.approx(0.25)
    assert found[("last", "largest-3")] == pytest.approx(0.125)
    assert len(fits) == 4
