"""One run from its configuration to its rows of results."""

import hashlib
import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.llm import first_order, zeroth_order
from benchmarks.llm.configuration import ZEROTH_ORDER, Configuration
from benchmarks.llm.evaluation import Evaluation, evaluate
from benchmarks.llm.frozen import memoise
from benchmarks.llm.models import LanguageModel
from benchmarks.llm.privacy import Privacy, first_order_noise, first_order_privacy
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Splits, splits
from benchmarks.llm.scoring import classifier, scorer
from benchmarks.llm.tasks import task
from dpzero_theory.curvature.encoder import train

__all__ = ["FIELDS", "KEY", "Outcome", "evaluation_steps", "execute", "run_folder"]

KEY = (*Configuration.columns(), "step")
FIELDS = (
    "n", "d", "dev_metric", "dev_loss", "test_metric", "test_loss", "epsilon_lower", "epsilon_upper",
    "noise_multiplier", "seconds", "how",
)  # fmt: skip
"""`step` is the number of steps made when the model was evaluated, `seconds` the wall time of training until then."""


@dataclass(frozen=True)
class Outcome:
    """rows: in the order of their steps, with the columns KEY and FIELDS. metric: what dev and test are measured in."""

    rows: tuple[dict[str, Any], ...]
    privacy: Privacy | None
    metric: str


def run_folder(parent: Path, configuration: Configuration) -> Path:
    """Where a zeroth-order run keeps its ledger, transcript and checkpoint: one folder for each configuration."""
    text = json.dumps(configuration.key(), sort_keys=True)
    return parent / hashlib.sha256(text.encode()).hexdigest()[:16]


def evaluation_steps(steps: int, count: int) -> frozenset[int]:
    """`count` numbers of steps, evenly spaced, the last of them `steps`."""
    return frozenset(round(steps * (index + 1) / count) for index in range(count))


def execute(
    configuration: Configuration,
    language_model: LanguageModel,
    *,
    folder: Path,
    data: Path | None = None,
    rows: int = 16,
    evaluations: int = 1,
    found: Splits | None = None,
    announce: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Train and evaluate; the language model itself stays as it is.

    folder: parent of `run_folder`, from which an interrupted zeroth-order run resumes. data: local files, else Hugging
    Face. rows: records in one forward. evaluations: how often dev is evaluated on the way; training records never
    are, so that nothing is learned from them but what is released. found: the splits, where they are loaded already.
    announce: told what happens. Raises ValueError.
    """
    c = configuration
    entry = task(c.task)
    records = found or splits(entry, c.selection, c.seed, data)
    prompter = Prompter(entry, language_model.kind, language_model.tokenizer, c.max_length)
    examples = [prompter.examples(part) for part in (records.train, records.dev, records.test)]
    module, d = _prepared(language_model, prompter, c)
    scores = scorer(prompter, language_model.pad, rows)

    def evaluated(index: int, given: Any) -> Evaluation:
        return evaluate(module, language_model.tokenizer, scores, given, examples[index])

    found_rows: list[dict[str, Any]] = []
    started = time.perf_counter()

    def after_step(step: int) -> None:
        nonlocal started
        if step not in wanted:
            return
        spent = time.perf_counter() - started
        dev = evaluated(1, records.dev)
        row = {**c.key(), "step": step, "n": len(records.train), "d": d, "dev_metric": dev.metric, "dev_loss": dev.loss}
        found_rows.append({**row, "seconds": round(spent, 2)})
        if dev.metric is not None:
            announce(f"step {step:,}: dev {entry.metric} {100 * dev.metric:.1f}, loss {dev.loss:.4f}, {spent:.0f} s")
        started = time.perf_counter() - spent

    wanted = evaluation_steps(c.steps, evaluations) if c.method != "zero-shot" else {0}
    privacy, how = None, ""
    if c.method == "zero-shot":
        after_step(0)
    elif c.method in ZEROTH_ORDER:
        place = run_folder(folder, c)
        run = zeroth_order.start(module, scores, examples[0], c, place)
        try:
            run.catch_up()
            if not run.releases_left:
                after_step(c.steps)
            while run.releases_left:
                step = run.step().release + 1
                zeroth_order.save(run, step, place)
                after_step(step)
            privacy = zeroth_order.privacy_of(run, c.delta) if c.private else None
        finally:
            run.close()
    elif c.private:
        noise = first_order_noise(c, len(records.train))
        how = first_order.train_private_first_order(module, scores, examples[0], c, noise, after_step)
        privacy = first_order_privacy(c, len(records.train), noise)
    else:
        first_order.train_first_order(module, scores, examples[0], c, after_step)
    test = evaluated(2, records.test)
    found_rows[-1] |= {"test_metric": test.metric, "test_loss": test.loss, "how": how}
    if privacy is not None:
        found_rows[-1] |= {
            "epsilon_lower": privacy.lower,
            "epsilon_upper": privacy.epsilon,
            "noise_multiplier": privacy.noise_multiplier,
        }
    return Outcome(tuple(found_rows), privacy, entry.metric)


def _prepared(language_model: LanguageModel, prompter: Prompter, c: Configuration) -> tuple[nn.Module, int]:
    """A copy whose trained weights are marked, and their number."""
    module = deepcopy(language_model.module)
    if language_model.kind == "encoder":
        module = classifier(module, prompter, language_model.pad)
    d = first_order.add_lora(module, c) if "lora" in c.method else train(module, c.weights)
    memoise(module, language_model.pad, language_model.memory)
    return module, d
