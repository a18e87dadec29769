"""For each check: loops of the zoo whose fault it finds, and loops that it does not report."""

import pytest

from benchmarks.zoo.table import LOOPS
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import HELD, VIOLATED
from tests.audit.small import SOUND, ZEROTH, audit, changed

FOUND = {
    "noise-from-seed": ["seed-of-the-seed", "seed-of-the-seed-every-second-step", "seed-16-bits-of-the-seed"],
    "noise-fixed": ["seed-constant", "seed-clock", "seed-two-bytes"],
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
    assert FOUND.keys() == {check.name for check in every()}


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


FINE = {
    "directions along which nothing moves": "directions = stream.standard_normal((1, D)) * (public % 4 != 2)",
    "shares that follow the direction": "each = scaled(differences, clip) * (0.5 if public % 4 == 2 else 1.0)",
}


@pytest.mark.parametrize("line", FINE.values(), ids=list(FINE))
def test_what_follows_directions_is_no_fault_of_a_batch(line: str) -> None:
    report = audit(changed(line, base="zeroth"), "batches", "sensitivity")
    assert report.violations == [], report.text()


def test_contributions_that_shift_with_one_record_less_are_not_taken_for_its_effect() -> None:
    """Augmentations drawn from the batches' generator are others for all records where one is missing."""
    noised = "data[batch] + [0.3, 0, 0, 0, 0, 0] * draw.normal(size=(len(batch), 1))"
    line = f"gradients = finite(gradients_of({noised}, weights))"
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
