"""Tests of the comparison of two data sets, by what a model is given of their records."""

from typing import Any

import numpy as np
import pytest
import torch
from dpzero_theory.optim.losses.overlap import Inputs
from torch.utils.data import TensorDataset

FEATURES = torch.arange(60.0).reshape(20, 3)
TENSORS = TensorDataset(FEATURES, torch.zeros(20))
IMAGES, OTHERS = (
    [{"pixels": kind((2, 2), i), "file": f"{name}/{i}", "target": i} for i in range(4)]
    for kind, name in ((np.full, "a"), (lambda *given: torch.full(*given).float(), "b"))
)
RAGGED = [{"words": [["a"], ["b", "c"]], "spans": [[1], [2, 3]]}]


@pytest.mark.parametrize(
    ("data", "others", "given", "found"),
    [
        (TENSORS, [(row.numpy().astype(np.float64), 1) for row in FEATURES], {}, 20),
        (TENSORS, [(row.tolist(), "a label") for row in FEATURES], {}, 20),
        (TENSORS, TensorDataset(FEATURES + 3, torch.zeros(20)), {}, 19),
        (torch.tensor([[0, 1], [1, 1]]).bool(), torch.tensor([[0.0, 1.0], [1.0, 1.0]]).bfloat16(), {}, 2),
        (IMAGES, OTHERS, {}, 0),
        (IMAGES, OTHERS, {"names": ("pixels",)}, 4),
        (["a", "b"], ["b", "c"], {}, 1),
        (RAGGED, [dict(RAGGED[0])], {}, 1),
        (RAGGED, [{**RAGGED[0], "words": [["a"], ["b", "d"]]}], {}, 0),
        ([{"input_ids": [5, 6, 7]}], [{"input_ids": [0, 5, 6, 7, 0]}], {}, 0),
        ([{"input_ids": [5, 6, 7]}], [{"input_ids": [0, 5, 6, 7, 0]}], {"padding": 0}, 1),
    ],
)
def test_records_are_told_apart_by_what_a_model_is_given(data: Any, others: Any, given: Any, found: int) -> None:
    inputs = Inputs(**given)
    assert inputs.shared(data, others) == found
    assert not {*Inputs(**given).digests(data)} & {*inputs.digests(data)}  # keys differ: digests tell nothing


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(ValueError, match=r"^records must .*can be compared|^records can be compared"):
        Inputs().digests([lambda: 1])
