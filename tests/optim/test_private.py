"""Tests of the example that users copy, and of what the makers of runs take and refuse."""

import inspect
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from dpzero_theory.check import names_of
from dpzero_theory.optim import private
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.plan import Plan
from tests.optim.small import BUDGET, FEATURES, FULL, LABELS, STEP, Logistic, N, data, losses
from tests.optim.small import private as started

README = Path(__file__).resolve().parents[2] / "README.md"
EXAMPLE = re.findall(r"```python\n(import torch\n.*?get_epsilon\(1e-5\)\)\n)", README.read_text(), re.S)[0]


def test_the_example_runs_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chance is 50%, and eight trials reached 77% to 90%."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(EXAMPLE, names)
    assert 1.9 < float(capsys.readouterr().out) <= 2.0
    features, labels = names["data"].tensors
    assert (names["model"](features).argmax(dim=1) == labels).float().mean() > 0.65
    torch.manual_seed(0)
    torch.randn(1000, 20)
    again = nn.Linear(20, 2)
    read(tmp_path / "run" / "run.sqlite").replayed(again)
    assert torch.equal(again.weight, names["model"].weight)


MAKERS = (private.make_private_with_epsilon, private.make_private, private.make_from_seed_not_private)


@pytest.mark.parametrize("maker", MAKERS)
def test_help_lists_every_setting_with_its_meaning(maker: Any) -> None:
    """Every setting is typed. The settings for how a run is executed are the same for all makers."""
    taken = inspect.signature(maker).parameters
    described = re.findall(r"^    (\w[\w, ]*): ", inspect.getdoc(maker) or "", re.M)
    assert ", ".join(described).split(", ")[: len(taken)] == list(taken)
    for argument in taken.values():
        assert argument.annotation is not argument.empty
    known, _ = names_of(maker)
    assert set(private._Execution.__annotations__) <= set(known)


def test_the_settings_of_a_target_are_those_of_a_plan() -> None:
    """Each is described."""
    known, _ = names_of(Plan.for_target)
    described = re.findall(r"^    (\w+): ", inspect.getdoc(Plan.for_target) or "", re.M)
    assert set(known) <= set(described)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_name_that_is_unknown_or_missing_is_one_line(maker: Any, tmp_path: Path) -> None:
    known, required = names_of(maker)
    good = dict.fromkeys(required, 1)
    for wrong, meant in (("micro_batches", "micro_batch"), ("isolations", "isolation"), ("collate_fn", "collate")):
        with pytest.raises(ValueError, match=rf"^unknown setting {wrong}; did you mean {meant}\? \(got {wrong}=3\)$"):
            maker(**good, **{wrong: 3})
    for name in required:
        with pytest.raises(ValueError, match=f"^{name} must be given: there is no default$"):
            maker(**{other: 1 for other in required if other != name})
    assert len(known) > len(required)


class Stream(IterableDataset[Any]):
    """A data set whose records can only be iterated over and have no indices."""

    def __iter__(self) -> Any:
        return iter(data())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "steps": ({"steps": 10**12, "step_size": lambda step: 0.1}, "steps must be an integer with 1 <= steps <= 1000000"),
    "epsilon": ({"target_epsilon": 1e308}, "target_epsilon must"),
    "small epsilon, laplace": (
        {"target_epsilon": 1e-8, "target_delta": 0.0, "noise": "laplace"},
        "target_epsilon must be met with a noise",
    ),
    "several directions, laplace": ({"noise": "laplace", "directions_per_step": 2}, "directions_per_step must"),
    "a part of full batches": ({"expected_batch": 10}, "sample_rate must"),
    "a stream": ({"data": Stream()}, "data must be a map-style data set: .*; got Stream"),
    "a loader": (
        {"data": DataLoader(data(), batch_size=4)},
        "data must be a map-style .* its dataset.*; got DataLoader",
    ),
    "arrays": ({"data": (FEATURES, LABELS)}, r"data must be .* TensorDataset\(X, y\) of tensors.*; got tuple"),
    "no records": ({"data": []}, "data must hold a record; got none"),
    "a mean": (
        {"losses": lambda m, b: losses(m, b).mean()},
        r"losses must be a tensor of shape \(batch,\).*; got \(\)",
    ),
    "integers": ({"losses": lambda m, b: losses(m, b).int()}, "losses must be float32 or float64.*; got torch.int32"),
    "a column": (
        {"losses": lambda m, b: losses(m, b)[:, None]},
        r"losses must be a tensor of shape .*; got \(\d+, 1\)",
    ),
    "no losses": ({"losses": None}, "losses must be a function; got NoneType"),
}


BAD: list[Any] = ["2", torch.tensor(1.0), True, {"a": 1}, math.nan, -1, 10**400]
NUMBERS = (
    "target_epsilon", "target_delta", "steps", "expected_batch", "clip", "step_size", "smoothing",
    "directions_per_step", "micro_batch", "points_at_once", "paid_at_once",
)  # fmt: skip
WORDS = ("relation", "sampling", "algorithm", "noise", "direction", "isolation")
OTHERS = ("resume", "folder", "module", "losses", "data", "collate")


def refused(place: Path, match: str, **changes: Any) -> None:
    """Requires that make_private_with_epsilon refuses the arguments `changes` in one line, with nothing written.

    `match` is a pattern of the message, and `place` the folder where nothing may be written.
    """
    given = {"module": Logistic(), "losses": losses, "data": data(), **BUDGET, **STEP, **FULL, **changes}
    with pytest.raises(ValueError, match=match) as found:
        private.make_private_with_epsilon(**{"folder": place / "run", **given})
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 300
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", [*NUMBERS, *WORDS, *OTHERS])
def test_a_value_of_another_type_is_refused_by_name(tmp_path: Path, name: str) -> None:
    for value in BAD:
        fine = (name == "resume" and value is True) or (name == "folder" and isinstance(value, str))
        fine = fine or (name == "data" and isinstance(value, (list, np.ndarray, torch.Tensor)))
        if not fine:
            refused(tmp_path, f"^{name}( and|,|\\b).* must ", **{name: value})
    if name not in (*OTHERS, "step_size", "paid_at_once"):
        refused(tmp_path, f"^{name}\\b.* must ", **{name: None})


@pytest.mark.parametrize(("delta", "warned"), [(0.9 / N, False), (1.1 / N, True)])
def test_a_delta_above_one_in_n_is_warned_of(tmp_path: Path, delta: float, warned: bool) -> None:
    given = {**BUDGET, **STEP, **FULL, "target_delta": delta}
    with pytest.warns(UserWarning, match=r"^delta 0.0275 is above 1/n = 0.025") if warned else nullcontext():
        private.make_private_with_epsilon(Logistic(), losses, data(), **given, folder=tmp_path / "run").close()


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"steps": np.int64(1), "micro_batch": np.int64(1), "clip": np.float32(0.5)}
    given = {"module": Logistic(), "losses": losses, "data": data(), **BUDGET, **STEP, **FULL, **numbers}
    run = private.make_private_with_epsilon(**given, folder=tmp_path / "run")
    run.step()
    run.close()
    private.make_private_with_epsilon(**{**given, "module": Logistic()}, folder=tmp_path / "run", resume=True).close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_is_refused_before_anything_is_there(tmp_path: Path, case: str) -> None:
    changes, message = REFUSED[case]
    refused(tmp_path, f"^{message}", **changes)


def test_low_rank_directions_say_once_which_weights_have_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dpzero_theory.optim.private.watched", lambda: True)
    started(tmp_path / "low rank", direction="low-rank").close()
    assert capsys.readouterr().err == "low-rank: 6 of 6 trained weights are in no matrix and get random signs\n"
    started(tmp_path / "signs").close()
    assert capsys.readouterr().err == ""
