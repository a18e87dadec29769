"""Loops that clip wrongly, written from the tutorial alone by someone who had not seen the checks."""

import math
from typing import Any

import numpy as np
import torch

from benchmarks.zoo.first_order import Array, Settings
from benchmarks.zoo.invented.common import (
    claim_of,
    clip_numbers,
    clip_rows,
    dpgd,
    faulty,
    finite_rows,
    full,
    logistic,
    logistic_loss,
    mlp_grads,
    mlp_weights,
    os_noise,
    poisson,
    quiet,
    squares,
    tensor,
    torch_clip,
    torch_logistic,
)


@faulty(claim_of(4.0, 8, "fixed-size", "replace-one"), "sensitivity")
def clip_grad_norm_of_batch(records: Array, seed: int, settings: Settings) -> Any:
    """The batch's mean gradient is clipped to C, no record's: one record moves the mean by up to 2 C instead of 2 C /
    12.

    As in: torch.nn.utils.clip_grad_norm_ before the noise.
    """
    s, clip, size = settings["noise_multiplier"], settings["clip"], int(settings["batch"])
    data, rng = tensor(records, torch.float64), np.random.default_rng()
    w, releases, used = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64)), [], []
    for _ in range(settings["steps"]):
        batch = rng.permutation(len(data))[:size]
        rows = data[torch.from_numpy(batch)]
        rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, torch.zeros_like(rows)).clamp(-1e6, 1e6)
        w.grad = None
        torch.nn.functional.softplus(-rows[:, 5] * (rows[:, :5] @ w)).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([w], clip)
        w.grad += os_noise(5, s * clip / size, torch.float64)
        releases.append(w.grad.clone())
        used.append(batch.tolist())
        w.data -= settings.get("step_size", 0.1) * w.grad
    return {"releases": torch.stack(releases).numpy(), "batches": used}


@faulty(claim_of(3.0, 6, clip=0.3, average="sum"), "sensitivity")
def torch_per_layer_whole_clip(records: Array, seed: int, settings: Settings) -> Any:
    """Each of the network's three parameter arrays is clipped to the whole C, so a record moves the release by up to
    sqrt(3) C.

    As in: per-layer clipping with max_grad_norm for each layer.
    """
    s, clip, rng = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    data, flat, releases, used = tensor(records), mlp_weights(1), [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(data), settings["batch"] / settings["n"])
        each = mlp_grads(data[torch.from_numpy(batch)], flat)
        release = torch.cat([torch_clip(g, clip).sum(dim=0) for g in each]) + os_noise(21, s * clip)
        flat = flat - settings.get("step_size", 0.1) / settings["batch"] * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "batches": used}


@faulty(full(8.0, 8), "sensitivity")
@quiet
def clip_by_component(records: Array, seed: int, settings: Settings) -> Any:
    """Gradients are clipped component by component (clip_grad_value_), so a record's L2 norm is up to sqrt(5) C.

    As in: torch.nn.utils.clip_grad_value_, np.clip(g, -C, C).
    """
    c = settings["clip"]
    return dpgd(records, settings, lambda w, step: np.clip(finite_rows(logistic(records, w)), -c, c))


@faulty(full(8.0, 8, clip=0.25), "sensitivity")
@quiet
def norm_without_root(records: Array, seed: int, settings: Settings) -> Any:
    """The factor is min(1, C / sum of squares), without the square root: gradients with norm between C and 1 stay
    longer than C (up to sqrt(C), twice the clip here).

    As in: hand-written norm: (g ** 2).sum().
    """

    def contributions(w: Any, step: Any) -> Any:
        g = finite_rows(squares(records, w))
        return g * np.minimum(1.0, settings["clip"] / np.maximum((g**2).sum(axis=1, keepdims=True), 1e-12))

    return dpgd(records, settings, contributions)


@faulty(full(8.0, 8), "sensitivity")
@quiet
def frobenius_norm(records: Array, seed: int, settings: Settings) -> Any:
    """The norm is of the whole matrix of gradients, so one factor for all records depends on all of them: an outlier
    shrinks everyone's contribution and so moves the sum by many clips.

    As in: np.linalg.norm(grads) without axis=1.
    """

    def contributions(w: Any, step: Any) -> Any:
        g = finite_rows(logistic(records, w))
        return g * min(1.0, settings["clip"] * math.sqrt(settings["n"]) / max(float(np.linalg.norm(g)), 1e-12))

    return dpgd(records, settings, contributions)


@faulty(claim_of(2.0, 8, average="sum"), "not-finite")
def torch_nan_goes_through(records: Array, seed: int, settings: Settings) -> Any:
    """A record with NaN or infinity makes the clipped gradient NaN, and the release says that the record is in the
    batch.

    As in: Opacus-like (max_norm / (norm + 1e-6)).clamp(max=1.0).
    """
    s, clip, rng, data = settings["noise_multiplier"], settings["clip"], np.random.default_rng(), tensor(records)
    w, releases, used = torch.zeros(5), [], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(data), settings["batch"] / settings["n"])
        rows = data[torch.from_numpy(batch)]
        g = torch_logistic(rows[:, :5], rows[:, 5], w)
        g = g * (clip / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        release = g.sum(dim=0) + os_noise(5, s * clip)
        w = w - settings.get("step_size", 0.1) / settings["batch"] * release
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "batches": used}


@faulty(full(8.0, 8), "not-finite", "sensitivity")
def torch_skip_on_overflow(records: Array, seed: int, settings: Settings) -> Any:
    """If the batch's sum is not finite the whole sum counts as zero, so one NaN record takes everyone's contribution
    away, which are many clips.

    As in: torch.cuda.amp.GradScaler: skip the step on inf.
    """
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records)
    w, releases, clean = torch.zeros(5), [], []
    for _ in range(settings["steps"]):
        g = torch_logistic(data[:, :5], data[:, 5], w)
        total = (g * (clip / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)).sum(dim=0)
        if not bool(torch.isfinite(total).all()):
            total = torch.zeros(5)
        release = total + os_noise(5, s * clip)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy()}


@faulty(full(8.0, 8), "sensitivity", "noise-size")
@quiet
def clip_at_median(records: Array, seed: int, settings: Settings) -> Any:
    """The clip is the median of the gradients' norms (at most 1), taken without noise, and the noise follows it: the
    noise's size and others' contributions tell of the data.

    As in: Abadi et al.'s advice to use the median norm.
    """
    s, noise = settings["noise_multiplier"], np.random.default_rng()
    w, releases, clean = np.zeros(5), [], []
    for _ in range(settings["steps"]):
        g = finite_rows(logistic(records, w))
        clip = min(settings["clip"], float(np.median(np.linalg.norm(g, axis=1))))
        total = clip_rows(g, clip).sum(axis=0)
        release = total + s * clip * noise.standard_normal(5)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean)}


@faulty(full(8.0, 8), "sensitivity")
@quiet
def class_weight_after_clip(records: Array, seed: int, settings: Settings) -> Any:
    """Positive records' gradients are multiplied by the class weight 2.5 after clipping, so they move the sum by 2.5
    clips.

    As in: loss weights (pos_weight) applied after per-record clipping.
    """
    weight = np.where(records[:, 5] > 0, 2.5, 1.0)[:, None]
    return dpgd(records, settings, lambda w, step: weight * clip_rows(logistic(records, w), settings["clip"]))


@faulty(full(8.0, 8), "sensitivity")
@quiet
def losses_clipped_not_difference(records: Array, seed: int, settings: Settings) -> Any:
    """The two losses are clipped instead of their difference, which is divided by 2 lambda afterwards: a record can
    move the release by 5 / 0.002 = 2500 clips.

    As in: zeroth-order code that clamps losses for stability.
    """
    directions = np.random.default_rng(seed)
    u = directions.standard_normal((settings["steps"], 5))

    def contributions(w: Any, step: Any) -> Any:
        losses = [np.nan_to_num(logistic_loss(records, w + h * u[step]), nan=0.0) for h in (1e-3, -1e-3)]
        up, down = np.clip(losses, 0.0, 5.0)
        return ((up - down) / 2e-3)[:, None]

    state = {"step": -1}

    def to_step(release: Any) -> Any:
        state["step"] += 1
        return release[0] * u[state["step"]]

    outputs = dpgd(records, settings, contributions, 1, to_step)
    return {name: value[:, 0] for name, value in outputs.items()}


@faulty(full(10.0, 6), "sensitivity")
@quiet
def each_direction_clipped(records: Array, seed: int, settings: Settings) -> Any:
    """Each of four directions' differences is clipped to C by itself, so a record's four numbers have norm up to 2 C.

    As in: MeZO with num_perturbations > 1, made private one direction at a time.
    """
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    seeds = np.random.default_rng(seed).integers(2**31, size=int(settings["steps"]))
    w, releases, clean = np.zeros(5), [], []
    for step_seed in seeds.tolist():
        u = np.random.default_rng(int(step_seed)).standard_normal((4, 5))
        d = [(logistic_loss(records, w + 1e-3 * v) - logistic_loss(records, w - 1e-3 * v)) / 2e-3 for v in u]
        total = np.array([clip_numbers(each, clip).sum() for each in d])
        release = total + s * clip * noise.standard_normal(4)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release @ u / 4
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean), "seeds": seeds}


@faulty(full(9.0, 8, "replace-one"), "sensitivity")
@quiet
def mixup(records: Array, seed: int, settings: Settings) -> Any:
    """Each example is mixed with another record before its gradient is clipped, so a record is in two contributions
    and moves the sum by up to 4 C where 2 C is accounted.

    As in: mixup / CutMix under DP-SGD.
    """
    order = np.roll(np.arange(len(records)), 1)
    share = np.random.default_rng(seed).uniform(0.4, 0.6, int(settings["steps"]))

    def contributions(w: Any, step: Any) -> Any:
        mixed = share[step] * records + (1.0 - share[step]) * records[order]
        return clip_rows(squares(mixed, w), settings["clip"])

    return dpgd(records, settings, contributions)


@faulty(claim_of(4.0, 8, "fixed-size", "replace-one", 16), "sensitivity")
def torch_batch_norm(records: Array, seed: int, settings: Settings) -> Any:
    """Features are normalised by the batch's mean and deviation, so a record changes all others' gradients and its
    effect is not bounded by its own clip.

    As in: BatchNorm left in a DP-SGD model.
    """
    s, clip, size = settings["noise_multiplier"], settings["clip"], int(settings["batch"])
    data, rng = tensor(records, torch.float64), np.random.default_rng()
    data = torch.where(torch.isfinite(data).all(dim=1, keepdim=True), data, torch.zeros_like(data))
    norm = torch.nn.BatchNorm1d(5, affine=False, track_running_stats=False).double()
    w, releases, used, clean = torch.full((5,), 0.2, dtype=torch.float64), [], [], []
    for _ in range(settings["steps"]):
        batch = rng.permutation(len(data))[:size]
        rows = data[torch.from_numpy(batch)]
        mean = torch_clip(torch_logistic(norm(rows[:, :5]), rows[:, 5], w), clip).sum(dim=0) / size
        release = mean + os_noise(5, s * clip / size, torch.float64)
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        clean.append(mean)
        used.append(batch.tolist())
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy(), "batches": used}


@faulty(full(8.0, 8, "replace-one"), "sensitivity")
@quiet
def standard_scaler(records: Array, seed: int, settings: Settings) -> Any:
    """Features are standardised by the private data's own mean and deviation, without noise: an outlier changes every
    record's gradient.

    As in: sklearn StandardScaler().fit_transform(X) before DP training.
    """
    data = finite_rows(records)
    x = data[:, :5]
    scaled = np.concatenate([(x - x.mean(axis=0)) / (x.std(axis=0) + 1e-8), data[:, 5:]], axis=1)
    return dpgd(records, settings, lambda w, step: clip_rows(logistic(scaled, w), settings["clip"]))


@faulty(full(8.0, 8, "replace-one"), "sensitivity")
@quiet
def pairwise_ranking_loss(records: Array, seed: int, settings: Settings) -> Any:
    """Each positive's ranking loss is over all negatives, and clipped as the positive's: a negative record moves every
    positive's contribution.

    As in: pairwise (AUC, contrastive) losses with per-anchor clipping.
    """
    data = finite_rows(records)
    positive, negative = data[data[:, 5] > 0, :5], data[data[:, 5] <= 0, :5]

    def contributions(w: Any, step: Any) -> Any:
        if not len(negative):
            return np.zeros((1, 5))
        difference = positive[:, None] - negative[None]
        g = (-1.0 / (1.0 + np.exp(difference @ w)))[..., None] * difference
        return clip_rows(g.mean(axis=1), settings["clip"])

    return dpgd(records, settings, contributions)


@faulty(full(8.0, 8), "sensitivity")
@quiet
def microbatches_of_four(records: Array, seed: int, settings: Settings) -> Any:
    """Mean gradients of micro-batches of four are clipped, not records' gradients: one record changes a micro-batch's
    clipped mean by up to 2 C, and removing one shifts the others.

    As in: TF Privacy's num_microbatches < batch_size.
    """

    def contributions(w: Any, step: Any) -> Any:
        g = finite_rows(logistic(records, w))
        return clip_rows(np.stack([g[i : i + 4].mean(axis=0) for i in range(0, len(g), 4)]), settings["clip"])

    return dpgd(records, settings, contributions)


@faulty(full(8.0, 8, "replace-one"), "sensitivity")
@quiet
def baseline_subtracted(records: Array, seed: int, settings: Settings) -> Any:
    """The mean difference of all records is subtracted from each before clipping (a baseline), without noise, so one
    record moves all.

    As in: variance reduction by a baseline in zeroth-order / REINFORCE code.
    """
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    seeds = np.random.default_rng(seed).integers(2**31, size=int(settings["steps"]))
    w, releases, clean = np.zeros(5), [], []
    for step_seed in seeds.tolist():
        u = np.random.default_rng(int(step_seed)).standard_normal(5)
        d = (logistic_loss(records, w + 1e-3 * u) - logistic_loss(records, w - 1e-3 * u)) / 2e-3
        d = np.where(np.isfinite(d), d, 0.0)
        total = np.clip(d - 0.5 * d.mean(), -clip, clip).sum()
        release = total + s * clip * noise.standard_normal()
        w = w - settings.get("step_size", 0.1) / settings["n"] * release * u
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean), "seeds": seeds}


@faulty(full(8.0, 8), "sensitivity")
@quiet
def augmentations_clipped_each(records: Array, seed: int, settings: Settings) -> Any:
    """Gradients of three augmented views are each clipped to C and summed, so a record moves the sum by up to 3 C.

    As in: augmentation multiplicity by repeating the batch: x.repeat(3).
    """
    shifts = 0.1 * np.random.default_rng(seed).standard_normal((settings["steps"], 3, 5))

    def contributions(w: Any, step: Any) -> Any:
        views = [np.concatenate([records[:, :5] + shift, records[:, 5:]], axis=1) for shift in shifts[step]]
        return clip_rows(np.concatenate([logistic(view, w) for view in views]), settings["clip"])

    return dpgd(records, settings, contributions)


@faulty(full(8.0, 8), "sensitivity")
@quiet
def residual_clipped(records: Array, seed: int, settings: Settings) -> Any:
    """Only the residual (the derivative by the logit) is clipped; the features, believed to have norm at most 1, are
    not, so a record with large features moves the sum without bound.

    As in: convex-ERM code that assumes |x| <= 1.
    """

    def contributions(w: Any, step: Any) -> Any:
        x, y = records[:, :5], records[:, 5]
        return finite_rows(np.clip(x @ w - y, -settings["clip"], settings["clip"])[:, None] * x)

    return dpgd(records, settings, contributions)


@faulty(full(9.0, 8), "sensitivity")
@quiet
def bias_outside_the_norm(records: Array, seed: int, settings: Settings) -> Any:
    """The bias's gradient is left out of the clipped norm (bounded by 1 by itself), so a record's whole contribution
    has norm up to sqrt(2) C.

    As in: clipping `model.weight.grad_sample` and forgetting the bias.
    """
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    w, releases, clean = np.zeros(5), [], []
    b: Any = 0.0
    for _ in range(settings["steps"]):
        x, y = records[:, :5], records[:, 5]
        error = -y / (1.0 + np.exp(y * (x @ w + b)))
        total = np.append(clip_rows(error[:, None] * x, clip).sum(axis=0), clip_numbers(error, 1.0).sum())
        release = total + s * clip * noise.standard_normal(6)
        lr = settings.get("step_size", 0.1) / settings["n"]
        w, b = w - lr * release[:5], b - lr * release[5]
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean)}


@faulty(full(8.0, 8), "sensitivity")
@quiet
def clip_grows(records: Array, seed: int, settings: Settings) -> Any:
    """The clip is multiplied by 1.1 from each step to the next while the noise stays that of the first clip, so in the
    last of the eight steps a record moves the sum by 1.1^7 = 1.95 times the accounted clip.

    As in: clip warm-up schedules.
    """
    return dpgd(records, settings, lambda w, step: clip_rows(squares(records, w), settings["clip"] * 1.1**step))


@faulty(full(8.0, 8), "sensitivity")
@quiet
def error_feedback(records: Array, seed: int, settings: Settings) -> Any:
    """What clipping takes away from the sum is added, unclipped, to the next step's sum (error feedback): from the
    second step on a record's effect has no bound.

    As in: error feedback from gradient compression.
    """
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    w, error, releases, clean = np.zeros(5), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        g = finite_rows(logistic(records, w))
        clipped = clip_rows(g, clip).sum(axis=0)
        total = clipped + 0.5 * error
        error = g.sum(axis=0) - clipped
        release = total + s * clip * noise.standard_normal(5)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean)}


@faulty(full(8.0, 8, "replace-one"), "sensitivity")
@quiet
def outlier_filter(records: Array, seed: int, settings: Settings) -> Any:
    """Records with a feature beyond two deviations of the data's own mean are dropped before training: one extreme
    record widens the limits and brings others back in.

    As in: outlier removal in preprocessing.
    """
    data = finite_rows(records)
    x = data[:, :5]
    kept = data[(np.abs(x - x.mean(axis=0)) <= 2.0 * x.std(axis=0)).all(axis=1)]
    return dpgd(records, settings, lambda w, step: clip_rows(logistic(kept, w), settings["clip"]))
