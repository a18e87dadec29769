"""For each check: loops whose fault it finds, loops that it does not report, and the effects that it states."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpzero_theory as dz
from benchmarks.zoo.table import LOOPS, D, claim, records
from dpzero_theory.audit.conformance import CHECKS, check
from dpzero_theory.audit.report import HELD, VIOLATED, AuditReport
from dpzero_theory.optim import private
from dpzero_theory.optim.files.folder import KEY
from dpzero_theory.optim.losses.isolation import examine
from tests.audit.small import SOUND, ZEROTH, audit, changed

FOUND = {
    "noise-from-seed": ["seed-of-the-seed", "seed-of-the-seed-every-second-step", "seed-16-bits-of-the-seed"],
    "noise-fixed": ["seed-constant", "seed-clock", "seed-two-bytes", "seed-of-which-torch-keeps-32-bits"],
    "noise-from-directions": ["seed-continues-the-direction", "seed-hashed-seed"],
    "noise-shown": ["seed-generator-saved", "seed-noise-printed", "seed-printed", "seed-secret-seed-printed"],
    "noise-size": ["noise-half", "noise-bias-left-out", "noise-per-record", "noise-empty-batch", "noise-ranks-average"],
    "noise-law": ["noise-clamped", "noise-laplace"],
    "noise-independence": ["noise-one-for-all", "noise-again", "noise-from-a-pool"],
    "representable": ["noise-single-precision", "noise-half-precision-in-torch"],
    "sensitivity": [
        *("clip-the-batch", "clip-each-direction", "clip-momentum-before-noise", "clip-divides-by-the-batch"),
        *("clip-norm-without-root", "clip-groups-of-four", "batch-with-replacement"),
    ],
    "not-finite": ["clip-keeps-nan", "exits-on-nan-loss"],
    "batches": ["batch-shuffled", "batch-hard-examples", "batch-allocation-by-permutation", "batch-capped"],
    "batches-secret": ["batch-public-seed"],
    "accounting": ["claims-less", "another-delta"],
    "steps": ["one-step-more", "early-stopping"],
    "un-noised": [
        *("prints-losses", "saves-sums", "prints-batch-sizes"),
        *("throughput", "bad-records-printed", "best-by-loss", "prints-members"),
    ],
}
"""Faulty loops by the check that is made of them, which must find their fault."""


CASES = [(check, name) for check, names in FOUND.items() for name in names]


@pytest.mark.parametrize(("check", "name"), CASES, ids=[name for _, name in CASES])
def test_a_fault_is_found_by_its_check(check: str, name: str) -> None:
    loop = LOOPS[name]
    assert check in loop.finds
    verdict = audit(loop, check, runs=loop.runs)[check]
    assert verdict.status == VIOLATED, verdict.says
    assert verdict.mend


def test_every_check_has_faults_that_are_planted_for_it() -> None:
    assert FOUND.keys() == CHECKS.keys()


@pytest.mark.parametrize(
    "name",
    [
        *("sound-fixed-size", "sound-weights", "sound-adaptive-clip", "sound-ends-by-a-noised-count", "sound-momentum"),
        *("sound-random-start", "sound-tree", "sound-torch", "sound-lattice", "sound-single-precision-weights"),
        *("sound-shards-in-turn", "sound-plateau-of-a-noised-count", "sound-augmentations-averaged"),
    ],
)
def test_nothing_is_reported_of_a_sound_loop(name: str) -> None:
    report = audit(LOOPS[name], runs=60)
    assert report.violations == [], report.text()
    # Weights in single precision cannot be kept where they are, so that nobody sees who is in a batch
    assert report.core_untested == (["batches"] if name == "sound-single-precision-weights" else []), report.text()


HARMLESS = {
    "the number of records": "move = settings['step_size'] * release; print(f'of {len(data)} records')",
    "weights and their digests": (
        "shown = {'weights': weights}; Path('chain.txt').write_text(hashlib.sha256(weights.tobytes()).hexdigest())"
    ),
    "names, clocks and counters": (
        "shown = {}; print('run', os.urandom(8).hex(), time.time())"
        "; Path(f'log_{os.urandom(4).hex()}.txt').write_text('')"
    ),
    "a digest under a secret key": ("shown = {'digest': hashlib.sha256(os.urandom(16) + data.tobytes()).hexdigest()}"),
    "a decision by what was released": (
        "move = settings['step_size'] * release; print('large' if np.linalg.norm(release) > 1 else 'small')"
    ),
    "releases again, rounded": "move = settings['step_size'] * release; print(*(f'{x * size:.3e}' for x in release))",
    "states of a public generator": (
        "shown = {}; Path('g.json').write_text(json.dumps(np.random.default_rng(7).bit_generator.state))"
    ),
    "numbers of the run": "shown = {}; print('run', int(fresh().integers(2**50)), 'of', 123456789)",
}
"""A changed line that shows something which is no leak, by what it shows."""


@pytest.mark.parametrize("line", HARMLESS.values(), ids=list(HARMLESS))
def test_what_is_no_leak_is_not_reported(line: str) -> None:
    report = audit(changed(line), "un-noised", "noise-shown")
    assert report.violations == [], report.text()


def test_how_much_is_shown_is_a_leak() -> None:
    """Numbers that are random tell nothing, but here there is one more of them for a record that is large."""
    line = "shown = {'drawn': fresh().normal(size=3 + int(np.abs(data).max() > 100))}"
    verdict = audit(changed(line), "un-noised")["un-noised"]
    assert verdict.status == VIOLATED
    assert "drawn, how much there is" in verdict.says


FINE = {
    "directions along which nothing moves": "directions = stream.standard_normal((1, D)) * (public % 4 != 2)",
    "shares that follow the direction": "each = scaled(differences, clip) * (0.5 if public % 4 == 2 else 1.0)",
}


@pytest.mark.parametrize("line", FINE.values(), ids=list(FINE))
def test_what_follows_directions_is_no_fault_of_a_batch(line: str) -> None:
    report = audit(changed(line, base="zeroth"), "batches", "sensitivity")
    assert report.violations == [], report.text()


_NOISED = "finite(gradients_of(data[batch] + [0.3, 0, 0, 0, 0, 0] * draw.normal(size=(len(batch), 1)), weights))"
_BIASED = f"np.hstack([{_NOISED}[:, :-1], np.ones((len(batch), 1))])"


@pytest.mark.parametrize(
    "gradients", [_NOISED, _BIASED, _BIASED.replace("draw", "fresh()")], ids=["noised", "bias", "fresh"]
)
def test_contributions_that_shift_with_one_record_less_are_not_taken_for_its_effect(gradients: str) -> None:
    """Augmentations drawn from the batches' generator differ for all records if one is missing.

    In the second and third loop a record of zeros adds something too. The third has a generator for each step, so that
    augmentations differ for the records behind the missing one.
    """
    line = f"gradients = {gradients}"
    verdict = audit(changed(line), "sensitivity")["sensitivity"]
    assert verdict.status != VIOLATED, verdict.says


def test_a_loop_that_cannot_take_a_record_out_is_tested_by_one_without_effect() -> None:
    line = "source = fresh() if len(data) == 48 else None"
    assert audit(changed(line), "sensitivity")["sensitivity"].status == HELD
    parts = "np.array_split(gradients, len(gradients) // 2 or 1)"
    pairs = f"each = np.array([scaled(part.sum(axis=0, keepdims=True), clip)[0] for part in {parts}])"
    found = audit(changed(line, pairs), "sensitivity")["sensitivity"]
    assert found.status == VIOLATED
    always = "gradients = np.hstack([finite(gradients_of(data[batch], weights))[:, :-1], np.ones((len(batch), 1))])"
    gap = audit(changed(line, always), "sensitivity")["sensitivity"]
    assert "let the loop take n - 1 records" in gap.says


def test_an_adaptive_clip_is_asked_for_what_it_took() -> None:
    loop = LOOPS["sound-adaptive-clip"]
    silent = audit(loop, "sensitivity", view={})["sensitivity"]
    assert silent.status == VIOLATED
    assert "name it in the view's `adaptive`" in silent.mend
    missing = audit(loop, "sensitivity", view={"adaptive": ["scales"]})["sensitivity"]
    assert "'scales' is missing" in missing.says


def test_the_two_basic_loops_hold_where_they_can() -> None:
    assert set(audit(SOUND).named("could not be tested")) == {"noise-from-directions", "batches-secret"}
    assert set(audit(ZEROTH).named("could not be tested")) == {"batches-secret"}


_DRAWN = "source = np.random.default_rng(seed * 2**40 + {})"
"""The noise follows the seed, which is secret, so that the tests have no chance in them."""


def _number(text: str, after: str) -> float:
    return float(text.split(after)[1].split()[0])


def _normal(line: str) -> str:
    return line.replace("NORMAL", "source.standard_normal(total.size)")


PLANTED: dict[str, Callable[[str], list[str]]] = {
    "noise-size": lambda power: [f"std = {_number(power, 'less than ')} * settings['noise_multiplier'] * clip"],
    # Signs of which a share of one half plus this distance are positive: at 0 the distribution functions differ by it
    "noise-law": lambda power: [
        _normal(
            f"noise = std * np.abs(NORMAL)"
            f" * np.where(source.random(total.size) < 0.5 + {_number(power, 'functions ')}, 1, -1)"
        )
    ],
    "noise-independence": lambda power: [
        _normal(
            f"noise = std * NORMAL if not step else {power.split()[-1]} * kept[-1]"
            f" + std * np.sqrt(1 - {power.split()[-1]} ** 2) * NORMAL; kept.append(noise)"
        )
    ],
    "representable": lambda power: [
        _normal("noise = np.round(NORMAL / GRID) * GRID * std").replace(
            "GRID", f"2.0 ** -{int(power.split('2^-')[1].split()[0]) - 1}"
        )
    ],
    "sensitivity": lambda power: [
        f"each = scaled(gradients, clip * {_number(power, 'more than ') / _number(power, 'where ') * (1 + 1e-6)})"
    ],
    "batches": lambda power: [
        f"batch = np.flatnonzero(draw.random(len(data)) < size / n + {_number(power, 'within about ')} * (size < n))"
    ],
}
"""For each check whose report states a size, the changed line in which an effect of this size is planted."""


@pytest.fixture(scope="module")
def sound() -> AuditReport:
    return audit(changed(_DRAWN.format(1)), runs=60)


@pytest.mark.parametrize("name", list(PLANTED))
def test_the_effect_that_a_held_check_would_have_seen_is_seen(sound: AuditReport, name: str) -> None:
    assert sound[name].status == HELD, sound[name].says
    after = audit(changed(_DRAWN.format(2), *PLANTED[name](sound[name].power)), name, runs=60)[name]
    assert after.status == VIOLATED, f"{sound[name].power}: {after.says}"


def test_a_single_number_from_the_seed_is_seen() -> None:
    line = "noise = std * source.standard_normal(total.size)"
    line += "; noise[:1] = noise[0] if step != 1 else std * np.random.default_rng(seed + 77).normal()"
    loop = changed("draw = fresh()", line, view={"seed": "public"})
    assert "1 of " in audit(loop, "noise-from-seed")["noise-from-seed"].says


def test_every_effect_that_is_stated_is_planted(sound: AuditReport) -> None:
    stated = {entry.check.name for entry in sound.entries if entry.verdict.power}
    assert stated == PLANTED.keys()


class _Asked:
    """A data set that notes which records are read, and so the batches."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.asked = torch.tensor(np.asarray(rows), dtype=torch.float32), set[int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.asked.add(int(index))
        return self.rows[index]

    def batch(self) -> list[int]:
        found = sorted(self.asked)
        self.asked.clear()
        return found


def _losses(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return nn.functional.softplus(-rows[:, -1] * model(rows[:, :-1])[:, 0])


@cache
def _start() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(D, 1)


def _train(rows: Any, seed: int, settings: dict[str, Any]) -> Any:
    data, module = _Asked(rows), deepcopy(_start())
    plan = dz.Plan.for_target(
        n=len(data),
        target_epsilon=settings["epsilon"],
        target_delta=settings["delta"],
        steps=settings["steps"],
        expected_batch=settings["batch"],
        clip=settings["clip"],
        step_size=settings["step_size"],
        smoothing=1e-3,
        relation=settings["relation"],
        sampling="full" if settings["batch"] == len(data) else settings["sampling"],
    )
    multiplier = float(settings["noise_multiplier"])
    plan = replace(plan, step=replace(plan.step, noise=multiplier))
    with warnings.catch_warnings(action="ignore"):
        if multiplier < 1e-6:
            run = dz.make_from_seed_not_private(module, _losses, data, plan, seed=seed)
        else:
            run = dz.make_private(module, _losses, data, plan, target_delta=settings["delta"], folder="run")
    data.batch()  # the start of the run read records that are in no batch
    releases, batches = [], []
    try:
        for _ in range(settings["steps"]):
            releases.append(run.step().sums)
            batches.append(data.batch())
    finally:
        run.close()
    (Path("run") / KEY).unlink(missing_ok=True)
    return {"releases": np.array(releases) * run.plan.unit, "batches": batches}


def test_nothing_is_reported_of_our_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of a thousand runs would test anew that the losses keep records apart, which takes half of the time
    monkeypatch.setattr(private, "examine", lambda *given, probe, **named: examine(*given, probe=False, **named))
    names = ("noise-from-seed", "noise-size", "noise-law", "sensitivity", "not-finite", "batches", "un-noised")
    one = claim(steps=4)
    report = check(_train, records(), one, dz.View(seed="public"), {"step_size": 0.1}, checks=names, runs=24)
    assert report.violations == [], report.text()
    assert not report.core_untested, report.text()
