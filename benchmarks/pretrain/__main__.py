"""Pretrain small OPT and RoBERTa models on public sentences.  python -m benchmarks.pretrain --data DIR

    python -m benchmarks.pretrain --data DIR                             # every family and width
    python -m benchmarks.pretrain --data DIR --family opt --width 32 64

AdamW trains on blocks of 64 tokens of the sentences, which are put one after the other. The step size is 0.128/width,
and falls linearly to zero after a warm-up. A run that is interrupted goes on from its last checkpoint, at most half a
minute old, and ends with the weights that it would have had. The models are in --models, for `python -m benchmarks.llm
--model FOLDER` and `python -m benchmarks.adaptation`.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import logging

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results
from benchmarks.llm.models import random_model
from benchmarks.pretrain import text
from benchmarks.pretrain.models import FAMILIES, LAYERS, config, folder_of, pretrained
from dpzero_theory.cli import Parser, Several, input_folder, integer, output_folder
from dpzero_theory.optim.files.new_folder import made_whole
from dpzero_theory.optim.losses.task_losses import IGNORED, losses_for

WIDTHS = (16, 32, 64, 128)
ROWS, BLOCK = 16, text.LONGEST
WARM_UP = 0.05
SAVED_EVERY = 30.0
KEY = ("family", "width")
FIELDS = ("d", "tokens", "own_perplexity", "questions_perplexity", "seconds")


class Reading(NamedTuple):
    """What a model is trained on and how long.

    `stream` has the tokens of all sentences, one after the other. `mask` is the id of the mask token, negative where
    the model is not a masked one. `steps` is the number of training steps.
    """

    stream: Tensor
    mask: int
    steps: int


def stream(found: Sequence[str], words: Any) -> Tensor:
    """Return the token ids of all sentences in `found`, one sentence after the other, each with its first and last
    tokens.

    words: the tokenizer.
    """
    return torch.tensor([token for ids in words([line.strip() for line in found])["input_ids"] for token in ids])


def train(module: nn.Module, work: Reading, width: int, place: Path, say: Callable[[int], None]) -> float:
    """Pretrain the module for `work.steps` steps, and return the seconds of training in all. If the checkpoint file
    `place` exists, training goes on from it; a new one is saved there about every SAVED_EVERY seconds.

    work: what the model is trained on. width: that of the model; the largest step size is 0.128/width. say: called with
    the number of steps made, each time a checkpoint is saved.
    """
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.128 / width, betas=(0.9, 0.98), weight_decay=0.01)
    first, spent = _resumed(module, optimizer, place)
    started = saved = time.monotonic()
    losses = losses_for(module)
    module.train()
    for step in range(first, work.steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.128 / width * _share(step, work.steps)
        optimizer.zero_grad()
        mean: Any = losses(module, _batch(work, step))
        mean.mean().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if time.monotonic() - saved > SAVED_EVERY:
            saved = time.monotonic()
            _save(module, optimizer, step + 1, spent + saved - started, place)
            say(step + 1)
    module.eval()
    return spent + time.monotonic() - started


def _share(step: int, steps: int) -> float:
    """Return the factor in (0, 1] by which the largest step size is multiplied at a step (0 for the first of `steps`).
    It rises linearly over the first WARM_UP share of the steps, then falls linearly towards 0."""
    return min((step + 1) / max(WARM_UP * steps, 1), (steps - step) / (steps * (1 - WARM_UP)))


def _batch(work: Reading, step: int) -> dict[str, Tensor]:
    """Return the batch of a step: blocks of tokens of `work.stream` that begin at random places, drawn with the number
    of the step as the seed, and their labels. For a masked model a share of the tokens is replaced by the mask, and
    only these have a label."""
    source = torch.Generator().manual_seed(step)
    begins = torch.randint(len(work.stream) - BLOCK + 1, (ROWS, 1), generator=source)
    ids = work.stream[begins + torch.arange(BLOCK)]
    if work.mask < 0:
        return {"input_ids": ids, "labels": ids}
    hidden = torch.rand(ids.shape, generator=source) < text.MASKED
    return {"input_ids": ids.masked_fill(hidden, work.mask), "labels": ids.masked_fill(~hidden, IGNORED)}


def _resumed(module: nn.Module, optimizer: torch.optim.Optimizer, place: Path) -> tuple[int, float]:
    if not place.exists():
        return 0, 0.0
    state = torch.load(place, weights_only=True)
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["seconds"]


def _save(module: nn.Module, optimizer: torch.optim.Optimizer, step: int, seconds: float, place: Path) -> None:
    state = {"module": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "seconds": seconds}
    new = place.with_suffix(".new")
    torch.save(state, new)
    os.replace(new, place)


def _body(parser: Parser, options: Namespace) -> int:
    """Make the models that are not there yet."""
    logging.disable_progress_bar()
    results = Results(
        options.out,
        key=KEY,
        fields=FIELDS,
        seeds=[0],
        device="cpu",
        dtype="float32",
        settings={"tokens": options.tokens, "vocabulary": text.VOCABULARY, "layers": LAYERS, "read": list(text.READ)},
    )
    with parser.refusals("--data"):
        read = text.sentences(options.data)
    with parser.opened("--out", results):
        for width in options.width:
            for family in options.family:
                made = (folder_of(options.models, family, width) / "config.json").exists()
                if made and results.done(family=family, width=width):
                    continue
                with parser.refusals("--width"):
                    seconds = 0.0 if made else _make(family, width, read, options)
                row = {"family": family, "width": width, "tokens": options.tokens, "seconds": round(seconds, 1)}
                row |= _measured(family, width, options)
                if not results.done(family=family, width=width):
                    results.add([row])
                print(
                    f"{family}-{width}: {row['d']:,} weights, perplexity {row['own_perplexity']:.1f} on reviews, "
                    f"{row['questions_perplexity']:.1f} on questions, {seconds:.0f} s",
                    flush=True,
                )
    return 0


def _make(family: str, width: int, read: Sequence[str], options: Any) -> float:
    words = text.tokenizer(family, options.models / "pairs.json", read)
    steps = max(1, options.tokens // (ROWS * BLOCK))
    work = Reading(stream(read, words), words.mask_token_id if family == "roberta" else -1, steps)
    module = random_model(config(family, width), FAMILIES[family], seed=0)
    place = options.models / f"{family}-{width}.pt"

    def say(step: int) -> None:
        print(f"{family}-{width}: step {step:,} of {steps:,}", file=sys.stderr, flush=True)

    seconds = train(module, work, width, place, say)
    with made_whole(folder_of(options.models, family, width)) as new:
        module.save_pretrained(new)  # type: ignore[operator]
        words.save_pretrained(new)
    place.unlink(missing_ok=True)
    return seconds


def _measured(family: str, width: int, options: Any) -> dict[str, float]:
    model = pretrained(options.models, family, width)
    scorer = text.SentenceScorer(model.pad, 64)
    parts = (text.reviews(options.data), text.questions(options.data)[2])
    own, questions = (
        text.perplexity(model.module, scorer, text.examples(part, model.tokenizer, family)) for part in parts
    )
    d = sum(parameter.numel() for parameter in model.module.parameters())
    return {"d": d, "own_perplexity": round(own, 4), "questions_perplexity": round(questions, 4)}


EXPERIMENT = Command(
    "pretrain",
    __doc__,
    _body,
    [
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--family", nargs="+", action=Several, choices=tuple(FAMILIES), default=list(FAMILIES)),
        flag("--width", nargs="+", action=Several, type=integer(16, 4096), default=list(WIDTHS)),
        flag("--tokens", type=integer(1, 10**12), default=3_000_000, help="read in all (default 3,000,000)"),
        flag("--models", type=output_folder, default=Path("out/pretrained"), help="where the models are put"),
        flag("--out", type=output_folder, default=RESULTS / "pretrain", help="rows and their manifest"),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
