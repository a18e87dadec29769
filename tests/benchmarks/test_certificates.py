"""Tests of the benchmark of certified bounds: its rows, its resumption, and that the bounds hold on small cells."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import certificates
from benchmarks.kit.rows import read_manifest, read_rows
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, paper_gdp
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe
from dpzero_theory.theory.theorems import theorem_3

TINY = [
    certificates.CertificateCell("pseudo-huber", "c", 400, 10, (2.0, 8.0)),
    certificates.CertificateCell("digits", "", 1797, 65, (0.5,)),
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(certificates.PRESETS, "smoke", TINY)


@pytest.mark.usefixtures("tiny")
def test_rows_hold_their_certificates_and_are_resumed(tmp_path: Path) -> None:
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
    before = (tmp_path / "rows.csv").read_bytes()
    certificates.EXPERIMENT.main(["--preset", "smoke", "--out", str(tmp_path), "--seeds", "2", "--workers", "1"])
    assert (tmp_path / "rows.csv").read_bytes() == before
    assert read_manifest(tmp_path)["failed"] == 0


@pytest.mark.parametrize("names", TINY[0].shares())
def test_a_cell_gives_the_same_rows_again(names: tuple[str, ...]) -> None:
    first, second = (certificates.run_cell(TINY[0], 3, names) for _ in range(2))
    for row, again in zip(first, second, strict=True):
        assert {**row, "seconds": 0} == {**again, "seconds": 0}
    assert first[0]["gradient_squared"] != certificates.run_cell(TINY[0], 4, names)[0]["gradient_squared"]


def test_the_best_k_is_the_calculators() -> None:
    row = certificates.run_cell(TINY[1], 0, ["sharp-best-k"])[0]
    problem = Problem(**{name: row[name] for name in ("n", "d", "r", "lipschitz", "smoothness", "gap", "loss_bound")})
    most = theorem_3(problem, float(paper_gdp(0.5, certificates.DELTA))).steps * problem.n
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


def test_prescriptions_at_the_papers_setting() -> None:
    """At the paper's setting the sharpened theorem certifies at most 0.013, where the paper's certifies 1.284.

    The setting is gap 1, n = 10,000, epsilon = 2, delta = 1e-6, spectrum (c) and d = 2,000.
    """
    problem = Problem(n=10_000, d=2_000, r=float((1 / np.arange(1, 2001)).sum()))
    chosen = {name: item for name, (_, item) in certificates.prescriptions(problem, 2.0).items()}
    assert math.isclose(chosen["paper"].bound, 1.284, rel_tol=1e-3)
    assert 0.007 <= chosen["sharp"].bound <= 0.013
    assert chosen["sharp"].steps <= chosen["paper"].steps
    assert chosen["sharp"].bound < chosen["paper-best"].bound < chosen["paper"].bound


@pytest.mark.usefixtures("tiny")
def test_a_failed_cell_is_kept_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(cell: certificates.CertificateCell, seed: int, names: Sequence[str]) -> list[dict[str, object]]:
        raise FloatingPointError("no luck")

    monkeypatch.setattr(certificates, "run_cell", fail)
    certificates.EXPERIMENT.main(["--out", str(tmp_path), "--seeds", "1", "--workers", "1"])
    rows = read_rows(tmp_path, failed=True)
    assert set(rows["status"]) == {"FloatingPointError: no luck"}
    assert rows["gradient_squared"].isna().all()
    assert len(read_rows(tmp_path)) == 0


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--workers", "x"], ["--preset", "none"]])
def test_bad_arguments_are_one_line_and_write_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        certificates.EXPERIMENT.main([*arguments, "--out", str(tmp_path / "none")])
    assert error.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert arguments[0] in message
    assert not (tmp_path / "none").exists()
