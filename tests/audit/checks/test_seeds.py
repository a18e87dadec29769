"""Tests of the streams of numbers that usual generators draw; loops with faults are tested in `test_zoo`."""

import numpy as np
import pytest

from dpzero_theory.audit.checks.seeds import derived, streams


@pytest.mark.parametrize("seed", [-5, 2**63, 2**64 + 1, 2**200])
def test_any_integer_can_be_a_seed(seed: int) -> None:
    for _, drawn in [*streams(seed, 4), *derived(seed, 3, 4)]:
        assert np.isfinite(drawn).all()
