"""Tests of the sweep on the paper's synthetic problem and of the demo: the grid, rows against definitions, pictures."""

import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import demo, synthetic
from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum
from tests import forks

TINY = synthetic.Preset(60, (5,), steps=(3, 8), step_sizes=(0.05,), clips=(0.5, 5.0))


def test_the_grid_is_the_papers() -> None:
    lanes = synthetic.paper_lanes(synthetic.PAPER)
    assert len(lanes) == 10 * 11 * 8
    assert synthetic.PAPER.dimensions == (20, 50, 100, 200, 500, 1000, 2000)
    assert (lanes.steps.min(), lanes.steps.max()) == (10, 5120)
    # The noise is sigma = 4 C sqrt(2 T log(e + eps/delta))/(n eps), as Algorithms 1 and 2 state it.
    sigma = 4 * lanes.clip * np.sqrt(2 * lanes.steps * np.log(np.e + 2 / 1e-6)) / (10_000 * 2)
    np.testing.assert_allclose(lanes.noise_std, sigma, rtol=1e-12)


@pytest.mark.parametrize("method", synthetic.METHODS)
def test_measurements_are_those_of_the_losses(method: str) -> None:
    """Measurements equal those computed from the definitions on the samples that the cell draws."""
    group = synthetic.Group((method,), "b", 5, 3)
    rows = synthetic.run_group(group, TINY)
    assert len(rows) == 4
    spectrum = paper_spectrum("b", 5)
    rng = np.random.default_rng([3, 5])
    train, test = 1 + rng.standard_normal((60, 5)), 1 + rng.standard_normal((60, 5))
    problem, lanes = Quadratic(train, spectrum), synthetic.paper_lanes(TINY)
    (outcome,) = synthetic.outcomes(group, problem, lanes, test.mean(axis=0), "cpu")
    for lane, row in enumerate(rows):
        for on, data in (("train", train), ("test", test)):
            offsets = outcome.last[lane] - data
            gradient = np.linalg.norm((offsets * spectrum).mean(axis=0))
            loss = 0.5 * np.einsum("ij,j,ij->i", offsets, spectrum, offsets).mean()
            assert row[f"gradient_{on}_last"] == pytest.approx(gradient, rel=1e-3)
            assert row[f"loss_{on}_last"] == pytest.approx(loss, rel=1e-3)
        assert row["loss_train_tau"] >= problem.minimum * 0.999


def test_rows_of_all_lanes_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(synthetic.PRESETS, "smoke", TINY)
    words = ["--preset", "smoke", "--out", str(tmp_path), "--workers", "1", "--device", "cpu", "--modes", "c"]
    synthetic.EXPERIMENT.main([*words, "--methods", "dpgd"])
    synthetic.EXPERIMENT.main(words)
    assert len(read_rows(tmp_path)) == 3 * 4


def test_a_lane_that_diverges_is_a_failed_row() -> None:
    row = synthetic._row({"method": "dpgd"}, {"gradient_train_last": np.inf, "loss_train_last": 1.0})
    assert row == {"method": "dpgd", "loss_train_last": 1.0, "status": "diverged"}


@pytest.mark.parametrize(("mode", "d", "seed"), [("a", 20, 0), ("b", 50, 3)])
def test_committed_rows_come_back(mode: str, d: int, seed: int) -> None:
    """Rows of runs that do not enlarge rounding, with step size alpha below 1/(r + 2), come back to their four
    digits."""
    some = dataclasses.replace(synthetic.PAPER, steps=synthetic.PAPER.steps[:6], step_sizes=(1e-3, 0.01))
    some = dataclasses.replace(some, clips=(0.1, 1.0, 100.0))
    rows = read_rows(RESULTS / "synthetic")
    committed = rows.query(f"mode == '{mode}' and d == {d} and seed == {seed}").set_index([*synthetic.KEY])
    found = synthetic.run_group(synthetic.Group(("dpzero", "dpgd-0th"), mode, d, seed), some)
    assert len(found) == 72
    for row in found:
        expected = committed.loc[tuple(row[name] for name in synthetic.KEY)]
        for name in synthetic.FIELDS:
            assert row[name] == pytest.approx(expected[name], rel=synthetic.FOUR_DIGITS), row


ROOT = Path(__file__).parents[2]


def test_the_extra_of_the_demo_is_all_that_it_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def needed(extra: str) -> set[str]:
        found: set[str] = set()
        for line in extras[extra]:
            inner = re.fullmatch(r"dpzero-theory\[(.*)\]", line)
            found |= set().union(*map(needed, inner[1].split(","))) if inner else {re.split(r"[><;= ]", line)[0]}
        return found

    missing = [name.replace("-", "_") for name in needed("dev") - needed("demo")]
    assert "transformers" in missing
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import benchmarks.demo, figures.demo"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rows_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DIMENSIONS", (2, 3))
    monkeypatch.setattr(demo, "GRID_STEPS", (3,))
    for _ in range(2):  # A second demo starts anew, without the rows of the first
        demo.sweep(tmp_path)
    rows = read_rows(tmp_path)
    assert list(zip(rows["mode"], rows["d"], rows["method"], strict=True)) == [
        (mode, d, method) for mode in "ac" for d in (2, 3) for method in ("DPZero", "DPGD-0th")
    ]
    assert (rows["gradient_norm"] > 0).all()
    monkeypatch.setattr(demo.subprocess, "run", lambda command, check: forks.run(*command[1:]))
    picture = demo.draw(tmp_path)
    assert picture.name == "rate_vs_dimension.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_streams_drawn_on_a_device_are_normal_and_a_function_of_the_key(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    whole, part, other = (synthetic.drawn_on(device, key, 8) for key in ([1, 0], [1, 0], [1, 1]))
    rows = torch.as_tensor(whole(10_000))
    assert rows.shape == (10_000, 8)
    assert torch.equal(torch.as_tensor(part(10_000)), rows)
    values = rows.cpu().numpy().ravel()
    limit = 4.5 / np.sqrt(len(values))  # The limit is 4.5 standard errors for each of four numbers.
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        assert abs((values**power).mean() - moment) < limit * np.sqrt(variance)
    assert abs((values * torch.as_tensor(other(10_000)).cpu().numpy().ravel()).mean()) < limit
    u = torch.as_tensor(synthetic.on_sphere(synthetic.drawn_on(device, [1, 0], 8))(100))
    torch.testing.assert_close(u.square().sum(dim=1).cpu(), torch.full((100,), 8.0, dtype=torch.float64))
    torch.testing.assert_close(u * rows[:100].norm(dim=1, keepdim=True) / 8**0.5, rows[:100])
