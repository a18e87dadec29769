"""Time and peak memory of a step's evaluations by each difference rule.  python -m benchmarks.differences_step

    central          the losses at x + lambda u_k and x - lambda u_k, 2 K evaluations
    forward          the losses at x and at x + lambda u_k, K + 1 evaluations
    exact            the derivatives along u_k at x, one direction after the other
    exact-one-pass   the same, all K directions in one pass (`points_at_once=K`)

16 records of 16 tokens are evaluated by the four in turns, in one process. minilm: the sentence encoder of 6 layers,
width 384, as a classifier; opt: a causal language model of 2 layers, width 256, random weights; smollm2: the language
model of 30 layers, width 576, of `python -m benchmarks.pretrained smollm2`. What is trained: the last normalisation
(top-norm), adapters of rank 8 in all layers (lora), or all but the embeddings (body; of opt all weights). seconds:
processor time of one thread, the median over turns. ratio: of these to central ones, the median over turns within a
turn, and its standard error. evaluations: the same ratio by counting, (K + 1)/(2 K). peak_mb: the peak memory above
that of the module, in a new process that gives freed memory back at once.
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
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.peaks import in_new_process, peak, reset_peak
from benchmarks.kit.tables import rounded_row
from benchmarks.kit.timing import median_ratio
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.first_order import add_lora
from benchmarks.llm.models import MINILM, random_model
from benchmarks.optim import one_pass
from benchmarks.pretrain.models import config
from benchmarks.training.pretrained import pretrained_folder
from dpzero_theory.cli import integer
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import Run

OPT, SMOLLM2, TEXTS = "opt", "smollm2", 16
CASES = (
    *((MINILM, trained) for trained in ("top-norm", "lora", "body")),
    *((OPT, trained) for trained in ("lora", "body")),
    *((SMOLLM2, trained) for trained in ("top-norm", "lora", "body")),
)
"""Models, and what of them is trained."""
DIRECTIONS = (1, 4, 16)
ONE_PASS = "exact-one-pass"
KEY = ("model", "trained", "directions", "method")
FIELDS = ("d", "turns", "seconds", "ratio", "ratio_error", "evaluations", "peak_mb")


def methods(k: int) -> list[str]:
    """Return the methods to compare with K = k directions. At k = 1 `exact-one-pass` is `exact`, and left out."""
    return [*DIFFERENCES, *([ONE_PASS] if k > 1 else [])]


def classifier(model: str, trained: str) -> tuple[nn.Module, int]:
    """Return the model with this name (a key of the table in the module's docstring: minilm, opt or smollm2), in which
    the weights that `trained` names ("top-norm", "lora" or "body") require gradients, and the number of these
    weights."""
    if model == MINILM:
        return one_pass.classifier(model, trained)
    module = random_model(config("opt", 256), "causal", seed=0) if model == OPT else _smollm2()
    if trained == "lora":
        return module, add_lora(module, Configuration(method="lora", weights="all", seed=0))
    if model == SMOLLM2:
        module.requires_grad_(False)
        module.get_submodule({"top-norm": "model.norm", "body": "model.layers"}[trained]).requires_grad_(True)
    return module, sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _smollm2() -> Any:
    """Return the pretrained language model, with attention written out, since torch's own kernel has no forward
    derivative."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(pretrained_folder(SMOLLM2), attn_implementation="eager").eval()


def next_tokens(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return for each text of a batch, whose one entry has the token ids, the mean cross entropy of its next tokens by
    the language model `module`, shape (texts,)."""
    logits = module(input_ids=batch[0]).logits[:, :-1].float()
    found: Tensor = nn.functional.cross_entropy(logits.transpose(1, 2), batch[0][:, 1:], reduction="none").mean(1)
    return found


def start(module: nn.Module, model: str, method: str, k: int) -> Run:
    """Return a run on TEXTS random texts of 16 tokens on which the evaluations of a method with K = k directions are
    timed. It is not private and is never stepped. `module` is what `classifier` returns for the name `model`."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 500, (TEXTS, one_pass.TOKENS), generator=draw)
    labels = torch.randint(one_pass.CLASSES, (TEXTS,), generator=draw)
    difference = method if method in DIFFERENCES else "exact"
    plan = Plan.without_privacy(
        n=TEXTS, steps=10_000, expected_batch=TEXTS, step_size=1e-6, sampling="full", directions_per_step=k,
        difference=difference, smoothing=1e-3 if DIFFERENCES[difference].smoothing else 0.0,
    )  # fmt: skip
    return make_from_seed_not_private(
        module, one_pass.losses if model == MINILM else next_tokens, TensorDataset(tokens, labels), plan, seed=0,
        points_at_once=k if method == ONE_PASS else 1, micro_batch=TEXTS,
    )  # fmt: skip


def evaluate(run: Run, method: str, k: int, release: int) -> None:
    """Evaluate the differences of all texts along the k directions of the step with the number `release`, and drop the
    results. `method` says how many directions go through the model at once. The run must be that method's own, of
    `start`."""
    run.sums.differences(release, np.arange(TEXTS), k if method == ONE_PASS else 1)


def peaks(model: str, trained: str, k: int) -> dict[str, float]:
    """Return by method the peak memory of the evaluations of a second step, in MiB above what is held before it, for K
    = k directions. It is to be called in a new process. `model` and `trained` are those of `classifier`."""
    torch.set_num_threads(1)
    module, _ = classifier(model, trained)
    found = {}
    for method in methods(k):
        run = start(module, model, method, k)
        evaluate(run, method, k, 0)
        before = reset_peak("cpu")
        evaluate(run, method, k, 1)
        found[method] = peak("cpu") - before
    return found


def measure(model: str, trained: str, k: int, turns: int) -> list[dict[str, Any]]:
    """Return a row for each method with K = k directions. `model` and `trained` are those of `classifier`. `turns`
    turns are timed, after one that only warms up."""
    module, d = classifier(model, trained)
    runs = {method: start(module, model, method, k) for method in methods(k)}
    times: dict[str, list[float]] = {method: [] for method in runs}
    for turn in range(turns + 1):
        for method in list(runs)[:: 1 if turn % 2 else -1]:
            begun = time.process_time()
            evaluate(runs[method], method, k, turn)
            if turn:
                times[method].append(time.process_time() - begun)
    memory = in_new_process(peaks, model, trained, k)
    rows = []
    for method, own in times.items():
        ratio, error = median_ratio(own, times["central"])
        row: dict[str, Any] = {"model": model, "trained": trained, "directions": k, "method": method, "d": d}
        row |= {"turns": turns, "seconds": float(np.median(own)), "ratio": ratio, "ratio_error": error}
        difference = DIFFERENCES[method if method in DIFFERENCES else "exact"]
        row |= {"evaluations": difference.points(k) / DIFFERENCES["central"].points(k), "peak_mb": memory[method]}
        rows.append(rounded_row(row))
    return rows


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    found = ", ".join(f"{row['method']} {row['ratio']} ({row['peak_mb']} MiB)" for row in rows)
    return f"{at['model']} {at['trained']} K = {at['directions']}: {found}"


EXPERIMENT = Experiment(
    name="differences_step",
    about=__doc__,
    flags=[
        flag("--turns", type=integer(2, 1000), default=7),
        flag("--model", choices=(MINILM, OPT, SMOLLM2), help="only this one"),
    ],
    key=KEY,
    fields=FIELDS,
    seeds=[0],
    dtype="float32",
    settings={"smoothing": 1e-3},
    check=one_thread,
    cells=lambda options: (
        {"model": model, "trained": trained, "directions": k}
        for (model, trained), k in itertools.product(CASES, DIRECTIONS)
        if options.model in (None, model)
    ),
    keys=lambda options, at: ({**at, "method": method} for method in methods(at["directions"])),
    measure=lambda options, at: measure(at["model"], at["trained"], at["directions"], options.turns),
    told=_told,
)
