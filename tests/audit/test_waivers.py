"""Waivers, SARIF, and audits as tests."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import SkipTest
from xml.etree import ElementTree

import pytest

from benchmarks.zoo.catalogue import SOUND, claim, records
from dpzero_theory.audit.claim import View
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import held, untested, violated
from dpzero_theory.audit.junit import junit
from dpzero_theory.audit.page import page
from dpzero_theory.audit.report import AuditReport, Entry
from dpzero_theory.audit.sarif import sarif
from dpzero_theory.audit.spec import Spec
from dpzero_theory.audit.testing import private_loop

VERDICTS = {
    "noise-size": violated("too small", "more noise"),
    "noise-law": violated("not Gaussian", "draw Gaussian noise"),
    "steps": violated("9 of 12", "make all steps"),
    "accounting": untested("no time"),
}
HOW: dict[str, Any] = {"checks": ("accounting", "steps"), "runs": 24, "settings": {"step_size": 0.1}}


def report(**waived: str) -> AuditReport:
    entries = tuple(Entry(one, VERDICTS.get(one.name, held("yes")), 3, 0.25) for one in every())
    waived = {name.replace("_", "-"): reason for name, reason in waived.items()}
    return AuditReport(claim(), View(), entries, 9, 1.5, 1e-6, waived)


def test_what_is_waived_does_not_count_and_is_shown() -> None:
    assert report().exit_code == report(steps="known").exit_code == 1
    waived = report(steps="known", noise_size="known", noise_law="known", attack="not needed")
    assert waived.violations
    assert waived.exit_code == 3  # a core check was not made
    assert replace(waived, waived={**waived.waived, "accounting": "slow"}).exit_code == 0
    text = waived.text()
    assert "3 violated (3 of them waived)" in text
    assert text.count("waived: known") == 3
    assert "a waiver is not needed; it says: not needed" in text
    assert json.loads(waived.as_json())["waived"]["steps"] == "known"
    assert page(waived).count("Waived: known") == 3
    suite = ElementTree.fromstring(junit(report(steps="a < b")))
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "2")
    assert suite.find("testcase[@name='steps']/skipped").get("message") == "waived (a < b): 9 of 12"  # type: ignore[union-attr]


def test_sarif_has_a_rule_and_a_result_for_each_check() -> None:
    (run,) = json.loads(sarif(report(steps="known"), "loops/spec.toml"))["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert sorted(found["ruleId"] for found in run["results"]) == sorted(rules) == sorted(one.name for one in every())
    results = {found["ruleId"]: found for found in run["results"]}
    kinds = {name: (found["kind"], found["level"]) for name, found in results.items()}
    assert kinds["noise-size"] == kinds["steps"] == ("fail", "error")
    assert kinds["accounting"] == ("notApplicable", "none")
    assert kinds["attack"] == ("pass", "none")
    assert results["noise-size"]["message"]["text"] == "too small Mend: more noise."
    assert results["noise-law"]["message"]["text"] == "not Gaussian May follow from noise-size: mend that first."
    assert results["steps"]["suppressions"] == [{"kind": "external", "justification": "known"}]
    assert "suppressions" not in results["noise-size"]
    (place,) = results["steps"]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "loops/spec.toml"


@pytest.mark.parametrize(
    ("waivers", "said"),
    [({"stepz": "known"}, "waivers must be one of"), ({"steps": " "}, "a reason for steps; got ' '")],
)
def test_waivers_name_a_check_and_have_a_reason(waivers: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Spec(SOUND[0].make(), records(), claim(), waivers=waivers)


def test_a_sound_loop_passes_as_a_test() -> None:
    @private_loop(records(), claim(), require=("accounting", "steps"), **HOW)
    def test_loop(records: Any, seed: int, settings: Any) -> Any:
        """A loop."""
        return SOUND[0].make()(records, seed, settings)

    assert (test_loop.__name__, test_loop.__doc__) == ("test_loop", "A loop.")
    test_loop()


def test_a_faulty_loop_fails_as_a_test_unless_it_is_waived() -> None:
    few = replace(claim(), noise_multiplier=claim().noise_multiplier / 2)  # costs more than the claimed epsilon
    with pytest.raises(AssertionError, match=r"violated: accounting\n\n[^$]*VIOLATED"):
        private_loop(records(), few, require=("none",), **{**HOW, "checks": ("accounting",)})(SOUND[0].make())()
    private_loop(
        records(), few, require=("none",), waivers={"accounting": "known"}, **{**HOW, "checks": ("accounting",)}
    )(SOUND[0].make())()


def test_a_required_check_that_cannot_be_made_skips_the_test(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="require must be one of"):
        private_loop(records(), claim(), require=("stepz",))
    made = private_loop(records(), claim(), require=("steps",), seconds=1e-9, **{**HOW, "checks": ("steps",)})
    with pytest.raises(SkipTest, match="steps: "):
        made(SOUND[0].make())()
