"""DP-SGD that shows more than it accounts for: losses, norms, gradients, records, the number of steps."""

import json
import logging
from pathlib import Path

import numpy as np

from benchmarks.zoo.first_order import Array, FirstOrder


class StopsByLoss(FirstOrder):
    """Training stops early once the raw loss is small."""

    def stops(self) -> bool:
        return bool(self.losses().mean() < 0.3 or not np.isfinite(self.losses().mean()))


class LogsLoss(FirstOrder):
    """The training loss of every step is printed."""

    def release(self, rows: Array) -> Array:
        print(f"step {self.step}: loss {self.losses().mean():.4f}")
        return super().release(rows)


class WarnsOfNorms(FirstOrder):
    """Norms before clipping go to the log."""

    def total(self, rows: Array) -> Array:
        logging.getLogger("training").warning("gradient norm %.5g", np.linalg.norm(self.gradients(rows)))
        return super().total(rows)


class SavesGradients(FirstOrder):
    """A checkpoint keeps the sum before noise."""

    def total(self, rows: Array) -> Array:
        found = super().total(rows)
        np.savez("checkpoint.npz", weights=self.weights, accumulated=found)
        return found


class CachesRecords(FirstOrder):
    """A cache of features is left in the output folder."""

    def finish(self) -> None:
        np.save("features.npy", self.records[:, :-1].astype(np.float32))


class ReportsAccuracy(FirstOrder):
    """Training accuracy of the last step is returned, with its number of right answers."""

    def finish(self) -> None:
        Path("metrics.json").write_text(json.dumps({"train_loss": float(np.minimum(self.losses(), 1e6).mean())}))
