"""Tests of the conversions between arrays and tensors, and of the check of a run's start."""

import math

import numpy as np
import pytest
import torch

from dpzero_theory.synthetic.place import Place, checked_start, to_numpy


def test_values_go_in_by_the_dtype_and_come_out_in_float64() -> None:
    values = np.array([0.1, 2.0, -3.5])
    inside = Place(torch.float32, "cpu")(values)
    assert (inside.dtype, inside.tolist()) == (torch.float32, values.astype(np.float32).tolist())
    outside = to_numpy(inside)
    assert outside.dtype == np.float64
    np.testing.assert_array_equal(outside, values.astype(np.float32))


def test_a_start_has_the_shape_of_the_problem_and_finite_values() -> None:
    assert checked_start(np.array([1, 2]), 2).dtype == np.float64
    with pytest.raises(ValueError, match=r"x0 must have shape \(d,\) = \(3,\); got \(2,\)"):
        checked_start(np.zeros(2), 3)
    with pytest.raises(ValueError, match="x0 must be finite"):
        checked_start(np.array([0.0, math.nan]), 2)
