"""Sound DP-SGD loops that compute gradients, draw noise or return results in unusual ways; no check may report them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap

from benchmarks.zoo.first_order import Array, FirstOrder, Settings, fresh
from dpzero_theory.privacy.matrix import sensitivity


def _loss(weights: Tensor, features: Tensor, label: Tensor) -> Tensor:
    return torch.nn.functional.softplus(-label * (features @ weights))


_gradients = vmap(grad(_loss), in_dims=(None, 0, 0))


class PerSampleAutograd(FirstOrder):
    """A sound loop: per-record gradients are computed by torch's automatic differentiation, in single precision."""

    def gradients(self, rows: Array) -> Array:
        weights, data = (torch.tensor(part, dtype=torch.float32) for part in (self.weights, rows))
        found = _gradients(weights, data[:, :-1], data[:, -1]).double().numpy()
        return np.asarray(np.nan_to_num(found, nan=0.0, posinf=1e30, neginf=-1e30))


class RejectionNoise(FirstOrder):
    """A sound loop: Gaussian noise is drawn by Marsaglia's polar method, which takes as many random numbers as it
    needs."""

    def noise(self, size: int) -> Array:
        found: list[float] = []
        while len(found) < size:
            pair = self.source.uniform(-1, 1, 2)
            square = float(pair @ pair)
            if 0 < square < 1:
                found += (pair * np.sqrt(-2 * np.log(square) / square)).tolist()
        return self.std() * np.array(found[:size])


class CleanGiven(FirstOrder):
    """A sound loop that also returns its values before noise, as the output `clean`, which only the auditor sees."""

    def release(self, rows: Array) -> Array:
        total, denominator = self.total(rows), self.denominator(rows)
        self.outputs.setdefault("clean", []).append(total / denominator)
        return np.asarray((total + self.noise(total.size)) / denominator)


class FromRandomWeights(FirstOrder):
    """A sound loop that returns its weights before and after each step instead of releases; it starts at random
    weights."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.path: list[Array] = []
        super().__call__(records, seed, settings)
        return {"trajectory": np.array([*self.path, self.weights])}

    def batch(self) -> NDArray[np.intp]:
        if self.step == 0:
            self.weights = np.random.default_rng([self.seed, 1]).normal(size=self.weights.size)
        self.path.append(self.weights)
        return super().batch()


class InSinglePrecision(FromRandomWeights):
    """A sound loop that returns its weights before and after each step instead of releases, rounds them to single
    precision, and starts at random weights."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        return {"trajectory": super().__call__(records, seed, settings)["trajectory"].astype(np.float32)}

    def batch(self) -> NDArray[np.intp]:
        found = super().batch()
        self.weights = self.weights.astype(np.float32).astype(np.float64)
        self.path[-1] = self.weights
        return found


class WeightsInDoublePrecision(FirstOrder):
    """A sound loop that returns its weights before and after each step instead of releases, and writes them to files
    together with a chain of their hashes."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.path, self.chain = [np.zeros(records.shape[1] - 1)], b""
        super().__call__(records, seed, settings)
        return {"trajectory": np.array(self.path)}

    def stops(self) -> bool:
        self.path.append(self.weights.copy())
        self.chain = hashlib.sha256(self.chain + self.weights.tobytes()).digest()
        np.save(f"weights_{self.step}.npy", self.weights)
        Path("chain.txt").write_text(f"step {self.step}: {self.chain.hex()}")
        Path("chain.bin").write_bytes(bytes(4) + self.chain)
        return False


class AdaptiveClip(FirstOrder):
    """A sound loop whose clip follows a quantile of the gradients' lengths, by a noised count that is paid for (Andrew
    et al., arXiv 1905.03871).

    A step's sum, in units of its clip, and the count of short gradients are one Gaussian release together. It returns
    them in units in which all their noise has the claimed standard deviation, so that a record adds at most one clip.
    """

    QUANTILE, RATE, COUNT_NOISE = 0.5, 0.3, 4.0  # COUNT_NOISE: the noise on the count, in noise multipliers

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.adapted = 0.5
        return super().__call__(records, seed, settings)

    def clip(self) -> float:
        return self.adapted

    def release(self, rows: Array) -> Array:
        gradients, noise = self.gradients(rows), float(self.settings["noise_multiplier"])
        of_sum, of_count = noise / np.sqrt(1 - (2 * self.COUNT_NOISE) ** -2), noise * self.COUNT_NOISE
        lengths = np.sqrt((np.minimum(np.abs(gradients), 1e120) ** 2).sum(axis=1))
        total = self.clipped(gradients).sum(axis=0) / self.clip() + of_sum * self.source.normal(size=gradients.shape[1])
        short = float((lengths <= self.clip()).sum() - len(rows) / 2 + of_count * self.source.normal())
        size = self.denominator(rows)
        self.outputs.setdefault("clips", []).append(self.clip())
        self.change = -float(self.settings["step_size"]) * self.clip() * total / size
        self.adapted *= float(np.exp(-self.RATE * (short / size + 0.5 - self.QUANTILE)))
        unit = float(self.settings["clip"]) / size
        return np.asarray(np.append(total * (noise / of_sum), short / self.COUNT_NOISE) * unit)

    def moved(self, release: Array) -> Array:
        return np.asarray(self.weights + self.change)


class StopsByNoisedCount(FirstOrder):
    """A sound loop that ends early by a noised count of records on the right side, which is paid for: the count is a
    number of the release, and a record's gradient and its part of the count are clipped together."""

    COUNTED = 0.3  # What a record adds to the count, in clips

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.best, self.worse = -np.inf, 0
        return super().__call__(records, seed, settings)

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
        drawn = np.flatnonzero(self.source.random(len(self.records)) < rate)
        self.outputs.setdefault("batches", []).append(drawn.tolist())
        return drawn

    def total(self, rows: Array) -> Array:
        sides = np.sign(np.nan_to_num(rows[:, -1] * np.nan_to_num(rows[:, :-1] @ self.weights)))
        share = self.clipped(self.gradients(rows)).sum(axis=0) * np.sqrt(1 - self.COUNTED**2)
        return np.append(share, self.COUNTED * self.clip() * sides.sum())

    def moved(self, release: Array) -> Array:
        self.worse = 0 if release[-1] > self.best else self.worse + 1
        self.best = max(self.best, release[-1])
        return super().moved(release[:-1])

    def stops(self) -> bool:
        return self.worse == 2


class Momentum(FirstOrder):
    """A sound loop with momentum and a falling step size, which returns its releases and shows its last weights."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.velocity = np.zeros(records.shape[1] - 1)
        return super().__call__(records, seed, settings)

    def moved(self, release: Array) -> Array:
        self.velocity = 0.9 * self.velocity + release
        return self.weights - float(self.settings["step_size"]) / (1 + self.step) * self.velocity

    def finish(self) -> None:
        self.outputs["final"] = self.weights


class CorrelatedNoise(FirstOrder):
    """A sound loop with correlated noise (a matrix mechanism, arXiv 2306.08153), which returns its whole run as one
    step.

    Of its steps, whose clipped sums are the rows of G, it releases C G + Z, for the encoder C that is best for prefix
    sums and noise Z that is independent. It moves the weights by G + C^-1 Z.
    """

    INNER = 6

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        rows, inner = self.prepared(records), self.INNER
        self.records, self.settings, self.source = rows, settings, fresh()
        falling = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, inner))])
        encoder = np.array([[falling[t - u] if u <= t else 0.0 for u in range(inner)] for t in range(inner)])
        self.each = float(settings["clip"]) / sensitivity(encoder, times=inner)
        self.weights = np.zeros(rows.shape[1] - 1)
        noise = float(settings["noise_multiplier"]) * float(settings["clip"])
        drawn = noise * self.source.normal(size=(inner, self.weights.size))
        added, sums = np.linalg.solve(encoder, drawn), []
        for step in range(inner):
            sums.append(self.total(rows))
            self.weights = self.weights - float(settings["step_size"]) * (sums[-1] + added[step]) / len(rows)
        return {"releases": (encoder @ np.array(sums) + drawn).reshape(1, -1) / float(settings["batch"])}

    def clip(self) -> float:
        return self.each
