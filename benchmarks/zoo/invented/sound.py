"""Sound private training loops, written from the tutorial alone by someone who had not seen the checks."""

import math
import secrets
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from benchmarks.zoo.catalogue import N
from benchmarks.zoo.first_order import Array, Settings
from benchmarks.zoo.invented.common import (
    claim_of,
    clip_numbers,
    clip_rows,
    finite_rows,
    full,
    hinge,
    huber,
    logistic,
    logistic_loss,
    mlp_grads,
    mlp_weights,
    os_noise,
    poisson,
    quiet,
    sound,
    squares,
    tensor,
    torch_clip,
    torch_logistic,
)


@sound(full(8.0, 8))
@quiet
def dpgd_full_sum(records: Array, seed: int, settings: Settings) -> Any:
    """A full-batch DP-GD script in numpy, noise from the operating system."""
    s, clip = settings["noise_multiplier"], settings["clip"]
    noise = np.random.default_rng()
    w, releases, clean = np.zeros(5), [], []
    for _ in range(settings["steps"]):
        total = clip_rows(logistic(records, w), clip).sum(axis=0)
        release = total + s * clip * noise.standard_normal(5)
        clean.append(total)
        releases.append(release)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
    return {"releases": np.array(releases), "clean": np.array(clean)}


@sound(claim_of(2.0, 10, clip=0.7))
@quiet
def dpsgd_poisson_mean(records: Array, seed: int, settings: Settings) -> Any:
    """Plain DP-SGD with Poisson batches, numpy."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng = np.random.default_rng()
    out: dict[str, Any] = {"releases": [], "clean": [], "batches": []}
    w = np.zeros(5)
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        total = clip_rows(squares(records[batch], w), clip).sum(axis=0)
        release = (total + s * clip * rng.standard_normal(5)) / size
        w = w - settings.get("step_size", 0.1) * release
        out["releases"].append(release)
        out["clean"].append(total / size)
        out["batches"].append(batch.tolist())
    return out | {"releases": np.array(out["releases"]), "clean": np.array(out["clean"])}


@sound(
    claim_of(3.0, 8, relation="replace-one", average="sum"),
    names={"step_size": "lr", "noise_multiplier": "sigma", "clip": "max_grad_norm"},
)
def torch_hinge_poisson(records: Array, seed: int, settings: Settings) -> Any:
    """A torch SVM in float32, Opacus-like words for settings."""
    sigma, clip, rate = settings["sigma"], settings["max_grad_norm"], settings["batch"] / settings["n"]
    data = tensor(records)
    w, releases, batches = torch.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = poisson(np.random.default_rng(), len(data), rate)
        rows = data[torch.from_numpy(batch)]
        x, y = rows[:, :5], rows[:, 5]
        g = torch.where(y * (x @ w) < 1.0, -y, torch.zeros_like(y))[:, None] * x
        release = torch_clip(g, clip).sum(dim=0) + os_noise(5, sigma * clip)
        w = w - settings.get("lr", 0.1) / settings["batch"] * release
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "batches": batches}


@sound(full(8.0, 10))
@quiet
def dpzero_sphere(records: Array, seed: int, settings: Settings) -> Any:
    """DPZero's Algorithm 2 with published direction seeds and noise from the operating system."""
    s, clip, smoothing = settings["noise_multiplier"], settings["clip"], 1e-3
    seeds = np.random.default_rng(seed).integers(2**31, size=int(settings["steps"]))
    noise = np.random.default_rng()
    w, releases, clean = np.zeros(5), [], []
    for step_seed in seeds.tolist():
        u = np.random.default_rng(int(step_seed)).standard_normal(5)
        u *= math.sqrt(5) / np.linalg.norm(u)
        d = (logistic_loss(records, w + smoothing * u) - logistic_loss(records, w - smoothing * u)) / (2 * smoothing)
        total = clip_numbers(d, clip).sum()
        release = total + s * clip * noise.standard_normal()
        w = w - settings.get("step_size", 0.1) / settings["n"] * release * u
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean), "seeds": seeds}


@sound(claim_of(3.0, 6, "fixed-size", "replace-one", 16), seed="secret")
@quiet
def zeroth_order_three_directions(records: Array, seed: int, settings: Settings) -> Any:
    """Zeroth-order with K = 3 directions, everything from a key."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], int(settings["batch"])
    directions, sampler, noise = (np.random.default_rng(c) for c in np.random.SeedSequence(seed).spawn(3))
    w, releases, clean, batches = np.zeros(5), [], [], []
    for _ in range(settings["steps"]):
        batch = sampler.choice(len(records), size, replace=False)
        rows, u = records[batch], directions.standard_normal((3, 5))
        d = np.stack(
            [(logistic_loss(rows, w + 1e-4 * v) - logistic_loss(rows, w - 1e-4 * v)) / 2e-4 for v in u], axis=1
        )
        total = clip_rows(d, clip).sum(axis=0)
        release = (total + s * clip * noise.standard_normal(3)) / size
        w = w - settings.get("step_size", 0.05) * release @ u / 3
        releases.append(release)
        clean.append(total / size)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "clean": np.array(clean), "batches": batches}


@sound(full(12.0, 6, "replace-one", "mean"))
@quiet
def noise_on_weights(records: Array, seed: int, settings: Settings) -> Any:
    """Gradient perturbation written as noise on the weights; checkpoints published."""
    s, clip, n = settings["noise_multiplier"], settings["clip"], settings["batch"]
    lr, rng = settings.get("step_size", 0.2), np.random.default_rng()
    w = np.full(5, 0.1)
    trajectory = [w]
    for _ in range(settings["steps"]):
        w = w - lr * clip_rows(huber(records, w), clip).sum(axis=0) / n
        w = w + lr * s * clip / n * rng.standard_normal(5)
        trajectory.append(w)
    return {"trajectory": np.array(trajectory)}


@sound(claim_of(2.5, 9, clip=1.5, average="sum"))
@quiet
def momentum_and_noised_log(records: Array, seed: int, settings: Settings) -> Any:
    """DP-SGD with momentum that prints the noised gradient's norm."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng = np.random.default_rng(secrets.randbits(128))
    w, m, releases, batches = np.zeros(5), np.zeros(5), [], []
    for step in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        release = clip_rows(logistic(records[batch], w), clip).sum(axis=0) + s * clip * rng.standard_normal(5)
        m = 0.9 * m + release / size
        w = w - settings.get("step_size", 0.1) * m
        print(f"step {step}: noised gradient norm {np.linalg.norm(release):.4f}")
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "batches": batches, "weights": w}


@sound(claim_of(4.0, 8, "fixed-size", "replace-one", 12))
def torch_adam_cosine(records: Array, seed: int, settings: Settings) -> Any:
    """Adam on noised means with a cosine schedule, torch float64."""
    s, clip, size, steps = settings["noise_multiplier"], settings["clip"], int(settings["batch"]), settings["steps"]
    data, os_rng = tensor(records, torch.float64), np.random.default_rng()
    w = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = torch.optim.Adam([w], lr=settings.get("step_size", 0.05))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    releases, clean, batches = [], [], []
    for _ in range(steps):
        batch = os_rng.permutation(len(data))[:size]
        rows = data[torch.from_numpy(batch)]
        mean = torch_clip(torch_logistic(rows[:, :5], rows[:, 5], w.detach()), clip).sum(dim=0) / size
        w.grad = mean + os_noise(5, s * clip / size, torch.float64)
        releases.append(w.grad.clone())
        optimizer.step()
        scheduler.step()
        clean.append(mean)
        batches.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy(), "batches": batches}


@sound(claim_of(2.0, 8, "random-allocation", average="sum"))
@quiet
def balls_in_bins(records: Array, seed: int, settings: Settings) -> Any:
    """Balls in bins: a record picks one step of each epoch."""
    s, clip = settings["noise_multiplier"], settings["clip"]
    rng, per_epoch = np.random.default_rng(), int(settings["n"] // settings["batch"])
    w, releases, batches = np.zeros(5), [], []
    for step in range(settings["steps"]):
        if step % per_epoch == 0:
            bins = rng.integers(per_epoch, size=len(records))
        batch = np.flatnonzero(bins == step % per_epoch)
        release = clip_rows(hinge(records[batch], w), clip).sum(axis=0) + rng.normal(0.0, s * clip, 5)
        w = w - settings.get("step_size", 0.1) / settings["batch"] * release
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "batches": batches}


@sound(claim_of(5.0, 8, "fixed-order", "replace-one", 12))
def torch_mlp_shuffled_epochs(records: Array, seed: int, settings: Settings) -> Any:
    """Shuffled epochs, honestly accounted, of a torch network."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], int(settings["batch"])
    data, flat, shuffle = tensor(records), mlp_weights(seed), np.random.default_rng(seed)
    per_epoch, releases, batches = len(data) // size, [], []
    for step in range(settings["steps"]):
        if step % per_epoch == 0:
            order = shuffle.permutation(len(data))
        batch = order[step % per_epoch * size :][:size]
        g = torch.cat(mlp_grads(data[torch.from_numpy(batch)], flat), dim=1)
        release = (torch_clip(g, clip).sum(dim=0) + os_noise(21, s * clip)) / size
        flat = flat - settings.get("step_size", 0.1) * release
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "batches": batches}


@sound(claim_of(4.0, 8, "cyclic-poisson:4", "replace-one", 6))
@quiet
def cyclic_poisson_shards(records: Array, seed: int, settings: Settings) -> Any:
    """Four shards of the data that take turns, each sampled by Poisson."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng, shard = np.random.default_rng(), np.arange(len(records)) % 4
    w, releases, batches = np.zeros(5), [], []
    for step in range(settings["steps"]):
        batch = np.flatnonzero((shard == step % 4) & (rng.random(len(records)) < 4 * size / settings["n"]))
        if settings["sampling"] == "full":
            batch = np.arange(len(records))
        release = (clip_rows(squares(records[batch], w), clip).sum(axis=0) + s * clip * rng.standard_normal(5)) / size
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "batches": batches}


@sound(claim_of(3.0, 8, f"truncated-poisson:16/{N}", "add-remove", 12, average="sum"))
@quiet
def truncated_poisson(records: Array, seed: int, settings: Settings) -> Any:
    """Poisson batches cut to the 16 records that fit in memory, as JAX trainers do."""
    s, clip, rate = settings["noise_multiplier"], settings["clip"], settings["batch"] / settings["n"]
    rng = np.random.default_rng()
    w, releases, batches = np.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), rate)
        if len(batch) > 16 and settings["sampling"] != "full":
            batch = rng.choice(batch, 16, replace=False)
        release = clip_rows(logistic(records[batch], w), clip).sum(axis=0) + s * clip * rng.standard_normal(5)
        w = w - settings.get("step_size", 0.1) / settings["batch"] * release
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "batches": batches}


def _bernoulli_exp(x: Any) -> Any:
    """True with probability exp(-x), x a Fraction >= 0, exactly."""
    while x > 1:
        if not _bernoulli_exp(Fraction(1)):
            return False
        x -= 1
    k = 1
    while secrets.randbelow(x.denominator * k) < x.numerator:
        k += 1
    return k % 2 == 1


def discrete_gaussian(sigma: Any) -> Any:
    """An exact draw from the discrete Gaussian (Canonne, Kamath, Steinke 2020); sigma is a Fraction."""
    if sigma == 0:
        return 0
    t, square = int(sigma) + 1, sigma * sigma
    while True:
        u = secrets.randbelow(t)
        if not _bernoulli_exp(Fraction(u, t)):
            continue
        v = 0
        while _bernoulli_exp(Fraction(1)):
            v += 1
        y = u + t * v
        sign = secrets.randbelow(2)
        if sign and y == 0:
            continue
        if _bernoulli_exp((y - square / t) ** 2 / (2 * square)):
            return -y if sign else y


@sound(full(10.0, 6))
@quiet
def dpzero_lattice(records: Array, seed: int, settings: Settings) -> Any:
    """Zeroth-order with integers: contributions on a lattice, discrete Gaussian noise from `secrets`."""
    s, clip, levels = settings["noise_multiplier"], settings["clip"], 2**40
    directions = np.random.default_rng(seed)
    w, releases = np.zeros(5), []
    for _ in range(settings["steps"]):
        u = directions.choice([-1.0, 1.0], size=5)
        d = (logistic_loss(records, w + 1e-3 * u) - logistic_loss(records, w - 1e-3 * u)) / 2e-3
        total = int(np.trunc(clip_numbers(d, clip) / clip * levels).astype(np.int64).sum())
        release = float(total + discrete_gaussian(Fraction(s) * levels)) / levels * clip
        w = w - settings.get("step_size", 0.1) / settings["n"] * release * u
        releases.append(release)
    return np.array(releases)


@sound(claim_of(2.5, 10, average="sum"), adaptive=("clips",))
@quiet
def adaptive_clip_noised_count(records: Array, seed: int, settings: Settings) -> Any:
    """Adaptive clip by a noised count (Andrew et al.), sum and count one release."""
    s, unit, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    share, half = math.sqrt(1.0 - 0.2**2), 0.2  # a record: sqrt(1 - 0.04) of the unit for its gradient, 0.2 for +-1/2
    rng, level = np.random.default_rng(), 0.5
    w, releases, clips, batches = np.zeros(5), [], [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        g = finite_rows(logistic(records[batch], w))
        below = np.where(np.linalg.norm(g, axis=1) <= level, half, -half)
        each = np.concatenate([clip_rows(g, level) / level * share, below[:, None]], axis=1) * unit
        release = each.sum(axis=0) + s * unit * rng.standard_normal(6)
        clips.append(level)
        releases.append(release)
        batches.append(batch.tolist())
        w = w - settings.get("step_size", 0.1) * release[:5] / unit / share * level / size
        fraction = np.clip(release[5] / unit / half / 2 / size + 0.5, 0.0, 1.0)
        level *= math.exp(-0.2 * (fraction - 0.5))
    return {"releases": np.array(releases), "clips": np.array(clips), "batches": batches}


@sound(claim_of(6.0, 1, "full", "replace-one", N, math.sqrt(3), "sum"))
@quiet
def ftrl_tree(records: Array, seed: int, settings: Settings) -> Any:
    """DP-FTRL: a binary tree over four fixed batches. It makes one pass over four batches; a record is in one leaf and
    so in 3 of 7 nodes, hence the clip times sqrt(3)."""
    clip, std = settings["clip"] / math.sqrt(3), settings["noise_multiplier"] * settings["clip"]
    z = std * np.random.default_rng().standard_normal((7, 5))
    nodes, leaves = np.zeros((7, 5)), {0: (0, 4, 6), 1: (1, 4, 6), 2: (2, 5, 6), 3: (3, 5, 6)}
    prefix = ((0,), (4,), (4, 2), (6,))
    w = start = np.zeros(5)
    for step in range(4):
        rows = records[12 * step : 12 * step + 12]
        nodes[list(leaves[step])] += clip_rows(logistic(rows, w), clip).sum(axis=0)
        noised = (nodes + z)[list(prefix[step])].sum(axis=0)
        w = start - settings.get("step_size", 0.1) / 12 * noised
    return {"releases": (nodes + z).reshape(1, 35), "clean": nodes.reshape(1, 35), "weights": w}


@sound(claim_of(2.0, 12, batch=8), seed="secret")
@quiet
def float32_from_a_key(records: Array, seed: int, settings: Settings) -> Any:
    """One generator for all, made from a 128-bit key; float32."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng, data = np.random.default_rng(seed), records.astype(np.float32)
    w, releases, batches = np.zeros(5, np.float32), [], []
    for _ in range(settings["steps"]):
        noise = s * clip * rng.standard_normal(5)
        batch = poisson(rng, len(data), size / settings["n"])
        total = clip_rows(squares(data[batch], w).astype(np.float64), clip).sum(axis=0)
        release = ((total + noise) / size).astype(np.float32)
        w = (w - settings.get("step_size", 0.05) * release).astype(np.float32)
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "batches": batches}


@sound(claim_of(3.0, 10, average="sum"))
@quiet
def noised_accuracy_plateau(records: Array, seed: int, settings: Settings) -> Any:
    """Each release has the noised training accuracy beside the five numbers of the gradient; the step size falls where
    that accuracy no longer grows."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng, lr, best, part = np.random.default_rng(), settings.get("step_size", 0.2), -math.inf, math.sqrt(0.5)
    w, releases, accuracies, rates, batches = np.zeros(5), [], [], [], []
    for step in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        rows = records[batch]
        right = (rows[:, 5] * (rows[:, :5] @ w) > 0)[:, None] * clip * part
        each = np.concatenate([clip_rows(logistic(rows, w), clip * part), right], axis=1)
        release = each.sum(axis=0) + s * clip * rng.standard_normal(6)
        accuracy = release[5] / (clip * part) / size
        print(f"step {step}: accuracy (noised) {accuracy:.3f}, step size {lr:.4f}")
        if accuracy <= best:
            lr *= 0.5
        best = max(best, accuracy)
        w = w - lr * release[:5] / size
        releases.append(release)
        accuracies.append(accuracy)
        rates.append(lr)
        batches.append(batch.tolist())
    return {
        "releases": np.array(releases),
        "accuracy": np.array(accuracies),
        "lrs": np.array(rates),
        "batches": batches,
    }


@sound(claim_of(2.0, 8, relation="zero-out"))
def torch_one_sided_signs(records: Array, seed: int, settings: Settings) -> Any:
    """Zeroth-order, one-sided differences, random signs, torch float64."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    data, rng = tensor(records, torch.float64), np.random.default_rng()
    seeds = np.random.default_rng(seed).integers(2**31, size=int(settings["steps"]))
    w, releases, batches = torch.zeros(5, dtype=torch.float64), [], []
    for step_seed in seeds.tolist():
        generator = torch.Generator().manual_seed(int(step_seed))
        u = torch.randint(2, (5,), generator=generator).double() * 2 - 1
        batch = poisson(rng, len(data), size / settings["n"])
        rows = data[torch.from_numpy(batch)]
        x, y = rows[:, :5], rows[:, 5]
        d = (torch.tanh(-y * (x @ (w + 1e-4 * u))) - torch.tanh(-y * (x @ w))) / 1e-4
        d = torch.where(torch.isfinite(d), d, torch.zeros_like(d)).clamp(-clip, clip)
        release = (float(d.sum()) + s * clip * rng.standard_normal()) / size
        w = w - settings.get("step_size", 0.1) * release * u
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "seeds": seeds, "batches": batches}


@sound(full(7.0, 6, clip=0.8))
def torch_mlp_virtual_batches(records: Array, seed: int, settings: Settings) -> Any:
    """A torch network, virtual batches of 16 for memory, Opacus-like accumulation."""
    s, clip = settings["noise_multiplier"], settings["clip"]
    data, flat, releases, clean = tensor(records, torch.float64), mlp_weights(3, torch.float64), [], []
    for _ in range(settings["steps"]):
        total = torch.zeros(21, dtype=torch.float64)
        for chunk in data.split(16):
            total += torch_clip(torch.cat(mlp_grads(chunk, flat, "squares"), dim=1), clip).sum(dim=0)
        release = total + os_noise(21, s * clip, torch.float64)
        flat = flat - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy()}


@sound(full(9.0, 8, "replace-one", "mean", clip=0.5))
@quiet
def automatic_clipping(records: Array, seed: int, settings: Settings) -> Any:
    """Automatic clipping (Bu et al.): a gradient g becomes C g/(||g|| + 0.01), of a norm below the clip C, and is not
    clipped."""
    s, clip, n = settings["noise_multiplier"], settings["clip"], settings["batch"]
    noise, w, releases, clean = np.random.default_rng(), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        g = finite_rows(squares(records, w))
        mean = clip * (g / (np.linalg.norm(g, axis=1, keepdims=True) + 0.01)).sum(axis=0) / n
        release = mean + s * clip / n * noise.standard_normal(5)
        w = w - settings.get("step_size", 0.3) * release
        releases.append(release)
        clean.append(mean)
    return {"releases": np.array(releases), "clean": np.array(clean)}


@sound(claim_of(3.0, 6, average="sum"))
def torch_per_layer_sound(records: Array, seed: int, settings: Settings) -> Any:
    """Per-layer clipping with the clip divided by the root of the number of layers."""
    s, clip, rng = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    data, flat, releases, batches = tensor(records), mlp_weights(1), [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(data), settings["batch"] / settings["n"])
        each = mlp_grads(data[torch.from_numpy(batch)], flat)
        total = torch.cat([torch_clip(g, clip / math.sqrt(len(each))).sum(dim=0) for g in each])
        release = total + os_noise(21, s * clip)
        flat = flat - settings.get("step_size", 0.1) / settings["batch"] * release
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "batches": batches}


@sound(claim_of(2.0, 8, clip=1.0))
@quiet
def augmentations_averaged(records: Array, seed: int, settings: Settings) -> Any:
    """Augmentation multiplicity (De et al.): three views averaged before clipping."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng, augment = np.random.default_rng(), np.random.default_rng(seed)
    w, releases, batches = np.zeros(5), [], []
    for _ in range(settings["steps"]):
        shifts = 0.1 * augment.standard_normal((3, 5))
        batch = poisson(rng, len(records), size / settings["n"])
        rows = records[batch]
        views = [logistic(np.concatenate([rows[:, :5] + shift, rows[:, 5:]], axis=1), w) for shift in shifts]
        total = clip_rows(np.mean(views, axis=0), clip).sum(axis=0)
        release = (total + s * clip * rng.standard_normal(5)) / size
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        batches.append(batch.tolist())
    return {"releases": np.array(releases), "batches": batches, "weights": w}
