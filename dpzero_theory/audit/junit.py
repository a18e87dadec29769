"""Writes the report of an audit as JUnit's XML, the form in which services that run tests read their results."""

import re
from xml.etree import ElementTree

from dpzero_theory.audit.finding import UNTESTED, VIOLATED
from dpzero_theory.audit.report import AuditReport

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow; a message of a loop's exception may have them."""


def junit(report: AuditReport) -> str:
    """Returns an audit's report as one JUnit test suite, in XML.

    Each check is a test case with the seconds that it took. A violated check is a failure, with what was seen and how
    to mend it; a check that could not be made, or whose violation is waived, is skipped, with the reason.
    """
    skipped = len(report.named(UNTESTED)) + len(report.violations) - len(report.unwaived)
    counts = {"tests": len(report.entries), "failures": len(report.unwaived), "skipped": skipped}
    suite = ElementTree.Element(
        "testsuite",
        {"name": "dpzero_theory.audit", "time": f"{report.seconds:.3f}"} | {k: str(v) for k, v in counts.items()},
    )
    for entry in report.entries:
        verdict, name = entry.verdict, entry.check.name
        case = {"classname": "dpzero_theory.audit", "name": name, "time": f"{entry.seconds:.3f}"}
        inside = ElementTree.SubElement(suite, "testcase", case)
        if name in report.waived and verdict.status == VIOLATED:
            message = f"waived ({report.waived[name]}): {verdict.says}"
            ElementTree.SubElement(inside, "skipped", {"message": _clean(message)})
        elif verdict.status == VIOLATED:
            cause = report.cause_of(name)
            text = f"may follow from {cause}: mend that first" if cause else f"mend: {verdict.mend}"
            ElementTree.SubElement(inside, "failure", {"message": _clean(verdict.says)}).text = _clean(text)
        elif verdict.status == UNTESTED:
            ElementTree.SubElement(inside, "skipped", {"message": _clean(verdict.says)})
    ElementTree.indent(suite)
    return '<?xml version="1.0"?>\n' + ElementTree.tostring(suite, encoding="unicode")


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
