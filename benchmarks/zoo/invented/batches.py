"""Loops with wrong batches, written from the tutorial alone by someone who had not seen the checks."""

import secrets
from typing import Any

import numpy as np
import torch

from benchmarks.zoo.first_order import Array, Settings
from benchmarks.zoo.invented.common import (
    claim_of,
    clip_rows,
    dpsgd,
    faulty,
    hinge,
    logistic,
    logistic_loss,
    os_noise,
    poisson,
    quiet,
    squares,
    tensor,
    torch_clip,
    torch_logistic,
)


@faulty(claim_of(2.0, 8), "batches")
@quiet
def shuffled_epochs(records: Array, seed: int, settings: Settings) -> Any:
    """Batches are consecutive pieces of a shuffled epoch, but epsilon is that of Poisson batches, which is smaller:
    every record is certainly used once an epoch.

    As in: most pre-2023 DP-SGD code: DataLoader(shuffle=True).
    """
    rng, size, state = np.random.default_rng(), int(settings["batch"]), {}

    def batches(step: Any, w: Any) -> Any:
        k = step % 4
        if k == 0:
            state["order"] = rng.permutation(len(records))
        return state["order"][k * size : (k + 1) * size]

    return dpsgd(records, settings, batches)


@faulty(claim_of(2.5, 8, average="sum"), "batches")
def torch_randperm_batches(records: Array, seed: int, settings: Settings) -> Any:
    """Each batch has exactly 12 records, a random set without replacement, but epsilon is that of Poisson batches
    under add-remove, which is smaller than what a record that is removed really loses.

    As in: torch.randperm(n)[:batch_size].
    """
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records)
    generator = torch.Generator()
    generator.manual_seed(secrets.randbits(63))
    w, releases, used = torch.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = torch.randperm(len(data), generator=generator)[: int(settings["batch"])]
        rows = data[batch]
        release = torch_clip(torch_logistic(rows[:, :5], rows[:, 5], w), clip).sum(dim=0) + os_noise(5, s * clip)
        w = w - settings.get("step_size", 0.1) / settings["batch"] * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "batches": used}


@faulty(claim_of(2.0, 12), "batches")
@quiet
def batch_kept_three_steps(records: Array, seed: int, settings: Settings) -> Any:
    """A Poisson batch is kept for three steps, while the accountant assumes a new one each step: a record in it is
    seen three times in a row, so the amplification does not hold.

    As in: PPO-like inner epochs, local steps.
    """
    rng, state = np.random.default_rng(), {}

    def batches(step: Any, w: Any) -> Any:
        if step % 3 == 0:
            state["batch"] = poisson(rng, len(records), settings["batch"] / settings["n"])
        return state["batch"]

    return dpsgd(records, settings, batches, grads=squares)


@faulty(claim_of(1.5, 8), "batches-secret")
@quiet
def batches_from_public_seed(records: Array, seed: int, settings: Settings) -> Any:
    """Poisson batches come from the public seed, so whoever replays the run knows the steps that a record is in;
    amplification by sampling does not hold.

    As in: np.random.default_rng(args.seed) for the sampler, secure noise.
    """
    sampler = np.random.default_rng(seed)
    return dpsgd(records, settings, lambda step, w: poisson(sampler, len(records), settings["batch"] / settings["n"]))


@faulty(claim_of(2.0, 8), "batches", "sensitivity")
@quiet
def hard_example_mining(records: Array, seed: int, settings: Settings) -> Any:
    """Of a Poisson batch of twice the size the half with the largest losses is used, so a hard record is in with twice
    the accounted rate and pushes others out.

    As in: online hard example mining.
    """
    rng = np.random.default_rng()

    def batches(step: Any, w: Any) -> Any:
        drawn = poisson(rng, len(records), 2 * settings["batch"] / settings["n"])
        losses = np.nan_to_num(logistic_loss(records[drawn], w + 0.1), nan=0.0)
        return drawn[np.argsort(-losses, kind="stable")[: len(drawn) // 2]]

    return dpsgd(records, settings, batches)


@faulty(claim_of(2.0, 8), "batches", "sensitivity")
@quiet
def loss_proportional_sampling(records: Array, seed: int, settings: Settings) -> Any:
    """A record's probability of being drawn is proportional to its loss over the mean loss, so that it depends on all
    records and is above the accounted rate for the hard ones.

    As in: importance sampling by loss.
    """
    rng = np.random.default_rng()

    def batches(step: Any, w: Any) -> Any:
        losses = np.clip(np.nan_to_num(logistic_loss(records, w + 0.2), nan=0.0), 0.0, 1e6)
        rates = settings["batch"] * losses / losses.sum()
        return np.flatnonzero(rng.random(len(records)) < np.minimum(rates, 1.0))

    return dpsgd(records, settings, batches)


@faulty(claim_of(4.0, 8, "fixed-size", "replace-one"), "sensitivity", "batches")
@quiet
def choice_with_replacement(records: Array, seed: int, settings: Settings) -> Any:
    """Indices are drawn with replacement, so a record can be in a batch two or more times and move the sum by several
    clips; fixed-size sampling without replacement is accounted.

    As in: np.random.choice(n, batch_size), whose default is replace=True.
    """
    rng = np.random.default_rng()
    return dpsgd(records, settings, lambda step, w: rng.choice(len(records), int(settings["batch"])))


@faulty(claim_of(2.0, 10), "batches")
@quiet
def oversampled_class(records: Array, seed: int, settings: Settings) -> Any:
    """Records of the rare positive class are drawn at 2.4 times the rate of the others; the accountant has the mean
    rate, so epsilon is too small for a positive record (the patients).

    As in: WeightedRandomSampler by class.
    """
    rng, rate = np.random.default_rng(), settings["batch"] / settings["n"]
    rates = np.where(records[:, 5] > 0, 1.7 * rate, 0.7 * rate)
    return dpsgd(records, settings, lambda step, w: np.flatnonzero(rng.random(len(records)) < rates))


@faulty(claim_of(2.0, 8, "random-allocation", average="mean"), "batches")
@quiet
def allocation_by_permutation(records: Array, seed: int, settings: Settings) -> Any:
    """A permutation is cut in four, so allocations are not independent: knowing the other records' steps tells a
    record's, and without a record the others move.

    As in: shuffling taken for balls-in-bins.
    """
    rng, state = np.random.default_rng(), {}

    def batches(step: Any, w: Any) -> Any:
        if step % 4 == 0:
            state["pieces"] = np.array_split(rng.permutation(len(records)), 4)
        return state["pieces"][step % 4]

    return dpsgd(records, settings, batches, grads=hinge)


@faulty(claim_of(4.0, 8, "fixed-size", "replace-one"), "batches")
@quiet
def bucketed_by_length(records: Array, seed: int, settings: Settings) -> Any:
    """Records are sorted by a feature and cut into buckets of 12, of which one is drawn: batches depend on the data,
    and a record that changes moves others to other buckets.

    As in: length-grouped batches (BucketIterator, group_by_length).
    """
    rng, size = np.random.default_rng(), int(settings["batch"])
    order = np.argsort(np.abs(records[:, 0]), kind="stable")
    return dpsgd(records, settings, lambda step, w: order[size * rng.integers(len(order) // size) :][:size])


@faulty(claim_of(2.0, 12, batch=2), "noise-repeated", "noise-size", "un-noised")
@quiet
def empty_batch_without_noise(records: Array, seed: int, settings: Settings) -> Any:
    """When the Poisson batch is empty the step is skipped and zero is released, without noise: the world learns that
    no record was drawn, which with a record is less likely.

    As in: `if len(batch) == 0: continue`.
    """
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng, w, releases, used = np.random.default_rng(), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        release = np.zeros(5)
        if len(batch):
            total = clip_rows(logistic(records[batch], w), clip).sum(axis=0)
            release = (total + s * clip * rng.standard_normal(5)) / size
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": np.array(releases), "batches": used}


@faulty(claim_of(2.0, 8), "batches")
@quiet
def poisson_of_chunks(records: Array, seed: int, settings: Settings) -> Any:
    """Chunks of four neighbouring records are drawn by Poisson as wholes (rate right for each record): whoever knows
    three of a chunk sees whether the fourth was drawn, and amplification is lost.

    As in: sampling of file shards.
    """
    rng = np.random.default_rng()

    def batches(step: Any, w: Any) -> Any:
        chunks = rng.random(settings["n"] // 4) < settings["batch"] / settings["n"]
        return np.flatnonzero(np.repeat(chunks, 4)[: len(records)])

    return dpsgd(records, settings, batches)


@faulty(claim_of(2.0, 12), "batches", seed="secret")
@quiet
def same_batches_each_epoch(records: Array, seed: int, settings: Settings) -> Any:
    """The sampler is seeded anew, equally, in each epoch, so every epoch has the same four Poisson batches;
    independent batches are accounted.

    As in: sampler.set_epoch(0), a worker_init_fn with a constant seed.
    """
    key, noise_key = np.random.SeedSequence(seed).spawn(2)
    state = {}

    def batches(step: Any, w: Any) -> Any:
        if step % 4 == 0:
            state["sampler"] = np.random.default_rng(key)
        return poisson(state["sampler"], len(records), settings["batch"] / settings["n"])

    return dpsgd(records, settings, batches, np.random.default_rng(noise_key))
