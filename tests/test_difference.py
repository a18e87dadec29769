"""Tests of the registry of difference rules: its names, and the evaluations of a step that each rule counts."""

import pytest

from dpzero_theory.difference import DIFFERENCES


@pytest.mark.parametrize(("name", "points"), [("central", [2, 8, 32]), ("forward", [2, 5, 17]), ("exact", [2, 5, 17])])
def test_points_of_a_step_with_1_4_and_16_directions(name: str, points: list[int]) -> None:
    assert [DIFFERENCES[name].points(k) for k in (1, 4, 16)] == points
