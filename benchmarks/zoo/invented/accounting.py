"""Loops whose claim was computed wrongly, written from the tutorial alone by someone who had not seen the checks."""

from typing import Any

import numpy as np

from benchmarks.zoo.first_order import Array, Settings
from benchmarks.zoo.invented.common import (
    claim_of,
    clip_numbers,
    clip_rows,
    dpsgd,
    faulty,
    full,
    logistic,
    logistic_loss,
    noised,
    observed,
    poisson,
    quiet,
)


@faulty(claim_of(2.0, 12, accounted={"steps": 3}), "accounting")
@quiet
def accounted_by_epoch(records: Array, seed: int, settings: Settings) -> Any:
    """Epsilon is that of 3 steps, the number of epochs, while 12 are made.

    As in: accountant.step() called once an epoch.
    """
    return observed(records, settings)[0]


@faulty(full(8.0, 8), "steps")
@quiet
def one_step_more(records: Array, seed: int, settings: Settings) -> Any:
    """The loop makes steps + 1 steps (range(steps + 1)), of which the accountant has steps.

    As in: while step <= steps: ....
    """
    rng = np.random.default_rng()
    train = noised(lambda step, std: std * rng.standard_normal(5))
    return train(records, {**settings, "steps": settings["steps"] + 1})


@faulty(claim_of(2.0, 8, relation="replace-one", accounted={"relation": "add-remove"}), "accounting")
@quiet
def accounted_for_add_remove(records: Array, seed: int, settings: Settings) -> Any:
    """The claim is for a record replaced, epsilon is computed for one added or removed; a replaced record moves the
    sum by two clips.

    As in: accountants' defaults, unstated.
    """
    return observed(records, settings)[0]


@faulty(claim_of(2.0, 8), "batches")
@quiet
def rate_over_all_records(records: Array, seed: int, settings: Settings) -> Any:
    """A quarter of the records is set aside for validation, so that the 36 others are drawn at rate 12 / 36, while the
    accountant has 12 / 48.

    As in: sample_rate = batch_size / len(full dataset) after a split.
    """
    training = records[: 3 * settings["n"] // 4]
    rng = np.random.default_rng()
    rate = settings["batch"] / (3 * settings["n"] // 4)
    return dpsgd(training, settings, lambda step, w: poisson(rng, len(training), rate))


@faulty(claim_of(2.0, 8, accounted={"delta": 1e-2}), "accounting")
@quiet
def accounted_at_another_delta(records: Array, seed: int, settings: Settings) -> Any:
    """Epsilon is computed at delta = 0.01, a script's default, and reported with delta = 1e-5.

    As in: get_epsilon(delta=args.delta) with another default than the paper's table.
    """
    return observed(records, settings)[0]


@faulty(claim_of(1.5, 8, delta=0.05), "accounting")
@quiet
def delta_above_one_over_n(records: Array, seed: int, settings: Settings) -> Any:
    """Delta is 0.05, above 1 / n: a mechanism that publishes a random record as it is would meet the claim, so it
    protects nobody in particular.

    As in: delta = 1e-2 or 5e-2 kept from toy experiments.
    """
    return observed(records, settings)[0]


@faulty(full(10.0, 8), "sensitivity")
@quiet
def two_losses_accounted_as_one(records: Array, seed: int, settings: Settings) -> Any:
    """Both losses of a step are released, each clipped to C and noised, but accounted as one number: a record's pair
    has norm up to sqrt(2) C.

    As in: zeroth-order code that privatises loss1 and loss2 separately.
    """
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    seeds = np.random.default_rng(seed).integers(2**31, size=int(settings["steps"]))
    w, releases, clean = np.zeros(5), [], []
    for step_seed in seeds.tolist():
        u = np.random.default_rng(int(step_seed)).standard_normal(5)
        total = np.array([clip_numbers(logistic_loss(records, w + h * u), clip).sum() for h in (0.1, -0.1)])
        release = total + s * clip * noise.standard_normal(2)
        w = w - settings.get("step_size", 0.1) / settings["n"] * (release[0] - release[1]) / 0.2 * u
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean), "seeds": seeds}


@faulty(full(8.0, 8, average="mean"), "denominator", "sensitivity")
@quiet
def divided_by_private_n(records: Array, seed: int, settings: Settings) -> Any:
    """Sum and noise are divided by len(records), which under add-remove is private: without a record all others'
    shares and the noise are 48 / 47 times as large.

    As in: `.mean()` over the data set, add-remove accountant.
    """
    s, clip, rng = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    w, releases, clean = np.zeros(5), [], []
    for _ in range(settings["steps"]):
        mean = clip_rows(logistic(records, w), clip).mean(axis=0)
        release = mean + s * clip / len(records) * rng.standard_normal(5)
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        clean.append(mean)
    return {"releases": np.array(releases), "clean": np.array(clean)}


@faulty(full(4.0, 8, accounted={"noise": 8.0}), "accounting", "noise-size")
@quiet
def accounted_with_other_noise(records: Array, seed: int, settings: Settings) -> Any:
    """Noise of 4 clips is added, but the accountant was given 8: the author divided by a sensitivity of C / 2 in one
    place only.

    As in: noise multiplier and sensitivity conventions mixed.
    """
    rng = np.random.default_rng()
    return noised(lambda step, std: std * rng.standard_normal(5))(records, settings)
