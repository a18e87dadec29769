"""One run, from its configuration to its rows of results."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.llm import first_order, zeroth_order
from benchmarks.llm.configuration import FIRST_ORDER, ZEROTH_ORDER, Configuration
from benchmarks.llm.models import LanguageModel
from benchmarks.llm.privacy import Privacy, first_order_noise, first_order_privacy
from benchmarks.llm.prompts import Example, Prompter
from benchmarks.llm.records import Splits, splits
from benchmarks.llm.scoring import Scorer, classifier, evaluated, scorer
from benchmarks.llm.tasks import task
from benchmarks.problems.encoder import train

KEY = (*Configuration.columns(), "step")
FIELDS = (
    "n", "d", "dev_metric", "dev_loss", "test_metric", "test_loss", "epsilon_lower", "epsilon_upper",
    "noise_multiplier", "seconds", "how",
)  # fmt: skip
"""The measured columns. `step`, in the key, is the number of steps made when the model was evaluated, and `seconds` is
the wall time of training until then."""


@dataclass(frozen=True)
class RunResult:
    """What a run gives. rows: its rows of results in the order of their steps, with the columns KEY and FIELDS."""

    rows: tuple[dict[str, Any], ...]
    privacy: Privacy | None


def run_folder(parent: Path, configuration: Configuration) -> Path:
    """Return the folder below `parent` for a zeroth-order run's ledger, transcript and checkpoint: one for each
    configuration."""
    text = json.dumps(configuration.key(), sort_keys=True)
    return parent / hashlib.sha256(text.encode()).hexdigest()[:16]


def evaluation_steps(steps: int, count: int) -> frozenset[int]:
    """Return the numbers of steps after which a run of `steps` steps is evaluated: `count` of them, evenly spaced up to
    rounding, the last of which is `steps`. There are fewer if `count` is more than `steps`."""
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
) -> RunResult:
    """Make the run of the configuration: train a copy of the language model and evaluate it. Returns its rows and
    privacy.

    folder: the parent of `run_folder`, from which an interrupted zeroth-order run resumes. data: a folder of local
    files, else Hugging Face. rows: records in one forward pass. evaluations: how often the dev records are evaluated on
    the way; training records never are, so that nothing is learned from them but what is released. found: the splits,
    if they are loaded already. announce: called with lines that say what happens. Raises ValueError where the parts do
    not fit together.
    """
    c = configuration
    entry = task(c.task)
    records = found or splits(entry, c.selection, c.seed, data)
    prompter = Prompter(entry, language_model.kind, language_model.tokenizer, c.max_length)
    examples, dev, test = (prompter.examples(part) for part in (records.train, records.dev, records.test))
    module, d = _prepared(language_model, prompter, c)
    scores = scorer(prompter, language_model.pad, rows)
    wanted = evaluation_steps(c.steps, evaluations) if c.method != "zero-shot" else frozenset({0})
    shared = {**c.key(), "n": len(records.train), "d": d}
    made: list[dict[str, Any]] = []
    started = time.perf_counter()

    def after_step(step: int) -> None:
        nonlocal started
        if step not in wanted:
            return
        spent = time.perf_counter() - started
        accuracy, loss = evaluated(module, scores, dev)
        made.append({**shared, "step": step, "dev_metric": accuracy, "dev_loss": loss, "seconds": round(spent, 2)})
        if accuracy is not None:
            announce(f"step {step:,}: dev accuracy {100 * accuracy:.1f}, loss {loss:.4f}, {spent:.0f} s")
        started = time.perf_counter() - spent

    privacy = trained(module, scores, examples, c, folder, after_step)
    accuracy, loss = evaluated(module, scores, test)
    how = "one backward pass a record" if c.private and c.method in FIRST_ORDER else ""
    made[-1] |= {"test_metric": accuracy, "test_loss": loss, "how": how}
    if privacy is not None:
        made[-1] |= {
            "epsilon_lower": privacy.lower,
            "epsilon_upper": privacy.epsilon,
            "noise_multiplier": privacy.noise_multiplier,
        }
    return RunResult(tuple(made), privacy)


def trained(
    module: nn.Module,
    scores: Scorer,
    examples: Sequence[Example],
    c: Configuration,
    folder: Path,
    after_step: Callable[[int], None],
) -> Privacy | None:
    """Train the module by the method of the configuration c.

    Returns the privacy of the run, None for a method that is not private.

    scores: gives each record's loss. examples: the training records. folder: the parent of the run's folder.
    after_step: called after each step with the number of steps made, and once at the start where a zeroth-order run is
    resumed or the method is zero-shot.
    """
    if c.method == "zero-shot":
        after_step(0)
        return None
    if c.method in ZEROTH_ORDER:
        return _zeroth_order(module, scores, examples, c, folder, after_step)
    if not c.private:
        first_order.train_first_order(module, scores, examples, c, after_step)
        return None
    noise = first_order_noise(c, len(examples))
    first_order.train_private_first_order(module, scores, examples, c, noise, after_step)
    return first_order_privacy(c, len(examples), noise)


def _zeroth_order(
    module: nn.Module,
    scores: Scorer,
    examples: Sequence[Example],
    c: Configuration,
    folder: Path,
    after_step: Callable[[int], None],
) -> Privacy | None:
    place = run_folder(folder, c)
    run = zeroth_order.start(module, scores, examples, c, place)
    try:
        run.catch_up()
        if made := c.steps - run.releases_left:
            after_step(made)  # if the run was interrupted between its last step and that step's evaluation
        while run.releases_left:
            step = run.step().release + 1
            zeroth_order.save(run, step, place)
            after_step(step)
        return zeroth_order.privacy_of(run, c.delta) if c.private else None
    finally:
        run.close()


def _prepared(language_model: LanguageModel, prompter: Prompter, c: Configuration) -> tuple[nn.Module, int]:
    """Return a copy of the model for the configuration c, in which only the weights to train require gradients, and the
    number of these weights. prompter: makes the prompts, whose label sentences give an encoder its label vectors."""
    module = deepcopy(language_model.module)
    if language_model.kind == "encoder":
        module = classifier(module, prompter, language_model.pad)
    return module, train(module, c.weights)
