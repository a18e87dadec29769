"""Sound private training loops, of which `table` makes all others by changing a line.

A record is a row of features and a label of -1 or +1; the model is logistic regression. A line of a loop is known by
what stands before its " = ", so that no two lines of one loop may assign to the same names. The list `kept`, and the
number `step` where it is not used, are for loops that keep something from step to step.
"""
# ruff: noqa: F841, B007

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Settings = dict[str, Any]


def fresh() -> np.random.Generator:
    """Return a generator seeded with 32 random bytes from the operating system."""
    return np.random.default_rng(int.from_bytes(os.urandom(32), "little"))


def fresh_torch() -> torch.Generator:
    """Return a generator of torch whose state of 624 words comes from the operating system: of a seed, torch's
    generator for the CPU keeps 32 bits."""
    generator = torch.Generator()
    state = generator.get_state()
    state[24 : 24 + 8 * 624].view(torch.int64).copy_(torch.from_numpy(fresh().integers(2**32, size=624)))
    generator.set_state(state)
    return generator


def gradients_of(rows: Array, weights: Array) -> Array:
    """Return the gradient of log(1 + exp(-y x.w)) for each row (x, y), shape (rows, d)."""
    x, y = rows[:, :-1], rows[:, -1:]
    return np.asarray(-y * x / (1 + np.exp(y * (x @ weights)[:, None])))


def losses_of(rows: Array, weights: Array) -> Array:
    return np.asarray(np.logaddexp(0.0, -rows[:, -1] * (rows[:, :-1] @ weights)))


def mean_loss(rows: Array, weights: Array) -> float:
    """Return the mean loss, each record's between 0 and 100, so that it is finite on all records."""
    return float(np.clip(np.nan_to_num(losses_of(rows, weights)), 0.0, 100.0).mean())


def finite(rows: Array) -> Array:
    """Return the rows with zeros in each row that has a number which is NaN or infinite."""
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)


def norms(rows: Array) -> Array:
    """Return the L2 norm of each row, as a column; of numbers above 1e120 as if they were 1e120."""
    return np.asarray(np.sqrt((np.minimum(np.abs(rows), 1e120) ** 2).sum(axis=1, keepdims=True)))


def scaled(rows: Array, clip: float) -> Array:
    """Return the rows, each scaled to L2 norm at most `clip`."""
    return np.asarray(rows * np.minimum(1.0, clip / np.maximum(norms(rows), 1e-300)))


def brain(values: Array) -> Array:
    """Return the values rounded to bfloat16 (8 significant bits), still as float64."""
    fractions, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.round(fractions * 2**8), exponents - 8))


def descent(records: Array, seed: int, settings: Settings) -> Any:
    """DP-SGD: Poisson batches from the secret seed, noise from the operating system, sums over the expected batch."""
    data, n, size, clip = np.array(records, dtype=float), settings["n"], settings["batch"], settings["clip"]
    std = settings["noise_multiplier"] * clip
    draw = np.random.default_rng(seed)
    source = fresh()
    steps = settings["steps"]
    start = np.zeros(data.shape[1] - 1)
    kept: list[Any] = []
    weights, releases = start, []
    for step in range(steps):
        batch = np.flatnonzero(draw.random(len(data)) < size / n)
        gradients = finite(gradients_of(data[batch], weights))
        each = scaled(gradients, clip)
        total = each.sum(axis=0)
        noise = std * source.standard_normal(total.size)
        release = (total + noise) / size
        move = settings["step_size"] * release
        weights = weights - move
        stop = False
        releases.append(release)
        if stop:
            break
    shown: dict[str, Any] = {}
    return {"releases": np.array(releases), **shown}


def listed(records: Array, seed: int, settings: Settings) -> Any:
    """DP-SGD whose batches and noise come from the operating system; it lists its batches for the audit."""
    data, n, size, clip = records, settings["n"], settings["batch"], settings["clip"]
    std = settings["noise_multiplier"] * clip
    draw = np.random.default_rng()
    start = np.zeros(data.shape[1] - 1)
    kept: list[Any] = []
    weights, batches, releases = start, [], []
    for step in range(settings["steps"]):
        batch = np.flatnonzero(draw.random(len(data)) < size / n)
        gradients = finite(gradients_of(data[batch], weights))
        each = scaled(gradients, clip)
        total = each.sum(axis=0)
        release = (total + std * draw.standard_normal(total.size)) / size
        move = settings["step_size"] * release
        weights = weights - move
        stop = False
        releases.append(release)
        batches.append(batch.tolist())
        if stop:
            break
    shown: dict[str, Any] = {}
    return {"releases": np.array(releases), "batches": batches, **shown}


def whole(records: Array, seed: int, settings: Settings) -> Any:
    """DP-GD on all records, noise from the operating system; releases sums, and gives the audit those before noise."""
    data, clip = np.array(records, dtype=float), settings["clip"]
    std = settings["noise_multiplier"] * clip
    source = np.random.default_rng()
    start = np.zeros(data.shape[1] - 1)
    kept: list[Any] = []
    weights, clean, releases = start, [], []
    for step in range(settings["steps"]):
        gradients = finite(gradients_of(data, weights))
        each = scaled(gradients, clip)
        total = each.sum(axis=0)
        noise = std * source.standard_normal(total.size)
        release = total + noise
        weights = weights - settings["step_size"] / settings["n"] * release
        releases.append(release)
        clean.append(total)
    shown: dict[str, Any] = {}
    return {"releases": np.array(releases), "clean": np.array(clean), **shown}


def zeroth(records: Array, seed: int, settings: Settings) -> Any:
    """DPZero: clipped differences of losses along K directions from published seeds, noise from the system."""
    data, n, size, clip = np.array(records, dtype=float), settings["n"], settings["batch"], settings["clip"]
    std = settings["noise_multiplier"] * clip
    draw = np.random.default_rng(seed)
    source = fresh()
    weights, seeds, releases = np.zeros(data.shape[1] - 1), [], []
    for step in range(settings["steps"]):
        public = int(draw.integers(2**31))
        batch = np.flatnonzero(draw.random(len(data)) < size / n)
        stream = np.random.default_rng(public)
        directions = stream.standard_normal((settings.get("directions", 1), weights.size))
        ahead = [losses_of(data[batch], weights + 1e-4 * u) for u in directions]
        behind = [losses_of(data[batch], weights - 1e-4 * u) for u in directions]
        differences = finite((np.array(ahead) - np.array(behind)).T / 2e-4)
        each = scaled(differences, clip)
        total = each.sum(axis=0)
        noise = std * source.standard_normal(total.size)
        release = (total + noise) / size
        weights = weights - settings["step_size"] * release @ directions
        seeds.append(public)
        releases.append(release)
    shown: dict[str, Any] = {}
    return {"releases": np.array(releases), "seeds": seeds, **shown}


def tensors(records: Array, seed: int, settings: Settings) -> Any:
    """DP-GD of torch in single precision on all records; gradients by automatic differentiation."""
    data, clip = torch.tensor(np.array(records), dtype=torch.float32), settings["clip"]
    std = settings["noise_multiplier"] * clip
    generator = fresh_torch()
    kept: list[Any] = []
    weights, clean, releases = torch.zeros(data.shape[1] - 1), [], []
    for step in range(settings["steps"]):
        wide = weights.expand(len(data), -1).clone().requires_grad_()
        losses = torch.nn.functional.softplus(-data[:, -1] * (data[:, :-1] * wide).sum(dim=1))
        gradients = torch.autograd.grad(losses.sum(), wide)[0]
        gradients[~torch.isfinite(gradients).all(dim=1)] = 0.0
        each = gradients * (clip / gradients.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
        total = each.sum(dim=0)
        noise = std * torch.randn(total.numel(), generator=generator)
        release = total + noise
        weights = weights - settings["step_size"] / settings["n"] * release
        releases.append(release)
        clean.append(total)
    shown: dict[str, Any] = {}
    return {"releases": torch.stack(releases).numpy(), "clean": torch.stack(clean).numpy(), **shown}


def tree(records: Array, seed: int, settings: Settings) -> Any:
    """DP-FTRL: a binary tree over four fixed batches, released as one step whose clip is sqrt(3) times a record's."""
    data, clip = np.array(records, dtype=float), settings["clip"] / np.sqrt(3)
    noise = settings["noise_multiplier"] * settings["clip"] * np.random.default_rng().standard_normal((7, 5))
    nodes, start = np.zeros((7, 5)), np.zeros(5)
    weights = start
    for step, (leaf, summed) in enumerate(
        [((0, 4, 6), (0,)), ((1, 4, 6), (4,)), ((2, 5, 6), (4, 2)), ((3, 5, 6), (6,))]
    ):
        gradients = finite(gradients_of(data[12 * step : 12 * step + 12], weights))
        nodes[list(leaf)] += scaled(gradients, clip).sum(axis=0)
        weights = start - settings["step_size"] / 12 * (nodes + noise)[list(summed)].sum(axis=0)
    return {"releases": (nodes + noise).reshape(1, 35), "clean": nodes.reshape(1, 35), "weights": weights}
