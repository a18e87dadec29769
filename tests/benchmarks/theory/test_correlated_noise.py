"""The workload of a pool against runs, the best noise against a search, and what the committed rows say."""

import numpy as np

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.theory import correlated_noise


def test_the_workload_is_the_squared_gradient_of_runs() -> None:
    rng = np.random.default_rng(0)
    directions = correlated_noise.pool(5, 7, rng)
    matrix = correlated_noise.workload(directions)
    noise = rng.standard_normal((3, correlated_noise.STEPS))
    found = correlated_noise.squares(directions, np.zeros((3, 5)), noise)
    np.testing.assert_allclose(np.einsum("rs,st,rt->r", noise, matrix, noise), found, rtol=1e-10)


def test_no_covariance_near_the_best_is_better_at_the_same_privacy() -> None:
    rng = np.random.default_rng(1)
    matrix = correlated_noise.workload(correlated_noise.pool(5, 3, rng))
    best, bound = correlated_noise.best_noise(matrix)
    least = float(np.sum(matrix * best))
    assert np.diag(np.linalg.inv(best)).max() <= 1 + 1e-9
    assert (1 - 1e-9) * bound <= least <= (1 + 1e-4) * bound
    for _ in range(50):
        change = rng.standard_normal(best.shape)
        other = best + 0.01 * float(np.abs(best).max()) * change @ change.T / len(best)
        other *= float(np.diag(np.linalg.inv(other)).max())
        assert float(np.sum(matrix * other)) >= least


def test_committed_gains_are_attained_and_measured() -> None:
    rows = read_rows(RESULTS / "correlated_noise")
    assert (rows["gain_known"] <= rows["gain_bound"] * (1 + 1e-9)).all()
    assert (rows["gain_known"] >= rows["gain_bound"] * (1 - 1e-6)).all()
    assert (np.abs(rows["runs_known"] - rows["gain_known"]) <= 4.5 * rows["runs_error"]).all()
    fresh = rows[rows["pool"] == correlated_noise.STEPS]
    assert fresh["gain_unknown"].max() <= 1.01
    again = correlated_noise.workload(correlated_noise.pool(64, 1, np.random.default_rng([64, 1, 0])))
    row = rows[(rows["d"] == 64) & (rows["pool"] == 1) & (rows["seed"] == 0)].iloc[0]
    bound = float(np.trace(again)) / correlated_noise.best_noise(again)[1]
    np.testing.assert_allclose(bound, row["gain_bound"], rtol=1e-6)
