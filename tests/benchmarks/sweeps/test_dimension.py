"""Tests that runs computed by blocks of coordinates equal runs on whole vectors, in one process or several."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.sweeps import dimension
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum
from tests import forks
from tests.synthetic.small import from_array
from tests.synthetic.test_device import VARY, Seen

ALONE = dimension._Worker(0, 1, "cpu")


@pytest.mark.parametrize("method", dimension.METHODS)
def test_streamed_rows_equal_the_engines(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dimension.BLOCKS, "cpu", 7)
    preset, d, seed = dimension.Sizes(30, (50,), steps=(3, 9)), 50, 4
    rows = [row for row in dimension.run_cell(preset, d, seed, ALONE) if row["method"] == method]
    widths = [7] * 7 + [1]
    draws = [[np.random.default_rng([seed, i, stream]) for stream in range(3)] for i in range(8)]
    data = np.hstack([1 + draw[0].standard_normal((30, w)) for draw, w in zip(draws, widths, strict=True)])
    u = np.hstack([draw[1].standard_normal((9, w)) for draw, w in zip(draws, widths, strict=True)])
    u *= np.sqrt(d) / np.linalg.norm(u, axis=1, keepdims=True)
    vectors = np.hstack([draw[2].standard_normal((9, w)) for draw, w in zip(draws, widths, strict=True)])
    scalars = np.random.default_rng([seed, 3]).standard_normal(9)
    problem = Quadratic(data, paper_spectrum("c", d))
    lanes = dimension._lanes(preset, method, d, problem.r)
    sweep, noise = (engine.dpzero, scalars) if method == "dpzero" else (engine.dpgd_0th, vectors)
    outcome = sweep(problem, np.zeros(d), lanes, directions=from_array(u), noise=from_array(noise))
    last = np.square((outcome.last - problem.center) * problem.spectrum).sum(axis=1)
    assert [row["gradient_squared"] for row in rows] == pytest.approx(outcome.gradient_squared[0], rel=1e-5)
    assert [row["last_gradient_squared"] for row in rows] == pytest.approx(last, rel=1e-5)
    assert rows[0]["r"] == pytest.approx(problem.r, rel=1e-12)


def test_two_processes_make_the_same_rows_as_one(tmp_path: Path) -> None:
    options = ["--seeds", "1", "--device", "cpu", "--out"]
    assert dimension.EXPERIMENT.main([*options, str(tmp_path / "one")]) == 0
    run = forks.run("-m", "tests.ranks", "2", "benchmarks.dimension", *options, tmp_path / "two")
    assert run.returncode == 0, run.stderr
    one, two = (read_rows(tmp_path / folder) for folder in ("one", "two"))
    changing = ["seconds", "peak_mb"]
    assert one.drop(columns=changing).equals(two.drop(columns=changing))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_cpus_rows_from_the_cpus_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = dimension.Sizes(30, (3_000,), steps=(3, 9))
    expected = dimension.run_cell(preset, 3_000, 4, ALONE)
    on_host = dimension.fill_normal

    def copied(values: torch.Tensor, key: list[int]) -> None:
        drawn = torch.empty_like(values, device="cpu")
        on_host(drawn, key)
        values.copy_(drawn)

    monkeypatch.setattr(dimension, "fill_normal", copied)
    monkeypatch.setitem(dimension.BLOCKS, "cuda", dimension.BLOCKS["cpu"])
    found = dimension.run_cell(preset, 3_000, 4, dimension._Worker(0, 1, "cuda"))
    for name in ("gradient_squared", "last_gradient_squared"):
        assert [row[name] for row in found] == pytest.approx([row[name] for row in expected], rel=1e-5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_draws_are_standard_normal_and_a_function_of_the_key(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    keys = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    draws = [torch.empty(40_000, dtype=torch.float64, device=device) for _ in keys]
    for values, key in zip(draws, keys, strict=True):
        dimension.fill_normal(values, key)
    assert torch.equal(draws[0], draws[-1])
    table = torch.stack(draws[:-1]).cpu().numpy()
    # The limit is 4.5 standard errors for each of 18 numbers, so that it fails by chance once in 8,000 times.
    limit = 4.5 / np.sqrt(40_000)
    assert np.abs(np.corrcoef(table) - np.eye(4)).max() < limit
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        assert np.abs((table**power).mean(axis=1) - moment).max() < limit * np.sqrt(variance)


def test_committed_memory_does_not_grow_with_the_dimension() -> None:
    peak = read_rows(RESULTS / "dimension").groupby("d")["peak_mb"].max()
    assert peak[1_000_000] <= 1.1 * peak[10_000]


def test_on_a_device_blocks_wait_for_nothing_and_nothing_is_brought_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device no block of coordinates waits for a result on the host or copies one there.

    At dimension 10^8 there are thousands of blocks. It is seen on `meta` tensors, which raise where the host must know
    a value.
    """
    monkeypatch.setitem(dimension.BLOCKS, "meta", 64)
    monkeypatch.setattr(dimension, "fill_normal", lambda values, key: None)
    worker, room = dimension._Worker(0, 1, "meta"), dimension._Room(50, 20, "meta")
    with Seen() as seen:
        given, squares = dimension._group(range(16), room, 1000, 0, worker)
    assert (given.data.shape, squares.shape) == ((20, 50), (20,))
    assert seen.operations["mm"] >= 16
    assert seen.operations["upload"] == 0
    assert not VARY & set(seen.operations)
