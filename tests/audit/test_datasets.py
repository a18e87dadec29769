"""Extreme and poisoned records, of every kind of number that a record may have."""

import numpy as np
import pytest
import torch

from dpzero_theory.audit.datasets import extremes, numbers, poisoned, scaled

RECORDS = [
    (1.5, 1),
    (np.float32(1.5), 1),
    (np.array([1.5, -2.0], dtype=np.float32), 1),
    (torch.tensor([1.5, -2.0]), 1),
    torch.tensor([1.5, -2.0], requires_grad=True),
]


@pytest.mark.parametrize("record", RECORDS, ids=["float", "float32", "array", "tensor", "gradient"])
def test_every_kind_of_number_is_scaled_and_poisoned(record: object) -> None:
    first = numbers(record)
    assert numbers(scaled(record, 2.0)) == [2 * x for x in first]
    assert all(not np.isfinite(numbers(bad)).all() or max(np.abs(numbers(bad))) > 1e37 for bad in poisoned(record))
    assert len(list(poisoned(record))) >= 3
    assert len({str(numbers(other)) for other in extremes([record] * 3)}) >= 9
    assert numbers(record) == first


def test_a_type_stays() -> None:
    assert type(scaled(np.float32(2.0), 2.0)) is np.float32
    assert scaled(torch.tensor([2.0]), 2.0).dtype == torch.float32
