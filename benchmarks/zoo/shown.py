"""DP-SGD loops that show something computed from the data for which they do not account.

Examples are losses, gradient norms, sums before noise, the records themselves, and the number of steps.
"""

import hashlib
import json
import logging
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.first_order import Array, FirstOrder


class StopsByLoss(FirstOrder):
    """A loop with a fault: training stops early once the training loss, without noise, is small."""

    def stops(self) -> bool:
        return bool(self.losses().mean() < 0.3 or not np.isfinite(self.losses().mean()))


class LogsLoss(FirstOrder):
    """A loop with a fault: the training loss of every step is printed."""

    def release(self, rows: Array) -> Array:
        print(f"step {self.step}: loss {self.losses().mean():.4f}")
        return super().release(rows)


class WarnsOfNorms(FirstOrder):
    """A loop with a fault: the norm of the batch's gradients before clipping is logged, without noise."""

    def total(self, rows: Array) -> Array:
        logging.getLogger("training").warning("gradient norm %.5g", np.linalg.norm(self.gradients(rows)))
        return super().total(rows)


class SavesGradients(FirstOrder):
    """A loop with a fault: a checkpoint file contains the sum before noise."""

    def total(self, rows: Array) -> Array:
        found = super().total(rows)
        np.savez("checkpoint.npz", weights=self.weights, accumulated=found)
        return found


class CachesRecords(FirstOrder):
    """A loop with a fault: a file with all records' features is left in the output folder."""

    def finish(self) -> None:
        np.save("features.npy", self.records[:, :-1].astype(np.float32))


class ReportsAccuracy(FirstOrder):
    """A loop with a fault: the final training loss, without noise, is written to a file of metrics."""

    def finish(self) -> None:
        Path("metrics.json").write_text(json.dumps({"train_loss": float(np.minimum(self.losses(), 1e6).mean())}))


class SaltsDigest(FirstOrder):
    """A loop with a fault: a hash of records and weights is written together with its salt, so that guesses of the
    records can be tested."""

    def finish(self) -> None:
        salt = os.urandom(16)
        digest = hashlib.sha256(salt + self.records.tobytes() + self.weights.tobytes()).hexdigest()
        Path("state.json").write_text(json.dumps({"salt": salt.hex(), "digest": digest}))


class LogsMembers(FirstOrder):
    """A loop with a fault: the indices of each batch's records are printed, although amplification by sampling is
    claimed."""

    def batch(self) -> NDArray[np.intp]:
        found = super().batch()
        print(f"step {self.step}: {found.tolist()}")
        return found


class SaysLargeBatches(FirstOrder):
    """A loop with a fault: a line is printed for each batch that is larger than expected."""

    def release(self, rows: Array) -> Array:
        if len(rows) > float(self.settings["batch"]) + 2:
            print("a large batch")
        return super().release(rows)
