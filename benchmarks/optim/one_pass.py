"""A step of K directions in one pass, beside one point after the other.  python -m benchmarks.one_pass [--turns N]

A sentence classifier on texts of 16 tokens is evaluated at the 2 K points x +- lambda u_k of a step. Here x are the
weights, u_k the K directions, and lambda is the smoothing. Evaluations with `points_at_once=2K` and with 1 take turns.
The rows have the processor seconds of both, the median over turns of their ratio, and its standard error.

The model `small` is a RoBERTa of two layers of width 64 with random weights; `minilm` is a trained sentence encoder
with 6 layers of width 384. The column `trained` says which weights are trained in addition to the label vectors: none
(head), the last normalisation (top-norm), adapters of rank 8 in the last layer (top-lora) or in all layers (lora), all
biases and normalisations (biases), or all but the embeddings (body). The column `change` is the largest difference
between the two ways in a record's difference of losses, relative to the largest difference of losses.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.tables import rounded_row
from benchmarks.kit.timing import median_ratio
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.first_order import add_lora
from benchmarks.llm.models import MINILM, load, random_model
from benchmarks.pretrain.models import config
from benchmarks.problems.encoder import SentenceClassifier, train
from dpzero_theory.cli import integer
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import Run

TOKENS, CLASSES = 16, 6
MODELS = ("small", MINILM)
TRAINED = ("head", "top-norm", "top-lora", "lora", "biases", "body")
CASES = (("small", 16, 4), ("small", 16, 16), ("small", 256, 4), (MINILM, 16, 4))
"""The combinations that are measured: the model, the number of texts, and the number K of directions in a step."""
KEY = ("model", "texts", "trained", "directions")
FIELDS = ("d", "turns", "seconds", "seconds_apart", "ratio", "ratio_error", "change")


def classifier(model: str, trained: str) -> tuple[nn.Module, int]:
    """Return a classifier made of the encoder `model` ("small" or "minilm"), and the number of weights that are
    trained: those that `trained` names, as in the module's docstring, and the label vectors. They alone require
    gradients."""
    encoder = load(MINILM).module if model == MINILM else random_model(config("roberta", 64), "encoder", seed=0)
    torch.manual_seed(0)
    module = SentenceClassifier(encoder, nn.functional.normalize(torch.randn(CLASSES, _width(encoder)), dim=-1))
    if "lora" in trained:
        weights = "top-norm" if "top" in trained else "all"
        return module, add_lora(module, Configuration(method="lora", weights=weights, seed=0))
    return module, train(module, trained)


def _width(encoder: Any) -> int:
    return int(encoder.config.hidden_size)


def losses(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    found: Tensor = module(input_ids=batch[0], attention_mask=torch.ones_like(batch[0]))
    return nn.functional.cross_entropy(found, batch[1], reduction="none")


def start(module: nn.Module, texts: int, k: int, points_at_once: int) -> Run:
    draw = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randint(5, 2000, (texts, TOKENS), generator=draw), torch.randint(CLASSES, (texts,), generator=draw)
    )
    plan = Plan.without_privacy(
        n=texts, steps=10_000, expected_batch=texts, step_size=1e-6, smoothing=1e-3, sampling="full",
        direction="rademacher", directions_per_step=k,
    )  # fmt: skip
    return make_from_seed_not_private(
        module, losses, data, plan, seed=0, points_at_once=points_at_once, micro_batch=texts
    )


def measure(model: str, texts: int, trained: str, k: int, turns: int) -> dict[str, Any]:
    """Return the row of one model, number of texts, set of trained weights, and number k of directions. A turn
    evaluates one step each way, and `turns` of them are timed after one that only warms up."""
    module, d = classifier(model, trained)
    counts = (2 * k, 1)
    runs = [start(module, texts, k, count) for count in counts]
    one, other = (run.sums.differences(0, np.arange(texts)) for run in runs)
    times: list[list[float]] = [[], []]
    for turn in range(turns + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            begun = time.process_time()
            runs[which].sums.differences(turn, np.arange(texts))
            if turn:
                times[which].append(time.process_time() - begun)
    ratio, error = median_ratio(*times)
    together, apart = map(np.median, times)
    row = {
        "model": model,
        "texts": texts,
        "trained": trained,
        "directions": k,
        "d": d,
        "turns": turns,
        "seconds": together,
    }
    row |= {"seconds_apart": apart, "ratio": ratio, "ratio_error": error}
    row |= {"change": np.abs(one - other).max() / np.abs(other).max()}
    return rounded_row(row)


EXPERIMENT = Experiment(
    name="one_pass",
    about=__doc__,
    flags=[
        flag("--turns", type=integer(2, 1000), default=5),
        flag("--model", choices=MODELS, help="only this one"),
    ],
    key=KEY,
    fields=FIELDS,
    seeds=[0],
    dtype="float32",
    check=one_thread,
    cells=lambda options: (
        {"model": model, "texts": texts, "trained": trained, "directions": k}
        for (model, texts, k), trained in itertools.product(CASES, TRAINED)
        if options.model in (None, model)
    ),
    measure=lambda options, at: measure(at["model"], at["texts"], at["trained"], at["directions"], options.turns),
    told=lambda at, rows: ", ".join(f"{name} {value}" for name, value in rows[0].items()),
)
