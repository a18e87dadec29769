"""Loops whose noise is not as claimed, written from the tutorial alone by someone who had not seen the checks."""

import math
import random
import secrets
import time
import zlib
from typing import Any

import numpy as np
import torch

from benchmarks.zoo.first_order import Array, Settings
from benchmarks.zoo.invented.common import (
    claim_of,
    clip_numbers,
    clip_rows,
    faulty,
    finite_rows,
    full,
    hinge,
    huber,
    logistic,
    logistic_loss,
    noised,
    os_noise,
    poisson,
    quiet,
    squares,
    tensor,
    torch_clip,
    torch_logistic,
)


@faulty(full(9.0, 8), "noise-size")
@quiet
def deviation_as_covariance(records: Array, seed: int, settings: Settings) -> Any:
    """The standard deviation is given where the variance is wanted (a covariance), so the noise is 3 instead of 9
    clips.

    As in: np.random.multivariate_normal(mean, sigma * C * np.eye(d)).
    """
    rng = np.random.default_rng()
    return noised(lambda step, std: rng.multivariate_normal(np.zeros(5), std * np.eye(5)))(records, settings)


@faulty(claim_of(2.0, 8), "noise-size")
@quiet
def noise_divided_twice(records: Array, seed: int, settings: Settings) -> Any:
    """Noise for the mean, s C / B, is added to the sum, which is then divided by B: the noise is twelve times too
    small.

    As in: std = sigma * C / batch_size before `/ batch_size`.
    """
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng, w, releases, used = np.random.default_rng(), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        total = clip_rows(logistic(records[batch], w), clip).sum(axis=0)
        release = (total + rng.normal(0.0, s * clip / size, 5)) / size
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": np.array(releases), "batches": used}


@faulty(full(8.0, 8), "noise-size")
def torch_noise_over_workers(records: Array, seed: int, settings: Settings) -> Any:
    """Four workers add noise s C / 4 each, where s C / 2 would be right (variances add): the sum's noise is half of
    what is claimed.

    As in: distributed DP-SGD, noise divided by world_size instead of its root.
    """
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records)
    w, releases, clean = torch.zeros(5), [], []
    for _ in range(settings["steps"]):
        parts = []
        for rank in range(4):
            rows = data[rank::4]
            total = torch_clip(torch_logistic(rows[:, :5], rows[:, 5], w), clip).sum(dim=0)
            parts.append((total, total + os_noise(5, s * clip / 4)))
        release = sum(part[1] for part in parts)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(sum(part[0] for part in parts))
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy()}


@faulty(claim_of(2.0, 8), "denominator", "sensitivity")
@quiet
def divided_by_actual_size(records: Array, seed: int, settings: Settings) -> Any:
    """Sum and noise are divided by the actual size of the Poisson batch, so the noise's scale tells the size and one
    record more changes all others' shares.

    As in: `/ len(batch)` with Poisson sampling.
    """
    s, clip, rate = settings["noise_multiplier"], settings["clip"], settings["batch"] / settings["n"]
    rng, w, releases, used = np.random.default_rng(), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), rate)
        total = clip_rows(logistic(records[batch], w), clip).sum(axis=0)
        release = (total + s * clip * rng.standard_normal(5)) / max(len(batch), 1)
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": np.array(releases), "batches": used}


@faulty(full(8.0, 8), "representable", "noise-repeated")
def torch_half_precision_noise(records: Array, seed: int, settings: Settings) -> Any:
    """Noise is drawn in half precision and added in single precision: the release's low bits, which noise never
    touches, are those of the private sum.

    As in: mixed-precision training: torch.randn_like(half parameter).
    """
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records)
    generator = torch.Generator()
    generator.manual_seed(secrets.randbits(63))
    w, releases, clean = torch.zeros(5), [], []
    for _ in range(settings["steps"]):
        total = torch_clip(torch_logistic(data[:, :5], data[:, 5], w), clip).sum(dim=0)
        release = total + s * clip * torch.randn(5, dtype=torch.float16, generator=generator).float()
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy()}


@faulty(full(8.0, 8), "noise-law")
@quiet
def noise_truncated(records: Array, seed: int, settings: Settings) -> Any:
    """Noise is cut at two standard deviations, so some releases are possible with one data set only and the tail, in
    which delta lies, is missing.

    As in: clamping the noise 'for stability', trunc_normal_.
    """
    rng = np.random.default_rng()
    return noised(lambda step, std: std * np.clip(rng.standard_normal(5), -2.0, 2.0))(records, settings)


@faulty(full(8.0, 8), "noise-law")
@quiet
def laplace_noise(records: Array, seed: int, settings: Settings) -> Any:
    """Laplace noise with the Gaussian's standard deviation is added, in five coordinates with an L2 clip, while
    epsilon is computed for Gaussian noise.

    As in: np.random.laplace left from a pure-DP version.
    """
    rng = np.random.default_rng()
    return noised(lambda step, std: rng.laplace(0.0, std / math.sqrt(2.0), 5))(records, settings)


@faulty(full(8.0, 8, average="mean"), "noise-law", "noise-size")
def torch_uniform_noise(records: Array, seed: int, settings: Settings) -> Any:
    """torch.rand_like for torch.randn_like: noise is uniform on [0, s C], neither Gaussian nor centred nor as large as
    claimed, and bounded.

    As in: the typing error rand / randn.
    """
    s, clip, size, data = settings["noise_multiplier"], settings["clip"], settings["batch"], tensor(records)
    torch.manual_seed(secrets.randbits(63))
    w, releases = torch.zeros(5), []
    for _ in range(settings["steps"]):
        total = torch_clip(torch_logistic(data[:, :5], data[:, 5], w), clip).sum(dim=0)
        release = (total + s * clip * torch.rand_like(total)) / size
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
    return {"releases": torch.stack(releases).numpy()}


@faulty(full(8.0, 8), "noise-independence")
@quiet
def one_noise_for_all_coordinates(records: Array, seed: int, settings: Settings) -> Any:
    """One number of noise is drawn and added to all five coordinates (the argument size is missing), so differences of
    coordinates are released without noise.

    As in: rng.normal(0, sigma * C) without size.
    """
    rng = np.random.default_rng()
    return noised(lambda step, std: rng.normal(0.0, std), squares)(records, settings)


@faulty(full(8.0, 8), "noise-independence")
@quiet
def noise_drawn_once(records: Array, seed: int, settings: Settings) -> Any:
    """The noise is drawn once before the loop and added in every step; differences of releases have no noise.

    As in: noise buffers allocated outside the loop for speed.
    """
    cached = np.random.default_rng().standard_normal(5)
    return noised(lambda step, std: std * cached)(records, settings)


@faulty(full(8.0, 8), "noise-independence")
@quiet
def antithetic_noise(records: Array, seed: int, settings: Settings) -> Any:
    """Every second step's noise is the negative of the step's before (antithetic), so sums of two releases have no
    noise.

    As in: antithetic variance reduction applied to privacy noise.
    """
    z = np.random.default_rng().standard_normal(((settings["steps"] + 1) // 2, 5))
    return noised(lambda step, std: std * z[step // 2] * (-1.0) ** step)(records, settings)


@faulty(full(8.0, 8), "noise-independence")
@quiet
def noise_bank_of_three(records: Array, seed: int, settings: Settings) -> Any:
    """A bank of three noise vectors is drawn and used in turn, so the fourth step's release minus the first's has no
    noise.

    As in: pre-generated noise table recycled modulo its length.
    """
    bank = np.random.default_rng().standard_normal((3, 5))
    return noised(lambda step, std: std * bank[step % 3])(records, settings)


@faulty(full(8.0, 8), "noise-fixed", seed="secret")
def torch_set_seed_42(records: Array, seed: int, settings: Settings) -> Any:
    """set_seed(42), copied for reproducible experiments, seeds the noise: it stands in the published code, whatever
    the secret seed.

    As in: a utils.set_seed called at the top of train().
    """
    random.seed(42)
    np.random.seed(42)  # noqa: NPY002
    torch.manual_seed(42)
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records)
    w, releases, clean = torch.zeros(5), [], []
    for _ in range(settings["steps"]):
        total = torch_clip(torch_logistic(data[:, :5], data[:, 5], w), clip).sum(dim=0)
        release = total + torch.normal(0.0, s * clip, (5,))
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy()}


@faulty(full(8.0, 8), "noise-from-directions")
def torch_mezo_noise(records: Array, seed: int, settings: Settings) -> Any:
    """torch.manual_seed(seed of the step) makes the direction, and the noise is the generator's next draw: the
    published seeds, needed to replay the run, give the noise too.

    As in: MeZO's zo_perturb_parameters followed by torch.randn.
    """
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records, torch.float64)
    w, releases, clean, seeds = torch.zeros(5, dtype=torch.float64), [], [], []
    x, y = data[:, :5], data[:, 5]
    for _ in range(settings["steps"]):
        step_seed = secrets.randbelow(1_000_000_000)
        torch.manual_seed(step_seed)
        u = torch.randn(5, dtype=torch.float64)
        up, down = (torch.nn.functional.softplus(-y * (x @ (w + h * u))) for h in (1e-3, -1e-3))
        d = (up - down) / 2e-3
        total = torch.where(torch.isfinite(d), d, torch.zeros_like(d)).clamp(-clip, clip).sum()
        release = total + s * clip * torch.randn(1, dtype=torch.float64)[0]
        w = w - settings.get("step_size", 0.1) / settings["n"] * release * u
        releases.append(float(release))
        clean.append(float(total))
        seeds.append(step_seed)
    return {"releases": np.array(releases), "clean": np.array(clean), "seeds": np.array(seeds)}


@faulty(full(8.0, 8), "noise-fixed")
@quiet
def noise_seeded_by_the_time(records: Array, seed: int, settings: Settings) -> Any:
    """The noise's generator is seeded by the time in seconds, which logs and file dates tell.

    As in: srand(time(NULL)).
    """
    rng = np.random.default_rng(int(time.time()))
    return noised(lambda step, std: std * rng.standard_normal(5))(records, settings)


@faulty(full(8.0, 8), "noise-fixed", "noise-from-seed", "sensitivity")
@quiet
def noise_seeded_by_the_data(records: Array, seed: int, settings: Settings) -> Any:
    """The noise is seeded by a checksum of the data (for reproducible runs): whoever has two candidates for a record
    computes both runs and compares.

    As in: seed = crc32(dataset bytes), cache keys as seeds.
    """
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(records).tobytes()))
    return noised(lambda step, std: std * rng.standard_normal(5), hinge)(records, settings)


@faulty(full(8.0, 8), "noise-fixed", "noise-from-seed", "noise-repeated")
@quiet
def noise_from_small_seed(records: Array, seed: int, settings: Settings) -> Any:
    """The noise's seed is random.randint(0, 10000): ten thousand candidates are tried in a second, and the right one
    fits all releases.

    As in: `seed = random.randint(0, 10000)` when none is given.
    """
    rng = np.random.default_rng(random.SystemRandom().randint(0, 10_000))
    return noised(lambda step, std: std * rng.standard_normal(5))(records, settings)


@faulty(full(8.0, 8), "noise-from-seed")
def torch_public_seed(records: Array, seed: int, settings: Settings) -> Any:
    """Noise is from torch's global generator, seeded by the public --seed, so anyone can subtract it.

    As in: torch.manual_seed(args.seed) and torch.normal.
    """
    torch.manual_seed(seed % 2**32)
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records, torch.float64)
    w, releases = torch.zeros(5, dtype=torch.float64), []
    for _ in range(settings["steps"]):
        total = torch_clip(torch_logistic(data[:, :5], data[:, 5], w), clip).sum(dim=0)
        release = total + s * clip * torch.randn(5, dtype=torch.float64)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
    return {"releases": torch.stack(releases).numpy()}


@faulty(full(8.0, 8), "noise-shown", "noise-from-directions", seed="secret")
@quiet
def published_seeds_tell_the_secret(records: Array, seed: int, settings: Settings) -> Any:
    """The directions' published seeds are seed, seed + 1, ..., and the noise is from default_rng([seed, 1]): the
    secret seed, and so the noise, is read off the first published number.

    As in: zo_seed = base_seed + step.
    """
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng([seed, 1])
    seeds = [seed + step for step in range(settings["steps"])]
    w, releases, clean = np.zeros(5), [], []
    for step_seed in seeds:
        u = np.random.default_rng(step_seed).standard_normal(5)
        d = (logistic_loss(records, w + 1e-3 * u) - logistic_loss(records, w - 1e-3 * u)) / 2e-3
        total = clip_numbers(d, clip).sum()
        release = total + s * clip * noise.standard_normal()
        w = w - settings.get("step_size", 0.1) / settings["n"] * release * u
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean), "seeds": seeds}


@faulty(full(8.0, 8), "noise-shown", seed="secret")
@quiet
def secret_seed_printed(records: Array, seed: int, settings: Settings) -> Any:
    """The secret seed, from which the noise is drawn, is printed with the run's name, so a reader of the log can
    subtract the noise.

    As in: experiment names with the seed in them.
    """
    print(f"run dpgd_s{settings['noise_multiplier']}_c{settings['clip']}_seed{seed}")
    rng = np.random.default_rng(seed)
    return noised(lambda step, std: std * rng.standard_normal(5))(records, settings)


@faulty(full(8.0, 8), "noise-size", "un-noised")
@quiet
def last_step_without_noise(records: Array, seed: int, settings: Settings) -> Any:
    """The last step adds no noise ('final polish'), so the last release is the exact sum.

    As in: `if step < steps - 1: add_noise()`.
    """
    rng, last = np.random.default_rng(), settings["steps"] - 1
    return noised(lambda step, std: std * rng.standard_normal(5) * (step < last))(records, settings)


@faulty(full(8.0, 8), "noise-size")
@quiet
def noise_warm_up(records: Array, seed: int, settings: Settings) -> Any:
    """Noise is warmed up over the first three steps (a third, two thirds, all), while the accountant has the full
    noise in every step.

    As in: linear warm-up of the noise with the learning rate.
    """
    rng = np.random.default_rng()
    return noised(lambda step, std: min(1.0, (step + 1) / 3) * std * rng.standard_normal(5))(records, settings)


@faulty(full(8.0, 10), "noise-size")
@quiet
def noise_decays(records: Array, seed: int, settings: Settings) -> Any:
    """The noise decays by a twentieth a step (a NoiseScheduler), while the accountant has the first step's noise
    throughout.

    As in: opacus.schedulers.ExponentialNoise with a hand-made accountant.
    """
    rng = np.random.default_rng()
    return noised(lambda step, std: 0.95**step * std * rng.standard_normal(5), huber)(records, settings)


@faulty(full(8.0, 8, average="mean"), "noise-size")
@quiet
def noise_on_weights_wrong_factor(records: Array, seed: int, settings: Settings) -> Any:
    """Noise is added to the weights with the step size twice (lr * lr * s C / n), so it is ten times too small for the
    mean gradient.

    As in: noise put on p.data after optimizer.step(), scaled by lr again.
    """
    s, clip, n, rng = settings["noise_multiplier"], settings["clip"], settings["batch"], np.random.default_rng()
    lr, w = settings.get("step_size", 0.1), np.zeros(5)
    trajectory = [w]
    for _ in range(settings["steps"]):
        w = w - lr * (clip_rows(logistic(records, w), clip).sum(axis=0) / n)
        w = w + lr * lr * s * clip / n * rng.standard_normal(5)
        trajectory.append(w)
    return {"trajectory": np.array(trajectory)}


@faulty(full(8.0, 8), "sensitivity")
@quiet
def noise_after_momentum(records: Array, seed: int, settings: Settings) -> Any:
    """Momentum is taken of sums without noise and noise added to the buffer: a record is in the buffer of many steps,
    up to 2.7 times its clip by the third and 10 in the end.

    As in: noise added after the momentum buffer update.
    """
    s, clip, rng = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    w, buffer, releases, clean = np.zeros(5), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        buffer = 0.9 * buffer + clip_rows(logistic(records, w), clip).sum(axis=0)
        release = buffer + s * clip * rng.standard_normal(5)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(buffer)
    return {"releases": np.array(releases), "clean": np.array(clean)}


@faulty(full(8.0, 8), "noise-size", "un-noised", "sensitivity")
@quiet
def top_k_chosen_without_noise(records: Array, seed: int, settings: Settings) -> Any:
    """Only the two largest coordinates of the sum get noise and are sent; which they are is chosen without noise, and
    the zeros of the others tell it.

    As in: top-k sparsified DP-SGD.
    """
    s, clip, rng = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    w, releases = np.zeros(5), []
    for _ in range(settings["steps"]):
        total = clip_rows(squares(records, w), clip).sum(axis=0)
        top = np.argsort(-np.abs(total))[:2]
        release = np.zeros(5)
        release[top] = total[top] + s * clip * rng.standard_normal(2)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
    return {"releases": np.array(releases)}


@faulty(claim_of(2.0, 8, batch=3, average="sum"), "noise-size", "un-noised")
@quiet
def sparse_embedding(records: Array, seed: int, settings: Settings) -> Any:
    """Only embedding rows that the batch touches get noise, so exact zeros tell which categories are not in the batch.

    As in: sparse embedding gradients: noise on grad.coalesce().values().
    """
    s, clip, size, rng = settings["noise_multiplier"], settings["clip"], settings["batch"], np.random.default_rng()
    edges, w, releases, used = np.array([-1.0, -0.3, 0.3, 1.0]), np.zeros(5), [], []
    category = np.searchsorted(edges, np.nan_to_num(records[:, 0]))
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        y, c = np.where(records[batch, 5] > 0, 1.0, -1.0), category[batch]
        each = np.zeros((len(batch), 5))
        each[np.arange(len(batch)), c] = -y / (1.0 + np.exp(y * w[c]))
        release = clip_rows(each, clip).sum(axis=0)
        rows = np.unique(c)
        release[rows] += s * clip * rng.standard_normal(len(rows))
        w = w - settings.get("step_size", 0.1) / size * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": np.array(releases), "batches": used}


@faulty(full(8.0, 10), "noise-independence")
@quiet
def autoregressive_noise(records: Array, seed: int, settings: Settings) -> Any:
    """Noise of successive steps is correlated (AR(1), 0.9) and accounted as if independent: a difference of two
    releases has less noise than the accountant believes, so a record that counts in some steps only is exposed.

    As in: DP-FTRL-like 'smooth noise' without its accounting.
    """
    rng, state = np.random.default_rng(), {"z": np.random.default_rng().standard_normal(5)}

    def draw(step: Any, std: Any) -> Any:
        if step:
            state["z"] = 0.9 * state["z"] + math.sqrt(1.0 - 0.9**2) * rng.standard_normal(5)
        return std * state["z"]

    return noised(draw)(records, settings)


@faulty(claim_of(3.0, 8, "fixed-size", "replace-one"), "noise-size")
@quiet
def noise_before_clip(records: Array, seed: int, settings: Settings) -> Any:
    """Noise is added to each record's gradient before it is clipped, so what is released is a bounded mean of clipped
    vectors and not a sum with Gaussian noise of the claimed size.

    As in: order of two lines exchanged.
    """
    s, clip, size = settings["noise_multiplier"], settings["clip"], int(settings["batch"])
    rng, w, releases, used = np.random.default_rng(), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = rng.choice(len(records), size, replace=False)
        g = finite_rows(logistic(records[batch], w)) + s * clip / math.sqrt(size) * rng.standard_normal((size, 5))
        release = clip_rows(g, clip).sum(axis=0) / size
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": np.array(releases), "batches": used}


@faulty(full(8.0, 8), "noise-size", "noise-law", "un-noised")
@quiet
def length_kept(records: Array, seed: int, settings: Settings) -> Any:
    """The noised sum is scaled back to the length that the sum had without noise: that length is released exactly.

    As in: 'norm-preserving' noise, kept for stable step sizes.
    """
    s, clip, rng = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    w, releases, clean = np.zeros(5), [], []
    for _ in range(settings["steps"]):
        total = clip_rows(logistic(records, w), clip).sum(axis=0)
        with_noise = total + s * clip * rng.standard_normal(5)
        release = with_noise * np.linalg.norm(total) / max(np.linalg.norm(with_noise), 1e-12)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean)}
