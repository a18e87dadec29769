import gc
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.table import claim, records
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.loop import Loop, LoopFailed, Train, watch
from dpzero_theory.audit.runs import LoopRuns
from dpzero_theory.audit.system import generators_kept, known_clocks, known_entropy


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
    one.run(step_size=0.0)
    assert (seen["lr"], seen["bs"], seen["noise_multiplier"]) == (0.0, 12, 2.0)
    assert one.step_size == 0.5


def test_a_trajectory_gives_releases() -> None:
    path = np.cumsum(np.ones((4, 2)), axis=0)
    found = loop(lambda rows, seed, settings: {"trajectory": path}, step_size=0.5).run()
    np.testing.assert_allclose(np.asarray(found.releases), np.full((3, 2), -2.0))


@pytest.mark.parametrize(("start", "step"), [(0.0, 0.5e-30), (1.0, 2**-53 / (1e-9 * 2 / 12)), (1e4, 0.5e-4)])
def test_weights_that_are_seen_move_as_little_as_their_rounding_allows(start: float, step: float) -> None:
    """Weights that are shown move by a step so small that their rounding is a billionth of the noise, which is 2/12."""
    path = start + np.cumsum(np.vstack([np.zeros(2), np.full((1, 2), 1 / 3)]), axis=0)
    runs = LoopRuns(loop(lambda rows, seed, settings: {"trajectory": path}, step_size=0.5))
    assert runs.frozen["step_size"] == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("value", ["words", [["a"]], [], 3.0])
def test_what_is_no_outcome(value: Any) -> None:
    with pytest.raises(LoopFailed, match="releases must"):
        loop(lambda rows, seed, settings: value).run()


@pytest.mark.parametrize(
    ("error", "said"), [(RuntimeError("first\nsecond"), "RuntimeError: first second"), (SystemExit(1), "SystemExit: 1")]
)
def test_an_exception_is_one_line(error: BaseException, said: str) -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        raise error

    with pytest.raises(LoopFailed, match=f"^{said}$"):
        loop(train).run()


def test_global_generators_are_seeded_and_given_back() -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        return [random.random(), np.random.rand()]  # noqa: NPY002

    random.seed(1)
    state = random.getstate()
    with generators_kept():
        runs = [loop(train).run(**how).releases for how in ({"seed": 2}, {"seed": 9, "world": 2}, {"seed": 3})]
    assert random.getstate() == state
    np.testing.assert_array_equal(np.asarray(runs[0]), np.asarray(runs[1]))
    assert not np.array_equal(np.asarray(runs[0]), np.asarray(runs[2]))


def test_the_systems_random_bytes_can_be_known() -> None:
    def draw() -> list[Any]:
        return [os.urandom(3), random.SystemRandom().random(), float(np.random.default_rng().normal())]

    real = os.urandom
    with known_entropy() as entropy:
        found = []
        for number in (1, 1, 2, None, None):
            entropy.start(number)
            found.append(draw())
    assert found[0] == found[1]
    assert len({str(one) for one in found}) == 4
    assert os.urandom is real


@pytest.mark.parametrize("tick", [0.0, 0.5])
def test_clocks_can_be_known(tick: float) -> None:
    before = time.time()
    with known_clocks(tick) as clock:
        for _ in range(2):
            clock.start()
            first = time.time()
            assert (time.perf_counter() - first, time.monotonic_ns() / 1e9 - first) == (tick, 2 * tick)
    assert before <= time.time() < before + 1000


def test_prints_logs_and_warnings_of_users_are_seen(tmp_path: Path) -> None:
    with watch(tmp_path) as shown:
        print("said")
        print("warned", file=sys.stderr)
        logging.getLogger("any").warning("logged")
        for _ in range(2):
            warnings.warn("loss 0.25", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        _ = np.array([1.0]) / 0
    printed = str(shown["printed"])
    assert all(word in printed for word in ("said\n", "warned\n", "logged\n"))
    assert printed.count("UserWarning: loss 0.25") == 2
    assert "old" not in printed
    assert "divide" not in printed


def test_names_that_change_are_one_place(tmp_path: Path) -> None:
    found = []
    for loss in (0.25, 0.5):
        with watch(tmp_path) as shown:
            Path("part").mkdir()
            Path(f"part/weights_{loss}.txt").write_text("x")
            Path(tempfile.mkstemp(dir=".")[1]).write_text("y")
        found.append(shown)
    assert found[0].keys() == found[1].keys() == {"printed", "names of files", "file part/weights_#.#.txt", "file #"}
    assert [str(shown["names of files"]) for shown in found] == [f"part/weights_{x}.txt tmp" for x in (0.25, 0.5)]
    assert list(tmp_path.iterdir()) == []


def test_the_place_comes_back_after_an_exception(tmp_path: Path) -> None:
    before = Path.cwd()
    with pytest.raises(KeyError), watch(tmp_path):
        raise KeyError("any")
    assert Path.cwd() == before


def test_a_working_folder_is_gone_with_its_loop() -> None:
    one = loop(lambda rows, seed, settings: [0.0])
    one.run()
    folder = one._folder
    assert list(folder.iterdir()) == []
    del one
    gc.collect()
    assert not folder.exists()
