"""Tests of the benchmark of privacy certificates: true ones are confirmed, and ones made false are refused."""

import json
from argparse import Namespace
from itertools import islice

import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.privacy import checked


def test_settings_are_the_same_each_time_and_of_every_alteration() -> None:
    cells = list(islice(checked.settings(Namespace()), 12))
    assert cells == list(islice(checked.settings(Namespace()), 12))
    assert {cell["altered"] for cell in cells} == set(checked.ALTERATIONS)


def test_a_row_has_one_certificate_of_each_kind() -> None:
    pytest.importorskip("flint")
    part = {"noise_multiplier": 5.0, "steps": 50, "sampling": "full", "sample_rate": 1.0, "mechanism": "gaussian"}
    history = json.dumps([part | {"relation": "add-remove"}])
    row = checked.measure({"setting": 0, "history": history, "delta": 1e-6, "altered": "relation", "by": 1.1})
    assert row["confirmed"] == "confirmed"
    assert row["altered_lower"] > 1.9 * row["epsilon"]
    assert row["refused"].startswith("delta at the stated epsilon is about")


def test_the_committed_rows() -> None:
    rows = read_rows(RESULTS / "checked")
    assert len(rows) == checked.COUNT
    assert checked.failures(rows).empty
    assert (rows["altered_lower"] > rows["altered_epsilon"]).all()
