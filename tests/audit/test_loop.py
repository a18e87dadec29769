import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.catalogue import claim, records
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.loop import Loop, LoopFailed, Train, command, still

PROGRAM = """
import json, sys
import numpy as np
rows, settings = np.load(sys.argv[1]), json.load(open(sys.argv[2]))
print("seed", settings["seed"])
np.save(sys.argv[3], rows[:, :2] * settings["scale"])
"""


def loop(train: Train, view: View | None = None, **settings: Any) -> Loop:
    return Loop(train, records(), claim(), view or View(), settings)


def test_outputs_prints_and_files_are_kept_and_the_place_is_left() -> None:
    before = Path.cwd()

    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        print("loss 0.5")
        Path("log.txt").write_text("kept")
        return {"releases": [1.0, 2.0], "batches": [[0], [1, 2]], "seeds": [3, 4], "accuracy": 0.75}

    found = loop(train).run()
    assert found.releases is not None
    assert found.releases.shape == (2, 1)
    assert (found.batches, found.seeds) == ([[0], [1, 2]], [3, 4])
    assert found.shown["printed"] == "loss 0.5\n"
    assert found.shown["file log.txt"] == b"kept"
    assert found.shown["accuracy"] == 0.75
    assert "batches" not in found.shown
    assert Path.cwd() == before


def test_settings_go_by_the_loops_names() -> None:
    seen: dict[str, Any] = {}

    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        seen.update(settings)
        return [0.0]

    one = loop(train, View(names={"step_size": "lr", "batch": "bs"}), lr=0.5)
    found = one.run(step_size=0.0)
    assert (seen["lr"], seen["bs"], seen["noise_multiplier"]) == (0.0, 12, 2.0)
    assert one.step_size == 0.5
    assert still(one, found) == {"step_size": 0.0}
    assert still(loop(train), found) is None


def test_a_trajectory_gives_releases() -> None:
    path = np.cumsum(np.ones((4, 2)), axis=0)
    one = loop(lambda rows, seed, settings: {"trajectory": path}, step_size=0.5)
    found = one.run()
    np.testing.assert_allclose(found.releases, np.full((3, 2), -2.0))


@pytest.mark.parametrize(("start", "step"), [(0.0, 0.5e-30), (1.0, 2**-53 / (1e-9 * 2 / 12)), (1e4, 0.5e-4)])
def test_weights_that_are_seen_move_as_little_as_their_rounding_allows(start: float, step: float) -> None:
    """Weights that are shown move by a step so small that their rounding is a billionth of the noise, which is 2/12."""
    path = start + np.cumsum(np.vstack([np.zeros(2), np.full((3, 2), 1 / 3)]), axis=0)
    one = loop(lambda rows, seed, settings: {"trajectory": path}, step_size=0.5)
    found = still(one, one.run())
    assert found is not None
    assert found["step_size"] == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("value", ["words", [["a"]], [], 3.0])
def test_what_is_no_outcome(value: Any) -> None:
    with pytest.raises(LoopFailed, match="releases must"):
        loop(lambda rows, seed, settings: value).run()


def test_an_exception_is_one_line() -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        raise RuntimeError("first\nsecond")

    with pytest.raises(LoopFailed, match=r"^RuntimeError: first second$"):
        loop(train).run()


def test_global_generators_are_seeded_and_given_back() -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        return [random.random(), np.random.rand()]  # noqa: NPY002

    random.seed(1)
    state = random.getstate()
    runs = [
        loop(train).run(seed=2).releases,
        loop(train).run(seed=9, world=2).releases,
        loop(train).run(seed=3).releases,
    ]
    assert random.getstate() == state
    np.testing.assert_array_equal(runs[0], runs[1])  # type: ignore[arg-type]
    assert not np.array_equal(runs[0], runs[2])  # type: ignore[arg-type]


def test_a_program_is_a_loop(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    words = [sys.executable, str(script), "{records}", "{settings}", "{out}"]
    found = loop(command(words), scale=2.0).run(seed=7)
    np.testing.assert_allclose(found.releases, 2 * records()[:, :2])
    assert "seed 7" in found.shown["printed"]
    with pytest.raises(LoopFailed, match="ended with status"):
        loop(command([sys.executable, "-c", "raise SystemExit(3)"])).run()
    with pytest.raises(LoopFailed, match="wrote nothing"):
        loop(command([sys.executable, "-c", "pass"])).run()
