"""Tests of the map from a record's losses to integers of a lattice, each record on its own."""

import math

import numpy as np
import pytest
import torch

from dpzero_theory.optim.step.contributions import per_record, to_lattice
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


def test_a_number_for_the_whole_batch_is_refused() -> None:
    assert per_record(torch.arange(3.0), 3).tolist() == [0.0, 1.0, 2.0]
    for bad in (torch.tensor(0.5), torch.zeros(3, 1), torch.zeros(2), torch.zeros(0), 0.5, None):
        with pytest.raises(ValueError, match=r"losses must be a tensor of shape \(batch,\) = \(3,\)"):
            per_record(bad, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_losses_in_half_precision_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="losses must be float32 or float64"):
        per_record(torch.zeros(3, dtype=dtype), 3)


def test_losses_are_numbers_of_their_own() -> None:
    losses = torch.zeros(3, dtype=torch.float64)
    found = per_record(losses, 3)
    losses += 1
    assert found.tolist() == [0.0, 0.0, 0.0]
