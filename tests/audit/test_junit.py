from xml.etree import ElementTree

from benchmarks.zoo.catalogue import claim
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import held, untested, violated
from dpzero_theory.audit.junit import junit
from dpzero_theory.audit.report import AuditReport, Entry


def test_each_check_is_a_test_case() -> None:
    """Failures, skipped cases and held ones are told apart, and text that XML does not allow is replaced."""
    verdicts = {
        "noise-size": violated("a < b & \x00c", "more"),
        "noise-law": violated("d", "e"),
        "steps": untested("no"),
    }
    entries = tuple(Entry(one, verdicts.get(one.name, held("yes")), 3, 0.25) for one in every())
    suite = ElementTree.fromstring(junit(AuditReport(claim(), View(), entries, 9, 1.5, 1e-6)))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(entries)), "2", "1")
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == [one.name for one in every()]
    assert cases["attack"].get("time") == "0.250"
    found = {name: [(part.tag, part.get("message"), part.text) for part in case] for name, case in cases.items()}
    assert {name: parts for name, parts in found.items() if parts} == {
        "noise-size": [("failure", "a < b & ?c", "mend: more")],
        "noise-law": [("failure", "d", "may follow from noise-size: mend that first")],
        "steps": [("skipped", "no", None)],
    }
