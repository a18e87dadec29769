"""Tests of the expected least loss of the quadratic, against random samples."""

import numpy as np
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.sweeps import least_loss
from benchmarks.sweeps.synthetic import PAPER
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum


@pytest.mark.parametrize("mode", "abc")
def test_the_minimum_over_samples_is_near_its_expectation(mode: str) -> None:
    """The least loss of a random sample is near its expectation.

    tr(A S)/2, with the sample covariance S, has standard deviation sqrt(sum a_i^2 / (2 n)); six of these are allowed,
    and one part in n of the expectation.
    """
    n, a = 2_000, paper_spectrum(mode, 50)
    data = 1 + np.random.default_rng(1).standard_normal((n, 50))
    expected = least_loss.row(mode, 50)["least_loss"]
    assert abs(Quadratic(data, a).minimum - expected) < 6 * np.sqrt((a**2).sum() / (2 * n)) + expected / n


def test_the_committed_rows_are_the_papers_dimensions() -> None:
    rows = read_rows(RESULTS / "least_loss")
    assert set(zip(rows["mode"], rows["d"], strict=True)) == {(mode, d) for mode in "abc" for d in PAPER.dimensions}
