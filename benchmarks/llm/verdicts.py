"""How often the verdict on a run from its releases alone is right: python -m benchmarks llm.verdicts --data DIR

Runs of known outcome: ten-class digits by a linear layer, a hidden layer of 64 and adapters of rank 8 that begin at
zero, and question types (TREC) by SmolLM2-135M, whose last normalisation or adapters of rank 8 are trained. Step sizes
are s K/G^2 for s from 0.0003 to 100, with G the median gradient norm of public records. What became of a
run is known from the loss on public records: it diverged if the loss has risen, stands still if it fell by less than
2%, learned if it fell by more than 5%, and counts as neither in between. The verdict (`dpzero_theory.optim.verdict`)
sees the releases and the logarithm of the number of classes.
"""

import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm import last_layer
from benchmarks.llm.top import ADAPTERS, NORM, TRAINED
from benchmarks.llm.tuned import Recipe, ready, started
from dpzero_theory.cli import input_folder
from dpzero_theory.datasets import digits
from dpzero_theory.optim.verdict import Descent

SMALL = ("linear", "hidden layer", "adapters")
REAL = {"last normalisation": NORM, "adapters of SmolLM2": ADAPTERS}
SCALES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
SHAPES = ((1, 400), (16, 100))
"""The pairs (K, T) of the runs."""
EPSILONS = ("1", "6")
SMOOTHING, TRAIN = 1e-3, 1400
WORDS = ("learns", "stands still", "diverges")


class _Adapters(nn.Module):
    """A frozen hidden layer with adapters of rank 8 beside its output layer, the second factor zero at first."""

    def __init__(self, frozen: nn.Module) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(8, 64) / 8), nn.Parameter(torch.zeros(10, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.frozen(x)) + x @ self.down.T @ self.up.T


class _Digits:
    """The digits as `Records` of a language model are used: training records, public ones, and what is trained."""

    classes = 10

    def __init__(self) -> None:
        pixels, digit = digits(seed=0)
        self.x, self.y = torch.tensor(pixels, dtype=torch.float32), torch.tensor(digit)

    def top(self, kind: str) -> nn.Module:
        torch.manual_seed(0)
        if kind == "linear":
            return nn.Linear(64, 10)
        hidden = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
        return hidden if kind == "hidden layer" else _Adapters(hidden)

    def losses(self, module: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(module(batch[0]), batch[1], reduction="none")

    def data(self, kind: str) -> TensorDataset:
        return TensorDataset(self.x[:TRAIN], self.y[:TRAIN])

    def loss(self, module: nn.Module) -> float:
        with torch.no_grad():
            return float(self.losses(module, (self.x[TRAIN:], self.y[TRAIN:])).mean())

    def gradient_norm(self, kind: str) -> float:
        module = self.top(kind)
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        norms = []
        for at in range(TRAIN, TRAIN + 100):
            loss = self.losses(module, (self.x[at : at + 1], self.y[at : at + 1])).mean()
            norms.append(math.sqrt(sum(float(g.square().sum()) for g in torch.autograd.grad(loss, weights))))
        return float(torch.tensor(norms).median())


class _Questions:
    """TREC's questions and SmolLM2-135M, as `_Digits`."""

    classes = 6

    def __init__(self, data: Path | None) -> None:
        self._records = last_layer.prepared(data, "trec")
        self.losses = self._records.losses

    def top(self, kind: str) -> nn.Module:
        return self._records.top(TRAINED[REAL[kind]])

    def data(self, kind: str) -> Any:
        return self._records.states(TRAINED[REAL[kind]].layers)["train"]

    def loss(self, module: Any) -> float:
        return self._records.evaluated(module, "public")[1]

    def gradient_norm(self, kind: str) -> float:
        return self._records.gradient_norm(TRAINED[REAL[kind]], "public", SMOOTHING)


class _Counts(NamedTuple):
    """Of runs that ended in one way: how many there are, how many the verdict called so, and how many diverging ones it
    had called so in the first tenth of their steps."""

    runs: int
    right: int
    early: int


def _cells(options: Namespace) -> Iterator[Cell]:
    for trained, (k, steps), epsilon, scale in product(options.trained, SHAPES, EPSILONS, SCALES):
        yield {"trained": trained, "k": k, "steps": steps, "epsilon": epsilon, "scale": scale}


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    small, k, steps = at["trained"] in SMALL, at["k"], at["steps"]
    if options.work is None or isinstance(options.work, _Digits) != small:
        options.work = _Digits() if small else _Questions(options.data)
    work, kind = options.work, at["trained"]
    norm, top, data = work.gradient_norm(kind), work.top(kind), work.data(kind)
    how = Recipe(
        "dpzero", float(at["epsilon"]), steps=steps, batch=len(data) // 16, step_size=at["scale"] * k / norm**2,
        clip=math.sqrt(k) * norm, directions=k, smoothing=SMOOTHING,
    )  # fmt: skip
    before, soon = work.loss(top), 0
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = started(how, top, work.losses, data, folder)
        descent = Descent(run.plan, math.log(work.classes))
        for made in range(1, steps + 1):
            descent.add(run.step())
            if not soon and descent.verdict.word == "diverges":
                soon = made
        run.close()
    found = descent.verdict
    return {
        "loss_before": before, "loss_after": work.loss(top), "descent": found.descent, "error": found.error,
        "verdict": found.word, "diverges_after": soon,
    }  # fmt: skip


def became(row: Any) -> str:
    """Return what became of a run, one of WORDS or "neither", from its losses before and after."""
    ratio = row["loss_after"] / row["loss_before"]
    if not ratio <= 1:
        return "diverges"
    return "stands still" if ratio > 0.98 else "learns" if ratio < 0.95 else "neither"


def counts(rows: pd.DataFrame) -> dict[str, _Counts]:
    """Return for each of WORDS the counts of the runs that ended so."""
    ended = rows.assign(became=rows.apply(became, axis=1), early=rows["diverges_after"].between(1, rows["steps"] // 10))
    parts = {word: ended[ended["became"] == word] for word in WORDS}
    return {
        word: _Counts(len(part), int((part["verdict"] == word).sum()), int(part["early"].sum()))
        for word, part in parts.items()
    }


def table(folder: Path = RESULTS / "llm_verdicts") -> str:
    """Return a table of the counts, a line for each way in which a run ended."""
    lines = [
        [word, *(str(count) for count in found[:2]), str(found.early) if word == "diverges" else ""]
        for word, found in counts(read_rows(folder)).items()
    ]
    return markdown(["the run", "runs", "called so", "within a tenth of the steps"], lines)


EXPERIMENT = Experiment(
    name="llm.verdicts",
    about=__doc__,
    folder="llm_verdicts",
    key=("trained", "k", "epsilon", "scale"),
    fields=("steps", "loss_before", "loss_after", "descent", "error", "verdict", "diverges_after"),
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--trained", nargs="+", choices=(*SMALL, *REAL), default=[*SMALL, *REAL], help="what (default: all)"),
    ],
    dtype="float32",
    settings={"smoothing": SMOOTHING, "delta": 1e-5, "batch": "n/16, Poisson", "relation": "add-remove"},
    check=ready,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: "{verdict}, loss {loss_before:.3f} -> {loss_after:.3f}".format(**rows[-1]),
    report=lambda options: print(table(options.out)),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
