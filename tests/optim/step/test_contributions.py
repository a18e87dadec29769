"""Tests of the map from a record's losses to integers of a lattice, each record on its own."""

import math

import numpy as np
import pytest

from dpzero_theory.optim.step.contributions import to_lattice
from dpzero_theory.privacy.lattice import Lattice


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((0.3, -0.4), (0.3, -0.4)),
        ((3.0, -4.0), (0.6, -0.8)),
        ((math.nan, 0.5), (0.0, 0.5)),
        ((math.inf, 5.0), (1.0, 0.0)),
        ((math.inf, -math.inf), (math.sqrt(0.5), -math.sqrt(0.5))),
        ((1e300, 1e300), (math.sqrt(0.5), math.sqrt(0.5))),
    ],
)
def test_vectors_are_clipped_jointly_and_rounded_toward_zero(
    row: tuple[float, float], expected: tuple[float, float]
) -> None:
    lattice = Lattice(1.0, 10_000)
    found = to_lattice(lattice, np.array([row]))[0]
    exact = np.array(expected) * 10_000
    assert (np.abs(found) <= np.abs(exact)).all()
    assert np.abs(found - exact).max() <= 1.0001
