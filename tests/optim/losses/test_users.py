from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import RUN, read
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.verify import main
from dpzero_theory.optim.weights.directions import Directions

COUNTS = (1, 9, 4, 2, 14)
"""How many texts each user has."""
SETTINGS: dict[str, Any] = {
    "target_epsilon": 8.0, "target_delta": 1e-5, "steps": 4, "expected_batch": len(COUNTS), "clip": 0.5,
    "step_size": 0.1, "smoothing": 1e-3, "relation": "replace-one", "sampling": "full", "directions_per_step": 3,
    "micro_batch": 4,
}  # fmt: skip


def texts(changed: int | None = None) -> list[dict[str, Any]]:
    """Returns texts of a few users in turns; all those of user `changed`, if one is named, are extreme ones."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for turn in range(max(COUNTS)):
        for user, count in enumerate(COUNTS):
            features = torch.randn(3, generator=draw, dtype=torch.float64)
            if turn < count:
                size = 1e4 if user == changed else 1.0
                found.append({"x": size * features, "y": torch.tensor(turn % 2), "who": f"user {user}"})
    return found


def losses(module: torch.nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module(batch["x"]), batch["y"], reduction="none")


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2, dtype=torch.float64)


def started(folder: Path, data: Any, **changes: Any) -> Run:
    return make_private_with_epsilon(model(), losses, data, folder=folder, **{**SETTINGS, **changes})


def test_a_users_difference_is_that_of_the_users_texts(tmp_path: Path) -> None:
    data, release, width = texts(), 2, SETTINGS["smoothing"]
    run = started(tmp_path / "run", by_user(data, "who"))
    found = run.sums.differences(release, np.arange(len(COUNTS)))
    weights = [p.detach().clone() for p in run.weights.parameters]
    for k in range(3):
        direction = run.weights.directions
        shifts = [torch.zeros_like(w) for w in weights]
        for i, shift in enumerate(shifts):
            direction.shift(shift, 3 * release + k, i, 1.0, out=shift)
        for user in range(len(COUNTS)):
            ends = []
            for sign in (1, -1):
                moved = {n: w + sign * width * u for n, w, u in zip(run.weights.names, weights, shifts, strict=True)}
                weight, bias = moved["weight"], moved["bias"]
                own = [t for t in data if t["who"] == f"user {user}"]
                each = [-torch.log_softmax(weight @ t["x"] + bias, 0)[t["y"]].item() for t in own]
                ends.append(sum(each) / len(each))
            assert found[user, k] == pytest.approx((ends[0] - ends[1]) / (2 * width), rel=1e-6, abs=1e-9)


def test_all_texts_of_one_user_move_one_clipped_number_a_direction(tmp_path: Path) -> None:
    """The statement behind the guarantee: neighbours differ in all texts of user 4, who has 14 of 30."""
    ours, theirs = (by_user(texts(changed), "who") for changed in (None, 4))
    one, other = (started(tmp_path / name, data) for name, data in (("one", ours), ("other", theirs)))
    for run in (one, other):
        run.weights.directions = Directions(bytes(16), "rademacher")
    everyone, others = np.arange(len(COUNTS)), np.arange(len(COUNTS) - 1)
    unit = one.plan.unit * one.plan.expected_batch
    largest = 0.0
    for release in range(4):
        mine, changed = (run.sums.total(release, everyone) for run in (one, other))
        assert (one.sums.total(release, others) == other.sums.total(release, others)).all()
        moved = float(np.linalg.norm(unit * (mine - changed).astype(float)))
        assert moved <= 2 * SETTINGS["clip"] * (1 + 1e-6)
        largest = max(largest, moved)
    assert largest > SETTINGS["clip"] / 4  # fixed directions, in which the change is to be seen


def test_a_step_sees_one_draw_and_another_step_another(tmp_path: Path) -> None:
    """The texts of a user are drawn by the run's secret, the release and the user."""
    seen: list[tuple[float, ...]] = []

    def watched(module: torch.nn.Module, batch: Any) -> torch.Tensor:
        seen.append(tuple(batch["x"][:, 0].tolist()))
        assert "who" not in batch
        return losses(module, batch)

    def draws(folder: str, **changes: Any) -> list[tuple[float, ...]]:
        found, data = [], by_user(texts(), "who", at_most=2)
        run = make_private_with_epsilon(model(), watched, data, folder=tmp_path / folder, **{**SETTINGS, **changes})
        for release in range(20):
            seen.clear()
            run.sums.differences(release, np.array([4]))
            assert (len(seen), len(set(seen))) == (6, 1)
            found.append(seen[0])
        run.step()
        run.close()
        return found

    first = draws("run")
    assert len(set(first)) > 5
    assert {x for draw in first for x in draw} <= {float(t["x"][0]) for t in texts() if t["who"] == "user 4"}
    assert draws("run", resume=True) == first
    assert draws("other") != first


def test_draws_of_a_run_from_a_seed_follow_from_the_seed(tmp_path: Path) -> None:
    """With a folder and without one."""

    def ended(seed: int, folder: Path | None) -> list[float]:
        data = by_user(texts(), "who", at_most=2)
        plan = Plan.without_privacy(n=5, steps=6, expected_batch=5, sampling="full", smoothing=1e-3, step_size=0.1)
        run = make_from_seed_not_private(model(), losses, data, plan, seed=seed, folder=folder)
        run.run()
        run.close()
        return [x for weight in run.weights.parameters for x in weight.detach().flatten().tolist()]

    alone = ended(1, None)
    assert ended(1, tmp_path / "one") == ended(1, tmp_path / "other") == alone
    assert ended(2, None) != alone


def test_the_files_of_a_run_say_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    run = started(folder, by_user(texts(), "who", at_most=2), isolation="exact")
    run.run()
    run.close()
    told = statement(read(folder))
    unit = "user: mean of the losses of at most 2 texts a step"
    assert "differentially private for each user under replace-one" in told.claim
    assert told.facts["n"] == "5 users"
    assert told.facts["record"] == unit
    assert "covered for each of them" not in told.text()
    assert read(folder / RUN)[0].unit == unit
    assert main([str(folder), "--full"]) == 0
    assert unit in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"what a record is must be as in the run that is resumed"):
        started(folder, by_user(texts(), "who"), isolation="exact", resume=True)


def test_owners_by_column_function_or_list() -> None:
    rows = texts()
    who = torch.tensor([int(t["who"][-1]) for t in rows])
    pairs = TensorDataset(torch.stack([t["x"] for t in rows]), who)
    for key in (lambda t: int(t[1]), who, who.numpy()):
        data = by_user(pairs, key)
        assert [len(data[user]) for user in range(len(data))] == list(COUNTS)


@pytest.mark.parametrize(
    ("key", "options", "said"),
    [
        (["a"] * 29 + [["a", "b"]], {}, r"one owner; got 2 for text 29: leave texts of several owners out"),
        (["a"] * 29 + [None], {}, r"key must give every text one owner; got None for text 29"),
        (["a"] * 29, {}, r"key must have one owner for each of 30 texts; got 29"),
        ("speaker", {}, r"key must be found in every text; got 'speaker'"),
        ("who", {"at_most": 0}, "at_most must be"),
    ],
)
def test_texts_without_one_owner_are_refused(key: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        by_user(texts(), key, **options)


def test_users_of_users_are_refused() -> None:
    with pytest.raises(ValueError, match="texts must be the entries themselves"):
        by_user(by_user(texts(), "who"), "who")
