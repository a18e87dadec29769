"""Tests of the committed runs by each difference rule, and that frames are frames and a row can be made again."""

import numpy as np
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.problems import nonlinear
from benchmarks.theory import certificates, difference_rules


@pytest.mark.parametrize(
    ("folder", "cell"),
    [
        ("difference_rules_certificates", ["difference", "law", "K"]),
        ("certificates_rules", ["problem", "mode", "n", "d", "epsilon", "parameters"]),
    ],
)
def test_every_cell_is_below_its_certificate(folder: str, cell: list[str]) -> None:
    """The mean over seeds plus three standard errors is at most the certificate, by every rule and law."""
    cells = read_rows(RESULTS / folder).groupby(cell)
    assert cells["seed"].count().min() >= 3
    upper = cells["gradient_squared"].mean() + 3 * cells["gradient_squared"].sem()
    assert (upper < cells["bound"].first()).all()


def test_every_rule_and_law_was_run_on_every_data_set() -> None:
    rows = read_rows(RESULTS / "certificates_rules")
    assert set(rows["parameters"]) == set(certificates.RULES)
    runs = rows.groupby(["problem", "mode", "n", "d", "epsilon"])["parameters"].nunique()
    assert (runs == len(certificates.RULES)).all()
    full = read_rows(RESULTS / "certificates")
    assert set(runs.index) == set(full.groupby(["problem", "mode", "n", "d", "epsilon"]).groups)


def test_every_run_at_the_papers_dimension_is_below_its_certificate() -> None:
    rows = read_rows(RESULTS / "difference_rules")
    rows = rows[rows["factor"] == 1]
    assert {"central", "forward"} <= set(rows["difference"])
    assert (rows["gradient_squared"] < rows["bound"]).all()


def test_frames_are_orthogonal_rows_of_one_length() -> None:
    rows = nonlinear.directions_of("frame", np.random.default_rng(0), 7, 3)(6).reshape(2, 3, 7)
    np.testing.assert_allclose(rows @ rows.transpose(0, 2, 1), 7 * np.stack([np.eye(3)] * 2), atol=1e-12)


def test_a_row_can_be_made_again() -> None:
    committed = read_rows(RESULTS / "difference_rules_certificates").set_index(list(difference_rules.KEY))
    (made,) = difference_rules.measured("certificates", "forward", "sphere", 3, 0)
    at = committed.loc[("certificates", "forward", "sphere", 3, 1.0, 0)]
    assert made["gradient_squared"] == pytest.approx(at["gradient_squared"], rel=1e-5)
    assert made["bound"] == pytest.approx(at["bound"], rel=1e-7)
