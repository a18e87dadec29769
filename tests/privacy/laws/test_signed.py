"""Tests of sums of laws on the signed grid, against all pairs of points, one by one."""

import numpy as np
import pytest

from dpzero_theory.privacy.laws.signed import SignedGrid, Weights

GRIDS = [SignedGrid(0.1, 0.1, 70), SignedGrid(2.0, 0.03, 40), SignedGrid(1.0, 0.5, 9), SignedGrid(1.0, 0.2, 1)]


def law(rng, grid, *shape):
    return Weights(rng.random((grid.count, 2, *shape)), rng.random(shape))


def points(grid):
    return np.concatenate([-grid.points[::-1], [0.0], grid.points])


def spread(grid, a, b):
    """Returns the law of the sum of two laws on the grid, by brute force.

    It also returns how far beyond the last point of the grid the sum is on average. a and b are the masses of the two
    laws at the grid's points.
    """
    at = points(grid)
    value, weight = np.add.outer(at, at).ravel(), np.outer(a, b).ravel()
    lost = weight @ np.maximum(value - at[-1], 0)
    value = np.clip(value, at[0], at[-1])
    k = np.clip(np.searchsorted(at, value, side="right") - 1, 0, len(at) - 2)
    share = (value - at[k]) / (at[k + 1] - at[k])
    return np.bincount(k, weight * (1 - share), len(at)) + np.bincount(k + 1, weight * share, len(at)), lost


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("same", [True, False])
def test_a_sum_is_spread_as_by_brute_force(grid, same):
    rng = np.random.default_rng(1)
    a = law(rng, grid, 3)
    b = a if same else law(rng, grid, 3)
    found, lost = grid.add(a, b)
    for k in range(3):
        expected, beyond = spread(grid, a.rising()[:, k], b.rising()[:, k])
        np.testing.assert_allclose(found.rising()[:, k], expected, rtol=1e-11, atol=1e-15 * expected.sum())
        assert lost[k] == pytest.approx(beyond, rel=1e-11)


@pytest.mark.parametrize("grid", GRIDS[:3])
def test_small_weights_stay_relative(grid):
    scale = np.exp(-np.linspace(0, 60, 2 * grid.count + 1))
    a = Weights.of(scale)
    found, _ = grid.add(a, a)
    expected, _ = spread(grid, scale, scale)
    assert expected.min() < 1e-12 * expected.max()
    np.testing.assert_allclose(found.rising(), expected, rtol=1e-10)


@pytest.mark.parametrize("grid", GRIDS[:3])
@pytest.mark.parametrize("same", [True, False])
def test_to_one_point_keeps_every_pair_near(grid, same):
    rng = np.random.default_rng(3)
    at = points(grid)
    for k in range(0, len(at), 3):
        j = k if same else int(rng.integers(len(at)))
        a, b = (Weights.of(np.eye(len(at))[i]) for i in (k, j))
        found = grid.add(a, a if same else b, nearest=True)[0].rising()
        assert np.sum(found) == 1
        assert np.count_nonzero(found) == 1
        value = np.clip(at[k] + at[j], at[0], at[-1])
        reached = at[int(np.argmax(found))]
        # The point with the mass and the true sum are within three quarters of a grid cell
        assert abs(reached - value) <= max(abs(value) * np.expm1(0.75 * grid.ratio), 0.51 * grid.least) + 1e-12


def test_laws_are_added_one_by_one_and_broadcast():
    grid, rng = GRIDS[0], np.random.default_rng(4)
    three, one = law(rng, grid, 3, 2), law(rng, grid, 1, 2)
    together = grid.add(three, one, nearest=True)[0].rising()
    for k in range(3):
        alone = grid.add(three[k : k + 1], one, nearest=True)[0].rising()
        np.testing.assert_allclose(together[:, k], alone[:, 0], rtol=1e-12)
