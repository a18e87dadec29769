"""Loops that show what has no noise, written from the tutorial alone by someone who had not seen the checks."""

import math
import secrets
import sys
import time
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
    logistic,
    logistic_loss,
    observed,
    os_noise,
    poisson,
    quiet,
    tensor,
    torch_clip,
    torch_logistic,
)


def mean_loss(records: Any, w: Any) -> Any:
    return float(np.clip(np.nan_to_num(logistic_loss(records, w), nan=0.0), 0.0, 100.0).mean())


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def prints_training_loss(records: Array, seed: int, settings: Settings) -> Any:
    """The training loss, without noise, is printed each step.

    As in: print(f'loss {loss.item()}') in every training script.
    """
    outputs, _ = observed(
        records, settings, lambda step, batch, w, release: print(f"step {step} loss {mean_loss(records, w):.4f}")
    )
    return outputs


@faulty(full(8.0, 6), "un-noised")
def torch_returns_losses(records: Array, seed: int, settings: Settings) -> Any:
    """The mean training loss of each step is returned as the history to be plotted, without noise.

    As in: history['loss'].append(...).
    """
    s, clip, data = settings["noise_multiplier"], settings["clip"], tensor(records)
    w, releases, clean, losses = torch.zeros(5), [], [], []
    for _ in range(settings["steps"]):
        x, y = data[:, :5], data[:, 5]
        each = torch.nn.functional.softplus(-y * (x @ w))
        losses.append(float(torch.where(torch.isfinite(each), each, torch.zeros_like(each)).clamp(max=100).mean()))
        total = torch_clip(torch_logistic(x, y, w), clip).sum(dim=0)
        release = total + os_noise(5, s * clip)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy(), "losses": np.array(losses)}


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def returns_batch_sizes(records: Array, seed: int, settings: Settings) -> Any:
    """The sizes of the Poisson batches are returned: they tell how many records were drawn, and with all but one
    known, whether that one was.

    As in: logging len(batch) to wandb.
    """
    outputs, _ = observed(records, settings)
    return outputs | {"batch_sizes": np.array([len(batch) for batch in outputs["batches"]])}


@faulty(claim_of(2.0, 10), "un-noised")
@quiet
def best_checkpoint(records: Array, seed: int, settings: Settings) -> Any:
    """The weights published are those of the step with the least training loss, chosen without noise.

    As in: save_best_only=True.
    """
    seen = []
    outputs, _ = observed(
        records, settings, lambda step, batch, w, release: seen.append((mean_loss(records, w), step, w))
    )
    _, step, w = min(seen, key=lambda each: each[0])
    return outputs | {"best_step": step, "best_weights": w}


@faulty(claim_of(2.0, 12), "steps", "un-noised")
@quiet
def early_stopping(records: Array, seed: int, settings: Settings) -> Any:
    """Training stops when the training loss, without noise, has not fallen for two steps: the number of steps tells of
    the data.

    As in: EarlyStopping(monitor='loss', patience=2).
    """
    state = {"best": math.inf, "bad": 0}

    def observe(step: Any, batch: Any, w: Any, release: Any) -> Any:
        loss = mean_loss(records, w)
        state["bad"] = 0 if loss < state["best"] else state["bad"] + 1
        state["best"] = min(state["best"], loss)
        return "stop" if state["bad"] >= 2 else None

    return observed(records, settings, observe)[0]


@faulty(claim_of(2.0, 10), "un-noised")
@quiet
def plateau_by_training_loss(records: Array, seed: int, settings: Settings) -> Any:
    """The step size is halved when the training loss, without noise, rises, and the step sizes are returned.

    As in: ReduceLROnPlateau.step(train_loss).
    """
    state, rates = {"last": math.inf, "rate": 1.0}, []

    def rate(step: Any, w: Any) -> Any:
        loss = mean_loss(records, w)
        state["rate"] *= 0.5 if loss > state["last"] else 1.0
        state["last"] = loss
        rates.append(state["rate"])
        return state["rate"]

    outputs, _ = observed(records, settings, rate=rate)
    return outputs | {"lr_factors": np.array(rates)}


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def clipped_fraction(records: Array, seed: int, settings: Settings) -> Any:
    """The fraction of the batch's gradients that were clipped is logged, without noise.

    As in: logging clip rates to tune C.
    """
    fractions, last = [], {"w": np.zeros(5)}

    def observe(step: Any, batch: Any, w: Any, release: Any) -> Any:
        norms = np.linalg.norm(finite_rows(logistic(records[batch], last["w"])), axis=1)
        fractions.append(float((norms > settings["clip"]).mean()) if len(batch) else 0.0)
        last["w"] = w

    outputs, _ = observed(records, settings, observe)
    return outputs | {"clipped_fraction": np.array(fractions)}


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def writes_log_file(records: Array, seed: int, settings: Settings) -> Any:
    """The training accuracy of every fourth step is written, without noise, to a log file beside the checkpoints.

    As in: logging.FileHandler('train.log').
    """
    with open("train.log", "w", encoding="utf-8") as log:

        def observe(step: Any, batch: Any, w: Any, release: Any) -> Any:
            if step % 4 == 3:
                right = int((records[:, 5] * (records[:, :5] @ w) > 0).sum())
                log.write(f"step {step} accuracy {right / settings['n']:.4f}\n")

        return observed(records, settings, observe)[0]


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def prints_throughput(records: Array, seed: int, settings: Settings) -> Any:
    """A progress line has the time of the step and the records per second, whose product is the Poisson batch's size.

    As in: tqdm's it/s with the number of samples, throughput meters.
    """
    state = {"start": time.perf_counter()}

    def observe(step: Any, batch: Any, w: Any, release: Any) -> Any:
        seconds = time.perf_counter() - state["start"]
        print(f"step {step}: {1e3 * seconds:.4f} ms, {len(batch) / seconds:.1f} records/s")
        state["start"] = time.perf_counter()

    return observed(records, settings, observe)[0]


@faulty(full(8.0, 8), "noise-shown")
def torch_checkpoint_with_rng_state(records: Array, seed: int, settings: Settings) -> Any:
    """The checkpoint after the first step has the state of the noise's generator, from which all later noise is
    computed.

    As in: checkpoint = {'rng_state': torch.get_rng_state(), ...}.
    """
    s, clip, data, generator = settings["noise_multiplier"], settings["clip"], tensor(records), torch.Generator()
    generator.manual_seed(secrets.randbits(63))
    w, releases, clean, state = torch.zeros(5), [], [], None
    for step in range(settings["steps"]):
        total = torch_clip(torch_logistic(data[:, :5], data[:, 5], w), clip).sum(dim=0)
        release = total + s * clip * torch.randn(5, generator=generator)
        w = w - settings.get("step_size", 0.1) / settings["n"] * release
        releases.append(release)
        clean.append(total)
        state = generator.get_state().numpy().copy() if step == 0 else state
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy(), "rng_state": state}


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def final_training_accuracy(records: Array, seed: int, settings: Settings) -> Any:
    """The final accuracy on the training data is returned with the model, exactly.

    As in: print('train acc', model.score(X, y)).
    """
    outputs, w = observed(records, settings)
    return outputs | {"accuracy": float((records[:, 5] * (records[:, :5] @ w) > 0).sum()) / settings["n"]}


@faulty(claim_of(2.0, 8), "un-noised", "not-finite")
@quiet
def prints_bad_records(records: Array, seed: int, settings: Settings) -> Any:
    """A record whose gradient is not finite is rightly left out, but its number is printed: the log tells that it is
    in the data, and in which batches.

    As in: warnings.warn(f'skipping sample {i}: nan gradient').
    """

    def observe(step: Any, batch: Any, w: Any, release: Any) -> Any:
        for i in batch[~np.isfinite(logistic(records[batch], w)).all(axis=1)]:
            print(f"step {step}: skipping record {i}, its gradient is not finite")

    return observed(records, settings, observe)[0]


@faulty(full(8.0, 8, average="mean"), "un-noised", "sensitivity")
@quiet
def starts_at_class_means(records: Array, seed: int, settings: Settings) -> Any:
    """Training starts at the difference of the two classes' means, computed without noise, and the trajectory shows
    it.

    As in: warm start from a closed-form solution or k-means centres.
    """
    s, clip, n, rng = settings["noise_multiplier"], settings["clip"], settings["batch"], np.random.default_rng()
    data = np.clip(finite_rows(records), -10.0, 10.0)
    w = (np.sign(data[:, 5:]) * data[:, :5]).sum(axis=0) / n
    trajectory = [w]
    for _ in range(settings["steps"]):
        total = clip_rows(logistic(records, w), clip).sum(axis=0)
        w = w - settings.get("step_size", 0.1) * (total + s * clip * rng.standard_normal(5)) / n
        trajectory.append(w)
    return {"trajectory": np.array(trajectory)}


@faulty(claim_of(2.0, 8), "not-finite", "steps", "un-noised")
@quiet
def exits_on_nan_loss(records: Array, seed: int, settings: Settings) -> Any:
    """The run exits when the training loss is not finite, so a record with a NaN feature is seen to be in the data by
    the crash.

    As in: MAE/DETR engines: print('Loss is {}, stopping training'); sys.exit(1).
    """

    def observe(step: Any, batch: Any, w: Any, release: Any) -> Any:
        if not math.isfinite(float(logistic_loss(records, w).mean())):
            print("Loss is not finite, stopping training")
            sys.exit(1)

    return observed(records, settings, observe)[0]


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def calibrated_on_training_data(records: Array, seed: int, settings: Settings) -> Any:
    """After training the model is calibrated on the training data: the best intercept, chosen without noise, is
    returned.

    As in: temperature or Platt scaling on the private set.
    """
    outputs, w = observed(records, settings)
    data, grid = np.clip(finite_rows(records), -1e3, 1e3), np.linspace(-2.0, 2.0, 81)
    margins = data[:, 5] * (data[:, :5] @ w + grid[:, None])
    return outputs | {"weights": w, "intercept": float(grid[np.logaddexp(0.0, -margins).mean(axis=1).argmin()])}


@faulty(claim_of(2.0, 8), "un-noised")
@quiet
def step_size_by_pilot_runs(records: Array, seed: int, settings: Settings) -> Any:
    """The step size is chosen among eight by pilot runs without noise on the same data, and published with the model.

    As in: hyper-parameter search on the private data, not accounted.
    """

    def pilot(factor: Any) -> Any:
        w = np.zeros(5)
        for _ in range(3):
            w = w - factor * clip_rows(logistic(records, w), settings["clip"]).sum(axis=0) / settings["n"]
        return mean_loss(records, w)

    best = min(np.linspace(0.5, 4.0, 8), key=pilot)
    outputs, w = observed(records, settings, rate=lambda step, w: best)
    return outputs | {"lr_factor": float(best), "weights": w}


@faulty(claim_of(2.0, 10), "un-noised")
@quiet
def adam_moments_without_noise(records: Array, seed: int, settings: Settings) -> Any:
    """Adam's second moments are of gradients without noise, so the weights, which are published, are scaled by numbers
    that the accountant does not know.

    As in: noise on exp_avg only.
    """
    s, clip, size, rng = settings["noise_multiplier"], settings["clip"], settings["batch"], np.random.default_rng()
    w, m, v, releases, used = np.zeros(5), np.zeros(5), np.zeros(5), [], []
    for step in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        mean = clip_rows(logistic(records[batch], w), clip).sum(axis=0) / size
        release = mean + s * clip / size * rng.standard_normal(5)
        m, v = 0.9 * m + 0.1 * release, 0.99 * v + 0.01 * mean**2
        hat = m / (1 - 0.9 ** (step + 1)) / (np.sqrt(v / (1 - 0.99 ** (step + 1))) + 1e-6)
        w = w - settings.get("step_size", 0.01) * hat
        releases.append(release)
        used.append(batch.tolist())
    return {"releases": np.array(releases), "batches": used, "weights": w}


@faulty(full(8.0, 8), "un-noised", "sensitivity")
@quiet
def principal_directions(records: Array, seed: int, settings: Settings) -> Any:
    """Gradients are projected on the data's first two principal directions, computed without noise and returned.

    As in: low-rank private training (GEP, DP-LoRA initialised from data).
    """
    s, clip, rng = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    basis = np.linalg.svd(np.clip(finite_rows(records), -1e6, 1e6)[:, :5], full_matrices=False)[2][:2].T
    w, releases, clean = np.zeros(5), [], []
    for _ in range(settings["steps"]):
        total = clip_rows(logistic(records, w) @ basis, clip).sum(axis=0)
        release = total + s * clip * rng.standard_normal(2)
        w = w - settings.get("step_size", 0.1) / settings["n"] * basis @ release
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean), "basis": basis}


@faulty(full(8.0, 8, "replace-one"), "un-noised", "sensitivity")
@quiet
def directions_scaled_by_data(records: Array, seed: int, settings: Settings) -> Any:
    """Directions are scaled by the features' own deviations, taken without noise: every record's difference and the
    weights depend on them.

    As in: preconditioned zeroth-order optimisation (HiZOO-like).
    """
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    scale = 1.0 / (np.clip(finite_rows(records), -1e3, 1e3)[:, :5].std(axis=0) + 0.1)
    directions, w, releases, clean = np.random.default_rng(seed), np.zeros(5), [], []
    for _ in range(settings["steps"]):
        u = scale * directions.standard_normal(5)
        d = (logistic_loss(records, w + 1e-3 * u) - logistic_loss(records, w - 1e-3 * u)) / 2e-3
        total = clip_numbers(d, clip).sum()
        release = total + s * clip * noise.standard_normal()
        w = w - settings.get("step_size", 0.1) / settings["n"] * release * u
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean), "weights": w}


@faulty(claim_of(2.5, 8), "sensitivity", "batches", "un-noised")
@quiet
def svrg_anchor_without_noise(records: Array, seed: int, settings: Settings) -> Any:
    """SVRG's full gradient at the start, clipped but without noise and not accounted, is added to each noised
    difference: a record moves every step of the trajectory, also where the batch does not have it.

    As in: private SVRG with a noised inner loop only.
    """
    s, clip, size, rng = settings["noise_multiplier"], settings["clip"], settings["batch"], np.random.default_rng()
    w = start = np.zeros(5)
    anchor = clip_rows(logistic(records, start), clip).sum(axis=0) / settings["n"]
    trajectory, used = [w], []
    for _ in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        difference = clip_rows(
            finite_rows(logistic(records[batch], w)) - finite_rows(logistic(records[batch], start)), clip
        )
        w = w - settings.get("step_size", 0.1) * (
            (difference.sum(axis=0) + s * clip * rng.standard_normal(5)) / size + anchor
        )
        trajectory.append(w)
        used.append(batch.tolist())
    return {"trajectory": np.array(trajectory), "batches": used}
