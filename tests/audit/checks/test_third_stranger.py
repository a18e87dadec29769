"""Tests of what the audit got wrong on loops of a third stranger: sound ones that it reported, and faults it missed.

Beside each sound loop stands its nearest fault, and beside each fault its nearest sound neighbour.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpzero_theory.audit import Claim, View, check
from dpzero_theory.audit.loop import Train
from dpzero_theory.audit.report import AuditReport
from dpzero_theory.check import Array
from dpzero_theory.privacy import Release, epsilon

torch: Any = pytest.importorskip("torch")

Settings = dict[str, Any]
N, STEPS, D = 24, 6, 4


def _records() -> Array:
    """Returns 24 records of 4 features and a label, which is 1 or -1."""
    records = np.random.default_rng(0).normal(size=(N, D + 1))
    records[:, D] = np.sign(records[:, D])
    return records


def _audit(train: Train, *names: str, sampling: str = "full", seed: str = "secret", **how: Any) -> AuditReport:
    """Audits a loop by the checks called `names`, with the claim of its noise at noise multiplier 4."""
    batch = N if sampling == "full" else 6
    release = Release(4.0, STEPS, sampling=sampling, relation="add-remove", sample_rate=batch / N)
    claim = Claim(
        epsilon=epsilon([release], 1e-5).upper, delta=1e-5, relation="add-remove", sampling=sampling, n=N, batch=batch,
        steps=STEPS, noise_multiplier=4.0, clip=1.0, average="sum",
    )  # fmt: skip
    return check(train, _records(), claim, View(seed=seed), {"step_size": 0.1}, checks=names, **how)


def _losses(weights: Array, records: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.nan_to_num(np.logaddexp(0.0, -records[:, D] * (records[:, :D] @ weights)), posinf=1e9)


def _gradients(weights: Array, records: Array) -> Array:
    """Returns each record's gradient, of shape (records, 4); zeros where it is not finite."""
    with np.errstate(all="ignore"):
        margin = np.clip(records[:, D] * (records[:, :D] @ weights), -500, 500)
        gradients = -(records[:, D] / (1 + np.exp(margin)))[:, None] * records[:, :D]
        return np.asarray(np.where(np.isfinite(gradients).all(axis=1)[:, None], gradients, 0.0))


def _clipped(gradients: Array, clip: float) -> Array:
    with np.errstate(all="ignore"):
        lengths = np.maximum(np.linalg.norm(gradients, axis=1), 1e-12)
        return np.asarray(gradients * np.minimum(1.0, clip / lengths)[:, None])


def _noised(total: Array, settings: Settings) -> Array:
    noise: Array = np.random.default_rng().standard_normal(D)
    return np.asarray(total + settings["noise_multiplier"] * settings["clip"] * noise)


def _stopping(stops: Callable[[Array, Array, Array], bool]) -> Train:
    """Returns a loop that ends after a step where `stops`, of its release, its weights and the records, says so."""

    def train(records: Array, seed: int, settings: Settings) -> dict[str, Any]:
        weights, released = np.zeros(D), []
        for _ in range(settings["steps"]):
            total = _noised(_clipped(_gradients(weights, records), settings["clip"]).sum(axis=0), settings)
            released.append(total)
            weights = weights - settings["step_size"] / settings["n"] * total
            if stops(total, weights, records):
                break
        return {"releases": np.array(released), "batches": [range(len(records))] * len(released)}

    return train


@pytest.mark.parametrize("most", [5.0, 12.0])
def test_a_loop_that_ends_by_what_it_released_is_sound(most: float) -> None:
    report = _audit(_stopping(lambda total, weights, records: bool(np.linalg.norm(total) < most)), runs=24)
    assert report.violations == [], report.text()
    assert report.core_untested == [], report.text()


def test_a_number_of_steps_that_follows_releases_is_said_to() -> None:
    """The loop ends after each step with probability 1/2 or so. That the four runs of an audit all end at one step is
    seen in one audit of ten; in twelve audits it has probability 1e-12."""
    for _ in range(12):
        report = _audit(_stopping(lambda total, weights, records: bool(total[0] > 0)), "steps")
        assert report["steps"].status == "held", report.text()
        if "by what was released" in report["steps"].says:
            return
    pytest.fail("the number of steps differs between runs, and the report does not say so")


def test_a_loop_that_ends_by_the_records_is_found() -> None:
    by_loss = _stopping(lambda total, weights, records: bool(_losses(weights, records).mean() > 1))
    assert _audit(by_loss, "steps").violations == ["steps"]


def test_more_steps_than_accounted_are_found_on_other_data_too() -> None:
    def train(records: Array, seed: int, settings: Settings) -> Array:
        steps = settings["steps"] + int(np.abs(records).max() > 100)
        return np.array([_noised(np.zeros(D), settings) for _ in range(steps)])

    report = _audit(train, "steps")
    assert report["steps"].says == "7 releases are made, 6 are accounted"


def _from_seed(again: bool) -> Train:
    """Returns a loop whose batches and noise come from its seed: in turn, or each from a generator with that seed."""

    def train(records: Array, seed: int, settings: Settings) -> dict[str, Any]:
        draws = np.random.default_rng(seed)
        noise = np.random.default_rng(seed) if again else draws
        weights, released, batches = np.zeros(D), [], []
        for _ in range(settings["steps"]):
            batch = np.flatnonzero(draws.random(len(records)) < settings["batch"] / settings["n"])
            total = _clipped(_gradients(weights, records[batch]), settings["clip"]).sum(axis=0)
            total += settings["noise_multiplier"] * settings["clip"] * noise.standard_normal(D)
            released.append(total)
            batches.append(batch)
            weights = weights - settings["step_size"] / settings["n"] * total
        return {"releases": np.array(released), "batches": batches}

    return train


@pytest.mark.parametrize(("again", "seed", "code"), [(False, "secret", 0), (True, "secret", 3), (False, "public", 1)])
def test_noise_from_a_secret_seed_is_as_secret_as_the_view_says(again: bool, seed: str, code: int) -> None:
    report = _audit(_from_seed(again), "noise-from-seed", sampling="poisson", seed=seed)
    assert report.exit_code == code, report.text()


def _plateau(records: Array, seed: int, settings: Settings) -> dict[str, Any]:
    """Zeroth-order steps, whose size is halved after a release that is larger than the one before.

    The last weights are returned.
    """
    directions, weights = np.random.default_rng(seed), np.zeros(D)
    released, size, noise = list[float](), settings["step_size"], np.random.default_rng()
    for _ in range(settings["steps"]):
        u = directions.standard_normal(D)
        slopes = (_losses(weights + 1e-3 * u, records) - _losses(weights - 1e-3 * u, records)) / 2e-3
        total = np.clip(slopes, -settings["clip"], settings["clip"]).sum()
        released.append(total + settings["noise_multiplier"] * settings["clip"] * noise.standard_normal())
        weights = weights - size / settings["n"] * released[-1] * u
        if len(released) > 2 and abs(released[-1]) > abs(released[-2]):
            size /= 2
    return {"releases": np.array(released), "weights": weights}


def _rounded_plateau(records: Array, seed: int, settings: Settings) -> dict[str, Any]:
    outputs = _plateau(records, seed, settings)
    return outputs | {"weights": outputs["weights"].round(4)}


def _polished_once(records: Array, seed: int, settings: Settings) -> dict[str, Any]:
    """Steps of one size, and one more without noise before the weights are returned."""
    weights, released = np.zeros(D), list[Array]()
    for step in range(settings["steps"] + 1):
        total = _clipped(_gradients(weights, records), settings["clip"]).sum(axis=0)
        if step < settings["steps"]:
            total = _noised(total, settings)
            released.append(total)
        weights = weights - settings["step_size"] / settings["n"] * total
    return {"releases": np.array(released), "weights": weights}


@pytest.mark.parametrize(
    ("train", "found"), [(_plateau, []), (_rounded_plateau, []), (_polished_once, ["unaccounted"])]
)
def test_weights_that_follow_releases_by_cases_are_told_from_a_step_without_noise(
    train: Train, found: list[str]
) -> None:
    report = _audit(train, "unaccounted")
    assert report.violations == found, report.text()


def _augmented(make: Callable[[int], tuple[Any, Any]], copies: int = 1) -> Train:
    """Returns a loop that averages each record's gradients over four shifts of the features that all records share.

    `make` returns from a seed the generator of the batches and that of the shifts. Each record counts `copies` times.
    """

    def train(records: Array, seed: int, settings: Settings) -> dict[str, Any]:
        draws, shifts = make(seed)
        weights, released, batches = np.zeros(D), [], []
        for _ in range(settings["steps"]):
            batch = np.array([k for k in range(len(records)) if _unit(draws) < settings["batch"] / settings["n"]], int)
            gradients = np.zeros((len(batch), D))
            for _ in range(4):
                moved = records[batch].copy()
                moved[:, :D] += [0.2 * _unit(shifts) for _ in range(D)]
                gradients += _gradients(weights, moved) / 4
            released.append(_noised(copies * _clipped(gradients, settings["clip"]).sum(axis=0), settings))
            batches.append(batch)
            weights = weights - settings["step_size"] / settings["n"] * released[-1]
        return {"releases": np.array(released), "batches": batches}

    return train


def _unit(draws: Any) -> float:
    """Returns a number between 0 and 1 from a generator of NumPy, Python or torch."""
    if hasattr(draws, "initial_seed"):
        return float(torch.rand(1, generator=draws))
    return float(draws.random() if hasattr(draws, "random") else draws.random_sample())


def _of_python(seed: int) -> Any:
    return random.Random(seed)


def _old_of_numpy(seed: int) -> Any:
    return np.random.RandomState(seed)


def _of_torch(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "make",
    [np.random.default_rng, _old_of_numpy, _of_python, _of_torch],
    ids=["numpy", "old", "python", "torch"],
)
def test_draws_that_shift_with_one_record_less_are_no_effect_of_that_record(make: Callable[[int], Any]) -> None:
    shared = _audit(_augmented(lambda seed: (one := make(seed), one)), "sensitivity", sampling="poisson")
    assert shared["sensitivity"].status == "could not be tested", shared.text()
    assert "a generator of its own" in shared["sensitivity"].says


def test_draws_that_shift_without_effect_hide_nothing() -> None:
    def apart(seed: int) -> tuple[Any, Any]:
        return np.random.default_rng(seed), np.random.default_rng([seed, 1])

    assert _audit(_augmented(apart), "sensitivity", sampling="poisson")["sensitivity"].status == "held"
    assert _audit(_augmented(apart, 2), "sensitivity", sampling="poisson").violations == ["sensitivity"]
    both = _augmented(lambda seed: (one := np.random.default_rng(seed), one), 2)
    assert _audit(both, "sensitivity", sampling="poisson").violations == ["sensitivity"]


def _drawing(choose: Callable[[np.random.Generator, Array, int], Array]) -> Train:
    """Returns a loop whose batches `choose` draws, from a generator, the records and the size of a batch."""

    def train(records: Array, seed: int, settings: Settings) -> dict[str, Any]:
        draws, weights, released, batches = np.random.default_rng(seed), np.zeros(D), [], []
        for _ in range(settings["steps"]):
            batches.append(choose(draws, records, int(settings["batch"])))
            total = _clipped(_gradients(weights, records[batches[-1]]), settings["clip"]).sum(axis=0)
            released.append(_noised(total, settings))
            weights = weights - settings["step_size"] / settings["n"] * released[-1]
        return {"releases": np.array(released), "batches": batches}

    return train


def _outliers_of_pool(draws: np.random.Generator, records: Array, batch: int) -> Array:
    pool = draws.choice(len(records), min(2 * batch, len(records)), replace=False)
    outliers = np.abs(np.nan_to_num(records[pool])).max(axis=1) > 100
    return np.asarray(pool[np.argsort(~outliers, kind="stable")[:batch]])


def _first_of_pool(draws: np.random.Generator, records: Array, batch: int) -> Array:
    return np.asarray(draws.choice(len(records), min(2 * batch, len(records)), replace=False)[:batch])


def test_batches_that_follow_what_records_hold_are_found() -> None:
    report = _audit(_drawing(_outliers_of_pool), "batches", sampling="fixed-size")
    assert report.violations == ["batches"], report.text()
    assert "without regard to what the records hold" in report["batches"].mend
    report = _audit(_drawing(_first_of_pool), "batches", sampling="fixed-size")
    assert report["batches"].status == "held", report.text()
    assert "where the records differ a millionfold" in report["batches"].says


def test_a_record_in_every_batch_is_no_matter_of_what_records_hold() -> None:
    def anchored(draws: np.random.Generator, records: Array, batch: int) -> Array:
        return np.append(0, 1 + draws.choice(len(records) - 1, batch - 1, replace=False))

    report = _audit(_drawing(anchored), "batches", sampling="fixed-size")
    assert report.violations == ["batches"], report.text()
    assert "millionfold" not in report["batches"].says


def test_batches_that_are_not_listed_are_not_said_to_be_blind_to_what_records_hold() -> None:
    loop = _drawing(_first_of_pool)

    def silent(records: Array, seed: int, settings: Settings) -> Any:
        return loop(records, seed, settings)["releases"]

    report = _audit(silent, "batches", sampling="fixed-size")
    assert "whether they follow what records hold was not seen" in report["batches"].says, report.text()
