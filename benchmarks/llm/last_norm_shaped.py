"""Directions of another shape on a pretrained language model: SST-2.  python -m benchmarks.llm.last_norm_shaped

    python -m benchmarks.pretrained smollm2                  # the model, once
    python -m benchmarks.llm.last_norm_shaped --data DIR     # DIR holds sst2_train.tsv and sst2_test.tsv

The model, its 576 trained weights, the prompt and the records are those of `benchmarks.llm.last_norm`, with 1,024
training phrases, (2, 1e-5)-DP, 300 steps of 16 directions and clip 4. Directions are B^(1/2) u, where B is C^power and
C = E[g g'] is estimated from the gradients g, at the start, of the 500 dev phrases, which are taken to be public; 1% of
C's mean eigenvalue is added to all. B is scaled so that the mean of ||B^(1/2) g||^2 over these phrases is that of
||g||^2. Power 0 is the plain mechanism. The step size is the one with the highest mean accuracy on the dev phrases over
the seeds of a power.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm.last_norm import CLIP, DIRECTIONS, SMALL, SMOOTHING, gradients, measured, prepared, texts
from benchmarks.llm.settings import MODEL, ready
from benchmarks.training.pretrained import cache
from benchmarks.training.shaped import POWERS, root
from dpzero_theory.cli import input_folder, integer

EPSILON, STEPS = "2", 300
STEP_SIZES = (0.5, 1.0, 2.0, 4.0)


class Shaped(nn.Module):
    """Makes a weight w_0 + B^(1/2) v of the vector v that is trained, which is 0 at first. `by` is B^(1/2)."""

    start: Tensor
    by: Tensor

    def __init__(self, start: Tensor, by: Tensor) -> None:
        super().__init__()
        self.register_buffer("start", start.detach().clone())
        self.register_buffer("by", by)

    def forward(self, v: Tensor) -> Tensor:
        """Return the weight, of the shape of v."""
        weight: Tensor = self.start + self.by @ v
        return weight

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return the v of the weight at the start: zeros."""
        return torch.zeros_like(weight)


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    if options.work is None:
        options.work = prepared(texts(options.data), cache() / "states")
        public = options.work.parts["dev"]
        options.gradients = gradients(options.work, public[torch.arange(len(public))])
        options.start = options.work.tail.model.norm.weight.detach().clone()
    norm: Any = options.work.tail.model.norm
    by = root(options.gradients, at["power"])
    parametrize.register_parametrization(norm, "weight", Shaped(norm.weight, by))
    try:
        whole = {**at, "method": "dpzero", "epsilon": EPSILON, "n": SMALL, "steps": STEPS}
        return measured(options.work, whole, at["step_size"])[-1]
    finally:
        parametrize.remove_parametrizations(norm, "weight")
        norm.weight = nn.Parameter(options.start.clone())


def _cells(options: Namespace) -> Iterator[Cell]:
    for seed in range(options.seeds):
        for power in POWERS:
            yield from ({"power": power, "step_size": size, "seed": seed} for size in STEP_SIZES)


def reported(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a line for each power: the mean accuracy on test sentences in percent, over seeds, at the
    step size with the highest mean dev accuracy, its standard error, and that step size."""
    lines = []
    for power, cell in rows.groupby("power"):
        size = cell.groupby("step_size")["dev_accuracy"].mean().idxmax()
        values = 100 * cell[cell["step_size"] == size]["test_accuracy"]
        lines.append((power, values.mean(), values.sem(), size))
    return pd.DataFrame(lines, columns=["power", "accuracy", "error", "step_size"])


def table(folder: Path = RESULTS / "llm_last_norm_shaped") -> str:
    """Return a table of the accuracy on test sentences by B, with standard errors over the seeds."""
    rows = reported(read_rows(folder)).to_dict("records")
    lines = [
        [f"C^{one['power']:g}" if one["power"] else "none", f"{one['accuracy']:.1f} +- {one['error']:.1f}",
         f"{one['step_size']:g}"]
        for one in rows
    ]  # fmt: skip
    return markdown(["B", "accuracy", "step size"], lines)


EXPERIMENT = Experiment(
    name="llm.last_norm_shaped",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=3),
    ],
    folder="llm_last_norm_shaped",
    key=("power", "step_size", "seed"),
    fields=("step", "d", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper", "noise_multiplier",
            "seconds"),
    seeds=lambda options: range(options.seeds),
    dtype="float32",
    settings={
        "model": MODEL, "n": SMALL, "epsilon": EPSILON, "steps": STEPS, "directions": DIRECTIONS, "clip": CLIP,
        "smoothing": SMOOTHING, "difference": "forward", "sampling": "poisson", "relation": "add-remove",
        "trained": "the last normalisation",
    },
    check=ready,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: f"power {at['power']:g}, step size {at['step_size']:g}, seed {at['seed']}: "
    f"test {100 * rows[-1]['test_accuracy']:.1f}",
    summary=table,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
