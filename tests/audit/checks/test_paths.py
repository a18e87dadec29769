"""Tests of what the audit takes for a path from a record to an output beside the releases."""

import numpy as np
import pytest

from dpzero_theory.audit.checks.paths import _Runs, _with_sums


def test_a_sum_of_rounded_numbers_is_as_coarse_as_its_numbers() -> None:
    """Numbers that are moved by three steps of their rounding say nothing, and neither does their sum."""
    draw = np.random.default_rng(3)
    shown = np.round(draw.normal(size=(40, 10)), 4)
    noisy = _Runs(draw.normal(size=(40, 5)), shown, np.full(10, 1e-4))
    effects = np.full(10, 3e-4)
    table, moved, names = _with_sums(noisy, effects, [("printed", k) for k in range(10)])
    assert names[-1] == "printed"
    assert table.steps[-1] == pytest.approx(10 * 3e-4 * 1e-4)
    assert moved[-1] < 4 * table.steps[-1]
    assert np.diff(np.unique(table.shown[:, -1])).min() < table.steps[-1] / 2
