from pathlib import Path

import pytest

from benchmarks.audit_zoo import FAULTS, LOOPS, SOUND, ZOO, main
from benchmarks.kit.rows import read_rows
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


@pytest.mark.parametrize("folder", [FAULTS, SOUND], ids=lambda folder: folder.name)
def test_the_committed_rows_are_of_the_whole_zoo(folder: Path) -> None:
    if not folder.exists():
        pytest.skip("no rows yet")
    table = read_rows(folder)
    assert set(table["loop"]) == {name for name in LOOPS if bool(LOOPS[name].finds) == (folder == FAULTS)}
    for name, rows in table.groupby("loop"):
        specimen = LOOPS[str(name)]
        assert (rows["found"] == ("yes" if specimen.finds else "no")).all(), name
        assert len(rows) == specimen.repeats, name
        assert rows["cpu_s"].max() < 120, name
