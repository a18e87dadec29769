"""Tests of a record whose loss, or whose reading, raises an error.

It counts as 0, and nothing that may be seen shows it.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.privacy.ledger import Ledger
from tests.optim.small import BUDGET, FULL, STEP, Logistic, N, data, losses, plan

BAD = 7
"""The number of the record that raises an error; its first feature is 99."""


def records() -> list[Any]:
    rows = [(features.clone(), label) for features, label in data()]
    rows[BAD][0][0] = 99.0
    return rows


def raises_in(place: str, error: type[Exception] = KeyError) -> tuple[Any, Any, Any]:
    """Returns losses, a data set and a collate function, of which one raises an error for record `BAD` alone.

    `place` says which one it is, and `error` is the type of the error.
    """

    class Rows(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if place == "reading" and index == BAD:
                raise error("private words")
            return super().__getitem__(index)

    class Many(Rows):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[i] for i in indices]

    def joined(rows: Any) -> Any:
        if place == "collate" and any(row[0][0] == 99 for row in rows):
            raise error("private words")
        return default_collate(rows)

    def raising(module: Any, batch: Any) -> Tensor:
        # This test of the batch's values is no operation on tensors that could be traced.
        there = bool((batch[0].numpy()[:, 0] == 99).any())
        side = {"one point": 1, "the other": -1}.get(place)
        if there and (place == "losses" or (side and side * module.weight[0].clone().numpy() > 0)):
            raise error("private words")
        found = losses(module, batch)
        return found.sum() if there and place == "shape" else found

    return raising, (Many if place == "reading" and error is OSError else Rows)(records()), joined


PLACES = [
    ("losses", torch.OutOfMemoryError), ("reading", IndexError), ("reading", OSError), ("collate", RuntimeError),
    ("one point", ValueError), ("the other", ValueError), ("shape", ValueError),
]  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "probed": {},
    "exact": {"isolation": "exact", "micro_batch": 16},
    "one by one": {"micro_batch": 1},
    "several points": {"directions_per_step": 2, "points_at_once": 4, "direction": "low-rank"},
}
CASES = [*(("probed", *case) for case in PLACES), *((way, "losses", KeyError) for way in WAYS)]
EVERY = pytest.mark.parametrize(("way", "place", "error"), CASES, ids=lambda value: getattr(value, "__name__", value))


@EVERY
def test_a_run_goes_on_and_shows_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], way: str, place: str, error: type[Exception]
) -> None:
    raising, rows, joined = raises_in(place, error)
    settings = {**BUDGET, **STEP, **FULL, "folder": tmp_path / "run", "micro_batch": 8, **WAYS[way]}
    with warnings.catch_warnings(action="error"):
        run = make_private_with_epsilon(Logistic(), raising, rows, collate=joined, **settings)
        run.run()
    assert capfd.readouterr() == ("", "")
    paid = Ledger.read(tmp_path / "run" / "run.sqlite")
    assert paid.spent == len(read(tmp_path / "run" / "run.sqlite")[1]) == STEP["steps"]
    run.close()
    assert b"private words" not in b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    again = make_private_with_epsilon(Logistic(), raising, rows, collate=joined, **settings, resume=True)
    assert again.releases_left == 0


@EVERY
def test_a_record_that_raises_is_worth_nothing_and_the_others_what_they_are(
    way: str, place: str, error: type[Exception]
) -> None:
    """The sum over all records is that of the others up to rounding, by 1e-9 of a clip."""
    options = dict(WAYS[way])
    settings = {key: options.pop(key) for key in list(options) if key in ("directions_per_step", "direction")}
    raising, rows, joined = raises_in(place, error)
    options = {"micro_batch": 8, **options}
    run = make_from_seed_not_private(Logistic(), raising, rows, plan(**settings), seed=3, collate=joined, **options)
    sound = make_from_seed_not_private(Logistic(), losses, data(), plan(**settings), seed=3, **options)
    every = np.arange(N)
    found, expected = run.sums.total(0, every), sound.sums.total(0, every[every != BAD])
    levels = run.plan.rule.levels
    assert np.abs(found - expected).max() <= 1e-9 * levels * N
    assert np.abs(expected).max() > 1e-3 * levels


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_ends_the_run(tmp_path: Path, kind: type[BaseException]) -> None:
    calls: list[int] = []

    def ends(module: Any, batch: Any) -> Tensor:
        calls.append(1)
        if len(calls) > 15:
            raise kind
        return losses(module, batch)

    run = make_private_with_epsilon(Logistic(), ends, data(), **BUDGET, **STEP, **FULL, folder=tmp_path / "run")
    with pytest.raises(kind):
        run.run()


def failing(what: Callable[[], object]) -> Any:
    def broken(module: Any, batch: Any) -> Tensor:
        what()
        return losses(module, batch)

    return broken


def test_losses_that_raise_for_every_record_are_refused_as_they_raise(tmp_path: Path) -> None:
    """Losses that raise an error for every record are refused with that error, and nothing is written or spent."""
    for isolation in ("probed", "exact"):
        with pytest.raises(ZeroDivisionError):
            make_private_with_epsilon(
                Logistic(), failing(lambda: 1 / 0), data(), **BUDGET, **STEP, **FULL, folder=tmp_path / "run",
                isolation=isolation,
            )  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        make_from_seed_not_private(Logistic(), failing(lambda: 1 / 0), data(), plan(), seed=3)
    ragged = [(features[: 3 + i % 3], label) for i, (features, label) in enumerate(data())]
    with pytest.raises(RuntimeError, match="equal size"):
        make_private_with_epsilon(
            Logistic(), lambda m, b: losses(m, (nn.functional.pad(b[0], (0, 6 - b[0].shape[1])), b[1])), ragged,
            **BUDGET, **STEP, **FULL, folder=tmp_path / "run",
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
