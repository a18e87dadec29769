import json
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.zoo.table import LOOPS, claim
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import held, untested, violated
from dpzero_theory.audit.report import AuditReport, Entry
from tests.audit.small import audit

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


def _violated(*names: str) -> AuditReport:
    """Returns a report in which the checks of these names are violated and the others held."""
    entries = tuple(
        Entry(one, violated("wrong", f"mend {one.name}") if one.name in names else held("right"), 1, 0.1)
        for one in every()
    )
    return AuditReport(claim(), View(), entries, 9, 1.5, 1e-6)


def test_what_follows_from_a_fault_is_listed_below_it() -> None:
    report = _violated("noise-fixed", "noise-size", "noise-law", "sensitivity")
    assert report.causes == ["noise-fixed", "sensitivity"]
    order = [entry.check.name for entry in report.ordered]
    start = order.index("noise-fixed")
    assert order[start : start + 3] == ["noise-fixed", "noise-size", "noise-law"]
    assert sorted(order) == sorted(one.name for one in every())
    text = report.text()
    assert text.count("may follow from noise-fixed") == 2
    assert "mend: mend noise-law" not in text
    assert "Violated: noise-fixed, sensitivity." in report.html()
    found = json.loads(report.as_json())
    assert found["causes"] == report.causes
    assert len(found["violated"]) == 4
    assert {one["check"]: one["may_follow_from"] for one in found["checks"]}["noise-law"] == "noise-fixed"


def test_the_number_of_records_is_said_to_be_public_where_records_are_added(report: AuditReport) -> None:
    says = "The number of records is taken to be public."
    assert says in report.text()
    assert says in report.html()
    others = replace(report, claim=replace(report.claim, relation="replace-one"))
    assert says not in others.text()


def test_a_long_name_below_its_cause_is_apart_from_its_verdict() -> None:
    text = _violated("noise-from-seed", "noise-from-directions").text()
    assert "  noise-from-directions VIOLATED" in text


def test_a_cause_of_a_cause_is_the_one_that_is_named() -> None:
    report = _violated("noise-from-seed", "noise-fixed", "noise-size", "noise-law", "noise-independence")
    assert report.causes == ["noise-fixed"]


def test_no_check_can_be_its_own_cause() -> None:
    """The relation between checks has no cycle, and every check that it names is there."""
    names = {one.name for one in every()}
    for one in every():
        assert set(one.follows) <= names
        assert one.name not in _above(one.name)


def _above(name: str) -> set[str]:
    follows = {one.name: one.follows for one in every()}
    found, left = set[str](), list(follows[name])
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += follows[one]
    return found


@pytest.mark.parametrize("name", ["noise-half", "seed-clock"])
def test_a_loop_with_one_fault_has_one_cause(name: str) -> None:
    checks = ("noise-from-seed", "noise-fixed", "noise-size", "noise-law", "noise-independence")
    report = audit(LOOPS[name], *checks, runs=40)
    assert report.causes == [LOOPS[name].finds[0]]
    assert len(report.violations) > 1
