"""Tests of the benchmark that counts the matrix products of DP-GD.

The products are counted as they are made, and the results page says what the committed rows say.
"""

import numpy as np
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.sweeps import dpgd_products
from benchmarks.sweeps.synthetic import paper_lanes, samples
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum
from tests.optim import reference

GRID = dpgd_products.GRIDS["paper"]


def test_products_are_those_of_lanes_with_a_sample_to_clip() -> None:
    """The counted products are those of settings in which some sample is clipped.

    They are counted again in runs of the reference algorithm, one setting at a time, up to the little that is
    multiplied besides.
    """
    grid, d = dpgd_products.GRIDS["smoke"], 5
    row = dpgd_products.measure(grid, "c", d)
    train, _, _ = samples(grid.n, d, 0)
    problem, lanes = Quadratic(train, paper_spectrum("c", d)), paper_lanes(grid, "paper")
    assert row["lane_steps"] == lanes.steps.sum() == 2 * 2 * (10 + 40)
    clipping = 0
    for steps, step_size, clip, std in zip(lanes.steps, lanes.step_size, lanes.clip, lanes.noise_std, strict=True):
        options = {"steps": int(steps), "step_size": float(step_size), "clip": float(clip), "noise_std": float(std)}
        run = reference.dpgd(problem, np.zeros(d), noise=SeededNoise(0), **options)
        assert run.trajectory is not None
        longest = [np.linalg.norm(problem.gradients(x), axis=1).max() for x in run.trajectory[:-1]]
        clipping += sum(length > clip for length in longest)
    assert 0 < clipping < row["lane_steps"]
    assert row["clipping_lane_steps"] == pytest.approx(clipping, rel=0.1)


def test_columns_of_the_committed_rows_fit_each_other() -> None:
    """The columns of the committed rows fit each other.

    For each number of steps T up to 160 the grid has 88 settings; the other columns follow from operations, times and
    the peak speed.
    """
    rows = read_rows(RESULTS / "dpgd_products")
    assert len(rows) == 21
    assert (rows["lane_steps"] == 88 * (10 + 20 + 40 + 80 + 160)).all()
    operations = 4.0 * GRID.n * (rows["d"] + 2) * rows["clipping_lane_steps"]
    assert operations.to_numpy() == pytest.approx(1e9 * rows["gflops"] * rows["product_s"], rel=2e-3)
    assert (rows["product_s"] / rows["total_s"]).to_numpy() == pytest.approx(rows["product_share"], rel=2e-3)
    whole = 88 * 10 * (2**10 - 1) / rows["lane_steps"]
    minutes = operations * whole / (1e9 * rows["peak_gflops"]) / 60
    assert minutes.to_numpy() == pytest.approx(rows["grid_minutes_at_peak"], rel=2e-3)


def test_the_wall() -> None:
    """The products of the whole grid, alone and at the processor's peak speed, take more than 25 minutes.

    That holds for two ways to count them.
    """
    rows = read_rows(RESULTS / "dpgd_products").set_index(["mode", "d"])
    seconds = read_rows(RESULTS / "synthetic_dpgd_seconds").set_index(["mode", "d"])["cpu_s"]
    at_peak = seconds * rows["product_share"] * rows["gflops"] / rows["peak_gflops"]
    assert len(at_peak) == 21
    assert at_peak.sum() > 25 * 60
    assert rows["grid_minutes_at_peak"].sum() > 25
    assert (rows["gflops"] < rows["peak_gflops"]).all()
