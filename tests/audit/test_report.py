import json
import math

import numpy as np
import pytest

from benchmarks.zoo.catalogue import claim
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import held, untested, violated
from dpzero_theory.audit.report import AuditReport, Entry

VERDICTS = (
    held("as claimed", power="half", p_value=0.5, sizes=[1, 2], expected=1.5),
    violated("not as claimed", "mend <this>", moves=[[0.5, 1.0], [3.0, 2.0]], more=np.float64(math.nan)),
    untested("no way"),
)


@pytest.fixture
def report() -> AuditReport:
    entries = tuple(Entry(check, verdict, 3, 0.5) for check, verdict in zip(every(), VERDICTS, strict=False))
    return AuditReport(claim(), View(), entries, 9, 1.5, 1e-6)


def test_table(report: AuditReport) -> None:
    text = report.text()
    assert "VIOLATED    not as claimed" in text
    assert "mend: mend <this>" in text
    assert "[would have seen: half]" in text
    assert "1 checks held, 1 violated, 1 could not be tested" in text
    assert max(map(len, text.splitlines()[2:-1])) <= 116


def test_json_is_strict_and_whole(report: AuditReport) -> None:
    found = json.loads(report.as_json())
    names = [check.name for check in every()[:3]]
    assert (found["held"], found["violated"], found["could_not_be_tested"]) == (names[:1], names[1:2], names[2:])
    assert found["checks"][1]["evidence"] == {"moves": [[0.5, 1.0], [3.0, 2.0]], "more": None}
    assert found["claim"]["n"] == 48


def test_access(report: AuditReport) -> None:
    assert report[every()[2].name].says == "no way"
    assert report.exit_code == 1
