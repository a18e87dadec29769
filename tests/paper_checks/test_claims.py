"""Tests of the paper's claims and their checks.

Every claim has a check and every check a claim; they agree, and could disagree.
"""

import dataclasses
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paper_checks import __main__ as runner
from paper_checks import registry, report
from paper_checks.registry import NOT_TESTABLE, REMARK, Claim, Disagreement, Finding, Result
from paper_checks.tables import FACTS, SENTENCES, fact, load

SHARED = Path(__file__).parents[2].parent / "shared"
PAPER, TREC = SHARED / "paper.tex", SHARED / "data" / "trec_train.label"
needs_paper = pytest.mark.skipif(not PAPER.exists(), reason="the paper's LaTeX source is not beside this checkout")


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    runner.load_checks()
    return registry.load_claims()


def _claim(**changes: Any) -> Claim:
    fields: dict[str, Any] = {
        "id": "example",
        "section": "s",
        "line": 1,
        "anchor": "a",
        "claim": "c",
        "kind": "bound",
        "status": "verified",
        "method": "m",
        "tolerance": "t",
        "evidence": "e",
    }
    return Claim(**{**fields, **changes})


def test_every_claim_has_a_check_and_every_check_a_claim(claims: list[Claim]) -> None:
    testable = {claim.id for claim in claims if claim.status != NOT_TESTABLE}
    checks = {id for id in registry.registered() if not id.startswith("sharp-")}
    assert testable == checks
    assert len(claims) >= 90
    assert all(claim.reason for claim in claims if claim.status == NOT_TESTABLE)


def test_every_check_agrees_with_its_stated_status_and_is_reported(claims: list[Claim]) -> None:
    """Every check agrees with the stated status of its claim, and is reported.

    One run of the checks serves all assertions, so that parallel test workers do not repeat it.
    """
    results = list(registry.run(claims, full=False))
    assert [(r.claim.id, r.verdict, r.error) for r in results if not r.agrees] == []
    _assert_in_table_and_json(results)
    _assert_page_is_self_contained(results)
    _assert_evidence_of_figures_has_their_numbers(results)


def _assert_in_table_and_json(results: list[Result]) -> None:
    table = report.table(results, False, 1.0)
    assert all(f"{result.claim.id}: " in table for result in results)
    document = json.loads(report.as_json(results, False, 1.0))
    assert [c["id"] for c in document["claims"]] == [r.claim.id for r in results]
    assert document["summary"]["disagree"] == 0


def _assert_page_is_self_contained(results: list[Result]) -> None:
    page = report.FORMATS["html"](results, False, 1.0)
    assert all(f'id="{result.claim.id}"' in page for result in results)
    assert not re.search(r"(src|href)=\"?(https?:|//)|@import|url\((?!#)|<script", page)
    assert 'name="viewport"' in page


def _assert_evidence_of_figures_has_their_numbers(results: list[Result]) -> None:
    """Requires that the evidence of each claim about a figure has the numbers that its check found.

    They must agree to the digits that are written.
    """
    of_figures = [id for id, check in registry.registered().items() if check.__module__.endswith(".figures")]
    assert len(of_figures) == 9
    for claim, finding in ((result.claim, result.finding) for result in results if result.claim.id in of_figures):
        assert finding is not None
        for written in re.findall(r"\d+\.\d+", claim.evidence):
            digits = len(written.partition(".")[2])
            assert any(f"{number:.{digits}f}" == written for number in finding.numbers.values()), (claim.id, written)


@needs_paper
def test_lines_and_labels_are_those_of_the_paper(claims: list[Claim]) -> None:
    lines = PAPER.read_text().splitlines()
    labels = set(re.findall(r"\\label\{([^}]*)\}", "\n".join(lines)))
    for claim in claims:
        assert claim.anchor in lines[claim.line - 1], claim.id
        assert not claim.label or claim.label in labels, claim.id


@needs_paper
def test_every_numbered_equation_and_theorem_has_a_claim(claims: list[Claim]) -> None:
    labels = re.findall(r"\\label\{((?:eq|thm|cor|lm|asp|rem|rmk|remark)[:.][^}]*|remark\.naive)\}", PAPER.read_text())
    text = " ".join(f"{claim.label} {claim.claim} {claim.evidence}" for claim in claims)
    # These equations of the paper are checked under their theorem's own label
    in_theorems = {"eq:opt", "eq:d-dependent", "eq:d-dependent-rank", "eq:d-free"}
    assert [label for label in labels if label not in text and label not in in_theorems | {"asp:smooth"}] == []


@needs_paper
def test_the_tables_are_the_papers() -> None:
    source = PAPER.read_text().splitlines()
    with Path(registry.__file__).with_name("tables.toml").open("rb") as file:
        tables = tomllib.load(file)
    for label, rows in tables.items():
        if label in (SENTENCES, FACTS):
            continue
        end = next(k for k, line in enumerate(source) if f"\\label{{{label}}}" in line)
        start = max(k for k in range(end) if "\\begin{tabular}" in source[k])
        body = " ".join(source[start + 1 : end]).split("\\end{tabular}")[0]
        printed = [_numbers(line) for line in body.split("\\\\")]
        for name, values in rows.items():
            if name == "columns" or name.endswith("_error"):
                continue
            errors = rows.get(f"{name}_error")
            pairs = zip(values, errors, strict=True) if errors else ((value,) for value in values)
            ours = [x for pair in pairs for x in pair if x]
            assert ours in printed or ours == [], (label, name)


@needs_paper
def test_the_numbers_of_sentences_are_in_their_lines() -> None:
    source = PAPER.read_text().splitlines()
    for name, entry in load()[SENTENCES].items():
        line = source[entry["line"] - 1].replace(",000", "000").replace("10^{-3}", "0.001")
        there = [float(x) for x in re.findall(r"\d+(?:\.\d+)?", line)]
        assert set(entry["values"]) <= set(there), name


@pytest.mark.skipif(not TREC.exists(), reason="the data are not beside this checkout")
def test_the_classes_of_trec_are_counted() -> None:
    counts = Counter(line.split(b":")[0].decode() for line in TREC.read_bytes().splitlines())
    assert [float(counts[name]) for name in sorted(counts)] == fact("TREC, questions per class")


def test_the_page_counts_claims_and_remarks(claims: list[Claim]) -> None:
    counts = Counter(REMARK if claim.kind == REMARK else claim.status for claim in claims)
    text = " ".join((Path(__file__).parents[2] / "docs" / "results" / "paper.md").read_text().split())
    said = re.search(
        r"The list has (\d+) claims of the paper: (\d+) are verified, (\d+) hold after a correction, (\d+) are "
        r"contradicted, and (\d+) cannot be tested here.*? (\d+) remarks are our own",
        text,
    )
    assert said
    wanted = [len(claims) - counts[REMARK], *(counts[status] for status in registry.STATUSES), counts[REMARK]]
    assert [int(number) for number in said.groups()] == wanted


def _numbers(row: str) -> list[float]:
    """Returns the numbers in the cells of a table row after the row's name."""
    return [float(x) for cell in row.split("&")[1:] for x in re.findall(r"\d+(?:\.\d+)?", cell)]


def test_a_changed_verdict_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = registry.load_claims()
    changed = [dataclasses.replace(c, status="contradicted") if c.id == "sphere-i-mean" else c for c in original]
    monkeypatch.setattr(registry, "load_claims", lambda: changed)
    assert runner.main(["--quick", "--only", "sphere-i-mean", "--format", "json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert out["summary"]["disagree"] == 1
    assert runner.main(["--only", "sphere-i-covariance"]) == 0


def test_an_exception_is_a_failure_not_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(full: bool) -> Finding:
        raise KeyError("x")

    checks: dict[str, Callable[[bool], Finding]] = {"example": broken}
    monkeypatch.setattr(registry, "_CHECKS", checks)
    (result,) = registry.run([_claim()], full=False)
    assert result.verdict == "failed"
    assert "KeyError" in result.error
    (missing,) = registry.run([_claim(id="other")], full=False)
    assert "no check" in missing.error


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "true"},
        {"kind": "idea"},
        {"method": ""},
        {"status": "corrected"},
        {"status": NOT_TESTABLE},
        {"kind": REMARK, "status": "contradicted"},
    ],
)
def test_an_incomplete_claim_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="claim example"):
        _claim(**changes)


def test_agree_refuses_nan_and_other_shapes() -> None:
    registry.agree("same", [1.0, 2.0], [1.0, 2.0 + 1e-13])
    for wrong in (float("nan"), [1.0, 2.0, 3.0], 1.1):
        with pytest.raises(Disagreement):
            registry.agree("other", wrong, 1.0)


def test_claims_are_found_by_what_the_paper_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--only", "table 3", "lm:composition", "--format", "json"]) == 0
    found = {one["id"] for one in json.loads(capsys.readouterr().out)["claims"]}
    known = {claim.id for claim in registry.load_claims() if claim.label in ("tab:dpero-dpgd", "lm:composition")}
    assert found == known
    assert len(found) == 9
    assert {registry.PRINTED[name] for name in ("tab:others", "thm:d-free", "fig:clip_lr")} == {
        "Table 9",
        "Theorem 3",
        "Figure 3",
    }
