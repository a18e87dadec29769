"""Tests of claims, of the files that name them, of the report, and of the command."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest

from benchmarks.zoo.table import LOOPS, claim, records
from dpzero_theory.audit.__main__ import main
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.conformance import CHECKS, check
from dpzero_theory.audit.report import HELD, UNTESTED, AuditReport, Entry, held, untested, violated
from dpzero_theory.audit.spec import Spec, load
from dpzero_theory.audit.testing import private_loop
from dpzero_theory.optim.plan import Plan
from dpzero_theory.privacy.sampling import CyclicPoisson, FullBatch, Poisson
from dpzero_theory.privacy.step import Step
from tests.audit.small import SOUND, audit


def test_units_of_averages_and_sums() -> None:
    mean = replace(claim(), clip=0.5)
    assert mean.unit() == pytest.approx(0.5 / 12)
    assert mean.noise_std() == pytest.approx(2.0 * 0.5 / 12)
    assert mean.noise_std(48) == pytest.approx(2.0 * 0.5 / 48)
    assert replace(mean, average="sum").noise_std() == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"relation": "swap"}, "relation must be one of"),
        ({"sampling": "all"}, "sampling must be one of"),
        ({"sampling": "poisson:4"}, "sampling must be poisson, without ':'"),
        ({"sampling": "cyclic-poisson:5"}, "sample_rate must be"),
        ({"sampling": "truncated-poisson:16/50"}, "sampling must be for n = 48 records; got 'truncated-poisson:16/50'"),
        ({"n": 0}, "n must be"),
        ({"batch": 49}, "batch must be"),
        ({"steps": 1.5}, "steps must be"),
        ({"noise_multiplier": 0}, "noise_multiplier must be"),
        ({"clip": math.inf}, "clip must be"),
        ({"average": "median"}, "average must be one of"),
        ({"sampling": "full"}, "batch must be n = 48"),
    ],
)
def test_bad_claims(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(claim(), **change)  # type: ignore[arg-type]


def test_a_sampling_with_its_arguments_is_accounted() -> None:
    one = replace(claim(), sampling="cyclic-poisson:4")
    assert one.as_step().sampling == CyclicPoisson(0.25, 4)
    assert one.drawn() == CyclicPoisson(0.25, 4)
    assert one.drawn(1.0) is None
    assert replace(claim(), sampling="cyclic-poisson").drawn() is None
    assert claim().drawn(1.0) == Poisson(1.0)


def test_views() -> None:
    view = View(hidden=("weights",))
    assert [view.sees(name) for name in ("releases", "weights", "batches", "clean")] == [True, False, False, False]
    with pytest.raises(ValueError, match="seed must be one of"):
        View(seed="hidden")
    with pytest.raises(ValueError, match="records must be one of"):
        View(records="numbers")


def test_what_a_loop_adapts_to_must_be_seen() -> None:
    with pytest.raises(ValueError, match=r"^adaptive must name outputs that the attacker sees; got 'clips'"):
        View(hidden=("clips",), adaptive=("clips",))


def test_a_claim_of_a_step() -> None:
    step = Step(noise=2.0, sampling=Poisson(0.25), relation="add-remove")
    made = Claim.of(step, 12, n=48, clip=1.0, delta=1e-5)
    assert replace(made, epsilon=1.0) == replace(claim(), epsilon=1.0)
    assert made.epsilon == pytest.approx(claim().epsilon, rel=1e-5)
    assert Claim.of(step, 12, n=48, clip=1.0, delta=1e-5, epsilon=9.0, average="sum").epsilon == 9.0
    full = Claim.of(Step(8.0, FullBatch(), "replace-one"), 6, n=48, clip=1.0, delta=1e-5)
    assert (full.sampling, full.batch, full.relation) == ("full", 48, "replace-one")
    plan = Plan(
        Step(8.0, Poisson(0.25), "add-remove", "discrete-gaussian"), n=48, steps=12, clip=2.0, smoothing=1e-3,
        step_sizes=(0.1,),
    )  # fmt: skip
    of_plan = Claim.of(plan, delta=1e-5)
    assert (of_plan.batch, of_plan.steps, of_plan.clip, of_plan.relation) == (12.0, 12, 2.0, "add-remove")
    assert of_plan.epsilon == plan.epsilon(1e-5).upper
    with pytest.raises(ValueError, match="steps, n and clip must be given with a step"):
        Claim.of(step, 12, n=48, delta=1e-5)
    with pytest.raises(ValueError, match="run must have Gaussian noise; got 'laplace'"):
        Claim.of(Step(8.0, FullBatch(), "add-remove", "laplace"), 6, n=48, clip=1.0, delta=1e-5)


TEXT = """
train = "zoo_loop:run"
records = "records.npy"
[claim]
epsilon = 2.2
delta = 1e-5
relation = "add-remove"
sampling = "poisson"
n = 48
batch = 12
steps = 12
noise_multiplier = 2.0
clip = 1.0
[view]
seed = "secret"
hidden = ["weights"]
[settings]
step_size = 0.1
[variations.four]
micro_batches = 4
"""
MODULE = """
from benchmarks.zoo.table import LOOPS, claim, records
from dpzero_theory.audit.spec import Spec
run = LOOPS["sound-first-order"].train()
def spec():
    return Spec(run, records(), claim(), settings={"step_size": 0.1})
def fails():
    raise RuntimeError("no")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "zoo_loop.py").write_text(MODULE)
    (tmp_path / "spec.toml").write_text(TEXT)
    np.save(tmp_path / "records.npy", records())
    monkeypatch.delitem(sys.modules, "zoo_loop", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file(folder: Path) -> None:
    spec = load(str(folder / "spec.toml"))
    assert spec.claim.batch == 12
    assert spec.view.hidden == ("weights",)
    assert spec.variations == {"four": {"micro_batches": 4}}
    report = spec.audit(checks=("accounting", "steps"), runs=24)
    assert report.violations == []
    assert str(folder) not in sys.path


def test_a_function(folder: Path) -> None:
    assert isinstance(load("zoo_loop:spec"), Spec)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('train = "zoo_loop:run"', "", "train must be MODULE:FUNCTION"),
        ('train = "zoo_loop:run"', "command = []", "spec must be one of"),
        ("zoo_loop:run", "zoo_loop:walk", "train must be MODULE:FUNCTION"),
        ("zoo_loop:run", "zoo loop:run", "train must be MODULE:FUNCTION"),
        ('records = "records.npy"', "", "records must be"),
        ("records.npy", "none.npy", "records must be a file of numpy.save"),
        ("records.npy", "zoo_loop:fails", "records must be a function without arguments"),
        ("epsilon = 2.2", "epsilon = nan", "epsilon must be"),
        ("epsilon = 2.2", "eps = 2.2", "claim must have the fields"),
        ("clip = 1.0", "", "claim must have the fields of claim.Claim; "),
        ('seed = "secret"', "seeds = 3", "view must have the fields of claim.View; "),
        ('seed = "secret"', 'seed = "none"', "seed must be one of"),
        ("[settings]", "[setting]", "spec must be one of"),
        ("[settings]\nstep_size = 0.1", "", "n = 47"),
    ],
)
def test_bad_files(folder: Path, old: str, new: str, message: str) -> None:
    text = TEXT.replace(old, new)
    if message == "n = 47":
        text, message = text.replace("n = 48", "n = 47"), "records must be the claim's n = 47"
    (folder / "spec.toml").write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        load("spec.toml").audit(runs=24)
    assert "\n" not in str(raised.value)


def test_text_json_and_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["spec.toml", "--checks", "accounting", "--runs", "24"]
    assert main(line) == 0
    assert "accounting             held" in capsys.readouterr().out
    assert main([*line, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["held"] == ["accounting"]
    assert main([*line, "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_a_violation_is_status_1_and_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "spec.toml").read_text().replace("epsilon = 2.2", "epsilon = 1.2")
    (folder / "spec.toml").write_text(text)
    assert main(["spec.toml", "--checks", "accounting"]) == 1
    assert capsys.readouterr().err == "python -m dpzero_theory.audit: spec.toml: VIOLATED: accounting\n"


def test_a_core_check_that_could_not_be_made_is_status_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "spec.toml").read_text()
    (folder / "blind.py").write_text("def train(records, seed, settings):\n    return {'metric': [1.0]}\n")
    (folder / "spec.toml").write_text(text.replace('train = "zoo_loop:run"', 'train = "blind:train"'))
    line = ["spec.toml", "--runs", "24", "--checks", "noise-size", "accounting", "--format", "json"]
    assert main(line) == 3
    found = capsys.readouterr()
    assert json.loads(found.out)["core_not_tested"] == ["noise-size"]
    assert found.err == "python -m dpzero_theory.audit: spec.toml: NOT TESTED: noise-size\n"


VERDICTS = (
    held("as claimed", power="half", p_value=0.5),
    violated("not as claimed", "mend <this>"),
    untested("no way"),
)


@pytest.fixture
def report() -> AuditReport:
    entries = tuple(Entry(check, verdict, 3, 0.5) for check, verdict in zip(CHECKS.values(), VERDICTS, strict=False))
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
    names = [*CHECKS][:3]
    assert (found["held"], found["violated"], found["could_not_be_tested"]) == (names[:1], names[1:2], names[2:])
    assert found["claim"]["n"] == 48


def _violated(*names: str) -> AuditReport:
    """Returns a report in which the checks of these names are violated and the others held."""
    entries = tuple(
        Entry(one, violated("wrong", f"mend {one.name}") if one.name in names else held("right"), 1, 0.1)
        for one in CHECKS.values()
    )
    return AuditReport(claim(), View(), entries, 9, 1.5, 1e-6)


def test_what_follows_from_a_fault_is_listed_below_it() -> None:
    report = _violated("noise-fixed", "noise-size", "noise-law", "sensitivity")
    assert report.causes == ["noise-fixed", "sensitivity"]
    order = [entry.check.name for entry in report.ordered]
    start = order.index("noise-fixed")
    assert order[start : start + 3] == ["noise-fixed", "noise-size", "noise-law"]
    assert sorted(order) == sorted(CHECKS)
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


def test_a_cause_of_a_cause_is_the_one_that_is_named() -> None:
    report = _violated("noise-from-seed", "noise-fixed", "noise-size", "noise-law", "noise-independence")
    assert report.causes == ["noise-fixed"]


def test_no_check_can_be_its_own_cause() -> None:
    """The relation between checks has no cycle, and every check that it names is there."""
    for one in CHECKS.values():
        assert set(one.follows) <= CHECKS.keys()
        assert one.name not in _above(one.name)


def _above(name: str) -> set[str]:
    follows = {one.name: one.follows for one in CHECKS.values()}
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


def test_all_checks_on_a_sound_loop() -> None:
    report = audit(SOUND)
    assert [entry.check for entry in report.entries] == [*CHECKS.values()]
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
