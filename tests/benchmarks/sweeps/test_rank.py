"""Tests of the benchmark of rank: its rows are those of the fast engine, with or without a rotation, and it resumes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.sweeps import rank
from benchmarks.sweeps.selection import OF_RANK
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.synthetic.problems import Quadratic
from figures import dimension as figure
from tests.optim import reference
from tests.synthetic.small import from_array

SMALL = rank.Grid(samples=20, evaluations=(4, 8), step_sizes=(0.3,), clips=(0.3, 10.0))


@pytest.mark.parametrize("rotated", [False, True])
def test_rank_and_gap_do_not_change_with_the_dimension(rotated: bool) -> None:
    for d in (100, 400):
        rows = rank.run_cell(rank.RankCell("dimension", d, p=3, rotated=rotated), SMALL, 1, 0)
        assert len(rows) == 2 * 4
        assert rows[0]["r"] == pytest.approx(1 + 1 / 2 + 1 / 3 + 0.5)


@pytest.mark.parametrize("cell", rank.EXPERIMENTS["log"], ids=lambda cell: f"{cell.d}")
def test_the_trace_of_log_is_that_of_the_papers_mode_c(cell: rank.RankCell) -> None:
    """The spectrum whose rank grows like log d has the trace of the paper's mode (c), sum_i 1/i.

    Up to d = 1,000 it has the eigenvalues 1/i themselves; beyond, it is made of a head and a tail of equal, smaller
    eigenvalues.
    """
    i = np.arange(1, cell.d + 1)
    assert cell.r == pytest.approx((1 / i).sum(), rel=1e-12)
    spectrum = np.append(cell.head(), np.full(min(cell.d - cell.p, 10), cell.tail / (cell.d - cell.p)))
    if cell.d <= 1_000:
        np.testing.assert_allclose(spectrum, 1 / i, rtol=1e-9)
    assert (np.diff(spectrum) <= 0).all()


def test_the_page_says_what_the_slopes_say() -> None:
    """The results page says what the committed slopes of the error in the dimension say.

    The interval of DPZero's held-out slope contains zero at fixed rank, for both outputs, and where the rank grows like
    log d for the random iterate.
    """
    fits = read_rows(RESULTS / "slopes").query("method == 'dpzero' and selection == 'held-out' and range == 'all'")
    fits = fits.set_index(["sweep", "output"])
    assert (fits["seeds"].loc[["rank", "log"]] == 5).all()
    flat = (fits["low"] < 0) & (fits["high"] > 0)
    assert flat.loc[[("rank", "tau"), ("rank", "last"), ("log", "tau")]].all()
    assert 0 < fits.loc[("log", "last"), "low"] < fits.loc[("log", "last"), "high"] < 0.05
    assert (read_rows(RESULTS / "rank")["peak_mb"] < 1_000).all()


def test_a_rotated_quadratic_is_one_with_a_dense_matrix() -> None:
    """The rotated quadratic is the one with the dense matrix Q A Q^T, for a rotation Q.

    Steps of the reference algorithm are made with that matrix, in the axes in which the data are given.
    """
    cell = rank.RankCell("rotated", 12, p=3, law="rademacher", rotated=True)
    plain = rank._drawn(rank.RankCell("rotated", 12, p=3, law="rademacher"), SMALL, 5)
    turned, q = rank._drawn(cell, SMALL, 5), rank._orthogonal(12)
    np.testing.assert_allclose(q @ q.T, np.eye(12), atol=1e-12)
    matrix = q @ np.diag(plain.problem.spectrum) @ q.T
    data = plain.problem.points / np.sqrt(plain.problem.spectrum) + plain.problem.center
    u = plain.directions(8)

    class Dense:
        n, d = 20, 12

        def losses(self, x: np.ndarray) -> np.ndarray:
            return 0.5 * np.einsum("ij,jk,ik->i", x - data, matrix, x - data)

    options = {"steps": 8, "step_size": 0.1, "clip": 1.0, "noise_std": 0.3, "smoothing": 0.1}
    dense = reference.dpzero(Dense(), np.zeros(12), noise=SeededNoise(3), directions=u, **options)  # type: ignore[arg-type]
    problem: Quadratic = turned.problem
    mine = reference.dpzero(
        problem, np.zeros(12), noise=SeededNoise(3), directions=from_array(turned.directions(8))(8), **options
    )
    np.testing.assert_allclose(q @ mine.last, dense.last, rtol=1e-9, atol=1e-12)


def test_evaluations_are_equal_for_every_k() -> None:
    for k in (1, 4):
        cell = rank.RankCell("directions", 40, p=3, directions=k)
        lanes = rank.lanes_of(cell, SMALL, "dpzero", 1)
        assert sorted(set(lanes.steps * k)) == [4, 8]
        assert lanes.clip.max() == pytest.approx(10 * np.sqrt(k))
        assert {row["method"] for row in rank.run_cell(cell, SMALL, 1, 0)} == (
            {"dpzero", "dpgd-0th"} if k == 1 else {"dpzero"}
        )


def test_rows_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rank, "GRID", SMALL)
    monkeypatch.setitem(
        rank.EXPERIMENTS, "law", [rank.RankCell("law", 20, p=3, law=law) for law in ("sphere", "rademacher")]
    )
    words = ["--experiments", "law", "--seeds", "2", "--out", str(tmp_path)]
    rank.EXPERIMENT.main(words)
    assert len(read_rows(tmp_path)) == 2 * 2 * 2 * 4
    capsys.readouterr()
    rank.EXPERIMENT.main(words)
    assert capsys.readouterr().out.splitlines()[0].startswith("32 rows: ")


def test_the_figure_draws_sweeps_that_the_selection_is_of() -> None:
    assert figure.TITLES.keys() == OF_RANK.keys()
