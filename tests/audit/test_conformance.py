import json
import random
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest

import dpzero_theory.audit
from benchmarks.zoo.table import LOOPS, claim, records
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.conformance import check, every
from dpzero_theory.audit.finding import HELD, UNTESTED
from dpzero_theory.audit.testing import private_loop
from tests.audit.small import SOUND, audit


def test_all_checks_on_a_sound_loop() -> None:
    report = audit(SOUND)
    assert [entry.check for entry in report.entries] == list(every())
    assert report.violations == [], report.text()
    assert set(report.named(UNTESTED)) == {"noise-from-directions", "batches-secret"}
    assert report.exit_code == 0
    assert json.loads(report.as_json())["held"] == report.named(HELD)


def test_a_fault_is_found_among_all_checks() -> None:
    report = audit(LOOPS["clip-each-number"])
    assert report.violations == ["sensitivity"], report.text()
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("name", "error"), [("sound-first-order", None), ("noise-half", AssertionError), ("noise-always-one", SkipTest)]
)
def test_an_audit_as_a_test(name: str, error: type[BaseException] | None) -> None:
    checks = ("sensitivity",) if error is SkipTest else ("noise-size",)
    decorated = private_loop(records(), claim(), View(seed="secret"), {"step_size": 0.1}, runs=24, checks=checks)
    test = decorated(LOOPS[name].train())
    if error is None:
        test()
        return
    with pytest.raises(error, match=checks[0]):
        test()


def test_the_front_door() -> None:
    assert dpzero_theory.audit.check is check
    assert dpzero_theory.audit.Claim is Claim
    with pytest.raises(AttributeError):
        _ = dpzero_theory.audit.nothing


def test_a_loop_that_fails_later_is_not_tested() -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        if settings["batch"] == settings["n"]:
            raise MemoryError("too many")
        return [float(seed)]

    report = check(train, records(), claim(), runs=24, checks=("sensitivity", "not-finite"))
    assert report.named(UNTESTED) == ["sensitivity", "not-finite"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 3}, "runs must be"),
        ({"false_alarm": 0.7}, "false_alarm must be"),
        ({"checks": ("all",)}, "check must be one of"),
        ({"train": 3}, "train must be callable"),
        ({"records": [1.0]}, "records must be the claim's n = 48; got 1"),
        ({"train": lambda rows, seed, settings: 1 / 0}, "train must run on the records given; got ZeroDivisionError"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    given = {"train": SOUND.train(), "records": records(), "claim": claim(), **change}
    with pytest.raises(ValueError, match=message):
        check(**given)


def test_global_generators_are_given_back() -> None:
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002
    assert audit(SOUND, "steps").named("held") == ["steps"]
    assert (random.getstate(), str(np.random.get_state())) == before  # noqa: NPY002
