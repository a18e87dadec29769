"""Tests of certified bounds beside runs: rows, resumption, the best K."""

from pathlib import Path

import pytest

from benchmarks import certificates
from benchmarks.kit.rows import read_manifest, read_rows
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.noise import paper_gdp
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe
from dpzero_theory.theory.theorems import displayed

TINY = [
    certificates.CertificateCell("pseudo-huber", "c", 400, 10, (2.0, 8.0)),
    certificates.CertificateCell("digits", "", 1797, 65, (0.5,)),
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(certificates.PRESETS, "smoke", TINY)


@pytest.mark.usefixtures("tiny")
def test_rows_hold_their_certificates(tmp_path: Path) -> None:
    certificates.EXPERIMENT.main(["--preset", "smoke", "--out", str(tmp_path), "--seeds", "2", "--workers", "1"])
    rows = read_rows(tmp_path)
    assert len(rows) == 2 * 3 * 4
    assert set(rows["parameters"]) == set(certificates.PARAMETERS)
    assert (rows["gradient_squared"] <= rows["bound"]).all()
    assert (rows["gradient_squared"] > 0).all()
    rows["evaluations"] = rows["steps"] * rows["directions_per_step"]
    for _, cell in rows.groupby(["problem", "epsilon"]):
        allowed = cell["evaluations"].max()
        assert set(cell["evaluations"][cell["directions_per_step"] == 1]) == {allowed}
        assert (cell["evaluations"] > allowed - cell["directions_per_step"]).all()
    best = rows[rows["parameters"] == "sharp-best-k"]
    assert (best["directions_per_step"] > 1).any()
    assert read_manifest(tmp_path)["failed"] == 0


def test_the_best_k_is_the_calculators() -> None:
    row = certificates.run_cell(TINY[1], 0, ["sharp-best-k"])[0]
    problem = Problem(**{name: row[name] for name in ("n", "d", "r", "lipschitz", "smoothness", "gap", "loss_bound")})
    most = displayed("theorem-3", problem, float(paper_gdp(0.5, certificates.DELTA))).steps * problem.n
    gdp = float(gdp_from_epsilon(0.5, certificates.DELTA))
    wanted = prescribe(problem, gdp, max_evaluations=most, directions_per_step="best")
    for name in (*certificates.LANE, "directions_per_step", "bound"):
        assert row[name] == getattr(wanted, name)


def test_capped_cells_certify_the_papers_parameters_without_running_them() -> None:
    rows = certificates.run_cell(certificates.CertificateCell("pseudo-huber", "c", 400, 10, (8.0,), max_steps=20), 0)
    by_name = {row["parameters"]: row for row in rows}
    assert "gradient_squared" not in by_name["paper"]
    assert by_name["paper"]["steps"] > 20
    assert by_name["sharp"]["steps"] == 20
    assert by_name["sharp"]["gradient_squared"] > 0
