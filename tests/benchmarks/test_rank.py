"""Tests of the benchmark of rank: its problems, what the page says of it, and that it resumes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import rank
from benchmarks.kit.rows import RESULTS, read_rows

SMALL = rank.Grid(samples=20, steps=(4, 8), step_sizes=(0.3,), clips=(0.3, 10.0))


def test_rank_and_gap_do_not_change_with_the_dimension() -> None:
    for d in (100, 400):
        rows = rank.run_cell(rank.RankCell("dimension", d, p=3), SMALL, 1, 0)
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


def test_rows_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rank, "GRID", SMALL)
    monkeypatch.setitem(rank.EXPERIMENTS, "rank", [rank.RankCell("rank", 20, p) for p in (1, 3)])
    words = ["--experiments", "rank", "--seeds", "2", "--out", str(tmp_path)]
    rank.EXPERIMENT.main(words)
    assert len(read_rows(tmp_path)) == 2 * 2 * 2 * 4
    capsys.readouterr()
    rank.EXPERIMENT.main(words)
    assert capsys.readouterr().out.splitlines()[0].startswith("32 rows: ")
