"""Tests of what a released moment of gradient norms costs: its noise, and the committed rows."""

import math

import pytest
from scipy.stats import norm

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.theory import gradient_moment
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe


def test_a_row_splits_the_budget_between_the_release_and_the_run() -> None:
    row = gradient_moment.row(10_000, 4.0, 5.0)
    (committed,) = [
        one for one in read_rows(RESULTS / "gradient_moment").to_dict("records")
        if (one["n"], one["power"], one["cap"]) == (10_000, 4, 5)
    ]  # fmt: skip
    assert {name: committed[name] for name in row} == pytest.approx(row, rel=1e-5)
    mu = float(gdp_from_epsilon(2, 1e-6))
    release, run = mu * math.sqrt(row["share"]), mu * math.sqrt(1 - row["share"])
    assert row["upper"] == pytest.approx(1 + norm.isf(0.01) / release * 5**4 / 10_000)
    problem = Problem(n=10_000, d=2_000, r=8.178, gradient_moment=(4, row["upper"]))
    bound = prescribe(problem, run, max_steps=4_850, directions_per_step=32).bound
    assert row["released"] == pytest.approx(bound, rel=1e-9)


def test_what_the_page_says_of_the_rows() -> None:
    rows = read_rows(RESULTS / "gradient_moment")
    assert (rows["released"] > rows["known"]).all()
    fourth = rows[(rows["power"] == 4) & (rows["cap"] >= 5)]
    assert (fourth["released"] < fourth["capped"]).all()
