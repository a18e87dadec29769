import json
import random
from typing import Any

import numpy as np
import pytest

import dpzero_theory.audit
from benchmarks.zoo.catalogue import SOUND, claim, records
from dpzero_theory.audit.conformance import check, every
from dpzero_theory.audit.finding import HELD, UNTESTED
from tests.audit.small import FEW, audit, named


def test_all_checks_on_a_sound_loop() -> None:
    report = audit(SOUND[0])
    assert [entry.check for entry in report.entries] == list(every())
    assert report.violations == [], report.text()
    assert set(report.named(UNTESTED)) == {"batches-secret", "one-run"}
    assert report.exit_code == 0
    assert json.loads(report.as_json())["held"] == report.named(HELD)


def test_all_checks_on_a_sound_zeroth_order_loop() -> None:
    report = audit(FEW[1])
    assert report.violations == [], report.text()
    assert len(report.named(HELD)) > len(every()) / 2


def test_a_fault_is_found_among_all_checks() -> None:
    [specimen] = named("ClipsEachNumber")
    report = audit(specimen)
    assert set(report.violations) - {"attack"} == {"sensitivity"}, report.text()
    assert report.exit_code == 1


def test_the_front_door() -> None:
    assert dpzero_theory.audit.check is check
    assert dpzero_theory.audit.Claim is type(claim())
    with pytest.raises(AttributeError):
        _ = dpzero_theory.audit.nothing


def test_a_loop_that_returns_final_weights_alone_is_told_so() -> None:
    report = check(lambda rows, seed, settings: {"weights": rows.sum(axis=0)}, records(), claim(), runs=24)
    assert report["noise-size"].status == UNTESTED
    assert report["un-noised"].status == "violated"


def test_a_loop_that_fails_later_is_not_tested() -> None:
    def train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
        if settings["batch"] == settings["n"]:
            raise MemoryError("too many")
        return [float(seed)]

    report = check(train, records(), claim(), runs=24, checks=("sensitivity", "attack"))
    assert report.named(UNTESTED) == ["sensitivity", "attack"]


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
    given = {"train": SOUND[0].make(), "records": records(), "claim": claim(), **change}
    with pytest.raises(ValueError, match=message):
        check(**given)


def test_global_generators_are_given_back() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert audit(SOUND[0], "steps").named("held") == ["steps"]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
