from pathlib import Path

import pytest

from benchmarks.audits.audit_field import EXPERIMENT
from benchmarks.audits.audit_field_sound import EXPERIMENT as SOUND
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.zoo import first_order
from benchmarks.zoo.catalogue import Specimen
from dpzero_theory.audit.conformance import every
from tests.audit.small import audit


def test_a_row_for_each_check_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = audit(Specimen(first_order.Shuffles, seed="public"), "batches", "accounting")
    (tmp_path / "mine@1.0.json").write_text(report.as_json())
    assert EXPERIMENT.main(["--reports", str(tmp_path), "--out", str(tmp_path / "rows")]) == 0
    rows = read_rows(tmp_path / "rows").set_index("check")
    assert rows["verdict"].to_dict() == {"batches": "VIOLATED", "accounting": "held"}
    assert rows.loc["batches", "says"] == report["batches"].says
    with pytest.raises(SystemExit) as refused:
        EXPERIMENT.main(["--reports", str(tmp_path / "rows"), "--out", str(tmp_path / "other")])
    assert refused.value.code == 2
    assert "reports named PROJECT@VERSION.json" in capsys.readouterr().err


def test_every_report_has_every_check() -> None:
    rows = read_rows(RESULTS / "audit_field")
    assert {*rows.groupby(["project", "version"]).size()} == {len(every())}
    assert set(rows["check"]) == {check.name for check in every()}


def test_a_row_for_each_report_of_a_sound_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for repeat, make in enumerate((first_order.FirstOrder, first_order.Shuffles)):
        report = audit(Specimen(make), "batches", "batches-secret", repeat=repeat)
        (tmp_path / f"mine@1.0@{repeat}.json").write_text(report.as_json())
    assert SOUND.main(["--reports", str(tmp_path), "--out", str(tmp_path / "rows")]) == 0
    rows = read_rows(tmp_path / "rows").set_index("repeat")
    assert rows["violated"].fillna("").to_list() == ["", "batches"]
    assert rows["untested"].to_list() == ["batches-secret", "batches-secret"]
    assert rows["held"].to_list() == [1, 0]
    with pytest.raises(SystemExit) as refused:
        SOUND.main(["--reports", str(tmp_path / "rows"), "--out", str(tmp_path / "other")])
    assert refused.value.code == 2
    assert "reports named LIBRARY@VERSION@REPEAT.json" in capsys.readouterr().err


def test_nothing_is_reported_of_other_libraries_sound_loops() -> None:
    rows = read_rows(RESULTS / "audit_field_sound")
    assert rows["violated"].isna().all()
    assert set(rows["library"]) == {"jax_privacy", "opake"}
