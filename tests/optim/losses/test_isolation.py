"""Tests of isolation: a record's loss must not depend on the other records of its batch.

Losses that mix records are refused before a release is paid for, and sound ones are not.
"""

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.verify import verify
from tests.optim.small import BUDGET, FULL, POISSON, STEP
from tests.optim.zoo import (
    COUPLED,
    SOUND,
    TABLE,
    Attention,
    Case,
    D,
    N,
    Pooled,
    Together,
    after,
    cross_entropy,
    in_training,
    net,
    table,
    text,
)

MOST = 10
"""A start makes fewer evaluations of the losses than this."""


def started(case: Case, folder: Path, **changes: Any) -> tuple[Any, list[int]]:
    """Starts a run on a module, losses and data of the zoo.

    Returns the run, and the number of records in each evaluation that the start made.
    """
    make, losses, data, collate = case
    sizes: list[int] = []

    def counted(module: nn.Module, batch: Any) -> Tensor:
        found = losses(module, batch)
        sizes.append(len(found))
        return found

    torch.manual_seed(0)
    settings = {**BUDGET, **STEP, **FULL, "expected_batch": N, "collate": collate, **changes}
    return make_private_with_epsilon(make(), counted, data, folder=folder, **settings), sizes


@pytest.mark.parametrize("name", COUPLED)
def test_losses_that_mix_records_are_refused_before_anything_is_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"^losses must give each record a number of its own") as found:
        started(COUPLED[name], tmp_path / "run")
    assert "\n" not in str(found.value)
    assert list(tmp_path.iterdir()) == []


class Linear8bitLt(nn.Linear):
    """Has of bitsandbytes' layer of this name the threshold."""

    def __init__(self, threshold: float) -> None:
        super().__init__(D, 1)
        self.state = SimpleNamespace(threshold=threshold)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:module has trainable weights in half precision")
@pytest.mark.parametrize("name", SOUND)
def test_losses_that_do_not_mix_records_are_accepted(tmp_path: Path, name: str) -> None:
    run, sizes = started(SOUND[name], tmp_path / "run")
    assert run.releases_left == STEP["steps"]
    most = MOST + 64 * name.startswith("not a number")  # of which a start looks at more records
    assert len(sizes) < most
    assert sum(sizes) < most * N
    assert read(tmp_path / "run" / "run.sqlite")[0].isolation == "probed"


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({**POISSON, "expected_batch": 3}, 14),
        ({**POISSON, "expected_batch": 16, "micro_batch": 20}, 20),
        ({**POISSON, "expected_batch": 3, "sampling": "fixed-size"}, 3),
    ],
)
def test_a_start_evaluates_as_many_records_as_a_micro_batch_may_have(
    tmp_path: Path, changes: dict[str, Any], most: int
) -> None:
    """A Poisson batch may have 6 standard deviations more records than expected."""
    _, sizes = started(table(), tmp_path / "run", **changes)
    assert len(sizes) < MOST
    assert max(sizes) == most
    many = table(losses=after(lambda v: v - v.mean() if len(v) >= most else v))
    with pytest.raises(ValueError, match="a number of its own"):
        started(many, tmp_path / "other", **changes)


def with_module(make: Any) -> Case:
    _, losses, data, collate = SOUND["linear"]
    return (make, losses, data, collate)


OTHERS: dict[str, tuple[Case, dict[str, Any], str]] = {
    "eight bits with a threshold for outliers, which no record shows": (
        with_module(lambda: nn.Sequential(net(), Linear8bitLt(6.0))),
        {},
        r"^module must keep records apart; got 1 in 8 bits .* = 6, by .*threshold=0.0",
    ),
    "padding that counts": (
        text(lambda: Pooled(masked=False)),
        {"micro_batch": N},
        r"alone, without padding \(of texts, pad on the right: tokenizer.padding_side = 'right'",
    ),
    "no kind of isolation": (table(), {"isolation": "perfect"}, "must be one of probed, exact; got 'perfect'"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_keep_records_apart_is_refused(tmp_path: Path, name: str) -> None:
    case, changes, said = OTHERS[name]
    with pytest.raises(ValueError, match=said):
        started(case, tmp_path / "run", **changes)
    assert list(tmp_path.iterdir()) == []


def test_what_a_refused_start_has_put_into_buffers_is_taken_back(tmp_path: Path) -> None:
    module = net(nn.BatchNorm1d(D))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match="losses must"):
        started((lambda: module, in_training, TABLE, None), tmp_path / "run")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def lost(share: float) -> Case:
    """Return records of which a share, drawn at random, cannot be read."""

    def read(records: list[Any]) -> list[Any]:
        if any(float(features.sum()) in gone for features, _ in records):
            raise FileNotFoundError("no such file")
        return records

    drawn = np.random.default_rng(0).permutation(N)[: int(share * N)]
    gone = {float(TABLE[i][0].sum()) for i in drawn.tolist()}
    return table(data=Together(TABLE, read))


def with_labels(change: Any) -> Case:
    return table(losses=lambda module, batch: cross_entropy(module, [batch[0], change(batch[1])]))


def with_weights(dtype: torch.dtype, value: float) -> Case:
    def made() -> nn.Module:
        module = net().to(dtype)
        for parameter in module.parameters():
            parameter.data.fill_(value)
        return module

    return table(made, losses=lambda module, batch: cross_entropy(lambda x: module(x.to(dtype)).float(), batch))


NOTHING: dict[str, tuple[Case, str]] = {
    "weights are NaN": (with_weights(torch.float32, math.nan), "finite numbers for .* got none for 32 of 32"),
    "overflows": (with_weights(torch.float16, 6e4), "finite numbers for the records; got none for 22 of 32"),
    "lambda is rounded away": (with_weights(torch.bfloat16, 1.0), "change .*smoothing = 0.001 .* for bfloat16"),
    "no label": (with_labels(lambda y: torch.full_like(y, -100)), "change with the weights; .* all 32 records"),
    "labels of no class": (with_labels(lambda y: 3 * y), r"finite numbers .*\(IndexError: Target . is out of bounds"),
    "files are missing": (lost(5 / 8), r"finite numbers .* got none for .. .* \(FileNotFoundError: no such file\)"),
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize("settings", [{"micro_batch": 1}, {"difference": "forward"}], ids=str)
def test_a_run_that_would_learn_nothing_is_refused(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    case, said = NOTHING[name]
    with pytest.raises(ValueError, match=f"^losses must (be )?{said}") as found:
        started(case, tmp_path / "run", **settings)
    assert "\n" not in str(found.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("micro_batch", [1, 16])
def test_a_run_with_a_few_lost_records_or_0_1_losses_is_not(tmp_path: Path, micro_batch: int) -> None:
    right = table(losses=lambda m, b: (m(b[0]).argmax(1) != m(b[0]).argmax(1)).float())
    for number, case in enumerate((lost(1 / 8), right)):
        started(case, tmp_path / str(number), micro_batch=micro_batch)


def test_exact_isolation_evaluates_every_record_by_itself(tmp_path: Path) -> None:
    """So other records cannot change a bit of its loss, whatever the lengths and the operations."""
    run, sizes = started(text(Attention), tmp_path, isolation="exact", micro_batch=16, **POISSON)
    run.step()
    run.close()
    assert set(sizes) == {1}
    assert {f.name: f.value for f in verify(tmp_path, None, None).findings}["isolation"] == "exact"


def test_rounding_that_lambda_makes_visible_is_said_once(tmp_path: Path) -> None:
    """Where rounding becomes visible in the differences because the smoothing lambda is small, one warning says so.

    In float32 the spacing of numbers at a loss of 1 is 1.2e-7; for 48 records that is 5.7 in differences at lambda =
    1e-6.
    """
    with pytest.warns(UserWarning, match="smoothing = 1e-06 makes rounding visible: it moves losses by 2e-07") as found:
        started(table(), tmp_path / "a", smoothing=1e-6)
    assert len(found) == 1
    assert "\n" not in str(found[0].message)
    started(SOUND["float64"], tmp_path / "b", smoothing=1e-6)
    started(table(), tmp_path / "c", smoothing=1e-6, micro_batch=1)
    started(table(), tmp_path / "d", smoothing=1e-6, isolation="exact")


def test_half_precision_weights_are_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"^module has trainable weights in half precision, .* make them float32"):
        started(SOUND["bfloat16"], tmp_path, smoothing=1.0)
