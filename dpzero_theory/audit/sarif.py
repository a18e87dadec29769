"""Writes the report of an audit as SARIF 2.1.0, the form in which hosts of code take findings of tools."""

import json
from typing import Any

from dpzero_theory.audit.finding import HELD, VIOLATED
from dpzero_theory.audit.report import AuditReport, Entry

_KINDS = {HELD: "pass", VIOLATED: "fail"}
"""SARIF's kind of result for each status; that of a check that could not be made is "notApplicable"."""


def sarif(report: AuditReport, place: str) -> str:
    """Returns an audit's report in SARIF, as JSON.

    Each check is a rule and has one result: an error where it is violated, with what was seen and how to mend it. A
    violation that is waived is suppressed, with the reason. place: the file to which the results are attached, such as
    the specification's path.
    """
    rules = [{"id": entry.check.name, "shortDescription": {"text": entry.check.question}} for entry in report.entries]
    driver = {"name": "dpzero_theory.audit", "rules": rules}
    results = [_result(report, entry, place) for entry in report.ordered]
    content = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(content, indent=2)


def _result(report: AuditReport, entry: Entry, place: str) -> dict[str, Any]:
    name, verdict = entry.check.name, entry.verdict
    cause = report.cause_of(name)
    text = f"{verdict.says} May follow from {cause}: mend that first." if cause else verdict.says
    if verdict.mend and not cause:
        text += f" Mend: {verdict.mend}."
    found: dict[str, Any] = {
        "ruleId": name,
        "kind": _KINDS.get(verdict.status, "notApplicable"),
        "level": "error" if verdict.status == VIOLATED else "none",
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": place}, "region": {"startLine": 1}}}],
    }
    if verdict.status == VIOLATED and name in report.waived:
        found["suppressions"] = [{"kind": "external", "justification": report.waived[name]}]
    return found
