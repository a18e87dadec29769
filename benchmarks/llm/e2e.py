"""Descriptions of restaurants (E2E) that a pretrained model generates, before and after private tuning: loss and BLEU.

    python -m benchmarks.pretrained smollm2        # the model, once
    python -m benchmarks.llm.e2e --data DIR        # DIR holds e2e_devset.csv

Trained is what `benchmarks.llm.chat` trains, one number for each token of the vocabulary, with its clip and directions,
and with the step size that was best there on the dev records, but on fewer records, in smaller batches and steps. The
answers to the prompts of test restaurants are generated greedily. BLEU is sacrebleu's, against all descriptions of each
restaurant, with a 95% bootstrap interval over restaurants. The loss is the mean over test descriptions of their
mean loss a token. All frozen weights are in bfloat16. There is one run of each kind.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm import chat
from benchmarks.llm.generation import generate
from benchmarks.llm.prompts import Example
from benchmarks.llm.settings import MODEL
from benchmarks.training.pretrained import cache
from dpzero_theory import check
from dpzero_theory.cli import Parser, input_folder

SIZES = {"train": 1000, "dev": 20, "test": 240}
"""The numbers of descriptions."""
STEPS, BATCH, RESAMPLED = 40, 16, 200
STEP_SIZES = {"zero-shot": 0.0, "dpzero": 8.0, "adamw": 0.1}
RUNS = (("zero-shot", "none"), *chat.RUNS)
LABELS = {"zero-shot": "before", "dpzero": "DPZero, epsilon {}", "adamw": "AdamW, not private"}


def bleu(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return `bleu`, sacrebleu's BLEU of the answers (0 to 100), and `bleu_low` and `bleu_high`, the ends of its 95%
    interval: the quantiles 0.025 and 0.975 over `RESAMPLED` bootstrap samples of the prompts.

    answers: one for each prompt. references: for each prompt its right answers, any number of them.
    """
    from sacrebleu.metrics import BLEU

    def score(chosen: Sequence[int]) -> float:
        streams = [list(stream) for stream in zip_longest(*(references[i] for i in chosen))]
        return float(BLEU().corpus_score([answers[i] for i in chosen], streams).score)

    draws = np.random.default_rng(0).integers(len(answers), size=(RESAMPLED, len(answers)))
    low, high = np.quantile([score(chosen) for chosen in draws.tolist()], (0.025, 0.975))
    return {"bleu": score(range(len(answers))), "bleu_low": float(low), "bleu_high": float(high)}


def generated(work: chat.Prepared, data: Path) -> tuple[list[str], list[list[str]]]:
    """Return the answer of the model of `work`, with its present weights, to the prompt of each test restaurant, and
    for each the list of all descriptions of that restaurant. data: the folder of the E2E file."""
    described: dict[str, list[str]] = {}
    for prompt, (text,) in chat.answers(data, "sft", SIZES)["test"]:
        described.setdefault(prompt, []).append(text)
    tokenizer = work.model.tokenizer
    prompts = [Example(tuple(tokenizer(prompt)["input_ids"][: chat.LONGEST["prompt"]])) for prompt in described]
    return generate(work.model.module, tokenizer, prompts), list(described.values())


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    work = options.work.get(SIZES["train"])
    if work is None:
        work = options.work[SIZES["train"]] = chat.prepared(options.data, "sft", cache() / "states", SIZES, "bfloat16")
    size = STEP_SIZES[at["method"]]
    steps = STEPS if size else 0
    if size:
        with TemporaryDirectory() as folder:
            found = chat.trained(work, "sft", at, size, Path(folder), STEPS, BATCH)
    else:
        found = {"n": 0, "step_size": 0.0, "test_loss": chat.evaluated(work, "test")[0]}
    answers, references = generated(work, options.data)
    words = sum(len(answer.split()) for answer in answers) / len(answers)
    row = {name: found[name] for name in FIELDS if name in found}
    return {
        **row,
        "steps": steps,
        "answers": len(answers),
        "words": words,
        **bleu(answers, references),
        "example": answers[0],
    }


FIELDS = (
    "n", "steps", "step_size", "epsilon_upper", "noise_multiplier", "test_loss", "answers", "words", "bleu", "bleu_low",
    "bleu_high", "example",
)  # fmt: skip


def table(folder: Path = RESULTS / "llm_e2e") -> str:
    """Return a table of loss and BLEU before and after training, and the answer to the first test restaurant."""
    rows = read_rows(folder).astype({"epsilon": str}).fillna({"example": "(nothing)"})
    lines = [
        [
            LABELS[method].format(epsilon),
            f"{row['test_loss']:.3f}",
            f"{row['bleu']:.1f} ({row['bleu_low']:.1f} to {row['bleu_high']:.1f})",
            f"{row['words']:.0f}",
            shorten(str(row["example"]), 90, placeholder=" ..."),
        ]
        for method, epsilon in RUNS
        for row in having(rows, method=method, epsilon=epsilon).to_dict("records")
    ]
    return markdown(["model", "loss a token", "BLEU (95%)", "words", "the first answer"], lines)


def _check(parser: Parser, options: Namespace) -> None:
    with parser.refusals():
        check.installed("BLEU", "sacrebleu", "dev")
    chat.check_data(parser, options)


EXPERIMENT = Experiment(
    name="llm.e2e",
    about=__doc__,
    flags=[flag("--data", type=input_folder(), help=f"folder with {chat.FILE}")],
    folder="llm_e2e",
    key=("method", "epsilon", "seed"),
    fields=FIELDS,
    seeds=[1],
    dtype="bfloat16, the trained numbers in float32",
    settings={
        "model": MODEL, "sizes": str(SIZES), "batch": BATCH, "directions": chat.DIRECTIONS,
        "clip": chat.CLIPS["sft"], "smoothing": chat.SMOOTHING, "difference": "forward", "delta": chat.DELTA,
        "sampling": "poisson", "relation": "add-remove", "trained": "one number for each token, added to the logits",
    },
    check=_check,
    cells=lambda options: [{"method": method, "epsilon": epsilon, "seed": 1} for method, epsilon in RUNS],
    measure=_measure,
    told=lambda at, rows: (
        f"{at['method']}, epsilon {at['epsilon']}: loss {rows[0]['test_loss']:.3f}, BLEU {rows[0]['bleu']:.1f}"
    ),
    summary=table,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
