"""Tests of the sweep in which only the dimension or the rank varies, and of its problems of huge dimension."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from benchmarks import rank
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.problems import padded

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


def test_every_setting_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "GRID", SMALL)
    monkeypatch.setitem(rank.EXPERIMENTS, "rank", [rank.RankCell("rank", 20, p) for p in (1, 3)])
    words = ["--experiments", "rank", "--seeds", "2", "--out", str(tmp_path)]
    rank.EXPERIMENT.main(words)
    assert len(read_rows(tmp_path)) == 2 * 2 * 2 * 4


Array = NDArray[np.float64]
HEAD, TAIL, N, STEPS = np.array([1.0, 0.5]), 0.05, 4, 3
D = 30


def _rng(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])


def _inner_products(drawn: padded.Drawn, ones: Array) -> list[float]:
    """Returns inner products of all kinds of pairs of directions, noise, samples and the start.

    They are in the metric of the problem. `drawn` has the problem and its random streams, and `ones` is a vector of
    ones.
    """
    u, z = drawn.directions(STEPS), drawn.noise(STEPS)
    a, x = drawn.problem.spectrum, drawn.problem.points / np.sqrt(drawn.problem.spectrum) + drawn.problem.center
    c = drawn.problem.center
    pairs = [(u[0], u[0]), (u[1], u[2]), (u[2], z[0]), (z[1], z[2]), (z[2], z[2]), (u[1], x[0]), (z[2], x[3])]
    return [float(v @ (a * w)) for v, w in [*pairs, (u[0], c), (z[1], c), (c, c), (u[2], ones), (z[0], ones)]]


def test_inner_products_have_the_same_law() -> None:
    """Computed in few or in all coordinates, inner products have the same law.

    12 inner products are compared on 4,000 draws each way by Kolmogorov-Smirnov tests; they fail by chance once in
    4,000.
    """
    found: list[list[list[float]]] = []
    for few in (True, False):
        rows = []
        for seed in range(4_000):
            where = 2 * seed + few
            # with many steps to make, all coordinates are needed
            steps = STEPS if few else D
            drawn = padded.draw(lambda stream, w=where: _rng(w, stream), HEAD, TAIL, D, N, steps)  # type: ignore[misc]
            width = drawn.problem.d
            assert (width < D) == few
            ones = np.append([1.0, 1.0, np.sqrt(D - 2)], np.zeros(width - 3)) if few else np.ones(D)
            rows.append(_inner_products(drawn, ones))
        found.append(rows)
    for one, other in zip(np.array(found[0]).T, np.array(found[1]).T, strict=True):
        assert ks_2samp(one, other).pvalue > 1e-5
