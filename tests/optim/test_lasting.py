"""Tests of runs whose batches depend on one another, over stops and copies.

Their sampling is random allocation, or groups of records that take turns.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import Ledger
from dpzero_theory.privacy.sampling import sampling_of
from dpzero_theory.privacy.step import step_of
from tests.optim.small import Logistic, N, data, losses, plan

ALLOCATED: dict[str, Any] = {"sampling": "random-allocation:2", "sample_rate": 1 / 4}
CYCLIC: dict[str, Any] = {"sampling": "cyclic-poisson:4", "sample_rate": 1 / 4}
HALF: dict[str, Any] = {**CYCLIC, "sample_rate": 1 / 8}


def private(folder: Path, resume: bool | str = False, **changes: Any) -> Run:
    """Returns a private run with the noise that full batches would need.

    `resume` says whether a run in `folder` is continued, and `changes` are changes of the plan.
    """
    full = plan(relation="add-remove")
    step = replace(full.step, sampling=sampling_of(changes.pop("sampling"), changes.pop("sample_rate")))
    settings = replace(full, step=step, **changes)
    return make_private(Logistic(), losses, data(), settings, target_delta=1e-5, folder=folder, resume=resume)


def batches(run: Run, releases: range) -> list[list[int]]:
    return [run._batches(release).tolist() for release in releases]


def test_a_record_is_in_so_many_batches_of_an_epoch_and_a_resumption_goes_on_with_them(tmp_path: Path) -> None:
    """An epoch has four steps; of two epochs, each is interrupted in the middle and resumed."""
    used: list[list[int]] = []
    known: list[list[int]] = []
    for stop in (2, 7, 8):
        run = private(tmp_path, **{**ALLOCATED, "sample_rate": 1 / 2}, resume=bool(used))
        drawn = run._batches
        run._batches = lambda release, drawn=drawn: (used.append(b := drawn(release)), b)[1]  # type: ignore
        while run.releases_left > 8 - stop:
            run.step()
        run.close()
        again = batches_of(run, drawn)
        assert known in ([], again)
        known = again
    assert [batch.tolist() for batch in used] == known  # type: ignore[attr-defined]
    for epoch in (known[:4], known[4:]):
        assert np.bincount(np.concatenate(epoch).astype(int), minlength=N).tolist() == [2] * N
    assert known[:4] != known[4:]


def batches_of(run: Run, drawn: Any) -> list[list[int]]:
    return [drawn(release).tolist() for release in range(run.plan.steps)]


def test_groups_are_the_same_after_a_resumption_and_the_batches_in_them_new(tmp_path: Path) -> None:
    """With rate 1/4 in four groups a batch is the whole group whose turn it is; with rate 1/8 it is about half of
    it."""
    run = private(tmp_path / "whole", **CYCLIC)
    groups = batches(run, range(4))
    assert sorted(itertools.chain(*groups)) == list(range(N))
    run.close()
    run = private(tmp_path / "whole", **CYCLIC, resume=True)
    assert batches(run, range(8)) == groups + groups
    run.close()
    run = private(tmp_path / "half", **HALF)
    first = batches(run, range(40))
    run.close()
    run = private(tmp_path / "half", **HALF, resume=True)
    assert batches(run, range(40)) != first
    for turn in range(4):
        of_turn = [set(batch) for batch in batches(run, range(turn, 40, 4)) + first[turn::4]]
        others = set().union(*(batch for other in range(4) if other != turn for batch in first[other::4]))
        assert not set().union(*of_turn) & others


@pytest.mark.parametrize("settings", [ALLOCATED, HALF], ids=lambda settings: str(settings["sampling"]))
def test_the_ledger_names_the_law_and_costs_what_the_accountant_certifies(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = private(tmp_path, **settings)
    for _ in range(5):
        run.step()
    run.close()
    mechanism = run.plan.release.mechanism
    law = step_of(run.plan.noise_multiplier, 5, **settings, relation="add-remove", mechanism=mechanism)
    with Ledger.open(tmp_path / "run.sqlite") as ledger:
        assert ledger.history == [law]
    certified = epsilon_of_history([law], 1e-5).upper
    assert run.plan.epsilon(1e-5).upper == run.get_epsilon(1e-5) >= certified
    assert 0 < certified <= run.plan.epsilon(1e-5).upper


def test_what_cannot_be_drawn_is_refused() -> None:
    asked = {"relation": "add-remove", "expected_batch": 11}
    with pytest.raises(
        ValueError, match=r"^expected_batch must be 2 n over a whole number of steps .*, as 10 or 11\.42857"
    ):
        plan(**asked, sampling="random-allocation:2")
    with pytest.raises(ValueError, match=r"^sample_rate must be .* <= 0\.25; got 0\.275"):
        plan(**asked, sampling="cyclic-poisson:4")
    with pytest.raises(ValueError, match="sampling must be one of full, poisson, fixed-size, random-allocation; got"):
        plan(sampling="fixed-order")
