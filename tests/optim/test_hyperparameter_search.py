"""Tests of private hyperparameter search.

Its cost is what the folders of its runs show, it can be resumed, and it picks a setting once.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim import hyperparameter_search as module
from dpzero_theory.optim.files.folder import LEDGER, epsilon_of_runs
from dpzero_theory.optim.hyperparameter_search import Search, make_private_search
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import read
from dpzero_theory.privacy.selection import Runs, selection_epsilon

SETTINGS: list[Any] = [{"clip": 1.0}, {"clip": 2.0, "step_size": 0.05}, {"smoothing": 1e-2}]
TARGET: dict[str, Any] = {
    "target_epsilon": 2.0,
    "target_delta": 1e-5,
    "steps": 6,
    "expected_batch": 40,
    "clip": 1.0,
    "step_size": 0.1,
    "smoothing": 1e-3,
    "relation": "replace-one",
    "sampling": "full",
}


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def losses(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.fixture(scope="module")
def data() -> TensorDataset:
    torch.manual_seed(1)
    features = torch.randn(40, 3)
    return TensorDataset(features, (features[:, 0] > 0).long())


def weight(model: nn.Module) -> float:
    return float(next(model.parameters()).detach().sum())


def search(data: Any, folder: Path, **changes: Any) -> Search:
    arguments = {"score": weight, "runs": Runs(3.0), **TARGET, **changes}
    settings = arguments.pop("settings", SETTINGS)
    return make_private_search(build, losses, data, settings, folder=folder, **arguments)


def test_the_best_of_random_runs_costs_the_target(data: TensorDataset, tmp_path: Path) -> None:
    found = search(data, tmp_path / "s")
    assert 1.99 < found.epsilon <= 2.0
    folders = sorted((tmp_path / "s").glob("run-*"))
    assert folders == []
    best = found.run()
    folders = sorted((tmp_path / "s").glob("run-*"))
    assert len(folders) == len(found.picks) >= 1
    assert best is not None
    assert best.score == weight(best.module)
    for folder, pick in zip(folders, found.picks, strict=True):
        account = read(folder / LEDGER)
        assert account.settings == found.plans[pick].settings
        assert sum(spend.count for spend in account.spends) == 6
        paid = [found.plans[pick].settings.release(6)]
        assert selection_epsilon(paid, 1e-5, Runs(3.0)).upper <= found.epsilon
    assert {plan.noise_multiplier for plan in found.plans} == {found.plans[0].noise_multiplier}


def test_each_setting_once_is_composed(data: TensorDataset, tmp_path: Path) -> None:
    found = search(data, tmp_path / "s", runs=None)
    found.run()
    folders = sorted((tmp_path / "s").glob("run-*"))
    assert len(folders) == 3
    assert found.picks == (0, 1, 2)
    assert epsilon_of_runs(folders, 1e-5) <= 2.0
    assert epsilon_of_runs(folders, 1e-5) == pytest.approx(found.epsilon)
    one = found.plans[0].settings.release(18)
    assert epsilon_of_history([one], 1e-5).lower > 1.99


def test_it_resumes_with_the_same_picks_and_the_same_best(data: TensorDataset, tmp_path: Path) -> None:
    whole = search(data, tmp_path / "s", runs=None)
    calls = 0

    def interrupted(model: nn.Module) -> float:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return weight(model)

    with pytest.raises(KeyboardInterrupt):
        replace(whole, score=interrupted).run()
    again = search(data, tmp_path / "s", runs=None, resume=True)
    assert again.picks == whole.picks
    first, second = again.run(), again.run()
    assert first is not None
    assert second is not None
    assert first.score == second.score
    assert torch.equal(next(first.module.parameters()), next(second.module.parameters()))
    with pytest.raises(ValueError, match=r"^settings must be those of the search that is resumed"):
        search(data, tmp_path / "s", runs=None, resume=True, settings=[{"clip": 1.5}, *SETTINGS[1:]])
    with pytest.raises(FileExistsError, match="not empty"):
        search(data, tmp_path / "s", runs=None)


def test_a_search_from_before_difference_rules_is_resumed(data: TensorDataset, tmp_path: Path) -> None:
    """Its plans have no rule, and are those of a search by central differences."""
    whole = search(data, tmp_path / "s", runs=None)
    path = tmp_path / "s" / "search.json"
    kept = json.loads(path.read_text())
    assert [plan.pop("difference") for plan in kept["plans"]] == ["central"] * len(kept["plans"])
    path.write_text(json.dumps(kept))
    assert search(data, tmp_path / "s", runs=None, resume=True).plans == whole.plans
    with pytest.raises(ValueError, match=r"^plans must be those of the search that is resumed"):
        search(data, tmp_path / "s", runs=None, resume=True, difference="forward")


def test_the_choice_is_the_best_score_and_nan_is_the_lowest(
    data: TensorDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([math.nan, 1.0, 3.0])
    found = search(data, tmp_path / "s", runs=None, score=lambda _: next(scores)).run()
    assert found is not None
    assert (found.score, found.setting) == (3.0, SETTINGS[2])
    monkeypatch.setattr(module.Runs, "draw", lambda *_: 0)
    assert search(data, tmp_path / "none", runs=Runs(0.5, math.inf)).run() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": []}, r"^settings must hold at least one"),
        ({"settings": [{"steps": 3}]}, r"^settings must be one of clip, step_size"),
        ({"settings": [{"clip": math.nan}]}, r"^clip must be"),
        ({"target_epsilon": math.nan}, r"^target_epsilon must be"),
        ({"noise": "laplace"}, r"^noise must be gaussian in a search"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_written(
    data: TensorDataset, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        search(data, tmp_path / "s", **changes)
    assert list(tmp_path.iterdir()) == []
