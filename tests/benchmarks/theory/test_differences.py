"""Tests the committed bounds of the difference rules at equal evaluations, and that rows can be made again."""

import pandas as pd
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.theory import differences


@pytest.fixture(scope="module")
def bounds() -> "pd.Series[float]":
    return read_rows(RESULTS / "differences").set_index(list(differences.KEY))["bound"]


def test_what_was_asked_for(bounds: "pd.Series[float]") -> None:
    assert bounds["forward", "sphere", "best", 9_344] <= 0.0060
    assert bounds["forward", "sphere", "best", 310_400] <= 0.00244
    assert bounds["central", "rademacher", "one", 310_400] <= 0.0063
    assert bounds["central", "sphere", "best", 9_344] <= 0.00768
    assert bounds["central", "sphere", "best", 310_400] <= 0.00264


def test_forward_is_below_central_and_exact_below_forward(bounds: "pd.Series[float]") -> None:
    """With K = 1 central and forward differences take as many evaluations, and have one bound."""
    for law in differences.LAWS:
        for points in differences.POINTS:
            central, forward, exact = (bounds[rule, law, "best", points] for rule in ("central", "forward", "exact"))
            assert exact < forward < 0.95 * central
            assert bounds["forward", law, "one", points] == bounds["central", law, "one", points]


def test_a_row_can_be_made_again(bounds: "pd.Series[float]") -> None:
    key = ("forward", "rademacher", "best", 9_344)
    assert differences.row(*key)["bound"] == pytest.approx(bounds[key], rel=1e-9)
