"""Tests of what is seen of a loop: outputs, prints, files, tokens, and the records that it is given."""

import gc
import gzip
import io
import logging
import math
import os
import random
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.table import claim, records
from dpzero_theory.audit import datasets
from dpzero_theory.audit.checks.leaks import contents
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.loop import Loop, LoopFailed, Train, known_system
from dpzero_theory.audit.runs import LoopRuns


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
    """Weights that are returned, shown or not, move by a step whose rounding is a billionth of the noise, 2/12."""
    path = start + np.cumsum(np.vstack([np.zeros(2), np.full((1, 2), 1 / 3)]), axis=0)
    hidden = View(hidden=("trajectory",))
    runs = LoopRuns(loop(lambda rows, seed, settings: {"trajectory": path}, hidden, step_size=0.5))
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
    with known_system():
        runs = [loop(train).run(**how).releases for how in ({"seed": 2}, {"seed": 9, "global_seed": 2}, {"seed": 3})]
    assert random.getstate() == state
    np.testing.assert_array_equal(np.asarray(runs[0]), np.asarray(runs[1]))
    assert not np.array_equal(np.asarray(runs[0]), np.asarray(runs[2]))


def test_the_systems_random_bytes_can_be_known() -> None:
    def draw() -> list[Any]:
        return [os.urandom(3), random.SystemRandom().random(), float(np.random.default_rng().normal())]

    real = os.urandom
    with known_system() as entropy:
        found = []
        for number in (1, 1, 2, None, None):
            entropy.start(number)
            found.append(draw())
    assert found[0] == found[1]
    assert len({str(one) for one in found}) == 4
    assert os.urandom is real


@pytest.mark.parametrize("tick", [0.0, 0.5])
def test_clocks_can_be_known(tick: float) -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        first = time.time()
        return [first, time.perf_counter() - first, time.monotonic_ns() / 1e9 - first]

    before, one = time.time(), loop(train)
    with one.clocks(tick):
        with one.clocks(1.0):
            one.run()
        found = [np.asarray(one.run().releases).ravel().tolist() for _ in range(2)]
    assert found[0] == found[1]
    assert found[0][1:] == [tick, 2 * tick]
    assert before <= time.time() < before + 1000


def test_prints_logs_and_warnings_of_users_are_seen() -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        print("said")
        print("warned", file=sys.stderr)
        logging.getLogger("any").warning("logged")
        for _ in range(2):
            warnings.warn("loss 0.25", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return np.array([1.0]) / 0

    printed = str(loop(train).run().shown["printed"])
    assert all(word in printed for word in ("said\n", "warned\n", "logged\n"))
    assert printed.count("UserWarning: loss 0.25") == 2
    assert "old" not in printed
    assert "divide" not in printed


def test_names_that_change_are_one_place() -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        Path("part").mkdir()
        Path(f"part/weights_{seed / 4}.txt").write_text("x")
        Path(tempfile.mkstemp(dir=".")[1]).write_text("y")
        return [0.0]

    one = loop(train)
    found = [one.run(seed=seed).shown for seed in (1, 2)]
    names = {"releases", "printed", "names of files", "file part/weights_#.#.txt", "file #"}
    assert found[0].keys() == found[1].keys() == names
    assert [str(shown["names of files"]) for shown in found] == [f"part/weights_{x}.txt tmp" for x in (0.25, 0.5)]


def test_a_working_folder_is_gone_with_its_loop() -> None:
    one = loop(lambda rows, seed, settings: [0.0])
    one.run()
    folder = one._folder
    assert list(folder.iterdir()) == []
    del one
    gc.collect()
    assert not folder.exists()


def content(value: Any) -> list[Any]:
    [(_, found)] = contents("any", value)
    return found


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ('{"run": "e857b1f3144df62b", "x": 1.5}', [b'{"run":', b'"', b"e857b1f3144df62b", b'",', b'"x":', 1.5, b"}"]),
        (
            "123e4567-e89b-12d3-a456-426614174000 1234567890123456",
            [b"123e4567-e89b-12d3-a456-426614174000", 1234567890123456.0],
        ),
        ("log_e857b1f3144df62b.bin", [b"log_", b"e857b1f3144df62b", b".bin"]),
        ("1.2345678901234567e-05", [1.2345678901234567e-05]),
        ("loss=0.5, step 3 fine", [b"loss=", 0.5, b",", b"step", 3.0, b"fine"]),
        (b"-1e-3 x", [-1e-3, b"x"]),
        (2, [2.0]),
        (True, [1.0]),
        ([1.0, math.nan], [1.0, b"nan"]),
        (np.arange(3.0), [0.0, 1.0, 2.0]),
        ({"a": 1}, [b"{'a':", 1.0, b"}"]),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", [b"\x00\x01\x02\x03", b"\x04\x05\x06\x07"]),
    ],
)
def test_what_is_shown_as_numbers_and_words(value: Any, wanted: list[Any]) -> None:
    assert content(value) == wanted


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_packed_files_are_opened(pack: Callable[[bytes], bytes]) -> None:
    assert content(pack(b"loss 0.5")) == [b"loss", 0.5]


def test_what_only_begins_like_a_packed_file_is_taken_as_it_is() -> None:
    assert content(b"\x1f\x8b\x00\x01\x02\x03\x04\x05") == [b"\x1f\x8b\x00\x01", b"\x02\x03\x04\x05"]
    assert content(b"PK\x03\x04\x02\x03\x04\x05") == [b"PK\x03\x04\x02\x03\x04\x05"]


def test_archives_and_arrays_are_opened() -> None:
    raw = io.BytesIO()
    np.savez(raw, a=np.array([1.5, 2.5]), b=np.array([3]))
    assert dict(contents("file x.npz", raw.getvalue())) == {"file x.npz/a.npy": [1.5, 2.5], "file x.npz/b.npy": [3.0]}
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("model/data", "0.5")
    assert dict(contents("file y", raw.getvalue())) == {"file y/data": [0.5]}


ROWS = np.arange(6.0).reshape(3, 2)
PAIRS = [(np.array([1.0, 2.0]), 1), (np.array([3.0, 4.0]), 0)]


def test_neighbours_leave_the_data_alone() -> None:
    other = datasets.replaced(ROWS, 1, ROWS[0])
    np.testing.assert_array_equal(other[1], [0.0, 1.0])
    np.testing.assert_array_equal(ROWS[1], [2.0, 3.0])
    assert len(datasets.removed(ROWS, 0)) == 2
    assert datasets.removed(PAIRS, 0) == PAIRS[1:]
    assert datasets.filled(PAIRS, PAIRS[0]) == [PAIRS[0]] * 2
    np.testing.assert_array_equal(datasets.filled(ROWS, ROWS[2]), [[4.0, 5.0]] * 3)


def test_labels_stay() -> None:
    features, label = datasets.scaled(PAIRS[0], -2.0)
    np.testing.assert_array_equal(features, [-2.0, -4.0])
    assert label == 1
    features, label = datasets.mirrored(PAIRS[0])
    np.testing.assert_array_equal(features, [-1.0, -2.0])
    assert label == 1
    np.testing.assert_array_equal(datasets.mirrored(np.array([1.0, 2.0, 3.0])), [-1.0, -2.0, 3.0])
    assert datasets.scaled("text", 2.0) == "text"


@pytest.mark.parametrize(
    "records", [ROWS, PAIRS, [0.5, 1.5, 2.5], ["a", "b", "c"]], ids=["rows", "pairs", "numbers", "words"]
)
def test_extremes_have_the_records_kind(records: object) -> None:
    for record in datasets.extremes(records):
        assert type(record) is type(records[0])  # type: ignore[index]


def test_numbers_and_poison() -> None:
    assert datasets.numbers(PAIRS[0]) == [1.0, 2.0]
    assert datasets.numbers("text") == []
    first, second, *ends, largest = datasets.poisoned(ROWS[0])
    assert np.isnan(first).all()
    assert np.isinf(second).all()
    assert {int(np.flatnonzero(one != ROWS[0])[0]) for one in ends} == {0, len(ROWS[0]) - 1}
    assert all((one != ROWS[0]).sum() == 1 for one in ends)
    assert (np.abs(largest) == np.finfo(ROWS.dtype).max).all()
    assert [type(one) for one in datasets.poisoned(PAIRS[0])] == [tuple] * 9
    assert list(datasets.poisoned("text")) == []
    assert datasets.scaled(PAIRS, 3.0)[1][0].tolist() == [9.0, 12.0]
