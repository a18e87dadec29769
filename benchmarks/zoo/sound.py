"""Sound DP-SGD loops that compute gradients, draw noise or return results in unusual ways; no check may report them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap

from benchmarks.zoo.first_order import Array, FirstOrder, Settings


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
