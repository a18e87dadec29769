"""Tests of the benchmark of users as records."""

import math

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.privacy import users


def test_the_noise_of_full_batches_is_that_of_the_gaussian_trade_off() -> None:
    """delta of mu-GDP is Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2), mu = 2 size sqrt(T)/s."""

    def delta(mu: float) -> float:
        e = users.EPSILON
        return float(ndtr(-e / mu + mu / 2) - math.exp(e) * ndtr(-e / mu - mu / 2))

    mu = brentq(lambda mu: delta(mu) - users.DELTA, 0.1, 10, xtol=1e-14)
    for size in (1, 50):
        # replace-one: a record moves the sum by two clips; noise multipliers are in units of one
        found = users._multiplier(size, 1.0, "full")
        assert found == pytest.approx(2 * size * math.sqrt(users.STEPS) / mu, rel=1e-6)


def test_the_committed_rows() -> None:
    rows = read_rows(RESULTS / "users")
    noise = rows.set_index("texts")
    assert noise.loc[50, "texts_noise"] >= 5 * noise.loc[50, "users_noise"]
    assert noise.loc[1, "texts_noise"] == noise.loc[1, "users_noise"]
