import math
import re
from pathlib import Path

import pytest

from benchmarks.audits.audit_zoo import EXPERIMENT, FAULTS, LOOPS, SOUND, ZOO
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.zoo import catalogue, libraries
from dpzero_theory.audit.conformance import every


def test_the_zoo_has_what_it_must_have() -> None:
    assert len(LOOPS) == len(ZOO)
    assert len(catalogue.FAULTS) >= 24
    assert len(catalogue.SOUND) + len(libraries.SOUND) >= 6
    names = {check.name for check in every()}
    assert {specimen.finds for specimen in ZOO} <= names | {""}
    assert all(specimen.pattern for specimen in catalogue.FAULTS)


def test_a_row_of_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXPERIMENT.main(["--loops", "NoNoise", "--quick", "--out", str(tmp_path)]) == 0
    [row] = read_rows(tmp_path).to_dict("records")
    assert (row["found"], row["un-noised"], row["sensitivity"]) == ("yes", "VIOLATED", "untested")
    assert EXPERIMENT.main(["--loops", "NoNoise", "--quick", "--out", str(tmp_path)]) == 0
    assert "found 1/1" in capsys.readouterr().out


def test_every_fault_is_found_by_its_check() -> None:
    table = read_rows(FAULTS)
    faults = {name for name in LOOPS if LOOPS[name].finds}
    assert set(table["loop"]) == faults
    assert (table["found"] == "yes").all()
    assert table["cpu_s"].max() <= int(_said(r"in at most (\d+) seconds of one processor"))
    assert len(faults) == int(_said(r"`benchmarks/zoo` has (\d+) loops"))
    assert len(table) == int(_said(r"in each of (\d+) audits"))


def test_nothing_is_reported_of_sound_loops() -> None:
    table = read_rows(SOUND)
    named = {name for name in LOOPS if not LOOPS[name].finds}
    assert set(table["loop"]) == named
    assert (table["found"] == "no").all()
    counts = table.groupby("loop").size()
    assert counts.min() >= 20
    assert len(counts) == int(_said(r"20 audits each of (\d+) sound loops")) >= 43
    untested = (table[[check.name for check in every()]] == "untested").sum(axis=1)
    early = table["loop"] == "dp-sgd, ends by a noised count that is paid for"
    assert untested[~early].max() <= 3
    assert (untested[early] > 3).sum() <= 3
    assert table["cpu_s"].max() < 120


def test_the_power_that_is_said() -> None:
    table = read_rows(RESULTS / "audit_power").set_index(["method", "claimed", "share"])["q95"]
    assert table["noise-size", 1.0, 0.5] == int(_said(r"Half of the noise is seen in (\d+) released numbers"))
    assert math.ceil(table["sequential", 1.0, 0.5]) == int(_said(r"in (\d+) pairs of runs"))
    assert math.isnan(table["one-run", 1.0, 0.5])


def _said(pattern: str) -> str:
    """Returns what the first group of `pattern` matches in the text of the results page.

    The page's line breaks count as spaces.
    """
    text = " ".join((RESULTS.parents[1] / "docs" / "results" / "audit.md").read_text().split())
    found = re.search(pattern, text)
    assert found, pattern
    return found[1]
