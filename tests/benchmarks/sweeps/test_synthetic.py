"""Tests of the sweep on the paper's synthetic problem.

They test the grid, that rows agree with the line-by-line algorithms, and that the sweep resumes.
"""

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.kit.arithmetic import others
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.sweeps import synthetic
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum

TINY = synthetic.Preset(60, (5,), steps=(3, 8), step_sizes=(0.05,), clips=(0.5, 5.0))


def test_the_grid_is_the_papers() -> None:
    lanes = synthetic.paper_lanes(synthetic.PAPER, "paper")
    assert len(lanes) == 10 * 11 * 8
    assert synthetic.PAPER.dimensions == (20, 50, 100, 200, 500, 1000, 2000)
    assert (lanes.steps.min(), lanes.steps.max()) == (10, 5120)
    # The noise is sigma = 4 C sqrt(2 T log(e + eps/delta))/(n eps), as Algorithms 1 and 2 state it.
    sigma = 4 * lanes.clip * np.sqrt(2 * lanes.steps * np.log(np.e + 2 / 1e-6)) / (10_000 * 2)
    np.testing.assert_allclose(lanes.noise_std, sigma, rtol=1e-12)
    exact = synthetic.paper_lanes(synthetic.PAPER, "exact").noise_std
    np.testing.assert_allclose(sigma / exact, 2.415, rtol=1e-3)


@pytest.mark.parametrize("method", synthetic.METHODS)
@pytest.mark.parametrize("start", ["zero", "normal"])
def test_measurements_are_those_of_the_losses(method: str, start: str) -> None:
    """Measurements equal those computed from the definitions on the samples that the cell draws."""
    cell = synthetic.SweepCell(method, "b", 5, start, "paper", 3)
    rows = synthetic.run_cells([cell], TINY, synthetic.Computation())
    assert len(rows) == 4
    spectrum = paper_spectrum("b", 5)
    rng = np.random.default_rng([3, 5])
    train, test = 1 + rng.standard_normal((60, 5)), 1 + rng.standard_normal((60, 5))
    x0 = np.random.default_rng([3, 2]).standard_normal(5) if start == "normal" else np.zeros(5)
    lanes = synthetic.paper_lanes(TINY, "paper")
    (outcome,) = synthetic.run_methods([(method, x0, lanes)], Quadratic(train, spectrum), 3, [])
    for lane, row in enumerate(rows):
        for on, data in (("train", train), ("test", test)):
            offsets = outcome.last[lane] - data
            gradient = np.linalg.norm((offsets * spectrum).mean(axis=0))
            loss = 0.5 * np.einsum("ij,j,ij->i", offsets, spectrum, offsets).mean()
            assert row[f"gradient_{on}_last"] == pytest.approx(gradient, rel=1e-3)
            assert row[f"loss_{on}_last"] == pytest.approx(loss, rel=1e-3)
        assert row["loss_train_tau"] >= Quadratic(train, spectrum).minimum * 0.999


def test_rows_of_all_lanes_are_saved_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(synthetic.PRESETS, "smoke", TINY)
    out = tmp_path / "rows"
    arguments = ["--preset", "smoke", "--out", str(out), "--jobs", "1", "--device", "cpu", "--modes", "c"]
    synthetic.EXPERIMENT.main(arguments)
    assert len(read_rows(out)) == 3 * 4
    before = (out / "rows.csv").read_bytes()
    synthetic.EXPERIMENT.main(arguments)
    assert (out / "rows.csv").read_bytes() == before
    synthetic.EXPERIMENT.main([*arguments, "--start", "zero", "normal", "--methods", "dpzero"])
    assert len(read_rows(out)) == 3 * 4 + 4
    seconds = read_rows(tmp_path / "rows_seconds")
    assert seconds["products"].tolist() == ["float64", "float64", "float32", "float64"]
    assert (seconds["lanes"] == 4).all()
    assert (seconds["cpu_s"] >= 0).all()


def test_a_lane_that_diverges_is_a_failed_row() -> None:
    row = synthetic._row({"method": "dpgd"}, {"gradient_train_last": np.inf, "loss_train_last": 1.0})
    assert row == {"method": "dpgd", "loss_train_last": 1.0, "status": "diverged"}


@pytest.mark.parametrize(("mode", "d", "seed"), [("a", 20, 0), ("b", 50, 3), ("c", 20, 1)])
def test_committed_rows_come_back(mode: str, d: int, seed: int) -> None:
    """Committed rows come back to the last digit.

    Runs that rounding upsets, with step size alpha above 1/(r + 2), are compared only on the arithmetic on which they
    were made.
    """
    some = dataclasses.replace(synthetic.PAPER, steps=synthetic.PAPER.steps[:6], step_sizes=(0.01, 0.3, 1.0))
    some = dataclasses.replace(some, clips=(0.1, 1.0, 100.0))
    cells = [synthetic.SweepCell(method, mode, d, "zero", "paper", seed) for method in ("dpzero", "dpgd-0th")]
    committed = _committed().query(f"mode == '{mode}' and d == {d} and seed == {seed}").set_index([*synthetic.KEY])
    steady = 1 / (paper_spectrum(mode, d).sum() + 2) if others() else np.inf
    compared = 0
    for row in synthetic.run_cells(cells, some, synthetic.Computation()):
        if row["status"] == "ok" and row["step_size"] <= steady:
            expected = committed.loc[tuple(row[name] for name in synthetic.KEY)]
            assert [row[name] for name in synthetic.FIELDS] == [expected[name] for name in synthetic.FIELDS], row
            compared += 1
    assert compared >= 36


@lru_cache(maxsize=1)
def _committed() -> pd.DataFrame:
    return read_rows(RESULTS / "synthetic")
