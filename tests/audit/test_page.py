from html.parser import HTMLParser

from dpzero_theory.audit.page import page
from dpzero_theory.audit.report import AuditReport
from tests.audit.test_report import report

__all__ = ["report"]


def test_the_page_says_what_the_report_says(report: AuditReport) -> None:
    text = page(report)
    assert '<span class="bad">VIOLATED</span>' in text
    assert "mend &lt;this&gt;" in text
    assert text.count("<tr>") == len(report.entries)
    assert text.index(">VIOLATED<") < text.index(">held<")
    assert "src=" not in text
    assert "href=" not in text
    HTMLParser().feed(text)
