import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzero_theory.privacy.lattice import Lattice


def test_rounding_keeps_the_sensitivity() -> None:
    lattice = Lattice(clip=0.3, levels=7)
    rng = np.random.default_rng(5)
    values = rng.normal(scale=0.4, size=4_000)
    rounded = lattice.round(values)
    assert np.abs(rounded).max() == 7
    assert np.abs(rounded * lattice.spacing - np.clip(values, -0.3, 0.3)).max() <= lattice.spacing / 2 + 1e-15
    swaps = [
        int(lattice.round([a]).sum() - lattice.round([b]).sum()) for a, b in zip(values, values[::-1], strict=True)
    ]
    assert max(swaps) == 14


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.floats(1e-300, 1e300), st.integers(1, 2**52), st.floats(allow_nan=True, allow_infinity=True))
def test_no_contribution_leaves_the_range(clip: float, levels: int, value: float) -> None:
    rounded = int(Lattice(clip, levels).round([value])[0])
    assert -levels <= rounded <= levels


def test_nan_and_infinite_contributions_are_mapped_silently() -> None:
    assert Lattice(1.0, 5).round([math.nan, math.inf, -math.inf]).tolist() == [0, 5, -5]


@pytest.mark.parametrize(("clip", "levels"), [(0.0, 4), (math.nan, 4), (1.0, 0), (1.0, 2.5), (1.0, 2**53)])
def test_bad_lattices(clip: float, levels: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Lattice(clip, levels)
