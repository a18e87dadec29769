from pathlib import Path

import pytest

from benchmarks.audit_zoo import LOOPS, REPEATS, ZOO, main
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
    assert main(["--loops", "NoNoise", "--out", str(tmp_path)]) == 0
    [row] = read_rows(tmp_path).to_dict("records")
    assert (row["found"], row["un-noised"], row["sensitivity"]) == ("yes", "VIOLATED", "untested")
    assert main(["--loops", "NoNoise", "--out", str(tmp_path)]) == 0
    assert "found 1/1" in capsys.readouterr().out


@pytest.mark.skipif(not (RESULTS / "audit_zoo").exists(), reason="no rows yet")
def test_the_committed_rows_are_of_the_whole_zoo() -> None:
    table = read_rows(RESULTS / "audit_zoo")
    assert set(table["loop"]) == set(LOOPS)
    for name, rows in table.groupby("loop"):
        specimen = LOOPS[str(name)]
        assert (rows["found"] == ("yes" if specimen.finds else "no")).all(), name
        assert len(rows) == (1 if specimen.finds else REPEATS), name
